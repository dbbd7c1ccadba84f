"""Single changes of one layout: every other value that a framework supports, and what becomes of the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from forescale.arrays import np
from forescale.cost.run_calibration import FRAMEWORK
from forescale.errors import SpecError
from forescale.numeric import divisors
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.schedule.legality import LEGALITY
from forescale.schedule.library import family
from forescale.search.layouts import longest_chunk, options
from forescale.spec.constraints import virtual_stages
from forescale.spec.framework import Words, merged, replayed, searched
from forescale.spec.layout import ALL_LAYERS, Layout, Recompute
from forescale.spec.proposal import Constraint, Proposal, violated
from forescale.spec.space import NAMES, Space, choice_word, default_recompute, recompute_modules
from forescale.units import counted

LEAN_SCHEDULES = (None, "zb-h1", "zbv", "v-half", "v-min")
"""Schedules that are tried where no framework says which it has: none holds more than (interleaved) 1F1B."""
RELIEFS: Mapping[str, tuple[Any, ...]] = {
    "allocator": ("expandable_segments",),
    "optimizer_offload": (0.5, 1.0),
    "activation_offload": (ALL_LAYERS,),
    "parameter_offload": (True,),
    "reshard": ("always",),
    "graphs": ("none",),
    "dispatcher": ("all_to_all",),
}
"""What makes room and is no dimension of a space, by name: tried where no framework limits its options."""
OFFLOADED = ("optimizer_offload", "activation_offload", "parameter_offload")
"""Reliefs that are tried where a framework without them is only assumed."""
INSIDE: Mapping[str, tuple[str, str]] = {
    "optimizer_offload": ("offload", "optimizer"),
    "activation_offload": ("offload", "activation_layers"),
    "module_offload": ("offload", "modules"),
    "parameter_offload": ("offload", "parameters"),
    "cross_entropy": ("kernels", "cross_entropy"),
}
"""Table and field of what stands inside one of a layout."""


KINDS = (
    *(
        name
        for name in NAMES
        if name not in ("dp_shard", "tp_kind", "summa_panels", "axis_order", "placement")
    ),
    *RELIEFS,
    "module_offload",
    "cross_entropy",
)
"""What may be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing done otherwise."""

    kind: str
    """What is changed, one of `KINDS`."""
    text: str
    """The change in words, such as "zero 2"."""
    overrides: Words = field(hash=False)
    """Fields of the layout that it sets, as a plan file has them."""


def changes(question: Question) -> tuple[Change, ...]:
    """Return every single change that the question's framework supports; not all are legal for the layout."""
    layout = question.layout
    degrees = (*_degrees(question), *_choices(question), *_reliefs(question))
    return tuple(
        _change(question, kind, value)
        for kind, values in degrees
        for value in dict.fromkeys(values)
        if value != _present(layout, kind)
    )


def changed(question: Question, made: Sequence[Change]) -> Layout | None:
    """Return the layout with changes made, on the same devices; None if it is none that the framework can train."""
    before = layout = question.layout
    try:
        for item in made:
            layout = merged(layout, item.overrides)
    except SpecError:  # two ways to say one thing, such as activations on the host
        return None
    filled = _filled(question, layout)
    if filled is None or filled == before:
        return None
    rules = (*LEGALITY, *_rules(question))
    return None if violated(_asked(question, filled), rules) else filled


def recompute_text(recompute: Recompute) -> str:
    """Return in words what is computed again."""
    if recompute.granularity == "none":
        return "no recompute"
    if recompute.granularity == "policy":
        return f"recompute policy {recompute.policy}"
    if recompute.granularity == "full" and recompute.num_layers is not None:
        return f"full recompute of {counted(recompute.num_layers, 'layer')}"
    return f"recompute of {', '.join(recompute.modules) or 'everything'}"


def _degrees(question: Question) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the degrees with all values that can be legal on the devices."""
    layout, model, space = question.layout, question.model, _space(question)
    devices = divisors(question.cluster.num_devices)
    for axis in ("tp", "cp", "pp"):
        yield axis, options(getattr(space, axis), devices)
    if model.moe is not None:
        yield "ep", options(space.ep, divisors(model.moe.num_experts))
        yield "etp", options(space.etp, divisors(model.moe.ffn_hidden_size))
    yield "vpp", options(space.vpp, virtual_stages(model, layout.pp))
    yield "zero", space.zero
    if layout.dp_replicate > 1 < layout.dp_shard:
        yield "dp_replicate", (1,)
    batch = question.workload.global_batch_size // layout.dp
    yield "micro_batch_size", options(space.micro_batch_size, divisors(max(1, batch)))


def _choices(question: Question) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield what else a search chooses from."""
    layout, space = question.layout, _space(question)
    limits = None if question.framework is None else question.framework.limits
    others = {} if limits is None else limits.others
    if layout.tp > 1:
        yield "sp", space.sp or (True, False)
    if layout.cp > 1:
        yield "cp_kind", (*space.cp_kind, *others.get("cp_kind", ()))
    yield "recompute", space.recompute or ()
    if layout.pp > 1:
        known = LEAN_SCHEDULES if limits is None else (*space.schedule, *others.get("schedule", ()))
        yield "schedule", known


