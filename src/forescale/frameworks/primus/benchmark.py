"""Primus's bench artifacts, version 1 and 2: times of layers, peaks and messages, and the shape of the run.

They name no model: the run is the question's, with the layers, experts and degrees that the file says were measured.
Source: Primus, performance_projection/projection.py (`_save_profiling_results`), 2026-08-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field
from msgspec.structs import replace

from forescale import wording
from forescale.bench_transfer import WHOLE, Bench
from forescale.cost.measured import Measurements
from forescale.cost.timings import BlockTiming, MeasuredCollective, Part
from forescale.errors import SpecError, refuse_misspelt, shown
from forescale.limits import AMOUNT, DEVICES, whole_of, within
from forescale.memory.anchored import LayerMeasurement, RankPeak
from forescale.question import Question
from forescale.spec.layout import Layout
from forescale.spec.model import Layer, Model, MoeFfn
from forescale.struct import Struct

RESULTS = "profiling_results"
NEWEST = 2
MILLI = 1e-3
ENDS = {"embedding": "embedding", "output": "head"}
"""Our names of the ends of a model."""
SUMMARY = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_model_parallel_size",
    "ep": "expert_model_parallel_size",
}


class Table(Struct, frozen=True):
    """A table of the file, where it stands, and what was looked for in it: tables below, or None for a value."""

    values: Mapping[str, Any]
    where: str
    asked: dict[str, Table | None] = field(default_factory=dict)

    def table(self, key: str) -> Table:
        """Return a table below; an empty one where it is missing or null."""
        value = self.values.get(key)
        where = f"{self.where}, {key}"
        if value is not None and not isinstance(value, Mapping):
            raise wording.wrong_type(where, value, "a table")
        setdefault = self.asked.setdefault(key, Table(value or {}, where))
        assert setdefault is not None
        return setdefault

    def first(self, *keys: str) -> tuple[str, Any]:
        """Return the first of some keys whose value is neither null nor zero, and that; None where there is none."""
        result = next((key for key in keys if self.values.get(key) not in (None, 0)), None)
        self.asked.update(dict.fromkeys(keys if result is None else (result,)))
        return (keys[0], None) if result is None else (result, self.values[result])

    def number(self, *keys: str) -> float | None:
        """Return the first number among some keys that is more than zero; None where there is none."""
        key, value = self.first(*keys)
        return None if value is None else float(within(value, AMOUNT, f"{self.where}: {key}", whole=False))

    def count(self, *keys: str) -> int | None:
        """Return the same of a whole number."""
        key, value = self.first(*keys)
        return None if value is None else int(within(value, DEVICES, f"{self.where}: {key}", whole=True))

    def check_spelling(self) -> None:
        """Refuse a key, here or below, that is nearly one that was looked for in vain."""
        refuse_misspelt(self.values, self.asked, self.where)
        for table in self.asked.values():
            if table is not None:
                table.check_spelling()


def is_primus_bench(document: Mapping[str, Any]) -> bool:
    """Say whether plain values are an artifact of Primus."""
    return RESULTS in document and "schema" not in document


def primus_bench(document: Mapping[str, Any], target: Question, *, where: str) -> Bench:
    """Return what an artifact measured, of a run that the target's model and layout were reduced to.

    Raises
    ------
    SpecError
        If it is of a newer version, holds nothing that was measured, or does not fit the target.
    """
    whole = Table(document, where)
    value = whole.first("schema_version")[1]
    version = 1 if value is None else value
    if version not in range(1, NEWEST + 1):
        raise wording.newer_version("its schema_version", version, "1 and 2 of Primus's artifacts").at(where)
    results, metadata = whole.table(RESULTS), whole.table("metadata")
    buried = results.table("_memory_benchmark")
    memory = whole.table("memory_results")
    memory = memory if memory.values else buried
    layers = _layers(results)
    update = results.table("_optimizer_benchmark").number("step_time_ms")
    blocks = tuple(timing for kind, layer in layers.items() for timing in _timings(kind, layer))
    if update is not None:
        blocks = (*blocks, BlockTiming(kind=WHOLE, part="update", seconds=update * MILLI))
    ranks, rows, run = _ranks(memory), _all_reduces(results, metadata), _run(target, metadata, where)
    activations = {kind: layer.number("activation_memory_bytes") for kind, layer in layers.items()}
    whole.check_spelling()
    if not (blocks or ranks):
        raise wording.not_measured("it", "layers or peaks of memory").at(where)
    return Bench(
        question=run,
        is_assumed=version == 1,
        source=f"{where} (Primus, version {version})",
        blocks=blocks,
        ranks=ranks,
        layers=tuple(
            LayerMeasurement(kind=kind, activation_bytes=size) for kind, size in activations.items()
        ),
        measurements=Measurements(source=where, collectives=rows) if rows else None,
    )


def _layers(results: Table) -> dict[str, Table]:
    """Return the first layer of each type, and both ends, by our names."""
    tables: dict[str, Table] = {}
    for key, value in results.values.items():
        if not isinstance(value, Mapping) or key.startswith("_"):
            continue
        layer = results.table(key)
        kind = ENDS.get(key) or layer.first("type")[1]
        if isinstance(kind, str):
            tables.setdefault(kind, layer)
    return tables


def _timings(kind: str, layer: Table) -> tuple[BlockTiming, ...]:
    parts: tuple[Part, ...] = ("forward", "backward")
    timed = {part: layer.number(f"{part}_time_ms") for part in parts}
    return tuple(
        BlockTiming(kind=kind, part=part, seconds=milliseconds * MILLI)
        for part, milliseconds in timed.items()
        if milliseconds is not None
    )


def _ranks(memory: Table) -> tuple[RankPeak, ...]:
    allocated = memory.number("global_peak_allocated_bytes")
    reserved = memory.number("global_peak_reserved_bytes")
    if allocated is None or reserved is None:
        return ()
    rank = memory.count("captured_on_rank") or 0
    return (RankPeak(rank=rank, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved),)


def _all_reduces(results: Table, metadata: Table) -> tuple[MeasuredCollective, ...]:
    """Return the timed all-reduces of tensor parallelism, in groups of neighbours."""
    sizes = results.table("_tp_allreduce_benchmark")
    node = metadata.count("gpus_per_node") or DEVICES_PER_NODE
    rows = []
    for text in sizes.values:
        row = sizes.table(text)
        seconds, size = row.number("measured_median_ms", "measured_ms"), row.number("msg_size_bytes")
        if seconds is not None and size is not None:
            ranks = int(within(whole_of(text), DEVICES, f"{sizes.where}, {text}", whole=True))
            near = min(ranks, node)
            rows.append(
                MeasuredCollective(
                    kind="all_reduce",
                    num_bytes=size,
                    num_ranks=ranks,
                    ranks_per_node=near,
                    seconds=seconds * MILLI,
                )
            )
    return tuple(rows)


DEVICES_PER_NODE = 8
"""Where an artifact of version 1 does not say (Primus, GPUS_PER_NODE)."""


def _run(target: Question, metadata: Table, where: str) -> Question:
    """Return the question of the run: the target's, with what the file says of the shape that was measured."""
    summary = metadata.table("bench_training_config_summary")
    layout, work = target.strategy or target.space.base, target.workload
    degrees = {
        name: summary.count(key) or metadata.count(f"benchmark_{name}") or (layout.cp if name == "cp" else 1)
        for name, key in SUMMARY.items()
    }
    fixed = degrees["tp"] * degrees["pp"] * degrees["cp"]
    devices = max(metadata.count("benchmark_gpus") or fixed, fixed)
    if devices % fixed:
        raise wording.not_divisible("the number of devices", devices, fixed, "tp × pp × cp").at(where)
    ranks = devices // fixed
    values: dict[str, Any] = {
        **degrees,
        "dp_replicate": 1,
        "dp_shard": ranks,
        "micro_batch_size": summary.count("micro_batch_size") or layout.micro_batch_size,
        "stage_layers": None,
        "axis_order": Layout().axis_order,
        "placement": None,
        **({"vpp": 1, "schedule": None} if degrees["pp"] == 1 else {}),
    }
    batch = values["micro_batch_size"] * ranks
    return replace(
        target,
        model=_model(target.model, metadata, summary),
        cluster=target.cluster.sized(devices),
        strategy=replace(layout, **values),
        workload=replace(
            work,
            seq_len=summary.count("sequence_length") or work.seq_len,
            global_batch_size=-(-(summary.count("global_batch_size") or batch) // batch) * batch,
        ),
    )


def _model(model: Model, metadata: Table, summary: Table) -> Model:
    """Return the model with as many layers of each kind, and experts of a layer, as were measured."""
    experts = metadata.count("benchmark_num_experts") or summary.count("num_experts")
    count = summary.count("num_layers")
    pattern = summary.first("moe_pattern")[1] or [
        int(isinstance(layer.ffn, MoeFfn)) for layer in model.layers
    ]
    kinds = {
        int(isinstance(layer_kind.ffn, MoeFfn)): _with_experts(layer_kind, experts)
        for layer_kind in reversed(model.layer_kinds)
    }
    if not isinstance(pattern, list) or any(item not in kinds for item in pattern):
        raise SpecError(
            f"{summary.where}, moe_pattern must say of each layer whether it has experts, as layers of {model.name} "
            f"have or not; got {shown(pattern)}"
        )
    layers = tuple(kinds[item] for item in pattern)
    return replace(model, layers=layers[: count or len(layers)], num_mtp_layers=0)


def _with_experts(layer: Layer, experts: int | None) -> Layer:
    if experts is None or not isinstance(layer.ffn, MoeFfn):
        return layer
    return replace(layer, ffn=replace(layer.ffn, num_experts=experts, num_groups=0, top_groups=0))
