"""What whole runs lose against kernels measured alone, by device generation and by software: fitted data.

Kernels in a table ran alone and for moments. In a run the device is hot, its power is capped, the network is
shared, unfused steps pass over memory more often, and the host launches every kernel. A run calibration
states these losses once per generation and once per software stack; a pair of them makes `RunFactors`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import field

from forescale.cost.calibration import NARROW_TYPES, RunFactors, Spread
from forescale.errors import UnknownNameError, wrong_type
from forescale.files import packaged
from forescale.limits import Factor, Measure, Seconds
from forescale.prepared import prepared
from forescale.records import record
from forescale.spec import Device
from forescale.struct import Struct

T = TypeVar("T")
USUAL_SOFTWARE = {"Google": "xla", "AWS": "xla"}
"""Software stack by vendor, where nobody says; Megatron-Core elsewhere."""
WIDE_TYPES = ("bf16", "fp16", "tf32", "fp32")
PASS_FAMILIES = ("elementwise", "norm")
"""Families of traffic that eager software passes over more often than fused software."""
DEFAULT = "published"
Novelty: TypeAlias = Literal["known source", "new release", "new family", "new stack", "new device"]
"""What the fit has not seen of a run: nothing, the release, who ran it, the software too, or the devices."""
LEFT_OPEN = ", open"
"""Ends the name of a group of runs whose configuration is not fully known."""
WAITING = "waiting"
"""Group of runs whose devices wait for the host. Its interval is of the seconds that they wait, not of the step: how
long a host takes to launch a kernel differs more between machines and settings than how long the kernel takes."""
FEW = "few runs"
"""Group of runs whose software the fit knows from few runs on their generation. Its interval is of the half width of
others, in logarithms: how many times as wide theirs is."""
FRAMEWORK, RECIPE, MASTER = "framework", "recipe", "master"
"""What a question assumes besides settings: the framework, a recipe that is not of its own model and device, and the
type of the master copy, which adds nothing to the spread of a step time."""
NOTHING_KNOWN = Spread(rows=0, median_abs=0.2, bias=0.0, p10=-0.3, p90=0.3)


def usual_software(device: Device) -> str:
    """Return the software stack that a device is usually trained with."""
    return USUAL_SOFTWARE.get(device.vendor, "megatron-core")


class SharedFactors(Struct, frozen=True, kw_only=True):
    """Losses that no generation or software has to itself."""

    memory: Factor = 1.0
    """Of the bandwidth that single kernels reach."""
    network: Factor = 1.0
    """Of the bandwidth that single collectives reach."""
    dispatch: Factor = 1.0
    """The same for all-to-alls of experts, beside `network`: imbalance makes every rank wait for the fullest."""
    grouped: Factor = 1.0
    """Rate of expert products whose tiles fill all cores once, over that of products alone; of larger ones more."""
    rowwise: Factor = 1.0
    """Rate of 8-bit products with a scale per row over that of products with one per tensor (torchao, float8 README:
    Llama-3-8B on eight H100 at 6,768 tokens/s instead of 7,689.5)."""
    contention: Measure = 0.0
    """Share of the time of hidden communication by which it slows the compute that hides it."""
    interleaving: Factor = 1.0
    """Time of the host per launch where exchanges of experts run beside another micro-batch's compute, over that where
    they do not: each layer is then several nodes with streams and events of their own."""
    looping: Factor = 1.0
    """Time of the host for each launch of a loop over experts, over that of a launch alone: tensors are allocated,
    split and noted down for every expert (NVIDIA/TransformerEngine issue 2897)."""
    crossing: Measure = 0.0
    """Calls of the host for a chunk's forward that runs beside another's backward: a plan of both, streams and events,
    messages in their midst."""
    straggler: Measure = 0.0
    """Relative standard deviation of one device's step."""
    immaturity: Measure = 0.0
    """Logarithm of what products of 16-bit and wider numbers lack on the day that a generation is new: libraries tuned
    for it come with later releases of a stack."""
    narrow_immaturity: Measure = 0.0
    """The same of products of 8- and 4-bit numbers."""
    maturing_years: Factor = 0.5
    """Years in which what they lack falls to 1/e."""
    slice_straggler: Measure = 0.0
    """The same of one slice's step: a network of the data centre joins slices, and its delays vary."""


