"""Groups of command-line options that several commands take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from forescale.cli.advice import table
from forescale.cli.declare import Bounded, Declaration, Group, Rare, argument, option
from forescale.errors import SpecError, no_effect, out_of_range, required_with
from forescale.files import place_of
from forescale.limits import MEMORY, PRICE, outside
from forescale.spec.layout import Layout
from forescale.spec.operations import Operations
from forescale.spec.option import Declared, options
from forescale.spec.workload import Workload

LAYOUT, RUN, MACHINE, OUTPUT = "Layout", "Run", "Cluster", "Output"
COST, TYPES, FILES = Rare("Cost models"), Rare("Types, training"), Rare("Framework files")
ANALYSES = Rare("Context and SUMMA")


def given(options: Group) -> dict[str, Any]:
    """Return what of a group of options was given, by flag."""
    values = ((name, item, getattr(options, name)) for name, item in options.declared.items())
    return {f"--{name.replace('_', '-')}": value for name, item, value in values if value != item.default}


def refuse(options: Group, why: str, fix: str = "") -> None:
    """Raise if any option of a group is given where it has no effect; `why` is a clause."""
    for flag in given(options):
        raise no_effect(flag, why, fix)


def completing(module: str, names: str) -> Callable[[str], list[str]]:
    """Return what completes a name of those that a function of a module returns; it is loaded when it is asked."""

    def complete(incomplete: str) -> list[str]:
        known = getattr(import_module(f"forescale.{module}"), names)()
        return [name for name in known if name.startswith(incomplete)]

    return complete


def complete_schedules(incomplete: str) -> list[str]:
    """Return the names of schedules that begin so."""
    from forescale.schedule import families

    return [item.name for item in families() if item.name.startswith(incomplete)]


complete_models = completing("catalogue.models", "model_names")
complete_clusters = completing("catalogue.clusters", "cluster_names")
complete_frameworks = completing("catalogue.frameworks", "framework_names")
complete_presets = completing("presets", "preset_names")
MODEL_HELP = "Catalogue name, config.json or its folder, or a framework's own file."
model_argument = partial(argument, MODEL_HELP, "MODEL", complete=complete_models)


def positive(name: str, text: str | None, read: Callable[[str], float]) -> float | None:
    """Return the value of an option that `read` converts and that must be greater than 0; None if it is not given."""
    try:
        value = None if text is None else read(text)
    except SpecError as error:
        raise error.at(name) from error
    if value is not None and not value > 0.0:
        raise out_of_range(name, text, "greater than 0")
    return value


def memory_limit(text: str | None, flag: str = "--max-memory") -> float | None:
    """Return the bytes of --max-memory, or of another limit of memory."""
    from forescale.units import parse

    value = positive(flag, text, lambda text: parse(text, "byte"))
    if value is not None and (violation := outside(value, MEMORY)):
        raise out_of_range(flag, text, f"{violation} bytes", "add a unit, such as 70GiB")
    return value


def sequence_length(text: str, flag: str = "--seq-len") -> int:
    """Return the tokens of a length; k and M are of 1,024, as lengths of context are named."""
    from forescale.units import length_of

    if (length := length_of(text)) is None:
        raise out_of_range(flag, text, "a whole number of tokens, such as 8192 or 128k")
    return length


def price_of(text: str, flag: str, unit: str) -> float:
    """Return a price of a `unit`, such as 2.50, $2.50 or "2.50 USD/h" of an hour ("h")."""
    from forescale.units import parse

    try:
        return parse(text, f"money/{unit}")
    except SpecError as error:
        raise error.at(flag) from error


output_option = partial(option, panel=OUTPUT)
_bench = partial(option, panel=COST)
_machine, _cost, _types = (partial(option, panel=panel) for panel in (MACHINE, COST, TYPES))


class PlanOptions(Group, frozen=True, kw_only=True):
    """A file instead of flags, and single values over both."""

    plan: Path | None = option("Plan file (TOML or YAML); flags override it.", "FILE")
    config: Path | None = option("A framework's own file, such as DeepSpeed's.", "FILE")
    file_model: str | None = option(
        "Model of a framework's file that names none, or over the one that it names.",
        "NAME|FILE",
        flag="--model",
        panel=FILES,
        complete=complete_models,
    )
    strict: bool = option(
        "Refuse keys of a framework's file that are not known or not modelled; check fails on warnings.",
        default=False,
        panel=FILES,
    )
    sets: list[str] | None = option("One value, such as layout.tp=4. Repeatable.", "A.B=C", flag="--set")
    variables: list[str] | None = option(
        "Value of a variable that the file leaves open, such as TP=8. Repeatable.",
        "NAME=VALUE",
        flag="--var",
        panel=FILES,
    )
    passed: str | None = option(
        "Arguments of a launch script, its $1, $2 and so on, in one pair of quotes.",
        '"A B"',
        flag="--args",
        panel=FILES,
    )
    presets: list[Path] | None = option(
        "Folder of the presets that a Primus or Megatron-Bridge file names. Repeatable.",
        "DIR",
        flag="--primus-presets-dir --presets",
        panel=FILES,
    )
    download: bool = option(
        "Fetch the config.json of ORGANISATION/NAME from huggingface.co if it is not known here.",
        default=False,
        panel=FILES,
    )
    framework: str | None = option(
        "Framework whose defaults apply, or none.",
        "NAME[@RELEASE]",
        complete=complete_frameworks,
    )
    preset: str | None = option(
        "Modelling preset, such as a published account.",
        "NAME",
        complete=complete_presets,
    )
    tensor_parallel: Literal["1d", "2d", "summa"] | None = option(
        "Formulas of tensor parallelism under subramanian2024; a search under it needs them.", panel=ANALYSES
    )
    without_quirk: list[str] | None = option(
        "Peculiarity of the published figures to leave out, or all. Repeatable.", "NAME", panel=ANALYSES
    )


class ClusterOptions(Group, frozen=True, kw_only=True):
    """What it runs on."""

    cluster: str | None = _machine(
        "Catalogue name or a file. Required.", "NAME|FILE", complete=complete_clusters
    )
    hardware_config: Path | None = option(
        "Primus's node and network, over --cluster's.", "FILE.yaml", panel=FILES
    )
    devices: int | None = _machine("Devices.")
    nodes: int | None = _machine("Nodes, instead of devices.", flag="--nodes --target-nodes")
    sites: str | None = _types(
        "Sites that the devices are spread over, each site's link, and the time from one to the next.",
        "N,RATE[,TIME]",
    )


class BenchOptions(Group, frozen=True, kw_only=True):
    """Runs of one's own that time and memory are restored from."""

    load_benchmark: list[Path] | None = _bench(
        "What `bench`, or Primus, measured: time and memory are restored from it. Repeatable.", "FILE.json"
    )
    mode: Literal["simulate", "benchmark", "both"] | None = _bench(
        "Models alone, restored from a measurement, or both side by side; benchmark with --load-benchmark.",
        flag="--mode --memory-mode --profiling-mode",
    )
    restore: Literal["model", "primus"] | None = _bench(
        "Compute elsewhere: by the models of both (model), or in proportion to tensor parallelism (primus)."
    )
    safety_margin: float | None = _bench(
        "Of what was measured of memory beyond formulas, on top of the upper bound; 0.05 by default.",
        "SHARE",
        flag="--safety-margin --memory-safety-margin",
        check=Bounded(PRICE, whole=False),
    )

    @property
    def side_by_side(self) -> bool:
        """Whether both are asked for."""
        return self.mode == "both"

    def measured(self, *, kernels: bool = False) -> dict[str, Any]:
        """Return what is given for the section `[cost]` of a plan; `kernels` are timed ones given beside.

        Raises
        ------
        SpecError
            If options do not go together.
        """
        files = self.load_benchmark
        if files is None and self.mode in ("benchmark", "both") and not kernels:
            raise required_with("a measurement (--load-benchmark FILE)", f"--mode {self.mode}")
        about = {"restore": self.restore, "safety_margin": self.safety_margin}
        if files is not None and self.mode == "simulate":
            raise required_with("--mode benchmark or both", "--load-benchmark", "simulate")
        for name, item in about.items():
            if files is None and item is not None:
                option = name.replace("_", "-")
                raise required_with("--load-benchmark", f"--{option}")
        paths = None if files is None else [str(place_of(path).absolute()) for path in files]
        return {"benchmarks": paths, **about}


