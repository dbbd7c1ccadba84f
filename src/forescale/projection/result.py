"""What a projection says: values of fixed shape, ready for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import field

from forescale.cost.anchor import Rule
from forescale.cost.model import ProvenanceKind
from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.question import Note, foremost
from forescale.results import Result, missing_attribute
from forescale.spec import phrases
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.phrases import layout
from forescale.spec.workload import Workload
from forescale.struct import Struct, attributes
from forescale.units import GIB, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from forescale.view.lines import LineChart
    from forescale.view.page import Chart

SECONDS_PER_DAY = 86400.0


@formula(unit="1", source="Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B")
def utilisation(*, flops: Numeric, peak_rate: Numeric, num_devices: Numeric, step_time: Numeric) -> Numeric:
    """FLOP per step / (peak rate × devices × step time)."""
    return flops / (peak_rate * num_devices * step_time)


@formula(unit="token/s", source="definition")
def tokens_per_device_second(*, tokens: Numeric, step_time: Numeric, num_devices: Numeric) -> Numeric:
    """Tokens per step / step time / devices."""
    return tokens / step_time / num_devices


@formula(unit="d", source="definition")
def days(*, total_tokens: Numeric, tokens: Numeric, step_time: Numeric) -> Numeric:
    """Tokens of the run / tokens per step × step time."""
    return total_tokens / tokens * step_time / SECONDS_PER_DAY


SECONDS_PER_HOUR = 3600.0


@formula(unit="currency/token", source="definition")
def cost_per_token(
    *, price_per_device_hour: Numeric, num_devices: Numeric, step_time: Numeric, tokens: Numeric
) -> Numeric:
    """Price per device and hour × devices × step time / tokens per step."""
    return price_per_device_hour * num_devices * (step_time / SECONDS_PER_HOUR) / tokens


@formula(unit="J/token", source="definition; rated power bounds the devices' draw from above")
def energy_per_token(*, power: Numeric, num_devices: Numeric, step_time: Numeric, tokens: Numeric) -> Numeric:
    """Rated power × devices × step time / tokens per step: the devices' energy at most, nothing else counted."""
    return power * num_devices * step_time / tokens


WIDE = 5.0
"""From this ratio of the greatest to the least value on an axis is logarithmic."""


def memory_and_time(
    projections: Sequence[Projection],
    *,
    note: str,
    chosen: Projection | None = None,
    link: Callable[[Projection], str] | None = None,
    others: Sequence[tuple[float, float]] = (),
) -> LineChart:
    """Return memory of the fullest device against step time, with one `chosen`; `link` is where a point leads.

    `others` are GiB and seconds of layouts that are drawn without a name.
    """
    several = projections if chosen is None else (*projections, chosen)
    points = [(one, one.memory.peak_bytes / GIB, one.step_time_s) for one in several]
    axes = ("GiB on the fullest device", "seconds per step")
    return scatter("Memory and step time", note, axes, points, chosen, link, others)


def days_and_money(
    projections: Sequence[Projection], *, note: str, price: float | None = None
) -> tuple[LineChart, ...]:
    """Return days against money, where tokens are known and a price: of a device and hour, or the device's own."""
    points = []
    for one in projections:
        hourly = one.cluster.device.price_per_hour if price is None else price
        money = one.run_cost(hourly or None)
        if one.training_days is not None and money is not None:
            points.append((one, one.training_days, money))
    if not points:
        return ()
    return (scatter("Days and money", note, ("days", "money"), points),)


def scatter(
    title: str,
    note: str,
    axes: tuple[str, str],
    points: Sequence[tuple[Projection, float, float]],
    projection: Projection | None = None,
    link: Callable[[Projection], str] | None = None,
    others: Sequence[tuple[float, float]] = (),
) -> LineChart:
    """Return each projection as a point, with the one that is `projection` marked; `link` is where a point leads."""
    from forescale.view.axes import value_axis
    from forescale.view.lines import Dot, Line, LineChart

    places = [*((x, y) for _, x, y in points), *others]
    x, y = (
        value_axis(name, values, log=max(values) > WIDE * min(values) > 0, say=_amount)
        for name, values in zip(axes, zip(*places, strict=True), strict=True)
    )
    sides = {"layouts": [point for point in points if point[0] is not projection]}
    sides |= {} if projection is None else {"this one": [point for point in points if point[0] is projection]}
    lines = []
    for colour, (name, several) in enumerate(sides.items()):
        dots = (
            Dot(x=across, y=up, remark=_remark(one), link="" if link is None else link(one))
            for one, across, up in several
        )
        lines.append(Line(name=name, joined=False, colour=colour, dots=tuple(dots)))
    if others:
        dots = (Dot(x=across, y=up) for across, up in others)
        lines.insert(0, Line(name="all that fit", joined=False, colour=len(lines), dots=tuple(dots)))
    return LineChart(title=title, note=note, x=x, y=y, lines=tuple(lines))


