"""Megatron's settings as a layout: degrees, sharding, recompute, overlap."""

from __future__ import annotations

from collections.abc import Collection
from math import lcm, prod
from typing import Any, Final, Literal, get_args

from msgspec.structs import replace

from forescale.errors import conflicts, not_a_factor, not_divisible, not_one_of, required_with, wrong_type
from forescale.frameworks.megatron.arguments import ALLOCATOR
from forescale.frameworks.megatron.pipeline import read_split
from forescale.frameworks.megatron.run import has_tower
from forescale.frameworks.plain import read_plain
from forescale.frameworks.reading import packaged
from forescale.frameworks.settings import Settings
from forescale.limits import whole_of
from forescale.spec.context import CONTEXT_KINDS, ContextKind
from forescale.spec.dispatchers import DISPATCHERS, Dispatcher
from forescale.spec.kinds import framework_names
from forescale.spec.layout import (
    DEFAULT_AXIS_ORDER,
    Allocator,
    CrossEntropy,
    Kernels,
    LaunchGraphs,
    Layout,
    Module,
    Offload,
    OffloadName,
    Overlap,
    Recompute,
    Routing,
)

CP_KINDS: dict[str, ContextKind] = framework_names(CONTEXT_KINDS.values(), "megatron")
FLEXIBLE: dict[str, Dispatcher] = framework_names(
    (kind for kind in DISPATCHERS.values() if kind.sends_once), "megatron"
)
"""Backends of the flexible dispatcher."""
LEVELS = 2
"""Levels of hierarchical context parallelism: an exchange of heads inside, a ring outside."""
MODULES: tuple[Module, ...] = get_args(Module)
WORDS = packaged("megatron", "words")
OFFLOADED: dict[str, tuple[OffloadName, ...]] = {
    name: tuple(kept) for name, kept in WORDS["offloaded"].items()
}
"""Modules of --offload-modules. The fused experts' products and their activation save what both save apart."""
FSDP_LEVELS = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
WEIGHTED_ACTIVATIONS = ("swiglu", "quick_geglu")
"""Gated activations of experts for which Megatron-Core has a kernel that takes the routing weight."""


def read_strategy(settings: Settings, *, num_layers: int, num_devices: int | None) -> Layout:
    """Return the layout on `num_devices`; if None, on the fewest that it can run on."""
    tp, cp = settings.degree("tensor_model_parallel_size"), settings.degree("context_parallel_size")
    pp, ep = settings.degree("pipeline_model_parallel_size"), settings.degree("expert_model_parallel_size")
    etp = settings.count("expert_tensor_parallel_size") or tp
    routed = _routed(settings, tp)
    if not routed:
        etp = 1
        if ep > 1:
            settings.refuse(required_with("experts", f"{settings.spell('expert_model_parallel_size')} {ep}"))
    split = read_split(settings, num_layers=num_layers, pp=pp)
    dp = _data_parallel(settings, num_devices, tp * cp, pp, ep * etp)
    zero, replicate = _sharding(settings, dp, pp, ep)
    _note_unexpressed(settings, replicate)
    return Layout(
        tp=tp,
        sp=settings.flag("sequence_parallel") and tp > 1,
        cp=cp,
        cp_kind=_context_kind(settings, cp),
        cp_inner=_inner_context(settings, cp),
        ep=ep,
        etp=etp,
        pp=pp,
        vpp=split.vpp,
        microbatch_group=split.group,
        dp_replicate=replicate,
        dp_shard=dp // replicate,
        zero=zero,
        micro_batch_size=settings.size("micro_batch_size"),
        recompute=_recompute(settings),
        offload=_offload(settings),
        stage_layers=split.stage_layers,
        axis_order=("tp", "cp", "pp", "dp") if settings.flag("use_tp_pp_dp_mapping") else DEFAULT_AXIS_ORDER,
        overlap=_overlap(settings, tp=tp, vpp=split.vpp),
        flash_attention=_flash(settings),
        kernels=Kernels(**_kernels(settings)),
        graphs=read_graphs(settings),
        allocator=_allocator(settings),
        dispatcher=_dispatcher(settings) if routed else "all_to_all",
        routing=_routing(settings) if routed else Routing(),
        **read_plain(Layout, settings, "megatron"),
    )


