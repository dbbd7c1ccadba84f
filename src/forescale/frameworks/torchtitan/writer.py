"""Write a question as a Python job configuration of torchtitan 0.3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from forescale.errors import SpecError
from forescale.frameworks.torchtitan.keys import FACTS, SCORES, Sized, converter, flavor_of, sized
from forescale.frameworks.torchtitan.layout import LOSS_COMPONENT, MODEL_COMPONENT, SCHEDULES, SINGLE, dealt
from forescale.frameworks.torchtitan.rope import product_scale, rope_text, weight_words
from forescale.frameworks.writing import PLACEHOLDER, Files, Writer, allocator, torchrun
from forescale.graph.stages import virtual_stages
from forescale.question import Question
from forescale.schedule.family import Request
from forescale.schedule.library import build_schedule, family
from forescale.schedule.model import Schedule
from forescale.schedule.torch_csv import to_csv
from forescale.spec.dispatchers import DISPATCHERS
from forescale.spec.layout import Layout
from forescale.spec.rope import PLAIN_ROPE
from forescale.spec.workload import num_microbatches

NAMES: Final = {ours: theirs for theirs, ours in SCHEDULES.items()}
FOLDED: Final = ("zbv", "dualpipev")
"""Schedules whose second stages lie on the ranks in reverse order."""


def training(question: Question) -> dict[str, Any]:
    """Return the section of batch, types and steps."""
    layout, workload = question.layout, question.workload
    ranks = layout.dp
    local = workload.global_batch_size // ranks if layout.pp > 1 else layout.micro_batch_size
    values: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": workload.global_batch_size,
        "seq_len": workload.seq_len,
    }
    if workload.num_steps:
        values["steps"] = workload.num_steps
    types = workload.precision
    if types.parameters == "bf16" and types.master == "none":
        values["dtype"] = "bfloat16"
    if types.compute in ("fp32", "tf32"):
        values["mixed_precision_param"] = "float32"
    if layout.offload.parameters:
        values["enable_cpu_offload"] = True
    values["disable_cuda_graphs"] = layout.graphs != "full"
    return values


def parallelism(question: Question) -> dict[str, Any]:
    """Return the section of degrees and stages; without shards all of data parallel is replicas."""
    layout = question.layout
    whole = layout.zero == 0
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp if whole else layout.dp_replicate,
        "data_parallel_shard_degree": 1 if whole else layout.dp_shard,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep,
    }
    if isinstance(layout.reshard, str) and layout.reshard != "default":
        values["fsdp_reshard_after_forward"] = layout.reshard
    if layout.zero in (1, 2):
        values["fsdp_reshard_after_forward"] = "never"
    if layout.pp > 1:
        values |= _pipeline(question)
    values["enable_sequence_parallel"] = layout.sp
    if layout.cp > 1 and not layout.cp_balanced:
        values["context_parallel_load_balancer"] = None
    return values


def _pipeline(question: Question) -> dict[str, Any]:
    """Return schedule, micro-batch and which layers each stage has, where torchtitan would deal them otherwise."""
    layout, model = question.layout, question.model
    name = NAMES.get(_schedule(layout), "")
    values: dict[str, Any] = {"pipeline_parallel_microbatch_size": layout.micro_batch_size}
    if name:
        values = {"pipeline_parallel_schedule": name, **values}
    layers = stage_layers(question)
    usual = layout.pp * (1 if name in SINGLE else 2)
    if len(layers) != usual or dealt(usual, model.num_layers) != layers:
        values["module_fqns_per_model_part"] = list(_modules(layers))
    return values


def _schedule(layout: Layout) -> str:
    return layout.schedule or ("1f1b" if layout.vpp == 1 else "interleaved-1f1b")


def stage_layers(question: Question) -> tuple[int, ...]:
    """Return the layers of each virtual stage in the order of the model."""
    layout = question.layout
    ranks = tuple(range(layout.pp))
    order = (ranks, ranks[::-1]) if layout.schedule in FOLDED else (ranks,) * layout.vpp
    plan = virtual_stages(
        question.model, tuple(rank for item in order for rank in item), stage_layers=layout.stage_layers
    )
    return tuple(map(int, plan.num_layers))


def _modules(layers: tuple[int, ...]) -> Iterator[list[str]]:
    start = 0
    for stage, count in enumerate(layers):
        names = [f"layers.{number}" for number in range(start, start + count)]
        start += count
        yield [*["tok_embeddings"] * (stage == 0), *names, *["norm", "lm_head"] * (stage == len(layers) - 1)]


def schedule_csv(question: Question) -> Schedule | None:
    """Return the schedule that goes into a table, because torch has no name for it.

    Raises
    ------
    SpecError
        If its order follows from times, so that the table would be of this machine only.
    """
    layout, workload = question.layout, question.workload
    name = _schedule(layout)
    if layout.pp == 1 or name in NAMES:
        return None
    count = num_microbatches(
        global_batch_size=workload.global_batch_size,
        dp=layout.dp,
        micro_batch_size=layout.micro_batch_size,
    )
    request = Request(pp=layout.pp, num_microbatches=int(count), vpp=layout.vpp)
    slow = Request(pp=layout.pp, num_microbatches=int(count), vpp=layout.vpp, forward=3.0, comm=1.0)
    schedule = build_schedule(name, request, vpp=layout.vpp)
    if build_schedule(name, slow, vpp=layout.vpp).orders != schedule.orders:
        msg = f"{family(name).name} orders its work by times; torchtitan takes a table that fits one run only"
        raise SpecError(msg)
    return schedule


def compile_words(question: Question, *, compiled: bool) -> dict[str, Any]:
    """Return the section of torch.compile."""
    layout = question.layout
    parts = [MODEL_COMPONENT] * compiled + [LOSS_COMPONENT] * (layout.kernels.cross_entropy == "compiled")
    values: dict[str, Any] = {"enable": bool(parts)}
    if parts and len(parts) < len((MODEL_COMPONENT, LOSS_COMPONENT)):
        values["components"] = parts
    if layout.overlap.tensor and compiled:
        values["enable_async_tensor_parallel"] = True
    return values


JOB: Final = "plan.py"
CONVERTERS: Final = {
    "fp8": ("Float8LinearConverter", "Float8GroupedExpertsConverter"),
    "mxfp8": ("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter"),
    "nvfp4": ("NVFP4LinearConverter", ""),
}
NARROWED: Final = {"fp8": 'filter_fqns=["lm_head"], ', "nvfp4": 'fqns=["layers"], '}
"""The head stays as it is; nvfp4 says so by naming the layers."""


def job_text(
    question: Question, flavor: tuple[str, str] | None, local: Sized | None, csv: str, *, compiled: bool
) -> str:
    """Return the file: one function that returns a Trainer.Config."""
    layout = parallelism(question)
    if csv:
        layout |= {
            "pipeline_parallel_schedule": "_PipelineScheduleRuntime",
            "pipeline_parallel_schedule_csv": csv,
        }
    converters = _converters(question, compiled=compiled)
    body = _registered(question, flavor, converters) if flavor else _built(question, local, converters)
    loss = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    if question.layout.kernels.cross_entropy == "fused_linear":
        loss = f"ChunkedLossWrapper.Config(loss_fn={loss})"
    fields = {
        "model_spec": "model_spec,",
        "hf_assets_path": f'"assets/hf",  # {PLACEHOLDER}: tokenizer',
        "dataloader": f'HuggingFaceTextDataLoader.Config(dataset="c4"),  # {PLACEHOLDER}',
        "optimizer": f"default_adamw(lr=3e-4),  # {PLACEHOLDER}: rates are yours",
        "loss": f"{loss},",
        "training": _call("TrainingConfig", training(question)),
        "parallelism": _call("ParallelismConfig", layout),
        "compile": _call("CompileConfig", compile_words(question, compiled=compiled)),
        "activation_checkpoint": RECOMPUTE.get(
            question.layout.recompute.granularity, "SelectiveAC.Config(),"
        ),
    }
    if question.layout.kernels.deterministic:
        fields["debug"] = "DebugConfig(deterministic=True),"
    lines = [f"        {name}={text}" for name, text in fields.items()]
    code = "\n".join(
        ["def plan() -> Trainer.Config:", *body, "    return Trainer.Config(", *lines, "    )", ""]
    )
    return f"{_imports(code)}\n\n\n{code}"


RECOMPUTE: Final = {"none": "None,", "full": "FullAC.Config(),"}
"""Class of activation checkpointing by granularity; every other granularity is written per operator."""


def _imports(code: str) -> str:
    """Return the lines that import what the code names."""
    used = set(re.findall(r"\w+", code))
    lines = ["import dataclasses", ""] if "dataclasses" in used else []
    for module, names in FACTS["imports"].items():
        if result := [name for name in names if name in used]:
            lines.append(f"from {module} import {', '.join(result)}")
    return "\n".join(lines)


def _call(name: str, values: Mapping[str, Any]) -> str:
    lines = (f"            {word}={value!r},\n" for word, value in values.items())
    return f"{name}(\n{''.join(lines)}        ),"


def _converters(question: Question, *, compiled: bool) -> list[str]:
    """Return the converters that make linear layers, and experts, compute in narrow types, and then add adapters."""
    compute = question.workload.precision.compute
    linear, grouped = CONVERTERS.get(compute, ("", ""))
    wants = question.model.is_moe and question.layout.kernels.narrow_experts
    inside = f"model_compile_enabled={compiled}"
    rows = 'recipe_name="rowwise", ' * (question.workload.precision.recipe == "rowwise")
    result = [f"{linear}.Config({NARROWED.get(compute, '')}{rows}{inside})"] if linear else []
    result += [f"{grouped}.Config({inside})"] * bool(grouped and wants)
    return result + converter(question.workload.trainable, question.model)


def _dispatcher(question: Question) -> dict[str, str]:
    dispatcher = DISPATCHERS[question.layout.dispatcher]
    return {"moe_comm_backend": dispatcher.frameworks["torchtitan"][0]} if question.model.is_moe else {}


def _registered(question: Question, flavor: tuple[str, str], converters: list[str]) -> list[str]:
    """Return the line that takes a model from torchtitan's registry."""
    module, name = flavor
    texts = [repr(name), *(f"{word}={value!r}" for word, value in _dispatcher(question).items())]
    if (depth := _depth(question)) and module == "deepseek_v3":
        texts.append(f"num_mtp_layers={depth}")
    if converters:
        texts.append(f"converters=[{', '.join(converters)}]")
    return [f"    model_spec = {module}.model_registry({', '.join(texts)})"]


