"""A question as MaxText's YAML over its base.yml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from forescale.errors import not_a_factor, not_divisible, unsupported_by
from forescale.frameworks.adapters import PLACES
from forescale.frameworks.maxtext.command import base_values, presets
from forescale.frameworks.maxtext.layout import (
    FULLY_SHARDED,
    HALVES,
    NARROW,
    OFFLOADED,
    OPTIMIZER_NAMES,
    QUANTISED,
    STORAGE,
    STRATEGIES,
)
from forescale.frameworks.maxtext.model import read_model, same
from forescale.frameworks.maxtext.rope import rope_keys
from forescale.frameworks.settings import Settings
from forescale.frameworks.writing import (
    PLACEHOLDER,
    Files,
    Writer,
    check_attention,
    first_attention,
    nodes_of,
    variables_of_nodes,
)
from forescale.question import Question
from forescale.spec.attention import FullAttention, LatentAttention, LinearAttention
from forescale.spec.cluster import Cluster
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Model, MoeFfn
from forescale.spec.workload import Precision, Trainable, Workload
from forescale.struct import attributes
from forescale.syntax import dump_yaml

EXTRAS = ("mtp_num_layers", "n_routing_groups", "topk_routing_group")
"""Keys that no model of MaxText's sets, and that may go over any."""


PRE_NORMS = 2
"""Norms of a layer that has none behind its parts."""


def model_keys(model: Model) -> dict[str, Any]:
    """Return the keys that describe a model.

    Raises
    ------
    SpecError
        If MaxText has no style of block for its attention.
    """
    sizes = _sizes(model)
    extras = {key: sizes[key] for key in EXTRAS if key in sizes}
    near = _near(model, extras)
    name = next((name for name, item in near.items() if same(item, model)), None)
    if (
        name is None
        and near
        and not same(read_model(Settings({**base_values(), **sizes}, "sizes"), ""), model)
    ):
        name = next(iter(near))
    if name is not None:
        return {"model_name": name, **extras}
    return {key: value for key, value in sizes.items() if value != base_values().get(key) or key in _NAMED}


def _near(model: Model, extras: Mapping[str, Any]) -> dict[str, Model]:
    """Return MaxText's models that cost the same as this, the one of its name first: a name goes over other keys."""
    result = {}
    ordered = sorted(
        presets().items(), key=lambda item: (item[1].get("catalogue") != model.name, len(item[0]))
    )
    for name, entry in ordered:
        values = {**base_values(), **entry["keys"], **extras}
        alike = values["base_emb_dim"] == model.hidden_size and values["vocab_size"] == model.vocab_size
        if alike and same(_built(name, tuple(extras.items())).shape, model.shape):
            result[name] = _built(name, tuple(extras.items()))
    return result


def tower_keys(model: Model, trainable: Trainable) -> dict[str, Any]:
    """Return the keys that train a model with its vision tower, which MaxText builds of models that it names.

    Raises
    ------
    SpecError
        If it has no tower of this model.
    """
    names = {entry.get("catalogue"): name for name, entry in presets().items() if name.startswith(TOWERS)}
    if model.name not in names:
        fix = f"it has those of {', '.join(filter(None, names))}"
        raise unsupported_by("MaxText", f"the tower of {model.name}", fix)
    frozen = "vision" in trainable.frozen
    return {"model_name": names[model.name], "use_multimodal": True, "freeze_vision_encoder_params": frozen}


TOWERS = ("gemma3-", "llama4-")
"""How the names of MaxText's models begin whose towers are in the catalogue (layers/encoders.py)."""
_NAMED = ("decoder_block", "base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "head_dim", "base_mlp_dim",
          "base_num_decoder_layers", "vocab_size")  # fmt: skip
"""Keys that are written even where base.yml says the same."""


@cache
def _built(name: str, extras: tuple[tuple[str, Any], ...]) -> Model:
    return read_model(Settings({**base_values(), **presets()[name]["keys"], **dict(extras)}, name), name)


def _sizes(model: Model) -> dict[str, Any]:
    moe = model.moe
    dense = [layer.ffn for layer in model.layers if isinstance(layer.ffn, DenseFfn)]
    gated = moe.gated if moe is not None else all(ffn.gated for ffn in dense)
    widest = (
        dense[0].ffn_hidden_size if dense else moe.ffn_hidden_size if moe is not None else model.hidden_size
    )
    values: dict[str, Any] = {
        "decoder_block": _block(model),
        "base_emb_dim": model.hidden_size,
        **_attention(model),
        "base_mlp_dim": widest,
        "base_num_decoder_layers": model.num_layers,
        "mlp_activations": ["silu", "linear"] if gated else ["gelu"],
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied_embeddings,
        "normalization_layer_epsilon": model.norm_eps,
        **rope_keys(model, _block(model)),
        **(_experts(model, moe) if moe is not None else {}),
    }
    optional = {
        "mtp_num_layers": model.num_mtp_layers,
        "trainable_position_size": model.learned_positions,
        "mlp_bias": any(layer.ffn.bias for layer in model.layers if layer.ffn is not None),
        "use_post_attn_norm": model.layers[0].num_norms > PRE_NORMS,
        "use_post_ffw_norm": model.layers[0].num_norms > PRE_NORMS,
    }
    return values | {key: value for key, value in optional.items() if value}


