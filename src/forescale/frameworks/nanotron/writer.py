"""A question as nanotron's YAML."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from forescale.errors import unsupported_by
from forescale.frameworks.nanotron.reader import CONTEXT, ENGINES, STORAGE
from forescale.frameworks.writing import PLACEHOLDER, Files, Writer, allocator, torchrun
from forescale.question import Question
from forescale.spec.attention import FullAttention
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Layer, Model, MoeFfn
from forescale.spec.rope import PLAIN_ROPE
from forescale.spec.workload import Workload
from forescale.syntax import dump_yaml

RUN = "run.yaml"
KINDS = {narrow: wide for wide, narrow in STORAGE.items()}
ENGINE = {schedule: engine for engine, schedule in ENGINES.items()}
IMPLEMENTATION = {kind: name for name, kind in CONTEXT.items()}
FLASH = "flash_attention_2"
LARGEST_STAGE: Final = 1
REMARKS = {
    "general.project": f"{PLACEHOLDER}: names of the run",
    "checkpoints.checkpoints_path": f"{PLACEHOLDER}: where checkpoints go",
    "tokenizer.tokenizer_name_or_path": f"{PLACEHOLDER}: a tokenizer of Hugging Face",
    "data_stages": f"{PLACEHOLDER}: data; while dataset is null, nanotron trains on random tokens",
    "optimizer.learning_rate_scheduler": f"{PLACEHOLDER}: learning rates are yours; none changes step time or memory",
}


PLACES: dict[str, Any] = {
    "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000},
    "logging": {"log_level": "info", "iteration_step_info_interval": 10},
    "data_stages": [
        {"name": "training", "start_training_step": 1, "data": {"dataset": None, "seed": 42}},
    ],
}
"""Sections that say where things lie."""


class NanotronWriter(Writer):
    """The YAML configuration of nanotron."""

    title = "nanotron configuration in YAML"
    frameworks = ("nanotron",)
    no_vision = "nanotron has no class with a vision tower"
    endings: Mapping[str, str] = {"": ".yaml"}

    def write(self, question: Question) -> Files:
        """Return the configuration; what nanotron has no key for is left out."""
        layout, workload = question.layout, question.workload
        if layout.ep > 1:
            raise unsupported_by(
                "nanotron", f"ep {layout.ep}: every rank of dp x pp x tp x cp has all experts"
            )
        if layout.zero > LARGEST_STAGE:
            raise unsupported_by("nanotron", f"zero {layout.zero}", f"it has zero 0 and {LARGEST_STAGE}")
        values = {**_trained(question), **PLACES}
        open_steps = {"tokens.train_steps": f"{PLACEHOLDER}: steps of the whole run"}
        remarks = REMARKS | ({} if workload.num_steps else open_steps)
        return Files(
            texts={RUN: dump_yaml(values, remarks)},
            main=RUN,
            launch=f'{torchrun(question.cluster)} "${{NANOTRON:?its repository}}/run_train.py" --config-file {RUN}',
            variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1", **allocator(question)},
        )


def _trained(question: Question) -> dict[str, Any]:
    """Return the sections that figures follow from, and the run's own."""
    layout, workload = question.layout, question.workload
    general = {"project": "forescale", "run": question.model.name, "seed": 42, "ignore_sanity_checks": True}
    return {
        "general": general,
        "parallelism": _parallelism(layout),
        "model": {
            "model_config": model_config(question.model, layout),
            "init_method": {"std": 0.02},
            "dtype": KINDS.get(workload.precision.activations, "bfloat16"),
            "make_vocab_size_divisible_by": question.model.vocab_multiple,
            "ddp_bucket_cap_mb": 25,
        },
        "tokens": {
            "sequence_length": workload.seq_len,
            "train_steps": workload.num_steps or 100_000,
            "micro_batch_size": layout.micro_batch_size,
            "batch_accumulation_per_replica": workload.global_batch_size
            // (layout.dp * layout.micro_batch_size),
        },
        "optimizer": _optimizer(layout, workload),
        "tokenizer": {"tokenizer_name_or_path": question.model.name},
    }


def _parallelism(layout: Layout) -> dict[str, Any]:
    return {
        "dp": layout.dp,
        "pp": layout.pp,
        "tp": layout.tp,
        "context_parallel_size": layout.cp,
        "expert_parallel_size": layout.ep,
        "pp_engine": ENGINE.get(layout.schedule, "1f1b"),
        "tp_mode": "REDUCE_SCATTER" if layout.sp and layout.tp > 1 else "ALL_REDUCE",
        "tp_linear_async_communication": layout.kernels.hides_input_sums,
        "tp_recompute_allgather": layout.kernels.regathers_inputs,
        "recompute_layer": layout.recompute.granularity == "full",
    }


