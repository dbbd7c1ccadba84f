"""One layout under the paper's model: strategy 1d without context parallelism, 2d with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from forescale.cost.mesh import groups, order_of, ranks_per_tier
from forescale.errors import SpecError
from forescale.formula import Term
from forescale.graph.layout import split_strategy
from forescale.numeric import Numeric
from forescale.presets.preset import Account, StageBytes, memory_projection, microbatches_of, timed_projection
from forescale.presets.subramanian2024.evaluate import LAYER_KEY, Analysis, floats, price_layer
from forescale.presets.subramanian2024.formulas import CODE, FP16_BYTES
from forescale.presets.subramanian2024.layers import Quirks, Split, shape_of
from forescale.presets.subramanian2024.machine import machine_of
from forescale.presets.subramanian2024.space import Columns
from forescale.projection.result import TIME_PARTS, Projection
from forescale.question import Note, Question
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy, TensorKind
from forescale.spec.workload import Workload

_ATTENTION = ("query, key, value", "fused attention", "projection", "projection bias", "attention dropout")
_NORMS = ("attention norm", "ffn norm")
_LEFT_OUT = Note(
    topic="preset",
    text="the paper leaves out embedding, head, loss, the mask of causal attention, the optimizer's time, buffers "
    "and fragmentation; optimizer states are sharded over dp, weights and gradients are not",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subramanian2024Preset:
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
        model, cluster, strategy, workload = question.parts
        _refuse(model, strategy)
        analysis = Analysis(
            shape=shape_of(model, seq_len=workload.seq_len),
            machine=machine_of(cluster),
            kind="summa" if strategy.tp_kind == "summa" else "2d" if strategy.cp > 1 else "1d",
            quirks=self.quirks,
        )
        return analysis, _columns(cluster, strategy, workload)


SUBRAMANIAN_2024 = Subramanian2024Preset()


def _refuse(model: Model, strategy: Strategy) -> None:
    """Raise if the layout has something that the paper does not know."""
    usual = Strategy()
    only_usual = ("vpp", "ep", "etp", "stage_layers", "recompute")
    unknown = [name for name in only_usual if getattr(strategy, name) != getattr(usual, name)]
    unknown += ["zero > 1"] if strategy.zero > 1 else []
    unknown += ["tp without sp"] if strategy.tp > 1 and not strategy.sp else []
    unknown += ["pp that does not divide the layers"] if model.num_layers % strategy.pp else []
    if unknown:
        msg = f"preset subramanian2024 knows tp with sp, cp, pp, dp and zero 1 only; not {', '.join(unknown)}"
        raise SpecError(msg)


def _columns(cluster: Cluster, strategy: Strategy, workload: Workload) -> Columns:
    """Return the layout as one candidate; where it lies follows from its axis order."""
    near = {
        axis: int(np.floor(ranks_per_tier(group, cluster)[0]))
        for axis, group in groups(split_strategy(strategy)[0], order_of(strategy)).items()
    }
    values = {
        "tp1": strategy.tp,
        "tp2": strategy.cp,
        "pp": strategy.pp,
        "dp": strategy.dp,
        "micro_batch_size": strategy.micro_batch_size,
        "num_microbatches": microbatches_of(strategy, workload),
        "panels": np.lcm(strategy.tp, strategy.cp) * strategy.summa_panels,
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
        own = "attention" if operation.name in _ATTENTION else "norm" if operation.name in _NORMS else "ffn"
        parts[own] = parts[own] + passes * (time.compute_s + time.memory_s)
        comm = "context_comm" if operation.name == "fused attention" else "tensor_comm"
        parts[comm] = parts[comm] + passes * time.tensor_s
    return {**parts, "pipeline_comm": step.pipeline, "data_comm": step.data, "bubble": step.bubble}
