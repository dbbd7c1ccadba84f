"""What keys of trainers mean together, where no row of their tables can say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forescale import wording
from forescale.frameworks.reading import packaged
from forescale.frameworks.recipes.actors import nemo_rl, verl
from forescale.frameworks.settings import Settings
from forescale.limits import whole_of

Values = Mapping[str, Any]


def _torchtune(settings: Settings, values: Values, path: Path) -> None:
    """Set model, adapters and devices: `_component_` names the model, "single_device" in a name is one device."""
    component = str(values.get("model._component_", "")).rpartition(".")[2]
    kind, _, name = (
        component.partition("_") if re.match(r"(?:q?lora|dora|qdora)_", component) else ("", "", component)
    )
    settings.set("model", _built(re.sub(r"_(?:instruct|base|chat|rm|reward)$", "", name)))
    settings.set("sp", value=True)
    if steps := settings.count("max_steps"):
        settings.set("max_steps", steps * (whole_of(str(values.get("epochs"))) or 1))
    if kind.startswith("q"):
        settings.set("frozen_type", "nf4_double")
    summed = settings.count("accumulation", 1)
    if settings.flag("updates_in_backward") and summed != 1:  # recipes/full_finetune_single_device.py
        needed, fix = settings.spell("accumulation"), "it must be 1"
        settings.refuse(wording.required_with(needed, settings.spell("updates_in_backward"), summed, fix))
    named = [{"output_proj": "o_proj"}.get(item, item) for item in settings.words("lora_targets")]
    settings.set("lora_targets", named or None)
    if kind:
        targets = list(settings.words("lora_targets") or ("q_proj", "v_proj"))
        targets += ["gate_proj", "up_proj", "down_proj"] if values.get("model.apply_lora_to_mlp") else []
        settings.set("lora_targets", targets)
        settings.set("lora_rank", settings.count("lora_rank", 8))
    if values.get("model.use_dora") or kind.endswith("dora"):
        settings.warnings.append("not modelled, may change step time: the norms of DoRA")
    if str(values.get("loss._component_", "")).endswith("DPOLoss"):
        settings.set("reference", "shared" if kind else "copy")
        settings.set("sequences", 2)
        settings.note("each example is two sequences, chosen and rejected")
    lengths = [length for key in ("seq_len", "dataset_len") if (length := settings.count(key))]
    settings.set("seq_len", min(lengths, default=None))  # either of both truncates
    settings.set("dataset_len", None)
    if "single_device" in path.stem and "devices_per_node" not in settings:
        settings.set("devices_per_node", 1)
        settings.note("1 device, from single_device in the name of the file")


def _built(name: str) -> str:
    """Return the catalogue's name of a model that torchtune builds."""
    builders = packaged("recipes", "torchtune")["builders"].values()
    known = {key.removesuffix("_base"): model for row in builders for key, model in row["models"].items()}
    return str(known.get(name, _catalogue_name(name)))


def _catalogue_name(text: str) -> str:
    """Return a model's name as the catalogue writes it: llama3_1_8b is llama-3.1-8b."""
    text = re.sub(r"(?<=[a-z])(?=\d)", "-", text, count=1)
    text = re.sub(r"(?<=\d)_(?=\d+(?:_|$))", ".", text)
    return re.sub(r"\.(\d+b)\b", r"-\1", text.replace("_", "-"))