def _amount(value: float) -> str:
    return f"{value:,.6g}" if value < 1e5 else format_count(value)


def _remark(one: Projection) -> str:
    step, memory = format_seconds(one.step_time_s), one.memory.peak_bytes / GIB
    return f"{one.cluster.num_devices:,} devices: {layout(one.strategy)}: {step}, {memory:.1f} GiB"


Verdict: TypeAlias = Literal["FITS", "AT RISK", "OOM"]
AT_RISK = "may run out of memory (upper end of the 80 % interval exceeds capacity)"
"""What AT RISK means."""
SCHEMA = "forescale.projection/1"
TIME_PARTS = (
    "attention",
    "ffn",
    "moe",
    "norm",
    "embedding",
    "head",
    "vision",
    "recompute",
    "reference",
    "tensor_comm",
    "context_comm",
    "expert_comm",
    "pipeline_comm",
    "data_comm",
    "host_comm",
    "bubble",
    "optimizer",
    "overhead",
)
"""Parts of the step, in the order of reports; those that are absent are zero."""
COMMUNICATION_PARTS = ("tensor_comm", "context_comm", "expert_comm", "pipeline_comm", "data_comm")
"""Parts of the step in which devices wait for messages between them."""
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
"""Parts of the memory of a stage."""


class Interval(Struct, frozen=True, kw_only=True):
    """A number with its 80 % interval."""

    low: float
    expected: float
    high: float


class Calendar(Struct, frozen=True, kw_only=True):
    """Days on the calendar: what fails, is saved and is done again counted."""

    days: Interval
    parts_days: dict[str, float]
    """Expected days by what they are spent on, in the names of Google's ml-goodput."""
    spread: dict[str, float]
    """Shares of the variance of the days by what they come from, the largest first."""
    failures: str
    """Whose rates of failure are counted."""
    checkpoint_interval_s: float

    @property
    def goodput(self) -> float:
        """Share of the calendar that trains."""
        return self.parts_days["goodput"] / self.days.expected


class ParameterSummary(Struct, frozen=True, kw_only=True):
    """Elements: of the whole model, used by one token, trained (adapters included), on the fullest device."""

    total: int
    active: int
    trained: int
    per_device_max: int
    per_stage: tuple[int, ...] = ()
    """On one device of each pipeline stage, before sharding over data parallelism."""


class TowerSummary(Struct, frozen=True, kw_only=True):
    """A vision tower's share, its projector included; memory and seconds on one device of the first stage."""

    parameters: int
    """Of the whole tower."""
    patches: int
    """Patches of each sequence that it sees."""
    image_tokens: int
    """Tokens of each sequence that its results are."""
    model_flops_per_step: float
    forward_s: float
    """Of one micro-batch, as is the backward."""
    backward_s: float
    states_bytes: float
    """Its weights, gradients and optimizer states."""
    activations_bytes: float
    """What it keeps of one micro-batch."""


class Sites(Struct, frozen=True, kw_only=True):
    """Sites that train by themselves and exchange what they trained now and then."""

    num_sites: int
    bandwidth: float
    """byte/s of each site's link."""
    exchanged_bytes: float
    """That each site sends, and receives, in `every` steps."""
    site_step_s: float
    """Of a step without exchanges."""
    utilisation: float
    """Share of the time that computes."""
    host_bytes: float
    """In host memory, for one device: what the outer optimizer keeps."""
    every_step_s: float
    """Of a step in which the sites reduce gradients over the same link instead."""


