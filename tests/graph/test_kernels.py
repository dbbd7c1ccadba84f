"""What a framework's kernels keep: losses and the activation of experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests import small

from forescale.graph.counts import block_flops
from forescale.graph.layer import head_block, layer_block, mtp_block
from forescale.graph.loss import loss_chunk_tokens
from forescale.graph.operator import Operator
from forescale.graph.ops import Elementwise
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.liveness import block_moments
from forescale.spec import Kernels, Layout, Precision, Recompute

TOKENS, VOCAB = 512, 32000


def layout(**kernels: object) -> ShardingRules:
    degrees, choices = split_layout(Layout(sp=False, kernels=Kernels(**kernels)))
    return ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))


def peaks(kind: str) -> tuple[float, float]:
    block = head_block(small.dense(), layout(cross_entropy=kind))
    moments = block_moments(block, keep(block, Recompute()))
    return float(moments.forward_bytes), float(moments.backward_bytes)


def test_the_native_loss_holds_fp32_logits_and_softmax_at_once():
    """Megatron-LM golden values: with --cross-entropy-loss-fusion 1 774 MB instead of 1 410 MB on tp 2."""
    plain, native = peaks("vocab_parallel"), peaks("native")
    assert native[0] - plain[0] == pytest.approx(4 * TOKENS * VOCAB, rel=0.01)
    assert native[1] == plain[1]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ({}, (4, 6)),
        ({"dropout": True}, (9, 11)),
        ({"fused_softmax": False}, (0, 0)),
        ({"fused": False}, (0, 0)),
        ({"flash_attention": True}, (0, 0)),
    ],
)
def test_fused_kernels_pass_over_scores_once_and_once_more_for_dropout(kernels, expected):
    flash = {"flash_attention": False} | kernels
    strategy = Layout(sp=False, flash_attention=flash.pop("flash_attention"), kernels=Kernels(**flash))
    degrees, choices = split_layout(strategy)
    sharding = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))
    core = next(
        operator
        for operator in layer_block(small.dense(), small.dense().layer_kinds[0], sharding).operators
        if operator.name == "attention.core"
    )
    assert tuple(work[0].score_bytes for work in (core.forward, core.backward_input)) == expected


@pytest.mark.parametrize(("flash", "kernel"), [(True, "flash-1"), (False, "")])
def test_an_older_kernel_of_attention_is_one_of_flash_attention(flash, kernel):
    strategy = Layout(flash_attention=flash, kernels=Kernels(attention_kernel="flash-1"))
    degrees, choices = split_layout(strategy)
    sharding = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))
    block = layer_block(small.dense(), small.DENSE_LAYER, sharding)
    (core,) = [operator for operator in block.operators if operator.name == "attention.core"]
    assert (core.forward[0].kernel, core.backward_input[0].kernel) == (kernel, kernel)


def test_a_compiled_loss_has_logits_and_their_gradient_at_once():
    block = head_block(small.dense(), layout(cross_entropy="compiled"))
    moments = block_moments(block, keep(block, Recompute())).backward
    loss = next(moment for moment in moments if moment.name == "head.cross_entropy")
    assert {"head.logits", "∂head.logits"} <= set(loss.tensors)


def test_a_logged_loss_is_an_eager_one_more():
    """Cast 6, log-softmax 12: fp32 logits and their log-softmax exist beside the 16-bit logits, once all is over."""

    def step(**kernels: object) -> float:
        return loss(**kernels).forward[0].bytes_moved

    def loss(**kernels: object) -> Operator:
        block = head_block(small.dense(), layout(cross_entropy="fused", **kernels))
        return next(operator for operator in block.operators if operator.name == "head.cross_entropy")

    assert step(logged_losses=2) - step() == 2 * 18 * TOKENS * VOCAB
    assert loss(logged_losses=2).backward_input == loss().backward_input
    logged = loss(logged_losses=1)
    assert (logged.held, logged.afterwards) == (("head.logits",), ("head.logged",))
    assert "head.logged" not in logged.temporaries
    assert logged.saves == ("head.logits",)
    block = head_block(small.dense(), layout(cross_entropy="native", logged_losses=1))
    assert block.operators[-1].saves == ("head.softmax", "head.logits")


def test_logits_that_metrics_wait_for_outlive_the_head():
    block = head_block(small.dense(), layout(cross_entropy="fused", logged_losses=2))
    moments = block_moments(block, keep(block, Recompute())).backward
    loss = next(moment for moment in moments if moment.name == "head.cross_entropy")
    assert {"head.logits", "∂head.logits"} <= set(loss.tensors)
    assert all("head.logits" in moment.tensors for moment in moments)


def test_gradients_of_a_flat_parameter_are_joined_and_divided():
    """Each of the two reads and writes the 16-bit gradient."""

    def moved(**kernels: object) -> float:
        block = layer_block(small.dense(), small.DENSE_LAYER, layout(**kernels))
        operators = (
            one
            for operator in block.operators
            for one in operator.backward_weight
            if isinstance(one, Elementwise)
        )
        return sum(one.bytes_moved for one in operators)

    weights = small.dense().hidden_size * (
        3 * small.DENSE_LAYER.ffn.ffn_hidden_size
        + (2 * small.DENSE_LAYER.attention.num_heads + 2 * small.DENSE_LAYER.attention.num_kv_heads)
        * small.DENSE_LAYER.attention.head_dim
    )
    assert moved(flat_parameters=True) - moved() == pytest.approx(8 * weights)


def test_gradients_of_experts_in_a_flat_parameter_are_joined_and_divided_too():
    def moved(**kernels: object) -> float:
        block = layer_block(small.moe(), small.MOE_LAYER, layout(**kernels))
        operators = (
            one
            for operator in block.operators
            for one in operator.backward_weight
            if isinstance(one, Elementwise)
        )
        return sum(one.bytes_moved for one in operators)

    block = layer_block(small.moe(), small.MOE_LAYER, layout())
    weights = sum(parameter.local_elements for parameter in block.parameters if parameter.matrix)
    assert moved(flat_parameters=True) - moved() == pytest.approx(8 * weights)


def test_attention_on_padded_batches_copies_its_operands():
    """Queries, keys and values are read and written, the result is cleared, read and written; backward the reverse."""

    def copies(name: str, **kernels: object) -> list[Elementwise]:
        block = layer_block(small.dense(), small.DENSE_LAYER, layout(**kernels))
        core = next(operator for operator in block.operators if operator.name == "attention.core")
        return [item for item in getattr(core, name) if isinstance(item, Elementwise)]

    def moved(name: str, **kernels: object) -> float:
        return sum(item.bytes_moved for item in copies(name, **kernels))

    shape = small.DENSE_LAYER.attention
    inputs = 2 * TOKENS * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    result = 2 * TOKENS * shape.num_heads * shape.head_dim
    assert moved("forward") == moved("backward_input") == 0
    assert moved("forward", unpads_attention=True) == 2 * inputs + 3 * result
    assert moved("backward_input", unpads_attention=True) == 3 * inputs + 2 * result
    for name in ("forward", "backward_input"):  # one each for queries, keys, values and the result
        assert [item.kernels for item in copies(name, unpads_attention=True)] == [4]


@pytest.mark.parametrize(("kv_heads", "copies"), [(16, 2), (4, 0)])
def test_queries_hold_the_keys_and_values_that_were_copied(kv_heads, copies):
    """nanotron: of 16 heads, keys and values of each stay beside those that attention reads; of groups none."""
    attention = replace(small.DENSE_LAYER.attention, num_kv_heads=kv_heads)
    layer = replace(small.DENSE_LAYER, attention=attention)

    def kept(**kernels: object) -> float:
        block = layer_block(small.dense(), layer, layout(**kernels))
        return float(keep(block, Recompute()).num_bytes)

    assert kept(copies_keys_values=True) - kept() == copies * 2 * TOKENS * 16 * 64


def test_losses_by_what_they_hold():
    kinds = ("fused", "compiled", "vocab_parallel", "native", "eager")
    kept = {kind: peaks(kind)[0] for kind in kinds}
    assert kept["fused"] == kept["compiled"] < kept["vocab_parallel"] < kept["native"] <= kept["eager"]


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


def loss(kind: str, tp: int = 8):
    strategy = Layout(tp=tp, dp_shard=1, kernels=Kernels(cross_entropy=kind))
    degrees, choices = split_layout(strategy)
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=4096.0)
    block = head_block(small.dense(), layout)
    return block_moments(block, keep(block, Recompute())), block.tensors["head.logits"].elements


def test_the_loss_on_sharded_logits_makes_one_more_copy_in_fp32():
    """torch/distributed/tensor/parallel/loss.py: four fp32 tensors at once in backward, three of them new."""
    for tp, copies in ((8, 1.0), (1, 0.0)):
        (eager, elements), (parallel, _) = loss("eager", tp), loss("loss_parallel", tp)
        assert parallel.backward_bytes - eager.backward_bytes == copies * 4.0 * elements
        assert parallel.forward_bytes - eager.forward_bytes == copies * 4.0 * elements


def test_a_gathered_input_is_kept_or_gathered_again():
    def attention(*, again: bool, tp: int):
        strategy = Layout(tp=tp, kernels=Kernels(regathers_inputs=again))
        degrees, choices = split_layout(strategy)
        layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=4096.0)
        block = layer_block(small.dense(), small.DENSE_LAYER, layout)
        kept = sum(tensor.num_bytes for tensor in keep(block, Recompute()).tensors)
        gather = next(operator for operator in block.operators if operator.name == "attention.gather")
        return kept, len(gather.backward_weight)

    inputs = 2 * 4096 * 1024 * 2.0  # of attention and feed-forward
    (again, gathers), (once, none) = (attention(again=flag, tp=4) for flag in (True, False))
    assert (gathers, none) == (1, 0)
    assert once - again == inputs * (1.0 - 1.0 / 4.0)
    assert attention(again=True, tp=1)[0] == attention(again=False, tp=1)[0]


def test_the_loss_fused_with_its_product_has_logits_of_one_chunk():
    """Liger-Kernel: 8192 tokens of Llama 3 in chunks of 256, as 128256 / 4096 rounds up to 32."""
    assert loss_chunk_tokens(tokens=8192.0, vocab=128256.0, hidden=4096.0) == 256.0
    chunks = loss_chunk_tokens(tokens=np.array([8192.0, 4096.0, 100.0]), vocab=128256.0, hidden=4096.0)
    np.testing.assert_array_equal(chunks, [256.0, 128.0, 4.0])


def test_gradients_of_head_and_input_are_kept_instead_of_logits():
    block = head_block(small.dense(), layout(cross_entropy="fused_linear"))
    kept = {tensor.name: tensor.num_bytes for tensor in keep(block, Recompute()).tensors}
    assert kept["head.input_gradient"] == 2.0 * TOKENS * 1024
    assert kept["head.weight_gradient"] == 2.0 * VOCAB * 1024
    whole = head_block(small.dense(), layout(cross_entropy="fused"))
    assert block_flops(block).forward == block_flops(whole).forward + block_flops(whole).backward
    assert peaks("fused_linear")[0] < peaks("fused")[1]


def test_the_join_of_multi_token_prediction_is_split_by_columns():
    """Megatron-LM multi_token_prediction.py: eh_proj is a column-parallel linear whose output is gathered."""

    def join(tp: int):
        degrees, choices = split_layout(Layout(tp=tp))
        block = mtp_block(
            small.moe(), ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=512.0)
        )
        return next(parameter for parameter in block.parameters if parameter.name == "mtp.join.weight"), block

    (whole, _), (split, block) = join(1), join(4)
    assert whole.elements == split.elements == 2 * 1024 * 1024
    assert split.local_elements == whole.local_elements / 4
    gathers = next(operator for operator in block.operators if operator.name == "mtp.gather_columns")
    assert [item.num_bytes for item in gathers.forward] == [512.0 * 1024 * 2]
