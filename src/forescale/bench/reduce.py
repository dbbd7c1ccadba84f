"""A question scaled down to the available devices, so that each device does what it would do at the target.

Order of the cut: Primus projection documentation, Configuration Reduction; experts that are kept as its source has it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal, TypeAlias

from msgspec.structs import replace

from forescale.errors import not_enough_devices, out_of_memory
from forescale.io.bench import GivenUp
from forescale.numeric import divisors
from forescale.project import project
from forescale.question import Question
from forescale.spec.constraints import check
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import Layer, Model, MoeFfn
from forescale.struct import Struct
from forescale.units import GIB, counted

SHOWN = 2
"""Layers of each kind that are kept: their difference from one is a layer's own."""
MICROBATCHES = 2
"""Micro-batches of a step that are kept, for the same reason."""


class Reduced(Struct, frozen=True, kw_only=True):
    """What is left of a question on fewer devices."""

    question: Question
    given_up: tuple[GivenUp, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was given up, in words."""
        return tuple(f"{item.dimension} {item.asked} -> {item.measured}" for item in self.given_up)


def reduce(question: Question, devices: int, *, held: bool = True) -> Reduced:
    """Return the part of a question that `devices` can run, and what was given up.

    Pipeline stages go first, since a schedule is simulated; then expert parallelism, with as many experts on a device
    as before; then tensor parallelism, to the largest degree that fits. Context parallelism, micro-batch, types and
    recompute stay. Replicas are as many as experts are spread over; of each kind of layer two stay. What is `held` must
    fit into memory.

    Raises
    ------
    SpecError
        If context parallelism alone does not fit, there is no legal layout, or the cut does not fit into memory.
    """
    model, cluster, layout, workload = question.parts
    check(model, cluster, layout, workload)
    cut = _fitting(layout, devices)
    shown = _shown(model, layout.ep, cut.ep)
    microbatches = min(workload.global_batch_size // (layout.dp * layout.micro_batch_size), MICROBATCHES)
    batch = microbatches * cut.dp * cut.micro_batch_size
    left = replace(
        question,
        model=shown,
        cluster=cluster.sized(cut.num_devices),
        strategy=replace(cut, recompute=_of_layers(layout.recompute, shown.num_layers)),
        workload=replace(workload, global_batch_size=batch),
    )
    check(*left.parts)
    if held:
        _check_memory(left)
    return Reduced(question=left, given_up=_given_up(question, left))


def _fitting(layout: Layout, devices: int) -> Layout:
    """Return the layout on at most `devices`, with as few replicas as its experts are spread over."""
    if layout.cp > devices:
        fix = "measure on more, or ask with a lower cp: a bench never cuts it"
        raise not_enough_devices(f"cp {layout.cp}", layout.cp, devices, fix)
    for etp in divisors(layout.etp)[::-1]:
        for tp in divisors(layout.tp)[::-1]:
            for ep in divisors(layout.ep)[::-1]:
                ranks = math.lcm(tp * layout.cp, ep * etp)
                if ranks <= devices:
                    dp = ranks // (tp * layout.cp)
                    here = replace(layout, tp=tp, ep=ep, etp=etp, dp_replicate=1, dp_shard=dp)
                    return replace(here, pp=1, vpp=1, schedule=None, stage_layers=None, placement=None)
    raise AssertionError  # cp alone fits


def _shown(model: Model, ep: int, cut: int) -> Model:
    """Return a model with at most two layers of each kind, and experts for `cut` ranks of `ep`."""
    seen: Counter[Layer] = Counter()
    kept = []
    for layer in model.layers:
        seen[layer] += 1
        if seen[layer] <= SHOWN:
            kept.append(_with_experts(layer, ep, cut))
    return replace(model, layers=tuple(kept))


def _with_experts(layer: Layer, ep: int, cut: int) -> Layer:
    """Return a layer whose ranks have as many experts as before, but no fewer in all than a token chooses."""
    ffn = layer.ffn
    if not isinstance(ffn, MoeFfn) or cut == ep:
        return layer
    experts = max(cut * -(-ffn.num_experts // ep), ffn.top_k)
    experts = min(-(-experts // cut) * cut, ffn.num_experts)
    size = ffn.num_experts // ffn.num_groups if ffn.num_groups else 0
    groups = experts // size if size and experts % size == 0 else 0
    if groups <= 1 or ffn.top_k > min(ffn.top_groups or groups, groups) * size:
        groups = 0
    changed = replace(ffn, num_experts=experts, num_groups=groups, top_groups=min(ffn.top_groups, groups))
    return replace(layer, ffn=changed)


def _of_layers(recompute: Recompute, layers: int) -> Recompute:
    """Return a recompute that names no more layers than there are."""
    most = recompute.num_layers
    return replace(
        recompute,
        num_layers=None if most is None else min(most, layers),
        layer_ids=tuple(layer_id for layer_id in recompute.layer_ids if layer_id < layers),
        unit=min(recompute.unit, layers),
    )


Dimension: TypeAlias = Literal["pp", "ep", "experts", "tp", "dp", "layers", "sequences"]


def _given_up(question: Question, cut: Question) -> tuple[GivenUp, ...]:
    before, after = question.layout, cut.layout
    experts = [item.model.moe.num_experts if item.model.moe else 0 for item in (question, cut)]
    pairs: dict[Dimension, tuple[int, int]] = {
        "pp": (before.pp, after.pp),
        "ep": (before.ep, after.ep),
        "experts": (experts[0], experts[1]),
        "tp": (before.tp, after.tp),
        "dp": (before.dp, after.dp),
        "layers": (question.model.num_layers, cut.model.num_layers),
        "sequences": (question.workload.global_batch_size, cut.workload.global_batch_size),
    }
    return tuple(
        GivenUp(dimension=name, asked=one, measured=other)
        for name, (one, other) in pairs.items()
        if one != other
    )


def _check_memory(cut: Question) -> None:
    memory = project(cut).memory
    if memory.peak_bytes > cut.memory_limit:
        value = f"{memory.peak_bytes / GIB:.1f} GiB on each of {counted(cut.cluster.num_devices, 'device')}"
        fix = "measure on more devices, or ask with a smaller micro-batch or more recompute"
        raise out_of_memory(f"the cut of {cut.model.name}", value, f"{cut.memory_limit / GIB:.1f} GiB", fix)