class StageMemory(Struct, frozen=True, kw_only=True):
    """Bytes on one device of a pipeline stage."""

    stage: int
    num_layers: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    buffers_bytes: float
    overhead_bytes: float
    """Beyond what is allocated: fragmentation, and what lies outside the allocator."""
    peak_bytes: float
    fragmentation_bytes: float = 0.0
    """Of the overhead, what the allocator holds beyond what it hands out."""
    communicators_bytes: float = 0.0
    """Of the overhead, buffers of communicators, outside the allocator."""
    frozen_bytes: float = 0.0
    """Of the weights, those that are not trained."""
    host_bytes: float = 0.0
    """In host memory, for one device of the stage: what was offloaded."""

    @property
    def parts(self) -> dict[str, float]:
        """GiB by part, which add up to the peak."""
        return {part: getattr(self, f"{part}_bytes") / GIB for part in MEMORY_PARTS}

    @property
    def allocated_bytes(self) -> float:
        """Peak of what the allocator hands out: states, activations and buffers."""
        return self.peak_bytes - self.overhead_bytes

    @property
    def reserved_bytes(self) -> float:
        """Peak of what the allocator holds."""
        return self.allocated_bytes + self.fragmentation_bytes


class MemorySummary(Struct, frozen=True, kw_only=True):
    """The fullest device against its capacity, and every stage."""

    peak_bytes: float
    peak_low_bytes: float
    peak_high_bytes: float
    capacity_bytes: float
    verdict: Verdict
    stages: tuple[StageMemory, ...]
    host_bytes: float = 0.0
    """In the host memory of the fullest node: what was offloaded."""
    host_capacity_bytes: float = 0.0
    """Memory of a node's host; 0 is not known."""

    def __str__(self) -> str:
        """Return the verdict, the fullest device against its capacity, and its parts."""
        fullest = max(self.stages, key=lambda stage: stage.peak_bytes)
        parts = ", ".join(f"{part} {gib:.2f}" for part, gib in fullest.parts.items())
        sizes = f"{self.peak_bytes / GIB:.2f} of {self.capacity_bytes / GIB:.2f} GiB"
        return f"{self.verdict}, {sizes} on the fullest device ({parts})"

    @property
    def is_over(self) -> bool:
        """Whether the expected peak is more than there is: at best it fits once the allocator has emptied its cache."""
        return self.peak_bytes > self.capacity_bytes

    @property
    def exceeds_host(self) -> bool:
        """Whether what was offloaded is more than the host of a node is known to have."""
        return 0.0 < self.host_capacity_bytes < self.host_bytes

    def __getattr__(self, name: str) -> object:
        """Raise an error that names what other libraries' names of attributes are here."""
        raise missing_attribute(self, name)


class StageTime(Struct, frozen=True, kw_only=True):
    """Seconds of one micro-batch on one pipeline stage."""

    stage: int
    forward_s: float
    backward_s: float


def left_out(model: Model) -> tuple[Note, ...]:
    """Return the note, first of all, on what of a model is not projected; none if all of it is."""
    known = model.vocab_size or model.patches or model.traces
    ends = "" if known else "embedding and head, as vocab_size is not given"
    text = f"{'; '.join(filter(None, (model.left_out, ends)))}: neither its memory nor its time is counted"
    notes = (Note(topic="left out", text=text),) if model.left_out or ends else ()
    unused = [f"{name} ({count:,} parameters)" for trace in model.traces[:1] for name, count in trace.unused]
    if not unused:
        return notes
    text = f"a batch of text does not run {', '.join(unused)}: its memory counts parameters and states only"
    return (*notes, Note(topic="left out", text=text))


class Restored(Struct, frozen=True, kw_only=True):
    """One piece of work whose seconds follow from a measurement."""

    block: str
    """A kind of layer, embedding, head; "update", "step"."""
    part: str
    """forward, backward_input, backward_weight; "" of what has no passes."""
    measured_s: float
    """At the bench, messages taken off."""
    modelled_s: float
    """What the models say of the same, at the bench."""
    ratio: float
    """Of this work here to that at the bench, by the rule."""
    rule: Rule
    seconds: float
    """Here: measured × ratio."""
    kind: ProvenanceKind
    """measured where it is the very work that was measured, else restored."""
    source: str


