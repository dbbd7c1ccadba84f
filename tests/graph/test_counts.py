"""FLOP of blocks and models, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import DENSE_LAYER, dense, moe, sees

from forescale.catalogue.models import load_model
from forescale.graph.counts import (
    block_flops,
    count_parameters,
    count_saved,
    flops_by_part,
    flops_of_parameters,
    model_flops,
)
from forescale.graph.layer import layer_block
from forescale.graph.per_block import counted_weight_part
from forescale.spec import Layout, Patches
from forescale.spec.workload import Trainable

SEQ = 256


@pytest.mark.parametrize(("convention", "pairs"), [("full", SEQ * SEQ), ("masked", SEQ * (SEQ + 1) / 2)])
def test_backward_of_a_block_has_two_products_for_one_and_five_for_two_in_attention(convention, pairs):
    """As PyTorch counts (torch/utils/flop_counter.py): mm by its extents, flash attention's backward 5 products of 2."""
    result = block_flops(layer_block(dense(), DENSE_LAYER, toy.layout(Layout(), SEQ)), convention)
    linear = 2 * SEQ * (1024 * (1024 + 2 * 256) + 1024 * 1024 + 3 * 1024 * 4096)
    attention = 2 * 2 * pairs * 16 * 64
    assert result.forward == linear + attention
    assert result.backward == 2 * linear + 2.5 * attention


def test_tokens_that_are_dropped_are_not_multiplied_by_experts():
    """Seven layers and the multi-token head's choose 4 experts of 3 matrices each; a quarter of that is dropped."""
    model = moe()
    spec = model.moe
    assert spec is not None
    routed = 8 * 4 * 3 * model.hidden_size * spec.ffn_hidden_size
    whole, rest = (model_flops(model, SEQ, routed_share=share) for share in (1.0, 0.75))
    assert whole.full - rest.full == whole.masked - rest.masked == 0.25 * 6 * SEQ * routed


def test_three_products_for_every_weight_that_a_token_uses():
    """PaLM, arXiv:2204.02311, appendix B: 6 N + 12 L H Q T, of latent heads with keys of 96 and values of 64."""
    model = replace(moe(), num_mtp_layers=0)
    norms = 8 * (2 * 1024 + 256 + 128) + 1024
    weights = count_parameters(model).active - norms - 32000 * 1024
    attention = 6 * 8 * 16 * (96 + 64) * SEQ**2
    assert model_flops(model, SEQ).full == 6 * SEQ * weights + attention


def test_a_vocabulary_is_not_padded_to_count_flops():
    odd = replace(dense(), vocab_size=31_999)
    assert model_flops(dense(), SEQ).full - model_flops(odd, SEQ).full == 6 * SEQ * 1024


def test_the_part_that_waits_for_its_weight_gradient():
    """Qi et al. 2023, arXiv:2401.10241, section 2.1: 32h of 34h + 5as per token, for the heads of GPT-3 175B."""
    assert counted_weight_part(load_model("gpt3-175b"), 2048) == pytest.approx(393216 / (417792 + 983040))
    grouped = counted_weight_part(load_model("llama-3.1-70b"), 8192)  # a are heads of queries: 64, not 8
    assert grouped == pytest.approx(32 * 8192 / (34 * 8192 + 5 * 64 * 8192))
    fewer = replace(DENSE_LAYER, attention=replace(DENSE_LAYER.attention, num_heads=4))
    mixed = replace(dense(), layers=(fewer, DENSE_LAYER))
    assert counted_weight_part(mixed, 2048) == counted_weight_part(dense(), 2048), (
        "of the layer that has most"
    )
    without = replace(dense(), layers=(replace(DENSE_LAYER, attention=None, num_norms=1),))
    assert counted_weight_part(without, 2048) == 32 / 34


def test_class_tokens_are_learned():
    """Dosovitskiy et al. 2021, arXiv:2010.11929: one vector before the patches, and a position of its own."""

    def total(class_tokens):
        patches = Patches(patch_elements=588, class_tokens=class_tokens)
        return count_parameters(replace(dense(), vocab_size=0, patches=patches)).total

    assert total(1) - total(0) == 1024


def test_layers_of_multi_token_prediction_are_counted_beside_the_model():
    """DeepSeek-V3, README_WEIGHTS.md: 671B, and 11.5B of a module beside the embedding and the head that it shares."""
    model = load_model("deepseek-v3")
    one, three = (count_parameters(replace(model, num_mtp_layers=count)) for count in (1, 3))
    assert one.mtp == pytest.approx(11.5e9, rel=0.01)
    assert three.mtp == 3 * one.mtp
    assert one.total == three.total == pytest.approx(671e9, rel=0.005)


def test_an_embedding_narrower_than_the_stream_is_projected_in_and_out():
    """facebook/opt-350m: 331,196,416 parameters, embeddings of 512 in a stream of 1,024, tied."""
    model = load_model("opt-350m")
    assert count_parameters(model).total == 331_196_416
    added = model_flops(model, SEQ).full - model_flops(replace(model, embedding_size=0), SEQ).full
    assert added == 6 * SEQ * (2 * 512 * 1024 - 50272 * 512)  # two projections, and a head of half the width


def test_no_token_of_text_uses_a_tower():
    assert (
        count_parameters(sees()).active
        == count_parameters(dense()).total
        == count_parameters(sees().text).active
    )


def test_flops_as_counted_from_the_parameters_alone():
    """Brown et al. 2020, arXiv:2005.14165, table D.1: GPT-3 175B on 300B tokens, 3.14E+23 FLOP (174.6B parameters)."""
    assert flops_of_parameters(parameters=174.6e9, tokens=300e9) == pytest.approx(3.14e23, rel=0.002)


def test_a_checkpoint_of_adapters_holds_these_alone():
    model = load_model("llama-3.1-8b")
    assert count_saved(model, Trainable(lora_rank=16, lora_targets=("q_proj",))) == 32 * 16 * (4096 + 4096)
    assert count_saved(model, Trainable()) == count_parameters(model).total
    assert count_saved(model, Trainable(frozen=("embedding",))) == count_parameters(model).total


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "gemma-4-31b", "jamba-v0.1"])
@pytest.mark.parametrize("convention", ["masked", "full"])
def test_parts_of_the_flops_add_up(name, convention):
    model = load_model(name)
    parts = flops_by_part(model, 2048, convention)
    assert sum(parts.values()) == pytest.approx(getattr(model_flops(model, 2048), convention), rel=1e-12)
    assert {"attention scores", "attention projections", "head"} <= parts.keys()
    assert all(flops > 0.0 for flops in parts.values())


def test_scores_of_attention_are_those_of_its_formula():
    """Four products of heads x head_dim for each pair of forward, of which a causal mask leaves half, and twice that."""
    model = load_model("llama-3.1-8b")
    pairs = 2048 * 2049 / 2
    assert flops_by_part(model, 2048)["attention scores"] == pytest.approx(3 * 4 * 4096 * pairs * 32)
    assert flops_by_part(model, 2048, "full")["attention scores"] == pytest.approx(
        3 * 4 * 4096 * 2048**2 * 32
    )
    projections = 2 * 4096 * (2 * 4096 + 2 * 1024) * 2048 * 32
    assert flops_by_part(model, 2048)["attention projections"] == pytest.approx(3 * projections)
