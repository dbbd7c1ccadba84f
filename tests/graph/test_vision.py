"""Blocks of a vision tower: under which layout they lie, and what is frozen of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.catalogue.models import load_model
from forescale.graph.counts import count_parameters, count_trained, model_flops, whole_blocks
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.ops import Collective, Gemm
from forescale.graph.parts import build_blocks
from forescale.graph.recompute import keep
from forescale.spec import Kernels, Recompute, Strategy
from forescale.spec.model import Images
from forescale.spec.workload import Precision, Trainable

GEMMA = load_model("gemma-3-4b")
CUT = Kernels(cuts_vision=True)


def tower(strategy: Strategy, trainable: Trainable | None = None, images: Images | None = None):
    degrees, choices = split_strategy(strategy)
    layout = Layout(
        degrees=degrees,
        choices=choices,
        precision=Precision(),
        seq_len=4096.0,
        trainable=trainable or Trainable(),
        images=images or Images(),
    )
    return build_blocks(GEMMA, layout).vision


def up(blocks):
    """Return the first product of a layer's feed-forward, in forward."""
    ((_, layer),) = blocks[1:-1]
    (product,) = next(each.forward for each in layer.operators if each.name == "ffn.up")
    assert isinstance(product, Gemm)
    return product


def test_each_image_is_a_sequence_whatever_cuts_the_text():
    product = up(tower(Strategy(tp=4, cp=2, micro_batch_size=3), images=Images(count=2)))
    assert (product.m, product.k, product.n) == (3 * 2 * 4096, 1152, 4304)


def test_kernels_that_cut_towers_cut_them_over_tp_alone():
    blocks = tower(Strategy(tp=4, cp=2, kernels=CUT))
    product = up(blocks)
    assert (product.m, product.n) == (4096, 4304 / 4)
    axes = {each.axis for _, block in blocks for own in block.operators for each in own.primitives
            if isinstance(each, Collective)}  # fmt: skip
    assert "tp" in axes


def test_a_whole_tower_on_every_rank_sends_nothing():
    blocks = tower(Strategy(tp=4, cp=2))
    assert not any(isinstance(each, Collective) for _, block in blocks for own in block.operators
                   for each in own.primitives)  # fmt: skip


def test_all_of_it_is_one_part_of_the_time():
    assert {own.part for _, block in tower(Strategy()) for own in block.operators} == {"vision"}


def test_a_frozen_tower_has_no_backward_and_keeps_nothing():
    *below, (_, projector) = tower(Strategy(), Trainable(frozen=("vision",)))
    for _, block in below:
        assert not keep(block, Recompute()).tensors
        assert not keep(block, Recompute(granularity="full")).tensors
        assert not any(own.backward_input or own.backward_weight for own in block.operators)
    product = next(own for own in projector.operators if own.name == "projector.0")
    assert product.backward_weight
    assert keep(projector, Recompute()).tensors


def test_a_trained_tower_behind_a_frozen_projector_has_gradients():
    (_, embedding), *_, (_, projector) = tower(Strategy(), Trainable(frozen=("projector",)))
    product = next(own for own in projector.operators if own.name == "projector.0")
    assert product.backward_input
    assert not product.backward_weight
    (patch,) = [own for own in embedding.operators if own.name == "embedding.patch"]
    assert patch.backward_weight
    assert not patch.backward_input  # pixels have no gradient


def test_parameters_of_both_parts():
    counts = count_parameters(GEMMA)
    assert counts.vision == counts.total - count_parameters(GEMMA.text).total
    frozen = Trainable(frozen=("vision", "projector"))
    assert count_trained(GEMMA, frozen) == counts.total - counts.vision


@pytest.mark.parametrize(("frozen", "passes"), [((), 3.0), (("vision", "projector"), 1.0)])
def test_flops_of_a_tower(frozen, passes):
    trainable = Trainable(frozen=frozen)
    both = model_flops(GEMMA, 4096, trainable=trainable, images=Images(count=2))
    text = model_flops(GEMMA.text, 4096, trainable=trainable)
    # 27 layers of 12 h² as 4 h² and 2 h × 4304, scores and values of 4096 patches, patches in, the projector.
    layer = 2 * 4096 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 4096**2 * 1152
    patch, projector = 2 * 4096 * 588 * 1152, 2 * 256 * 1152 * 2560
    spared = 0 if frozen else patch
    assert both.masked - text.masked == pytest.approx(
        2 * (passes * (27 * layer + patch + projector) - spared)
    )


def test_images_change_nothing_of_a_model_without_a_tower():
    one, two = (whole_blocks(GEMMA.text, images=Images(count=count)) for count in (1, 2))
    assert [block.tensors for block, _ in one] == [block.tensors for block, _ in two]
    assert replace(GEMMA, vision=None) == GEMMA.text
