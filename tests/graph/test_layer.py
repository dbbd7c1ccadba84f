"""What stands between the halves of a layer: types of norms' results, and masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import DENSE_LAYER, MOE_LAYER, dense, moe

from forescale.graph.layer import block_name, layer_block
from forescale.graph.per_block import build_blocks
from forescale.spec import Kernels, Layout, Precision

NARROW = Precision(compute="fp8")


def tensors(layer=DENSE_LAYER, **layout):
    return layer_block(dense(), layer, toy.layout(Layout(**layout), 256.0, NARROW)).tensors


@pytest.mark.parametrize(("parallel", "num_norms", "size"), [(False, 2, 1.0), (True, 2, 1.0), (True, 1, 2.0)])
def test_a_norm_is_narrow_where_one_product_reads_it(parallel, num_norms, size):
    """Falcon-7B and GPT-J: one norm feeds attention and feed-forward, each of which casts for itself."""
    result = tensors(replace(DENSE_LAYER, parallel=parallel, num_norms=num_norms))
    assert result["attention.input"].element_bytes == size
    assert ("attention.qkv.input" in result) == ("ffn.up.input" in result) == (size == 2.0)


def test_a_norm_behind_a_half_feeds_the_stream_and_stays_wide():
    """Gemma 2 and 3: norms of results, which no product reads."""
    result = tensors(replace(DENSE_LAYER, num_norms=4))
    for half in ("attention", "ffn"):
        assert result[f"{half}.input"].element_bytes == 1.0
        assert result[f"{half}.normed_result"].element_bytes == 2.0


def test_norms_before_tokens_are_joined_with_their_stream_stay_wide():
    """Both are put side by side in one tensor of bf16 (DeepSeek-V3's multi-token head), which is then cast."""
    block = build_blocks(moe(), toy.layout(Layout(), 256.0, NARROW)).mtp
    assert block is not None
    for name in ("mtp.stream_normed", "mtp.embedding_normed", "mtp.joined"):
        assert block.tensors[name].element_bytes == 2.0


def test_masks_of_dropout_have_no_gradient():
    result = tensors(kernels=Kernels(dropout=True))
    for half in ("attention", "ffn"):
        mask = result[f"{half}.dropout_mask"]
        assert (mask.elements, mask.element_bytes, mask.differentiable) == (256 * 1024, 1.0, False)


def test_additions_hand_their_gradient_on_as_it_is():
    """Of a mixture with a shared expert both results are added, and their sum to the stream."""
    block = layer_block(moe(), moe().layers[-1], toy.layout(Layout(), 256.0))
    shared = [operator.name for operator in block.operators if operator.shares_gradient]
    assert shared == ["attention.add", "moe.add_shared", "ffn.add"]
    dropped = toy.layout(Layout(kernels=Kernels(dropout=True)), 256.0)
    block = layer_block(dense(), DENSE_LAYER, dropped)  # each masks it for its half
    assert not any(operator.shares_gradient for operator in block.operators)


def test_sums_without_sequence_parallelism_hand_their_gradient_on_as_it_is():
    """Megatron-LM's g: all-reduce forward, nothing backward; a gather of the split gradient makes a new one."""
    for sp, local in ((False, {"attention.scatter", "ffn.scatter"}), (True, set())):
        block = layer_block(dense(), DENSE_LAYER, toy.layout(Layout(tp=2, sp=sp), 256.0))
        shared = {operator.name for operator in block.operators if operator.shares_gradient}
        assert shared == local | {"attention.add", "ffn.add"}


def test_routed_and_shared_experts_have_a_result_each():
    block = layer_block(moe(), moe().layers[-1], toy.layout(Layout(), 256.0))
    makers = {
        name: [operator.name for operator in block.operators if name in operator.writes]
        for name in ("moe.routed", "shared.result")
    }
    assert makers == {"moe.routed": ["moe.unpermute"], "shared.result": ["shared.scatter"]}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (DENSE_LAYER, "attention+dense"),
        (MOE_LAYER, "mla+moe"),
        (replace(DENSE_LAYER, attention=replace(DENSE_LAYER.attention, window=512)), "window-512+dense"),
        (replace(DENSE_LAYER, attention=None), "no-attention+dense"),
        (replace(DENSE_LAYER, ffn=None), "attention+no-ffn"),
    ],
)
def test_kinds_of_layers_have_short_names(layer, name):
    assert block_name(layer) == name


def test_learned_factors_of_a_half_s_result():
    """LayerScale (Touvron et al. 2021, arXiv:2103.17239): one factor per channel; backward reads result and gradient."""
    model = replace(dense(), branch_scales=True)
    block = layer_block(model, DENSE_LAYER, toy.layout(Layout(), 256.0))
    stream = 2 * 256 * 1024
    for half in ("attention", "ffn"):
        assert toy.counted(block, toy.BYTES)[f"{half}.scale"] == (2 * stream, 3 * stream, 0)
        (weight,) = [parameter for parameter in block.parameters if parameter.name == f"{half}.scale.weight"]
        assert (weight.elements, weight.shape) == (1024, (1024,))
        (operator,) = [operator for operator in block.operators if operator.name == f"{half}.scale"]
        assert operator.saves == (f"{half}.result",)


def test_under_summa_rows_of_the_table_turn_into_tokens():
    """All tokens of a column are looked up in a part of the hidden size, which cp ranks then exchange for their own."""
    layout = toy.layout(Layout(tp=2, cp=4, tp_kind="summa"), 256.0)
    sent = toy.messages(build_blocks(dense(), layout).embedding, layout)
    turned = [item for item in sent if item[0] == "embedding.turn"]
    assert turned == [
        ("embedding.turn", "forward", "all_to_all", "cp", 2 * 256 / 4 * 1024 / 2),
        ("embedding.turn", "backward_input", "all_to_all", "cp", 2 * 256 / 4 * 1024 / 2),
    ]
