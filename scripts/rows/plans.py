"""Rows of published runs as explicit columns: one column per plan field, with the origin of each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from scripts.rows.cases import express
from scripts.rows.columns import read_corpus
from scripts.rows.megatron_ci import COLUMNS as CI_COLUMNS
from scripts.rows.megatron_ci import ci_cases
from scripts.rows.origins import TYPED, origins_of

from forescale.atomic_write import write_text
from forescale.catalogue.clusters import cluster_names, load_cluster
from forescale.catalogue.models import load_model, model_names
from forescale.files import Row, read_table
from forescale.frameworks.reading import flat
from forescale.io.named import named_cluster, named_model
from forescale.spec import Cluster, Model
from forescale.struct import asdict
from forescale.validation.case import Case, Measured
from forescale.validation.cases import COLUMNS, source_of


def convert(path: str | Path, target: str | Path) -> int:
    """Write the rows of the table at `path` to `target` as explicit columns; return the number of rows.

    Raises
    ------
    ReaderError
        If `path` is neither a table of runs nor one of Megatron-LM's golden values.
    """
    pairs = read_rows(path)
    write_text(Path(target), text_of([explicit(case, row) for case, row in pairs]))
    return len(pairs)


def read_rows(path: str | Path) -> list[tuple[Case, Row]]:
    """Return the case of every row of a table that `convert` takes; errors are the same."""
    table = read_table(path)
    if set(CI_COLUMNS) <= set(table.columns):
        return list(zip(ci_cases(table), table.rows, strict=True))
    rows = read_corpus(path).rows
    return list(zip(express(rows), rows, strict=True))


def text_of(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as CSV, with the columns that some row fills: description, plan, measurement, origins."""
    filled = {name for row in rows for name, text in row.items() if text}
    first = ("id", "group", "source", "label", "hardware", "family", "schedule_label", "core")
    plan = sorted(filled - COLUMNS.keys(), key=_plan_order)
    last = [name for name in COLUMNS if name in filled and name not in first]
    columns = [*(name for name in first if name in filled or name == "id"), *plan, *last]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_SECTIONS = ("model", "cluster", "devices", "framework", "strategy", "workload")


def _plan_order(key: str) -> tuple[int, str]:
    return _SECTIONS.index(key.partition(".")[0]), key


def explicit(case: Case, row: Row) -> dict[str, str]:
    """Return the cells of one case: its plan, what was measured, and the origin of every plan field."""
    values = {} if case.skipped_reason is not None else plan_of(case)
    plan = {name: value for name, value in flat(values) if value != ""}
    origins = origins_of(case, row, plan)
    explicit_fields: dict[str, Any] = {
        "id": case.id,
        "group": "" if case.source == source_of(case.id, case.reference) else case.source,
        "source": case.reference,
        "label": case.model_name,
        "hardware": case.hardware,
        "family": case.family,
        "schedule_label": case.schedule,
        "core": case.core,
        "doubt": case.doubt,
        "session": case.sitting,
        "remarks": case.remarks,
        "assumptions": list(case.notes),
        "skipped": case.skipped_reason,
        "published": [name for name, origin in origins.items() if origin == "published"],
        "derived": {name: text for name, text in origins.items() if text not in ("published", "assumed")},
        "assumed": [name for name, origin in origins.items() if origin == "assumed"],
        "typed": [name for name in plan if name.startswith(TYPED)],
        **_measured(case.measured),
    }
    described = {
        name: value if isinstance(value, str) else _json(value)
        for name, value in explicit_fields.items()
        if value
    }
    return described | {name: _cell(value) for name, value in plan.items()}


def _cell(value: object) -> str:
    """Return JSON, or the text itself where that is not read as JSON."""
    if isinstance(value, str) and not _reads_as_json(value):
        return value
    return _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _reads_as_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return text.lower() in ("y", "yes", "n", "no")
    return True


def plan_of(case: Case) -> dict[str, Any]:
    """Return the plan of a case: what its row says, its framework by name."""
    assert case.model is not None and case.cluster is not None and case.stated is not None
    return {
        "model": named_model(case.model) or model_values(case.model),
        "cluster": named_cluster(case.cluster) or cluster_values(case.cluster),
        "devices": case.cluster.num_devices,
        "framework": case.stated.framework,
        "strategy": case.stated.strategy,
        "workload": case.stated.workload,
    }


def model_values(model: Model) -> dict[str, Any]:
    """Return the fields of a model that differ from its catalogue entry, or from the defaults."""
    base = load_model(model.name) if model.name in model_names() else None
    known = {field.name: getattr(base, field.name) if base else field.default for field in fields(Model)}
    values = _untraced(asdict(model))
    changed = {name: value for name, value in values.items() if getattr(model, name) != known[name]}
    if "layers" in changed:
        changed["layers"] = _counted(values["layers"])
    return ({"base": model.name} if base else {}) | changed


UNSTATED = ("traced", "traces", "high_precision")
"""Fields of models that no row has: those of traces, and the layers that `Precision` marks."""


def _untraced(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Return the fields of models without `UNSTATED`."""
    if isinstance(value, Mapping):
        return {name: _untraced(part) for name, part in value.items() if name not in UNSTATED}
    return [_untraced(part) for part in value] if isinstance(value, list | tuple) else value


def _counted(layers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return equal layers in a row as one entry with a count."""
    runs = ((layer, len(list(equal))) for layer, equal in groupby(layers))
    return [{"count": count, **layer} if count > 1 else dict(layer) for layer, count in runs]


def cluster_values(cluster: Cluster) -> dict[str, Any]:
    """Return the fields of a cluster that differ from the catalogue cluster of its name."""
    if cluster.name not in cluster_names():
        return {name: value for name, value in asdict(cluster).items() if name != "num_devices"}
    base, values = load_cluster(cluster.name, 1).sized(cluster.num_devices), asdict(cluster)
    changed = {name: values[name] for name in values if getattr(base, name) != getattr(cluster, name)}
    return {"base": cluster.name, **changed}


def _measured(measured: Measured) -> dict[str, Any]:
    speed, convention = measured.speed, measured.speed.convention
    return {
        "measured_step_time_s": speed.step_time_s,
        "measured_tokens_per_s": speed.tokens_per_s,
        "measured_tflops": speed.tflops,
        "measured_mfu_percent": speed.mfu_percent,
        "measured_peak_bytes": measured.peak_bytes,
        "peak_measure": None if measured.peak_measure == "device" else measured.peak_measure,
        "peak_stage": None if measured.peak_stage == "fullest" else measured.peak_stage,
        "flops_formula": convention.get("formula"),
        "flops_attention": convention.get("attention"),
        "flops_recompute": convention.get("recompute"),
        "mfu_peak_tflops": speed.peak_tflops,
    }
