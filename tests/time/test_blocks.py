"""What a block takes under a policy: passes, launches, the part that grows with a token's place, pools of graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import MLA, MOE_LAYER, asked, workload

from forescale.cost.calibration import RunFactors
from forescale.cost.mesh import groups, order_of
from forescale.graph.layer import layer_block
from forescale.graph.ops import Collective, Elementwise, Gemm, GroupedGemm
from forescale.graph.recompute import keep
from forescale.graph.sharding import split_layout
from forescale.inputs import pricing_of
from forescale.memory.liveness import block_bytes, block_moments
from forescale.spec import DenseFfn, FullAttention, Layer, Layout, Model, Recompute
from forescale.spec.layout import Overlap, Routing
from forescale.time.blocks import CHECKPOINT, block_seconds
from forescale.time.price import calls_of, calls_of_steps, price_operators

LAYER = Layer(
    attention=FullAttention(num_heads=8, num_kv_heads=4, head_dim=64), ffn=DenseFfn(ffn_hidden_size=1536)
)
FULL = Recompute(granularity="full")


NONE = Recompute()
ALONE = Layout()


def priced(layer=LAYER, strategy=ALONE, seq_len=512.0, **run):
    """Return a priced block on the toy."""
    model = Model(name="toy", hidden_size=512, layers=(layer,), vocab_size=8)
    degrees, choices = split_layout(strategy)
    question = asked(model, toy.cluster(strategy.num_devices), strategy, workload(), costs=toy.costs())
    pricing = pricing_of(question, degrees, choices, order_of(strategy), run=RunFactors(**run))
    return price_operators(layer_block(model, layer, toy.layout(strategy, seq_len)), pricing)


def cost(block, recompute=NONE, **asked):
    return block_seconds(block, keep(block.block, recompute).replays, **asked)


def test_what_grows_with_a_token_s_place_is_causal_attention():
    """Replayed, it is done once more in backward; under a window or without a mask nothing grows."""
    block = priced()
    core = block.operators["attention.core"]
    plain, again = (cost(block, recompute, by_place=True) for recompute in (Recompute(), FULL))
    assert plain.causal[0] == again.causal[0] == core.forward[0] > 0
    assert plain.causal[1] == core.backward_input[0] > core.forward[0]
    assert again.causal[1] == core.backward_input[0] + core.forward[0]
    assert cost(block).causal == (0.0, 0.0)
    for attention in (replace(LAYER.attention, window=100), replace(LAYER.attention, causal=False)):
        bounded = cost(priced(replace(LAYER, attention=attention)), by_place=True)
        assert bounded.causal == (0.0, 0.0)
    selective = Recompute(granularity="selective", modules=("mlp",))
    assert cost(block, selective, by_place=True).causal[1] == plain.causal[1]


def test_weight_gradients_are_a_pass_of_their_own():
    """Products alone have any; the rest of backward is what a schedule that splits it runs first."""
    block = priced()
    result = cost(block)
    operators = [operator.backward_weight[0] for operator in block.operators.values()]
    assert result.weight == pytest.approx(sum(operators))
    assert sum(1 for item in operators if item) == 4
    inputs = sum(operator.backward_input[0] for operator in block.operators.values())
    assert result.backward == pytest.approx(inputs + sum(operators))
    assert result.input_gradient == pytest.approx(inputs)
    assert result.forward == pytest.approx(sum(operator.forward[0] for operator in block.operators.values()))


def test_launches_of_every_pass():
    """A call for each of 11 kernels forward; as many for gradients of inputs, and 4 for those of weights."""
    block = priced(kernel_interval_s=0.002)
    result = cost(block)
    assert result.launches == pytest.approx((11 + 11 + 4) * 0.002)
    assert result.forward_parts["overhead"] == pytest.approx(
        11 * 0.002 - (result.forward - result.forward_parts["overhead"])
    )
    again = cost(block, FULL)
    assert again.launches == pytest.approx((11 + 11 + 4 + 11 + CHECKPOINT) * 0.002)
    apart = block_seconds(block, (), overlap=Overlap(tensor=False, expert=False), split=True)
    weights = sum(operator.backward_weight[0] for operator in block.operators.values())
    rest = sum(operator.backward_input[0] for operator in block.operators.values())
    assert apart.weight == pytest.approx(4 * 0.002)
    assert apart.forward_parts == result.forward_parts
    assert apart.backward_parts["overhead"] == pytest.approx(15 * 0.002 - weights - rest)
    blocking = Layout(kernels=replace(Layout().kernels, blocking_launches=True))
    waits = cost(priced(strategy=blocking, kernel_interval_s=0.002))
    assert waits.forward_parts["overhead"] == pytest.approx(11 * 0.002)
    assert cost(priced(strategy=Layout(graphs="full"), kernel_interval_s=0.002)).launches == 0.0


def test_deterministic_algorithms_cost_the_host_more():
    alone = cost(priced(kernel_interval_s=0.002))
    layout = Layout(kernels=replace(Layout().kernels, deterministic=True))
    result = cost(priced(strategy=layout, kernel_interval_s=0.002))
    assert result.launches == pytest.approx(1.25 * alone.launches)


def test_graphs_of_the_router_leave_the_rest_to_the_host():
    """Of an MoE layer: routing alone, with attention and norms, or all is captured."""
    launches = [
        cost(priced(MOE_LAYER, Layout(graphs=name), kernel_interval_s=0.002)).launches
        for name in ("none", "router", "partial", "full")
    ]
    assert launches[0] > launches[1] > launches[2] > launches[3] == 0.0


def test_exchanges_beside_another_micro_batch_cost_the_host_more():
    plain = priced(kernel_interval_s=0.002, interleaving=1.5)
    crossed = cost(plain, overlap=Overlap(expert=True))
    assert crossed.launches == pytest.approx(1.5 * cost(plain).launches)
    assert crossed.forward == pytest.approx(1.5 * cost(plain).forward)


def test_the_host_launches_a_pass_while_the_device_is_at_the_one_that_crosses_it():
    """Alone, forward waits for the host; beside it backward, of longer kernels, gives the host that time."""
    busy = cost(priced())
    plain = priced(kernel_interval_s=1.1 * busy.forward / 11)
    alone, crossed = cost(plain), cost(plain, overlap=Overlap(expert=True))
    assert alone.forward_parts["overhead"] == pytest.approx(0.1 * busy.forward)
    assert alone.backward == crossed.backward == busy.backward
    assert crossed.forward == busy.forward


def test_every_checkpoint_costs_the_host_time_of_its_own():
    """Both norms one each beside the activation's; none where a graph launches what it replays."""

    def launches(modules, graphs="none"):
        block = priced(strategy=Layout(graphs=graphs), kernel_interval_s=0.002)
        return cost(block, Recompute(granularity="selective", modules=modules)).launches / 0.002

    assert launches(("layernorm",)) - launches(()) == pytest.approx(2 * (1 + CHECKPOINT))
    assert launches(("core_attn",)) - launches(()) == pytest.approx(1 + CHECKPOINT)
    assert launches(("layernorm",), "full") == 0.0


