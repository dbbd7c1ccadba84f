"""Short phrases for layouts, workloads and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rich.text import Text

from forescale.projection import result
from forescale.projection.result import Calendar, Projection
from forescale.question import Note
from forescale.spec.model import Model
from forescale.spec.strategy import ALL_LAYERS, DEFAULT_AXIS_ORDER, Recompute, Routing, Strategy
from forescale.spec.workload import Precision, Trainable, Workload
from forescale.units import GIB, counted, format_bytes, format_count, format_seconds

_PREFIXES = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


RISKY = "! may not fit (upper estimate)"
"""What the mark beside memory means."""


def layout(strategy: Strategy) -> str:
    """Return a layout in few words, degrees of 1 left out."""
    degrees = ("tp", "cp", "ep", "etp", "pp", "vpp")
    words = [f"{name} {getattr(strategy, name)}" for name in degrees if getattr(strategy, name) > 1]
    words += [
        f"dp {replicas(strategy)}",
        f"zero {strategy.zero}",
        f"micro_batch_size {strategy.micro_batch_size}",
    ]
    return " · ".join(filter(None, [*words, variants(strategy)]))


def degrees(strategy: Strategy) -> str:
    """Return how a model is cut and what else is not the usual choice, without data parallelism."""
    names = ("tp", "cp", "ep", "etp", "pp", "vpp")
    found = [f"{name} {getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]
    return ", ".join(filter(None, [" ".join(found), variants(strategy)])) or "data parallelism alone"


def replicas(strategy: Strategy) -> str:
    """Return the data-parallel degree, as replicas × shards where it has replicas."""
    if strategy.dp_replicate > 1:
        return f"{strategy.dp_replicate}×{strategy.dp_shard}"
    return str(strategy.dp)


def variants(strategy: Strategy) -> str:
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


def notes(given: Sequence[Note]) -> list[Text]:
    """Return what the reader should know, a line each; `left_out` stands below the header instead."""
    return [
        Text(f"note ({note.topic}): {note.text}", style="yellow")
        for note in given
        if note.topic != "left out"
    ]


def left_out(model: Model) -> list[Text]:
    """Return what of the model is not projected, for the line below the header."""
    return [Text(f"{note.topic}: {note.text}", style="bold yellow") for note in result.left_out(model)]


def calendar(found: Calendar | None) -> str:
    """Return days on the calendar, with their range and what is counted."""
    if found is None:
        return "the run never ends: things fail faster than it restarts and saves (`forescale run` takes other rates)"
    days = found.days
    return (
        f"{days.expected:,.1f} ({days.low:,.1f} to {days.high:,.1f}) on the calendar, "
        f"failures as {found.failures}"
    )


def time_part(name: str) -> str:
    """Return a part of the step's time by a name that no part of memory has."""
    return "run overhead" if name == "overhead" else name


def pass_name(name: str) -> str:
    """Return a pass of a block in words."""
    return {"backward_input": "input gradient", "backward_weight": "weight gradient"}.get(name, name)


def hosted(strategy: Strategy) -> list[str]:
    """Return what is kept in host memory."""
    held, words = strategy.offload, []
    if held.parameters:
        words.append("states on host")
    elif held.optimizer:
        words.append(f"{percent(held.optimizer, 0)} of optimizer on host")
    if held.activation_layers:
        some = (
            "" if held.activation_layers >= ALL_LAYERS else f" of {counted(held.activation_layers, 'layer')}"
        )
        words.append(f"activations{some} on host")
    return words


def summa(strategy: Strategy) -> str:
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


def scenario(one: Projection) -> str:
    """Return precision and overlap."""
    kinds = [item.name for item in fields(one.strategy.overlap) if getattr(one.strategy.overlap, item.name)]
    return " · ".join([precision(one.workload.precision), " ".join(kinds) or "no overlap"])


def workload(given: Workload) -> str:
    """Return batch, data types and optimizer."""
    words = [
        f"seq_len {given.seq_len:,}",
        f"global_batch_size {given.global_batch_size:,}",
        precision(given.precision),
    ]
    return " · ".join([*words, given.optimizer, *_trained(given.trainable)])


def _trained(given: Trainable) -> list[str]:
    """Return what is trained where that is not all of the model."""
    if given.lora_rank:
        whole = f" and {', '.join(given.whole)}" if given.whole else ""
        return [f"LoRA of rank {given.lora_rank}{whole}"]
    return [f"{', '.join(given.frozen)} frozen"] if given.frozen else []


def precision(given: Precision) -> str:
    """Return the compute type, with the recipe and state types that are not the usual ones."""
    usual = Precision()
    changed = [
        f"{name} {getattr(given, name)}"
        for name in ("parameters", "gradients", "master", "moments", "activations", "frozen")
        if getattr(given, name) != getattr(usual, name)
    ]
    recipe = [] if given.recipe == "none" else [given.recipe]
    return " ".join([given.compute, *recipe, *changed])


def bytes_of(value: float) -> str:
    """Return bytes in binary units."""
    return format_bytes(value)


def gib(value: float) -> str:
    """Return bytes in GiB without the unit, for columns."""
    return f"{value / GIB:.1f}" if value else "–"


def percent(share: float, digits: int = 1) -> str:
    """Return a fraction in percent."""
    return f"{100.0 * share:.{digits}f} %"


def quantity(value: float, unit: str) -> str:
    """Return a number with the unit that explanations use."""
    match unit:
        case "s" | "second":
            return format_seconds(value)
        case "byte":
            return format_bytes(value)
        case "parameter" | "token":
            return f"{format_count(value)} {unit}s"
        case "" | "1":
            return plain(value)
        case "d":
            return f"{value:,.1f} days"
        case "token/s":
            return f"{value:,.1f} {unit}"
        case _:
            return prefixed(value, unit)


def prefixed(value: float, unit: str) -> str:
    """Return a large number with an SI prefix before its unit."""
    for prefix, scale in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{plain(value)} {unit}"


def plain(value: object) -> str:
    """Return a number without unit: whole ones in full, others with six digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.6g}"
