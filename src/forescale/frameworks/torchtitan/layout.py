"""torchtitan's settings, of either release, as a layout and a workload in the words of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import lcm
from pathlib import Path
from typing import Any, Final

from forescale import wording
from forescale.errors import ReaderError, ScheduleError
from forescale.files import read_text
from forescale.frameworks.reading import explicit_fields
from forescale.frameworks.settings import Settings
from forescale.frameworks.torchtitan.keys import NOTHING
from forescale.limits import whole_of
from forescale.schedule.family import Request
from forescale.schedule.library import build_schedule, families
from forescale.schedule.torch_csv import from_csv
from forescale.spec.context import CONTEXT_KINDS, ContextKind
from forescale.spec.dispatchers import DISPATCHERS, Dispatcher
from forescale.spec.kinds import framework_names
from forescale.spec.layout import CrossEntropy, Kernels, Layout, Offload, Overlap, Recompute, Reshard
from forescale.spec.model import Model
from forescale.spec.workload import NARROW
from forescale.struct import Struct
from forescale.units import counted

SCHEDULES: Final[Mapping[str, str]] = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zbv",
    "DualPipeV": "dualpipev",
}
"""Names of torch.distributed.pipelining by ours (torch 2.13, get_schedule_class; letter case does not matter there)."""
SINGLE: Final = ("1F1B", "GPipe")
"""Schedules of one stage per rank; the others run two by default."""
PP: Final = "parallelism.pipeline_parallel"


def dealt(num_stages: int, num_layers: int, first: int = 1, last: int = 1) -> tuple[int, ...] | None:
    """Return the decoder layers of each stage in the order of the model; None where torchtitan refuses.

    Embedding and head count as `first` and `last` layers; the first stages take what does not divide. Source:
    torchtitan v0.2.2, distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part; 0.3.0 alike.
    """
    if num_stages == 1:
        return (num_layers,)
    item, more = divmod(num_layers + first + last, num_stages)
    if item == 0 or first > item or last > item:
        return None
    layers = [item + (stage < more) for stage in range(num_stages)]
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def read_stages(settings: Settings, num_layers: int, pp: int) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the layers of every virtual stage and the schedule; None is one stage, and no schedule."""
    schedule = _schedule(settings, settings.get(f"{PP}_schedule_csv"))
    first = settings.count(f"{PP}_first_stage_less_layers", 1)
    last = settings.count(f"{PP}_last_stage_less_layers", 1)
    per_stage = settings.count(f"{PP}_layers_per_stage")
    parts = settings.get("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return None, None
    single = schedule in SINGLE
    if parts is not None:
        layers = _named(settings, parts, num_layers)
    else:
        num_stages = pp * (1 if single else 2)
        if per_stage is not None:
            num_stages = -(-(num_layers + first + last) // max(per_stage, 1))
        result = dealt(num_stages, num_layers, first, last)
        if result is None:
            settings.refuse(
                f"{num_layers} layers do not fill {num_stages} pipeline stages with embedding and head"
            )
        layers = result
    _check_stages(settings, len(layers), pp, schedule)
    if schedule not in SCHEDULES:
        return layers, _named_table(settings, schedule, pp, len(layers) // pp)
    return layers, SCHEDULES[schedule]


def _named_table(settings: Settings, file: str, pp: int, vpp: int) -> str:
    """Return the schedule of the library whose order a table has."""
    key = settings.spell(f"{PP}_schedule_csv")
    try:
        table, _ = from_csv(read_text(Path(settings.where).parent / file))
    except (ReaderError, ScheduleError) as error:
        settings.refuse(f"{key} cannot be read: {error}")
    request = Request(pp=pp, num_microbatches=table.num_microbatches, vpp=vpp)
    named = next(
        (family.name for family in families() if _orders(family.name, request) == table.orders), None
    )
    if named is None:
        settings.refuse(wording.unknown_name(key, file, (), "name a schedule of the library with --schedule"))
    return named


def _orders(name: str, request: Request) -> tuple[Sequence[int], ...] | None:
    """Return the order of a schedule of the library; None where it cannot be built so."""
    try:
        return build_schedule(name, request, vpp=request.vpp).orders
    except ScheduleError:
        return None


def _schedule(settings: Settings, csv: object) -> str:
    """Return torch's name of the schedule, or the file that holds its order."""
    key = f"{PP}_schedule"
    text = settings.text(key, "1F1B")
    if csv:
        return str(csv)
    named = next((name for name in SCHEDULES if name.lower() == text.lower()), None)
    return named or settings.one_of(key, "1F1B", SCHEDULES)


def _named(settings: Settings, parts: object, num_layers: int) -> tuple[int, ...]:
    """Return how many layers each list of module names holds."""
    key = "parallelism.module_fqns_per_model_part"
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        settings.refuse_key(wording.wrong_type, key, parts, "a list of lists of module names")
    named = [[name for name in part if str(name).startswith("layers.")] for part in parts]
    texts = [f"layers.{number}" for number in range(num_layers)]
    if [name for part in named for name in part] != texts:
        settings.refuse(
            f"{settings.spell(key)} must name layers.0 to layers.{num_layers - 1}, each once and in order"
        )
    return tuple(len(part) for part in named)


def _check_stages(settings: Settings, num_stages: int, pp: int, schedule: str) -> None:
    """Refuse stages that the ranks, or the schedule, do not divide."""
    key = settings.spell(f"{PP}_degree")
    if num_stages % pp:
        settings.refuse(wording.not_divisible("the number of pipeline stages", num_stages, pp, key))
    chunks = num_stages // pp
    if schedule in SINGLE and chunks > 1:
        name = f"{settings.spell(f'{PP}_schedule')} {schedule}"
        settings.refuse(wording.wrong_count(name, "one stage per rank", "the layout", chunks))
    if schedule in SCHEDULES and schedule not in SINGLE and chunks == 1:
        settings.refuse(
            wording.wrong_count(
                f"{settings.spell(f'{PP}_schedule')} {schedule}",
                "two or more stages per rank",
                "the layout",
                1,
            )
        )


LEFT = ("software", "flash_attention", "allocator", "routing", "axis_order", "placement")
"""What no setting says."""
CP_KINDS: dict[str, ContextKind] = framework_names(CONTEXT_KINDS.values(), "torchtitan")
MODEL_COMPONENT, LOSS_COMPONENT = "model", "loss"
BACKENDS = ("model.moe_comm_backend", "parallelism.expert_parallel_comm_backend")
DISPATCHER_NAMES: dict[str, Dispatcher] = framework_names(DISPATCHERS.values(), "torchtitan")
RESHARD: dict[str, Reshard] = {"default": "default", "always": "always", "never": "never"}
TYPES = {"float32": "fp32", "bfloat16": "bf16"}
FP8_RECIPES = {"tensorwise": "current", "rowwise": "rowwise", "rowwise_with_gw_hp": "rowwise"}


class Read(Struct, frozen=True, kw_only=True):
    """What settings say of layout and workload."""

    strategy: Layout
    fields: dict[str, Any]
    """Explicit fields of the layout."""
    workload: dict[str, Any]
    compiled: bool
    """torch.compile is applied to the model."""


def read_layout(settings: Settings, model: Model, num_devices: int | None, *, python: bool) -> Read:
    """Return the layout on `num_devices`; if None, on the fewest that it can run on.

    `python` is of the releases with job configurations in Python, 0.3 and later.
    """
    compiled = _compiles(settings, MODEL_COMPONENT)
    layout, schedule = _strategy(settings, model, num_devices, compiled=compiled, python=python)
    types = _precision(settings, layout, python=python)
    parts = explicit_fields(
        layout,
        left=LEFT if python else (*LEFT, "graphs"),
        schedule=schedule,
        tables={
            "overlap": ("tensor", "expert"),
            "kernels": ("cross_entropy", "deterministic", *["narrow_experts"] * (types["compute"] in NARROW)),
        },
    )
    batch = _batch(settings, layout.dp, layout.pp)[1]
    seq_len = _seq_len(settings)
    workload = {"global_batch_size": batch, "seq_len": seq_len, "precision": types}
    if (steps := settings.count("training.steps")) is not None:
        workload["tokens"] = float(steps * batch * seq_len)
    return Read(strategy=layout, fields=parts, workload=workload, compiled=compiled)


def _strategy(
    settings: Settings, model: Model, num_devices: int | None, *, compiled: bool, python: bool
) -> tuple[Layout, str | None]:
    axis = "parallelism.{}_parallel_degree".format
    tp, cp, pp = (settings.degree(axis(name)) for name in ("tensor", "context", "pipeline"))
    ep, etp = _experts(settings, model, tp)
    replicate, shard = _data_parallel(settings, num_devices, tp=tp, cp=cp, pp=pp, folded=ep * etp)
    layers, schedule = read_stages(settings, model.num_layers, pp)
    layout = Layout(
        tp=tp,
        sp=settings.flag("parallelism.enable_sequence_parallel", default=True),
        cp=cp,
        cp_kind=settings.choice("parallelism.context_parallel_rotate_method", "allgather", CP_KINDS),
        cp_balanced=settings.get("parallelism.context_parallel_load_balancer") != NOTHING,
        ep=ep,
        etp=etp,
        pp=pp,
        vpp=1 if layers is None else len(layers) // pp,
        dp_replicate=replicate,
        dp_shard=shard,
        zero=3 if shard * cp > 1 else 0,
        micro_batch_size=_batch(settings, replicate * shard, pp)[0],
        stage_layers=layers,
        recompute=_recompute(settings, layers or (model.num_layers,), pp, compiled=compiled, python=python),
        reshard=settings.choice("parallelism.fsdp_reshard_after_forward", "default", RESHARD),
        overlap=Overlap(
            tensor=_async_tensor(settings, compiled=compiled), expert=_overlaps(settings, schedule)
        ),
        kernels=Kernels(
            cross_entropy=_loss(settings, tp),
            deterministic=settings.flag("debug.deterministic"),
            narrow_experts=any("group" in name.lower() for name in settings.words("model.converters")),
        ),
        dispatcher=settings.choice(BACKENDS[BACKENDS[0] not in settings], "standard", DISPATCHER_NAMES),
        offload=Offload(parameters=settings.flag("training.enable_cpu_offload")),
        graphs=_graphs(settings, pp, python=python),
    )
    return layout, schedule


def _experts(settings: Settings, model: Model, tp: int) -> tuple[int, int]:
    """Return ep and etp; torchtitan ignores both where there are no experts, and etp without ep (0.2.2)."""
    ep = settings.degree("parallelism.expert_parallel_degree")
    etp = settings.degree("parallelism.expert_tensor_parallel_degree")
    if not model.is_moe:
        if ep > 1:
            settings.note(
                f"{settings.spell('parallelism.expert_parallel_degree')} {ep} does nothing: no experts"
            )
        return 1, 1
    if ep == 1:
        return 1, tp
    if etp not in (1, tp):
        key = settings.spell("parallelism.expert_tensor_parallel_degree")
        settings.refuse(wording.out_of_range(key, etp, f"1 or that of tensor parallelism, {tp}"))
    return ep, etp


def _data_parallel(
    settings: Settings, num_devices: int | None, *, tp: int, cp: int, pp: int, folded: int
) -> tuple[int, int]:
    """Return replicas and shards; -1 shards over the devices that are left."""
    key = "parallelism.data_parallel_shard_degree"
    replicate = settings.degree("parallelism.data_parallel_replicate_degree")
    value = settings.get(key)
    inner = replicate * cp * tp * pp
    if value in (None, -1, "-1"):
        if num_devices is None:
            return replicate, lcm(cp * tp, folded) // (cp * tp)
        shard = num_devices // inner
    else:
        shard = settings.degree(key)
    if num_devices is not None and (shard == 0 or shard * inner != num_devices):
        shards = f"{settings.spell(key)} {shard}, " if value not in (None, -1, "-1") else ""
        settings.refuse(
            f"{counted(num_devices, 'device')} cannot be laid out: {shards}data_parallel_replicate_degree {replicate}, "
            f"context {cp}, tensor {tp} and pipeline parallel {pp} take "
            f"{'a multiple of ' if not shards else ''}{inner * (shard if shards else 1)}"
        )
    if shard * cp * tp % folded:
        settings.refuse_key(
            wording.not_a_factor,
            "parallelism.expert_parallel_degree",
            folded,
            shard * cp * tp,
            "shards x context x tensor parallel",
        )
    return replicate, shard


def _batch(settings: Settings, dp: int, pp: int) -> tuple[int, int]:
    """Return sequences of a micro-batch and of a step.

    Up to 0.3.0 local_batch_size is what one rank takes before its gradients add up, cut into micro-batches where there
    is a pipeline; later releases count the tokens of one micro-batch.
    """
    if (
        "training.num_tokens_per_microbatch_per_dp_rank" in settings
        or "training.max_context_length" in settings
    ):
        return _batch_of_tokens(settings, dp, pp)
    local = settings.size("training.local_batch_size", 8)
    piece = settings.size("parallelism.pipeline_parallel_microbatch_size", 1)
    if pp > 1 and local % piece:
        name = settings.spell("training.local_batch_size")
        settings.refuse(wording.not_divisible(name, local, piece, "the micro-batch"))
    batch = _step(settings, "training.global_batch_size", 1) or local * dp
    if batch % (local * dp):
        terms = f"{local} x {counted(dp, 'data-parallel rank')}"
        settings.refuse_key(wording.not_divisible, "training.global_batch_size", batch, local * dp, terms)
    _flushes(settings, batch // (local * dp), pp)
    return piece if pp > 1 else local, batch


def _batch_of_tokens(settings: Settings, dp: int, pp: int) -> tuple[int, int]:
    seq, key = _seq_len(settings), "training.num_tokens_per_microbatch_per_dp_rank"
    tokens = settings.size(key, 16384)
    if tokens % seq:
        settings.refuse_key(wording.not_divisible, key, tokens, seq, "training.max_context_length")
    pieces = settings.size("parallelism.num_pp_microbatches", 1) if pp > 1 else 1
    item = tokens // seq * pieces * dp
    batch = _step(settings, "training.num_tokens_per_train_step", seq) or item
    if batch % item:
        settings.refuse_key(
            wording.not_divisible,
            "training.num_tokens_per_train_step",
            batch * seq,
            item * seq,
            f"{tokens} x {pieces} x {counted(dp, 'data-parallel rank')}",
        )
    _flushes(settings, batch // item, pp)
    return tokens // seq, batch


def _step(settings: Settings, key: str, seq: int) -> int | None:
    """Return the sequences of a step; None where they follow from the rest (-1)."""
    if settings.get(key) in (None, -1):
        return None
    whole = settings.size(key)
    if whole % seq:
        settings.refuse_key(wording.not_divisible, key, whole, seq, "training.max_context_length")
    return whole // seq


def _flushes(settings: Settings, times: int, pp: int) -> None:
    if pp > 1 and times > 1:
        settings.note(
            f"not expressed: the pipeline fills and drains {times} times a step, as gradients add up over as many "
            "local batches; projected as once"
        )


def _seq_len(settings: Settings) -> int:
    key = "training.max_context_length"
    return settings.size(key if key in settings else "training.seq_len", 2048)


def _recompute(
    settings: Settings, layers: tuple[int, ...], pp: int, *, compiled: bool, python: bool
) -> Recompute:
    """Return what is recomputed; selective "2" is every second layer that a rank wraps, whole (0.2)."""
    mode = settings.one_of("activation_checkpoint.mode", "selective", MODES)
    early = settings.flag("activation_checkpoint.early_stop")
    if mode == "none":
        return Recompute()
    if mode == "full":
        return Recompute(granularity="full", stops_early=early)
    option = "op" if python else settings.text("activation_checkpoint.selective_ac_option", "2")
    if mode == "memory_budget":
        settings.note(
            "not expressed: recompute that the compiler chooses within a budget; taken as per operator"
        )
    every = whole_of(option)
    if mode == "memory_budget" or option == "op":
        return Recompute(granularity="policy", policy="torch_per_op_compiled" if compiled else "torch_per_op")
    if not every:
        key = settings.spell("activation_checkpoint.selective_ac_option")
        settings.refuse(wording.wrong_type(key, option, "op or a whole number of 1 or more"))
    listed = every_layer(every, layers, pp)
    if len(listed) == sum(layers):
        return Recompute(granularity="full", stops_early=early)
    return Recompute(granularity="full", layer_ids=listed, stops_early=early) if listed else Recompute()


MODES = ("none", "selective", "full", "memory_budget")


def every_layer(every: int, layers: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Return the layers that are recomputed: each rank counts those of its stages, one stage after the other."""
    starts = [sum(layers[:stage]) for stage in range(len(layers))]
    result = []
    for rank in range(pp):
        local = [
            starts[stage] + number
            for stage in range(rank, len(layers), pp)
            for number in range(layers[stage])
        ]
        result += local[every - 1 :: every]
    return tuple(sorted(result))


def _loss(settings: Settings, tp: int) -> CrossEntropy:
    """Return how the loss is made: in chunks with the head (0.3), compiled, or step by step."""
    if "ChunkedLossWrapper" in str(settings.get("loss")):
        return "fused_linear"
    if _compiles(settings, LOSS_COMPONENT):
        return "compiled"
    split = tp > 1 and not settings.flag("parallelism.disable_loss_parallel")
    return "loss_parallel" if split else "eager"


def _compiles(settings: Settings, component: str) -> bool:
    """Return whether the model or the loss is compiled."""
    if not settings.flag("compile.enable"):
        return False
    key, parts = "compile.components", (MODEL_COMPONENT, LOSS_COMPONENT)
    value = settings.get(key)
    if isinstance(value, list) and not {str(part) for part in value} <= {*parts}:
        settings.refuse_key(wording.not_one_of, key, value, parts)
    return key not in settings or component in settings.words(key)


def _async_tensor(settings: Settings, *, compiled: bool) -> bool:
    old, new = "parallelism.enable_async_tensor_parallel", "compile.enable_async_tensor_parallel"
    flag = settings.flag(old) or settings.flag(new)
    if flag and not compiled:
        name = "compile.enable with model"
        settings.refuse(wording.required_with(name, settings.spell(new if new in settings else old)))
    return flag


def _overlaps(settings: Settings, schedule: str | None) -> bool:
    """Return whether experts' messages run behind other work: in DualPipeV, unless told otherwise (0.2)."""
    key = "parallelism.pipeline_parallel_expert_parallel_overlap"
    return schedule == "dualpipev" and settings.flag(key, default=key in settings)


def _graphs(settings: Settings, pp: int, *, python: bool) -> Any:  # noqa: ANN401
    """Return which launches are captured: 0.3 captures forward and backward unless told not to."""
    if not python or settings.flag("training.disable_cuda_graphs"):
        return "none"
    if pp > 1:
        fix = "set training.disable_cuda_graphs"
        settings.refuse(wording.conflicts(["CUDA graphs", "a pipeline"], fix=fix))
    return "full"


def _precision(settings: Settings, layout: Layout, *, python: bool) -> dict[str, Any]:
    """Return the types; without FSDP, 0.2 computes in fp32 wherever there is tensor parallelism or a pipeline."""
    compute = settings.choice("training.mixed_precision_param", "bfloat16", TYPES)
    whole = settings.one_of("training.dtype", "float32", TYPES)
    settings.get("training.mixed_precision_reduce")
    alone = not python and layout.zero == 0 and (layout.tp > 1 or layout.pp > 1)
    if whole == "bfloat16":
        narrow = {"parameters": "bf16", "gradients": "bf16", "master": "none", "moments": "bf16"}
        return {"compute": "bf16", **narrow, **_narrowed(settings)}
    if alone and compute == "bf16":
        settings.note(
            "without FSDP (shards or context parallelism) tensor and pipeline parallelism compute in fp32"
        )
        compute = "fp32"
    return {"compute": compute, **(_narrowed(settings) if compute == "bf16" else {})}


def _narrowed(settings: Settings) -> dict[str, Any]:
    """Return what converters make of the compute type."""
    names = [name.lower() for name in settings.words("model.converters") if "group" not in name.lower()]
    if any("nvfp4" in name for name in names):
        return {"compute": "nvfp4"}
    if any(name.endswith("mx") or "mxfp8" in name for name in names):
        return {"compute": "mxfp8"}
    if any("float8" in name for name in names):
        recipe = settings.choice("quantize.linear.float8.recipe_name", "tensorwise", FP8_RECIPES)
        if settings.get("quantize.linear.float8.recipe_name") == "rowwise_with_gw_hp":
            settings.note("products of weight gradients are projected in fp8, not in 16 bits")
        return {"compute": "fp8", "recipe": recipe}
    local = [name for name in names if not re.search("lora|group|converter", name)]
    if local:
        settings.note(
            f"not expressed: {settings.spell('model.converters')} {' '.join(local)} (code of one's own)"
        )
    return {}