class DeviceFactors(Struct, frozen=True, kw_only=True):
    """What a generation sustains of its short kernels' rates."""

    wide: Factor = 1.0
    """Products of 16-bit and wider numbers."""
    routed: Factor = 1.0
    """The same of models with experts, over that: fitted, of unknown cause. Rates that rise where products are less of
    a step, or where a kernel reaches less of the peak, as a power limit would have it, predict unseen runs no better.
    """
    narrow: Factor = 1.0
    """Products of 8-bit numbers."""
    narrowest: Factor = 1.0
    """Products of 4-bit numbers."""
    attention: Factor = 1.0
    since: str = ""
    """Year and month from which the generation is trained on ("24.12"); empty where its software has matured."""
    power_w: Measure = 0.0
    """Board power at which wide products sustain `wide`, others more or less; 0 is unknown and scales nothing."""
    power_exponent: Factor = 0.75
    """Sustained rate over power: near the lowest voltage clocks follow power itself, above it about its third root."""

    def sustained(self, device: Device, *, experts: bool) -> float:
        """Return the share that wide products sustain on `device`, in a model with experts or without."""
        return self.wide * self.powered(device) * (self.routed if experts else 1.0)

    def powered(self, device: Device) -> float:
        """Return the rate that `device` sustains over that of a board of `power_w`."""
        if not (self.power_w and device.power_w):
            return 1.0
        return float((device.power_w / self.power_w) ** self.power_exponent)


class SoftwareFactors(Struct, frozen=True, kw_only=True):
    """What a software stack makes of the same kernels."""

    passes: Factor = 1.0
    """Memory traffic of elementwise steps, norms and loss, over that of fused kernels."""
    product: Factor = 1.0
    """Rate of products, over that of the generation."""
    attention: Factor = 1.0
    """Rate of attention, over that of its kernel."""
    attention_kernel: str = ""
    """Attention kernels such as "flash-2", where a calibration knows them apart from its current ones."""
    kernel_interval_s: Seconds = 0.0
    """Seconds between two launches by the host; 0 where whole steps are compiled or captured."""
    contention: Measure = 0.0
    """Share of the time of what data-parallel ranks send behind compute by which it slows that: NCCL's copies take
    cores and memory bandwidth, those of engines of their own (TPUs) do not."""
    microbatch_overhead_s: Seconds = 0.0
    """Seconds per micro-batch and chunk that nothing hides: the pipeline engine, blocking launches."""
    step_overhead_s: Seconds = 0.0
    note: str = ""


class Unseen(Spread, frozen=True, kw_only=True):
    """Errors ln(measured / predicted) of runs of which a fit had not seen something."""

    p90_abs: float
    """90th percentile of their size."""
    coverage: float
    """Share that lies between the 10th and 90th percentile of all *other* families of sources."""


class Assumptions(Struct, frozen=True, kw_only=True):
    """What settings that a question leaves to a framework add to the spread of step times, as logarithms.

    They add as squares. Fitted to published runs, asked with degrees, batch, length and precision only
    (benchmarks/assumed_spreads.py).
    """

    dense: Measure = 0.0
    """Of each setting that is left open in a dense model."""
    moe: Measure = 0.0
    """The same in a model with experts."""
    framework: Measure = 0.0
    """Where no framework is named."""
    recipe: Measure = 0.0
    """Where the recipe is of another model or device generation, or there is none."""
    release: Measure = 0.0
    """Of a release one year later than the calibration's latest; its square grows with time."""

    def doubt(self, assumed: tuple[str, ...], *, moe: bool, years: float) -> float:
        """Return the spread, in ln(measured / projected), of `assumed` settings, on a release `years` newer."""
        share = self.moe if moe else self.dense
        names = set(assumed)
        squares = [share**2] * len(names - {FRAMEWORK, MASTER, RECIPE})
        squares += [self.framework**2] * (FRAMEWORK in names) + [self.recipe**2] * (RECIPE in names)
        return math.sqrt(sum(squares) + self.release**2 * years)


