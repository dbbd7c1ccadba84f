"""What stands between the halves of a layer: types of norms' results, and masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import DENSE_LAYER, dense, moe

from forescale.graph.layer import layer_block
from forescale.graph.parts import build_blocks
from forescale.spec import Kernels, Precision, Strategy

NARROW = Precision(compute="fp8")


def tensors(layer=DENSE_LAYER, **layout):
    return layer_block(dense(), layer, toy.layout(Strategy(**layout), 256.0, NARROW)).tensors


@pytest.mark.parametrize(("parallel", "num_norms", "size"), [(False, 2, 1.0), (True, 2, 1.0), (True, 1, 2.0)])
def test_a_norm_is_narrow_where_one_product_reads_it(parallel, num_norms, size):
    """Falcon-7B and GPT-J: one norm feeds attention and feed-forward, each of which casts for itself."""
    found = tensors(replace(DENSE_LAYER, parallel=parallel, num_norms=num_norms))
    assert found["attention.input"].element_bytes == size
    assert ("attention.qkv.input" in found) == ("ffn.up.input" in found) == (size == 2.0)


def test_a_norm_behind_a_half_feeds_the_stream_and_stays_wide():
    """Gemma 2 and 3: norms of results, which no product reads."""
    found = tensors(replace(DENSE_LAYER, num_norms=4))
    for half in ("attention", "ffn"):
        assert found[f"{half}.input"].element_bytes == 1.0
        assert found[f"{half}.normed_result"].element_bytes == 2.0


def test_norms_before_tokens_are_joined_with_their_stream_stay_wide():
    """Both are put side by side in one tensor of bf16 (DeepSeek-V3's multi-token head), which is then cast."""
    block = build_blocks(moe(), toy.layout(Strategy(), 256.0, NARROW)).mtp
    assert block is not None
    for name in ("mtp.stream_normed", "mtp.embedding_normed", "mtp.joined"):
        assert block.tensors[name].element_bytes == 2.0


def test_masks_of_dropout_have_no_gradient():
    found = tensors(kernels=Kernels(dropout=True))
    for half in ("attention", "ffn"):
        mask = found[f"{half}.dropout_mask"]
        assert (mask.elements, mask.element_bytes, mask.differentiable) == (256 * 1024, 1.0, False)