def _litgpt(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set adapters by the switches of products, and the recompute of blocks, which sharded fine-tuning has."""
    if "lora_rank" in settings:
        switches = {
            "lora_query": "q_proj",
            "lora_key": "k_proj",
            "lora_value": "v_proj",
            "lora_projection": "o_proj",
        }
        usual = {"lora_query": True, "lora_value": True}
        targets = [place for key, place in switches.items() if values.get(key, usual.get(key, False))]
        targets += ["gate_proj", "up_proj", "down_proj"] if values.get("lora_mlp") else []
        settings.set("lora_targets", targets)
    for key in ("devices_per_node", "num_nodes"):
        if str(settings.raw(key)).isdigit():  # of a command
            settings.set(key, int(str(settings.raw(key))))
    several = settings.raw("devices_per_node") != 1 or settings.raw("num_nodes") not in (None, 1)
    tunes = "checkpoint_dir" in values
    if tunes and several:
        settings.set("recompute", value=True)
    if not tunes and several:
        settings.set("hybrid", value=True)
    if not isinstance(settings.raw("devices_per_node"), int):
        settings.set("devices_per_node", None)


def _foundry(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the feed-forward of MPT, whose width is a multiple of the hidden size."""
    if "hidden_size" in settings:
        ratio = int(settings.number("expansion_ratio") or 4)
        settings.set(
            "ffn_hidden_size", settings.raw("ffn_hidden_size") or ratio * settings.size("hidden_size")
        )
        settings.set("add_bias_linear", not values.get("model.no_bias", True))
        settings.set("untie_embeddings_and_output_weights", not values.get("model.tie_word_embeddings", True))
        if groups := values.get("model.attn_config.kv_n_heads"):
            settings.set("group_query_attention", value=True)
            settings.set("num_query_groups", groups)
    if settings.raw("devices_per_node") and settings.raw("num_nodes") is None:
        settings.set("num_nodes", 1)


def _olmo(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the feed-forward of OLMo: SwiGLU halves the width that the ratio gives."""
    hidden, gated = settings.size("hidden_size"), values.get("model.activation_type", "swiglu") == "swiglu"
    wide = values.get("model.mlp_hidden_size") or int(values.get("model.mlp_ratio") or 4) * hidden
    settings.set("swiglu", gated)
    settings.set("ffn_hidden_size", wide // 2 if gated else wide)
    whole = values.get("distributed_strategy") == "ddp"  # olmo/config.py, fsdp_precision
    if str(values.get("precision")).startswith("amp_") and (whole or values.get("fsdp.precision") == "mixed"):
        settings.set(
            "kept_types", {"gradients": "fp32", **({"parameters": "fp32", "master": "none"} if whole else {})}
        )
    settings.set("add_bias_linear", bool(values.get("model.include_bias", False)))
    settings.set("untie_embeddings_and_output_weights", not values.get("model.weight_tying", True))
    if values.get("model.rope"):
        settings.set("position_embedding_type", "rope")
    if groups := values.get("model.n_kv_heads"):
        settings.set("group_query_attention", value=True)
        settings.set("num_query_groups", groups)
    if values.get("model.embedding_size"):
        settings.set("padded_vocab_size", values["model.embedding_size"])


def _automodel(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the shards: `dp_size` counts data-parallel ranks, and adapters at patterns of modules."""
    if not isinstance(settings.raw("dp_shard"), int):
        settings.set("dp_shard", None)
    names, pipeline = settings.raw("lora_targets"), values.get("distributed.pipeline.pp_schedule")
    if settings.degree("pp") > 1 and pipeline:
        settings.warnings.append(
            f"not modelled, may change step time: the schedule {pipeline} is taken as 1f1b"
        )
    if "lora_rank" in settings:
        listed = names if isinstance(names, list) else [names] if names else []
        all_linear = (
            not listed
            or values.get("peft.match_all_linear")
            or any(str(item) in ("*", "*_proj") for item in listed)
        )
        places = [str(item).replace("*", "").strip(".").rpartition(".")[2] for item in listed]
        settings.set("lora_targets", ["all-linear"] if all_linear else places)
    dtype = str(values.get("model.torch_dtype", "bfloat16"))
    settings.set("precision", "bf16" if "32" in dtype else "bf16-true")


def _veomni(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the exchange of heads and the type of gradients, and note how batches are packed."""
    reduced = values.get("train.accelerator.fsdp_config.mixed_precision.reduce_dtype") or "float32"
    if settings.text("precision", "bf16") == "bf16" and reduced == "float32":
        settings.set("kept_types", {"gradients": "fp32"})  # veomni/arguments/arguments_types.py
    settings.set("cp_kind", "ulysses")
    for key in ("dp_shard", "dp_replicate", "tp", "pp", "cp"):
        if settings.raw(key) == -1:
            settings.set(key, None)
    settings.note("micro-batches are packed to micro_batch_size x max_seq_len tokens")


def _neox(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set what GPT-NeoX derives: batch, recompute, feed-forward, positions, types and the ZeRO stage."""
    gated = str(values.get("activation", "gelu")) in ("swiglu", "geglu", "reglu", "bilinear", "glu")
    if "hidden_size" in settings:  # the model may be another of several files
        settings.set("swiglu", gated)
        wide = settings.count("ffn_hidden_size") or 4 * settings.size("hidden_size")
        multiple = int(values.get("mlp_multiple_of") or 1)
        inner = int(wide * 2 / 3) // 2 if gated else wide  # megatron/model/transformer.py, ParallelMLP
        settings.set("ffn_hidden_size", -(-inner // multiple) * multiple)
    if values.get("checkpoint_activations"):
        settings.set("recompute_granularity", "full")
        settings.set("recompute_method", "uniform")
        settings.set("recompute_num_layers", settings.count("recompute_num_layers") or 1)
    settings.set("pipeline_model_parallel_size", settings.count("pipeline_model_parallel_size") or 1)
    settings.set("tensor_model_parallel_size", settings.count("tensor_model_parallel_size") or 1)
    if settings.count("num_experts", 1) > 1:  # megatron/model/transformer.py, ParallelTransformerLayer
        every = settings.count("expert_interval", 2, least=1)
        routed = [int(at % every == 0) for at in range(settings.size("num_layers"))]
        settings.set("moe_layer_freq", routed)
        settings.set("moe_router_topk", settings.count("moe_router_topk") or 1)
    if "num_query_groups" in settings:
        settings.set("group_query_attention", value=True)
    half = values.get("precision") in ("bfloat16", "bf16") or values.get("bf16.enabled")
    settings.set(
        "bf16" if half else "fp16",
        value=half or values.get("fp16.enabled", values.get("precision") == "fp16"),
    )
    if "vocab_size" not in settings and "padded_vocab_size" not in settings:
        kind = values.get("tokenizer_type", "GPT2BPETokenizer")
        settings.set("tokenizer_type", kind)
    settings.set("allow_padding_num_layers", value=True)


def _nemo(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set adapters, whose places NeMo 1 names by attention_qkv, attention_dense, mlp_fc1 and mlp_fc2."""
    table = "model.peft.lora_tuning."
    if values.get("model.peft.peft_scheme") == "lora":
        settings.set("lora_r", values.get(f"{table}adapter_dim", 32))
        named = values.get(f"{table}target_modules") or ["attention_qkv"]
        settings.set(
            "lora_target_modules", [part for name in named for part in NEMO_PLACES.get(name, [name])]
        )


NEMO_PLACES: Mapping[str, list[str]] = {
    "attention_qkv": ["linear_qkv"],
    "attention_dense": ["linear_proj"],
    "mlp_fc1": ["linear_fc1"],
    "mlp_fc2": ["linear_fc2"],
    "attention": ["linear_qkv", "linear_proj"],
    "mlp": ["linear_fc1", "linear_fc2"],
    "all": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
}
"""Products by NeMo 1's names of places (nemo/collections/nlp/parts/peft_config.py)."""


def _olmo_core(settings: Settings, values: Values, path: Path) -> None:
    """Set batches, which are counted in tokens, and the layers of OLMo 2 and 3; the catalogue has larger models."""
    length = settings.count("seq_len", 0) or 4096
    for key, tokens in (("micro_batch_size", "rank_tokens"), ("global_batch_size", "step_tokens")):
        if count := settings.count(tokens, 0):
            settings.set(key, max(1, count // length))
    if "num_nodes" in settings:
        settings.set("devices_per_node", 8)
    if "hidden_size" in settings:
        _olmo(
            settings,
            {"model.mlp_hidden_size": 2 * settings.size("ffn_hidden_size"), "model.rope": True},
            path,
        )
        settings.set("untie_embeddings_and_output_weights", value=True)
        settings.set("padded_vocab_size", 100_352)
        settings.set("qk_layernorm", value=True)
        settings.set("normalization", "RMSNorm")
    settings.set("model", _catalogue_name(str(values.get("TransformerConfig"))).lower())


def _flagscale(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the devices of one node where no hostfile names others (flagscale/runner/runner_train.py)."""
    visible = str(values.get("experiment.envs.CUDA_VISIBLE_DEVICES") or "")
    if "devices_per_node" in settings or not visible:
        return
    if values.get("experiment.runner.hostfile") is None and settings.count("num_nodes", 1) == 1:
        settings.set("devices_per_node", visible.count(",") + 1)
        settings.set("num_nodes", 1)


RULES: Mapping[str, Callable[[Settings, Values, Path], None]] = {
    "torchtune": _torchtune,
    "litgpt": _litgpt,
    "llm-foundry": _foundry,
    "olmo": _olmo,
    "automodel": _automodel,
    "veomni": _veomni,
    "flagscale": _flagscale,
    "gpt-neox": _neox,
    "nemo-1": _nemo,
    "olmo-core": _olmo_core,
    "nemo-rl": nemo_rl,
    "verl": verl,
}
"""Rules by trainer."""
