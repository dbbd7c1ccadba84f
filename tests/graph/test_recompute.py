"""What recompute keeps, drops and replays, by name."""

from __future__ import annotations

import pytest
from tests.errors import raises
from tests.small import dense, moe

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.graph.layer import layer_block
from forescale.graph.recompute import POLICIES, awaited, keep, makers
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import DenseFfn, FullAttention, Layer, Layout, Model, Recompute
from forescale.spec.workload import Precision


def block(model, laid_out=None):
    degrees, choices = split_layout(laid_out or Layout(tp=2))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=512.0)
    return layer_block(model, model.layers[-1], layout)


def names(tensors):
    return {tensor.name for tensor in tensors}


def selective(*modules):
    return Recompute(granularity="selective", modules=modules)


def test_core_attention_keeps_its_inputs_and_its_output():
    kept = keep(block(dense()), selective("core_attn"))
    assert {"attention.query", "attention.key", "attention.value", "attention.core_output"} <= names(
        kept.tensors
    )
    assert names(kept.dropped) == {"attention.softmax_statistics"}
    assert [operator.name for operator in kept.replayed] == ["attention.gather_kv", "attention.core"]


def test_norms_are_dropped_with_their_results():
    kept = keep(block(dense()), selective("layernorm"))
    assert {"attention.input", "ffn.input"} <= names(kept.dropped)
    assert {"input", "attention.residual"} <= names(kept.tensors)
    assert [len(group) for group in kept.replays] == [1, 1]


def test_the_expert_activation_is_dropped_with_its_result():
    kept = keep(block(moe()), selective("moe_act"))
    assert names(kept.dropped) == {"moe.activated"}


def test_latent_up_projections_drop_queries_keys_and_values():
    kept = keep(block(moe()), selective("mla_up_proj"))
    latents = {
        "attention.query_latent",
        "attention.kv_latent",
    }  # their norms are one kernel with the projections
    normed = latents | {f"{name}.statistics" for name in latents}
    assert names(kept.dropped) == {"attention.query", "attention.key", "attention.value"} | normed
    assert {"attention.query_compressed", "attention.kv_compressed"} <= names(kept.tensors)


@pytest.mark.parametrize("sp", [True, False])
def test_direct_queries_are_dropped_with_keys_and_values_and_made_again(sp):
    """Megatron-LM, multi_latent_attention.py: qkv_up_proj_and_rope_apply, which is a checkpoint, calls linear_q_proj.

    Moonlight and DeepSeek-V2-Lite have no query latent. Megatron-Bridge's study of Moonlight (tp 2, 4,096 tokens, 27
    layers of 16 heads) holds 0.71 GB less with mla_up_proj than with core_attn: more than keys and values are, 0.57.
    """
    model = load_model("moonlight-16b-a3b")
    degrees, choices = split_layout(Layout(tp=2, sp=sp))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=4096.0)
    keeps = [keep(layer_block(model, layer, layout), selective("mla_up_proj")) for layer in model.layers]
    dropped = {f"attention.{name}" for name in ("query", "key", "value", "kv_latent", "kv_latent.statistics")}
    assert all(names(item.dropped) == dropped for item in keeps)
    assert sum(tensor.num_bytes for item in keeps for tensor in item.dropped) > 0.71e9
    for item in keeps:
        assert "attention.query" in {operator.name for operator in item.replayed}
        assert {"attention.input", "attention.kv_compressed"} <= names(item.tensors)


def test_full_keeps_the_input_and_replays_everything():
    whole = block(dense())
    kept = keep(whole, Recompute(granularity="full"))
    assert names(kept.tensors) == {"input"}
    assert kept.replayed == whole.operators


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_keep_what_they_list(policy):
    whole = block(dense())
    kept = keep(whole, Recompute(granularity="policy", policy=policy))
    listed = {name for name in POLICIES[policy] if name in whole.tensors}
    assert names(kept.tensors) == listed | {"input"}


