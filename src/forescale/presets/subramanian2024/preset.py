"""One layout under the paper's model: strategy 1d without context parallelism, 2d with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
from msgspec import field
from msgspec.structs import replace

from forescale.cost.mesh import groups, order_of, ranks_per_tier
from forescale.errors import InfeasibleError, out_of_range, unsupported_by
from forescale.formula import Term
from forescale.graph.sharding import split_layout
from forescale.numeric import Array, Numeric
from forescale.presets.preset import Account, StageBytes, memory_projection, microbatches_of, timed_projection
from forescale.presets.subramanian2024.evaluate import (
    LAYER_KEY,
    Analysis,
    Memory,
    StepTime,
    floats,
    price_layer,
)
from forescale.presets.subramanian2024.formulas import CODE, FP16_BYTES
from forescale.presets.subramanian2024.layers import Quirks, Split, shape_of
from forescale.presets.subramanian2024.machine import (
    Columns,
    Integers,
    Space,
    TensorParallel,
    enumerate_space,
    machine_of,
)
from forescale.projection.result import TIME_PARTS, Projection
from forescale.question import Note, Question
from forescale.results import Result
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, TensorKind
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.struct import Struct, attributes
from forescale.units import counted, format_bytes

_ATTENTION = ("query, key, value", "fused attention", "projection", "projection bias", "attention dropout")
_NORMS = ("attention norm", "ffn norm")
_LEFT_OUT = Note(
    topic="preset",
    text="the paper leaves out embedding, head, loss, the mask of causal attention, the optimizer's time, buffers "
    "and fragmentation; optimizer states are sharded over dp, weights and gradients are not",
)


class Subramanian2024Preset(Struct, frozen=True, kw_only=True):
    """The model of Subramanian et al. 2024 for one layout, placed by its axis order; quirks as published."""

    name: str = "subramanian2024"
    source: str = CODE
    quirks: Quirks = field(default_factory=Quirks)

    def project(self, question: Question) -> Projection:
        """Project one layout as the published code does."""
        analysis, layout = self._analysis(question)
        account = Account(
            stages=self.stages(question),
            total_parameters=_parameters(analysis),
            complete=False,
            tensor_kinds=get_args(TensorKind),
            notes=(_LEFT_OUT,),
        )
        stated = memory_projection(account, question, preset=self.name)
        return _timed(stated, analysis, layout)

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage."""
        analysis, layout = self._analysis(question)
        return [_stage(analysis, layout, stage) for stage in range(question.layout.pp)]

    def seconds(self, question: Question) -> Mapping[str, Numeric]:
        """Return seconds of a step by part, as terms."""
        analysis, layout = self._analysis(question)
        columns = {name: Term(floats(column), name=name, unit="1") for name, column in layout.items()}
        return _seconds(analysis, columns)  # type: ignore[arg-type]

    def _analysis(self, question: Question) -> tuple[Analysis, Columns]:
        model, cluster, layout, workload = question.parts
        _refuse(model, layout)
        analysis = Analysis(
            shape=shape_of(model, seq_len=workload.seq_len),
            machine=machine_of(cluster),
            kind="summa" if layout.tp_kind == "summa" else "2d" if layout.cp > 1 else "1d",
            quirks=self.quirks,
        )
        return analysis, _columns(cluster, layout, workload)


SUBRAMANIAN_2024 = Subramanian2024Preset()


def _refuse(model: Model, layout: Layout) -> None:
    """Raise if the layout has something that the paper does not know."""
    usual = Layout()
    only_usual = ("vpp", "ep", "etp", "stage_layers", "recompute")
    unknown = [name for name in only_usual if getattr(layout, name) != getattr(usual, name)]
    unknown += ["zero > 1"] if layout.zero > 1 else []
    unknown += ["tp without sp"] if layout.tp > 1 and not layout.sp else []
    unknown += ["pp that does not divide the layers"] if model.num_layers % layout.pp else []
    if unknown:
        raise unsupported_by(
            "preset subramanian2024", ", ".join(unknown), "it has tp with sp, cp, pp, dp and zero 1"
        )


def _columns(cluster: Cluster, layout: Layout, workload: Workload) -> Columns:
    """Return the layout as one candidate; where it lies follows from its axis order."""
    near = {
        axis: int(np.floor(ranks_per_tier(group, cluster)[0]))
        for axis, group in groups(split_layout(layout)[0], order_of(layout)).items()
    }
    values = {
        "tp1": layout.tp,
        "tp2": layout.cp,
        "pp": layout.pp,
        "dp": layout.dp,
        "micro_batch_size": layout.micro_batch_size,
        "num_microbatches": microbatches_of(layout, workload),
        "panels": np.lcm(layout.tp, layout.cp) * layout.summa_panels,
        "near_tp1": near["tp"],
        "near_tp2": near["cp"],
        "near_pp": near["pp"],
        "near_dp": near["dp"],
    }
    return {name: np.array([value], dtype=np.int64) for name, value in values.items()}


