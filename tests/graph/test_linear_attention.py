"""What attention with a state keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small, toy

from forescale.graph.layer import layer_block
from forescale.graph.ops import Elementwise, Gemm
from forescale.graph.recompute import awaited, keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Layer, Layout, LinearAttention, Precision, Recompute

TOKENS = 512.0
MAMBA = LinearAttention(
    num_heads=32,
    num_key_heads=8,
    key_head_dim=128,
    value_head_dim=64,
    conv_kernel=4,
    num_head_parameters=3,
    output_norm="hidden",
    fused_scan=True,
)
INNER, STATE = 32 * 64, 8 * 128


def kept(spec: LinearAttention) -> dict[str, float]:
    degrees, choices = split_layout(Layout(sp=False))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=TOKENS)
    block = layer_block(small.dense(), Layer(attention=spec, ffn=None, num_norms=1), layout)
    return {tensor.name: tensor.elements / TOKENS for tensor in keep(block, Recompute()).tensors}


def test_the_combined_kernel_of_mamba_keeps_what_goes_in_and_its_output():
    """mamba_ssm ssd_combined.py saves zxbcdt and out_x; Megatron-LM's norm its input, the projection its own."""
    result = kept(MAMBA)
    fed = ("attention.value", "attention.gate", "attention.query", "attention.key", "attention.decay")
    assert sum(result.pop(name) for name in fed) == 2 * INNER + 2 * STATE + 32
    inside = {"attention.core_output", "attention.gated", "attention.normed"}
    assert {name: size for name, size in result.items() if name in inside} == dict.fromkeys(inside, INNER)
    assert set(result) - inside == {"input", "attention.input", "attention.input.statistics"}


def test_mamba_projects_its_input_with_one_product():
    """mamba_mixer.py and mamba_ssm: in_proj makes gate, value, keys, queries and decays."""
    degrees, choices = split_layout(Layout(sp=False))
    rules = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=TOKENS)
    for fused, count in ((True, 2), (False, 6)):
        layer = Layer(attention=replace(MAMBA, fused_scan=fused), ffn=None, num_norms=1)
        block = layer_block(small.dense(), layer, rules)
        products = [item for item in block.operators if item.backward_weight]
        assert len(products) == count
        columns = sum(op.n for item in products for op in item.forward if isinstance(op, Gemm))
        assert columns == 2 * INNER + 2 * STATE + 32 + small.dense().hidden_size


def moved(micro_batch_size: int) -> dict[str, tuple[float, float]]:
    """Return bytes per token and number in bf16 that elementwise kernels move, forward and backward."""
    degrees, choices = split_layout(Layout(sp=False, micro_batch_size=micro_batch_size))
    rules = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=TOKENS)
    block = layer_block(small.dense(), Layer(attention=MAMBA, ffn=None, num_norms=1), rules)
    return {
        operator.name: tuple(
            sum(float(item.bytes_moved) for item in work if isinstance(item, Elementwise))
            / (2.0 * TOKENS * micro_batch_size)
            for work in (operator.forward, operator.backward_input)
        )
        for operator in block.operators
    }


def test_the_scan_of_mamba_gates_its_output_and_replays_its_convolution():
    """ssd_combined.py: gate and norm are kernels of their own, and backward runs the convolution again."""
    assert moved(1)["attention.gated_norm"] == (4 * INNER, 8 * INNER)
    assert moved(1)["attention.convolution"] == (2 * (INNER + 2 * STATE), 5 * (INNER + 2 * STATE))


@pytest.mark.parametrize(("micro_batch_size", "copies"), [(1, 0.0), (2, 1.0), (4, 1.0)])
def test_several_sequences_are_copied_batch_first(micro_batch_size, copies):
    both = 2.0 * (3 * INNER + 2 * STATE + 32) * copies
    assert moved(micro_batch_size)["attention.batch_first"] == (both, both)


def test_separate_kernels_keep_the_convolved_inputs_too():
    """flash-linear-attention: the convolution keeps its input, the recurrence queries, keys and values."""
    result = kept(replace(MAMBA, fused_scan=False))
    assert result["attention.value.mixed"] == result["attention.value"] == INNER
    assert "attention.gated" not in result


