"""A question as a recipe of TRL for accelerate, or a configuration of axolotl or LLaMA-Factory, with a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from forescale.errors import unsupported_by
from forescale.frameworks.adapters import WHOLE
from forescale.frameworks.deepspeed.writer import DROPOUT
from forescale.frameworks.huggingface.writer import config_of
from forescale.frameworks.reading import packaged
from forescale.frameworks.trainers.record import record_of
from forescale.frameworks.trainers.run import MICRO, STEPS
from forescale.frameworks.writing import (
    ADDRESS,
    PLACEHOLDER,
    PORT,
    RANK,
    Files,
    Writer,
    allocator,
    nodes_of,
    torchrun,
    variables_of_nodes,
)
from forescale.question import Question
from forescale.spec.cluster import Cluster
from forescale.syntax import dump_yaml

MODEL: Final = "config.json"
ONLY: Final[Mapping[str, dict[str, Any]]] = {
    "axolotl": {"datasets": [{"path": PLACEHOLDER, "type": "alpaca"}]},
    "llamafactory": {"stage": "sft", "do_train": True, "template": "default", "dataset": PLACEHOLDER},
    "trainer": {"dataset_name": PLACEHOLDER},
}
"""Keys of each that nothing of a question follows from."""
OTHERS: Final = ("nemo-rl", "verl")
"""Trainers of transformers' classes with configurations of their own, which are not written."""


class TrainersWriter(Writer):
    """A folder for a trainer of the Hugging Face world: by the framework's release, TRL unless one is named."""

    title = "configuration of axolotl, LLaMA-Factory, or TRL with accelerate"
    frameworks = ("transformers",)
    no_vision = "the files that are written train text alone"
    several = True

    def writes(self, release: str) -> bool:
        """Return whether a release reads what is written."""
        return release not in OTHERS

    def write(self, question: Question) -> Files:
        """Return the configuration and the model's config.json; what its keys have no word for is left out."""
        layout, form = question.layout, question.framework.release if question.framework else ""
        form = form if form in ONLY else "trainer"
        if layout.pp > 1 or layout.ep > 1 or (layout.tp > 1 and form != "axolotl"):
            fix = "its trainer shards states and sequences only (axolotl also takes tp)"
            raise unsupported_by("transformers", "pipeline, expert or tensor parallelism", fix)
        names = {canonical: name for name, canonical in reversed(list(record_of(form).keys.items()))}
        values = {names.get(key, key): value for key, value in (_values(question, form) | ONLY[form]).items()}
        main = "recipe.yaml" if form == "trainer" else f"{form}.yaml"
        return Files(
            texts={main: dump_yaml(values), MODEL: json.dumps(config_of(question.model), indent=2) + "\n"},
            main=main,
            launch=_launch(form, main, question.cluster),
            notes=(
                *_notes(values.get("fsdp", ""), layout.zero),
                f"the model's weights and tokenizer go next to {MODEL}",
                f"{PLACEHOLDER}: the dataset, output_dir and the learning rate are yours",
            ),
            variables=allocator(question),
        )


def _launch(form: str, main: str, cluster: Cluster) -> str:
    """Return the command of a trainer, with what its launcher needs to join several nodes."""
    nodes, per_node = nodes_of(cluster)
    if form == "llamafactory":
        several = f" {variables_of_nodes(cluster)} NPROC_PER_NODE={per_node}" if nodes > 1 else ""
        return f"env FORCE_TORCHRUN=1{several} llamafactory-cli train {main}"
    if form == "axolotl":
        several = (
            f" --launcher torchrun -- {torchrun(cluster).removeprefix('torchrun ')}" if nodes > 1 else ""
        )
        return f"axolotl train {main}{several}"
    first = f" --machine_rank {RANK} --main_process_ip {ADDRESS} --main_process_port {PORT}"
    several = f" --multi_gpu --num_machines {nodes}{first}" if nodes > 1 else ""
    return f"accelerate launch --num_processes {cluster.num_devices}{several} sft.py --config {main}"


def _notes(sharded: str | list[str], zero: int) -> tuple[str, ...]:
    """Return which of two engines shards the states, where both could."""
    if not sharded:
        return ()
    words = sharded if isinstance(sharded, str) else " ".join(sharded)
    engine = f"ZeRO stage {zero} is written for PyTorch's FSDP (fsdp: {words})"
    return (f"{engine}; for DeepSpeed, forescale export --to deepspeed writes its JSON",)


