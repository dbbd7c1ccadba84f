"""Tables of measured runs: one run per row, one explicit column per field of its plan, and what was measured.

A column is a key of a plan file (`model`, `cluster`, `devices`, `framework`, `strategy.tp`, `workload.seq_len`), the
last part of such a key (`tp`, `seq_len`), or one of `COLUMNS`. Cells are JSON; a cell that is not JSON is text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from msgspec.structs import replace

from forescale import wording
from forescale.catalogue.clusters import cluster_names, hardware_cluster
from forescale.errors import (
    ForescaleError,
    ReaderError,
    UnknownNameError,
    nearest,
    not_one_of,
    out_of_range,
    shown,
    wrong_type,
)
from forescale.files import FLAGS, Row, Table, parse_json, read_table
from forescale.io.question import build_question
from forescale.limits import AMOUNT, Interval, within
from forescale.question import Question
from forescale.spec import Cluster, Layout, Workload
from forescale.units import GB, GIB
from forescale.validation.case import Case, InexpressibleError, Measured, PeakMeasure, PeakStage, RowSpec
from forescale.validation.published import Speed

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "id": "unique name of the row; `SMX-001` belongs to the source SMX",
        "group": "short name of the source, where the id does not begin with it",
        "source": "where the run was published",
        "label": "name of the model as published",
        "hardware": "name of the hardware as published",
        "family": "`dense` or `moe`",
        "schedule_label": "pipeline schedule as published",
        "core": "`true` if every field is known",
        "doubt": "why the row does not determine its memory",
        "session": "runs of one source are compared only within one session",
        "remarks": "free text",
        "assumptions": "list of what was assumed, approximated or looked up",
        "skipped": "why the row cannot be projected",
        "published": "list of the plan fields that the source publishes",
        "derived": "plan fields derived from other facts, each with the derivation",
        "assumed": "list of the plan fields that are assumed",
        "typed": "list of the plan fields that a user would type",
        "measured_step_time_s": "seconds per step",
        "measured_tokens_per_s": "tokens per second and device",
        "measured_tflops": "TFLOP/s per device",
        "measured_mfu_percent": "model FLOPs utilisation in percent",
        "measured_peak_bytes": "peak memory of a device in bytes",
        "measured_peak_gb": "the same in 10⁹ bytes",
        "measured_peak_gib": "the same in GiB",
        "peak_measure": "`allocated`, `reserved`, `device` or `unstated`",
        "peak_stage": "pipeline stage of the peak: `fullest`, `first` or `last`",
        "flops_formula": "FLOPs counted by TFLOP/s and MFU: `parameters`, or empty for matrix products",
        "flops_attention": "attention counted `full` or `half`",
        "flops_recompute": "`true` if recomputed FLOPs count",
        "mfu_peak_tflops": "peak that the MFU refers to, if it is not the device's",
    }
)
"""Columns other than plan fields, and their meaning."""
EARLIER = MappingProxyType(
    {
        "n_gpus": "devices", "micro_batch": "micro_batch_size", "global_batch": "global_batch_size",
        "compute_dtype": "precision", "notes": "remarks", "measured_step_s": "measured_step_time_s",
        "measured_tflops_per_gpu": "measured_tflops", "measured_mfu_pct": "measured_mfu_percent",
        "measured_tokens_per_s_per_gpu": "measured_tokens_per_s", "measured_peak_mem_gb": "measured_peak_gb",
    }
)  # fmt: skip
"""Column names of the first version, still accepted, and the present name."""
MEANINGS = MappingProxyType({"peak_measure": PeakMeasure, "peak_stage": PeakStage})
"""Columns that hold one of a few values."""
SECTIONS = ("model", "cluster", "framework", "strategy", "workload", "precision", "devices", "nodes")
"""First parts of the plan fields that a row may have."""
SHORT: Mapping[str, str] = MappingProxyType(
    {
        **{field.name: f"workload.{field.name}" for field in fields(Workload)},
        **{field.name: f"strategy.{field.name}" for field in fields(Layout)},
        "precision": "workload.precision.compute",
        "recompute": "strategy.recompute.granularity",
        "dp": "dp",
    }
)
"""Plan fields by the last part of their keys; `dp` is checked against the degrees and devices."""
WHOLE = frozenset(
    {"devices", "nodes", "dp", "workload.seq_len", "workload.global_batch_size", "strategy.micro_batch_size"}
    | {f"strategy.{name}" for name in ("tp", "cp", "pp", "vpp", "ep", "dp_replicate", "dp_shard", "zero")}
)
"""Plan fields that are whole numbers; a cell that is not refuses the table."""
POSITIVE = Interval(gt=0, le=AMOUNT.le)
YES_NO = frozenset({"y", "yes", "n", "no"})
"""Texts of a cell that are true or false."""


def load_cases(path: str | Path, *, cluster: Cluster | None = None) -> list[Case]:
    """Return one case for every row of the CSV file at `path`, in its order.

    All runs of the table were made on `cluster` if it is given, whatever the rows say.

    Raises
    ------
    ReaderError
        If the file cannot be read, has an unknown column, repeats an id, or has a measured figure that is not a
        positive number. A row that cannot be projected is a case with `skipped_reason`.
    """
    table = read_table(path)
    keys = plan_keys(table)
    _check_ids(table)
    for row, (column, key) in product(table.rows, keys.items()):
        if key in WHOLE:
            row.integer(column)
    return [_case(row, keys, cluster) for row in table.rows]


def source_of(identifier: str, reference: str) -> str:
    """Return the short name of a source: an id "SMX-001" belongs to SMX; other ids name their reference."""
    head, dash, number = identifier.rpartition("-")
    return head if dash and number.isdigit() else reference or identifier


def plan_keys(table: Table) -> dict[str, str]:
    """Return the plan field of each column that has one.

    Raises
    ------
    ReaderError
        If a column is unknown, or two columns name one field.
    """
    table.need(("id",), "table of runs")
    known = (*COLUMNS, *EARLIER, *SHORT, *SECTIONS)
    keys: dict[str, str] = {}
    for column in table.columns:
        name = EARLIER.get(column, column)
        if name.startswith(("notes", "comment", "remark")) or name in COLUMNS:
            continue
        key = SHORT.get(name, name)
        if key.split(".")[0] not in (*SECTIONS, "dp"):
            fix = wording.did_you_mean(nearest(column, known))
            raise ReaderError(table.path, wording.unknown_key(column, "the table", known, fix))
        if key in keys.values():
            other = _column_of(keys, key)
            raise ReaderError(table.path, wording.given_twice(f"the column {key}", column, other))
        keys[column] = key
    return keys


def _column_of(keys: Mapping[str, str], key: str) -> str:
    return next(column for column, name in keys.items() if name == key)


def _check_ids(table: Table) -> None:
    if not table.rows:
        raise ReaderError(table.path, wording.empty("the table"))
    seen: dict[str, int] = {}
    for row in table.rows:
        if not row.id:
            raise ReaderError(table.path, wording.incomplete("id", f"line {row.line}"))
        if row.id in seen:
            value = f"line {seen[row.id]}"
            fix = "give each row its own"
            other = f"line {row.line}"
            raise ReaderError(table.path, wording.given_twice(f"the id {row.id!r}", value, other, fix))
        seen[row.id] = row.line


def _case(row: Row, keys: Mapping[str, str], cluster: Cluster | None) -> Case:
    for name in ("published", "typed"):
        _listed(row, name)
    published = {name: row.text(name) for name in ("source", "hardware", "family", "doubt", "remarks")}
    case = Case(
        id=row.id,
        source=row.text("group") or source_of(row.id, published["source"]),
        reference=published["source"],
        hardware=published["hardware"] or row.text("cluster"),
        model_name=row.text("label") or row.text("model"),
        family=published["family"] or "dense",
        schedule=row.text("schedule_label"),
        core=bool(row.flag("core")),
        remarks=published["remarks"] or row.text("notes"),
        doubt=published["doubt"],
        sitting=row.text("session"),
        notes=tuple(_listed(row, "assumptions")),
        measured=_printed(row),
        skipped_reason=row.text("skipped") or None,
    )
    if case.skipped_reason is not None:
        return case
    try:
        return _asked(case, row, keys, cluster)
    except ForescaleError as error:
        return replace(case, skipped_reason=str(error))


def _asked(case: Case, row: Row, keys: Mapping[str, str], local: Cluster | None) -> Case:
    """Return the case with its question, and the step time that follows from the published speed."""
    values = plan_of(row, keys)
    degree = values.pop("dp", None)
    if local is not None:
        values["cluster"] = local
    try:
        # a row states what ran; `left_open` says what of it is assumed
        question = replace(build_question(values, where=f"{row.path}, line {row.line}"), assumed=())
    except UnknownNameError as error:
        hint = " (--cluster sets the cluster of all rows)" if error.kind == "cluster" else ""
        raise InexpressibleError(f"{error}{hint}") from error
    model, cluster, layout, workload = _parts(question)
    if degree not in (None, layout.dp):
        raise InexpressibleError(
            f"dp {degree} × tp × cp × pp = {layout.num_devices // layout.dp} is not {layout.num_devices} devices"
        )
    step, origin = case.measured.speed.step_time(model, cluster, layout, workload)
    named = values.get("framework")
    return replace(
        case,
        family=row.text("family") or ("moe" if model.is_moe else "dense"),
        model=model,
        cluster=cluster,
        strategy=layout,
        workload=workload,
        stated=None
        if named is None
        else RowSpec(
            framework=named,
            assumed="framework" in _listed(row, "assumed"),
            strategy=_tuples(values.get("strategy", {})),
            workload=_tuples(values["workload"]),
        ),
        measured=replace(case.measured, step_time_s=step, step_time_from=origin),
    )


def _parts(question: Question) -> tuple[Any, Cluster, Layout, Workload]:
    if question.strategy is None:
        raise InexpressibleError("the row has no layout")
    return question.model, question.cluster, question.strategy, question.workload


def plan_of(row: Row, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the plan of a row: its filled cells as the nested values of a plan file."""
    values: dict[str, Any] = {"strategy": {}, "workload": {}}
    for column, key in keys.items():
        if (text := row.text(column)) == "":
            continue
        *sections, last = key.split(".")
        place: Any = values
        for name in sections:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise row.refused(column, f"another column gives {name} as {shown(place)}")
        place[last] = FLAGS[text.lower()] if text.lower() in YES_NO else cell(text)
    if "cluster" not in values and row.text("hardware"):
        values["cluster"] = _cluster_name(row.text("hardware"))
    return values