def _optimizer(layout: Layout, workload: Workload) -> dict[str, Any]:
    sgd = workload.optimizer == "sgd"
    rates = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "torch_adam_is_fused": True}
    return {
        "optimizer_factory": {"name": "sgd"} if sgd else {"name": "adamW", **rates},
        "zero_stage": layout.zero,
        "accumulate_grad_in_fp32": workload.precision.gradients == "fp32",
        "weight_decay": 0.1,
        "clip_grad": 1.0,
        "learning_rate_scheduler": {
            "learning_rate": 3e-4,
            "lr_warmup_steps": 500,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": 3e-5,
        },
    }


def model_config(model: Model, layout: Layout) -> dict[str, Any]:
    """Return the class and sizes of a model.

    Raises
    ------
    SpecError
        If nanotron has no class for such a model.
    """
    softmax = [_softmax(model, layer) for layer in model.layers]
    dense = [layer.ffn for layer in model.layers if isinstance(layer.ffn, DenseFfn)]
    gated = model.moe is not None or all(ffn.gated for ffn in dense)
    first = softmax[0]
    sizes: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": first.num_heads,
        "max_position_embeddings": model.max_seq_len,
        "vocab_size": model.vocab_size,
    }
    if not gated and layout.cp > 1:
        fix = f"set cp {layout.cp} to 1"
        raise unsupported_by("nanotron's Starcoder2", f"{model.name} with context parallelism", fix)
    if not gated:
        return _starcoder(sizes | {"layer_norm_epsilon": model.norm_eps}, first, dense[0])
    sizes |= {
        "hidden_act": "silu",
        "intermediate_size": dense[0].ffn_hidden_size if dense else _experts(model).ffn_hidden_size,
        "num_key_value_heads": first.num_kv_heads,
        "tie_word_embeddings": model.tied_embeddings,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": (model.ropes[0] or PLAIN_ROPE).base,
    }
    plain = (
        not first.qkv_bias
        and model.moe is None
        and all(layer.window is None and layer.rotary and layer.rope.scaling != "linear" for layer in softmax)
    )
    if plain and layout.cp == 1:
        return {"is_llama_config": True, **sizes, "_attn_implementation": FLASH}
    return {"is_qwen2_config": True, **sizes, **_qwen(model, softmax, layout)}


def _softmax(model: Model, layer: Layer) -> FullAttention:
    if not isinstance(layer.attention, FullAttention) or layer.ffn is None or layer.parallel:
        what = "parallel layers" if layer.parallel else "layers of one part"
        if layer.attention is not None and layer.ffn is not None and not layer.parallel:
            what = layer.attention.description
        fix = "it has Llama, Qwen2 with experts and Starcoder2"
        raise unsupported_by("nanotron", f"{model.name} ({what})", fix)
    return layer.attention


def _experts(model: Model) -> MoeFfn:
    assert model.moe is not None
    return model.moe


def _starcoder(sizes: dict[str, Any], attention: FullAttention, ffn: DenseFfn) -> dict[str, Any]:
    one = attention.num_kv_heads == 1
    heads = {"multi_query": True} if one else {"grouped_query": True, "num_kv_heads": attention.num_kv_heads}
    local = {"intermediate_size": ffn.ffn_hidden_size, "use_rotary_embeddings": attention.rotary}
    local |= {"rope_theta": round(attention.rope.base)} if attention.rotary else {}
    window = {} if attention.window is None else {"sliding_window_size": attention.window}
    return {"is_starcoder2_config": True, **sizes, **local, **heads, **window}


def _qwen(model: Model, softmax: list[FullAttention], layout: Layout) -> dict[str, Any]:
    """Return what Qwen2Config has beyond LlamaConfig."""
    plain = [index + 1 for index, layer in enumerate(softmax) if not layer.rotary]
    window = next((layer.window for layer in softmax if layer.window is not None), None)
    values: dict[str, Any] = {"attention_bias": softmax[0].qkv_bias, "sliding_window_size": window}
    rope = model.ropes[0]
    if rope is not None and rope.scaling == "linear":
        values["rope_seq_len_interpolation_factor"] = rope.factor
    if plain and all(high - low == plain[0] for low, high in pairwise([0, *plain])):
        values["no_rope_layer"] = plain[0]
    values["_attn_implementation"] = FLASH if layout.cp == 1 else IMPLEMENTATION.get(layout.cp_kind, "ring")
    if values["_attn_implementation"] in CONTEXT:
        values["ring_attn_heads_k_stride"] = 1
    if (moe := model.moe) is not None:
        routed = [index for index, layer in enumerate(model.layers) if isinstance(layer.ffn, MoeFfn)]
        values["moe_config"] = {
            "num_experts": moe.num_experts,
            "top_k": moe.top_k,
            "moe_intermediate_size": moe.ffn_hidden_size,
            "enable_shared_expert": moe.shared_ffn_hidden_size > 0,
            "shared_expert_intermediate_size": moe.shared_ffn_hidden_size,
            "layers": [-1] if len(routed) == model.num_layers else routed,
            "token_dispatcher_type": "alltoall",
        }
    return values
