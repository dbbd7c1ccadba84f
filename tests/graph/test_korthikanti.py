"""Activation bytes of a GPT layer as printed in Korthikanti et al. 2022 (arXiv:2205.05198), equal term by term.

Their table leaves out the statistics of norms and softmax ("small"); so do these sums.
"""

from __future__ import annotations

import pytest
import sympy

from forescale.graph.layer import layer_block
from forescale.graph.recompute import Kept, keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import DenseFfn, FullAttention, Kernels, Layer, Layout, Model, Recompute
from forescale.spec.workload import Precision

HEADS, HEAD_DIM = 96, 128
HIDDEN = HEADS * HEAD_DIM
GPT3_LAYER = Layer(
    attention=FullAttention(
        num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM, rotary=False, qkv_bias=True, output_bias=True
    ),
    ffn=DenseFfn(ffn_hidden_size=4 * HIDDEN, gated=False, bias=True),
)
GPT3 = Model(name="gpt3-layer", hidden_size=HIDDEN, layers=(GPT3_LAYER,), norm="layer", vocab_size=51200)
STATISTICS = ("statistics",)
SMALL = Recompute(granularity="none")
SELECTIVE = Recompute(granularity="selective", modules=("core_attn",))


def kept(seq_len: object, batch: object, tp: object, *, sp: bool, recompute: Recompute) -> Kept:
    strategy = Layout(sp=sp, flash_attention=False, kernels=Kernels(dropout=True))
    degrees, choices = split_layout(strategy)
    values = {name: getattr(degrees, name) for name in type(degrees).__dataclass_fields__}
    degrees = type(degrees)(**{**values, "tp": tp, "micro_batch_size": batch})
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=seq_len)
    return keep(layer_block(GPT3, GPT3_LAYER, layout), recompute)


def total(kept: Kept) -> object:
    return sum(tensor.num_bytes for tensor in kept.tensors if not tensor.name.endswith(STATISTICS))


def equation(s: object, b: object, t: object, *, sp: bool, scores: bool) -> object:
    """Equation 2 (tensor), 4 (tensor and sequence), 6 (with selective recompute) of the paper, in bytes."""
    h, a = HIDDEN, HEADS
    attention = 5 * a * s / (h * t) if scores else 0
    return s * b * h * ((34 / t if sp else 10 + 24 / t) + attention)


CASES = [(False, SMALL, True), (True, SMALL, True), (True, SELECTIVE, False), (False, SELECTIVE, False)]


@pytest.mark.parametrize(("sp", "recompute", "scores"), CASES)
@pytest.mark.parametrize("tp", [1.0, 2.0, 8.0])
def test_equal_to_the_paper(sp: bool, recompute: Recompute, scores: bool, tp: float) -> None:
    result = total(kept(2048.0, 4.0, tp, sp=sp, recompute=recompute))
    assert result == pytest.approx(equation(2048.0, 4.0, tp, sp=sp, scores=scores), rel=1e-12)


@pytest.mark.parametrize(("sp", "recompute", "scores"), CASES)
def test_equal_in_symbols(sp: bool, recompute: Recompute, scores: bool) -> None:
    s, b = sympy.symbols("s b", positive=True)
    result = total(kept(s, b, 8.0, sp=sp, recompute=recompute))
    difference = sympy.nsimplify(
        sympy.expand(result - equation(s, b, 8, sp=sp, scores=scores)), rational=True
    )
    assert sympy.simplify(difference) == 0


def test_full_recompute_keeps_the_input_alone() -> None:
    full = kept(2048.0, 4.0, 8.0, sp=True, recompute=Recompute(granularity="full"))
    assert total(full) == 2 * 2048 * 4 * HIDDEN / 8
    assert [tensor.name for tensor in full.tensors] == ["input"]


def test_sbh_34_at_one_device() -> None:
    sbh = 2048.0 * HIDDEN
    assert total(kept(2048.0, 1.0, 1.0, sp=True, recompute=SELECTIVE)) == 34 * sbh
