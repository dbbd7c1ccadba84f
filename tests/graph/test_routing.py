"""Uneven experts and their capacity: rows sent and received, and all that follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small
from tests.errors import raises

from forescale.errors import SpecError
from forescale.graph.counts import block_flops
from forescale.graph.layer import layer_block
from forescale.graph.moe import possible_imbalance
from forescale.graph.ops import Collective, Elementwise, GroupedGemm
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.project import project
from forescale.spec import Kernels, Layout, Precision, Recompute, Routing

TOKENS, TOP_K, EXPERTS, HIDDEN = 512, 4, 16, 1024
BALANCED = Routing()


def block(routing: Routing = BALANCED, **degrees: object):
    strategy = Layout(**{"sp": False, "ep": 4, "dp_shard": 4, **degrees}, routing=routing)
    numbers, choices = split_layout(strategy)
    layout = ShardingRules(degrees=numbers, choices=choices, precision=Precision(), seq_len=float(TOKENS))
    return layer_block(small.moe(), small.MOE_LAYER, layout)


def rows(of, name: str) -> float:
    return of.tensors[name].elements / HIDDEN


def exchanged(of, name: str) -> float:
    work = next(operator for operator in of.operators if operator.name == name).forward
    return next(item.num_bytes for item in work if isinstance(item, Collective)) / HIDDEN / 2


def products(of) -> set[float]:
    return {item.m for operator in of.operators for item in operator.forward if isinstance(item, GroupedGemm)}


def test_balanced_and_dropless_every_copy_travels_and_as_many_arrive():
    plain = block()
    assert rows(plain, "moe.permuted") == rows(plain, "moe.dispatched") == TOKENS * TOP_K
    assert exchanged(plain, "moe.dispatch") == exchanged(plain, "moe.combine") == TOKENS * TOP_K
    assert products(plain) == {TOKENS * TOP_K}


def test_hybrid_ep_gathers_the_routing_map_in_its_dispatch():
    counted, mapped = (block(dispatcher=name) for name in ("deepep", "hybridep"))
    assert "moe.count" in {operator.name for operator in counted.operators}
    assert "moe.count" not in {operator.name for operator in mapped.operators}
    dispatch = next(operator for operator in mapped.operators if operator.name == "moe.dispatch")
    kinds = [type(item) for item in dispatch.forward]
    assert kinds == [Collective, Elementwise, Collective]
    gather, read, rows_sent = dispatch.forward
    assert gather.kind == "all_gather"
    assert gather.num_bytes == read.bytes_moved == TOKENS * EXPERTS * 4
    assert (rows_sent,) == dispatch.backward_input


def test_an_unfused_router_moves_its_logits_more_often():
    def of_router(**kernels: bool):
        operators = {
            item.name: item for item in block(kernels=Kernels(**kernels), dispatcher="deepep").operators
        }
        return operators["moe.top_k"], operators.get("moe.router.wide")

    logits = TOKENS * EXPERTS * 4.0
    (fused, absent), (plain, wide) = of_router(), of_router(fused_router=False, wide_router=True)
    assert "moe.router.wide" in {
        item.name for item in block(kernels=Kernels(wide_router=True), dispatcher="all_to_all").operators
    }
    assert [item.forward[0].bytes_moved / logits for item in (fused, plain)] == [4.0, 58.0]
    assert [item.backward_input[0].bytes_moved / logits for item in (fused, plain)] == [4.0, 15.0]
    assert [item.forward[0].kernels for item in (fused, plain)] == [6.0, 30.0]
    assert absent is None
    assert wide.backward_input[0].bytes_moved == 16.0 * TOKENS * HIDDEN


def test_the_fullest_rank_receives_more_than_it_sends():
    uneven = block(Routing(imbalance=1.5))
    assert rows(uneven, "moe.permuted") == rows(uneven, "moe.returned") == TOKENS * TOP_K
    assert rows(uneven, "moe.dispatched") == rows(uneven, "moe.output") == 1.5 * TOKENS * TOP_K
    assert exchanged(uneven, "moe.dispatch") == exchanged(uneven, "moe.combine") == 1.5 * TOKENS * TOP_K
    assert products(uneven) == {1.5 * TOKENS * TOP_K}


def test_a_single_rank_has_all_experts_and_no_imbalance():
    assert block(Routing(imbalance=1.5), ep=1) == block(ep=1)


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_without_imbalance_a_capacity_above_the_mean_drops_nothing(factor):
    assert block(Routing(capacity_factor=factor)) == block()


def test_capacity_cuts_what_the_fullest_rank_receives():
    cut = block(Routing(imbalance=1.5, capacity_factor=1.25))
    assert rows(cut, "moe.dispatched") == 1.25 * TOKENS * TOP_K
    assert rows(cut, "moe.permuted") == TOKENS * TOP_K


def test_a_capacity_below_the_mean_drops_everywhere():
    cut = block(Routing(capacity_factor=0.5))
    assert rows(cut, "moe.permuted") == rows(cut, "moe.dispatched") == 0.5 * TOKENS * TOP_K


def test_padding_sends_the_capacity_whatever_the_routing():
    padded = Routing(capacity_factor=1.25, pad_to_capacity=True)
    assert block(padded) == block(replace(padded, imbalance=1.5))
    assert rows(block(padded), "moe.permuted") == rows(block(padded), "moe.dispatched")


def test_capacity_is_whole_tokens_of_each_expert():
    """Megatron-LM: ceil(num_tokens * top_k / num_experts * capacity_factor) of every expert."""
    padded = block(Routing(capacity_factor=1.01, pad_to_capacity=True))
    assert pytest.approx(129.28) == TOKENS * TOP_K / EXPERTS * 1.01
    assert rows(padded, "moe.permuted") == EXPERTS * 130


def test_flops_and_kept_bytes_of_experts_follow_the_rows():
    plain, more = block(), block(Routing(imbalance=2.0))
    ffn = small.MOE_LAYER.ffn
    expert_flops = 2.0 * 3 * ffn.ffn_hidden_size * HIDDEN * TOKENS * TOP_K
    assert block_flops(more).forward - block_flops(plain).forward == pytest.approx(expert_flops)
    kept = [keep(item, Recompute()).num_bytes for item in (plain, more)]
    of_experts = 2.0 * TOKENS * TOP_K * (HIDDEN + 3 * ffn.ffn_hidden_size)
    assert kept[1] - kept[0] == pytest.approx(of_experts)


def test_a_step_with_uneven_experts_is_longer_and_larger():
    layout = Layout(ep=8, dp_shard=8, graphs="full")
    even, uneven = (
        project(small.moe(), small.cluster(8), replace(layout, routing=routing), small.workload())
        for routing in (Routing(), Routing(imbalance=2.0))
    )
    assert uneven.step_time_s > even.step_time_s
    assert uneven.time_s["expert_comm"] > even.time_s["expert_comm"]
    assert uneven.memory.stages[0].activations_bytes > even.memory.stages[0].activations_bytes


def test_padding_needs_a_capacity():
    with raises(SpecError, "required_with routing.capacity_factor"):
        Routing(pad_to_capacity=True)


@pytest.mark.parametrize(("ep", "most"), [(1, 1.0), (2, 2.0), (8, 4.0)])
def test_no_rank_receives_more_than_all_tokens_can_send_it(ep, most):
    # 8 experts, 2 a token: on 8 ranks the one expert of a rank gets at most one of a token's two copies.
    limits = {"ep": float(ep), "num_experts": 8.0, "top_k": 2.0}
    assert possible_imbalance(imbalance=100.0, **limits) == most
    assert possible_imbalance(imbalance=1.0, **limits) == 1.0


def test_ranks_that_have_the_same_tokens_send_their_parts_and_gather_the_results():
    """Hand-worked: 512 tokens to 4 experts each on 4 tensor-parallel ranks; kept bytes fall with tp."""
    shared = block(tp=4, etp=4, ep=1, dp_shard=1)
    assert rows(shared, "moe.permuted") == TOKENS / 4 * TOP_K
    assert rows(shared, "moe.dispatched") == TOKENS * TOP_K
    assert rows(shared, "moe.own") == TOKENS / 4
    assert exchanged(shared, "moe.share") == TOKENS
    kept = [keep(block(tp=tp, etp=tp, ep=1, dp_shard=1), Recompute()).num_bytes for tp in (1, 2, 4)]
    assert kept == sorted(kept, reverse=True)
    assert rows(block(tp=4, etp=1, ep=1, dp_shard=1), "moe.dispatched") == TOKENS * TOP_K / 4
