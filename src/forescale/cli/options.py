"""Groups of command-line options as dataclasses, and what makes them one command for typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

import typer
from annotated_types import Interval

from forescale.cli.help import Rare
from forescale.errors import SpecError
from forescale.files import place_of
from forescale.limits import within
from forescale.spec.strategy import Allocator, ContextKind, Dispatcher, RematPolicy, TensorKind
from forescale.spec.workload import ComputeType, OptimizerName, StorageType

F = TypeVar("F", bound=Callable[..., None])

LAYOUT, RUN, MACHINE, OUTPUT = "Layout", "Run", "Cluster", "Output"
COST, TYPES, GRID = Rare("Cost models"), Rare("Data types"), Rare("Context and SUMMA")
STAGES, REPLAY, EXPERTS = Rare("Stages"), Rare("Recompute"), Rare("Experts")
RANKS, HOST = Rare("Ranks and overlap"), Rare("Memory")


def grouped(function: F) -> F:
    """Let `function` take dataclasses of options: typer sees the fields of each."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = [
        flat
        for parameter in inspect.signature(function).parameters.values()
        for flat in _flat(parameter.replace(annotation=hints[parameter.name]), groups.get(parameter.name))
    ]

    @wraps(function)
    def call(**given: object) -> None:
        built = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        function(**given, **built)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call  # type: ignore[return-value]


def _flat(parameter: inspect.Parameter, group: Any) -> list[inspect.Parameter]:  # noqa: ANN401
    if group is None:
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def complete_models(incomplete: str) -> list[str]:
    """Return the catalogue models that start with what was typed."""
    from forescale.catalogue.models import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def complete_clusters(incomplete: str) -> list[str]:
    """Return the catalogue clusters that start with what was typed."""
    from forescale.catalogue.clusters import cluster_names

    return [name for name in cluster_names() if name.startswith(incomplete)]


def complete_frameworks(incomplete: str) -> list[str]:
    """Return the frameworks that start with what was typed."""
    from forescale.catalogue.frameworks import framework_names

    return [name for name in framework_names() if name.startswith(incomplete)]


def complete_presets(incomplete: str) -> list[str]:
    """Return the presets that start with what was typed."""
    from forescale.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


MODEL_HELP = "Catalogue name, Hugging Face config.json or folder, or a framework's own config file."
ModelArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_models, show_default=False),
]
MasterType: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8", "none"]
JsonFlag: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=OUTPUT)
]


def bounded(allowed: Interval, *, whole: bool = True) -> Callable[[typer.CallbackParam, Any], Any]:
    """Return the callback of an option whose number must be `allowed`."""

    def check(param: typer.CallbackParam, value: Any) -> Any:  # noqa: ANN401 (a number or None)
        return None if value is None else within(value, allowed, param.opts[0], whole=whole)

    return check


def memory_limit(text: str | None) -> float | None:
    """Return the bytes of --max-memory."""
    from forescale.units import parse

    value = None if text is None else parse(text, "byte")
    if value is not None and value <= 0:
        msg = f"--max-memory must be greater than 0, got {text}"
        raise SpecError(msg)
    return value


def _degree(name: str, text: str, panel: str = LAYOUT) -> Any:  # noqa: ANN401 (as typer.Option)
    return typer.Option(name, metavar="N", help=text, rich_help_panel=panel)


def _layout(name: str, text: str, panel: str = LAYOUT, **more: Any) -> Any:  # noqa: ANN401
    return typer.Option(name, help=text, rich_help_panel=panel, **more)


def _cost(name: str, text: str, metavar: str) -> Any:  # noqa: ANN401
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel=COST)