def _allocator(settings: Settings) -> Allocator:
    """Return how PyTorch's allocator takes memory, as the environment says."""
    parts = settings.text(ALLOCATOR[0]).lower()
    return "expandable_segments" if "expandable_segments:true" in parts else "segments"


def _routed(settings: Settings, tp: int) -> bool:
    """Return whether there are experts; refuses them under tensor parallelism without sequence parallelism."""
    routed = bool(settings.count("num_experts"))
    if routed and tp > 1 and not settings.flag("sequence_parallel") and "zero_stage" not in settings:
        name = settings.spell("sequence_parallel")
        settings.refuse(required_with(name, f"experts under tensor parallelism {tp}", fix="give it, or --sp"))
    return routed


def _dispatcher(settings: Settings) -> Dispatcher:
    """Return how tokens travel: the flexible dispatcher has DeepEP behind it, or kernels like it."""
    kind = settings.choice("moe_token_dispatcher_type", "allgather", TOKEN_DISPATCHERS)
    backend = settings.text("moe_flex_dispatcher_backend", "deepep")
    once = settings.flag("moe_enable_deepep") or settings.flag("use_turbo_deepep")
    if kind == "flex" and backend in FLEXIBLE:
        return FLEXIBLE[backend]
    if kind == "flex":
        settings.note(
            f"tokens travel by {backend}; taken as DeepEP, which sends them once to each device, too"
        )
    return "deepep" if kind == "flex" or once else "all_to_all"


TOKEN_DISPATCHERS = {**framework_names([DISPATCHERS["all_to_all"]], "megatron"), "flex": "flex"}


COUNTING = frozenset(("aux_loss", "seq_aux_loss", "global_aux_loss"))
"""Losses of Megatron-Core that count tokens per expert over several ranks."""


def _balance(settings: Settings) -> Literal["none", "aux_loss"]:
    kinds = settings.words("moe_router_load_balancing_type") or ("aux_loss",)
    weighs = (settings.number("moe_aux_loss_coeff") or 0.0) > 0.0
    return "aux_loss" if weighs and COUNTING.intersection(kinds) else "none"


def _routing(settings: Settings) -> Routing:
    """Return the capacity of experts; Megatron-LM takes a negative factor as none."""
    balance = _balance(settings)
    factor = settings.number("moe_expert_capacity_factor")
    padded = settings.flag("moe_pad_expert_input_to_capacity")
    if factor is None or factor <= 0:
        if padded:
            key = "moe_expert_capacity_factor"
            settings.refuse_key(required_with, key, settings.spell("moe_pad_expert_input_to_capacity"))
        return Routing(balance=balance)
    return Routing(capacity_factor=factor, pad_to_capacity=padded, balance=balance)


def _offload(settings: Settings) -> Offload:
    """Return what goes to the host: first layers' activations, a fraction of the optimizer."""
    layers = settings.count("cpu_offloading_num_layers", 0)
    share = settings.number("optimizer_offload_fraction")
    copies = settings.flag("overlap_cpu_optimizer_d2h_h2d")
    offloads = settings.flag("optimizer_cpu_offload")
    modules, module_share = _offload_modules(settings)
    if modules and layers:
        name = [
            settings.spell("fine_grained_activation_offloading"),
            settings.spell("cpu_offloading_num_layers"),
        ]
        settings.refuse(conflicts(name))
    return Offload(
        activation_layers=layers,
        modules=modules,
        module_share=module_share,
        optimizer=(1.0 if share is None else share) if offloads else 0.0,
        master=not offloads or settings.flag("use_precision_aware_optimizer"),
        overlap=copies or not offloads,
    )


def _offload_modules(settings: Settings) -> tuple[tuple[OffloadName, ...], float]:
    """Return the modules whose saved tensors go to the host, and of how many of the layers."""
    named, share = settings.words("offload_modules"), settings.number("activation_offload_fraction")
    if not settings.flag("fine_grained_activation_offloading"):
        return (), 1.0
    unknown = [name for name in named if name not in OFFLOADED]
    if unknown:
        settings.refuse_key(not_one_of, "offload_modules", unknown[0], OFFLOADED)
    modules = {item for name in named for item in OFFLOADED[name]}
    return tuple(name for name in get_args(OffloadName) if name in modules), 1.0 if share is None else share