class CostSummary(Struct, frozen=True, kw_only=True):
    """Which cost models priced a projection, and where its seconds come from."""

    compute: str
    """Model of kernels; with "measured" first, that of kernels that were not."""
    reason: str
    """Why that model."""
    calibration: str
    """Run calibration: what whole runs lose against kernels alone."""
    novelty: str
    """What of the question its runs had not seen, by which the range of the step time goes."""
    device_clock_hz: float | None
    """Clock asked for; None is the device's own."""
    time_sources: dict[str, float]
    """Shares of all kernels' and messages' seconds that are measured, restored, interpolated, fitted or roofline."""
    restored: tuple[Restored, ...] = ()
    """What follows from measured blocks; everything else is modelled."""


class Communication(Struct, frozen=True):
    """What one kind of parallelism sends, against the compute that hides it."""

    part: str
    """Part of the step, such as "tensor_comm"."""
    name: str
    """What is compared with what."""
    ratio: float
    """Seconds of the message over those of the compute: below 1 it can hide."""
    payload_bytes: float | None
    """Bytes of one message of a rank."""
    volume_bytes: float | None
    """Bytes that a rank sends in a step."""


class Projection(Result, Struct, frozen=True, kw_only=True):
    """Memory and time of one layout."""

    model: Model
    cluster: Cluster
    strategy: Layout
    workload: Workload
    preset: str
    step_time: Interval
    num_microbatches: int
    tokens_per_s_per_device: float
    mfu: float
    """Model FLOP (causal attention counted as causal, no recompute) over peak."""
    mfu_full_attention: float
    """The same with attention counted as if nothing were masked."""
    hfu: float
    """FLOP that kernels execute, recompute and the masked pairs of unfused attention included, over peak."""
    model_flops_per_step: float
    model_flops_full_attention_per_step: float
    hardware_flops_per_step: float
    params: ParameterSummary
    time_s: dict[str, float]
    stage_times: tuple[StageTime, ...]
    memory: MemorySummary
    training_days: float | None
    """Ideal: steps alone."""
    calendar: Calendar | None = None
    """None where tokens are not known, or the run does not end: `endless` says why."""
    endless: str = ""
    framework: str | None = None
    """Label of the framework whose defaults apply; None without one, and under other presets."""
    framework_assumed: bool = False
    """Whether nothing names it: it is the usual one of the devices. Of a layout that a search chose, a note says so."""
    notes: tuple[Note, ...] = field(default=())
    sites: Sites | None = None
    """None where all devices take every step together."""
    vision: TowerSummary | None = None
    """None of models without one, and where it is left out."""
    costs: CostSummary | None = None
    """None under other presets, which price by their own account."""
    communication: tuple[Communication, ...] = ()
    """Ratios of communication to compute by formulas of a preset that has them (`playbook`)."""

    def essentials(self) -> dict[str, Any]:
        """Return the question, step time, utilisation and memory."""
        return {
            "model": self.model,
            "cluster": f"{self.cluster.num_devices} x {self.cluster.name}",
            "strategy": self.strategy,
            "workload": self.workload,
            "step_time_s": self.step_time_s,
            "mfu": self.mfu,
            **attributes(self.memory, "peak_bytes", "verdict"),
        }

    @property
    def step_time_s(self) -> float:
        """Expected seconds per optimizer step."""
        return self.step_time.expected

    @property
    def communication_share(self) -> float:
        """Share of the step in which devices wait for messages of each other."""
        return sum(self.time_s.get(part, 0.0) for part in COMMUNICATION_PARTS) / self.step_time_s

    @property
    def bubble_share(self) -> float:
        """Share of the step that is pipeline bubble."""
        return self.time_s.get("bubble", 0.0) / self.step_time_s

    @property
    def model_flops_per_token(self) -> float:
        """FLOP of a token, with the query-key pairs that the mask leaves."""
        return self.model_flops_per_step / self.workload.tokens_per_step

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all devices train on in a second of steps."""
        return self.tokens_per_s_per_device * self.cluster.num_devices

    @property
    def tokens_per_day(self) -> float:
        """Tokens that all devices train on in a day of steps alone."""
        return self.tokens_per_s * SECONDS_PER_DAY

    @property
    def dominant_cost(self) -> str:
        """The largest part of the step."""
        return max(self.time_s, key=self.time_s.__getitem__)

    def run_cost(self, price_per_device_hour: float | None) -> float | None:
        """Return what the devices cost for the whole run; None where its tokens, or the price, are not known."""
        if price_per_device_hour is None or self.workload.tokens is None:
            return None
        per_token = cost_per_token(
            price_per_device_hour=price_per_device_hour,
            num_devices=self.cluster.num_devices,
            step_time=self.step_time_s,
            tokens=self.workload.tokens_per_step,
        )
        return float(per_token) * self.workload.tokens

    @property
    def subject(self) -> str:
        """Model, devices and layout on one line."""
        devices = f"{self.cluster.num_devices} × {self.cluster.name}"
        return f"{self.model.name} on {devices}, {phrases.layout(self.strategy)}"

    @property
    def headline(self) -> str:
        """Model, devices, step time, utilisation and memory on one line."""
        memory = f"{format_bytes(self.memory.peak_bytes)} per device ({self.memory.verdict})"
        step = (
            f"{format_seconds(self.step_time_s)} per step, {self.mfu:.1%} MFU, " if self.step_time_s else ""
        )
        return f"{self.subject}: {step}{memory}"

    @property
    def details(self) -> tuple[str, ...]:
        """Seconds and bytes by part, and the notes that change the figures most."""
        times = sorted(self.time_s.items(), key=lambda item: -item[1])
        seconds = ", ".join(f"{part} {format_seconds(spent)}" for part, spent in times if spent > 0.0)
        lines = (f"memory: {self.memory}", *foremost(self.notes))
        return (f"step: {seconds}", *lines) if self.step_time_s else lines

    def rows(self) -> list[dict[str, Any]]:
        """Return one row: the layout and then what was projected; the same columns for every projection."""
        row = {
            **layout_row(self.strategy),
            **attributes(self, "num_microbatches", "step_time_s", "tokens_per_s_per_device", "mfu", "hfu"),
            **attributes(self.memory, "peak_bytes", "verdict"),
            **{f"{part}_s": seconds for part, seconds in self.time_s.items()},
        }
        return [row]

    def pictures(self) -> Sequence[Chart]:
        """Return the parts of the step, the largest first, and the memory of every stage against the device's."""
        from forescale.view.bars import Bar, BarChart

        parts = sorted(
            ((part, value) for part, value in self.time_s.items() if value), key=lambda pair: -pair[1]
        )
        capacity = self.memory.capacity_bytes / GIB
        return (
            BarChart(
                title="Time by part",
                note=f"{self.step_time_s:.4g} s per step",
                axis="",
                unit="seconds per step",
                bars=tuple(Bar(label=part, values={part: value}) for part, value in parts),
                quantities="step_time.",
                legend=False,
            ),
            BarChart(
                title="Memory by stage",
                note="of the fullest device of each",
                axis="stage",
                unit="GiB",
                bars=tuple(Bar(label=str(stage.stage), values=stage.parts) for stage in self.memory.stages),
                quantities="memory.",
                limit=capacity,
                limit_name=f"{capacity:.0f} GiB",
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.projection/1` document."""
        skipped = {"model", "cluster", "strategy", "workload", "step_time"}
        names = (name for name in Projection.__dataclass_fields__ if name not in skipped)
        return {
            "schema": SCHEMA,
            "model": self.model.name,
            "cluster": attributes(self.cluster, "name", "device=device.name", "num_devices"),
            **attributes(self, "workload", "strategy", "step_time_s"),
            **attributes(self, "step_time_low_s=step_time.low", "step_time_high_s=step_time.high", *names),
        }


KEYS = (
    *("schema", "question", "step_time_s", "step_time_low_s", "step_time_high_s"),
    *(name for name in Projection.__dataclass_fields__ if name != "step_time"),
)
"""Keys of a printed projection."""


def layout_row(strategy: Layout) -> dict[str, Any]:
    """Return the plain fields of a layout and, in words, its recompute policy and axis order."""
    values = {item.name: getattr(strategy, item.name) for item in fields(Layout)}
    plain = {
        name: value
        for name, value in values.items()
        if isinstance(value, int | str) or (name == "schedule" and value is None)
    }
    return {
        **plain,
        "recompute": strategy.recompute.granularity,
        "recompute_modules": "+".join(strategy.recompute.modules),
        "axis_order": strategy.rank_order,
    }