class Seen(Struct, frozen=True, kw_only=True):
    """What the runs of a fit were."""

    sources: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    """Sources, or how their names begin, that are releases of one document."""
    frameworks: tuple[str, ...] = ()
    """Records without their releases."""
    architectures: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    """Software on a generation and width of numbers ("xla/tpu-v5e/16") of which not only few runs were seen."""


class RunCalibration(Struct, frozen=True, kw_only=True):
    """Losses by generation and software, and how far the truth lay from predictions with them."""

    name: str
    date: str
    source: str
    compute: Literal["roofline", "tile"] = "roofline"
    """Compute model whose kernels the losses are stated against."""
    latest: str = ""
    """Release, as year and month ("26.04"), that the numbers of software are of where nobody names one."""
    shared: SharedFactors = field(default_factory=SharedFactors)
    devices: Mapping[str, DeviceFactors] = field(default_factory=dict)
    """By device name or architecture; "generic" is the prior of all others."""
    software: Mapping[str, SoftwareFactors] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    spreads: Mapping[str, Mapping[str, Unseen]] = field(default_factory=dict)
    """By novelty, then by group (`groups_of`, `WAITING`, `FEW`); "core" and the releases of "later release" are to be
    read only."""
    assumed: Assumptions = field(default_factory=Assumptions)
    """What settings that a question leaves open add to a spread."""
    own: Mapping[str, Spread] = field(default_factory=dict)
    """By device: errors of one's own runs on one's own cluster."""

    def factors(self, device: Device, software: str | None = None, *, experts: bool = False) -> RunFactors:
        """Return the fitted factors (shares of rates, seconds of overhead) of a device under a software stack.

        A stack may be of a release: "megatron-core@25.02" is Megatron-Core as it was in February 2025. `experts` says
        whether the model has experts.

        Raises
        ------
        UnknownNameError
            If there is no such software.
        SpecError
            If its release is no year and month.
        """
        software, _, release = (software or usual_software(device)).partition("@")
        if software not in self.software:
            kind = "software"
            raise UnknownNameError(kind, software, self.software)
        shared, stack = self.shared, self.software[software]
        local = self.devices.get(device.name) or self.devices.get(device.architecture)
        local = local or self.devices.get("generic", DeviceFactors())
        lacking = self._lacking(local, release)
        wide, narrow = (
            stack.product * math.e ** (-item * lacking)
            for item in (shared.immaturity, shared.narrow_immaturity)
        )
        return RunFactors(
            sustained={
                **dict.fromkeys(WIDE_TYPES, local.sustained(device, experts=experts) * wide),
                **dict.fromkeys(NARROW_TYPES, local.narrow * narrow),
                "nvfp4": local.narrowest * narrow,
                "fp8_rowwise": local.narrow * narrow * shared.rowwise,
                **dict.fromkeys(PASS_FAMILIES, 1.0 / stack.passes),
                "attention": local.attention * stack.attention,
                "grouped": shared.grouped,
                "memory": shared.memory,
                "network": shared.network,
                "dispatch": shared.network * shared.dispatch,
            },
            attention_kernel=stack.attention_kernel,
            contention=shared.contention,
            data_contention=stack.contention,
            interleaving=shared.interleaving,
            looping=shared.looping,
            crossing=shared.crossing,
            kernel_interval_s=stack.kernel_interval_s * device.host_pace,
            microbatch_overhead_s=stack.microbatch_overhead_s,
            step_overhead_s=stack.step_overhead_s,
            straggler=shared.straggler,
            slice_straggler=shared.slice_straggler,
        )

    def _lacking(self, device_factors: DeviceFactors, release: str) -> float:
        """Return what a release's products lack of the latest ones', over what they lacked when the device was new."""
        now, then, new = (
            years_of(item) for item in (self.latest, release or self.latest, device_factors.since)
        )
        if not device_factors.since:
            return 0.0
        spans = (max(0.0, item - new) / self.shared.maturing_years for item in (then, now))
        first, last = (math.exp(-span) for span in spans)
        return first - last

    def doubt(self, assumed: tuple[str, ...], software: str | None, *, moe: bool) -> float:
        """Return the spread, in ln(measured / projected), that assumed settings and a later release add."""
        release = (software or "").partition("@")[2]
        years = max(0.0, years_of(release) - years_of(self.latest)) if self.latest else 0.0
        return self.assumed.doubt(assumed, moe=moe, years=years)

    def novelty(self, device: Device, framework: str | None, source: str = "") -> Novelty:
        """Return what is new of a run.

        Parameters
        ----------
        framework
            Record of the framework, without its release; None where nobody said which it is.
        source
            Short name of the source that published it; "" for a run of one's own.
        """
        if source in self.seen.sources:
            return "known source"
        if device.architecture not in self.seen.architectures:
            return "new device"
        if source and source.startswith(self.seen.families):
            return "new release"
        return "new family" if framework in self.seen.frameworks else "new stack"

    def spread(
        self,
        device: Device,
        compute: str,
        *,
        moe: bool,
        novelty: Novelty,
        left_open: bool = False,
        waits: float = 0.0,
        software: str | None = None,
    ) -> Spread:
        """Return the errors to expect of a device, compute type and kind of model.

        With `left_open` some of the configuration was not known but assumed. `waits` is the share of the step in which
        the device waits for the host. None as `software` is a stack that nobody named.
        """
        if device.name in self.own:
            return self.own[device.name]
        result = self.spreads.get(novelty)
        groups = groups_of(device.architecture, compute, moe=moe)
        few = stack_of(software or "", groups[1]) not in self.seen.stacks
        if left_open and result and f"{groups[-1]}{LEFT_OPEN}" in result:
            groups = tuple(f"{group}{LEFT_OPEN}" for group in groups)
        spread = closest(result, groups, lambda item: item.p90) if result else NOTHING_KNOWN
        if result and groups[-1] in (
            known := self.spreads.get("known source", {})
        ):  # what is new is no surer
            spread = max(spread, closest(known, groups, lambda item: item.p90), key=lambda item: item.p90)
        if result and WAITING in result:
            spread = spread.beside(waits * result[WAITING].p90)
        if result and FEW in result and few:
            spread = spread.widened(math.exp(result[FEW].p90))
        # Runs of other generations say how far off a fit is, not how far off the kernels are.
        return (
            spread.widened()
            if novelty == "new device" and device.architecture not in self.devices
            else spread
        )


