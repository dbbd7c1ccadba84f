"""A question as DeepSpeed's JSON beside the Hugging Face Trainer's arguments and the model's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from forescale.errors import unsupported_by
from forescale.frameworks.adapters import WHOLE
from forescale.frameworks.deepspeed.reader import EXPERTS, FULLY_SHARDED, ZERO
from forescale.frameworks.huggingface.writer import config_of
from forescale.frameworks.writing import PLACEHOLDER, Files, Writer, allocator, torchrun
from forescale.question import Question
from forescale.spec.optimizers import OPTIMIZERS
from forescale.spec.workload import Workload

ARGUMENTS, CONFIG, MODEL = "training.json", "ds_config.json", "config.json"
KEPT: Final = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
PLACED: Final = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")
"""Models whose experts DeepSpeed 0.19.8 can place by itself (module_inject/auto_ep_presets)."""
PROGRAM, TUNER = "run_clm.py", "sft.py"
QUANTISED: Final[Mapping[str, Mapping[str, Any]]] = {
    "int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4_double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True},
}
"""What TRL's ModelConfig calls the types of frozen weights."""
DROPOUT: Final = 0.05


class DeepSpeedWriter(Writer):
    """A folder for the Hugging Face Trainer on DeepSpeed."""

    title = "DeepSpeed configuration with the Hugging Face Trainer's arguments"
    frameworks = ("deepspeed-zero",)
    no_vision = "the Trainer's program that is written, run_clm.py, trains text alone"
    several = True

    def write(self, question: Question) -> Files:
        """Return the three files; what their keys have no word for is left out."""
        if question.layout.pp > 1:
            value = "pipeline stages: they need a PipelineModule, which the Trainer does not build"
            raise unsupported_by("deepspeed-zero", value)
        layout = question.layout
        if layout.ep > 1 < layout.tp and (layout.offload.optimizer or layout.offload.parameters):
            raise unsupported_by(
                "deepspeed-zero", "states on the host with experts over tensor parallelism (AutoEP)"
            )
        texts = {
            ARGUMENTS: _arguments(question),
            CONFIG: _config(question),
            MODEL: config_of(question.model),
        }
        program, notes = (
            f"{PROGRAM} {ARGUMENTS}",
            (
                f"{PROGRAM} is examples/pytorch/language-modeling/{PROGRAM} of transformers",
                f"{PLACEHOLDER}: dataset_name, tokenizer_name, output_dir and the learning rate are yours",
            ),
        )
        if question.workload.trainable.lora_rank:
            program, notes = (
                f"{TUNER} --config {ARGUMENTS}",
                (
                    f"{TUNER} is trl/scripts/{TUNER} of TRL; the base model's weights and tokenizer go beside {MODEL}",
                    f"{PLACEHOLDER}: dataset_name, output_dir and the learning rate are yours",
                ),
            )
        return Files(
            texts={name: json.dumps(content, indent=2) + "\n" for name, content in texts.items()},
            main=ARGUMENTS,
            launch=f"{torchrun(question.cluster)} {program}",
            comment=None,
            notes=notes,
            variables=allocator(question),
        )


def _steps(question: Question) -> int:
    layout = question.layout
    return question.workload.global_batch_size // (layout.micro_batch_size * layout.dp)


def _arguments(question: Question) -> dict[str, Any]:
    """Return the Trainer's arguments: batch, length, types, recompute."""
    layout, workload = question.layout, question.workload
    values: dict[str, Any] = {
        **_program(workload),
        "dataset_name": PLACEHOLDER,
        "output_dir": "checkpoints",
        "deepspeed": CONFIG,
        "per_device_train_batch_size": layout.micro_batch_size,
        "gradient_accumulation_steps": _steps(question),
        "gradient_checkpointing": layout.recompute.granularity == "full",
        "bf16": workload.precision.compute in ("bf16", "fp8", "mxfp8", "nvfp4"),
        "fp16": workload.precision.compute == "fp16",
        **({"tf32": False} if workload.precision.compute == "fp32" else {}),
        "learning_rate": 3e-4,
    }
    if workload.num_steps:
        values["max_steps"] = workload.num_steps
    return values


def _program(workload: Workload) -> dict[str, Any]:
    """Return what one program asks for: run_clm.py of a model to be trained whole, TRL's of adapters beside weights."""
    trained = workload.trainable
    if not trained.lora_rank:
        named = {"config_name": MODEL, "tokenizer_name": PLACEHOLDER, "do_train": True}
        return {**named, "block_size": workload.seq_len}
    parts = {part: module for module, part in reversed(tuple(WHOLE.items()))}
    whole = [parts[part] for part in trained.whole if part in parts]
    return {
        "model_name_or_path": ".",
        "max_length": workload.seq_len,
        "packing": True,
        "use_peft": True,
        "lora_r": trained.lora_rank,
        "lora_alpha": 2 * trained.lora_rank,
        "lora_dropout": DROPOUT if trained.lora_dropout else 0.0,
        "lora_target_modules": list(trained.unfused),
        **({"lora_modules_to_save": whole} if whole else {}),
        **QUANTISED.get(workload.precision.frozen or "", {}),
    }


def _config(question: Question) -> dict[str, Any]:
    """Return DeepSpeed's own configuration."""
    layout, workload = question.layout, question.workload
    types = workload.precision
    values: dict[str, Any] = {
        "train_batch_size": workload.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": _steps(question),
        "optimizer": {
            "type": OPTIMIZERS[workload.optimizer].frameworks["deepspeed"][0],
            "params": {"lr": 3e-4},
        },
        ZERO: _zero(question),
    }
    if types.activations in ("bf16", "fp16"):
        values[types.activations] = {"enabled": True}
        values["data_types"] = {"grad_accum_dtype": KEPT.get(types.gradients, "fp32")}
    if layout.tp > 1:
        values["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.cp > 1:
        values["sequence_parallel_size"] = layout.cp
    if layout.ep > 1 and config_of(question.model)["model_type"] in PLACED:
        values[EXPERTS] = {"enabled": True, "autoep_size": layout.ep}
    if layout.offload.modules == ("decoder_layer_input",):
        values["activation_checkpointing"] = {"cpu_checkpointing": True}
    return values


def _zero(question: Question) -> dict[str, Any]:
    """Return the table of the stage."""
    layout = question.layout
    values: dict[str, Any] = {"stage": layout.zero, "overlap_comm": layout.overlap.grad_reduce}
    if layout.zero and layout.kernels.bucket_elements:
        values["reduce_bucket_size"] = int(layout.kernels.bucket_elements)
    if layout.zero == FULLY_SHARDED:
        if isinstance(layout.reshard, int):
            values["zero_hpz_partition_size"] = layout.reshard
        if layout.offload.parameters:
            values["offload_param"] = {"device": "cpu"}
    share = 1.0 if layout.offload.parameters and layout.offload.states else layout.offload.optimizer
    if share:
        values["offload_optimizer"] = {"device": "cpu", "ratio": share}
    return values
