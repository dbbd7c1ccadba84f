"""Layouts in few words, for people."""

from __future__ import annotations

from forescale.spec.groups import group_of
from forescale.spec.layout import ALL_LAYERS, DEFAULT_AXIS_ORDER, Layout, Recompute, Routing
from forescale.units import counted


def layout(strategy: Layout) -> str:
    """Return a layout in few words, degrees of 1 left out."""
    words = [
        *_cut(strategy),
        f"dp {replicas(strategy)}",
        f"zero {strategy.zero}",
        f"micro_batch_size {strategy.micro_batch_size}",
    ]
    return " · ".join(filter(None, [*words, variants(strategy)]))


def degrees(strategy: Layout) -> str:
    """Return how a model is cut and what else is not the usual choice, without data parallelism."""
    return ", ".join(filter(None, [" ".join(_cut(strategy)), variants(strategy)])) or "data parallelism alone"


def _cut(strategy: Layout) -> list[str]:
    """Return the degrees by which the model is cut, those of 1 left out."""
    names = ("tp", "cp", "ep", "etp", "pp", "vpp")
    return [f"{name} {getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]


def replicas(strategy: Layout) -> str:
    """Return the data-parallel degree, as replicas × shards where it has replicas."""
    if strategy.dp_replicate > 1:
        return f"{strategy.dp_replicate}×{strategy.dp_shard}"
    return str(strategy.dp)


def variants(strategy: Layout) -> str:
    """Return recompute and whatever else is not the usual choice."""
    words = []
    if strategy.recompute.granularity != "none":
        words.append(recompute(strategy.recompute))
    if strategy.tp_kind == "summa" and strategy.tp * strategy.cp > 1:
        words.append(summa(strategy))
    if strategy.tp > 1 and not strategy.sp:
        words.append("no sp")
    if strategy.cp > 1 and strategy.cp_kind != "all_gather":
        words.append(f"{strategy.cp_kind} cp")
    if strategy.schedule is not None and strategy.pp > 1:
        words.append(strategy.schedule)
    if group_of(strategy) is not None:
        words.append(f"groups of {group_of(strategy)}")
    if strategy.placement is not None or strategy.axis_order != DEFAULT_AXIS_ORDER:
        words.append(strategy.rank_order)
    if strategy.dispatcher != "all_to_all":
        words.append(strategy.dispatcher)
    return ", ".join([*words, *routing(strategy.routing), *hosted(strategy)])


def routing(experts: Routing) -> list[str]:
    """Return how uneven experts are, and what they take at most."""
    words = [] if experts.imbalance == 1.0 else [f"experts {experts.imbalance:g} × uneven"]
    if experts.capacity_factor is not None:
        padded = ", padded" if experts.pad_to_capacity else ""
        words.append(f"capacity {experts.capacity_factor:g}{padded}")
    return words


def hosted(strategy: Layout) -> list[str]:
    """Return what is kept in host memory."""
    held, words = strategy.offload, []
    if held.parameters:
        words.append("states on host")
    elif held.optimizer:
        words.append(f"{100.0 * held.optimizer:.0f} % of optimizer on host")
    if held.activation_layers:
        some = (
            "" if held.activation_layers >= ALL_LAYERS else f" of {counted(held.activation_layers, 'layer')}"
        )
        words.append(f"activations{some} on host")
    return words


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
