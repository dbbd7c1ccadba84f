"""Layouts in few words, for people."""

from __future__ import annotations

from forescale.spec.layout import ALL_LAYERS, DEFAULT_AXIS_ORDER, Layout, Recompute, Routing
from forescale.spec.option import Declared, declared
from forescale.units import counted


def layout(strategy: Layout) -> str:
    """Return a layout in few words, degrees of 1 left out."""
    cut = [
        *_cut(strategy),
        f"dp {replicas(strategy)}",
        f"zero {strategy.zero}",
        f"micro_batch_size {strategy.micro_batch_size}",
    ]
    return " · ".join(filter(None, [*cut, variants(strategy)]))


def degrees(strategy: Layout) -> str:
    """Return how a model is cut and what else is not the usual choice, without data parallelism."""
    return ", ".join(filter(None, [" ".join(_cut(strategy)), variants(strategy)])) or "data parallelism alone"


def _cut(strategy: Layout) -> list[str]:
    """Return the degrees by which the model is cut, those of 1 left out."""
    names = ("tp", "cp", "ep", "etp", "pp", "vpp")
    return [f"{name} {getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]


def replicas(strategy: Layout) -> str:
    """Return the data-parallel degree, as replicas × shards where it has both."""
    if strategy.dp_replicate > 1 and (strategy.dp_shard > 1 or strategy.zero > 0):
        return f"{strategy.dp_replicate}×{strategy.dp_shard}"
    return str(strategy.dp)


def variants(strategy: Layout) -> str:
    """Return the recompute policy and all other choices that differ from the defaults."""
    replayed = "" if strategy.recompute.granularity == "none" else recompute(strategy.recompute)
    return ", ".join(filter(None, [replayed, choices(strategy)]))


def choices(strategy: Layout) -> str:
    """Return the choices other than recompute that differ from the defaults and have an effect."""
    usual = strategy.rank_order == "-".join(DEFAULT_AXIS_ORDER)
    several = {
        "tp_kind": summa(strategy) if strategy.tp_kind == "summa" and strategy.tp * strategy.cp > 1 else "",
        "schedule": (strategy.schedule or "") if strategy.pp > 1 else "",
        "axis_order": "" if usual else strategy.rank_order,
    }
    phrases = (several.get(item.path[0], _phrase(item, strategy)) for item in declared(Layout))
    return ", ".join(filter(None, [*phrases, *routing(strategy.routing), *hosted(strategy)]))


def _phrase(item: Declared, strategy: Layout) -> str:
    """Return the declared phrase of a field that is not the default and has an effect; else nothing."""
    value, under = getattr(strategy, item.path[0]), item.option.under
    shown = item.option.phrase and value != item.default
    shown = shown and (under is None or under.is_met(getattr(strategy, under.field)))
    return item.option.phrase.format(value) if shown else ""


def routing(experts: Routing) -> list[str]:
    """Return how uneven experts are, and what they take at most."""
    parts = [] if experts.imbalance == 1.0 else [f"experts {experts.imbalance:g} × uneven"]
    if experts.capacity_factor is not None:
        padded = ", padded" if experts.pad_to_capacity else ""
        parts.append(f"capacity {experts.capacity_factor:g}{padded}")
    return parts


def hosted(strategy: Layout) -> list[str]:
    """Return what is kept in host memory."""
    offload, parts = strategy.offload, []
    if offload.parameters:
        parts.append("states on host")
    elif offload.optimizer:
        parts.append(f"{100.0 * offload.optimizer:.0f} % of optimizer on host")
    if offload.paged:
        parts.append("paged optimizer")
    if offload.activation_layers:
        text = (
            ""
            if offload.activation_layers >= ALL_LAYERS
            else f" of {counted(offload.activation_layers, 'layer')}"
        )
        parts.append(f"activations{text} on host")
    return parts


def summa(strategy: Layout) -> str:
    """Return the grid's name, and its panels per block where they are several."""
    panels = strategy.summa_panels
    return "summa" if panels == 1 else f"summa with {panels} panels"


def recompute(policy: Recompute) -> str:
    """Return what is computed again."""
    if policy.granularity == "full":
        if policy.layer_ids:
            return f"recompute of {counted(len(policy.layer_ids), 'listed layer')}"
        first = "" if policy.num_layers is None else f" of {counted(policy.num_layers, 'layer')}"
        units = "" if policy.unit == 1 else f" in units of {policy.unit}"
        return f"recompute{first}{units}" if first or units else "full recompute"
    return policy.policy or " ".join(policy.modules)