def _cluster_name(hardware: str) -> str:
    """Return the catalogue cluster of a hardware name that a table has in place of a cluster."""
    if hardware in cluster_names():
        return hardware
    try:
        return hardware_cluster(hardware)
    except UnknownNameError:
        return hardware


def cell(text: str) -> Any:  # noqa: ANN401  (JSON)
    """Return the value of a cell: JSON, else the text itself."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parse_json(text, "cell")


def _listed(row: Row, column: str) -> list[str]:
    """Return a column that is a JSON list of texts."""
    text = row.text(column)
    result = cell(text) if text else []
    if not isinstance(result, list) or not all(isinstance(item, str) for item in result):
        raise row.refused(column, wrong_type(column, text, "a JSON list of texts"))
    return result


def _printed(row: Row) -> Measured:
    """Return the published figures of a row; the step time is set only if it is published itself."""
    speed = Speed(
        step_time_s=_positive(row, "measured_step_time_s", "measured_step_s"),
        tokens_per_s=_positive(row, "measured_tokens_per_s", "measured_tokens_per_s_per_gpu"),
        tflops=_positive(row, "measured_tflops", "measured_tflops_per_gpu"),
        mfu_percent=_positive(row, "measured_mfu_percent", "measured_mfu_pct"),
        convention=_convention(row),
        peak_tflops=_positive(row, "mfu_peak_tflops"),
    )
    units = {"bytes": 1.0, "gb": GB, "gib": GIB, "mem_gb": GB}
    peaks = [
        value * unit
        for name, unit in units.items()
        if (value := _positive(row, f"measured_peak_{name}")) is not None
    ]
    means = {name: _one_of(row, name, hint) for name, hint in MEANINGS.items() if row.text(name)}
    return Measured(
        step_time_s=speed.step_time_s,
        step_time_from="step time" if speed.step_time_s else "none",
        speed=speed,
        peak_bytes=next(iter(peaks), None),
        **means,
    )


def _one_of(row: Row, column: str, hint: Any) -> Any:  # noqa: ANN401  (an alias of Literal)
    """Return the text of a cell if it is one of the values of a Literal."""
    if (text := row.text(column)) not in (allowed := get_args(hint)):
        raise row.refused(column, not_one_of(column, text, allowed))
    return text


def _positive(row: Row, *columns: str) -> float | None:
    for column in columns:
        if (value := row.number(column)) is not None:
            if value <= 0:
                raise row.refused(column, out_of_range(column, row.text(column), "greater than 0"))
            figure: float = within(value, POSITIVE, column)
            return figure
    return None


def _convention(row: Row) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in ("formula", "attention"):
        if text := row.text(f"flops_{name}"):
            values[name] = text
    if (counted := row.flag("flops_recompute")) is not None:
        values["recompute"] = counted
    return values


def _tuples(value: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return JSON with its lists as tuples, as a layout has them."""
    if isinstance(value, Mapping):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
