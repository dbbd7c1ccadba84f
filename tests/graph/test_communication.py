"""What every parallelism sends per micro-batch: collective, axis, bytes, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import dense, moe

from forescale.graph.layer import head_block, layer_block
from forescale.graph.ops import Collective
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Layout, Precision, Routing

SEQ, HIDDEN = 4096.0, 1024.0
BF16, FP32 = 2.0, 4.0
ALL = SEQ * HIDDEN * BF16
"""Bytes of all activations of one sequence."""
KV = 2 * SEQ * 4 * 64 * BF16
"""Bytes of all keys and values of one sequence: 4 heads of 64."""


def sent(layout, model=None, *, head=False, precision=None, kind=0):
    """Return (pass, collective, axis, bytes) of one block, all passes in order."""
    model = model or dense()
    degrees, choices = split_layout(layout)
    sharding = ShardingRules(
        degrees=degrees, choices=choices, precision=precision or Precision(), seq_len=SEQ
    )
    block = head_block(model, sharding) if head else layer_block(model, model.layer_kinds[kind], sharding)
    result = []
    for operator in block.operators:
        for name in ("forward", "backward_input", "backward_weight"):
            for primitive in getattr(operator, name):
                if isinstance(primitive, Collective):
                    size = float(primitive.num_bytes)
                    result.append((operator.name, name, primitive.kind, primitive.axis, size))
    return result


def only(result, axis):
    return [(name, kind, size) for _, name, kind, on, size in result if on == axis]


def test_tensor_parallel_sums_each_half_twice_without_sequence_parallelism():
    result = only(sent(Layout(tp=4, sp=False)), "tp")
    assert result == [
        ("backward_input", "all_reduce", ALL), ("forward", "all_reduce", ALL),
        ("backward_input", "all_reduce", ALL), ("forward", "all_reduce", ALL),
    ]  # fmt: skip


def test_sequence_parallelism_gathers_and_scatters_and_gathers_again_for_the_weight_gradient():
    half = [
        ("forward", "all_gather", ALL), ("backward_input", "reduce_scatter", ALL),
        ("backward_weight", "all_gather", ALL),
        ("forward", "reduce_scatter", ALL), ("backward_input", "all_gather", ALL),
    ]  # fmt: skip
    assert only(sent(Layout(tp=4)), "tp") == half * 2


def test_inputs_of_8_bit_products_are_gathered_in_8_bits():
    result = only(sent(Layout(tp=4), precision=Precision(compute="fp8")), "tp")
    gathers = [size for name, kind, size in result if kind == "all_gather" and name != "backward_input"]
    assert gathers == [ALL / 2] * 4


def test_the_vocabulary_parallel_loss_sums_three_numbers_per_token():
    result = sent(Layout(tp=4), head=True)
    assert ("head.cross_entropy", "forward", "all_reduce", "tp", 3 * SEQ * FP32) in result


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", [("forward", "all_gather", KV), ("backward_input", "all_gather", KV),
                        ("backward_input", "reduce_scatter", KV)]),
        ("ring", [("forward", "all_gather", KV), ("backward_input", "all_gather", KV),
                  ("backward_input", "all_gather", KV)]),
    ],
)  # fmt: skip
def test_context_parallel_sends_keys_and_values_and_their_gradients(kind, expected):
    assert only(sent(Layout(cp=4, cp_kind=kind)), "cp") == expected


def test_ulysses_exchanges_queries_keys_values_and_output_there_and_back():
    result = only(sent(Layout(cp=4, cp_kind="ulysses")), "cp")
    queries, keys = SEQ / 4 * 16 * 64 * BF16, SEQ / 4 * 4 * 64 * BF16
    forward = [size for name, kind, size in result if (name, kind) == ("forward", "all_to_all")]
    assert forward == [queries, keys, keys, queries]
    assert [size for name, _, size in result if name == "backward_input"] == forward


@pytest.mark.parametrize("inner", [2, 4])
def test_hierarchical_exchanges_heads_inside_and_passes_keys_and_values_around_the_groups(inner):
    cp = 8
    layout = Layout(cp=cp, cp_kind="hierarchical", cp_inner=inner)
    queries, keys = SEQ / cp * 16 * 64 * BF16, SEQ / cp * 4 * 64 * BF16
    near = only(sent(layout), "cp_inner")
    assert [size for name, _, size in near if name == "forward"] == [queries, keys, keys, queries]
    assert {kind for _, kind, _ in near} == {"all_to_all"}
    assert [size for name, _, size in near if name == "backward_input"] == [queries, keys, keys, queries]
    around = 2 * keys * cp / inner
    assert only(sent(layout), "cp_outer") == [
        ("forward", "all_gather", around), ("backward_input", "all_gather", around),
        ("backward_input", "all_gather", around),
    ]  # fmt: skip
    assert not only(sent(layout), "cp")


def test_one_group_is_ulysses_and_groups_of_one_are_a_ring():
    def moved(**chosen):
        degrees, choices = split_layout(Layout(cp=8, **chosen))
        sharding = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=SEQ)
        block = layer_block(dense(), dense().layer_kinds[0], sharding)
        (core,) = [op for op in block.operators if op.name == "attention.core"]
        result = sent(Layout(cp=8, **chosen))
        ranks = {"cp": 8.0, "cp_inner": sharding.degree("cp_inner"), "cp_outer": sharding.degree("cp_outer")}
        return core.forward[0], [item[2:3] + item[4:] for item in result if ranks.get(item[3], 1.0) > 1.0]

    assert moved(cp_kind="hierarchical", cp_inner=8) == moved(cp_kind="ulysses")
    assert moved(cp_kind="hierarchical", cp_inner=1) == moved(cp_kind="ring")


ROWS = SEQ * 4 * HIDDEN * BF16
"""Bytes of a micro-batch's tokens, once for each of 4 experts."""