def _stage(analysis: Analysis, layout: Columns, stage: int) -> StageBytes:
    memory = analysis.memory(layout, stage=stage)
    parts = {
        name: _only(getattr(memory, name)) for name in ("weights", "gradients", "optimizer", "activations")
    }
    layers = analysis.shape.num_layers // int(layout["pp"][0])
    return StageBytes(num_layers=layers, parameters=parts["weights"] / FP16_BYTES, **parts)


def _parameters(analysis: Analysis) -> float:
    """Return the parameters of all layers, undivided."""
    whole = Split(**dict.fromkeys(Split.__dataclass_fields__, 1.0))
    layer = replace(analysis, kind="1d").layer(whole)
    return analysis.shape.num_layers * float(sum(operation.parameters for operation in layer))


def _timed(stated: Projection, analysis: Analysis, layout: Columns) -> Projection:
    """Return a projection of memory with the times of the step."""
    step, layer = analysis.step_time(layout), analysis.layer_time(layout)
    passes = _only(floats(layout["num_microbatches"]) * analysis.layers(layout))
    forward, backward = _only(layer.forward_s), _only(layer.backward_s)
    return timed_projection(
        stated,
        step_time=_only(step.total),
        time_s={name: _only(value) for name, value in _seconds(analysis, layout).items()},
        stage_times=((one.num_layers * forward, one.num_layers * backward) for one in stated.memory.stages),
        peak_rate=analysis.machine.matrix_rate,
        hardware_flops=_only(layer.flops) * passes * stated.cluster.num_devices,
        notes=(_LEFT_OUT,),
    )


def _only(values: Numeric) -> float:
    """Return the value of the only candidate."""
    return float(np.asarray(values).reshape(-1)[0])


def _seconds(analysis: Analysis, layout: Columns) -> dict[str, Numeric]:
    """Return the seconds of a step, of its layers by part of the model and kind of message."""
    step, parts = analysis.step_time(layout), dict.fromkeys(TIME_PARTS, np.zeros(1))
    passes = floats(layout["num_microbatches"]) * analysis.layers(layout)
    split = Split(**{name: floats(layout[name]) for name in LAYER_KEY})
    for operation in analysis.layer(split):
        time = price_layer((operation,), split, machine=analysis.machine, quirks=analysis.quirks)
        local = "attention" if operation.name in _ATTENTION else "norm" if operation.name in _NORMS else "ffn"
        parts[local] = parts[local] + passes * (time.compute_s + time.memory_s)
        comm = "context_comm" if operation.name == "fused attention" else "tensor_comm"
        parts[comm] = parts[comm] + passes * time.tensor_s
    return {**parts, "pipeline_comm": step.pipeline, "data_comm": step.data, "bubble": step.bubble}


SCHEMA = "forescale.subramanian2024/1"


class Placement(Struct, frozen=True, kw_only=True):
    """Ranks of each degree that share a fast domain; their product fills it."""

    tp1: int
    tp2: int
    dp: int
    pp: int


class Configuration(Struct, frozen=True, kw_only=True):
    """A division of the devices, and where it lies."""

    tp1: int
    tp2: int
    pp: int
    dp: int
    micro_batch_size: int
    num_microbatches: int
    panels: int
    """Panels of SUMMA's products; 1 in the other strategies."""
    placement: Placement


class Breakdown(Struct, frozen=True, kw_only=True):
    """Seconds of one step; they sum to the step time."""

    compute: float
    memory: float
    """Memory traffic beyond compute."""
    tensor: float
    """Exposed messages within layers."""
    data: float
    pipeline: float
    bubble: float


class Ranked(Struct, frozen=True, kw_only=True):
    """One configuration with what it costs."""

    configuration: Configuration
    step_time_s: float
    samples_per_s: float
    time_s: Breakdown
    memory_bytes: Memory
    flops_per_device: float
    """Of one step; attention's vector work is counted at the matrix rate."""