def _recomputes(question: Question) -> tuple[Recompute, ...]:
    """Return the policies of a search, each module beside those recomputed now, and every number of layers."""
    layout, model = question.layout, question.model
    present = layout.recompute.modules if layout.recompute.granularity == "selective" else ()
    modules = [name for name in recompute_modules(model) if name not in present]
    more = (Recompute(granularity="selective", modules=(*present, name)) for name in modules)
    longest = int(longest_chunk(model.num_layers, *(np.array([item]) for item in (layout.pp, layout.vpp)))[0])
    counts = (Recompute(granularity="full", num_layers=count) for count in range(1, longest))
    return (*default_recompute(model), *more, *counts)


def _reliefs(question: Question) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield what makes room beside, as far as it applies."""
    layout, limits = question.layout, None if question.framework is None else question.framework.limits
    reliefs = RELIEFS if limits is None else limits.reliefs
    if limits is not None and FRAMEWORK in question.assumed:  # another one may have what it lacks
        reliefs = {**{name: RELIEFS[name] for name in OFFLOADED}, **reliefs}
    applies = {
        "parameter_offload": layout.zero == 3,
        "reshard": layout.zero == 3,
        "dispatcher": layout.ep > 1,
        "moments": False,  # of the run, not of the layout
    }
    for kind, values in reliefs.items():
        if applies.get(kind, True):
            yield kind, values


def _change(question: Question, kind: str, value: Any) -> Change:  # noqa: ANN401 (a value of any dimension)
    values: dict[str, Any] = {kind: value}
    text = f"{kind} {_word(value)}"
    if kind in INSIDE:
        table, name = INSIDE[kind]
        values = {table: {name: value}}
    elif kind == "recompute":
        text = recompute_text(value)
    elif kind == "tp" and question.framework and question.framework.experts_over_tp and question.model.is_moe:
        values["etp"] = value
    elif kind == "dp_replicate":
        values, text = {kind: value, "dp_shard": question.layout.dp}, "shards over all of dp"
    elif kind == "schedule":
        values["vpp"] = (
            question.layout.vpp if value is None else family(value).fixed_vpp or question.layout.vpp
        )
        text = f"schedule {value or '1f1b'}"
    return Change(kind=kind, text=text, overrides=values)


def _word(value: object) -> str:
    if value == ALL_LAYERS:
        return "all"
    if isinstance(value, float):
        return f"{value:g}"
    return "+".join(value) if isinstance(value, tuple) else choice_word(value)


def _present(layout: Layout, kind: str) -> object:
    if kind in INSIDE:
        table, name = INSIDE[kind]
        return getattr(getattr(layout, table), name)
    return getattr(layout, kind)


def _filled(question: Question, layout: Layout) -> Layout | None:
    """Return a layout with data parallelism on the devices that are left, and what follows from other degrees."""
    before = question.layout
    dp, remainder = divmod(question.cluster.num_devices, layout.tp * layout.cp * layout.pp)
    if remainder or not dp:
        return None
    if layout.pp == 1:
        layout = replace(layout, vpp=1, schedule=None)
    if layout.stage_layers and (layout.pp, layout.vpp) != (before.pp, before.vpp):
        framework = question.framework
        layers = None if framework is None else framework.stage_layers(question.model, layout.pp, layout.vpp)
        layout = replace(layout, stage_layers=layers)
    if (layout.tp, layout.cp, layout.pp) != (before.tp, before.cp, before.pp):
        layout = replace(layout, placement=None)
    elif layout.zero == 0 or layout.dp_shard > 1:
        return layout
    replicas = layout.dp_replicate if layout.dp_shard > 1 and dp % layout.dp_replicate == 0 else 1
    return replace(layout, dp_replicate=replicas, dp_shard=dp // replicas)


def _space(question: Question) -> Space:
    """Return the options that the question's framework supports; without one, what a search tries."""
    framework, policies = question.framework, Space(recompute=_recomputes(question))
    if framework is None:
        return policies
    space = searched(framework, policies, limited=framework.limits is not None)
    return replayed(framework, space, question.model)


def _rules(question: Question) -> tuple[Constraint, ...]:
    """Return the rules of the framework that the layout keeps to as it is."""
    framework, rules = question.framework, question.space.rules
    if framework is not None:
        rules += searched(framework, Space(), limited=framework.limits is not None).rules
    broken = violated(_asked(question, question.layout), rules)
    return tuple(rule for rule in rules if rule not in broken)


def _asked(question: Question, layout: Layout) -> Proposal:
    return Proposal(
        model=question.model, cluster=question.cluster, workload=question.workload, degrees=layout
    )


def lost_seconds(now: Projection, then: Projection) -> float:
    """Return the seconds by which the tokens of a step of `now` take longer as `then`, whose steps may have fewer."""
    share = now.workload.tokens_per_step / then.workload.tokens_per_step
    return then.step_time_s * share - now.step_time_s
