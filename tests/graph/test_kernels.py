"""What a framework's kernels keep: losses and the activation of experts."""

from __future__ import annotations

import pytest
from tests import small

from forescale.graph.layer import head_block, layer_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.recompute import keep
from forescale.memory.liveness import block_moments
from forescale.spec import Kernels, Precision, Recompute, Strategy

TOKENS, VOCAB = 512, 32000


def layout(**kernels: object) -> Layout:
    degrees, choices = split_strategy(Strategy(sp=False, kernels=Kernels(**kernels)))
    return Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))


def peaks(kind: str) -> tuple[float, float]:
    block = head_block(small.dense(), layout(cross_entropy=kind))
    moments = block_moments(block, keep(block, Recompute()))
    return float(moments.forward_bytes), float(moments.backward_bytes)


def test_the_native_loss_holds_fp32_logits_and_softmax_at_once():
    """Megatron-LM golden values: with --cross-entropy-loss-fusion 1 774 MB instead of 1 410 MB on tp 2."""
    plain, native = peaks("vocab_parallel"), peaks("native")
    assert native[0] - plain[0] == pytest.approx(4 * TOKENS * VOCAB, rel=0.01)
    assert native[1] == plain[1]


def test_a_compiled_loss_has_logits_and_their_gradient_at_once():
    block = head_block(small.dense(), layout(cross_entropy="compiled"))
    moments = block_moments(block, keep(block, Recompute())).backward
    loss = next(moment for moment in moments if moment.name == "head.cross_entropy")
    assert {"head.logits", "∂head.logits"} <= {name for name, _ in loss.tensors}


def test_losses_by_what_they_hold():
    kinds = ("fused", "compiled", "vocab_parallel", "native", "eager")
    held = {kind: peaks(kind)[0] for kind in kinds}
    assert held["fused"] == held["compiled"] < held["vocab_parallel"] < held["native"] <= held["eager"]


def test_eager_gates_keep_both_factors():
    def kept(**kernels: object) -> float:
        block = layer_block(small.dense(), small.DENSE_LAYER, layout(**kernels))
        return float(keep(block, Recompute()).num_bytes)

    width = small.DENSE_LAYER.ffn.ffn_hidden_size
    assert kept(fused_activations=False) - kept() == 2 * TOKENS * width


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(granularity="selective", modules=("moe_act",))])
def test_experts_weighed_in_a_kernel_of_their_own_keep_the_unweighted(recompute):
    def kept(*, weighted: bool) -> float:
        block = layer_block(small.moe(), small.MOE_LAYER, layout(weighted_activation=weighted))
        return float(keep(block, recompute).num_bytes)

    rows = TOKENS * small.MOE_LAYER.ffn.top_k
    extra = 2 * rows * small.MOE_LAYER.ffn.ffn_hidden_size if recompute.granularity == "none" else 0
    assert kept(weighted=False) - kept(weighted=True) == extra