def fewest_replicas(inner: int, expert: int, instances: int) -> int:
    """Return the least data parallel over `inner` (tp x cp) devices a stage, with `expert` (ep x etp) ranks of experts.

    The optimizer's instances divide the data parallel ranks of experts as well.
    """
    return lcm(lcm(inner, expert * instances) // inner, instances)


def _data_parallel(settings: Settings, num_devices: int | None, inner: int, pp: int, expert: int) -> int:
    """Return data parallel over `inner` (tp x cp) devices a stage; experts need a multiple of ep x etp."""
    if num_devices is None:
        return fewest_replicas(inner, expert, settings.degree("num_distributed_optimizer_instances"))
    least = lcm(inner, expert) * pp
    for degrees, size in (("tp x cp", inner * pp), ("ep x etp", expert * pp)):
        if num_devices % size:
            fix = f"give --devices {-(-num_devices // least) * least}, or other degrees"
            settings.refuse(not_divisible("the number of devices", num_devices, size, f"{degrees} x pp", fix))
    return num_devices // (inner * pp)


def dealt_out(settings: Settings) -> bool:
    """Whether the optimizer deals the states of whole matrices to data-parallel ranks.

    Source: Megatron-LM core 0.16 to 0.19, layer_wise_optimizer.py; training.py (wrap_model_chunks_with_ddp) since 0.18.
    """
    return str(settings.get("optimizer")).startswith("dist_")


def _note_unexpressed(settings: Settings, replicate: int) -> None:
    """Say which settings change memory or time in ways that a layout cannot say."""
    outer = "outer_dp_sharding_strategy"
    if settings.text(outer, "no_shard") != "no_shard" and replicate > 1:
        settings.note(
            f"not expressed: {settings.spell(outer)} (optimizer states sharded over replicas as well)"
        )
    stashed = {"moe_expert_rank_capacity_factor"} if settings.flag("moe_paged_stash") else set()
    for key, what in WORDS["not_expressed"].items():
        if settings.get(key) not in (None, False, "false", 0, "0", "", []) and key not in stashed:
            settings.note(f"not expressed: {settings.spell(key)} ({what})")


def _sharding(settings: Settings, dp: int, pp: int, ep: int) -> tuple[int, int]:
    """Return the ZeRO level and how many data-parallel replicas hold whole states."""
    if (stage := settings.count("zero_stage")) is not None:
        return stage, 1
    distributed = settings.flag("use_distributed_optimizer")
    instances = settings.degree("num_distributed_optimizer_instances")
    replicas = settings.degree("data_parallel_replicate_degree")
    if settings.flag("overlap_param_gather"):
        _check_param_gather(settings, distributed=distributed)
    if settings.flag("use_torch_fsdp2"):
        _check_torch_fsdp2(settings, pp=pp, ep=ep, distributed=distributed)
        return 3, _replicas(settings, replicas, dp, "data_parallel_replicate_degree")
    if settings.flag("use_megatron_fsdp") or settings.flag("use_custom_fsdp"):
        zero = settings.choice("data_parallel_sharding_strategy", "optim_grads_params", FSDP_LEVELS)
        return zero, _replicas(settings, instances, dp, "num_distributed_optimizer_instances") if zero else 1
    settings.get("data_parallel_sharding_strategy")
    if dealt_out(settings) and not distributed:
        settings.note(
            f"{settings.spell('optimizer')} deals whole matrices to ranks; they are taken as even shares, and "
            "gradients as scattered, as since core 0.18: before, and with --no-use-layer-wise-param-layout, ranks sum "
            "them whole, which sends half as much again"
        )
    if distributed or dealt_out(settings):
        return 1, _replicas(settings, instances, dp, "num_distributed_optimizer_instances")
    return 0, 1


def _replicas(settings: Settings, count: int, dp: int, key: str) -> int:
    if dp % count:
        settings.refuse_key(not_a_factor, key, count, dp, "the data parallel degree")
    return count


def _check_param_gather(settings: Settings, *, distributed: bool) -> None:
    sharded = distributed or settings.flag("use_megatron_fsdp") or settings.flag("use_custom_fsdp")
    name = settings.spell("overlap_param_gather")
    if not sharded and not dealt_out(settings):
        settings.refuse(
            required_with(f"{settings.spell('use_distributed_optimizer')} or Megatron's FSDP", name)
        )


def check_param_gather(settings: Settings) -> None:
    """Refuse gathers of parameters that overlap where sums of gradients do not, as Megatron-LM's arguments do."""
    if settings.flag("overlap_param_gather") and not settings.flag("overlap_grad_reduce"):
        settings.refuse_key(required_with, "overlap_grad_reduce", settings.spell("overlap_param_gather"))


def _check_torch_fsdp2(settings: Settings, *, pp: int, ep: int, distributed: bool) -> None:
    against = {
        "pipeline parallel": pp > 1,
        "expert parallel": ep > 1,
        "the distributed optimizer": distributed,
        "fp16": settings.flag("fp16"),
        "tied embeddings": not settings.flag("untie_embeddings_and_output_weights"),
    }
    clash = next((what for what, present in against.items() if present), None)
    if clash:
        settings.refuse(conflicts([settings.spell("use_torch_fsdp2"), clash]))


def _context_kind(settings: Settings, cp: int) -> ContextKind:
    parts = settings.words("cp_comm_type")
    unknown = [word for word in parts if word not in CP_KINDS]
    if unknown:
        settings.refuse_key(not_one_of, "cp_comm_type", unknown[0], CP_KINDS)
    kinds = {CP_KINDS[word] for word in parts} or {"ring"}
    if cp > 1 and len(kinds) > 1:
        settings.note("context parallel mixes kinds of exchange; it is taken as a ring")
        return "ring"
    return CP_KINDS[parts[0]] if parts else "ring"


def _inner_context(settings: Settings, cp: int) -> int | None:
    """Return the ranks that exchange heads: the first of two sizes, whose product is that of the group."""
    sizes = settings.words("hierarchical_context_parallel_sizes")
    if "a2a+p2p" not in settings.words("cp_comm_type") or cp == 1:
        return Layout().cp_inner
    numbers = [whole_of(size) or 0 for size in sizes]
    if len(numbers) != LEVELS or prod(numbers) != cp:
        settings.refuse(
            f"{settings.spell('cp_comm_type')} a2a+p2p needs {settings.spell('hierarchical_context_parallel_sizes')} "
            f"with two sizes whose product is {cp}, such as {cp} 1; got {' '.join(sizes) or 'none'}"
        )
    return numbers[0]


def _recompute(settings: Settings) -> Recompute:
    """Return what is recomputed, of a tower only where the program is told so."""
    towers = settings.flag("recompute_vision") if has_tower(settings) else None
    return replace(_recompute_of_text(settings), towers=towers)


def _recompute_of_text(settings: Settings) -> Recompute:
    granularity = settings.get("recompute_granularity")
    if granularity is None and (
        settings.flag("recompute_activations") or settings.flag("moe_layer_recompute")
    ):
        granularity = "selective"
    method = settings.get("recompute_method")
    layers = settings.count("recompute_num_layers")
    if "activations_checkpoint_method" in settings:  # the only way before 2022
        granularity, method = "full", settings.get("activations_checkpoint_method")
        layers = settings.count("activations_checkpoint_num_layers", 1)
    if granularity is None:
        return Recompute()
    if granularity == "selective":
        if method is not None:
            settings.refuse(required_with("full recompute", settings.spell("recompute_method")))
        return _selective(settings)
    if granularity != "full":
        settings.refuse_key(not_one_of, "recompute_granularity", granularity, ("full", "selective"))
    listed = settings.words("recompute_layer_ids")
    if listed:
        return _listed(settings, listed)
    if method is None or layers is None:
        missing = "recompute_method" if method is None else "recompute_num_layers"
        settings.refuse_key(required_with, missing, "full recompute")
    if method == "block":
        return Recompute(granularity="full", num_layers=layers) if layers else Recompute()
    if method != "uniform":
        settings.refuse_key(not_one_of, "recompute_method", method, ("uniform", "block"))
    return Recompute(granularity="full", unit=max(layers, 1))


def _listed(settings: Settings, names: tuple[str, ...]) -> Recompute:
    """Return the recompute of layers listed by their numbers (Primus)."""
    wrong = next((word for word in names if whole_of(word) is None), None)
    if wrong is not None:
        settings.refuse_key(wrong_type, "recompute_layer_ids", wrong, "numbers of layers")
    return Recompute(granularity="full", layer_ids=tuple(dict.fromkeys(int(word) for word in names)))


def _selective(settings: Settings) -> Recompute:
    parts = settings.words("recompute_modules") or ("core_attn",)
    if settings.flag("moe_layer_recompute"):
        parts = (*parts, "moe")
    for word in parts:
        if word not in MODULES:
            settings.note(f"not expressed: recompute of {word}")
    modules = tuple(word for word in dict.fromkeys(parts) if word in MODULES)
    return Recompute(granularity="selective", modules=modules) if modules else Recompute()


def _overlap(settings: Settings, *, tp: int, vpp: int) -> Overlap:
    tensor = settings.flag("tp_comm_overlap")
    if tensor and tp > 1 and not settings.flag("sequence_parallel"):
        settings.refuse_key(required_with, "sequence_parallel", settings.spell("tp_comm_overlap"))
    return Overlap(
        grad_reduce=settings.flag("overlap_grad_reduce"),
        param_gather=settings.flag("overlap_param_gather"),
        tensor=tensor and tp > 1,
        pipeline=settings.flag("overlap_p2p_comm", default=True) and vpp > 1,
        expert=settings.flag("overlap_moe_expert_parallel_comm"),
        shared_experts=settings.flag("moe_shared_expert_overlap"),
    )


FLASH_WIDTH = 8
"""Heads must be a multiple as wide for the fused kernels of attention (Transformer Engine, get_attention_backend)."""


BACKENDS = ("flash", "fused", "unfused", "local", "auto")
"""Names of attention's kernels (Megatron-LM core/transformer/enums.py, AttnBackend)."""


def _flash(settings: Settings) -> bool:
    heads = settings.count("num_attention_heads", 1)
    width = settings.count("kv_channels") or settings.count("hidden_size", 0) // max(heads, 1)
    if width % FLASH_WIDTH and not settings.flag("multi_latent_attention"):
        settings.note(f"heads {width} wide are not a multiple of {FLASH_WIDTH}: attention is not fused")
        return False
    text = settings.text("attention_backend", "auto")
    backend = text.rpartition(".")[2]
    if backend not in BACKENDS:
        spelt = settings.spell("attention_backend")
        settings.refuse(not_one_of(spelt, text, BACKENDS))
    local = settings.get("transformer_impl") == "local" and not settings.flag("use_flash_attn")
    return backend not in ("unfused", "local") and not (local and backend == "auto")


def left_fields(settings: Settings, layout: Layout) -> tuple[str, ...]:
    """Return the fields of a layout that settings leave to the framework.

    The release of the libraries decides whether attention is fused in deterministic mode, unless its kernel is named.
    """
    named = settings.text("attention_backend", "auto").rpartition(".")[2] != "auto"
    open_attention = layout.kernels.deterministic and layout.flash_attention and not named
    return (
        "software",
        *["allocator"] * (ALLOCATOR[0] not in settings),
        *["flash_attention"] * open_attention,
    )


def _kernels(settings: Settings) -> dict[str, Any]:
    """Return what settings say of kernels; Megatron-LM drops out a tenth of attention and hidden states unless told."""
    implementation = settings.one_of("cross_entropy_fusion_impl", "native", ("native", "te"))
    loss: CrossEntropy = "vocab_parallel"
    if settings.flag("cross_entropy_loss_fusion"):
        loss = "fused" if implementation == "te" else "native"
    dropouts = [_rate(settings, f"{place}_dropout") for place in ("attention", "hidden")]
    return {
        "cross_entropy": loss,
        "weighted_activation": any(settings.flag(key) for key in WEIGHTED_ACTIVATIONS),
        "weighted_ungated": settings.flag("use_fused_weighted_squared_relu"),
        "wide_router": settings.text("moe_router_dtype", "") == "fp32",
        "fused_router": settings.flag("moe_router_fusion", default=True),
        "gradient_sum": "in_product"
        if settings.flag("gradient_accumulation_fusion", default=True)
        else "after_product",
        "deferred_head_gradients": _deferred_head_gradients(settings),
        "frees_gradients": settings.flag("use_torch_fsdp2"),
        "fused_rotary": settings.flag("apply_rope_fusion", default=True)
        and settings.flag("enable_experimental"),
        "grouped_experts": settings.flag("moe_grouped_gemm"),
        "expert_kernels": "one" if settings.flag("use_turbo_grouped_gemm") else "each",
        "narrow_experts": not settings.flag("moe_use_legacy_grouped_gemm"),
        "fused_grouped_mlp": settings.flag("use_transformer_engine_op_fuser"),
        "dropout": any(dropouts),
        **read_plain(Kernels, settings, "megatron"),
        "paged_stash": _paged_stash(settings),
    }


USUAL_STASH: Final = 1.1
"""--moe-paged-stash-buffer-size-factor-cuda by default; a negative one is of the fullest rank's rows."""


def _paged_stash(settings: Settings) -> float:
    factor = settings.number("moe_paged_stash_buffer_size_factor_cuda")
    return abs(USUAL_STASH if factor is None else factor) if settings.flag("moe_paged_stash") else 0.0


ALL_MICROBATCHES: Final = 1_000_000
"""More micro-batches than any step has."""


def _deferred_head_gradients(settings: Settings) -> int:
    """Return how many micro-batches defer the weight gradient of the output layer; a limit of 0 defers all.

    Megatron-LM refuses it without pipeline parallelism or gradient accumulation fusion (model_parallel_config.py).
    """
    if not settings.flag("defer_embedding_wgrad_compute"):
        settings.get("wgrad_deferral_limit")
        return 0
    name = settings.spell("defer_embedding_wgrad_compute")
    if settings.degree("pipeline_model_parallel_size") == 1:
        settings.refuse(required_with("pipeline parallelism", name, "1"))
    if not settings.flag("gradient_accumulation_fusion", default=True):
        settings.refuse(required_with("gradient accumulation fusion", name))
    return settings.count("wgrad_deferral_limit", 0) or ALL_MICROBATCHES


def _rate(settings: Settings, key: str) -> float:
    value = settings.number(key)
    return 0.1 if value is None else value


KERNELS: Final = tuple(_kernels(Settings({}, "")))
"""What settings say of kernels; the rest is the framework's."""

NONE, WHOLE_STEP = "none", "full_iteration"
IMPLEMENTATIONS = (NONE, "local", "transformer_engine", WHOLE_STEP)
"""--cuda-graph-impl of 0.15 and later; full_iteration is one since 0.18, a scope before."""
SWITCHES = {"enable_cuda_graph": "local", "external_cuda_graph": "transformer_engine"}
"""Switches of 0.11 and later, and the implementation that each stands for."""
SCOPES = ("cuda_graph_modules", "cuda_graph_scope_deprecated", "cuda_graph_scope")
"""Keys of what is captured: modules since 0.18, a scope before; nothing, or full, is whole layers."""


def launch_graphs(implementation: str, scope: Collection[str], *, padded: bool = False) -> LaunchGraphs:
    """Return which launches are captured.

    Parameters
    ----------
    implementation
        One of `IMPLEMENTATIONS`.
    scope
        Modules that are captured.
    padded
        Experts are sent their full capacity: those of other models are never captured
        (Megatron-LM core 0.16, transformer_config.py).
    """
    if implementation == NONE:
        return "none"
    if implementation == WHOLE_STEP or WHOLE_STEP in scope:
        return "full"
    layers = not set(scope) - {"full"}
    if "moe" in scope or (layers and padded):
        return "full"
    if layers or "attn" in scope:
        return "partial"
    return "router" if "moe_router" in scope else "none"


def read_graphs(settings: Settings) -> LaunchGraphs:
    """Return which launches the settings capture; a whole step needs no other key since 0.18."""
    scope = [word for key in SCOPES for word in settings.words(key)]
    usual = WHOLE_STEP if WHOLE_STEP in scope else NONE
    switched = [name for key, name in SWITCHES.items() if settings.flag(key)]
    if switched and (len(switched) > 1 or "cuda_graph_impl" in settings):
        settings.refuse(conflicts(["--enable-cuda-graph", "--external-cuda-graph", "--cuda-graph-impl"]))
    implementation = settings.one_of("cuda_graph_impl", switched[0] if switched else usual, IMPLEMENTATIONS)
    return launch_graphs(implementation, scope, padded=settings.flag("moe_pad_expert_input_to_capacity"))