class CostOptions(BenchOptions, frozen=True, kw_only=True):
    """What prices kernels and collectives."""

    compute: Literal["auto", "roofline", "tile", "measured"] | None = _cost(
        "Model of kernels; auto by default."
    )
    device_clock_mhz: float | None = _cost("Clock to predict for; the device's own by default.", "MHZ")
    calibration: Path | None = _cost("Your own fits, as `calibrate` wrote them.", "FILE.json")
    measurements: list[Path] | None = _cost("Timed kernels and collectives to look up. Repeatable.", "FILE")

    def values(self) -> dict[str, Any]:
        """Return what is given, as the section `[cost]` of a plan; files are found from anywhere."""
        calibration, measurements = self.calibration, self.measurements
        return {
            **self.measured(kernels=measurements is not None),
            "compute": self.compute,
            "device_clock_mhz": self.device_clock_mhz,
            "calibration": None if calibration is None else str(place_of(calibration).absolute()),
            "measurements": None
            if measurements is None
            else [str(place_of(path).absolute()) for path in measurements],
        }


def described_options(kind: type) -> Iterator[tuple[str, Any, Any, tuple[str, ...]]]:
    """Yield the options of a specification: name, type, declaration, and the path of the field."""
    for item in options(kind):
        yield (*_declared(item), item.path)


