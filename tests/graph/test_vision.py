"""Blocks of a vision tower: under which layout they lie, and what is frozen of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import sees

from forescale.catalogue.models import load_model
from forescale.graph.counts import count_parameters, count_trained, model_flops, whole_blocks
from forescale.graph.ops import Collective, Elementwise, Gemm
from forescale.graph.per_block import build_blocks
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Kernels, Layout, Recompute
from forescale.spec.model import Images, Tiles, Vision
from forescale.spec.workload import Precision, Trainable

GEMMA = load_model("gemma-3-4b")
CUT = Kernels(cuts_vision=True)


def tower(strategy: Layout, trainable: Trainable | None = None, images: Images | None = None):
    degrees, choices = split_layout(strategy)
    layout = ShardingRules(
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
    (product,) = next(operator.forward for operator in layer.operators if operator.name == "ffn.up")
    assert isinstance(product, Gemm)
    return product


def test_each_image_is_a_sequence_whatever_cuts_the_text():
    product = up(tower(Layout(tp=4, cp=2, micro_batch_size=3), images=Images(count=2)))
    assert (product.m, product.k, product.n) == (3 * 2 * 4096, 1152, 4304)


def test_tiles_are_sequences_of_their_own():
    """An image of 896 pixels in 2 x 2 tiles of 448, and once more whole: five sequences of 1,024 patches."""
    vision = replace(SMALL.vision, tiles=Tiles(grids=((1, 1), (2, 2)), fits="resolution"))
    degrees, choices = split_layout(Layout(micro_batch_size=3))
    layout = ShardingRules(
        degrees=degrees,
        choices=choices,
        precision=Precision(),
        seq_len=8192.0,
        images=Images(count=2, size=896),
    )
    product = up(build_blocks(replace(SMALL, vision=vision), layout).vision)
    assert (product.m, product.k, product.n) == (3 * 2 * 5 * 1024, 512, 2048)


def test_a_class_token_is_one_more_than_patches_have():
    """CLIP ViT-L/14 at 336 pixels, as LLaVA-1.5 has it: 24 x 24 patches are a sequence of 577."""
    model = load_model("llava-1.5-7b")
    degrees, choices = split_layout(Layout())
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=4096.0)
    blocks = build_blocks(model, layout).vision
    assert up(blocks).m == 577


def test_kernels_that_cut_towers_cut_them_over_tp_alone():
    blocks = tower(Layout(tp=4, cp=2, kernels=CUT))
    product = up(blocks)
    assert (product.m, product.n) == (4096, 4304 / 4)
    axes = {primitive.axis for _, block in blocks for operator in block.operators for primitive in operator.primitives
            if isinstance(primitive, Collective)}  # fmt: skip
    assert "tp" in axes


def test_a_whole_tower_on_every_rank_sends_nothing():
    blocks = tower(Layout(tp=4, cp=2))
    assert not any(isinstance(primitive, Collective) for _, block in blocks for operator in block.operators
                   for primitive in operator.primitives)  # fmt: skip


def test_all_of_it_is_one_part_of_the_time():
    assert {operator.part for _, block in tower(Layout()) for operator in block.operators} == {"vision"}


def test_a_frozen_tower_has_no_backward_and_keeps_nothing():
    *below, (_, projector) = tower(Layout(), Trainable(frozen=("vision",)))
    for _, block in below:
        assert not keep(block, Recompute()).tensors
        assert not keep(block, Recompute(granularity="full")).tensors
        assert not any(operator.backward_input or operator.backward_weight for operator in block.operators)
    product = next(operator for operator in projector.operators if operator.name == "projector.0")
    assert product.backward_weight
    assert keep(projector, Recompute()).tensors


def test_a_trained_tower_behind_a_frozen_projector_has_gradients():
    (_, embedding), *_, (_, projector) = tower(Layout(), Trainable(frozen=("projector",)))
    product = next(operator for operator in projector.operators if operator.name == "projector.0")
    assert product.backward_input
    assert not product.backward_weight
    (patch,) = [operator for operator in embedding.operators if operator.name == "embedding.patch"]
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


def test_a_trained_tower_makes_the_gradients_of_its_weights():
    ((_, layer),) = tower(Layout(kernels=Kernels(gradient_sum="after_product")))[1:-1]
    made = {operator.name: operator.backward_temporaries for operator in layer.operators}
    assert made["ffn.up"] == ("ffn.up.weight_gradient",)
    (_, start), *_ = tower(Layout(kernels=Kernels(gradient_sum="after_product")))
    (patch,) = [operator for operator in start.operators if operator.name == "embedding.patch"]
    assert (patch.backward_input, patch.backward_temporaries) == ((), ("embedding.patch.weight_gradient",))


def test_images_change_nothing_of_a_model_without_a_tower():
    one, two = (whole_blocks(GEMMA.text, images=Images(count=count)) for count in (1, 2))
    assert [block.tensors for block, _ in one] == [block.tensors for block, _ in two]
    assert replace(GEMMA, vision=None) == GEMMA.text


SMALL = sees()
assert SMALL.vision is not None


def projector(vision: Vision, **layout):
    """Return the products of a projector as (rows, inputs, outputs), its elementwise bytes, and its weights.

    An image is 32 x 32 patches of 512, which 256 tokens of 4 x 512 or of 512 are made from.
    """
    degrees, choices = split_layout(Layout(**layout))
    sharding_rules = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=256.0)
    block = build_blocks(replace(SMALL, vision=vision), sharding_rules).vision[-1][1]
    work = [
        (operator.name.removeprefix("projector."), item)
        for operator in block.operators
        for item in operator.forward
    ]
    products = {name: (item.m, item.k, item.n) for name, item in work if isinstance(item, Gemm)}
    passes = {name: item.bytes_moved for name, item in work if isinstance(item, Elementwise)}
    weights = {
        parameter.name.removeprefix("projector."): parameter.local_elements for parameter in block.parameters
    }
    return products, passes, weights, block


def test_a_projector_has_activations_between_its_layers():
    products, passes, weights, _ = projector(SMALL.vision)
    assert products == {"0": (256, 2048, 2048), "1": (256, 2048, 1024)}
    assert {name: moved for name, moved in passes.items() if "activation" in name} == {
        "0.activation": 2 * 2 * 256 * 2048
    }
    assert weights == {
        "vision.norm.weight": 512,
        "vision.norm.bias": 512,
        "0.weight": 2048**2,
        "1.weight": 2048 * 1024,
    }


def test_four_by_four_patches_become_one_token():
    products, _, _, _ = projector(replace(SMALL.vision, merge=4))
    assert products == {"0": (64, 8192, 2048), "1": (64, 2048, 1024)}


def test_of_two_layers_in_a_row_one_is_cut_by_outputs_and_the_next_by_inputs():
    products, _, weights, block = projector(SMALL.vision, tp=2, sp=True, kernels=CUT)
    assert products == {"0": (256, 2048, 1024), "1": (256, 1024, 1024)}
    assert (weights["0.weight"], weights["1.weight"]) == (2048 * 1024, 1024 * 1024)
    made = [block.tensors[f"projector.{place}.result"].elements for place in (0, 1)]
    assert made == [256 * 1024, 256 * 1024]  # half of 2,048 columns, and all of 1,024 that are summed
    sent = {
        (operator.name, name): [
            (e.kind, e.num_bytes) for e in getattr(operator, name) if isinstance(e, Collective)
        ]
        for operator in block.operators
        for name in ("forward", "backward_input")
    }
    assert {where: what for where, what in sent.items() if what} == {
        ("projector.1.scatter", "forward"): [("all_reduce", 2 * 256 * 1024)],
        ("projector.0.gather", "backward_input"): [("all_reduce", 2 * 256 * 2048)],
    }


def test_of_four_layers_in_a_row_every_second_is_cut_by_inputs():
    vision = replace(SMALL.vision, projector=(512, 256, 128, 64))
    products, _, _, _ = projector(vision, tp=2, kernels=CUT)
    sizes = {"0": (2048, 256), "1": (256, 256), "2": (256, 64), "3": (64, 64)}
    assert products == {place: (256, *size) for place, size in sizes.items()}
    tiles = Tiles(grids=((2, 2),), fits="resolution", rows_end=True)
    assert projector(replace(vision, tiles=tiles))[2]["row_end"] == 64, "as wide as the stream"


def test_results_of_a_tower_stay_wide_under_narrow_recipes():
    """Patches are merged, and results written into a stream of bf16; products make narrow copies of their own."""
    vision = replace(
        SMALL.vision, projector=(1024,), projector_merges=True, projector_ffn=3000, projector_norm="layer"
    )
    degrees, choices = split_layout(Layout())
    narrow = ShardingRules(
        degrees=degrees, choices=choices, precision=Precision(compute="fp8"), seq_len=256.0
    )
    tensors = build_blocks(replace(SMALL, vision=vision), narrow).vision[-1][1].tensors
    for name in ("vision.result", "projector.normed", "projector.normed_result"):
        assert tensors[name].element_bytes == 2.0


def test_a_layer_that_merges_patches_has_no_activation_behind_it_and_a_bias_of_its_own():
    """Mistral3MultiModalProjector of transformers: merging_layer, linear_1, act, linear_2."""
    merging = replace(SMALL.vision, projector=(512, 1024, 1024), projector_merges=True)
    for merged, others in ((False, True), (True, False)):
        products, passes, weights, _ = projector(replace(merging, merging_bias=merged, projector_bias=others))
        assert products == {"0": (256, 2048, 512), "1": (256, 512, 1024), "2": (256, 1024, 1024)}
        assert [name for name in passes if "activation" in name] == ["1.activation"]
        assert [f"{place}.bias" in weights for place in range(3)] == [merged, others, others]


def test_patches_are_averaged_in_one_pass():
    products, passes, _, _ = projector(replace(SMALL.vision, pools=True, projector=(1024,)))
    assert products == {"0": (256, 512, 1024)}
    assert passes["pool"] == 2 * (1024 * 512 + 256 * 512)
    assert not any("activation" in name for name in passes)


@pytest.mark.parametrize(
    ("merge", "merged", "rows", "width"),
    [(2, False, 1024, 512), (2, True, 256, 2048), (4, False, 1024, 512), (4, True, 64, 8192)],
)
def test_a_norm_is_over_patches_or_over_what_they_become(merge, merged, rows, width):
    """A layer norm has two statistics per row."""
    vision = replace(SMALL.vision, projector_norm="layer", norms_merged=merged, merge=merge)
    _, _, weights, block = projector(vision)
    assert (weights["norm.weight"], weights["norm.bias"]) == (width, width)
    assert block.tensors["projector.normed.statistics"].elements == 2 * rows


def test_layers_that_are_tapped_have_projectors_of_their_own():
    """Qwen3-VL: results of two layers, merged, beside the last's; all three go into the text's stream."""
    vision = replace(SMALL.vision, projector_norm="layer", norms_merged=True, num_deepstack=2)
    products, passes, weights, block = projector(vision)
    for before in ("", "deepstack_0.", "deepstack_1."):
        assert products[f"{before}0"] == (256, 2048, 2048)
        assert products[f"{before}1"] == (256, 2048, 1024)
        assert weights[f"{before}norm.weight"] == 2048
    assert block.tensors["projector.deepstack_1.input"].elements == 256 * 2048
    assert block.tensors["vision.tokens"].elements == 3 * 256 * 1024
    assert passes["vision.insert"] == 3 * 2 * 3 * 256 * 1024, (
        "they and the stream there are read, it is written"
    )


def test_a_gated_network_behind_a_projector():
    """GLM-4.1V's patch merger: linear, layer norm, activation, and a gated feed-forward."""
    vision = replace(SMALL.vision, projector=(1024,), projector_merges=True, projector_ffn=3000)
    products, passes, weights, _ = projector(vision)
    assert list(products.values()) == [(256, 2048, 1024), (256, 1024, 6000), (256, 3000, 1024)]
    assert passes["activation"] == 2 * 2 * 256 * 1024
    local = {name: size for name, size in weights.items() if not name.startswith("vision.")}
    assert sum(local.values()) == 2048 * 1024 + 2 * 1024 + 3 * 1024 * 3000
    tensors = projector(vision, kernels=Kernels(fused=False))[3].tensors
    assert [name for name in tensors if name.endswith(".gate")] == ["projector.ffn.activation.gate"]
    plain = projector(SMALL.vision, kernels=Kernels(fused=False))[3].tensors
    assert not any(name.endswith(".gate") for name in plain)


def test_a_trained_norm_of_what_has_no_gradient_has_its_own():
    """Behind a frozen tower nothing goes further back, but the norm's weight has a gradient, and what follows too."""
    vision = replace(SMALL.vision, projector_norm="layer")
    degrees, choices = split_layout(Layout())
    frozen = Trainable(frozen=("vision",))
    layout = ShardingRules(
        degrees=degrees, choices=choices, precision=Precision(), seq_len=256.0, trainable=frozen
    )
    operators = {
        operator.name: operator
        for operator in build_blocks(replace(SMALL, vision=vision), layout).vision[-1][1].operators
    }
    assert operators["projector.norm"].backward_input
    assert "vision.result" in operators["projector.norm"].saves
    assert operators["projector.0"].backward_input
    assert not operators["vision.norm"].backward_input


def test_rows_of_tiles_end_in_a_learned_vector():
    tiles = Tiles(grids=((2, 2),), fits="resolution", rows_end=True)
    with_ends = projector(replace(SMALL.vision, tiles=tiles))[2]
    assert with_ends["row_end"] == 1024
    assert "row_end" not in projector(replace(SMALL.vision, tiles=replace(tiles, rows_end=False)))[2]