@functools.cache
def years_of(release: str) -> float:
    """Return the years since 2000 of a release such as "26.04" (26.33); 0 for no release.

    Raises
    ------
    SpecError
        If it is not a year and month.
    """
    if not release:
        return 0.0
    if not re.fullmatch(r"\d\d\.(0[1-9]|1[0-2])", release):
        raise wrong_type("the release of a software stack", release, "a year and month such as 26.04")
    year, month = release.split(".")
    return int(year) + int(month) / 12.0


def groups_of(architecture: str, compute: str, *, moe: bool) -> tuple[str, ...]:
    """Return the groups whose errors may describe a run: generation and kind, either of the two, all."""
    group = f"{architecture}/{8 if compute in NARROW_TYPES else 16}"
    kind = "moe" if moe else "dense"
    return f"{group}/{kind}", group, kind, "all"


def stack_of(software: str, group: str) -> str:
    """Return the name of a software stack, of any release, on a generation and width of numbers."""
    return f"{software.partition('@')[0]}/{group}"


def closest(values: Mapping[str, T], groups: tuple[str, ...], width: Callable[[T], float]) -> T:
    """Return the value of the closest group; a missing pair of generation and kind falls back to the wider group."""
    pair, *either, everything = groups
    known = [values[item] for item in ([pair] if pair in values else either) if item in values]
    return max(known, key=width) if known else values[everything]


@prepared("runs")
def load_run_calibration(name: str = DEFAULT) -> RunCalibration:
    """Return the run calibration `name` that comes with the package."""
    return run_calibration_of(packaged(f"calibrations/runs/{name}"), where=f"run calibration {name}")


def run_calibration_of(content: Mapping[str, Any], *, where: str | Path) -> RunCalibration:
    """Return the run calibration that a JSON object describes."""
    return record(RunCalibration, content, "", where)