def test_steps_beyond_the_first_are_launches_without_a_call():
    assert calls_of_steps(4.0, None) == 4.0
    assert calls_of_steps(4.0, 1.0) == 4.0
    assert calls_of_steps(4.0, 11.0) == pytest.approx(4 * (1 + 0.15 * 10))


def test_flops_of_a_replay():
    block = priced()
    forward = sum(operator.forward_flops for operator in block.operators.values())
    assert block.operators["attention.norm"].flops == block.operators["ffn.add"].flops == 0.0
    assert cost(block).flops == sum(operator.flops for operator in block.operators.values())
    assert cost(block, FULL).flops - cost(block).flops == pytest.approx(forward)


@pytest.mark.parametrize("recompute", [Recompute(), FULL])
def test_pools_of_what_graphs_capture_and_of_experts(recompute):
    """The fullest moments of either beyond what is kept; without experts there is one pool."""
    layout = Layout(ep=2, dp_shard=2)
    block = priced(replace(MOE_LAYER, attention=MLA), layout).block
    kept = keep(block, recompute)
    moments = block_moments(block, kept).backward
    experts = {operator.name for operator in block.operators if operator.part == "moe"}
    inside = max(float(moment.num_bytes) for moment in moments if moment.name not in experts)
    outside = max(float(moment.num_bytes) for moment in moments if moment.name in experts)
    captured = block_bytes(block, kept, captured=True).captured
    assert captured == pytest.approx((inside - kept.num_bytes, outside - kept.num_bytes))
    assert inside != outside
    assert block_bytes(block, kept).captured is None
    plain = priced().block
    _, alone = block_bytes(plain, keep(plain, recompute), captured=True).captured
    assert alone == 0.0


