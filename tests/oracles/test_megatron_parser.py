"""Megatron-LM's own parser and process groups understand what we write as we meant it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.oracles.parsers import launched, needs, parser
from tests.plans import drawn, plans

from forescale.errors import ForescaleError
from forescale.export import export
from forescale.face import ask
from forescale.frameworks.megatron import read_arguments
from forescale.frameworks.megatron.writer import launch_script
from forescale.graph.stages import given_chunks, layers_per_chunk
from forescale.question import Question
from forescale.spec import FullAttention, LatentAttention, Overlap, Precision, Recompute, Routing
from forescale.spec.layout import Offload

PACKAGE = "megatron-core-0.19.2"
CP_KINDS = {"ring": "p2p", "all_gather": "allgather", "ulysses": "a2a", "hierarchical": "a2a+p2p"}
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
RECIPES = {"delayed": "delayed", "current": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}
DISPATCHERS = {"all_to_all": "alltoall", "deepep": "flex", "hybridep": "flex"}
PLAIN = Overlap()


Ask = Callable[[list[Any]], list[Any]]


@pytest.fixture(scope="module")
def megatron() -> Iterator[Ask]:
    """Ask Megatron-LM's parser, which takes seconds to import, in one process."""
    with parser("megatron_parser.py", PACKAGE) as ask_parser:
        yield ask_parser


def understood(scripts: list[str], folder: Path, megatron: Ask) -> list[dict[str, Any]]:
    """What Megatron makes of each script, which is run with another torchrun."""
    question = []
    for at, script in enumerate(scripts):
        parts, variables = launched(script, folder / str(at))
        program = next(place for place, word in enumerate(parts) if word.endswith(".py"))
        launcher = dict(zip(parts[:program:2], parts[1:program:2], strict=True))
        world = int(launcher["--nproc-per-node"]) * int(launcher["--nnodes"])
        question.append({"arguments": parts[program + 1 :], "world": world, "variables": variables})
    return megatron(question)


def meant(question: Question) -> dict[str, Any]:
    """What Megatron must understand of a plan, in its words."""
    layout, workload, model = question.layout, question.workload, question.model
    count = layout.pp * layout.vpp
    chunks = (
        layers_per_chunk(model.num_layers, count, spare_ends=layout.vpp > 1)
        if layout.stage_layers is None
        else given_chunks(model, layout.stage_layers, tuple(range(layout.pp)) * layout.vpp)
    )
    full = layout.zero > 1
    return {
        **{name: getattr(layout, name) for name in ("tp", "pp", "vpp", "cp", "dp")},
        "ep": layout.ep,
        "etp": layout.etp if model.is_moe else layout.tp,
        "expert_dp": layout.expert_dp if model.is_moe else layout.cp * layout.dp,
        "layers": [len(chunk) for chunk in chunks],
        "data_parallel_size": layout.dp,
        "sequence_parallel": layout.sp and layout.tp > 1,
        "cp_comm_type": [CP_KINDS[layout.cp_kind]],
        "micro_batch_size": layout.micro_batch_size,
        "global_batch_size": workload.global_batch_size,
        "seq_length": workload.seq_len,
        "use_distributed_optimizer": layout.zero > 0,
        "num_distributed_optimizer_instances": layout.dp_replicate if layout.zero else 1,
        "use_megatron_fsdp": full,
        **({"data_parallel_sharding_strategy": STRATEGIES[layout.zero]} if full else {}),
        "overlap_grad_reduce": layout.overlap.grad_reduce,
        "overlap_param_gather": layout.overlap.param_gather
        and layout.overlap.grad_reduce
        and layout.zero > 0,
        "overlap_p2p_comm": layout.overlap.pipeline and layout.vpp > 1,
        "cpu_offloading_num_layers": layout.offload.activation_layers,
        "optimizer_cpu_offload": layout.offload.optimizer > 0,
        **_recompute(question),
        **_types(workload.precision),
        **_sizes(question),
    }


def _recompute(question: Question) -> dict[str, Any]:
    recompute, model = question.layout.recompute, question.model
    if recompute.granularity == "selective":
        latent = any(isinstance(kind.attention, LatentAttention) for kind in model.layer_kinds)
        absent = {"moe", "moe_act"} if not model.is_moe else set()
        absent |= set() if latent else {"mla_up_proj"}
        there = [module for module in recompute.modules if module not in absent]
        return {
            "recompute_granularity": "selective" if there else None,
            **({"recompute_modules": there} if there else {}),
        }
    if recompute.granularity == "none":
        return {"recompute_granularity": None}
    subset = recompute.num_layers is not None
    return {
        "recompute_granularity": "full",
        "recompute_method": "block" if subset else "uniform",
        "recompute_num_layers": recompute.num_layers if subset else recompute.unit,
    }


