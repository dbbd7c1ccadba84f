"""Short phrases for layouts, workloads and numbers."""

from __future__ import annotations

from dataclasses import fields

from forescale.projection import result
from forescale.projection.result import Projection
from forescale.report.document import TextLine, line
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Precision, Trainable, Workload
from forescale.units import GIB, format_bytes, format_count, format_number

VERDICT_STYLE = {"FITS": "bold green", "AT RISK": "bold yellow", "OOM": "bold red"}

COMMUNICATION = "comm: exposed communication, % of the step"
"""Legend of a column."""


def verdict(text: str, rest: str = "") -> TextLine:
    """Return whether a layout fits, in its colour, and more after it."""
    return line((text, VERDICT_STYLE[text]), rest)


def over_host(memory: result.MemorySummary) -> str:
    """Return what a node's host has too little of, if what was offloaded is more than it has."""
    host = f"{memory.host_bytes / GIB:.2f} of {memory.host_capacity_bytes / GIB:.2f} GiB"
    return f", of host memory {host}" if memory.exceeds_host else ""


def over(memory: result.MemorySummary) -> str:
    """Return that a layout at risk is likely to run out of memory, if it is."""
    return ", likely too much" if memory.verdict == "AT RISK" and memory.is_over else ""


def asked(model: Model, cluster: Cluster, devices: str | None = None) -> str:
    """Return the title of an answer: the model, on how many devices of what."""
    count = f"{cluster.num_devices:,} × " if devices is None else devices
    return f"{model.name} on {count}{cluster.name}"


SHORT = 2.0
"""Days of a run below which it is also told in hours."""
HOURS = 24.0
"""Of a day."""
RISKY = f"! {result.AT_RISK}"
"""What the mark next to memory means."""


def tokens_per_s(one: Projection) -> str:
    """Return the tokens of all devices in a second of steps."""
    return f"{one.tokens_per_s:,.0f} tokens/s"


def rate(one: Projection) -> str:
    """Return the tokens of all devices in a second and a day of steps."""
    return f"{tokens_per_s(one)}, {format_count(one.tokens_per_day)} tokens/day"


def calendar(one: Projection) -> str:
    """Return days on the calendar, what their range mostly comes from, and whose rates of failure are counted."""
    dates = one.calendar
    if dates is None:
        return one.endless
    days, cause = dates.days, next(iter(dates.spread), "")
    return (
        f"{days.expected:,.1f} ({days.low:,.1f} to {days.high:,.1f}{f', mostly {cause}' if cause else ''}) on the "
        f"calendar, failures as {dates.failures}"
    )


def ends(one: Projection) -> str | None:
    """Return days on the calendar and their range, for a cell; None where nothing says how the run is operated."""
    if one.calendar is None:
        return "endless" if one.endless else None
    days = one.calendar.days
    return f"{days.expected:,.1f} ({days.low:,.1f}–{days.high:,.1f})"


def time_part(name: str) -> str:
    """Return a part of the step's time by a name that no part of memory has."""
    return "run overhead" if name == "overhead" else name


def pass_name(name: str) -> str:
    """Return a pass of a block in words."""
    return {"backward_input": "input gradient", "backward_weight": "weight gradient"}.get(name, name)


def scenario(one: Projection) -> tuple[str, ...]:
    """Return precision, then every kind of overlap."""
    kinds = (item.name for item in fields(one.strategy.overlap) if getattr(one.strategy.overlap, item.name))
    return (precision(one.workload.precision), *kinds)


def workload(value: Workload) -> str:
    """Return batch, data types and optimizer."""
    parts = [
        f"seq_len {value.seq_len:,}",
        f"global_batch_size {value.global_batch_size:,}",
        precision(value.precision),
    ]
    return " · ".join([*parts, value.optimizer, *_trained(value.trainable)])


def lead(value: Workload, preset: str) -> str:
    """Return the assumptions of an answer: the workload, and the preset unless it is our own engine."""
    return " · ".join([workload(value), *([] if preset == "default" else [f"preset {preset}"])])


def trainer(one: Projection) -> str:
    """Return the framework whose defaults apply, and whether it is assumed; nothing without one."""
    if one.framework is None:
        return ""
    return f"{one.framework} assumed" if one.framework_assumed else one.framework


def _trained(trainable: Trainable) -> list[str]:
    """Return what is trained where that is not all of the model."""
    if trainable.lora_rank:
        whole = f" and {', '.join(trainable.whole)}" if trainable.whole else ""
        return [f"LoRA of rank {trainable.lora_rank}{whole}"]
    return [f"{', '.join(trainable.frozen)} frozen"] if trainable.frozen else []


def precision(value: Precision) -> str:
    """Return the compute type, with the recipe and state types that are not the usual ones."""
    usual = Precision()
    changed = [
        f"{name.replace('_', ' ')} {getattr(value, name)}"
        for name in (
            "parameters",
            "gradients",
            "master",
            "moments",
            "second_moments",
            "activations",
            "frozen",
        )
        if getattr(value, name) != getattr(usual, name)
    ]
    recipe = [] if value.recipe in ("none", value.compute) else [value.recipe]
    return " ".join([value.compute, *recipe, *changed])


def bytes_of(value: float) -> str:
    """Return bytes in binary units."""
    return format_bytes(value)


def gib(value: float) -> str:
    """Return bytes in GiB without the unit, for columns."""
    return f"{value / GIB:.1f}" if value else "–"


def percent(share: float, digits: int = 1) -> str:
    """Return a fraction in percent."""
    return f"{100.0 * share:.{digits}f} %"


def days(value: float) -> str:
    """Return days with one digit after the point, and two digits of a short run."""
    return f"{value:,.1f}" if value >= SHORT else f"{value:.2g}"


def plain(value: object) -> str:
    """Return a value of a layout: lists with hyphens, none as a word, numbers as `format_number` writes them."""
    if isinstance(value, list):
        return "-".join(map(str, value)) or "none"
    return "none" if value is None else format_number(value)


def decimal_bytes(size: float) -> str:
    """Return a size as stores are sold."""
    return f"{size / 1e12:.2f} TB" if size >= 1e11 else f"{size / 1e9:.3g} GB"