def _values(question: Question, form: str) -> dict[str, Any]:
    """Return the settings by the keys of TrainingArguments and TRL."""
    layout, workload, types = question.layout, question.workload, question.workload.precision
    full = layout.recompute.granularity == "full"
    values: dict[str, Any] = {
        "model_name_or_path": ".",
        "output_dir": "checkpoints",
        "max_length": workload.seq_len,
        "packing": not workload.varied_lengths,
        MICRO: layout.micro_batch_size,
        STEPS: workload.global_batch_size // (layout.micro_batch_size * layout.dp),
        **(
            {"no_gradient_checkpointing": not full}
            if form == "llamafactory"
            else {"gradient_checkpointing": full}
        ),
        "bf16": types.activations == "bf16",
        "fp16": types.compute == "fp16",
        **({"tf32": types.compute == "tf32"} if types.activations == "fp32" else {}),
        "optim": _optimizer(question),
        "learning_rate": 3e-4,
        **_sharding(question, form),
        **_trained(question, form),
    }
    if layout.cp > 1 and form == "axolotl":
        values["context_parallel_size"] = layout.cp
    if layout.tp > 1:
        values["tensor_parallel_size"] = layout.tp
    if not layout.flash_attention:
        values["attn_implementation"] = "disabled" if form == "llamafactory" else "eager"
    if layout.kernels.cross_entropy == "fused_linear":
        values["liger_loss" if form == "axolotl" else "use_liger_kernel"] = True
    if layout.kernels.compile != "none":
        values |= {"torch_compile": True, "torch_compile_mode": layout.kernels.compile}
    if workload.num_steps:
        values["max_steps"] = workload.num_steps
    if layout.zero == 0 and workload.trainable.is_all and types.activations == "bf16":
        if form == "llamafactory":
            values["pure_bf16"] = types.parameters == "bf16"
        else:
            values["dtype"] = "bfloat16" if types.parameters == "bf16" else "float32"
    return values


def _optimizer(question: Question) -> str:
    """Return the trainers' name of an optimizer with states in the type of the question."""
    workload = question.workload
    moments = "fp8" if workload.precision.moments == "fp8" else None
    table = packaged("trainers", "optimizers")["names"]
    return next((name for name, row in table.items() if row == [workload.optimizer, moments]), "adamw_torch")


def _sharding(question: Question, form: str) -> dict[str, Any]:
    """Return what shards states; nothing for plain data parallelism."""
    layout = question.layout
    if layout.zero == 0:
        return {}
    words = ["full_shard" if layout.zero == 3 else "shard_grad_op", "auto_wrap"]
    words += ["offload"] if layout.offload.parameters else []
    if form != "axolotl":
        return {"fsdp": " ".join(words)}
    degrees = {"dp_replicate_size": layout.dp_replicate, "dp_shard_size": layout.dp_shard}
    return {"fsdp": words, **(degrees if layout.dp_replicate > 1 else {})}


def _trained(question: Question, form: str) -> dict[str, Any]:
    """Return adapters and the type of the frozen weights."""
    trained, frozen = question.workload.trainable, question.workload.precision.frozen
    if not trained.lora_rank:
        return {} if form == "trainer" else {"adapter": "full"} if form == "llamafactory" else {}
    parts = {part: module for module, part in reversed(tuple(WHOLE.items()))}
    whole = [parts[part] for part in trained.whole if part in parts]
    targets = list(trained.unfused)
    values: dict[str, Any] = {
        **({"use_peft": True} if form == "trainer" else {"adapter": "lora"}),
        "lora_r": trained.lora_rank,
        "lora_alpha": 2 * trained.lora_rank,
        "lora_dropout": DROPOUT if trained.lora_dropout else 0.0,
        "lora_target_modules": ",".join(targets) if form == "llamafactory" else targets,
        **({"lora_modules_to_save": whole} if whole else {}),
    }
    bits = {"int8": 8, "nf4": 4, "nf4_double": 4}.get(frozen or "")
    if bits and form == "llamafactory":
        values |= {"quantization_bit": bits, "load_double": frozen == "nf4_double"}
    elif bits:
        values[f"load_in_{bits}bit"] = True
        values |= {"use_bnb_nested_quant": True} if frozen == "nf4_double" and form == "trainer" else {}
    return values