class StudyResult(Result, Struct, frozen=True, kw_only=True):
    """Configurations by step time, fastest first."""

    model: Model
    cluster: Cluster
    tensor_parallel: TensorParallel
    seq_len: int
    global_batch_size: int
    quirks: Quirks
    best: tuple[Ranked, ...]
    num_candidates: int
    num_feasible: int
    elapsed_s: float

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per configuration."""
        return [{"rank": place, **_flat(asdict(one))} for place, one in enumerate(self.best, start=1)]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.subramanian2024/1` document."""
        return {
            "schema": SCHEMA,
            **attributes(self, "model=model.name", "cluster=cluster.name", "num_devices=cluster.num_devices"),
            **attributes(self, "tensor_parallel", "seq_len", "global_batch_size", "quirks"),
            **attributes(self, "num_candidates", "num_feasible", "elapsed_s", "best"),
        }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, "" if name == "configuration" else f"{prefix}{name}_")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def search_subramanian2024(
    model: Model,
    cluster: Cluster,
    *,
    tensor_parallel: TensorParallel,
    global_batch_size: int,
    top: int = 10,
    quirks: Quirks | None = None,
    seq_len: int | None = None,
    fixed: Mapping[str, int] = MappingProxyType({}),
) -> StudyResult:
    """Rank every configuration of Subramanian et al. 2024, arXiv:2410.00273, that fits.

    Parameters
    ----------
    tensor_parallel
        "1d": tensor with sequence parallelism; "2d": with context parallelism over a second axis;
        "summa": blocked products over a grid.
    quirks
        Which peculiarities of the published code to keep; all by default.
    seq_len
        Tokens per sequence; by default what the model was made for.
    fixed
        Degrees ("tp1", "tp2", "pp", "dp") or "micro_batch_size" held at a value.

    Raises
    ------
    InfeasibleError
        If no configuration is legal, or none fits in memory.
    """
    started = time.perf_counter()
    for key, value in (("top", top), ("global_batch_size", global_batch_size)):
        if value < 1:
            raise out_of_range(key, value, "1 or more")
    shape, machine = shape_of(model, seq_len=seq_len), machine_of(cluster)
    quirks = quirks or Quirks()
    question = Analysis(shape=shape, machine=machine, kind=tensor_parallel, quirks=quirks)
    space = enumerate_space(
        shape,
        num_devices=cluster.num_devices,
        domain=machine.domain,
        kind=tensor_parallel,
        global_batch_size=global_batch_size,
        fixed=fixed,
    )
    counts = space.num_candidates()
    if not counts.sum():
        msg = f"no legal configuration of {model.name} on {counted(cluster.num_devices, 'device')} of {cluster.name}"
        raise InfeasibleError(msg)
    memory = np.asarray(question.memory(space.rows).total)
    fitting = np.flatnonzero(memory <= machine.hbm_bytes)
    num_feasible = int(counts[fitting].sum())
    if num_feasible == 0:
        raise _nothing_fits(model, cluster, memory, counts)
    return StudyResult(
        model=model,
        cluster=cluster,
        tensor_parallel=tensor_parallel,
        seq_len=shape.seq_len,
        global_batch_size=global_batch_size,
        quirks=quirks,
        best=_ranked(question, *_fastest(question, space, fitting, top), global_batch_size),
        num_candidates=int(counts.sum()),
        num_feasible=num_feasible,
        elapsed_s=time.perf_counter() - started,
    )


def _fastest(question: Analysis, space: Space, rows: Integers, top: int) -> tuple[Columns, StepTime]:
    """Return the `top` fastest candidates of `rows`, fastest first, with their times; equals keep the space's order."""
    candidates = space.expand(rows)
    step = question.step_time(candidates)
    total: Array = np.asarray(step.total)
    kept = np.arange(len(total))
    if len(total) > top:
        kept = np.flatnonzero(total <= np.partition(total, top - 1)[top - 1])
    kept = kept[np.argsort(total[kept], kind="stable")][:top]
    return {name: values[kept] for name, values in candidates.items()}, step.take(kept)


def _ranked(
    question: Analysis, columns: Columns, step: StepTime, global_batch_size: int
) -> tuple[Ranked, ...]:
    """Return the chosen candidates with their times and bytes in parts."""
    layer, memory = step.layer_time(), question.memory(columns)
    passes = columns["num_microbatches"] * (question.shape.num_layers // columns["pp"])
    times = {
        "compute": layer.compute_s * passes,
        "memory": layer.memory_s * passes,
        "tensor": layer.tensor_s * passes,
        "data": step.data,
        "pipeline": step.pipeline,
        "bubble": step.bubble,
    }
    kept = {name: getattr(memory, name) for name in Memory.__dataclass_fields__}
    flops, total = layer.flops * passes, np.asarray(step.total)
    return tuple(
        Ranked(
            configuration=_configuration(_row(columns, row)),
            step_time_s=float(total[row]),
            samples_per_s=global_batch_size / float(total[row]),
            time_s=Breakdown(**_row(times, row)),
            memory_bytes=Memory(**_row(kept, row)),
            flops_per_device=float(flops[row]),
        )
        for row in range(len(total))
    )


def _row(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {name: values[row].item() for name, values in columns.items()}


def _configuration(values: dict[str, int]) -> Configuration:
    placement = {name: values[f"near_{name}"] for name in Placement.__dataclass_fields__}
    plain = {name: values[name] for name in Configuration.__dataclass_fields__ if name != "placement"}
    return Configuration(**plain, placement=Placement(**placement))


def _nothing_fits(model: Model, cluster: Cluster, memory: Array, counts: Integers) -> InfeasibleError:
    smallest = float(memory[counts > 0].min())
    return InfeasibleError(
        f"none of the {int(counts.sum()):,} configurations of {model.name} fits "
        f"{format_bytes(cluster.device.hbm_bytes)} on {counted(cluster.num_devices, 'device')} of {cluster.name}; the "
        f"smallest needs {format_bytes(smallest)}: try more devices",
        [("memory", int(counts.sum()))],
    )