def _types(precision: Precision) -> dict[str, Any]:
    narrow = precision.compute in ("fp8", "mxfp8")
    return {
        "bf16": precision.activations == "bf16",
        "fp16": precision.activations == "fp16",
        "fp8": "hybrid" if narrow else None,
        **({"fp8_recipe": RECIPES[precision.recipe]} if narrow else {}),
        "fp8_param_gather": precision.parameters == "fp8",
        "accumulate_allreduce_grads_in_fp32": precision.gradients == "fp32"
        and precision.activations != "fp32",
    }


def _sizes(question: Question) -> dict[str, Any]:
    model, moe = question.model, question.model.moe
    attention = model.layers[-1].attention
    values: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "mtp_num_layers": model.num_mtp_layers or None,
        "num_experts": moe and moe.num_experts,
        "multi_latent_attention": isinstance(attention, LatentAttention),
    }
    if isinstance(attention, LatentAttention | FullAttention):
        values["num_attention_heads"] = attention.num_heads
    if isinstance(attention, LatentAttention):
        values["kv_lora_rank"] = attention.kv_lora_rank
    if moe is not None:
        values |= {
            "moe_router_topk": moe.top_k,
            "moe_ffn_hidden_size": moe.ffn_hidden_size,
            "moe_token_dispatcher_type": DISPATCHERS[question.layout.dispatcher],
        }
    return values