def test_tokens_travel_to_experts_and_back_with_their_counts_first():
    result = [item for item in sent(Layout(ep=8, dp_shard=8), moe(), kind=1) if item[3] == "ep"]
    assert result == [
        ("moe.count", "forward", "all_gather", "ep", 16 * 8.0 * 8),
        ("moe.dispatch", "forward", "all_to_all", "ep", ROWS),
        ("moe.dispatch", "backward_input", "all_to_all", "ep", ROWS),
        ("moe.combine", "forward", "all_to_all", "ep", ROWS),
        ("moe.combine", "backward_input", "all_to_all", "ep", ROWS),
    ]


def test_in_fp8_tokens_go_and_gradients_of_results_return_in_half():
    layout = Layout(ep=8, dp_shard=8, routing=Routing(dispatch="fp8"))
    narrow = ROWS / 2 * (1 + 4 / 128)
    result = {item[:2]: item[4] for item in sent(layout, moe(), kind=1) if item[3] == "ep"}
    assert result["moe.dispatch", "forward"] == narrow
    assert result["moe.dispatch", "backward_input"] == ROWS
    assert result["moe.combine", "forward"] == ROWS
    assert result["moe.combine", "backward_input"] == narrow


def test_experts_split_over_tensor_parallel_ranks_gather_their_rows_and_scatter_their_sums():
    result = only(sent(Layout(tp=2, ep=4, etp=2, dp_shard=4), moe(), kind=1), "etp")
    rows = ROWS  # half of the tokens per rank, gathered over 2
    assert result == [
        ("forward", "all_gather", rows), ("backward_input", "reduce_scatter", rows),
        ("forward", "reduce_scatter", rows), ("backward_input", "all_gather", rows),
    ]  # fmt: skip


def test_capacity_bounds_what_travels():
    free = Layout(ep=8, dp_shard=8)
    tight = replace(free, routing=Routing(capacity_factor=0.5))
    volume = [sum(item[4] for item in sent(s, moe(), kind=1) if item[0] == "moe.dispatch") for s in (free, tight)]  # fmt: skip
    assert volume[1] == volume[0] / 2


def test_a_balancing_loss_sums_the_tokens_of_each_expert_over_the_ranks_of_a_sequence():
    counts = [("forward", "all_reduce", 4 * moe().moe.num_experts)]
    for layout in ({"tp": 2}, {"cp": 2}, {"tp": 2, "cp": 2}):
        assert only(sent(Layout(**layout), moe(), kind=-1), "tp_cp") == counts
        none = Layout(**layout, routing=Routing(balance="none"))
        assert only(sent(none, moe(), kind=-1), "tp_cp") == []
    assert only(sent(Layout(), moe(), kind=-1), "tp_cp") == [("forward", "all_reduce", 0.0)]
