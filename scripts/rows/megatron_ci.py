"""Golden values of Megatron-LM's continuous integration as cases: one test on one platform a row.

The row's `all_args` is the test's table of flags, which the Megatron reader understands. Memory is what the
last rank logs: the peak of what PyTorch's allocator had handed out there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from scripts.rows.columns import Column, check_cells
from scripts.rows.tables import table

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import vocabulary_of
from forescale.errors import ForescaleError, ReaderError
from forescale.files import Row, Table, parse_json
from forescale.frameworks.megatron.reader import read_arguments
from forescale.frameworks.reading import Options, ParsedFile
from forescale.spec.workload import EXCEPTIONS
from forescale.struct import asdict
from forescale.validation.case import Case, InexpressibleError, Measured, RowSpec
from forescale.validation.published import Speed

CONTAINER = "container"
"""Column of the year and month of NVIDIA's PyTorch container, where it is not a recent one."""
COLUMNS = ("test_case", "golden", "platform", "all_args")
"""Columns by which such a table is known."""
NUMBERS = {
    "nodes": Column("nodes", "devices"),
    "gpus": Column("devices of a node", "devices"),
    "iteration_time_s_median": Column("seconds of a step", "amount"),
    "mem_max_allocated_bytes": Column("peak of the last rank", "amount"),
}
DESCRIBED = (
    "test_group", "layers", "hidden", "ffn", "heads", "kv_groups", "seq_len", "micro_batch", "global_batch", "tp", "pp",
    "virtual_stage_layers", "cp", "ep", "etp", "sp", "dist_opt", "fsdp", "recompute", "fp8", "experts", "topk",
    "moe_ffn", "mla", "vocab", "swiglu", "mem_allocated_bytes_note",
)  # fmt: skip
"""Columns that repeat what the table of flags says."""
SOURCE = "MegatronCI"


def ci_cases(table: Table) -> list[Case]:
    """Return the case of every row of a table of golden values."""
    table.know((*COLUMNS, CONTAINER, *NUMBERS, *DESCRIBED))
    for row in table.rows:
        check_cells(row, NUMBERS)
    return [ci_case(row) for row in table.rows]


def ci_case(row: Row) -> Case:
    """Return the case of one row; `skipped_reason` says why it cannot be asked."""
    case = _unread(row)
    try:
        flags = _flags(row)
        num_devices = _num_devices(row)
        reading = read_arguments(
            flags,
            where=row.id,
            name=row.text("test_case"),
            options=Options(num_devices=num_devices, strict=False, vocabulary_of=vocabulary_of),
        )
        return _read(case, row, reading)
    except ForescaleError as error:
        reason = error.problem if isinstance(error, ReaderError) else str(error)
        return replace(case, skipped_reason=str(reason))


def identifier(row: Row) -> str:
    """Return the test and the golden file, which together name a row."""
    golden = row.text("golden").removeprefix("golden_values_").removesuffix(".json")
    return f"{row.text('test_case')}/{golden}"


def _unread(row: Row) -> Case:
    memory = row.number("mem_max_allocated_bytes")
    step = row.number("iteration_time_s_median")
    return Case(
        id=identifier(row),
        source=SOURCE,
        reference="Megatron-LM functional tests",
        hardware=row.text("platform"),
        model_name=row.text("test_group") or row.text("test_case"),
        family="moe" if row.text("experts") else "dense",
        schedule="",
        measured=Measured(
            speed=Speed(step_time_s=step or None),
            step_time_s=step or None,
            step_time_from="step time" if step else "none",
            peak_bytes=memory or None,
            peak_measure="allocated",
            peak_stage="last",
        ),
        core=bool(row.text("nodes") and row.text("gpus")),
    )


def _read(case: Case, row: Row, reading: ParsedFile) -> Case:
    model, workload = reading.model, reading.workload
    if model is None or reading.strategy is None or workload is None or reading.framework is None:
        raise InexpressibleError("its flags describe no whole run")
    cluster = load_cluster(_platform(row)["cluster"], reading.strategy.num_devices)
    run = asdict(workload)
    run["precision"] = {name: value for name, value in run["precision"].items() if name not in EXCEPTIONS}
    container = row.text(CONTAINER)
    framework = f"{reading.framework}@{container}" if container else reading.framework
    stated = RowSpec(framework=framework, strategy=reading.layout_fields, workload=run)
    layout, workload = stated.trained(model, cluster)
    notes = [*reading.notes, *(f"unknown flag {flag} left out" for flag in reading.unknown)]
    if not case.core:
        notes.append("devices not given: those of the platform's test node assumed")
    return replace(
        case,
        model=model,
        cluster=cluster,
        strategy=layout,
        workload=workload,
        stated=stated,
        family="moe" if model.is_moe else "dense",
        notes=tuple(notes),
    )


def _flags(row: Row) -> dict[str, Any]:
    try:
        flags = parse_json(row.text("all_args"), row.id)
    except ReaderError as error:
        raise InexpressibleError("its table of flags is cut short") from error
    if not isinstance(flags, dict) or not flags:
        raise InexpressibleError("it has no table of flags")
    return flags


def _num_devices(row: Row) -> int:
    """Return the devices: as given, as the test's name says, or those of the platform's test node."""
    nodes, integer = row.integer("nodes"), row.integer("gpus")
    if nodes and integer:
        return nodes * integer
    name = row.text("test_case")
    named = re.search(r"(\d+)N(\d+)G", name)
    if named:
        return int(named[1]) * int(named[2])
    if "release" in name:
        raise InexpressibleError("the number of devices is not given, and a release run has several nodes")
    platform = _platform(row)
    return int(platform["node"] if name.endswith("_1node") else platform["devices"])


def _platform(row: Row) -> Mapping[str, Any]:
    platforms = table("platforms")
    name = row.text("platform")
    if name not in platforms:
        msg = f"no catalogue cluster is of platform {name!r}; {', '.join(platforms)} are known"
        raise InexpressibleError(msg)
    return platforms[name]  # type: ignore[no-any-return]
