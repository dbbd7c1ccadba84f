"""Recorded modules that the plans of transformers split over ranks."""

import pytest

from forescale.graph.parallel import NO_PLAN, plan_of
from forescale.graph.recorded import recorded_traces

SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
         "num_key_value_heads": 4, "vocab_size": 1000}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_local_experts": 8, "moe_intermediate_size": 256}


def trace(kind, **more):
    return recorded_traces({"model_type": kind, **SIZES, **more}, seq_len=128)[0]


def block(kind, **more):
    (result,) = trace(kind, **more).blocks.values()
    return result


def kernels(block, module, part="forward"):
    return next(getattr(item, part) for item in block.operators if item.module == module)


@pytest.mark.parametrize(("kind", "tp", "ep"), [("llama", 4, 1), ("qwen2", 4, 1), ("gpt_neox", 8, 1),
                                                ("mixtral", 4, 8), ("gpt2", 1, 1), ("gpt_oss", 1, 8)])  # fmt: skip
def test_degrees_follow_from_the_plan_and_the_dimensions(kind, tp, ep):
    result = trace(kind, **(EXPERTS if ep > 1 else {}))
    assert (result.tp, result.ep) == (tp, ep)


def test_a_rank_has_its_part_of_products_and_of_what_is_saved():
    llama = block("llama")
    (query,) = [item for item in kernels(llama, "self_attn.q_proj") if item.kind == "product"]
    assert [item.at(2.0, 128.0, tp=4.0) for item in query.extents] == [256.0, 128.0, 512.0, 1.0]
    (attention,) = llama.attention
    assert [item.at(2.0, 128.0, tp=4.0) for item in attention.extents[:3]] == [2.0, 2.0, 1.0]
    whole, part = (llama.saved_bytes.at(1.0, 128.0, tp=tp) for tp in (1.0, 4.0))
    stream = 128 * (16 * 512 + 8)
    assert part - stream == (whole - stream) / 4


def test_a_rank_sums_results_of_rows_and_gradients_of_the_inputs_of_columns():
    llama = block("llama")
    sent = 2 * 128 * 512 * 2
    for module, part in (
        ("self_attn.o_proj", "forward"),
        ("self_attn.k_proj", "backward"),
        ("mlp.up_proj", "backward"),
    ):
        (message,) = [item for item in kernels(llama, module, part) if item.kind == "tp_all_reduce"]
        assert message.extents[1].at(2.0, 128.0, tp=2.0) == sent
    assert not any(item.kind.startswith("tp_") for item in kernels(llama, "self_attn.k_proj"))


def test_gathered_outputs_leave_attention_whole():
    olmo = block("olmo2")
    (attention,) = olmo.attention
    assert attention.extents[1].at(1.0, 128.0, tp=4.0) == 8.0
    (gather,) = [item for item in kernels(olmo, "self_attn.q_proj") if item.kind == "tp_all_gather"]
    assert gather.extents[1].at(1.0, 128.0, tp=4.0) == 128 * 512 * 2


def test_experts_are_dealt_and_tokens_exchanged():
    mixtral = block("mixtral", **EXPERTS)
    splits = {item.name: item.split for item in mixtral.parameters}
    assert splits["mlp.experts.gate_up_proj"] == "experts"
    assert splits["self_attn.q_proj.weight"] == "tp"
    assert splits["mlp.gate.weight"] == ""
    exchanges = [item for item in kernels(mixtral, "mlp.experts") if item.kind == "ep_all_to_all"]
    assert [item.extents[1].at(1.0, 128.0) for item in exchanges] == [128 * 2 * 512 * 2] * 2


def test_a_sequence_is_split_where_attention_is_causal():
    assert trace("llama").shared_heads == 4
    assert trace("gemma2").shared_heads == 0
    (attention,) = block("llama").attention
    assert attention.extents[3].at(1.0, 128.0, cp=4.0) == 32.0


def test_a_type_without_plan_splits_nothing():
    assert plan_of("gpt2") == NO_PLAN
