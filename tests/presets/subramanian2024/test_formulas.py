"""The formulas against tables I, II and A2 of the paper and against counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from forescale.formula import REGISTRY, as_term, value_of
from forescale.presets.subramanian2024 import formulas
from forescale.presets.subramanian2024.layers import (
    Message,
    Quirks,
    Shape,
    Split,
    bias,
    dropout,
    gelu,
    layer_1d,
    layer_2d,
    layer_summa,
    norm,
)

SHAPE = Shape(seq_len=2048, hidden_size=25600, ffn_hidden_size=102400, num_heads=160, num_layers=128)
TOKENS, HIDDEN = 2 * 2048, 25600


def split(tp1=4, tp2=1, panels=1):
    return Split(tp1=tp1, tp2=tp2, micro_batch_size=2, panels=panels, near_tp1=1, near_tp2=1)


def by_name(layer):
    return {operation.name: operation for operation in layer}


def volumes(operation):
    return [
        [(message.kind, message.axis, message.num_bytes / 2) for message in work.messages]
        for work in (operation.forward, operation.backward)
    ]


@pytest.mark.parametrize("name", ["projection", "second linear"])
def test_table_i_row_split_products_reduce_scatter_b_l_e(name):
    layer = by_name(layer_1d(SHAPE, split(), vector_weight=8.0, quirks=Quirks()))
    assert volumes(layer[name]) == [[("reduce_scatter", "tp1", TOKENS * HIDDEN)], []]


@pytest.mark.parametrize("name", ["attention norm", "ffn norm"])
def test_table_i_norms_gather_b_l_e(name):
    layer = by_name(layer_1d(SHAPE, split(), vector_weight=8.0, quirks=Quirks()))
    assert volumes(layer[name])[0] == [("all_gather", "tp1", TOKENS * HIDDEN)]


def test_table_ii_volumes_shrink_with_one_axis_each():
    layer = by_name(layer_2d(SHAPE, split(tp1=4, tp2=8), vector_weight=8.0, quirks=Quirks()))
    assert volumes(layer["projection"])[0] == [("reduce_scatter", "tp1", TOKENS // 8 * HIDDEN)]
    assert volumes(layer["ffn norm"])[0] == [("all_gather", "tp1", TOKENS // 8 * HIDDEN)]
    keys_and_values = 2 * TOKENS * HIDDEN // 4
    assert volumes(layer["fused attention"])[0] == [("all_gather", "tp2", keys_and_values)]


def test_table_a2_broadcasts_activations_and_weights():
    layer = by_name(layer_summa(SHAPE, split(tp1=4, tp2=8, panels=8), vector_weight=8.0, quirks=Quirks()))
    assert volumes(layer["projection"])[0] == [
        ("broadcast", "tp1", TOKENS // 8 * HIDDEN),
        ("broadcast", "tp2", HIDDEN * HIDDEN // 4),
    ]
    assert volumes(layer["first linear"])[0][1] == ("broadcast", "tp2", HIDDEN * 4 * HIDDEN // 4)
    assert layer["projection"].parameters == HIDDEN * HIDDEN / 32


@pytest.mark.parametrize("build", [layer_1d, layer_2d, layer_summa])
def test_a_layer_has_the_paper_s_operations_and_parameters(build):
    layer = build(SHAPE, split(tp1=1), vector_weight=8.0, quirks=Quirks.none())
    assert len(layer) == 14
    weights = 12 * HIDDEN**2
    biases_and_norms = (4 + 1 + 1 + 4) * HIDDEN
    assert sum(operation.parameters for operation in layer) == weights + biases_and_norms


def test_gpt3_1t_has_a_trillion_parameters():
    layer = layer_1d(SHAPE, split(tp1=1), vector_weight=8.0, quirks=Quirks())
    assert 128 * sum(operation.parameters for operation in layer) == pytest.approx(1.0e12, rel=0.01)


def test_the_paper_s_flop_ratio_of_mlp_and_attention():
    """Section III-B: roughly 2 for GPT3-1T, 0.5 for the ViT."""
    vit = Shape(seq_len=64800, hidden_size=12288, ffn_hidden_size=49152, num_heads=64, num_layers=48)
    for shape, ratio in ((SHAPE, 2.0), (vit, 0.5)):
        layer = by_name(layer_1d(shape, split(tp1=1), vector_weight=0.0, quirks=Quirks()))
        mlp = sum(layer[name].forward.flops for name in ("first linear", "second linear"))
        names = ("query, key, value", "fused attention", "projection")
        assert mlp / sum(layer[name].forward.flops for name in names) == pytest.approx(ratio, rel=0.2)


def test_linear_counts_by_hand():
    """Three tokens, two inputs, five outputs."""
    extents = {"tokens": 3.0, "inputs": 2.0, "outputs": 5.0}
    assert formulas.linear_forward_flops(**extents) == 3 * 5 * (2 + 1)
    assert formulas.linear_backward_flops(**extents) == 3 * 2 * (5 + 4) + 2 * 5 * (3 + 2)
    assert formulas.linear_forward_bytes(**extents) == 2 * (6 + 15 + 10)
    assert formulas.linear_backward_bytes(**extents) == 2 * (2 * 10 + 2 * 6 + 2 * 15)
    assert formulas.summa_forward_flops(**extents) == 2 * 30
    assert formulas.summa_forward_bytes(**extents, panels=4.0) == 2 * (6 + 10 + 60)
    assert formulas.summa_backward_bytes(**extents, panels=4.0) == 4 * (6 + 10 + 60)


def test_summa_exposes_one_panel_and_what_work_does_not_cover():
    assert formulas.summa_exposed_time(panel_time=1.0, panels=8.0, work_time=10.0) == 1.0
    assert formulas.summa_exposed_time(panel_time=2.0, panels=8.0, work_time=10.0) == 8.0


def counts(operation):
    """FLOPs and bytes, forward and backward, and what is kept."""
    works = operation.forward, operation.backward
    return [work.flops for work in works], [work.num_bytes for work in works], operation.saved_bytes


def test_vector_counts_by_hand():
    assert counts(bias("", elements=6.0, width=3.0)) == ([6.0, 6.0], [18.0, 18.0], 0.0)
    assert counts(gelu(elements=6.0)) == ([48.0, 78.0], [24.0, 36.0], 12.0)
    assert counts(dropout("", elements=6.0)) == ([6.0, 6.0], [30.0, 30.0], 6.0)
    message = Message(kind="all_gather", axis="tp1", num_bytes=1.0)
    result = counts(norm("", rows=2.0, width=3.0, forward=message, backward=message))
    assert result == ([54.0, 48.0 + 16.0], [2 * (12 + 4 + 6), 2 * (30 + 6)], 12.0)


def test_attention_counts_by_hand():
    """Two rows of three scores, heads of four elements; one key and value of three tokens."""
    assert formulas.softmax_flops(rows=2.0, length=3.0) == 12 + 4
    forward = formulas.fused_forward_flops(rows=2.0, length=3.0, head_dim=4.0, vector_weight=10.0)
    assert forward == 6 * 7 + 10 * (16 + 6) + 2 * 4 * 5
    backward = formulas.fused_backward_flops(
        rows=2.0, length=3.0, local_length=2.0, keys=12.0, head_dim=4.0, vector_weight=10.0
    )
    assert backward == 2 * 4 * 5 + 2 * 12 * 3 + 2 * 6 * 7 + 10 * (4 * 6 + 4 + 16 + 6)
    assert formulas.fused_forward_bytes(rows=2.0, keys=12.0, head_dim=4.0) == 2 * (16 + 24 + 2)
    assert formulas.fused_saved_bytes(rows=2.0, head_dim=4.0) == 2 * (32 + 4)
    assert formulas.fused_backward_bytes(rows=2.0, keys=12.0, head_dim=4.0) == 2 * (24 + 16) + 72


def test_times_of_a_step():
    assert formulas.stage_work_time(layer_time=2.0, num_microbatches=4.0, layers=3.0) == 24.0
    assert formulas.stage_exchange_time(hop_time=0.5, num_microbatches=4.0) == 4.0
    assert formulas.stage_bubble_time(pp=3.0, busy_time=28.0, num_microbatches=4.0) == 14.0
    hidden = formulas.exposed_weight_exchange_time(exchange_time=2.0, layer_time=3.0, layers=4.0)
    bare = formulas.exposed_weight_exchange_time(exchange_time=5.0, layer_time=3.0, layers=4.0)
    assert (hidden, bare) == (2.0, 11.0)


def test_a_recorded_layer_equals_a_plain_one():
    plain = split(tp1=np.array([1.0, 4.0]), tp2=np.array([2.0, 1.0]), panels=np.array([4.0, 8.0]))
    recorded = split(tp1=as_term(plain.tp1), tp2=as_term(plain.tp2), panels=as_term(plain.panels))
    for build in (layer_1d, layer_2d, layer_summa):
        for one, other in zip(
            build(SHAPE, plain, vector_weight=8.0, quirks=Quirks()),
            build(SHAPE, recorded, vector_weight=8.0, quirks=Quirks()),
            strict=True,
        ):
            np.testing.assert_array_equal(value_of(other.forward.flops), one.forward.flops)
            np.testing.assert_array_equal(value_of(other.backward.num_bytes), one.backward.num_bytes)


def test_every_formula_here_names_the_paper():
    entries = [entry for entry in REGISTRY.values() if "subramanian2024" in entry.function.__module__]
    assert len(entries) > 15
    assert all("arXiv:2410.00273" in entry.source for entry in entries)
