"""FLOP of blocks and models, by hand."""

from __future__ import annotations

import pytest
from tests import toy
from tests.small import DENSE_LAYER, dense, moe

from forescale.catalogue.models import load_model
from forescale.graph.counts import block_flops, count_parameters, model_flops
from forescale.graph.layer import layer_block
from forescale.graph.parts import counted_weight_part
from forescale.spec import Patches, Strategy

SEQ = 256


@pytest.mark.parametrize(("convention", "pairs"), [("full", SEQ * SEQ), ("masked", SEQ * (SEQ + 1) / 2)])
def test_backward_of_a_block_has_two_products_for_one_and_five_for_two_in_attention(convention, pairs):
    """As PyTorch counts (torch/utils/flop_counter.py): mm by its extents, flash attention's backward 5 products of 2."""
    found = block_flops(layer_block(dense(), DENSE_LAYER, toy.layout(Strategy(), SEQ)), convention)
    linear = 2 * SEQ * (1024 * (1024 + 2 * 256) + 1024 * 1024 + 3 * 1024 * 4096)
    attention = 2 * 2 * pairs * 16 * 64
    assert found.forward == linear + attention
    assert found.backward == 2 * linear + 2.5 * attention


def test_tokens_that_are_dropped_are_not_multiplied_by_experts():
    """Seven layers and the multi-token head's choose 4 experts of 3 matrices each; a quarter of that is dropped."""
    model = moe()
    spec = model.moe
    assert spec is not None
    routed = 8 * 4 * 3 * model.hidden_size * spec.ffn_hidden_size
    whole, rest = (model_flops(model, SEQ, routed_share=share) for share in (1.0, 0.75))
    assert whole.full - rest.full == whole.masked - rest.masked == 0.25 * 6 * SEQ * routed


def test_the_part_that_waits_for_its_weight_gradient():
    """Qi et al. 2023, arXiv:2401.10241, section 2.1: 32h of 34h + 5as per token, for the heads of GPT-3 175B."""
    assert counted_weight_part(load_model("gpt3-175b"), 2048) == pytest.approx(393216 / (417792 + 983040))


def test_class_tokens_are_learned():
    """Dosovitskiy et al. 2021, arXiv:2010.11929: one vector before the patches, and a position of its own."""
    from dataclasses import replace

    def total(class_tokens):
        patches = Patches(patch_elements=588, class_tokens=class_tokens)
        return count_parameters(replace(dense(), vocab_size=0, patches=patches)).total

    assert total(1) - total(0) == 1024