def _declared(item: Declared) -> tuple[str, Any, Any]:
    """Return an option of a layout as a field of a group: name, type and option."""
    text, metavar, group = item.option.help, item.option.metavar, item.option.group
    kind = str if item.option.sibling or item.option.unit not in ("", "length") else item.kind
    parse = partial(sequence_length, flag=item.flag) if item.option.unit == "length" else None
    interval = item.interval if item.option.is_checked and kind in (int, float) else None
    check = None if interval is None else Bounded(interval, whole=kind is int)
    panel = group if group in (LAYOUT, RUN) else Rare(group)
    return item.name, kind | None, option(text, metavar, panel=panel, parse=parse, check=check)


if TYPE_CHECKING:
    RunOptions: TypeAlias = Any
    LayoutOptions: TypeAlias = Any
    OperationsOptions: TypeAlias = Any
else:

    def _group(name: str, kind: type) -> type[Group]:
        """Return the options of a specification as a group; `described_options` evaluates their declarations."""
        fields = table()["groups"][f"{__name__}:{name}"]
        namespace = dict.fromkeys(fields, Declaration(None, {}))
        names = {"__annotations__": dict.fromkeys(fields, "Any"), "__module__": __name__, "described": kind}
        return type(Group)(name, (Group,), {**namespace, **names}, frozen=True, kw_only=True)

    RunOptions = _group("RunOptions", Workload)
    LayoutOptions = _group("LayoutOptions", Layout)
    OperationsOptions = _group("OperationsOptions", Operations)
"""Options by the names of their declarations; None if not given."""


class Asked(Group, frozen=True, kw_only=True):
    """What is trained on what; subclasses also take how it is laid out, and what prices it."""

    model: str | None = model_argument()
    cluster: ClusterOptions = msgspec.field(default_factory=ClusterOptions)
    run: RunOptions = msgspec.field(default_factory=RunOptions)
    layout: LayoutOptions | None = None
    plan: PlanOptions = msgspec.field(default_factory=PlanOptions)
    cost: BenchOptions | None = None


class LaidOut(Asked, frozen=True, kw_only=True):
    """One layout."""

    layout: LayoutOptions = msgspec.field(default_factory=LayoutOptions)


class Priced(LaidOut, frozen=True, kw_only=True):
    """One layout, and what prices it."""

    cost: CostOptions = msgspec.field(default_factory=CostOptions)