@pytest.mark.parametrize(
    ("gated", "norm", "read"),
    [
        (True, "hidden", ("core_output", "gate")),
        (True, "none", ("core_output", "gate")),
        (False, "hidden", ("core_output",)),
        (False, "none", None),
    ],
)
def test_the_output_s_norm_reads_the_gate_where_there_is_one(gated, norm, read):
    spec = replace(MAMBA, fused_scan=False, output_gate=gated, output_norm=norm)
    block = layer_block(
        small.dense(), Layer(attention=spec, ffn=None, num_norms=1), toy.layout(Layout(), TOKENS)
    )
    operators = [
        (operator.reads, operator.saves)
        for operator in block.operators
        if operator.name == "attention.gated_norm"
    ]
    names = tuple(f"attention.{name}" for name in read or ())
    assert operators == ([(names, names)] if read else [])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("currency", [toy.FLOPS, toy.BYTES])
def test_two_ranks_have_half_the_heads_and_half_the_work_of_the_recurrence(fused, currency):
    layer = Layer(attention=replace(MAMBA, fused_scan=fused), ffn=None, num_norms=1)
    one, two = (
        toy.counted(layer_block(small.dense(), layer, toy.layout(Layout(tp=tp, sp=False), TOKENS)), currency)
        for tp in (1, 2)
    )
    assert two["attention.core"] == pytest.approx([seconds / 2 for seconds in one["attention.core"]])


def test_a_fused_recurrence_moves_more_in_backward():
    """mamba_ssm e9594ce on one H100, 8,192 tokens of 64 heads of 64: kernels of 0.29 ms beside the products."""
    spec = replace(MAMBA, num_heads=64, key_head_dim=128, chunk_size=128)
    block = layer_block(
        small.dense(), Layer(attention=spec, ffn=None, num_norms=1), toy.layout(Layout(), 8192.0)
    )
    (core,) = [operator for operator in block.operators if operator.name == "attention.core"]
    moved = sum(item.bytes_moved for item in core.backward_input if isinstance(item, Elementwise))
    assert 0.5 < moved / (0.29e-3 * 3.35e12) < 1.0, "a kernel reaches more than half of the memory's rate"


def test_decays_of_heads_are_kept_in_fp32():
    """flash-linear-attention, ops/simple_gla: g is summed and kept in fp32."""
    layer = Layer(attention=replace(MAMBA, fused_scan=False), ffn=None, num_norms=1)
    block = layer_block(small.dense(), layer, toy.layout(Layout(), TOKENS))
    decay = block.tensors["attention.decay"]
    assert (decay.elements, decay.element_bytes) == (TOKENS * 32, 4.0)


def test_only_products_with_weights_wait_for_their_gradients():
    """Qi et al. 2023, arXiv:2401.10241: what the recurrence multiplies has no weight and goes with the input gradient."""
    layer = Layer(attention=replace(MAMBA, fused_scan=False), ffn=None, num_norms=1)
    waiting = dict(awaited(layer_block(small.dense(), layer, toy.layout(Layout(), TOKENS))))
    products = ("query", "key", "value", "gate", "decay", "result")
    gradients = {name for name in waiting if name.startswith("∂")}
    assert len(gradients) == len(products)
    assert not any("core" in name for name in gradients)


def test_gradients_that_wait_in_fp32_are_as_wide_as_they_are():
    precision = Precision(compute="tf32", activations="fp32", parameters="fp32", master="none")
    layout = toy.layout(Layout(), TOKENS, precision)
    waiting = dict(awaited(layer_block(small.dense(), small.DENSE_LAYER, layout)))
    assert waiting["∂ffn.up"] == 4 * TOKENS * 2 * 4096


def test_gradients_that_wait_for_8_bit_products_wait_in_8_bits():
    """Transformer Engine's WeightGradStore keeps what the product reads."""
    wide, narrow = (
        dict(awaited(layer_block(small.dense(), small.DENSE_LAYER, toy.layout(Layout(), TOKENS, precision))))
        for precision in (Precision(), Precision(compute="fp8"))
    )
    assert wide["∂ffn.up"] == 2 * TOKENS * 2 * 4096
    assert narrow["∂ffn.up"] == wide["∂ffn.up"] / 2
