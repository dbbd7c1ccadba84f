"""Groups of command-line options as dataclasses, and what makes them one command for typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, make_dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
import typer

from forescale.cli.help import Rare
from forescale.errors import SpecError, no_effect, out_of_range, required_with
from forescale.files import place_of
from forescale.limits import MEMORY, PRICE, Interval, outside, within
from forescale.spec.layout import Layout
from forescale.spec.operations import Operations
from forescale.spec.option import Declared, options
from forescale.spec.workload import Workload
from forescale.struct import Struct

F = TypeVar("F", bound=Callable[..., None])

LAYOUT, RUN, MACHINE, OUTPUT = "Layout", "Run", "Cluster", "Output"
COST, TYPES, FILES = Rare("Cost models"), Rare("Types, training"), Rare("Framework files")
ANALYSES = Rare("Context and SUMMA")


def option(
    text: str,
    metavar: str | None = None,
    *,
    flag: str = "",
    panel: str | None = None,
    default: object = None,
    check: Callable[..., Any] | None = None,
    complete: Callable[[str], list[str]] | None = None,
    parse: Callable[[str], Any] | None = None,
) -> Any:  # noqa: ANN401 (a field of any type)
    """Return an option as a field of a group, or as a parameter of a command that is `grouped`.

    Parameters
    ----------
    text
        What it says in the help.
    metavar
        What stands for its value there; N for a whole number.
    flag
        How it is written, where its name does not say so.
    panel
        Title of the options that it is listed with.
    default
        Its value where it is not given; ... if it is required.
    check
        Is told the parameter and its value, and returns the value or raises.
    complete
        Returns what can stand for the beginning of a value.
    parse
        Returns the value of a text, or raises; by default its type says how.
    """
    message = {
        "help": text,
        "metavar": metavar,
        "rich_help_panel": panel,
        "callback": check,
        "autocompletion": complete,
        "parser": parse,
    }
    return field(default=default, metadata={"flag": flag, "typer": message})


def grouped(function: F) -> F:
    """Let `function` take dataclasses of options: typer sees the fields of each."""
    hints = get_type_hints(function, include_extras=True)
    local = inspect.signature(function).parameters.items()
    parameters = [one for name, item in local for one in _parameters(name, hints[name], item.default)]

    @wraps(function)
    def call(**given: object) -> None:
        function(**{name: _built(name, hints[name], given) for name, _ in local})

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call  # type: ignore[return-value]


def _inside(kind: Any) -> Iterator[tuple[Field[Any], Any]]:  # noqa: ANN401 (a group of options)
    """Yield the fields of a group with their hints, but for groups that commands of its kind do not take."""
    hints = get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        if not any(map(is_dataclass, get_args(hints[item.name]))):
            yield item, hints[item.name]


def _parameters(name: str, hint: Any, value: Any) -> list[inspect.Parameter]:  # noqa: ANN401
    """Return what typer makes options of: of a group all that is in it, and in groups within."""
    if not is_dataclass(hint):
        return [_parameter(name, hint, value)]
    return [one for item, kind in _inside(hint) for one in _parameters(item.name, kind, item)]


def _built(name: str, hint: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401
    """Return the value of a parameter, a group of what was given for its options."""
    if not is_dataclass(hint):
        return values[name]
    kind: Any = hint
    return kind(**{item.name: _built(item.name, inner, values) for item, inner in _inside(hint)})


def _parameter(name: str, hint: Any, value: Any) -> inspect.Parameter:  # noqa: ANN401
    """Return what typer makes an option of; `value` is its field, or its default where it is none."""
    default = value.default if isinstance(value, Field) else value
    if isinstance(value, Field) and value.metadata:
        usual = f"--{name.replace('_', '-')}"
        if hint in (bool, bool | None) and default is not False:
            usual += f"/--no-{usual[2:]}"
        message = dict(value.metadata["typer"])
        if hint in (int, int | None):
            message["metavar"] = message["metavar"] or "N"
        flags = value.metadata["flag"].split() or [usual]
        hint = Annotated[hint, typer.Option(*flags, show_default=default is not ..., **message)]
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=empty if default in (MISSING, ..., empty) else default,
        annotation=hint,
    )


def given(options: Any) -> dict[str, Any]:  # noqa: ANN401 (any group of options)
    """Return what of a group of options was given, by flag."""
    values = ((item, getattr(options, item.name)) for item in fields(options))
    return {f"--{item.name.replace('_', '-')}": value for item, value in values if value != item.default}


def refuse(options: Any, why: str, fix: str = "") -> None:  # noqa: ANN401 (any group of options)
    """Raise if any option of a group is given where it has no effect; `why` is a clause."""
    for flag in given(options):
        raise no_effect(flag, why, fix)


def completing(module: str, names: str) -> Callable[[str], list[str]]:
    """Return what completes a name of those that a function of a module returns; it is loaded when it is asked."""

    def complete(incomplete: str) -> list[str]:
        known = getattr(import_module(f"forescale.{module}"), names)()
        return [name for name in known if name.startswith(incomplete)]

    return complete


complete_models = completing("catalogue.models", "model_names")
complete_clusters = completing("catalogue.clusters", "cluster_names")
complete_frameworks = completing("catalogue.frameworks", "framework_names")
complete_presets = completing("presets", "preset_names")
MODEL_HELP = "Catalogue name, config.json or its folder, or a framework's own file."
ModelArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_models, show_default=False),
]


def bounded(allowed: Interval, *, whole: bool = True) -> Callable[[typer.CallbackParam, Any], Any]:
    """Return the callback of an option whose number must be `allowed`."""

    def check(param: typer.CallbackParam, value: Any) -> Any:  # noqa: ANN401 (a number or None)
        return None if value is None else within(value, allowed, param.opts[0], whole=whole)

    return check


def positive(name: str, text: str | None, read: Callable[[str], float]) -> float | None:
    """Return the value of an option that `read` converts and that must be greater than 0; None if it is not given."""
    try:
        value = None if text is None else read(text)
    except SpecError as error:
        raise error.at(name) from error
    if value is not None and not value > 0.0:
        raise out_of_range(name, text, "greater than 0")
    return value


def memory_limit(text: str | None) -> float | None:
    """Return the bytes of --max-memory."""
    from forescale.units import parse

    value = positive("--max-memory", text, lambda text: parse(text, "byte"))
    if value is not None and (violation := outside(value, MEMORY)):
        raise out_of_range("--max-memory", text, f"{violation} bytes", "add a unit, such as 70GiB")
    return value


def sequence_length(text: str, flag: str = "--seq-len") -> int:
    """Return the tokens of a length; k and M are of 1,024, as lengths of context are named."""
    from forescale.units import length_of

    if (length := length_of(text)) is None:
        raise out_of_range(flag, text, "a whole number of tokens, such as 8192 or 128k")
    return length


output_option = partial(option, panel=OUTPUT)
_bench = partial(option, panel=COST)
_machine, _cost, _types = (partial(option, panel=panel) for panel in (MACHINE, COST, TYPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What it runs on."""

    cluster: str | None = _machine(
        "Catalogue name or a file. Required.", "NAME|FILE", complete=complete_clusters
    )
    hardware_config: Path | None = _machine("Primus's node and network, over --cluster's.", "FILE.yaml")
    devices: int | None = _machine("Devices.")
    nodes: int | None = _machine("Nodes, instead of devices.", flag="--nodes --target-nodes")
    sites: str | None = _types(
        "Sites that the devices are spread over, each site's link, and the time from one to the next.",
        "N,RATE[,TIME]",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
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
        check=bounded(PRICE, whole=False),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions(BenchOptions):
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


def _declared(item: Declared) -> tuple[str, Any, Any]:
    """Return an option of a layout as a field of a group: name, type and option."""
    text, metavar, group = item.option.help, item.option.metavar, item.option.group
    kind = str if item.option.sibling or item.option.unit not in ("", "length") else item.kind
    parse = partial(sequence_length, flag=item.flag) if item.option.unit == "length" else None
    interval = item.interval if item.option.is_checked and kind in (int, float) else None
    check = None if interval is None else bounded(interval, whole=kind is int)
    panel = group if group in (LAYOUT, RUN) else Rare(group)
    return item.name, kind | None, option(text, metavar, panel=panel, parse=parse, check=check)


if TYPE_CHECKING:
    RunOptions: TypeAlias = Any
    LayoutOptions: TypeAlias = Any
    OperationsOptions: TypeAlias = Any
else:
    RunOptions, LayoutOptions, OperationsOptions = (
        make_dataclass(name, map(_declared, options(kind)), frozen=True, slots=True, kw_only=True)
        for name, kind in (
            ("RunOptions", Workload),
            ("LayoutOptions", Layout),
            ("OperationsOptions", Operations),
        )
    )
"""Options by the names of their declarations; None if not given."""


class Asked(Struct, frozen=True, kw_only=True):
    """What is trained on what; subclasses also take how it is laid out, and what prices it."""

    model: ModelArgument = None
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
