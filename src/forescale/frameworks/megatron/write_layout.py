"""A layout, a workload and a model as Megatron's settings: what its readers read, the other way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, Final, TypeAlias, TypeVar

from forescale.errors import unsupported_by
from forescale.frameworks.megatron.layout import (
    ALL_MICROBATCHES,
    CP_KINDS,
    FLEXIBLE,
    FSDP_LEVELS,
    OFFLOADED,
    WORDS,
)
from forescale.frameworks.megatron.model import EXPANSION
from forescale.frameworks.megatron.pipeline import layout_text
from forescale.frameworks.megatron.rope import rope_settings
from forescale.frameworks.megatron.run import GROUP, LAYERS_IN_BF16, OPTIMIZER_NAMES, RECIPES
from forescale.frameworks.plain import plain_settings
from forescale.frameworks.writing import check_attention
from forescale.graph.stages import given_chunks, layers_per_chunk
from forescale.question import Question
from forescale.spec.attention import FullAttention, LatentAttention, LinearAttention, picking_layers
from forescale.spec.context import CONTEXT_KINDS, inner_ranks
from forescale.spec.dispatchers import DISPATCHERS
from forescale.spec.groups import group_of
from forescale.spec.layout import Layout, Module, Offload, Routing
from forescale.spec.model import DenseFfn, Layer, Model, MoeFfn
from forescale.spec.space import recompute_modules
from forescale.spec.workload import Precision, Workload

AUX_LOSS = 1e-3
"""Weight of the loss that balances experts (DeepSeek-V2, Mixtral); any above 0 costs the same."""
K = TypeVar("K")
V = TypeVar("V")


def layout_settings(question: Question) -> Settings:
    """Return the settings that lay a model out."""
    model, layout = question.model, question.layout
    moe = model.is_moe
    domain = question.cluster.domain
    inner = int(inner_ranks(cp=layout.cp, tp=layout.tp, wanted=layout.cp_inner, domain=domain))
    hierarchical = CONTEXT_KINDS[layout.cp_kind].halves
    return {
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.sp and layout.tp > 1,
        "pipeline_model_parallel_size": layout.pp,
        **_stages(model, layout),
        GROUP: group_of(layout),
        "context_parallel_size": layout.cp,
        "cp_comm_type": _key_of(CP_KINDS, layout.cp_kind),
        "hierarchical_context_parallel_sizes": [inner, layout.cp // inner] if hierarchical else None,
        "expert_model_parallel_size": layout.ep if moe else None,
        "expert_tensor_parallel_size": layout.etp if moe else None,
        "use_tp_pp_dp_mapping": layout.axis_order == ("tp", "cp", "pp", "dp"),
        **_sharding(layout),
        "micro_batch_size": layout.micro_batch_size,
        **_overlap(question),
        **_recompute(model, layout),
        **_offload(layout.offload),
        **(_experts(layout) if moe else {}),
        **_kernels(layout),
        **_graphs(layout, moe=moe),
        **plain_settings(layout, "megatron"),
    }


def run_settings(question: Question) -> Settings:
    """Return the settings of batch, optimizer and data types."""
    layout, workload = question.layout, question.workload
    return {
        "seq_length": workload.seq_len,
        "global_batch_size": workload.global_batch_size,
        "train_iters": workload.num_steps,
        "optimizer": _key_of(OPTIMIZER_NAMES, workload.optimizer),
        **_precision(workload, layout),
    }


def stage_sizes(model: Model, layout: Layout) -> tuple[int, ...]:
    """Return the layers of each virtual stage, in the order of the model."""
    count = layout.pp * layout.vpp
    if layout.stage_layers is None:
        chunks = layers_per_chunk(model.num_layers, count, spare_ends=layout.vpp > 1)
    else:
        chunks = given_chunks(model, layout.stage_layers, tuple(range(layout.pp)) * layout.vpp)
    return tuple(map(len, chunks))


def _stages(model: Model, layout: Layout) -> Settings:
    """Return how layers lie on stages: evenly, the first and the last apart, or one by one."""
    sizes = stage_sizes(model, layout)
    letters = hybrid_pattern(model)
    if letters is not None:
        ends = accumulate(sizes)
        stages = (letters[end - size : end] for size, end in zip(sizes, ends, strict=True))
        return {"hybrid_layer_pattern": "|".join(stages)}
    if len(set(sizes)) == 1:
        return {"num_virtual_stages_per_pipeline_rank": layout.vpp if layout.vpp > 1 else None}
    between = sizes[1:-1]
    if layout.vpp > 1 or len(set(between)) > 1:
        return {"pipeline_model_parallel_layout": layout_text(sizes, model.num_mtp_layers)}
    usual = between[0] if between else None
    return {
        "decoder_first_pipeline_num_layers": sizes[0] if sizes[0] != usual else None,
        "decoder_last_pipeline_num_layers": sizes[-1] if usual is not None and sizes[-1] != usual else None,
    }


def _sharding(layout: Layout) -> Settings:
    replicas = layout.dp_replicate if layout.dp_replicate > 1 else None
    if layout.zero == 0:
        return {"use_distributed_optimizer": False}
    if layout.zero == 1:
        return {"use_distributed_optimizer": True, "num_distributed_optimizer_instances": replicas}
    return {
        "use_distributed_optimizer": True,
        "num_distributed_optimizer_instances": replicas,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": _key_of(FSDP_LEVELS, layout.zero),
        "ckpt_format": "fsdp_dtensor",
    }


def _overlap(question: Question) -> Settings:
    layout, overlap = question.layout, question.layout.overlap
    gathers = overlap.param_gather and overlap.grad_reduce and layout.zero > 0
    return {
        "overlap_grad_reduce": overlap.grad_reduce,
        "overlap_param_gather": gathers,
        "tp_comm_overlap": overlap.tensor and layout.tp > 1 and layout.sp,
        "overlap_p2p_comm": overlap.pipeline or layout.vpp == 1,
        "overlap_moe_expert_parallel_comm": overlap.expert and _overlaps_experts(question),
        "moe_shared_expert_overlap": overlap.shared_experts,
    }


def _overlaps_experts(question: Question) -> bool:
    """Return whether Megatron-LM lets expert traffic run beside other micro-batches."""
    layout, replayed = question.layout, question.layout.recompute
    return (
        layout.ep > 1
        and (layout.pp == 1 or layout.vpp > 1)
        and replayed.granularity != "full"
        and "moe" not in replayed.modules
        and question.workload.precision.activations != "fp32"
        and not layout.overlap.shared_experts
        and question.model.num_mtp_layers <= 1
    )


def _recompute(model: Model, layout: Layout) -> Settings:
    recompute = layout.recompute
    if recompute.granularity == "selective":
        there = [module for module in recompute.modules if _has(model, layout, module)]
        if not there:
            return {}
        return {"recompute_granularity": "selective", "recompute_modules": there}
    if recompute.granularity != "full":
        return {}
    settings: Settings = {"recompute_granularity": "full"}
    if recompute.layer_ids:
        return settings | {"recompute_layer_ids": list(recompute.layer_ids)}
    if recompute.num_layers is not None:
        return settings | {"recompute_method": "block", "recompute_num_layers": recompute.num_layers}
    return settings | {"recompute_method": "uniform", "recompute_num_layers": recompute.unit}


def _has(model: Model, layout: Layout, module: Module) -> bool:
    """Return whether the model has a module, as Megatron-LM asks of those that are recomputed."""
    if module == "moe_act" and not layout.kernels.grouped_experts:
        return False
    return module == "mlp" or module in recompute_modules(model)


def _offload(offload: Offload) -> Settings:
    """Return what goes to the host; modules that Megatron-LM does not have are left out."""
    modules = [name for name, saved in OFFLOADED.items() if len(saved) == 1 and saved[0] in offload.modules]
    settings: Settings = {"cpu_offloading_num_layers": offload.activation_layers or None}
    if modules:
        settings |= {
            "fine_grained_activation_offloading": True,
            "offload_modules": modules,
            "activation_offload_fraction": None if offload.module_share == 1.0 else offload.module_share,
        }
    if offload.optimizer:
        settings |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": offload.optimizer,
            "use_precision_aware_optimizer": offload.master,
            "overlap_cpu_optimizer_d2h_h2d": offload.overlap,
        }
    return settings


def _experts(layout: Layout) -> Settings:
    flexible = DISPATCHERS[layout.dispatcher].sends_once
    stash = layout.kernels.paged_stash or None
    return {
        "moe_token_dispatcher_type": "flex" if flexible else "alltoall",
        "moe_flex_dispatcher_backend": _key_of(FLEXIBLE, layout.dispatcher) if flexible else None,
        "moe_grouped_gemm": layout.kernels.grouped_experts,
        "moe_use_legacy_grouped_gemm": not layout.kernels.narrow_experts,
        "use_transformer_engine_op_fuser": layout.kernels.fused_grouped_mlp,
        "moe_paged_stash": stash is not None,
        "moe_paged_stash_buffer_size_factor_cuda": stash,
        "moe_expert_rank_capacity_factor": stash,
        "moe_router_dtype": "fp32" if layout.kernels.wide_router else None,
        "moe_router_fusion": None if layout.kernels.fused_router else False,
        **_routing(layout.routing),
    }


def _routing(routing: Routing) -> Settings:
    balanced = routing.balance == "aux_loss"
    return {
        "moe_router_load_balancing_type": routing.balance,
        "moe_aux_loss_coeff": AUX_LOSS if balanced else None,
        "moe_expert_capacity_factor": routing.capacity_factor,
        "moe_pad_expert_input_to_capacity": routing.pad_to_capacity,
    }


def _kernels(layout: Layout) -> Settings:
    kernels = layout.kernels
    fusion = {"fused": "te", "native": "native"}.get(kernels.cross_entropy)
    rate = 0.1 if kernels.dropout else 0.0
    deferred = kernels.deferred_head_gradients if layout.pp > 1 else 0
    return {
        "attention_backend": None if layout.flash_attention else "unfused",
        "cross_entropy_loss_fusion": fusion is not None,
        "cross_entropy_fusion_impl": fusion,
        "gradient_accumulation_fusion": kernels.gradient_sum == "in_product",
        "defer_embedding_wgrad_compute": deferred > 0,
        "wgrad_deferral_limit": deferred % ALL_MICROBATCHES or None,
        "enable_experimental": kernels.fused_rotary,
        "attention_dropout": rate,
        "hidden_dropout": rate,
        **plain_settings(kernels, "megatron"),
    }


def _graphs(layout: Layout, *, moe: bool) -> Settings:
    if layout.graphs == "full":
        return {"cuda_graph_impl": "full_iteration", "check_for_nan_in_loss_and_grad": False}
    modules = ["attn"] if layout.graphs == "partial" else []
    if moe and layout.graphs != "none":
        modules += ["moe_router", "moe_preprocess"]
    return {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": modules} if modules else {}


def _precision(workload: Workload, layout: Layout) -> Settings:
    precision = workload.precision
    base = precision.activations
    narrow = precision.compute in ("fp8", "mxfp8")
    kept = precision.is_narrow and precision.num_layers_in_bf16 > 0
    settings: Settings = {
        "bf16": base == "bf16",
        "fp16": base == "fp16",
        "fp8": "hybrid" if narrow else None,
        "fp8_recipe": _key_of(RECIPES, precision.recipe) if narrow else None,
        "fp8_param_gather": precision.parameters == "fp8" and layout.zero > 0,
        "fp4": "e2m1" if precision.compute == "nvfp4" else None,
        "first_last_layers_bf16": kept,
        **{key: getattr(precision, key) if kept else None for key in LAYERS_IN_BF16},
    }
    return settings | _gradients(precision) | _states(precision)


def _gradients(precision: Precision) -> Settings:
    if precision.activations == "bf16":
        return {"grad_reduce_in_bf16": precision.gradients == "bf16"}
    return {
        "accumulate_allreduce_grads_in_fp32": precision.activations == "fp16"
        and precision.gradients == "fp32"
    }


def _states(precision: Precision) -> Settings:
    """Return the types of the optimizer's states, which only its precision-aware kind lets choose."""
    types = {
        "main_params_dtype": precision.master,
        "exp_avg_dtype": precision.moments,
        "exp_avg_sq_dtype": precision.second_moments or precision.moments,
    }
    selected = {key: kind for key, kind in types.items() if kind not in ("fp32", "none")}
    if not selected:
        return {}
    return {"use_precision_aware_optimizer": True, **selected}