def _built(question: Question, local: Sized | None, converters: list[str]) -> list[str]:
    """Return the lines that build a model of sizes that no registry has."""
    assert local is not None
    dim, vocab, module = local.config["hidden_size"], local.config["vocab_size"], local.builder.module
    tied = bool(local.config.get("tie_word_embeddings", False))
    starts = f"{module}.{'_EMBEDDING_SKIP_INIT' if tied else '_EMBEDDING_INIT'}"
    norm = f"RMSNorm.Config(normalized_shape={dim}, param_init={module}._NORM_INIT)"
    head = f"_output_linear_init({dim})"
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
        f"    layers = {_layers(question, local)}",
        f"    model = {local.builder.model}.Config(",
        *(f"        {name}={value}," for name, value in fields.items()),
        "    )",
        *(f"    model = {item}.build().convert(model)" for item in converters),
        f'    model_spec = dataclasses.replace({module}.model_registry("debugmodel"), flavor="plan", model=model)',
    ]


def _depth(question: Question) -> int:
    """Return the layers of multi-token prediction, which 0.3 trains with neither pipeline nor context ranks."""
    return question.model.num_mtp_layers if question.layout.pp == question.layout.cp == 1 else 0


def _predicting(question: Question, dim: int) -> str:
    """Return the call that makes the layers of multi-token prediction, each like the last of the others."""
    count = _depth(question)
    text = f"dim={dim}, num_mtp_layers={count}"
    return f"deepseek_v3._build_mtp_layers(layers[-1], {text})" if count else "[]"