def test_what_no_operator_writes_is_made_by_the_one_that_keeps_it():
    whole = block(dense())
    made = {
        name: [maker.name for maker in makers(whole, name)] for name in ("ffn.input", "ffn.input.statistics")
    }
    assert made == {"ffn.input": ["ffn.norm"], "ffn.input.statistics": ["ffn.norm"]}


def test_a_policy_replays_no_product_whose_result_it_keeps():
    kept = keep(block(dense()), Recompute(granularity="policy", policy="minimal_with_context"))
    replayed = {operator.name for operator in kept.replayed}
    assert not replayed & {"attention.qkv", "attention.core", "attention.output", "ffn.up", "ffn.down"}
    assert {"attention.norm", "ffn.norm", "ffn.activation"} <= replayed


def test_torch_keeps_every_second_product():
    whole = block(dense())
    kept = keep(whole, Recompute(granularity="policy", policy="torch_per_op"))
    share = {tensor.name: tensor.num_bytes / whole.tensors[tensor.name].num_bytes for tensor in kept.tensors}
    assert share["ffn.up"] == 0.5
    assert share["attention.query"] == 1.0
    assert "attention.key" in names(kept.dropped)
    compiled, products = (
        keep(whole, Recompute(granularity="policy", policy=policy))
        for policy in ("torch_per_op_compiled", "torch_per_mm_compiled")
    )
    attention = {"attention.core_output", "attention.softmax_statistics"}
    assert names(compiled.tensors) - names(products.tensors) == attention <= names(products.dropped)


@pytest.mark.parametrize("policy", ["torch_per_op", "torch_per_op_compiled"])
def test_torch_keeps_what_the_attention_kernel_writes_where_heads_are_exchanged(policy):
    whole = block(dense(), Layout(cp=2, cp_kind="ulysses"))
    kept = keep(whole, Recompute(granularity="policy", policy=policy))
    replayed = {operator.name for operator in kept.replayed}
    assert "attention.core" not in replayed
    assert "attention.core_output.exchange" in replayed
    assert {"attention.core_output.exchanged"} <= names(kept.tensors)


def test_a_policy_needs_a_name():
    with raises(SpecError, "required_with a name"):
        keep(block(dense()), Recompute(granularity="policy"))


def test_a_replay_that_stops_early_leaves_out_what_only_makes_the_output():
    whole = block(dense())
    every, needed = (keep(whole, Recompute(granularity="full", stops_early=early)) for early in (False, True))
    left_out = {operator.name for operator in every.replayed} - {
        operator.name for operator in needed.replayed
    }
    assert left_out == {"ffn.down", "ffn.scatter", "ffn.add"}
    assert names(needed.tensors) == names(every.tensors) == {"input"}
    assert needed.num_bytes == every.num_bytes == 2 * 512 * 1024 / 2


TOKENS, HIDDEN = 512.0, 1024.0


def awaited_bytes(tp, *, sp):
    degrees, choices = split_layout(Layout(tp=tp, sp=sp))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=TOKENS)
    ffn = DenseFfn(ffn_hidden_size=4096, gated=False)
    layer = Layer(attention=FullAttention(num_heads=16, num_kv_heads=16, head_dim=64), ffn=ffn)
    model = Model(name="gpt", hidden_size=1024, layers=(layer,), vocab_size=32000)
    return sum(num_bytes for _, num_bytes in awaited(layer_block(model, layer, layout)))


def test_what_waits_for_weight_gradients_is_32_of_34_bytes_also_with_sequence_parallelism_at_one_rank():
    """Qi et al. 2023, arXiv:2401.10241, section 2.1: inputs of four products, gradients of their results."""
    assert awaited_bytes(1, sp=False) == awaited_bytes(1, sp=True) == pytest.approx(32.0 * TOKENS * HIDDEN)
    # inputs of both column products are kept in halves; gradients of what two ranks sum are whole
    in_halves = 2 * 2.0 * TOKENS * HIDDEN / 2
    assert awaited_bytes(2, sp=True) == pytest.approx(awaited_bytes(2, sp=False) - in_halves)