def _key_of(names: Mapping[K, V], value: object) -> K | None:
    """Return the framework's first name for one of our values; None if it has none."""
    return next((name for name, ours in names.items() if ours == value), None)


Settings: TypeAlias = dict[str, Any]
"""Values by Megatron's own keys."""
T = TypeVar("T")


def model_settings(model: Model, *, seq_len: int) -> Settings:
    """Return the settings that describe a model; of parts that differ from layer to layer the commonest counts."""
    check_attention("Megatron-LM", model, (FullAttention, LatentAttention, LinearAttention))
    hybrid = hybrid_pattern(model)
    settings: Settings = {
        "num_layers": None if hybrid else model.num_layers,
        "hybrid_layer_pattern": hybrid,
        "hidden_size": model.hidden_size,
        **_ffn(model),
        **_attention(model),
        **(_mamba(model) if hybrid else _linear(model)),
        "vocab_size": model.vocab_size,
        "make_vocab_size_divisible_by": model.vocab_multiple,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "layernorm_epsilon": model.norm_eps,
        **_positions(model),
        "max_position_embeddings": model.learned_positions or max(seq_len, model.max_seq_len),
        "mtp_num_layers": None if hybrid else model.num_mtp_layers or None,
    }
    return settings if not _gpt_oss(model) else _laid_last(settings, {"swiglu": False, **WORDS["gpt_oss"]})