def _layers(question: Question, local: Sized) -> str:
    """Return the call of the builder that makes the layers."""
    module = local.builder.module
    rope = question.model.ropes[0] or PLAIN_ROPE
    config = local.config
    width = config.get("qk_rope_head_dim", config.get("head_dim"))
    width = width or config["hidden_size"] // config["num_attention_heads"]
    longest = max(question.workload.seq_len, question.model.max_seq_len)
    values: dict[str, object] = local.words(local.builder.words)
    if local.routed:
        values |= _dispatcher(question)
    if module == "deepseek_v3":
        values.setdefault("dense_hidden_dim", values["moe_hidden_dim"])
        values |= {
            "router_score_func": SCORES[local.kind],
            "mscale": product_scale(rope),
            "non_blocking_capacity_factor": None,
        }
        values |= {f"router_{word}": value for word, value in weight_words(question.model).items()}
    lines = [f"{word}={value!r}" for word, value in (values | {"attn_backend": "flex"}).items()]
    lines.append(f"rope={rope_text(module, rope, width=width, longest=longest)}")
    inside = "".join(f"        {line},\n" for line in lines)
    return f"{module}.{local.builder.name}(\n{inside}    )"


CSV: Final = "schedule.csv"


class TorchtitanWriter(Writer):
    """Writes the Python job configurations of torchtitan 0.3."""

    title = "torchtitan job configuration in Python (0.3)"
    frameworks = ("torchtitan",)
    no_vision = "what is written for torchtitan are its models of text"
    endings: Mapping[str, str] = {"0.3": ".py"}
    several = True

    def write(self, question: Question) -> Files:
        """Return the job configuration; settings that have no key in torchtitan are left out."""
        assert question.framework is not None
        release, _, eager = question.framework.release.partition("-")
        if not self.writes(release):
            msg = f"{question.framework.label} cannot be exported; torchtitan@0.3 can"
            raise SpecError(msg)
        flavor = flavor_of(question.model)
        local = sized(question.model) if flavor is None else None
        csv = schedule_csv(question)
        table = {} if csv is None else {CSV: to_csv(csv)}
        job = job_text(question, flavor, local, CSV if table else "", compiled=not eager)
        return Files(
            texts={JOB: job, **table},
            main=JOB,
            launch=f"{torchrun(question.cluster)} -m torchtitan.train --module plan --config plan",
            variables=allocator(question),
        )
