"""Laws of the graph: what sharding conserves, what recompute and size change, and in which direction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small import DENSE_LAYER, MLA, MOE_LAYER, dense, moe

from forescale.graph.counts import block_flops
from forescale.graph.layer import embedding_block, head_block, layer_block
from forescale.graph.operator import Block
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.liveness import block_moments
from forescale.spec import FullAttention, Layer, Layout, LinearAttention, Model, Recompute
from forescale.spec.layout import Module
from forescale.spec.workload import Precision

GATED_LINEAR = Layer(
    attention=LinearAttention(
        num_heads=16, num_key_heads=16, key_head_dim=64, value_head_dim=64, conv_kernel=4
    ),
    ffn=DENSE_LAYER.ffn,
)
NORMED = Layer(
    attention=FullAttention(num_heads=16, num_kv_heads=4, head_dim=64, qk_norm="head", output_gate=True),
    ffn=DENSE_LAYER.ffn,
    num_norms=4,
)
LAYERS = (DENSE_LAYER, MOE_LAYER, Layer(attention=MLA, ffn=DENSE_LAYER.ffn), GATED_LINEAR, NORMED)
MODULES: tuple[Module, ...] = (
    "core_attn",
    "layernorm",
    "mlp",
    "mla_up_proj",
    "moe",
    "moe_act",
    "shared_experts",
)
NONE, FULL = Recompute(), Recompute(granularity="full")

layers = st.sampled_from(LAYERS)
powers = st.sampled_from([1, 2, 4])
sequences = st.sampled_from([256, 512, 1024])
modules = st.sets(st.sampled_from(MODULES), min_size=1)


def layout(strategy: Layout, seq_len: int = 512) -> ShardingRules:
    degrees, choices = split_layout(strategy)
    return ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))


def block(layer: Layer, strategy: Layout, seq_len: int = 512) -> Block:
    model: Model = replace(dense(), layers=(layer,))
    return layer_block(model, layer, layout(strategy, seq_len))


def kept_bytes(layer: Layer, strategy: Layout, recompute: Recompute = NONE, seq_len: int = 512) -> float:
    return float(keep(block(layer, strategy, seq_len), recompute).num_bytes)


@given(layers, powers)
def test_tensor_and_sequence_parallel_ranks_keep_the_whole_together(layer: Layer, tp: int) -> None:
    """But for what every rank needs whole: gathered low-rank and gate projections, replicated key/value heads."""
    whole = keep(block(layer, Layout(tp=1)), NONE)
    part = {
        tensor.name: tensor.num_bytes for tensor in keep(block(layer, Layout(tp=tp, etp=1)), NONE).tensors
    }
    for tensor in whole.tensors:
        assert part[tensor.name] * tp == pytest.approx(tensor.num_bytes)


@given(layers, powers)
def test_parameters_of_all_ranks_are_the_model(layer: Layer, tp: int) -> None:
    for parameter in block(layer, Layout(tp=tp, ep=tp, dp_shard=tp)).parameters:
        parts = parameter.elements / parameter.local_elements
        assert parts in {1.0, float(tp)}
    total = sum(parameter.elements for parameter in block(layer, Layout(tp=tp)).parameters)
    assert total == sum(parameter.elements for parameter in block(layer, Layout()).parameters)


@given(layers, powers, st.sampled_from(["all_gather", "ring"]))
def test_flops_of_all_ranks_are_those_of_one(layer: Layer, degree: int, kind: str) -> None:
    one = block_flops(block(layer, Layout()))
    many = block_flops(block(layer, Layout(tp=degree, cp=2, cp_kind=kind, etp=1)))  # type: ignore[arg-type]
    assert many.forward * degree * 2 == pytest.approx(one.forward)
    assert many.backward * degree * 2 == pytest.approx(one.backward)


@given(layers, modules, powers)
def test_recompute_never_keeps_more(layer: Layer, names: set[Module], tp: int) -> None:
    strategy = Layout(tp=tp)
    selective = Recompute(granularity="selective", modules=tuple(sorted(names)))
    least, subset, most = (kept_bytes(layer, strategy, policy) for policy in (FULL, selective, NONE))
    assert least <= subset <= most


@given(layers, modules)
def test_recompute_drops_what_it_makes_again(layer: Layer, names: set[Module]) -> None:
    selective = Recompute(granularity="selective", modules=tuple(sorted(names)))
    everything = keep(block(layer, Layout()), NONE)
    for policy in (selective, FULL):
        kept = keep(block(layer, Layout()), policy)
        made = {name for operator in kept.replayed for name in (*operator.saves, *operator.writes)}
        assert {tensor.name for tensor in kept.dropped} <= made
        both = {tensor.name for tensor in kept.dropped} | {tensor.name for tensor in kept.tensors}
        assert {tensor.name for tensor in everything.tensors} <= both


@given(layers, st.sampled_from([NONE, FULL]), sequences, st.sampled_from([1, 2, 3]))
def test_memory_grows_with_sequence_and_micro_batch(
    layer: Layer, recompute: Recompute, seq_len: int, micro: int
) -> None:
    small = kept_bytes(layer, Layout(micro_batch_size=micro), recompute, seq_len)
    assert kept_bytes(layer, Layout(micro_batch_size=micro), recompute, 2 * seq_len) > small
    assert kept_bytes(layer, Layout(micro_batch_size=micro + 1), recompute, seq_len) > small


@settings(deadline=None)
@given(layers, st.sampled_from([NONE, FULL]), modules)
def test_peaks_hold_what_is_kept(layer: Layer, recompute: Recompute, names: set[Module]) -> None:
    plain = block(layer, Layout())
    for policy in (recompute, Recompute(granularity="selective", modules=tuple(sorted(names)))):
        kept = keep(plain, policy)
        moments = block_moments(plain, kept)
        assert moments.forward_bytes >= kept.num_bytes
        assert moments.backward_bytes >= kept.num_bytes
    everything = block_moments(plain, keep(plain, NONE))
    assert block_moments(plain, keep(plain, FULL)).backward_bytes >= everything.backward_bytes


@given(powers)
def test_vocabulary_is_split_over_tensor_ranks(tp: int) -> None:
    model = moe()
    for build in (embedding_block, head_block):
        whole = {parameter.name: parameter for parameter in build(model, layout(Layout())).parameters}
        for parameter in build(model, layout(Layout(tp=tp))).parameters:
            assert parameter.elements == whole[parameter.name].elements
            if parameter.matrix:
                assert parameter.local_elements * tp >= parameter.elements


@given(layers)
def test_every_tensor_read_is_made_or_given(layer: Layer) -> None:
    plain = block(layer, Layout(tp=2))
    made = {plain.input_name}
    for operator in plain.operators:
        assert set(operator.reads) <= made, operator.name
        made.update(operator.writes)
    assert len({operator.name for operator in plain.operators}) == len(plain.operators)