def _block(model: Model) -> str:
    """Return the style of decoder block that has most of a model's features."""
    check_attention("MaxText", model, (FullAttention, LatentAttention, LinearAttention))
    first = model.layers[-1].attention
    if any(layer.attention is None or layer.ffn is None or layer.parallel for layer in model.layers):
        raise unsupported_by("MaxText", f"blocks as in {model.name}, of one part or of two in parallel")
    if isinstance(first, LatentAttention):
        return "deepseek"
    if first_attention(model, LinearAttention) is not None:
        return "qwen3_next"
    assert isinstance(first, FullAttention)
    if first.sinks:
        return "gpt_oss"
    if model.norm == "layer" or model.learned_positions:
        return "gpt3"
    if model.moe is not None:
        return (
            "qwen3_moe"
            if first.qk_norm == "head"
            else "deepseek"
            if model.moe.shared_ffn_hidden_size
            else "mixtral"
        )
    return _dense_block(first)


def _dense_block(attention: FullAttention) -> str:
    if attention.qk_norm == "head":
        return "qwen3"
    if attention.qk_norm == "hidden":
        return "olmo3"
    return "qwen2" if attention.qkv_bias else "llama2"


def _attention(model: Model) -> dict[str, Any]:
    if (latent := first_attention(model, LatentAttention)) is not None:
        return {
            "attention_type": "mla",
            "base_num_query_heads": latent.num_heads,
            "base_num_kv_heads": latent.num_heads,
            "q_lora_rank": latent.q_lora_rank or 0,
            **attributes(latent, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        }
    full = [layer.attention for layer in model.layers if isinstance(layer.attention, FullAttention)]
    delta = first_attention(model, LinearAttention)
    if not full:
        raise unsupported_by("MaxText", f"{model.name}, which has no softmax attention")
    one = full[-1]
    window = next((item.window for item in full if item.window is not None), None)
    return {
        "base_num_query_heads": one.num_heads,
        "base_num_kv_heads": one.num_kv_heads,
        "head_dim": one.head_dim,
        "use_qk_norm": one.qk_norm != "none",
        "attention_bias": one.qkv_bias,
        "attention_sink": one.sinks,
        "sliding_window_size": window or 0,
        **({"attention_type": "local_sliding"} if all(item.window is not None for item in full) else {}),
        **({} if delta is None else _delta(model, delta)),
    }


def _delta(model: Model, delta: LinearAttention) -> dict[str, Any]:
    softmax = [
        index + 1 for index, layer in enumerate(model.layers) if isinstance(layer.attention, FullAttention)
    ]
    return {
        "inhomogeneous_layer_cycle_interval": softmax[0],
        "gdn_num_value_heads": delta.num_heads,
        "gdn_num_key_heads": delta.num_key_heads,
        "gdn_key_head_dim": delta.key_head_dim,
        "gdn_value_head_dim": delta.value_head_dim,
        "gdn_conv_kernel_dim": delta.conv_kernel,
        "gdn_chunk_size": delta.chunk_size,
    }


def _experts(model: Model, moe: MoeFfn) -> Mapping[str, Any]:
    first = next(index for index, layer in enumerate(model.layers) if isinstance(layer.ffn, MoeFfn))
    shared, rest = divmod(moe.shared_ffn_hidden_size, moe.ffn_hidden_size)
    values = {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "base_moe_mlp_dim": moe.ffn_hidden_size,
        "shared_experts": shared + (rest > 0),
        "first_num_dense_layers": first,
        "routed_bias": moe.score_bias or moe.router_bias,
        "routed_score_func": moe.score if _block(model) == "deepseek" else "",
        "routed_scaling_factor": moe.weight_scale,
    }
    groups = (
        {"n_routing_groups": moe.num_groups, "topk_routing_group": moe.top_groups} if moe.num_groups else {}
    )
    return values | groups


RUN = "run.yml"
TRAIN, SFT = "pre_train.train", "post_train.sft.train_sft"
KINDS = {narrow: wide for wide, narrow in STORAGE.items()}
CONTEXT = {kind: name for name, kind in STRATEGIES.items()}
QUANTIZATION = {kind: name for name, kind in reversed(list(NARROW.items()))}
OPTIMIZER = {ours: theirs for theirs, ours in reversed(list(OPTIMIZER_NAMES.items()))}
TILES = 8
"""Pieces that a loss by pieces is cut into."""
REMARKS = {
    "run_name": f"{PLACEHOLDER}: name of the run",
    "base_output_directory": f"{PLACEHOLDER}: where checkpoints and logs go, such as gs://bucket/folder",
    "dataset_type": f"{PLACEHOLDER}: synthetic trains on random tokens; tfds, grain or hf and their keys on yours",
}


class MaxTextWriter(Writer):
    """The YAML configuration of MaxText."""

    title = "MaxText configuration in YAML"
    frameworks = ("maxtext",)
    endings: Mapping[str, str] = {"": ".yml"}

    def write(self, question: Question) -> Files:
        """Return the configuration; what MaxText has no key for is left out."""
        layout, workload = question.layout, question.workload
        on_gpus = not question.cluster.device.architecture.startswith("tpu")
        values: dict[str, Any] = {
            "base_config": "base.yml",
            "run_name": question.model.name,
            "base_output_directory": "output",
            "dataset_type": "synthetic",
            "hardware": "gpu" if on_gpus else "tpu",
            **({"steps": workload.num_steps} if workload.num_steps else {}),
            **_model(question.model, workload),
            **_axes(layout, question.cluster),
            **_pipeline(layout, question.model.num_layers),
            **_batch(question),
            **_remat(layout),
            **_types(workload),
            **_rest(layout, workload),
            **_adapters(workload),
        }
        trainer = SFT if workload.trainable.lora_rank else TRAIN
        return Files(
            texts={RUN: dump_yaml(values, REMARKS)},
            main=RUN,
            launch=f"{_on_nodes(question.cluster)}python3 -m maxtext.trainers.{trainer} {RUN}",
            left=() if question.model.vision is None else ("images",),
        )


def _on_nodes(cluster: Cluster) -> str:
    """Return the variables by which JAX's processes of several nodes of GPUs find each other; TPUs need none."""
    if cluster.device.architecture.startswith("tpu") or nodes_of(cluster)[0] == 1:
        return ""
    return f"env {variables_of_nodes(cluster, 'JAX_COORDINATOR_IP', 'JAX_COORDINATOR_PORT')} "


def _model(model: Model, workload: Workload) -> dict[str, Any]:
    return model_keys(model) if model.vision is None else tower_keys(model, workload.trainable)


def _axes(layout: Layout, cluster: Cluster) -> dict[str, int]:
    """Return the degree of every axis inside a slice and over slices, inner axes inside as far as they divide it."""
    if layout.zero == FULLY_SHARDED:
        data, fsdp = layout.dp_replicate, layout.dp_shard
    else:
        data, fsdp = layout.dp, 1
    if fsdp % layout.ep:
        terms = "the data-parallel ranks that shard states under zero 3"
        raise not_a_factor("MaxText: ep", layout.ep, fsdp, terms)
    inner = layout.cp_inner or 1
    degrees = {
        "tensor": layout.tp,
        "context_usp_ulysses": inner if CONTEXT_KINDS[layout.cp_kind].halves else 1,
        "context": layout.cp // inner if CONTEXT_KINDS[layout.cp_kind].halves else layout.cp,
        "expert": layout.ep,
        "fsdp": fsdp // layout.ep,
        "pipeline": layout.pp,
        "data": data,
    }
    left = _slice_devices(cluster)
    values: dict[str, int] = {}
    for axis, degree in degrees.items():
        inside = math.gcd(degree, left)
        left //= inside
        values |= {f"ici_{axis}_parallelism": inside, f"dcn_{axis}_parallelism": degree // inside}
    usual = {"ici_fsdp_parallelism", "dcn_data_parallelism"}
    return {key: degree for key, degree in values.items() if degree > 1 or key in usual}


def _slice_devices(cluster: Cluster) -> int:
    """Return the devices of a slice: those of the innermost network of TPUs, of a node of GPUs."""
    whole, slice_size = cluster.num_devices, cluster.tiers[0].size
    if cluster.device.architecture.startswith("tpu"):
        return whole if not slice_size or whole <= slice_size else math.gcd(whole, slice_size)
    return math.gcd(whole, cluster.devices_per_node)


def _pipeline(layout: Layout, num_layers: int) -> dict[str, Any]:
    if layout.pp == 1:
        return {}
    chunks = layout.pp * layout.vpp
    never = layout.reshard in ("never", "default")
    return {
        "num_layers_per_pipeline_stage": num_layers // chunks,
        "num_pipeline_repeats": layout.vpp,
        "pipeline_parallel_layers": num_layers,
        **({"pipeline_fsdp_ag_once": True} if never and layout.zero == FULLY_SHARDED else {}),
    }


def _batch(question: Question) -> dict[str, Any]:
    """Return sequences of every device, which may be less than one, and passes that are summed up.

    Raises
    ------
    SpecError
        If the micro-batches of a pipeline are not a multiple of its stages.
    """
    layout, workload = question.layout, question.workload
    count = workload.global_batch_size // (layout.dp * layout.micro_batch_size)
    if layout.pp > 1 and count % layout.pp:
        raise not_divisible("MaxText: num_microbatches", count, layout.pp, "pp")
    passes = 1 if layout.pp > 1 else count
    devices = question.cluster.num_devices
    whole = workload.global_batch_size // passes
    item = whole / devices
    item = item if int(item * devices) == whole else math.nextafter(item, math.inf)
    return {
        "per_device_batch_size": item,
        "gradient_accumulation_steps": passes,
        "max_target_length": workload.seq_len,
        **({"num_pipeline_microbatches": count} if layout.pp > 1 else {}),
    }


def _remat(layout: Layout) -> dict[str, Any]:
    """Return the policy; without recompute all products are kept, which is what comes nearest."""
    recompute, offloaded = layout.recompute, layout.offload.modules
    if recompute.granularity != "policy":
        return {"remat_policy": "full" if recompute.granularity == "full" else "minimal_with_context"}
    for policy, names in OFFLOADED.items():
        if recompute.policy == "custom" and recompute.kept == names == offloaded:
            return {"remat_policy": policy}
    if recompute.policy != "custom":
        return {"remat_policy": recompute.policy}
    places: dict[str, str] = {name: "offload" if name in offloaded else "device" for name in recompute.kept}
    inputs = {"decoder_layer_input": "offload"} if "decoder_layer_input" in offloaded else {}
    return {"remat_policy": "custom", **inputs, **places}


def _types(workload: Workload) -> dict[str, Any]:
    types: Precision = workload.precision
    weights = types.parameters if types.master == "none" else types.master
    narrow = QUANTIZATION.get((types.compute, types.recipe))
    return {
        "dtype": KINDS.get(types.activations, "bfloat16"),
        "weight_dtype": KINDS.get(weights, "float32"),
        **({"quantization": narrow} if narrow else {}),
        **({"mu_dtype": KINDS.get(types.moments, "float32")} if types.moments != weights else {}),
    }


def _adapters(workload: Workload) -> dict[str, Any]:
    """Return the table of adapters, whose modules an expression names; frozen parts have no key."""
    trainable, kind = workload.trainable, workload.precision.frozen
    if not trainable.lora_rank:
        return {}
    requested = {
        half: [name for name in names if set(PLACES[name]) & set(trainable.unfused)]
        for half, names in HALVES.items()
    }
    places = "|".join(f".*{half}/({'|'.join(names)})" for half, names in requested.items() if names)
    table = {
        "enable_lora": True,
        "lora_rank": trainable.lora_rank,
        "lora_module_path": f"decoder/layers/({places})",
    }
    return {"lora": table | ({"lora_weight_qtype": kind} if kind in QUANTISED else {})}


def _rest(layout: Layout, workload: Workload) -> Mapping[str, Any]:
    capacity = layout.routing.capacity_factor
    flags: dict[str, tuple[bool, Any]] = {
        "opt_type": (workload.optimizer != "adamw", OPTIMIZER.get(workload.optimizer, "adamw")),
        "shard_optimizer_over_data": (layout.zero in (1, 2), True),
        "context_parallel_strategy": (layout.cp > 1, CONTEXT[layout.cp_kind]),
        "context_parallel_load_balance": (layout.cp > 1, layout.cp_balanced),
        "attention": (True, "flash" if layout.flash_attention else "dot_product"),
        "num_vocab_tiling": (layout.kernels.cross_entropy == "fused_linear", TILES),
        "dropout_rate": (layout.kernels.dropout, 0.1),
        "capacity_factor": (capacity is not None, capacity),
        "sparse_matmul": (capacity is not None, False),
        "megablox": (capacity is not None, False),
        "use_batch_split_schedule": (layout.overlap.expert, True),
        "optimizer_memory_host_offload": (layout.offload.optimizer > 0, True),
        "parameter_memory_host_offload": (layout.offload.parameters, True),
    }
    return {key: value for key, (needed, value) in flags.items() if needed}