def test_calls_of_the_host():
    """One for a kernel, less for each more that Python or a compiled loop launches; none for what moves nothing."""
    degrees, _ = split_layout(Layout(tp=2))
    where = groups(degrees, order_of(Layout(tp=2)))
    assert calls_of(Gemm(m=1.0, n=1.0, k=1.0), where) == 1.0
    assert calls_of(Elementwise(bytes_moved=5.0), where) == 1.0
    assert calls_of(Elementwise(bytes_moved=5.0, kernels=3.0), where) == pytest.approx(1 + 0.15 * 2)
    assert calls_of(Elementwise(bytes_moved=0.0, kernels=3.0), where) == 0.0
    assert calls_of(Elementwise(bytes_moved=5.0, kernels=3.0, called=False), where) == pytest.approx(0.15 * 3)
    assert calls_of(GroupedGemm(groups=8.0, m=1.0, n=1.0, k=1.0), where) == pytest.approx(1 + 0.05 * 7)
    cast = Elementwise(bytes_moved=5.0, kernels=3.0, family="cast")
    assert calls_of(cast, where) == pytest.approx(1 + 0.05 * 2)
    assert calls_of(cast, where, 3.0) == pytest.approx(1 + 3.0 * 0.05 * 2)
    assert calls_of(Elementwise(bytes_moved=5.0, kernels=3.0), where, 3.0) == pytest.approx(1 + 0.15 * 2)
    assert calls_of(Collective(kind="all_reduce", axis="tp", num_bytes=1.0), where) == 1.0
    assert calls_of(Collective(kind="all_reduce", axis="cp", num_bytes=1.0), where) == 0.0


def test_a_schedule_that_splits_backward_has_nothing_to_hide_a_reshard_behind():
    """Over tp 2: two scatters of gradients beside two gathers of them, and both inputs gathered once more."""
    block = priced(strategy=Layout(tp=2))
    gather = 2 * 512 * 512 / 2 / 100e9
    none = Overlap(tensor=False, expert=False)
    split = block_seconds(block, (), overlap=none, split=True)
    local = sum(operator.backward_weight[0] for operator in block.operators.values())
    assert split.weight == pytest.approx(local + 2 * gather)
    assert split.backward_parts["tensor_comm"] == pytest.approx((2 + 2 + 2) * gather)
    together = block_seconds(block, (), overlap=none)
    hidden = sum(
        min(gather, of)
        for name in ("attention.qkv", "ffn.up")
        for of in (block.operators[name].backward_weight[0], block.operators[name].backward_input[0])
    )
    assert together.backward_parts["tensor_comm"] == pytest.approx(6 * gather - hidden)


def test_shared_experts_hide_what_travels_in_the_same_pass():
    """Forward behind their forward, backward behind both of their gradients; messages of this size show the rest."""
    block = priced(MOE_LAYER, Layout(ep=8, dp_shard=8))
    ours = [
        operator for operator in block.operators.values() if "shared_experts" in operator.operator.modules
    ]
    none, shared = (
        cost(block, overlap=Overlap(tensor=False, expert=False, shared_experts=on)) for on in (False, True)
    )
    forward = sum(our.forward[0] for our in ours)
    backward = sum(our.backward_input[0] + our.backward_weight[0] for our in ours)
    for before, after, hidden in (
        (none.forward_parts, shared.forward_parts, forward),
        (none.backward_parts, shared.backward_parts, backward),
    ):
        assert 0 < hidden < before["expert_comm"]
        assert after["expert_comm"] == pytest.approx(before["expert_comm"] - hidden)
    assert forward < backward