CHOICES: dict[str, Any] = {
    "cp_kind": tuple(CP_KINDS),
    "axis_order": (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")),
    "overlap": (
        PLAIN,
        Overlap(tensor=True),
        Overlap(pipeline=False, expert=True),
        Overlap(grad_reduce=False),
    ),
    "offload": (Offload(), Offload(), Offload(optimizer=0.5)),
    "dispatcher": ("all_to_all", "deepep", "hybridep"),
    "routing": (Routing(), Routing(capacity_factor=1.0, pad_to_capacity=True), Routing(balance="none")),
    "recompute": (
        Recompute(),
        Recompute(granularity="full"),
        Recompute(granularity="full", num_layers=1),
        Recompute(granularity="full", unit=2),
        Recompute(granularity="selective", modules=("core_attn", "mlp", "layernorm")),
        Recompute(granularity="selective", modules=("moe_act", "moe", "mla_up_proj")),
    ),
}


def differences(questions: list[Question], folder: Path, megatron: Ask) -> list[str]:
    """Where Megatron understood something else, or refused."""
    scripts = [result.texts[result.main] for result in map(export, questions)]
    results_found = []
    for question, answer in zip(questions, understood(scripts, folder, megatron), strict=True):
        if "refused" in answer:
            results_found.append(f"{answer['refused']}: {question.layout}")
        else:
            requested = meant(question)
            wrong = {
                name: (value, answer[name]) for name, value in requested.items() if answer[name] != value
            }
            results_found += [f"{wrong}: {question.layout}"] if wrong else []
    return results_found


@needs(PACKAGE)
def test_plans_are_understood_as_they_were_meant(tmp_path: Path, megatron: Ask) -> None:
    assert differences(plans("megatron", 48), tmp_path, megatron) == []


@needs(PACKAGE)
def test_every_choice_is_understood(tmp_path: Path, megatron: Ask) -> None:
    assert differences(plans("megatron", 48, seed=2, **CHOICES), tmp_path, megatron) == []


@needs(PACKAGE)
def test_what_megatron_refuses_is_refused(tmp_path: Path, megatron: Ask) -> None:
    """Of random layouts, legal or not, none that Megatron-LM refuses is written."""
    tried = drawn("megatron", 90, seed=3, **CHOICES)
    answers = understood([launch_script(question) for question in tried], tmp_path, megatron)
    refused = [answer["refused"] for answer in answers if "refused" in answer]
    slipped = [
        f"{answer['refused']}: {question.layout}"
        for question, answer in zip(tried, answers, strict=True)
        if "refused" in answer and written(question)
    ]
    assert slipped == []
    assert len(refused) >= 20


@needs(PACKAGE)
def test_gpt_oss_is_understood_with_its_clamp_and_its_positions(tmp_path: Path, megatron: Ask) -> None:
    """Values of its config.json on Hugging Face, and the alternation of its windows."""
    question = ask(
        "gpt-oss-20b",
        "h100-sxm",
        devices=8,
        ep=8,
        seq_len=4096,
        global_batch_size=64,
        framework="megatron-core",
    )
    result = export(question)
    (answer,) = understood([result.texts[result.main]], tmp_path, megatron)
    requested = {
        "quick_geglu": True,
        "glu_linear_offset": 1.0,
        "activation_func_clamp_value": 7.0,
        "position_embedding_type": "yarn",
        "rotary_base": 150000,
        "rotary_scaling_factor": 32.0,
        "yarn_original_max_position_embeddings": 4096,
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": 1.0,
        "yarn_correction_range_round_to_int": False,
        "num_experts": 32,
    }
    assert {name: answer.get(name, answer) for name in requested} == requested


POSITIONS = {
    "llama-3-8b": {"rotary_base": 500000, "use_rope_scaling": False, "eps": 1e-5},
    "llama-3.2-1b": {"rotary_base": 500000, "use_rope_scaling": True, "rope_scaling_factor": 32.0},
    "qwen3-8b": {"rotary_base": 1000000, "rotary_percent": 1.0, "eps": 1e-6},
    "exaone-4.0-32b": {"rotary_base": 1000000, "no_rope_freq": [0, 0, 0, 1] * 16},
    "phi-4-mini": {"rotary_base": 10000, "rotary_percent": 0.75},
    "deepseek-v2-lite": {
        "rotary_scaling_factor": 40.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "eps": 1e-6,
    },
    "moonlight-16b-a3b": {
        "rotary_base": 50000,
        "rotary_scaling_factor": 1.0,
        "eps": 1e-5,
        "moe_router_pre_softmax": False,
        "moe_router_score_function": "sigmoid",
        "moe_router_topk_scaling_factor": 2.446,
    },
    "qwen2-57b-a14b": {"moe_router_score_function": "softmax", "moe_router_pre_softmax": True},
}
"""Positions, norms and weights of experts of models, as their own configurations have them, in Megatron's words."""


@needs(PACKAGE)
def test_positions_of_models_are_understood(tmp_path: Path, megatron: Ask) -> None:
    parts = {"devices": 8, "seq_len": 4096, "global_batch_size": 64, "framework": "megatron-core"}
    exports = [export(ask(name, "h100-sxm", **parts)) for name in POSITIONS]
    answers = understood([item.texts[item.main] for item in exports], tmp_path, megatron)
    result = {
        name: {key: answer.get(key, answer) for key in POSITIONS[name]}
        for name, answer in zip(POSITIONS, answers, strict=True)
    }
    assert result == POSITIONS


LATER = "num_attention_heads"
"""What is refused of a reading once it is laid out (spec/constraints.py)."""
AT_WORK = "experts under tensor parallelism"
"""What its parser takes and its layers refuse (moe_layer.py)."""


@needs(PACKAGE)
def test_what_megatron_refuses_is_not_read(tmp_path: Path, megatron: Ask) -> None:
    """Of random scripts, which break its laws or not: what it refuses is refused or named, what it takes is read."""
    tried = drawn("megatron", 120, seed=4, **CHOICES)
    scripts = [launch_script(question) for question in tried]
    slipped, result = [], 0
    for script, answer in zip(scripts, understood(scripts, tmp_path, megatron), strict=True):
        explicit, refused = judged(script), answer.get("refused", "")
        result += bool(explicit)
        if bool(explicit) != bool(refused) and LATER not in refused and AT_WORK not in explicit:
            slipped.append(f"{explicit or 'read'}, {refused or 'taken'}: {script}")
    assert slipped == []
    assert result >= 20


def judged(script: str) -> str:
    """What reading refuses of a script, or says that Megatron-LM refuses; nothing where all is well."""
    try:
        notes = read_arguments(script).notes
    except ForescaleError as error:
        return str(error)
    return next((note for note in notes if note.startswith("Megatron-LM refuses")), "")


def written(question: Question) -> bool:
    """Whether a layout is exported."""
    try:
        export(question)
    except ForescaleError:
        return False
    return True