def _laid_last(settings: Settings, over: Settings) -> Settings:
    """Return settings with some over them, behind the others."""
    return {key: value for key, value in settings.items() if key not in over} | over


def _gpt_oss(model: Model) -> bool:
    """Whether layers are those of GPT-OSS: of other clamps only that there are any is known."""
    full = commonest(of_kind(model, "attention", FullAttention))
    moe = commonest(of_kind(model, "ffn", MoeFfn))
    if full is None or moe is None:
        return False
    return full.sinks and moe.limited and moe.bias and moe.gated


def commonest(parts: Sequence[T]) -> T | None:
    """Return what most of the parts are; None of none."""
    return Counter(parts).most_common(1)[0][0] if parts else None


def pattern(flags: Sequence[int]) -> str:
    """Return a list of 0 and 1 as Megatron takes it: [0]*3+[1]*58."""
    return "+".join(f"[{flag}]*{len(list(run))}" for flag, run in groupby(flags))


def of_kind(model: Model, part: str, kind: type[T]) -> list[T]:
    """Return the attention or feed-forward parts of one kind, layer by layer."""
    parts = [getattr(layer, part) for layer in model.layers]
    return [part for part in parts if isinstance(part, kind)]


def _ffn(model: Model) -> Settings:
    dense = commonest(of_kind(model, "ffn", DenseFfn))
    moe = commonest(of_kind(model, "ffn", MoeFfn))
    either = dense or moe
    if either is None:
        return {}
    settings: Settings = {
        "ffn_hidden_size": either.ffn_hidden_size,
        "swiglu": either.gated,
        "add_bias_linear": either.bias,
    }
    return settings | ({} if moe is None else _expert_sizes(model, moe))


