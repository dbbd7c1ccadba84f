"""Schedules in torch.distributed.pipelining's CSV: one row per rank, one action per cell.

`compute_only` tables hold F, B, I, W and overlapped blocks; torch lowers them itself. `compute_comms` tables
also hold sends and receives and run as they are. A note row is not part of the format, so a placement with
replicas cannot be written.
"""

from __future__ import annotations

import csv
import io
from typing import Literal, TypeAlias

from forescale.errors import ScheduleError, empty, unsupported_by, wrong_format
from forescale.schedule.actions import KIND_BITS, Kind, decode, encode, parse
from forescale.schedule.messages import LoweredSchedule, lower
from forescale.schedule.model import Placement, Schedule, from_actions

Format: TypeAlias = Literal["compute_only", "compute_comms"]
_COPIES = (Kind.OFFLOAD, Kind.RELOAD)


def to_csv(schedule: Schedule, *, format: Format = "compute_only") -> str:  # noqa: A002 -- torch's word
    """Return the schedule as torch's CSV.

    Raises
    ------
    ScheduleError
        If it holds what torch has no word for: replicas, sequence pieces, copies to the host.
    """
    _expressible(schedule)
    orders = schedule.orders if format == "compute_only" else lower(schedule, reduce_grad=True).orders
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for order in orders:
        writer.writerow([str(cell) for cell in decode(order)])
    return text.getvalue()


def _rows(text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ScheduleError(wrong_format("a table of comma-separated cells", f"{error}")) from error


def _expressible(schedule: Schedule) -> None:
    copies = any(code & KIND_BITS in _COPIES for order in schedule.orders for code in order)
    reasons = (
        (schedule.placement.num_replicas > 1, "replicas of the model"),
        (schedule.num_splits > 1, "sequence pieces"),
        (copies, "copies to the host"),
    )
    for result, what in reasons:
        if result:
            raise ScheduleError(unsupported_by("torch's schedule CSV", what)).at(schedule.name)


def from_csv(
    text: str, *, placement: Placement | None = None, name: str = "csv"
) -> tuple[Schedule, LoweredSchedule | None]:
    """Return the schedule in torch's CSV, and its communication if the table holds it.

    Parameters
    ----------
    text
        The CSV's content.
    placement
        Ranks of the stages; by default, the rank on which a stage's actions stand.
    name
        What to call the schedule.

    Raises
    ------
    ScheduleError
        If a cell is not an action; the message names its row and column.
    """
    orders: list[tuple[int, ...]] = []
    for row, cells in enumerate(_rows(text)):
        codes: list[int] = []
        for column, cell in enumerate(cells):
            if not cell.strip():
                continue
            try:
                codes += encode(parse(cell))
            except ScheduleError as error:
                raise ScheduleError(error).at(f"row {row + 1}, column {column + 1}") from error
        orders.append(tuple(codes))
    while orders and not orders[-1]:
        orders.pop()
    if not orders:
        raise ScheduleError(empty("the table", "write one row of actions per rank"))
    compute = [tuple(c for c in order if c & KIND_BITS <= Kind.RELOAD) for order in orders]
    schedule = from_actions([decode(order) for order in compute], placement=placement, name=name)
    communicates = any(Kind.SEND_F <= c & KIND_BITS <= Kind.RECV_B for order in orders for c in order)
    return schedule, LoweredSchedule(schedule=schedule, orders=tuple(orders)) if communicates else None