def _run(name: str, text: str, panel: str = RUN, **more: Any) -> Any:  # noqa: ANN401
    return typer.Option(name, help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """A file instead of flags, and single values over both."""

    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Plan file (TOML); flags override it.")
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A framework's own file of layout and batch, beside MODEL (DeepSpeed's JSON).",
        ),
    ] = None
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override one value, such as strategy.tp=4. Repeatable."),
    ] = None
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            metavar="NAME[@RELEASE]",
            help="What trains: its kernels, types and overlap where nothing else is said.",
            autocompletion=complete_frameworks,
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="Modelling preset: default, or a published account of memory and time.",
            autocompletion=complete_presets,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What it runs on."""

    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="NAME|FILE", help="Catalogue name or a file.", rich_help_panel=MACHINE,
            autocompletion=complete_clusters,
        ),
    ] = None  # fmt: skip
    hardware_config: Annotated[
        Path | None,
        typer.Option(
            "--hardware-config",
            metavar="FILE.yaml",
            help="Its node and network, as Primus writes them, over those of --cluster.",
            rich_help_panel=MACHINE,
        ),
    ] = None
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="N", help="Devices.", rich_help_panel=MACHINE)
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", help="Nodes, instead of devices.", rich_help_panel=MACHINE),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """What prices kernels and collectives."""

    compute: Annotated[
        Literal["auto", "roofline", "tile", "measured"] | None,
        typer.Option("--compute", help="Model of kernels; auto by default.", rich_help_panel=COST),
    ] = None
    device_clock_mhz: Annotated[
        float | None, _cost("--device-clock-mhz", "Clock to predict for; the device's own by default.", "MHZ")
    ] = None
    calibration: Annotated[
        Path | None,
        _cost("--calibration", "Your own fits, as `calibrate` wrote them.", "FILE.json"),
    ] = None
    measurements: Annotated[
        list[Path] | None,
        _cost("--measurements", "Timed kernels and collectives to look up. Repeatable.", "FILE"),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return what is given, as the section `[cost]` of a plan; files are found from anywhere."""
        calibration, measurements = self.calibration, self.measurements
        return {
            "compute": self.compute,
            "device_clock_mhz": self.device_clock_mhz,
            "calibration": None if calibration is None else str(place_of(calibration).absolute()),
            "measurements": None
            if measurements is None
            else [str(place_of(path).absolute()) for path in measurements],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is trained on: batch, tokens, optimizer, data types."""

    seq_len: Annotated[int | None, _run("--seq-len", "Tokens per sequence.", metavar="N")] = None
    global_batch_size: Annotated[
        int | None, _run("--global-batch-size", "Sequences per optimizer step.", metavar="N")
    ] = None
    tokens: Annotated[
        str | None, _run("--tokens", "Tokens of the whole run, such as 15T.", metavar="COUNT")
    ] = None
    optimizer: Annotated[OptimizerName | None, _run("--optimizer", "Optimizer.")] = None
    precision: Annotated[ComputeType | None, _run("--precision", "Type of the linear layers' products.")] = (
        None
    )
    fp8_recipe: Annotated[
        Literal["none", "delayed", "current", "blockwise", "mxfp8"] | None,
        _run("--fp8-recipe", "Scaling recipe of fp8.", TYPES),
    ] = None
    param_dtype: Annotated[StorageType | None, _run("--param-dtype", "Type of the weights.", TYPES)] = None
    grad_dtype: Annotated[
        StorageType | None, _run("--grad-dtype", "Type in which gradients are reduced.", TYPES)
    ] = None
    master_dtype: Annotated[MasterType | None, _run("--master-dtype", "Type of the master copy.", TYPES)] = (
        None
    )
    moment_dtype: Annotated[
        StorageType | None, _run("--moment-dtype", "Type of the optimizer's moments.", TYPES)
    ] = None
    activation_dtype: Annotated[
        StorageType | None, _run("--activation-dtype", "Type of activations.", TYPES)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """How it is laid out."""

    tp: Annotated[int | None, _degree("--tp", "Tensor parallel.")] = None
    tp_kind: Annotated[
        TensorKind | None,
        _layout("--tp-kind", "Tensor-parallel split: 1-D or SUMMA (a grid of tp x cp).", GRID),
    ] = None
    summa_panels: Annotated[
        int | None,
        _layout(
            "--summa-panels", "Panels of SUMMA per block, of the longer side of the grid.", GRID, metavar="N"
        ),
    ] = None
    sp: Annotated[bool | None, _layout("--sp/--no-sp", "Sequence parallel over tp.")] = None
    cp: Annotated[int | None, _degree("--cp", "Context parallel.")] = None
    cp_kind: Annotated[ContextKind | None, _layout("--cp-kind", "Context-parallel method.", GRID)] = None
    cp_inner: Annotated[
        int | None,
        _degree(
            "--cp-inner",
            "Neighbours that exchange heads (cp-kind hierarchical); those in a node unless given.",
            GRID,
        ),
    ] = None
    cp_balanced: Annotated[
        bool | None, _layout("--cp-balanced/--no-cp-balanced", "Causal parts of cp ranks in zig-zag.", GRID)
    ] = None
    ep: Annotated[int | None, _degree("--ep", "Expert parallel.")] = None
    etp: Annotated[int | None, _degree("--etp", "Tensor parallel of experts.")] = None
    pp: Annotated[int | None, _degree("--pp", "Pipeline parallel.")] = None
    vpp: Annotated[int | None, _degree("--vpp", "Model chunks per pipeline rank.")] = None
    schedule: Annotated[
        str | None,
        _layout(
            "--schedule",
            "Pipeline schedule, a name of `pipeline list`; by default 1F1B, interleaved where vpp > 1.",
            metavar="NAME",
        ),
    ] = None
    sequence_pieces: Annotated[
        int | None,
        _layout(
            "--sequence-pieces",
            "Pieces of a sequence, for schedules that cut them (seq1f1b).",
            STAGES,
            metavar="N",
        ),
    ] = None
    dp_replicate: Annotated[
        int | None, _degree("--dp-replicate", "Data parallel replicas; by default derived from --devices.")
    ] = None
    dp_shard: Annotated[
        int | None, _degree("--dp-shard", "Data parallel ranks that share states; by default derived.")
    ] = None
    zero: Annotated[
        int | None,
        _layout(
            "--zero",
            "States sharded over dp: 1 optimizer, 2 also gradients, 3 also weights.",
            metavar="0-3",
        ),
    ] = None
    reshard: Annotated[
        str | None,
        _layout(
            "--reshard",
            "Under zero 3: whether weights are sharded again after forward, or over how many neighbours.",
            RANKS,
            metavar="default|always|never|N",
        ),
    ] = None
    micro_batch_size: Annotated[
        int | None, _degree("--micro-batch-size", "Sequences per micro-batch and data-parallel rank.")
    ] = None
    recompute: Annotated[
        Literal["none", "selective", "full"] | None, _layout("--recompute", "Activations computed again.")
    ] = None
    recompute_modules: Annotated[
        str | None,
        _layout(
            "--recompute-modules", "Modules under selective, such as core_attn,mlp.", REPLAY, metavar="A,B"
        ),
    ] = None
    recompute_policy: Annotated[
        RematPolicy | None,
        _layout("--recompute-policy", "Named policy: what is kept, the rest is replayed.", REPLAY),
    ] = None
    recompute_layers: Annotated[
        int | None,
        _layout(
            "--recompute-layers", "Under full, the first layers of each virtual stage.", REPLAY, metavar="N"
        ),
    ] = None
    recompute_layer_ids: Annotated[
        str | None,
        _layout("--recompute-layer-ids", "Under full, these layers, numbered from 0.", REPLAY, metavar="N,N"),
    ] = None
    recompute_unit: Annotated[
        int | None,
        _layout("--recompute-unit", "Under full, layers that share one kept input.", REPLAY, metavar="N"),
    ] = None
    dispatcher: Annotated[
        Dispatcher | None, _layout("--dispatcher", "How tokens travel to experts.", EXPERTS)
    ] = None
    imbalance: Annotated[
        float | None,
        _layout(
            "--expert-imbalance",
            "Tokens of the fullest expert-parallel rank over the mean.",
            EXPERTS,
            metavar="F",
        ),
    ] = None
    capacity_factor: Annotated[
        float | None,
        _layout("--capacity-factor", "Tokens an expert takes at most, over the mean.", EXPERTS, metavar="F"),
    ] = None
    balance: Annotated[
        Literal["none", "aux_loss"] | None,
        _layout("--balance", "Loss that spreads tokens over experts.", EXPERTS),
    ] = None
    pad_to_capacity: Annotated[
        bool | None,
        _layout(
            "--pad-to-capacity/--no-pad-to-capacity", "Whether experts are sent their full capacity.", EXPERTS
        ),
    ] = None
    stage_layers: Annotated[
        str | None,
        _layout(
            "--stage-layers",
            "Layers of each pipeline rank or virtual stage, such as 16,15,15,15.",
            STAGES,
            metavar="N,N",
        ),
    ] = None
    axis_order: Annotated[
        str | None,
        _layout("--axis-order", "Axes from the closest ranks outwards.", RANKS, metavar="tp,cp,dp,pp"),
    ] = None
    placement: Annotated[
        str | None,
        _layout(
            "--placement",
            "Ranks of each axis inside each network tier from the innermost out, instead of --axis-order.",
            RANKS,
            metavar="tp=4,dp=2/pp=2",
        ),
    ] = None
    overlap: Annotated[
        str | None,
        _layout(
            "--overlap",
            "What runs beside compute: grad_reduce, param_gather, tensor, pipeline, expert, shared_experts, "
            "bubbles; or none.",
            RANKS,
            metavar="A,B",
        ),
    ] = None
    offload_activations: Annotated[
        str | None,
        _layout(
            "--offload-activations",
            "Layers of each stage whose saved activations go to host memory, or modules of all layers.",
            HOST,
            metavar="all|N|A,B",
        ),
    ] = None
    offload_optimizer: Annotated[
        float | None,
        _layout(
            "--offload-optimizer",
            "Share of the optimizer's states held and updated on the host.",
            HOST,
            metavar="0-1",
        ),
    ] = None
    offload_parameters: Annotated[
        bool | None,
        _layout(
            "--offload-parameters/--no-offload-parameters",
            "Under zero 3: shards of weights, gradients and states on the host.",
            HOST,
        ),
    ] = None
    allocator: Annotated[
        Allocator | None, _layout("--allocator", "How PyTorch's allocator takes memory.", HOST)
    ] = None
    flash_attention: Annotated[
        bool | None, _layout("--flash-attention/--no-flash-attention", "Fused attention.", HOST)
    ] = None