def _expert_sizes(model: Model, moe: MoeFfn) -> Settings:
    routed = [int(isinstance(layer.ffn, MoeFfn)) for layer in model.layers]
    return {
        "num_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_latent_size": moe.latent_size or None,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        "moe_shared_expert_gate": moe.shared_gate,
        "moe_router_score_function": None if moe.score == "softmax" else moe.score,
        "moe_router_pre_softmax": moe.score == "softmax" and (not moe.normalised or moe.top_k == 1),
        "moe_router_topk_scaling_factor": None if moe.weight_scale == 1 else moe.weight_scale,
        "moe_router_enable_expert_bias": moe.score_bias,
        "moe_router_num_groups": moe.num_groups or None,
        "moe_router_group_topk": moe.top_groups or None,
        "moe_layer_freq": None if all(routed) or hybrid_pattern(model) else pattern(routed),
    }


def _attention(model: Model) -> Settings:
    latent = commonest(of_kind(model, "attention", LatentAttention))
    if latent is not None:
        return {
            "num_attention_heads": latent.num_heads,
            "multi_latent_attention": True,
            "q_lora_rank": latent.q_lora_rank,
            "kv_lora_rank": latent.kv_lora_rank,
            "qk_head_dim": latent.qk_nope_head_dim,
            "qk_pos_emb_head_dim": latent.qk_rope_head_dim,
            "v_head_dim": latent.v_head_dim,
            "qk_layernorm": True,
            **_sparse(model),
        }
    full = commonest(of_kind(model, "attention", FullAttention))
    if full is None:
        return {"num_attention_heads": 1, "kv_channels": model.hidden_size}
    grouped = full.num_kv_heads != full.num_heads
    biased = _ffn(model).get("add_bias_linear", False)
    return {
        "num_attention_heads": full.num_heads,
        "group_query_attention": grouped,
        "num_query_groups": full.num_kv_heads if grouped else None,
        "kv_channels": full.head_dim,
        "add_qkv_bias": full.qkv_bias and not biased,
        "qk_layernorm": full.qk_norm == "head",
        "softmax_type": "learnable" if full.sinks else None,
        "attention_output_gate": full.output_gate,
        **_window(model),
    }


