"""MaxText's own configuration understands what we write as we meant it, and refuses nothing of it."""

from __future__ import annotations

from typing import Any

import yaml
from tests.oracles.parsers import asked_of, needs
from tests.plans import dense_first, plans

from forescale.export import export
from forescale.question import Question
from forescale.spec.attention import FullAttention
from forescale.spec.workload import num_microbatches

PACKAGE = "maxtext-0.2.5"
TYPES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}


def meant(question: Question) -> dict[str, Any]:
    """What MaxText must understand of a plan, in its words."""
    layout, workload, model = question.layout, question.workload, question.model
    sharded = layout.zero == 3
    batch, piped = workload.global_batch_size, layout.pp > 1
    count = num_microbatches(global_batch_size=batch, dp=layout.dp, micro_batch_size=layout.micro_batch_size)
    values: dict[str, Any] = {
        "num_target_devices": question.cluster.num_devices,
        "tensor": layout.tp,
        "context": layout.cp,
        "pipeline": layout.pp,
        "expert": layout.ep,
        "fsdp": layout.dp_shard // layout.ep if sharded else 1,
        "data": layout.dp_replicate if sharded else layout.dp,
        "shard_optimizer_over_data": layout.zero == 1,
        "global_batch_size_to_train_on": batch,
        "gradient_accumulation_steps": 1 if piped else count,
        "max_target_length": workload.seq_len,
        "emb_dim": model.hidden_size,
        "num_decoder_layers": model.num_layers,
        "dtype": TYPES[workload.precision.activations],
        "vocab_size": model.vocab_size,
    }
    if piped:
        values |= {
            "num_pipeline_microbatches": count,
            "num_pipeline_repeats": layout.vpp,
            "num_layers_per_pipeline_stage": model.num_layers // (layout.pp * layout.vpp),
        }
    if layout.recompute.granularity == "full":
        values["remat_policy"] = "full"
    if layout.cp > 1:
        values["context_parallel_strategy"] = layout.cp_kind
    if model.moe is not None:
        values |= {"num_experts": model.moe.num_experts, "num_experts_per_tok": model.moe.top_k}
    if isinstance(attention := model.layers[0].attention, FullAttention):
        values |= {"num_query_heads": attention.num_heads, "num_kv_heads": attention.num_kv_heads}
    return values


@needs(PACKAGE)
def test_plans_are_understood_as_they_were_meant() -> None:
    dense_firsts = [dense_first(plan) for plan in plans("maxtext", 60, seed=3)]
    texts = [export(item).texts["run.yml"] for item in dense_firsts]
    requested = []
    for question, text in zip(dense_firsts, texts, strict=True):
        slices = 1
        for key, degree in yaml.safe_load(text).items():
            slices *= degree if key.startswith("dcn_") else 1
        requested.append({"text": text, "devices": question.cluster.num_devices, "slices": slices})
    wrong = []
    answers = asked_of("maxtext_parser.py", PACKAGE, requested, timeout=600)
    for question, answer in zip(dense_firsts, answers, strict=True):
        if "refused" in answer:
            wrong.append(f"{answer['refused']:.300}: {question.layout!s:.300}")
            continue
        differs = {
            name: (value, answer[name]) for name, value in meant(question).items() if answer[name] != value
        }
        wrong += [f"{differs}: {question.layout!s:.300}"] if differs else []
    assert wrong == [], "\n".join(wrong[:6])
