"""Rows of a table as cases: what they ask, with the schedule and the recompute that they do not spell out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from scripts.rows.cluster import cluster_of
from scripts.rows.columns import Notes, read_corpus
from scripts.rows.layout import stated_of
from scripts.rows.measured import peak_of, speed_of
from scripts.rows.megatron_ci import COLUMNS as CI_COLUMNS
from scripts.rows.megatron_ci import ci_cases
from scripts.rows.model import model_of
from scripts.rows.tables import doubt_of, sitting_of

from forescale.errors import ForescaleError
from forescale.files import Row, read_table
from forescale.project import project
from forescale.question import Question
from forescale.schedule import family
from forescale.spec import Cluster, Layout, Model, Workload
from forescale.spec.framework import explicit_fields
from forescale.spec.layout import Recompute
from forescale.spec.stage_layers import light_ends
from forescale.time.pipeline import lay_out
from forescale.units import GB
from forescale.validation.case import Case, Measured, RowSpec
from forescale.validation.cases import source_of
from forescale.validation.published import Speed


def load_rows(path: str | Path, *, cluster: Cluster | None = None) -> list[Case]:
    """Return one case for every row of the CSV file at `path`, in its order; none is left out.

    The file is a table of runs, or of the golden values of Megatron-LM's tests. All runs of a table were made on
    `cluster` where it is given, whatever their rows call it.

    Raises
    ------
    ReaderError
        If the file is neither. A row that cannot be expressed is a case with `skipped_reason`.
    """
    table = read_table(path)
    if set(CI_COLUMNS) <= set(table.columns):
        return ci_cases(table)
    return express(read_corpus(path).rows, cluster=cluster)


def express(rows: Sequence[Row], *, cluster: Cluster | None = None) -> list[Case]:
    """Return one case for every row, in order."""
    return [_case(row, cluster) for row in rows]


def _case(row: Row, local: Cluster | None) -> Case:
    notes: list[str] = []
    case = Case(
        id=row.id,
        source=source_of(row.id, row.text("source")),
        reference=row.text("source"),
        hardware=row.text("hardware"),
        model_name=row.text("model"),
        family=row.text("family") or ("moe" if row.text("num_experts") else "dense"),
        schedule=row.text("schedule"),
        core=row.text("core").lower() == "y",
        remarks=row.text("notes"),
        doubt=doubt_of(row),
        sitting=sitting_of(row),
    )
    try:
        model = model_of(row, notes)
        cluster = cluster_of(row, notes) if local is None else local.sized(row.integer("n_gpus") or 1)
        stated = stated_of(row, model, notes)
        first, workload = stated.trained(model, cluster)
        layout = _scheduled(row.text("schedule"), model, first, workload, notes)
        layout = with_needed_recompute(row, model, cluster, layout, workload, notes)
        measured = _measured(row, model, cluster, layout, workload)
    except ForescaleError as error:
        return replace(case, skipped_reason=str(error), measured=_printed(row), notes=tuple(notes))
    return replace(
        case,
        model=model,
        cluster=cluster,
        strategy=layout,
        workload=workload,
        stated=_more_stated(stated, first, layout),
        measured=measured,
        notes=tuple(notes),
    )


def _more_stated(stated: RowSpec, first: Layout, layout: Layout) -> RowSpec:
    """Return what is stated with what was found out since `first`: a schedule, recompute that it needs."""
    parts = dict(stated.strategy)
    for name, value in explicit_fields(layout, first).items():
        below = parts.get(name)
        parts[name] = {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
    return replace(stated, strategy=parts)


def _scheduled(text: str, model: Model, layout: Layout, workload: Workload, notes: list[str]) -> Layout:
    """Return the strategy with the schedule that a row names, where the library has it and it can run."""
    if layout.pp == 1 or text == "" or "1f1b" in text.lower():
        return layout
    name = SCHEDULES.get(text.lower().removeprefix("zero-bubble").strip())
    if name is not None:
        chunks = family(name).fixed_vpp or layout.vpp
        layers = light_ends(model.num_layers, layout.pp, chunks)
        named = replace(layout, schedule=name, vpp=chunks, stage_layers=layers)
        try:
            lay_out(model, named, workload)
        except ForescaleError as error:
            notes.append(str(error))
        else:
            return named
    kind = "interleaved 1F1B" if layout.vpp > 1 else "1F1B"
    notes.append(f"schedule {text!r} projected as {kind}")
    return layout


SCHEDULES = {
    "": "zb-h1", "zb-1p": "zb-1p", "zb-2p": "zb-2p", "zb-v": "zbv", "zbv": "zbv", "zbv-formatted": "zbv",
    "v-half": "v-half", "v-min": "v-min", "zbb": "zb-h1",
}  # fmt: skip
"""What rows call a schedule (without "zero-bubble"), and its name in the library."""


def _printed(row: Row) -> Measured:
    """Return the seconds and bytes that the row prints, without deriving any."""
    try:
        step, memory = row.number("measured_step_s"), row.number("measured_peak_mem_gb")
    except ForescaleError:
        return Measured()
    return Measured(
        speed=Speed(step_time_s=step or None),
        step_time_s=step or None,
        step_time_from="step time" if step else "none",
        peak_bytes=None if memory is None else memory * GB,
    )


def _measured(row: Row, model: Model, cluster: Cluster, layout: Layout, workload: Workload) -> Measured:
    speed = speed_of(row)
    step, origin = speed.step_time(model, cluster, layout, workload)
    return Measured(step_time_s=step, step_time_from=origin, speed=speed, **peak_of(row))


def with_needed_recompute(
    row: Row, model: Model, cluster: Cluster, strategy: Layout, workload: Workload, notes: Notes
) -> Layout:
    """Return the strategy, recomputing as few whole layers of each stage as fit, where a row is silent.

    A row that ran out of memory, says that a policy of its framework applies, or whose recompute was read from its
    recipe (none, where the column is empty) stays as it is.
    """
    silent = not row.text("recompute") and strategy.recompute == Recompute()
    told = r"\bOOM\b|out of memory|recompute/graphs/dispatcher read from"
    if not silent or re.search(told, row.text("notes"), re.IGNORECASE):
        return strategy

    def with_layers(count: int) -> Layout:
        return replace(strategy, recompute=Recompute(granularity="full", num_layers=count))

    def fits(layout: Layout) -> bool:
        question = Question(model=model, cluster=cluster, workload=workload, strategy=layout)
        return project(question).memory.verdict != "OOM"

    most = math.ceil(model.num_layers / (strategy.pp * strategy.vpp))
    if fits(strategy) or not fits(with_layers(most)):
        return strategy
    few, enough = 0, most
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if fits(with_layers(middle)) else (middle, enough)
    notes.append(f"without recompute it could not have run: {enough} layers of each stage recomputed")
    return with_layers(enough)
