"""A question as a Python job configuration of torchtitan 0.3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from forescale.frameworks.torchtitan.adapters import converter
from forescale.frameworks.torchtitan.sizes import SCORES, Sized
from forescale.frameworks.torchtitan.write_layout import compile_words, parallelism, recompute_words, training
from forescale.frameworks.writing import PLACEHOLDER
from forescale.question import Question

JOB: Final = "plan.py"
IMPORTS: Final[Mapping[str, tuple[str, ...]]] = {
    "torchtitan.components.lora": ("LoRAConverter",),
    "torchtitan.components.loss": ("ChunkedLossWrapper", "CrossEntropyLoss"),
    "torchtitan.components.optimizer": ("default_adamw",),
    "torchtitan.components.quantization": (
        "Float8GroupedExpertsConverter", "Float8LinearConverter", "MXFP8GroupedExpertsConverter",
        "MXFP8LinearConverter", "NVFP4LinearConverter",
    ),
    "torchtitan.config": ("CompileConfig", "DebugConfig", "ParallelismConfig", "TrainingConfig"),
    "torchtitan.distributed.activation_checkpoint": ("FullAC", "SelectiveAC"),
    "torchtitan.hf_datasets.text_datasets": ("HuggingFaceTextDataLoader",),
    "torchtitan.models": ("deepseek_v3", "gpt_oss", "llama3", "qwen3"),
    "torchtitan.models.common": ("ComplexRoPE", "CosSinRoPE", "Embedding", "Linear", "RMSNorm"),
    "torchtitan.models.common.config_utils": ("decoder_vocab_size",),
    "torchtitan.models.deepseek_v3.model": ("DeepSeekV3Model",),
    "torchtitan.models.llama3.model": ("Llama3Model",),
    "torchtitan.models.qwen3.model": ("Qwen3Model",),
    "torchtitan.trainer": ("Trainer",),
}  # fmt: skip
"""Where the names of a job configuration come from (torchtitan 0.3.0)."""
CONVERTERS: Final = {
    "fp8": ("Float8LinearConverter", "Float8GroupedExpertsConverter"),
    "mxfp8": ("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter"),
    "nvfp4": ("NVFP4LinearConverter", ""),
}
NARROWED: Final = {"fp8": 'filter_fqns=["lm_head"], ', "nvfp4": 'fqns=["layers"], '}
"""The head stays as it is; nvfp4 says so by naming the layers."""


def job_text(
    question: Question, flavor: tuple[str, str] | None, own: Sized | None, csv: str, *, compiled: bool
) -> str:
    """Return the file: one function that returns a Trainer.Config."""
    layout = parallelism(question, python=True)
    if csv:
        layout |= {
            "pipeline_parallel_schedule": "_PipelineScheduleRuntime",
            "pipeline_parallel_schedule_csv": csv,
        }
    converters = _converters(question, compiled=compiled)
    body = _registered(question, flavor, converters) if flavor else _built(question, own, converters)
    loss = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    if question.layout.kernels.cross_entropy == "fused_linear":
        loss = f"ChunkedLossWrapper.Config(loss_fn={loss})"
    fields = {
        "model_spec": "model_spec,",
        "hf_assets_path": f'"assets/hf",  # {PLACEHOLDER}: tokenizer',
        "dataloader": f'HuggingFaceTextDataLoader.Config(dataset="c4"),  # {PLACEHOLDER}',
        "optimizer": f"default_adamw(lr=3e-4),  # {PLACEHOLDER}: rates are yours",
        "loss": f"{loss},",
        "training": _call("TrainingConfig", training(question, python=True)),
        "parallelism": _call("ParallelismConfig", layout),
        "compile": _call("CompileConfig", compile_words(question, compiled=compiled, python=True)),
        "activation_checkpoint": RECOMPUTE[recompute_words(question)["mode"]],
    }
    if question.layout.kernels.deterministic:
        fields["debug"] = "DebugConfig(deterministic=True),"
    lines = [f"        {name}={text}" for name, text in fields.items()]
    code = "\n".join(
        ["def plan() -> Trainer.Config:", *body, "    return Trainer.Config(", *lines, "    )", ""]
    )
    return f"{_imports(code)}\n\n\n{code}"


RECOMPUTE: Final = {"none": "None,", "full": "FullAC.Config(),", "selective": "SelectiveAC.Config(),"}


def _imports(code: str) -> str:
    """Return the lines that import what the code names."""
    used = set(re.findall(r"\w+", code))
    lines = ["import dataclasses", ""] if "dataclasses" in used else []
    for module, names in IMPORTS.items():
        if found := [name for name in names if name in used]:
            lines.append(f"from {module} import {', '.join(found)}")
    return "\n".join(lines)


def _call(name: str, words: Mapping[str, Any]) -> str:
    lines = (f"            {word}={value!r},\n" for word, value in words.items())
    return f"{name}(\n{''.join(lines)}        ),"


def _converters(question: Question, *, compiled: bool) -> list[str]:
    """Return the converters that make linear layers, and experts, compute in narrow types, and then add adapters."""
    compute = question.workload.precision.compute
    linear, grouped = CONVERTERS.get(compute, ("", ""))
    wants = question.model.is_moe and question.layout.kernels.narrow_experts
    inside = f"model_compile_enabled={compiled}"
    found = [f"{linear}.Config({NARROWED.get(compute, '')}{inside})"] if linear else []
    found += [f"{grouped}.Config({inside})"] * bool(grouped and wants)
    return found + converter(question.workload.trainable, question.model)


def _dispatcher(question: Question) -> dict[str, str]:
    words = {"all_to_all": "standard"}
    dispatcher = question.layout.dispatcher
    return {"moe_comm_backend": words.get(dispatcher, dispatcher)} if question.model.is_moe else {}


def _registered(question: Question, flavor: tuple[str, str], converters: list[str]) -> list[str]:
    """Return the line that takes a model from torchtitan's registry."""
    module, name = flavor
    words = [repr(name), *(f"{word}={value!r}" for word, value in _dispatcher(question).items())]
    if (depth := _depth(question)) and module == "deepseek_v3":
        words.append(f"num_mtp_layers={depth}")
    if converters:
        words.append(f"converters=[{', '.join(converters)}]")
    return [f"    model_spec = {module}.model_registry({', '.join(words)})"]


