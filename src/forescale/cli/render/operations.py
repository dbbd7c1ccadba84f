"""The operators of the blocks of a model as tables."""

from __future__ import annotations

from collections.abc import Sequence

from forescale.cli.render import words
from forescale.cost.roofline import peak_rate
from forescale.report.document import Cell, Section, View, line, table
from forescale.report.operations import OperatorCost, OperatorTable, shares
from forescale.units import format_bytes, format_count, format_prefixed, format_seconds

LEGEND = (
    "one micro-batch on one device, before overlap and without recompute; FLOP and bytes of forward. bound: what "
    "limits the operator: peak rate (compute), memory bandwidth (memory), launches by the host (launch) or messages "
    "(network). "
    "peak: share of the peak rate or bandwidth that the kernels reach"
)


def operators_view(result: OperatorTable) -> View:
    """Return a table per block: work, intensity, time and limit of forward, then those of backward."""
    question, blocks = result.question, dict.fromkeys(item.block for item in result.operators)
    device = question.cluster.device
    rate, bandwidth = peak_rate(device, question.workload.precision.compute), device.hbm_bandwidth
    ridge = f"{format_prefixed(rate, 'FLOP/s')} / {format_prefixed(bandwidth, 'B/s')}"
    return View(
        title=f"Operators of {question.model.name} on {device.name}",
        lead=words.lead(question.workload, question.preset),
        contents=(
            line(("ridge point", "bold"), f": {rate / bandwidth:,.0f} FLOP/byte ({ridge})"),
            line(("time by limit", "bold"), f": {_shares(result.operators)}"),
            *(_block([item for item in result.operators if item.block == block]) for block in blocks),
            line(LEGEND, style="dim"),
        ),
        notes=question.notes,
    )


def _shares(operators: Sequence[OperatorCost]) -> str:
    return ", ".join(f"{bound} {words.percent(share)}" for bound, share in shares(operators).items())


def _block(operators: Sequence[OperatorCost]) -> Section:
    names = dict.fromkeys(item.name for item in operators)
    known = {(item.name, item.direction): item for item in operators}
    rows = (
        [name, *_work(known.get((name, "forward"))), *_limit(known.get((name, "backward")))] for name in names
    )
    columns = (
        "|operator",
        "FLOP",
        "bytes",
        "FLOP/B",
        "forward",
        "|bound",
        "peak",
        "backward",
        "|bound",
        "peak",
    )
    return Section(f"{operators[0].block} × {operators[0].times}", (table(*columns, rows=rows, gap=1),), 2)


def _work(item: OperatorCost | None) -> list[Cell]:
    if item is None:
        return [""] * 6
    flops = format_count(item.flops) if item.flops else ""
    intensity = f"{item.intensity:,.1f}" if item.intensity else ""
    return [flops, format_bytes(item.num_bytes) if item.num_bytes else "", intensity, *_limit(item)]


def _limit(item: OperatorCost | None) -> list[Cell]:
    if item is None:
        return [""] * 3
    reached = "" if item.reached is None else words.percent(item.reached, 0)
    return [format_seconds(item.device_seconds), item.bound, reached]