LOSS_COEFFICIENT: Final = 0.001
"""Weight of the indexer's loss (Megatron-Bridge, models/glm_moe_dsa/glm5_bridge.py)."""
KEY_NORM_EPSILON: Final = 1e-6
"""Of the norm of the indexer's keys (transformers, models/deepseek_v32)."""
FUSED_BACKEND: Final = "cudnn"
"""Kernels of attention to picked keys (Megatron-Bridge, recipes/glm)."""


def _sparse(model: Model) -> Settings:
    """Return what picks the keys of latent attention, and in which layers."""
    layers = of_kind(model, "attention", LatentAttention)
    indexer = next((layer.indexer for layer in layers if layer.indexer is not None), None)
    if indexer is None:
        return {}
    picks = tuple(layer.indexer is not None for layer in layers)
    every, first = _shared(model, picks)
    return {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": indexer.num_heads,
        "dsa_indexer_head_dim": indexer.head_dim,
        "dsa_indexer_topk": layers[0].top_k,
        "dsa_indexer_topk_freq": every if every > 1 else None,
        "dsa_indexer_skip_topk_offset": first if every > 1 else None,
        "dsa_indexer_loss_coeff": LOSS_COEFFICIENT if indexer.trained else None,
        "dsa_indexer_use_sparse_loss": indexer.trained,
        "dsa_indexer_rope_interleaved": indexer.interleaved_rotary,
        "dsa_indexer_k_norm_epsilon": KEY_NORM_EPSILON,
        "dsa_kernel_backend": FUSED_BACKEND,
    }