ROPE: Final = {
    "llama3": ("ComplexRoPE", 500000.0),
    "qwen3": ("CosSinRoPE", 1000000.0),
    "deepseek_v3": ("ComplexRoPE", 10000.0),
}
"""Rotary positions of each model, which cost the same whatever their base."""


def _built(question: Question, own: Sized | None, converters: list[str]) -> list[str]:
    """Return the lines that build a model of sizes that no registry has."""
    assert own is not None
    dim, vocab, module = own.config["hidden_size"], own.config["vocab_size"], own.builder.module
    tied = bool(own.config.get("tie_word_embeddings", False))
    starts = f"{module}.{'_EMBEDDING_SKIP_INIT' if tied else '_EMBEDDING_INIT'}"
    norm, head = (
        f"RMSNorm.Config(normalized_shape={dim}, param_init={module}._NORM_INIT)",
        f"_output_linear_init({dim})",
    )
    if module == "qwen3":
        norm, head = f"qwen3._qwen3_norm({dim})", "_LINEAR_INIT"
    fields = {
        "dim": dim,
        "vocab_size": vocab,
        **({"enable_weight_tying": True} if tied else {}),
        "tok_embeddings": f"Embedding.Config(num_embeddings={vocab}, embedding_dim={dim}, param_init={starts})",
        "norm": norm,
        "lm_head": f"Linear.Config(in_features={dim}, out_features={vocab}, param_init={module}.{head})",
        **({"mtp_layers": _predicting(question, dim)} if module == "deepseek_v3" else {}),
        "layers": "layers",
    }
    return [
        f"    layers = {_layers(question, own)}",
        f"    model = {own.builder.model}.Config(",
        *(f"        {name}={value}," for name, value in fields.items()),
        "    )",
        *(f"    model = {each}.build().convert(model)" for each in converters),
        f'    model_spec = dataclasses.replace({module}.model_registry("debugmodel"), flavor="plan", model=model)',
    ]


def _depth(question: Question) -> int:
    """Return the layers of multi-token prediction, which 0.3 trains with neither pipeline nor context ranks."""
    return question.model.num_mtp_layers if question.layout.pp == question.layout.cp == 1 else 0


def _predicting(question: Question, dim: int) -> str:
    """Return the call that makes the layers of multi-token prediction, each like the last of the others."""
    count = _depth(question)
    words = f"dim={dim}, num_mtp_layers={count}"
    return f"deepseek_v3._build_mtp_layers(layers[-1], {words})" if count else "[]"


def _layers(question: Question, own: Sized) -> str:
    """Return the call of the builder that makes the layers."""
    module = own.builder.module
    rope, theta = ROPE[module]
    config = own.config
    width = config.get("qk_rope_head_dim", config.get("head_dim"))
    width = width or config["hidden_size"] // config["num_attention_heads"]
    longest = max(question.workload.seq_len, question.model.max_seq_len)
    words: dict[str, object] = own.words(own.builder.words)
    if own.routed:
        words |= _dispatcher(question)
    if module == "deepseek_v3":
        words.setdefault("dense_hidden_dim", words["moe_hidden_dim"])
        words |= {"router_score_func": SCORES[own.kind], "mscale": 1.0, "non_blocking_capacity_factor": None}
    lines = [f"{word}={value!r}" for word, value in (words | {"attn_backend": "flex"}).items()]
    lines.append(f"rope={rope}.Config(dim={width}, max_seq_len={longest}, theta={theta})")
    inside = "".join(f"        {line},\n" for line in lines)
    return f"{module}.{own.builder.name}(\n{inside}    )"