def test_products_of_summa_take_their_steps_one_after_another():
    """On a grid of 2 x 2 in two panels each four steps of a quarter of the inner extent, whose sums go to memory."""
    layer = Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=8192), num_norms=1)
    layout = Layout(tp=2, cp=2, tp_kind="summa", summa_panels=2)
    block = priced(layer, layout, seq_len=8192.0, kernel_interval_s=1e-9)
    rows, k, n = 4096, 512, 8192  # tokens and columns of one device, of up; the inner extent is whole
    width = k / 4
    flops, moved = 2 * rows * width * n / 100e12, 2 * (rows * width + width * n + rows * n) / 1e12
    forward = max(flops, moved + 2 * rows * n / 1e12)  # sums are read as well as written
    summed = width * n / 2 * (2 + 2 * 4) / 1e12  # cp ranks share the fp32 sum of gradients in 2 bytes
    sent = {"tensor_comm": 4 * 2 * rows * width / 100e9, "context_comm": 4 * 2 * width * n / 100e9}
    up = block.operators["ffn.up"]
    assert up.forward[0] == pytest.approx(4 * forward)
    assert up.backward_input[0] == pytest.approx(4 * max(flops, moved))
    assert up.backward_weight[0] == pytest.approx(4 * (max(flops, moved) + summed))
    passes = up.forward, up.backward_input, up.backward_weight
    assert [messages for _, messages in passes] == [pytest.approx(sent)] * 3
    assert (up.forward_flops, up.flops) == pytest.approx((2 * rows * k * n, 3 * 2 * rows * k * n))
    spent = sum(compute + sum(messages.values()) for compute, messages in passes)
    assert sum(seconds for _, seconds in up.primitives) == pytest.approx(spent)
    # A message of each axis and a product are called once and launched three times more.
    assert up.forward_kernels == pytest.approx(3 * (1 + 0.15 * 3))
    parts, norm, down = cost(block).forward_parts, block.operators["ffn.norm"], block.operators["ffn.down"]
    shown = sum(norm.forward[1].values())
    for item in (up, down):
        message = sum(item.forward[1].values())
        shown += message / 4 + 3 / 4 * max(message - item.forward[0], 0.0)
    assert parts["tensor_comm"] == pytest.approx(shown)
    gradients = 0.0
    for seconds, messages in (up.backward_weight, down.backward_weight):
        message = sum(messages.values())
        gradients += seconds + message / 4 + 3 / 4 * max(message - seconds, 0.0)
    assert cost(block).weight == pytest.approx(gradients)


@pytest.mark.parametrize("graphs", ["partial", "router"])
def test_the_graph_of_a_layer_copies_its_input_and_the_gradients_of_its_results(graphs):
    layout = Layout(dp_shard=8, ep=8, graphs=graphs)
    layer = replace(MOE_LAYER, ffn=replace(MOE_LAYER.ffn, num_experts=16, shared_ffn_hidden_size=64))
    copies = priced(layer, layout).operators["graph.copies"].operator
    stream, experts = 512.0 * 512.0 * 2.0, 512.0 * 16.0 * 4.0
    assert [item.bytes_moved for item in copies.forward] == [2.0 * stream]
    assert [item.bytes_moved for item in copies.backward_input] == [2.0 * (3.0 * stream + experts)]
    assert copies.saves == ()
    dense = priced(LAYER, replace(layout, ep=1)).operators
    if graphs == "router":
        assert "graph.copies" not in dense
    else:
        moved = [item.bytes_moved for item in dense["graph.copies"].operator.backward_input]
        assert moved == [2.0 * stream]
    assert "graph.copies" not in priced(layer, replace(layout, graphs="full")).operators


def test_no_kernel_before_the_read_of_counts_hides_a_launch_behind_it():
    """Experts that take no time wait for their launches, however long the shared expert before them takes."""
    layer = replace(MOE_LAYER, ffn=replace(MOE_LAYER.ffn, shared_ffn_hidden_size=2**16))
    graphs = {"graphs": "partial"}
    interval = 1e-4
    for routing, waits in ((Routing(), True), (Routing(capacity_factor=1.0, pad_to_capacity=True), False)):
        block = priced(layer, Layout(dp_shard=8, ep=8, routing=routing, **graphs), kernel_interval_s=interval)
        later = list(block.operators).index("moe.dispatch")
        after = [
            item
            for item in list(block.operators.values())[later:]
            if "shared_experts" not in item.operator.modules
        ]
        calls = sum(item.forward_kernels for item in after)
        busy = sum(item.forward[0] + sum(item.forward[1].values()) for item in after)
        gap = block_seconds(block, ()).forward_parts["overhead"]
        whole = sum(item.forward[0] + sum(item.forward[1].values()) for item in block.operators.values())
        assert calls * interval < whole
        assert gap == pytest.approx(calls * interval - busy if waits else 0.0)