def _shared(model: Model, picks: tuple[bool, ...]) -> tuple[int, int]:
    """Return after how many layers one picks again, and how many do at the start."""
    first = (*picks, False).index(False)
    for every in range(1, len(picks) - first + 2):
        if picking_layers(len(picks), every=every, first=first) == picks:
            return every, first
    raise unsupported_by("megatron-core", f"the order in which layers of {model.name} pick keys")


def _window(model: Model) -> Settings:
    """Return the sliding window and which layers have it."""
    layers = of_kind(model, "attention", FullAttention)
    windows = [layer.window for layer in layers if layer.window is not None]
    if not windows or len(layers) < model.num_layers:
        return {}
    slides = [int(layer.window is not None) for layer in layers]
    return {
        "window_size": f"{(commonest(windows) or 1) - 1},0",
        "window_attn_skip_freq": None if all(slides) else pattern(slides),
    }


def _linear(model: Model) -> Settings:
    """Return the linear attention (gated delta net) and which layers have it."""
    linear = commonest(of_kind(model, "attention", LinearAttention))
    if linear is None:
        return {}
    flags = [int(isinstance(layer.attention, LinearAttention)) for layer in model.layers]
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": pattern(flags),
        "linear_num_value_heads": linear.num_heads,
        "linear_num_key_heads": linear.num_key_heads,
        "linear_key_head_dim": linear.key_head_dim,
        "linear_value_head_dim": linear.value_head_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
    }


def hybrid_pattern(model: Model) -> str | None:
    """Return the letters of a model whose layers are one part each (M * - E); None of other models.

    Those of layers that predict further tokens, which may be two parts, stand behind them.
    """
    letters = [_letter(layer) for layer in model.layers]
    if not all(letters):
        return None
    ahead = model.mtp_layer or model.layers[-1]
    parts = ((ahead.attention, None), (None, ahead.ffn))
    halves = [_letter(Layer(attention=mixer, ffn=mlp, num_norms=1)) or "" for mixer, mlp in parts]
    return "".join(map(str, letters)) + f"/{''.join(halves)}" * model.num_mtp_layers


def _letter(layer: Layer) -> str | None:
    if layer.num_norms != 1 or (layer.attention is None) == (layer.ffn is None):
        return None
    match layer.attention or layer.ffn:
        case LinearAttention():
            return "M"
        case FullAttention():
            return "*"
        case DenseFfn():
            return "-"
        case MoeFfn():
            return "E"
        case _:
            return None


def _mamba(model: Model) -> Settings:
    mamba = commonest(of_kind(model, "attention", LinearAttention))
    if mamba is None:
        return {}
    derived = mamba.num_heads * mamba.value_head_dim == EXPANSION * model.hidden_size
    return {
        "mamba_num_heads": None if derived else mamba.num_heads,
        "mamba_head_dim": mamba.value_head_dim,
        "mamba_num_groups": mamba.num_key_heads,
        "mamba_state_dim": mamba.key_head_dim,
    }


def _positions(model: Model) -> Settings:
    """Return the positions of most of the layers that have any."""
    if model.learned_positions:
        return {"position_embedding_type": "learned_absolute"}
    latent = commonest(of_kind(model, "attention", LatentAttention))
    turned = commonest([item for item in of_kind(model, "attention", FullAttention) if item.rotary])
    most = turned if latent is None else latent
    if most is None:
        return {"position_embedding_type": "none"}
    plain = [
        isinstance(layer.attention, FullAttention) and not layer.attention.rotary for layer in model.layers
    ]
    skips = pattern([int(item) for item in plain]) if any(plain) and not hybrid_pattern(model) else None
    return {**rope_settings(most), "no_rope_freq": skips}
