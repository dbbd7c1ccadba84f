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
from forescale.errors import InfeasibleError, SpecError, missing, out_of_range, unsupported_by, wrong_type
from forescale.formula import Term, named, number_of, total
from forescale.graph.ops import CollectiveKind
from forescale.graph.sharding import split_layout
from forescale.limits import whole_of
from forescale.numeric import Array, Numeric
from forescale.presets.preset import (
    Account,
    Preset,
    PresetScores,
    ShapedOperation,
    StageBytes,
    memory_projection,
    microbatches_of,
    timed_projection,
    without_quirks,
)
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
    enumerate_space,
    machine_of,
)
from forescale.presets.subramanian2024.shapes import shaped_operations
from forescale.projection.result import SECONDS_PER_DAY, TIME_PARTS, Projection
from forescale.question import Note, Question, TensorParallel
from forescale.results import Result
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, Share, TensorKind
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


class Subramanian2024Preset(Preset, frozen=True, kw_only=True):
    """The model of Subramanian et al. 2024 for one layout, placed by its axis order; quirks as published."""

    name: str = "subramanian2024"
    source: str = CODE
    quirks: Quirks = field(default_factory=Quirks)
    tensor_parallel: TensorParallel | None = None
    fix: tuple[str, ...] = ()

    takes_length_of_model = True

    def without(self, quirks: Sequence[str]) -> Subramanian2024Preset:
        """Return the model without some quirks of the published code."""
        return replace(self, quirks=without_quirks(self.quirks, quirks))

    def project(self, question: Question) -> Projection:
        """Project one layout as the published code does."""
        return _projection(question, *self._analysis(question), preset=self.name)

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage, as terms."""
        analysis, layout = self._analysis(question)
        return _stages(analysis, _recorded(layout))

    def seconds(self, question: Question) -> Mapping[str, Numeric]:
        """Return seconds of a step by part, as terms."""
        analysis, layout = self._analysis(question)
        return _seconds(analysis, _recorded(layout))

    def scores(self, question: Question) -> PresetScores:
        """Return every configuration of the published search that fits, with its placement and panels."""
        space = Found.from_question(question, self)
        candidates, analysis = space.candidates, space.analysis

        def projected(index: int) -> Projection:
            columns = {name: values[[index]] for name, values in candidates.items()}
            request = question.with_layout(_layout(columns, analysis.kind))
            return _projection(request, analysis, columns, preset=self.name)

        return PresetScores(
            step_time=np.asarray(analysis.step_time(candidates).total),
            peak=np.asarray(analysis.memory(candidates).total),
            num_legal=space.num_candidates,
            project=projected,
        )

    def collective(
        self, cluster: Cluster, *, kind: CollectiveKind, num_bytes: float, num_ranks: int, near: float
    ) -> float | None:
        """Return the seconds of the paper's rings, or of a message between two ranks."""
        machine, inside = machine_of(cluster), float(max(np.floor(near), 1.0))
        if kind == "p2p":
            return float(machine.message(num_bytes=num_bytes, pp=2.0, near=inside, quirks=self.quirks))
        if kind == "all_to_all":
            return None
        ranks = float(num_ranks)
        return float(
            machine.collective(
                kind=kind, num_bytes=num_bytes, num_ranks=ranks, near=inside, quirks=self.quirks
            )
        )

    def operations(self, question: Question) -> tuple[ShapedOperation, ...]:
        """Return the rows of table I, II or A2 for one layout."""
        analysis, layout = self._analysis(question)
        split = Split(**{name: float(layout[name][0]) for name in LAYER_KEY})
        return shaped_operations(analysis.layer(split), analysis.shape, split, analysis.kind)

    def _analysis(self, question: Question) -> tuple[Analysis, Columns]:
        model, cluster, layout, workload = question.parts
        _refuse(model, layout)
        usual: TensorParallel = "summa" if layout.tp_kind == "summa" else "2d" if layout.cp > 1 else "1d"
        kind = self.tensor_parallel or usual
        if (kind == "summa") != (usual == "summa") or (kind == "1d") > (usual == "1d"):
            raise SpecError(
                f"tensor_parallel {kind} does not go with tp_kind {layout.tp_kind} and cp {layout.cp}; that is {usual}"
            )
        analysis = Analysis(
            shape=shape_of(model, seq_len=workload.seq_len),
            machine=machine_of(cluster),
            kind=kind,
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
        fix = "it has tp with sp, cp, pp, dp and zero 1"
        raise unsupported_by("preset subramanian2024", ", ".join(unknown), fix)


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


def _recorded(layout: Columns) -> Columns:
    """Return the columns as terms, which remember what formulas make of them."""
    return {name: Term(floats(column), name=name, unit="1") for name, column in layout.items()}  # type: ignore[misc]


def _layout(columns: Columns, kind: TensorParallel) -> Layout:
    """Return one candidate as a layout; its placement is what shares a fast domain."""
    one = {name: int(values[0]) for name, values in columns.items()}
    near = Share(tp=one["near_tp1"], cp=one["near_tp2"], dp=one["near_dp"], pp=one["near_pp"])
    return Layout(
        tp=one["tp1"],
        tp_kind="summa" if kind == "summa" else "1d",
        summa_panels=max(one["panels"] // int(np.lcm(one["tp1"], one["tp2"])), 1),
        cp=one["tp2"],
        cp_kind="all_gather",
        pp=one["pp"],
        dp_shard=one["dp"],
        zero=1,
        micro_batch_size=one["micro_batch_size"],
        placement=(near,),
    )


def _stages(analysis: Analysis, layout: Columns) -> list[StageBytes]:
    """Return bytes by stage; as terms where the layout is recorded."""
    num_stages = int(number_of(layout["pp"]))
    layers = analysis.shape.num_layers // num_stages
    names = Memory.__dataclass_fields__
    if isinstance(layout["pp"], Term):
        memories = [analysis.memory(layout, stage=float(stage)) for stage in range(num_stages)]
    else:
        memory = analysis.memory(layout, stage=np.arange(float(num_stages)))
        columns = zip(*(np.broadcast_to(getattr(memory, name), num_stages) for name in names), strict=True)
        memories = [Memory(**dict(zip(names, map(float, row), strict=True))) for row in columns]
    return [
        StageBytes(
            num_layers=layers,
            parameters=memory.weights / FP16_BYTES,
            **{name: getattr(memory, name) for name in names},
        )
        for memory in memories
    ]


def _parameters(analysis: Analysis) -> float:
    """Return the parameters of all layers, undivided."""
    whole = Split(**dict.fromkeys(Split.__dataclass_fields__, 1.0))
    layer = replace(analysis, kind="1d").layer(whole)
    return analysis.shape.num_layers * float(sum(operation.parameters for operation in layer))


def _projection(question: Question, analysis: Analysis, layout: Columns, *, preset: str) -> Projection:
    """Return memory and step time of one candidate, which is the layout of the question."""
    account = Account(
        stages=_stages(analysis, layout),
        total_parameters=_parameters(analysis),
        complete=False,
        tensor_kinds=get_args(TensorKind),
    )
    stated = memory_projection(account, question, preset=preset)
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
    step = analysis.step_time(layout)
    parts: dict[str, dict[str, Numeric]] = {}
    passes = named(floats(layout["num_microbatches"]) * analysis.layers(layout), "layers × micro-batches")
    split = Split(**{name: floats(layout[name]) for name in LAYER_KEY})
    for operation in analysis.layer(split):
        name = operation.name
        time = price_layer((operation,), split, machine=analysis.machine, quirks=analysis.quirks)
        local = "attention" if name in _ATTENTION else "norm" if name in _NORMS else "ffn"
        work = total({"compute": time.compute_s, "memory": time.memory_s}, name=name, unit="s")
        parts.setdefault(local, {})[name] = passes * work
        if operation.forward.messages or operation.backward.messages:
            comm = "context_comm" if name == "fused attention" else "tensor_comm"
            parts.setdefault(comm, {})[name] = passes * time.tensor_s
    totals = {part: total(terms, name=part, unit="s") for part, terms in parts.items()}
    nothing = dict.fromkeys(TIME_PARTS, np.zeros(1))
    return {
        **nothing,
        **totals,
        "pipeline_comm": step.pipeline,
        "data_comm": step.data,
        "bubble": step.bubble,
    }


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
    training_days: float | None
    """Days of the whole training, where its tokens are known."""
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
    tokens: float | None = None,
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
        Degrees ("tp1", "tp2", "pp", "dp"), "micro_batch_size", "panels" of SUMMA or ranks of a degree in a fast
        domain ("placement_tp1", ...) held at a value.
    tokens
        Tokens of the whole training, for its days.

    Raises
    ------
    InfeasibleError
        If no configuration is legal, or none fits in memory.
    """
    started = time.perf_counter()
    for key, value in (("top", top), ("global_batch_size", global_batch_size)):
        if value < 1:
            raise out_of_range(key, value, "1 or more")
    length = seq_len or shape_of(model).seq_len
    question = Question(
        model=model,
        cluster=cluster,
        workload=Workload(seq_len=length, global_batch_size=global_batch_size, tokens=tokens),
    )
    preset = Subramanian2024Preset(
        quirks=quirks or Quirks(),
        tensor_parallel=tensor_parallel,
        fix=tuple(f"{name}={value}" for name, value in fixed.items()),
    )
    return ranked_study(question, preset, top=top, started=started)


def ranked_study(
    question: Question, preset: Subramanian2024Preset, *, top: int, started: float | None = None
) -> StudyResult:
    """Return the fastest configurations of the published search, in the paper's own terms."""
    started = time.perf_counter() if started is None else started
    space = Found.from_question(question, preset)
    best = _fastest(space.analysis, space.candidates, top)
    return StudyResult(
        model=question.model,
        cluster=question.cluster,
        tensor_parallel=space.analysis.kind,
        seq_len=space.analysis.shape.seq_len,
        global_batch_size=question.workload.global_batch_size,
        quirks=preset.quirks,
        best=_ranked(space.analysis, *best, question.workload),
        num_candidates=space.num_candidates,
        num_feasible=space.num_feasible,
        elapsed_s=time.perf_counter() - started,
    )


class Found(Struct, frozen=True, kw_only=True):
    """The configurations of a search that fit, with their placements and panels."""

    analysis: Analysis
    candidates: Columns
    num_candidates: int
    """Those that are legal, whether they fit or not."""

    @property
    def num_feasible(self) -> int:
        """Number of configurations that fit."""
        return len(self.candidates["tp1"])

    @classmethod
    def from_question(cls, question: Question, preset: Subramanian2024Preset) -> Found:
        """Enumerate the space of a question.

        Raises
        ------
        InfeasibleError
            If no configuration is legal, or none fits in memory.
        """
        model, cluster, workload = question.model, question.cluster, question.workload
        if preset.tensor_parallel is None:
            fix = f"--preset {preset.name} searches one strategy at a time: give 1d, 2d or summa"
            raise missing("--tensor-parallel", fix)
        analysis = Analysis(
            shape=shape_of(model, seq_len=workload.seq_len),
            machine=machine_of(cluster),
            kind=preset.tensor_parallel,
            quirks=preset.quirks,
        )
        space = enumerate_space(
            analysis.shape,
            num_devices=cluster.num_devices,
            domain=analysis.machine.domain,
            kind=analysis.kind,
            global_batch_size=workload.global_batch_size,
            fixed=_fixed(preset.fix),
        )
        counts = space.num_candidates()
        if not counts.sum():
            devices = counted(cluster.num_devices, "device")
            raise InfeasibleError(f"no legal configuration of {model.name} on {devices} of {cluster.name}")
        memory = np.asarray(analysis.memory(space.rows).total)
        fitting = np.flatnonzero((memory <= question.memory_limit) & (counts > 0))
        if not len(fitting):
            raise _nothing_fits(question, memory, counts)
        return cls(analysis=analysis, candidates=space.expand(fitting), num_candidates=int(counts.sum()))


def _fixed(fixes: Sequence[str]) -> dict[str, int]:
    """Return dimensions of the search with the values at which they are held."""
    values: dict[str, int] = {}
    for text in fixes:
        name, _, value = text.partition("=")
        if (number := whole_of(value)) is None:
            raise wrong_type("--fix", text, "NAME=NUMBER under --preset subramanian2024, such as tp1=8")
        values[name.strip().replace("-", "_")] = number
    return values


def _fastest(analysis: Analysis, candidates: Columns, top: int) -> tuple[Columns, StepTime]:
    """Return the `top` fastest candidates, fastest first, with their times; equals keep the space's order."""
    step = analysis.step_time(candidates)
    total: Array = np.asarray(step.total)
    kept = np.arange(len(total))
    if len(total) > top:
        kept = np.flatnonzero(total <= np.partition(total, top - 1)[top - 1])
    kept = kept[np.argsort(total[kept], kind="stable")][:top]
    return {name: values[kept] for name, values in candidates.items()}, step.take(kept)


def _ranked(analysis: Analysis, columns: Columns, step: StepTime, workload: Workload) -> tuple[Ranked, ...]:
    """Return the chosen candidates with their times and bytes in parts."""
    layer, memory = step.layer_time(), analysis.memory(columns)
    passes = columns["num_microbatches"] * (analysis.shape.num_layers // columns["pp"])
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
    batch, tokens = workload.global_batch_size, workload.tokens
    steps = None if tokens is None else tokens / workload.tokens_per_step
    return tuple(
        Ranked(
            configuration=_configuration(_row(columns, row)),
            step_time_s=float(total[row]),
            samples_per_s=batch / float(total[row]),
            training_days=None if steps is None else steps * float(total[row]) / SECONDS_PER_DAY,
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


def _nothing_fits(question: Question, memory: Array, counts: Integers) -> InfeasibleError:
    smallest, cluster = float(memory[counts > 0].min()), question.cluster
    return InfeasibleError(
        f"none of the {int(counts.sum()):,} configurations of {question.model.name} fits "
        f"{format_bytes(question.memory_limit)} on {counted(cluster.num_devices, 'device')} of {cluster.name}; the "
        f"smallest needs {format_bytes(smallest)}: try more devices",
        [("memory", int(counts.sum()))],
    )
