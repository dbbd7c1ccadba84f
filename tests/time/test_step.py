"""Two whole steps on a cluster of round numbers, every part worked out by hand.

100 TFLOP/s, 1 TB/s of memory, links that their traffic fills: a product takes the longer of its arithmetic and its
memory traffic, a pass over memory its bytes, a ring (n - 1)/n of its bytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from tests import toy

from forescale.cost.run_calibration import SharedFactors, SoftwareFactors
from forescale.project import project
from forescale.spec import DenseFfn, FullAttention, Layer, Layout, Model, MoeFfn, Recompute, Tier, Workload
from forescale.spec.layout import Kernels, Overlap
from forescale.time.step import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    _least_waiting,
    bubble_time,
    exposed_pipeline_time,
    stage_waits,
)

RATE, HBM = 100e12, 1e12


def product(rows, k, n):
    """Forward and input gradient alike; the weight gradient, whose fp32 sum is read and written."""
    passed = max(2 * rows * k * n / RATE, 2 * (rows * k + k * n + rows * n) / HBM)
    return passed, passed, max(2 * rows * k * n / RATE, (2 * rows * (k + n) + 8 * k * n) / HBM)


def experts(rows, groups, k, n):
    passed = max(2 * rows * k * n / RATE, 2 * (rows * k + groups * k * n + rows * n) / HBM)
    return passed, passed, max(2 * rows * k * n / RATE, (2 * rows * (k + n) + 8 * groups * k * n) / HBM)


def core(batch, seq, heads, kv, size):
    """Causal: half of the square and the diagonal; two products forward, five backward."""
    pairs = seq * (seq + 1) / 2 + seq / 2
    moved = 2 * batch * seq * (2 * heads + 2 * kv) * size / HBM
    item = 2 * batch * heads * pairs * size / RATE
    return max(2 * item, moved), max(5 * item, 2 * moved)


def ring(size, ranks, link):
    return (ranks - 1) / ranks * size / link


LAYER = Layer(
    attention=FullAttention(num_heads=8, num_kv_heads=4, head_dim=64), ffn=DenseFfn(ffn_hidden_size=1536)
)
DENSE = Model(name="toy-dense", hidden_size=512, layers=(LAYER,) * 4, vocab_size=8000, vocab_multiple=1)
LAYOUT = Layout(tp=2, pp=2, dp_shard=3, micro_batch_size=2)
WORK = Workload(seq_len=512, global_batch_size=24)
COUNT = 24 / (3 * 2)
SOFTWARE = SoftwareFactors(step_overhead_s=0.125, microbatch_overhead_s=0.003)


def dense_stages():
    """Return seconds of one micro-batch by part, forward and backward, of both stages: tp 2 with its sequence."""
    tokens, h, link = 2 * 512, 512, 100e9
    stream = 2 * (tokens / 2) * h / HBM
    gather = ring(2 * tokens * h, 2, link)
    qkv, out = product(tokens, h, (4 + 2 * 2) * 64), product(tokens, 4 * 64, h)
    up, down = product(tokens, h, 2 * 768), product(tokens, 768, h)
    rotary = 2 * 2 * tokens * (4 + 2) * 64 / HBM
    scores = core(2, 512, 4, 2, 64)
    activation = 2 * tokens * 768 / HBM

    def entered(linear):
        """Gradients scattered behind the weight gradient, the input gathered again behind the input gradient."""
        return max(gather - linear[2], 0) + max(gather - linear[1], 0)

    layer = {
        "norm": (2 * (2 + 3) * stream, 2 * (3 + 1) * stream),  # norm and addition, twice each
        "attention": (qkv[0] + rotary + scores[0] + out[0], sum(qkv[1:]) + rotary + scores[1] + sum(out[1:])),
        "ffn": (up[0] + 3 * activation + down[0], sum(up[1:]) + 5 * activation + sum(down[1:])),
        "tensor_comm": (4 * gather, 2 * gather + entered(qkv) + entered(up)),
    }
    both = {part: (2 * forward, 2 * backward) for part, (forward, backward) in layer.items()}
    rows = 2 * tokens * h / HBM
    first = both | {
        "embedding": (2 * rows, 5 * rows),
        "tensor_comm": tuple(item + gather for item in both["tensor_comm"]),
    }
    logits, local = product(tokens, h, 4000), tokens * 4000 / HBM
    forward, backward = both["tensor_comm"]
    loss = 2 * ring(3 * 4 * tokens, 2, link)
    last = both | {
        "head": (2 * stream + logits[0] + 38 * local, 3 * stream + sum(logits[1:]) + 14 * local),
        "tensor_comm": (forward + gather + loss, backward + entered(logits)),
    }
    return first, last


def total(stage, index):
    return sum(item[index] for item in stage.values())


def run(model, layout, work, fabric=None, shared=None, software=SOFTWARE):
    fabric = fabric or toy.cluster(layout.num_devices)
    result = project(model, fabric, layout, work, costs=toy.costs(software, shared))
    return {part: seconds for part, seconds in result.time_s.items() if seconds}, result


def per_layer():
    """Weights of one layer on one of two tensor-parallel ranks: norms whole, the rest by half."""
    return 2 * 512 + (512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1536) / 2


def dense_parts():
    """Return the parts of the whole step: the last stage, with the head, is the slower one."""
    stages, link = dense_stages(), 100e9
    engine = 0.003  # once per micro-batch
    times = [total(stage, 0) + total(stage, 1) + engine for stage in stages]
    assert times[1] > times[0]
    parts = {part: COUNT * sum(item) for part, item in stages[1].items()}
    hop = 2 * (2 * 512 / 2) * 512 / link
    kept = [2 * per_layer() + 8000 / 2 * 512, 2 * per_layer() + 512 + 8000 / 2 * 512]
    shown = []
    for stage, parameters in zip(stages, kept, strict=True):
        forward, backward = total(stage, 0), total(stage, 1) + engine
        reduced, gathered = ring(4 * parameters, 3, link), ring(2 * parameters, 3, link)
        shown.append(max(reduced - backward, reduced / 2) + max(gathered - forward, gathered / 2))
    return parts | {
        "bubble": times[0],  # (p - 1) of the others' time
        "pipeline_comm": 2 * (2 - 1) * hop + COUNT * 2 * hop,
        "data_comm": max(shown),
        "optimizer": (2 * 12 + 4 + 2) * max(kept) / 3 / HBM,  # states read and written, gradient, weight
        "overhead": COUNT * engine + 0.125,
    }


def test_dense_step():
    """Llama-like over tp 2 x pp 2 x dp 3, ZeRO 1, four micro-batches: 1F1B."""
    parts, result = run(DENSE, LAYOUT, WORK)
    assert parts == pytest.approx(dense_parts(), rel=1e-9)
    assert result.step_time_s == pytest.approx(sum(dense_parts().values()), rel=1e-9)
    for stage, stage_time in zip(dense_stages(), result.stage_times, strict=True):
        assert stage_time.forward_s == pytest.approx(total(stage, 0), rel=1e-9)
        assert stage_time.backward_s == pytest.approx(total(stage, 1) + 0.003, rel=1e-9)


def test_replicas_and_stages_of_zero_exchange_different_bytes():
    """Without overlap, all of it shows: an all-reduce, or its two halves with weights for the second."""
    bare, link, kept = (
        Overlap(grad_reduce=False, param_gather=False),
        100e9,
        2 * per_layer() + 512 + 4000 * 512,
    )

    def shown(**changes):
        return run(DENSE, replace(LAYOUT, overlap=bare, **changes), WORK)[0]["data_comm"]

    assert shown(zero=0) == pytest.approx(2 * ring(4 * kept, 3, link))
    for zero in (1, 2):
        assert shown(zero=zero) == pytest.approx(ring(4 * kept, 3, link) + ring(2 * kept, 3, link))
    # Parameters stay whole behind a pipeline: once a step, too.
    assert shown(zero=3) == pytest.approx(ring(4 * kept, 3, link) + ring(2 * kept, 3, link))
    # 3 replicas that hold everything: sums travel twice, nothing is sharded or gathered.
    assert shown(dp_replicate=3, dp_shard=1) == pytest.approx(2 * ring(4 * kept, 3, link))


@pytest.mark.parametrize("schedule", [None, "1f1b", "zb-h1"])
def test_parameters_that_stay_whole_keep_no_pass_waiting(schedule):
    """Behind a pipeline stage 3 sends what stage 2 does, however slow the network and whatever hides it."""
    fabric = toy.cluster(12, Tier(name="toy", size=0, bandwidth=1e8, latency=0.0))
    layouts = (replace(LAYOUT, schedule=schedule, zero=zero) for zero in (2, 3))
    shards, whole = (run(DENSE, layout, WORK, fabric)[0] for layout in layouts)
    assert shards == whole


def test_sharding_parameters_gathers_them_twice_and_reduces_once_per_micro_batch():
    """FSDP over 3 without pipeline, block by block; HSDP sums the shards of 2 replicas once a step."""
    bare, link = Overlap(grad_reduce=False, param_gather=False), 100e9
    layout = Layout(tp=2, dp_shard=3, zero=3, micro_batch_size=2, overlap=bare)
    kept = 4 * per_layer() + 8000 / 2 * 512 + 512 + 8000 / 2 * 512
    item = 2 * ring(2 * kept, 3, link) + ring(4 * kept, 3, link)
    assert run(DENSE, layout, WORK)[0]["data_comm"] == pytest.approx(COUNT * item)
    once = 2 * ring(4 * kept / 3, 2, link)
    hybrid = run(DENSE, replace(layout, dp_replicate=2), replace(WORK, global_batch_size=48))[0]
    assert hybrid["data_comm"] == pytest.approx(COUNT * item + once)


def test_context_ranks_share_the_reduction_of_what_they_copy():
    """cp 3 and dp 2 hold the same weights: six shards."""
    bare, link = Overlap(grad_reduce=False, param_gather=False), 100e9
    layout = Layout(tp=2, cp=3, dp_shard=2, overlap=bare)
    kept = 4 * per_layer() + 8000 * 512 + 512
    work = Workload(seq_len=384, global_batch_size=4)
    assert run(DENSE, layout, work)[0]["data_comm"] == pytest.approx(
        ring(4 * kept, 6, link) + ring(2 * kept, 6, link)
    )


def test_what_a_slower_link_shows_beyond_the_pass_that_hides_it():
    """Per block: the gather beyond forward; gather and reduction beyond backward; and the ends of the step."""
    layout = Layout(dp_shard=3, zero=3, micro_batch_size=2)
    model = replace(DENSE, layers=(LAYER,) * 2)
    fabric = toy.cluster(3, Tier(name="toy", size=0, bandwidth=1e9, latency=0.0))
    result = project(model, fabric, layout, WORK, costs=toy.costs())
    parts = result.time_s
    layer = 2 * 512 + 512 * 16 * 64 + 512 * 512 + 3 * 512 * 1536
    blocks = [layer, layer, 8000 * 512, 8000 * 512 + 512]
    gathers = [ring(2 * block, 3, 1e9) for block in blocks]
    hidden = (parts["attention"] + parts["ffn"] + parts["norm"] + parts["embedding"] + parts["head"]) / COUNT
    item = sum(4 * gather for gather in gathers) - hidden + 3 * gathers[0]
    assert parts["data_comm"] == pytest.approx(
        COUNT * item
    )  # all compute hides something: gathers are longer


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("reduces", [True, False])
def test_what_overlaps_shows_its_end(gathers, reduces):
    """At 100 MB/s every message outlasts its pass: two gathers and a reduction of all, less what hides them, and at an
    end of the micro-batch a layer's once more of what waits for nothing else.
    """
    layout = Layout(
        dp_shard=3, zero=3, micro_batch_size=2, overlap=Overlap(param_gather=gathers, grad_reduce=reduces)
    )
    fabric = toy.cluster(3, Tier(name="toy", size=0, bandwidth=1e8, latency=0.0))
    parts, result = run(DENSE, layout, WORK, fabric, software=SoftwareFactors())
    layer = 2 * 512 + 512 * 16 * 64 + 512 * 512 + 3 * 512 * 1536
    kept, (stage,) = 4 * layer + 2 * 8000 * 512 + 512, result.stage_times
    hidden = gathers * stage.forward_s + (gathers or reduces) * stage.backward_s
    ends = (2 * gathers + 4 * reduces) * layer
    assert parts["data_comm"] == pytest.approx(COUNT * (ring(8 * kept + ends, 3, 1e8) - hidden))


ROUTED = Layer(
    attention=FullAttention(num_heads=8, num_kv_heads=4, head_dim=64),
    ffn=MoeFfn(num_experts=16, top_k=2, ffn_hidden_size=384, shared_ffn_hidden_size=256),
)
MOE = Model(name="toy-moe", hidden_size=512, layers=(ROUTED,) * 8, vocab_size=6000, vocab_multiple=1)
NEAR, FAR = 400e9, 50e9
TIERS = (
    Tier(name="toy node", size=8, bandwidth=NEAR, latency=0.0),
    Tier(name="toy network", size=0, bandwidth=FAR, latency=0.0),
)


def moe_stages():
    """Return seconds by part of both ranks: 4 layers each in 2 chunks, experts over ep 4, no tp."""
    tokens, h = 2 * 512, 512
    rows, stream = 2 * tokens, 2 * tokens * h / HBM
    qkv, out = product(tokens, h, (8 + 2 * 4) * 64), product(tokens, 8 * 64, h)
    rotary, scores = 2 * 2 * tokens * (8 + 4) * 64 / HBM, core(2, 512, 8, 4, 64)
    router = product(tokens, h, 16)
    shared_up, shared_down = product(tokens, h, 2 * 256), product(tokens, 256, h)
    up, down = experts(rows, 4, h, 2 * 384), experts(rows, 4, 384, h)
    top_k = 16 * tokens * 16 / HBM
    moved = 2 * rows * h / HBM
    activation, shared = 2 * rows * 384 / HBM, 2 * tokens * 256 / HBM
    exchange = 3 / 4 * 2 * rows * h / NEAR
    counts = ring(16 * 8 * 4, 4, NEAR)
    permutes = 4 * 2 * moved
    linears = (router, up, down, shared_up, shared_down)
    layer = {
        "norm": (2 * (2 + 3) * stream, 2 * (3 + 1) * stream),
        "attention": (qkv[0] + rotary + scores[0] + out[0], sum(qkv[1:]) + rotary + scores[1] + sum(out[1:])),
        "moe": (
            sum(linear[0] for linear in linears)
            + top_k
            + permutes
            + 3 * activation
            + 3 * shared
            + 3 * stream,
            sum(linear[1] + linear[2] for linear in linears) + top_k + permutes + 5 * activation + 5 * shared,
        ),
        "expert_comm": (counts + 2 * exchange, 2 * exchange),
    }
    both = {part: (4 * forward, 4 * backward) for part, (forward, backward) in layer.items()}
    logits, local = product(tokens, h, 6000), tokens * 6000 / HBM
    first = both | {"embedding": (2 * stream, 5 * stream)}
    last = both | {"head": (2 * stream + logits[0] + 38 * local, 3 * stream + sum(logits[1:]) + 14 * local)}
    return first, last


def moe_parts():
    stages, engine, count = moe_stages(), 2 * 0.003, 4  # two chunks
    times = [total(stage, 0) + total(stage, 1) + engine for stage in stages]
    assert times[1] > times[0]
    parts = {part: count * sum(item) for part, item in stages[1].items()}
    hop = 2 * 2 * 512 * 512 / FAR  # ranks of a pipeline stand on different nodes
    traffic = 2 * 2 * hop
    dense = 4 * (2 * 512 + 512 * 16 * 64 + 512 * 512 + 512 * 16 + 3 * 512 * 256)
    expert = 4 * 3 * 4 * 512 * 384  # of 16 experts, four
    kept = [dense + 6000 * 512, dense + 512 + 6000 * 512]
    shown = []
    for stage, parameters in zip(stages, kept, strict=True):
        forward, backward = total(stage, 0), total(stage, 1) + engine
        reduced = ring(4 * parameters, 8, NEAR) + ring(4 * expert, 2, NEAR)
        gathered = ring(2 * parameters, 8, NEAR) + ring(2 * expert, 2, NEAR)
        shown.append(
            sum(
                max(sent - cover, sent / 4) + 0.25 * (sent - max(sent - cover, sent / 4))
                for sent, cover in ((reduced, backward), (gathered, forward))
            )
        )
    parts |= {
        "bubble": times[0] / 2,  # interleaved in two
        "pipeline_comm": 2 * hop + count * (traffic - min(times[1], traffic)),
        "data_comm": max(shown),
        "optimizer": (2 * 12 + 4 + 2) * (max(kept) / 8 + expert / 2) / HBM,
        "overhead": count * engine + 0.125,
    }
    parts["overhead"] += 0.02 * sqrt(2 * log(16)) * sum(parts.values())  # the slowest of 16 devices
    return parts


def test_moe_step():
    """Interleaved over pp 2 x vpp 2, ep 4 within dp 8, two nodes; hidden messages cost a quarter of their time."""
    layout = Layout(pp=2, vpp=2, dp_shard=8, ep=4, micro_batch_size=2)
    work = Workload(seq_len=512, global_batch_size=64)
    software, shared = replace(SOFTWARE, contention=0.25), SharedFactors(contention=0.5, straggler=0.02)
    parts, _ = run(MOE, layout, work, toy.cluster(16, *TIERS), shared, software)
    assert parts == pytest.approx(moe_parts(), rel=1e-9)


def test_a_step_sums_the_tokens_of_every_expert_once():
    """Of 16 experts in 8 layers, in fp32, over all 8 ranks; biases themselves are counted as parameters are."""
    layer = replace(ROUTED, ffn=replace(ROUTED.ffn, score_bias=True))
    layout = Layout(dp_shard=8, ep=4, overlap=Overlap(grad_reduce=False, param_gather=False))
    plain, biased = (
        run(replace(MOE, layers=(item,) * 8), layout, replace(WORK, global_batch_size=8))[0]["data_comm"]
        for item in (ROUTED, layer)
    )
    counts, biases = 2 * ring(4 * 8 * 16, 8, 100e9), ring((4 + 2) * 8 * 16, 8, 100e9)
    assert biased - plain == pytest.approx(counts + biases, rel=1e-6)


def test_messages_of_interleaved_stages_wait_where_nothing_hides_them():
    layout = Layout(pp=2, vpp=2, dp_shard=8, ep=4, micro_batch_size=2, overlap=Overlap(pipeline=False))
    work = Workload(seq_len=512, global_batch_size=64)
    parts, _ = run(MOE, layout, work, toy.cluster(16, *TIERS))
    hop = 2 * 2 * 512 * 512 / FAR
    assert parts["pipeline_comm"] == pytest.approx(2 * hop + 4 * 2 * 2 * hop)


def test_without_sequence_parallelism_every_rank_sends_the_whole_message():
    parts, _ = run(DENSE, replace(LAYOUT, sp=False), WORK)
    hop = 2 * 2 * 512 * 512 / 100e9
    assert parts["pipeline_comm"] == pytest.approx(2 * hop + COUNT * 2 * hop)


def test_messages_longer_than_a_stage_show_what_is_left():
    """Interleaved: per micro-batch 2 v hops, less the slower stage's own time."""
    layout = Layout(pp=2, vpp=2, micro_batch_size=2)
    fabric = toy.cluster(2, Tier(name="toy", size=0, bandwidth=1e9, latency=0.0))
    result = project(DENSE, fabric, layout, Workload(seq_len=512, global_batch_size=8), costs=toy.costs())
    hop, busy = (
        2 * 2 * 512 * 512 / 1e9,
        max(stage.forward_s + stage.backward_s for stage in result.stage_times),
    )
    assert busy < 4 * hop
    assert result.time_s["pipeline_comm"] == pytest.approx(2 * hop + 4 * (4 * hop - busy))


@pytest.mark.parametrize("zero", [1, 2])
def test_gradients_that_are_sharded_travel_once_a_step(zero):
    bare, link = Overlap(grad_reduce=False, param_gather=False), 100e9
    layout = Layout(tp=2, dp_shard=3, zero=zero, micro_batch_size=2, overlap=bare)
    kept = 4 * per_layer() + 8000 * 512 + 512
    assert run(DENSE, layout, WORK)[0]["data_comm"] == pytest.approx(
        ring(4 * kept, 3, link) + ring(2 * kept, 3, link)
    )


def test_reductions_hide_behind_backward_and_gathers_behind_forward():
    layout = Layout(dp_shard=3, micro_batch_size=2)
    fabric = toy.cluster(3, Tier(name="toy", size=0, bandwidth=5e9, latency=0.0))
    engine = toy.costs(SoftwareFactors(microbatch_overhead_s=0.0005))  # part of the backward it was asked for
    result = project(DENSE, fabric, layout, WORK, costs=engine)
    kept = 4 * (2 * per_layer() - 2 * 512) + 2 * 8000 * 512 + 512
    reduced, gathered, (stage,) = ring(4 * kept, 3, 5e9), ring(2 * kept, 3, 5e9), result.stage_times
    shown = (reduced - stage.backward_s) + (gathered - stage.forward_s)
    assert min(reduced * 3 / 4 - stage.backward_s, gathered * 3 / 4 - stage.forward_s) > 0
    assert result.time_s["data_comm"] == pytest.approx(shown)


def test_flops_of_a_step():
    """Executed: three products for each weight; attention 2 products forward and 5 backward, once more if replayed."""
    weights = 4 * (512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1536)
    tokens, pairs = 24 * 512, 4 * 24 * 8 * 512 * 513 / 2
    _, result = run(DENSE, LAYOUT, WORK)
    products = 2 * tokens * (weights + 512 * 8000)
    assert result.model_flops_per_step == pytest.approx(3 * products + 3 * 4 * 64 * pairs)
    assert result.hardware_flops_per_step == pytest.approx(3 * products + (4 + 10) * 64 * pairs)
    assert result.hfu == pytest.approx(result.hardware_flops_per_step / (RATE * 12 * result.step_time_s))
    _, again = run(DENSE, replace(LAYOUT, recompute=Recompute(granularity="full")), WORK)
    more = again.hardware_flops_per_step - result.hardware_flops_per_step
    assert more == pytest.approx(2 * tokens * weights + 4 * 64 * pairs)
    last = dense_stages()[1]
    replayed = last["attention"][0] + last["ffn"][0] + last["norm"][0]
    assert again.time_s["recompute"] == pytest.approx(COUNT * replayed)


def test_flops_of_unfused_attention_are_those_of_all_pairs():
    """Two products forward and four back of every query by every key; selective recompute repeats the first two."""
    layout = replace(LAYOUT, flash_attention=False)
    weights = 4 * (512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1536)
    tokens, pairs = 24 * 512, 4 * 24 * 8 * 512 * 512
    _, result = run(DENSE, layout, WORK)
    products = 2 * tokens * (weights + 512 * 8000)
    assert result.hardware_flops_per_step == pytest.approx(3 * products + 3 * 4 * 64 * pairs)
    assert result.hardware_flops_per_step == pytest.approx(result.model_flops_full_attention_per_step)
    assert result.hfu == pytest.approx(result.mfu_full_attention)
    selective = replace(layout, recompute=Recompute(granularity="selective", modules=("core_attn",)))
    _, again = run(DENSE, selective, WORK)
    more = again.hardware_flops_per_step - result.hardware_flops_per_step
    assert more == pytest.approx(4 * 64 * pairs)


def test_a_busy_network_slows_every_message_and_dispatch_once_more():
    layout = Layout(
        dp_shard=8, ep=4, micro_batch_size=2, overlap=Overlap(grad_reduce=False, param_gather=False)
    )
    work = Workload(seq_len=512, global_batch_size=16)
    alone, busy = (
        run(MOE, layout, work, shared=shared)[0]
        for shared in (SharedFactors(), SharedFactors(network=0.8, dispatch=0.5))
    )
    assert busy["data_comm"] == pytest.approx(alone["data_comm"] / 0.8)
    assert busy["expert_comm"] == pytest.approx(alone["expert_comm"] / (0.8 * 0.5))


def test_gradients_scatter_behind_weight_gradients_and_inputs_return_behind_input_gradients():
    """Few tokens: the weight gradient takes longer than the input gradient, and a message as long as neither."""
    layer = Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=4096), num_norms=1)
    fabric = toy.cluster(2, Tier(name="toy", size=0, bandwidth=5e9, latency=0.0))
    one, two = (
        project(
            Model(name="few-tokens", hidden_size=512, layers=(layer,) * count, vocab_size=2),
            fabric,
            Layout(tp=2),
            Workload(seq_len=128, global_batch_size=1),
            costs=toy.costs(),
        ).time_s["tensor_comm"]
        for count in (1, 2)
    )
    up, gather = product(128, 512, 4096), ring(2 * 128 * 512, 2, 5e9)
    assert up[1] < gather < up[2]
    assert two - one == pytest.approx(3 * gather + gather - up[1])


def test_shared_messages_are_gathered_by_the_next_stage():
    """Each of tp 2 sends its half; the two gather the whole, hop by hop (Narayanan et al. 2021, section 4.1)."""
    layout = replace(LAYOUT, sp=False, kernels=Kernels(shares_messages=True))
    hop = 2 * 512 * 512 / 100e9 + ring(2 * 2 * 512 * 512, 2, 100e9)
    parts, _ = run(DENSE, layout, WORK)
    assert parts["pipeline_comm"] == pytest.approx(2 * hop + COUNT * 2 * hop)
    # With the sequence split nothing is shared out: ranks hold different tokens.
    with_sequence, _ = run(DENSE, replace(layout, sp=True), WORK)
    assert with_sequence["pipeline_comm"] == pytest.approx((2 + 2 * COUNT) * 2 * 512 * 512 / 100e9)


def test_weights_gathered_one_by_one_show_the_first_alone():
    """At both ends of a micro-batch: of a layer's messages the share of its largest weight, gate and up apart."""
    layout = Layout(dp_shard=3, zero=3, micro_batch_size=2)
    blocks, weights = (
        run(DENSE, replace(layout, kernels=Kernels(gathers_each_weight=item)), WORK)[0]["data_comm"]
        for item in (False, True)
    )
    layer = 2 * 512 + 512 * 16 * 64 + 512 * 512 + 3 * 512 * 1536
    ends = ring(2 * layer, 3, 100e9) + ring(4 * layer, 3, 100e9)
    assert blocks - weights == pytest.approx(COUNT * ends * (1 - 512 * 1536 / layer))


def test_ties_of_a_tied_matrix_cross_the_pipeline():
    """Both ends sum the gradient of their copies, in fp32; on one stage there is one copy."""
    tied = replace(DENSE, tied_embeddings=True)
    layout = Layout(pp=2, micro_batch_size=2)
    work = Workload(seq_len=512, global_batch_size=8)
    apart, together = (run(model, layout, work)[0].get("data_comm", 0.0) for model in (DENSE, tied))
    assert apart == 0.0
    assert together == pytest.approx(2 * ring(4 * 8000 * 512, 2, 100e9))
    assert "data_comm" not in run(tied, Layout(), work)[0]


def test_the_host_launches_tensors_of_the_update_one_by_one():
    """Zero 1: of 4 x 8 + 3 tensors a third each, 2 ms a launch, beside an update that takes less."""
    software = SoftwareFactors(kernel_interval_s=0.002)
    layout = Layout(dp_shard=3, micro_batch_size=2, graphs="full")
    result = project(DENSE, toy.cluster(3), layout, WORK, costs=toy.costs(software))
    tensors = 4 * (2 + 4 + 2) + 1 + 2
    assert result.time_s["overhead"] == pytest.approx(tensors / 3 * 0.002 - result.time_s["optimizer"])
    flat = replace(layout, kernels=Kernels(flat_update=True))
    whole = replace(layout, zero=3)
    for item in (flat, whole):
        assert project(DENSE, toy.cluster(3), item, WORK, costs=toy.costs(software)).time_s["overhead"] == 0.0
    kept = replace(layout, kernels=Kernels(flat_update=True, keeps_product_gradients=True))
    beside = project(DENSE, toy.cluster(3), kept, WORK, costs=toy.costs(software)).time_s
    second = project(DENSE, toy.cluster(3), replace(kept, zero=2), WORK, costs=toy.costs(software)).time_s
    assert second["overhead"] == 0.0
    data = result.time_s["data_comm"] * (4 + 4 + 2) / (4 + 2)  # fp32 sums gathered as well as scattered
    assert beside == pytest.approx({**result.time_s, "data_comm": data})


def test_a_graph_of_the_whole_step_leaves_the_engine_nothing_to_do():
    costs = toy.costs(SoftwareFactors(microbatch_overhead_s=0.003))
    alone, captured = (
        project(DENSE, toy.cluster(1), Layout(micro_batch_size=2, graphs=graphs), WORK, costs=costs)
        for graphs in ("none", "full")
    )
    assert captured.time_s["overhead"] == 0.0
    assert alone.time_s["overhead"] == pytest.approx(WORK.global_batch_size / 2 * 0.003)


def test_parameters_gathered_before_the_step_ends_hide_behind_nothing():
    """Zero 1 and 2: what of the gather was hidden shows; zero 3 gathers block by block either way."""
    for zero, shows in ((1, True), (2, True), (3, False)):
        layout = Layout(dp_shard=3, micro_batch_size=2, zero=zero)
        late = replace(layout, kernels=Kernels(gathers_after_update=True))
        usual, ended = (
            project(DENSE, toy.cluster(3), item, WORK, costs=toy.costs()).time_s["data_comm"]
            for item in (layout, late)
        )
        assert (ended > usual) is shows


@pytest.mark.parametrize(
    ("pp", "vpp", "seconds"), [(1, 1, 0), (4, 1, 2 * 3 * 5 + 7 * 2 * 5), (4, 3, 2 * 3 * 5 + 7 * (30 - 9))]
)
def test_hops_that_fill_and_drain(pp, vpp, seconds):
    """Three down and three up of 5 s; two per micro-batch and chunk, of which 9 s hide behind interleaved chunks."""
    result = exposed_pipeline_time(
        hop=5.0, slowest_stage_time=9.0, microbatches=7.0, pp=float(pp), vpp=float(vpp), overlapped=True
    )
    assert result == seconds


def test_gradients_of_chunks_that_cross_leave_once_both_are_over():
    """Forward alone hides: of 2 · 3 · 5 s per micro-batch 9 s could, but activations take 3 · 2."""
    result = exposed_pipeline_time(
        hop=2.0, slowest_stage_time=9.0, microbatches=7.0, pp=4.0, vpp=3.0, overlapped=True, crossed=True
    )
    assert result == 2 * 3 * 2 + 7 * (12 - 6)


def test_waits_of_a_pipeline():
    """Of five stages' 30 s all but the slowest's 8, by chunks; nothing on one stage."""
    assert bubble_time(total_stage_time=30.0, slowest_stage_time=8.0, pp=5.0, vpp=2.0) == 11.0
    assert bubble_time(total_stage_time=30.0, slowest_stage_time=30.0, pp=1.0, vpp=1.0) == 0.0
    before, after = stage_waits(3.0, 2.0, 10.0, 20.0)
    assert (before, after) == (15.0, 30.0)


def test_a_device_s_parameters_and_where_seconds_come_from():
    """Of both groups; every second of the toy is reasoned, none measured."""
    layout = Layout(pp=2, vpp=2, dp_shard=8, ep=4, micro_batch_size=2)
    work = Workload(seq_len=512, global_batch_size=64)
    _, result = run(MOE, layout, work, toy.cluster(16, *TIERS))
    dense = 4 * (2 * 512 + 512 * 16 * 64 + 512 * 512 + 512 * 16 + 3 * 512 * 256)
    assert result.params.per_device_max == dense + 512 + 6000 * 512 + 4 * 3 * 4 * 512 * 384
    assert result.costs.time_sources == pytest.approx(
        {"measured": 0, "restored": 0, "interpolated": 0, "fitted": 0, "roofline": 1}
    )


def test_throughput_utilisation_and_days():
    work = replace(WORK, tokens=24 * 512 * 1000.0)
    _, result = run(DENSE, LAYOUT, work)
    step = result.step_time_s
    assert result.tokens_per_s_per_device == pytest.approx(24 * 512 / step / 12)
    assert result.training_days == pytest.approx(1000 * step / 86400)
    assert result.mfu == pytest.approx(result.model_flops_per_step / (100e12 * 12 * step))


@pytest.mark.parametrize(("splits", "bubble"), [(True, 1 + 4 * (1 + 2) + 9 - 16), (False, 1 + 16 + 7 - 16)])
def test_the_least_that_ranks_wait_under_any_schedule(splits, bubble):
    """Of two ranks with 4 micro-batches of 4 s the second starts after 1 s; what follows it ends 7 s later, or, where
    weight gradients can wait, 9 s after its forwards of 1 and input gradients of 2 s.
    """
    local = {FORWARD: np.array([[1.0], [1.0]]), INPUT_GRADIENT: np.array([[2.0], [2.0]])}
    before = {FORWARD: [[0.0], [1.0]], BACKWARD: [[0.0], [7.0]], INPUT_GRADIENT: [[0.0], [9.0]]}

    class Sums(dict):
        def total(self, _, part):
            return np.asarray(self[part])

        def on(self, _):
            return Sums(before)

    stage_time, pipeline = np.full((2, 1), 4.0), SimpleNamespace(before=None, splits_backward=splits)
    least_waiting = _least_waiting(
        SimpleNamespace(seconds=None), pipeline, Sums(local), stage_time, 4.0, 16.0
    )
    assert least_waiting["bubble"].tolist() == [bubble]


def test_an_engine_that_runs_ahead_works_while_the_device_computes_and_waits():
    """Half a second of its own per micro-batch is as long as both passes, the messages they show, and what is left."""
    layout = Layout(dp_shard=3, zero=3, micro_batch_size=2, kernels=Kernels(runs_ahead=True))
    fabric = toy.cluster(3, Tier(name="toy", size=0, bandwidth=1e9, latency=0.0))
    parts, result = run(DENSE, layout, WORK, fabric, software=SoftwareFactors(microbatch_overhead_s=0.5))
    (stage,), waits = result.stage_times, parts["data_comm"] / COUNT
    assert waits > stage.forward_s
    assert stage.forward_s + stage.backward_s + waits == pytest.approx(0.5)
    assert 0 < parts["overhead"] < COUNT * 0.5
    # Of the device's lead launches leave less: 11 of a layer forward, 11 and 4 backward, a millisecond each.
    software = SoftwareFactors(microbatch_overhead_s=0.5, kernel_interval_s=0.001)
    spent = []
    for layers in (4, 2):
        parts, result = run(replace(DENSE, layers=(LAYER,) * layers), layout, WORK, fabric, software=software)
        (stage,) = result.stage_times
        spent.append(stage.forward_s + stage.backward_s + parts["data_comm"] / COUNT)
    assert spent[0] - spent[1] == pytest.approx(2 * (11 + 11 + 4) * 0.001)


@pytest.mark.parametrize(("limit", "deferred"), [(0, 0), (1, 1), (3, 3), (99, 24)])
def test_deferred_weight_gradients_of_the_head_run_in_the_flush(limit, deferred):
    """While the first stage finishes its last backward; what takes longer shows. The last of 24 passes runs it all."""
    work = Workload(seq_len=512, global_batch_size=24)
    layout = Layout(pp=2)
    later = replace(layout, kernels=Kernels(deferred_head_gradients=limit))
    engine = SoftwareFactors(step_overhead_s=0.125)
    (_, plain), (_, result) = (run(DENSE, item, work, software=engine) for item in (layout, later))
    weight = product(512, 512, 8000)[2]
    first, last = result.stage_times
    before = plain.stage_times
    assert first == before[0]
    assert last.backward_s == pytest.approx(before[1].backward_s - deferred * weight / 24)
    slower = max(stage_time.forward_s + stage_time.backward_s for stage_time in result.stage_times)
    others = sum(stage_time.forward_s + stage_time.backward_s for stage_time in result.stage_times) - slower
    shown = max(0.0, deferred * weight - first.backward_s)
    hop = 2 * 512 * 512 / 100e9
    assert result.step_time_s == pytest.approx(
        24 * slower + others + shown + 2 * hop + 24 * 2 * hop + result.time_s["optimizer"] + 0.125
        + result.time_s["data_comm"]
    )  # fmt: skip
    assert result.hardware_flops_per_step == plain.hardware_flops_per_step
    if limit == 99:
        assert shown > 0.0


def test_deferring_the_heads_weight_gradient_shortens_the_step_of_a_slow_last_stage():
    work, layout = Workload(seq_len=512, global_batch_size=24), Layout(pp=2)
    times = [
        run(DENSE, replace(layout, kernels=Kernels(deferred_head_gradients=limit)), work)[1].step_time_s
        for limit in (0, 1, 2)
    ]
    assert times[0] > times[1] > times[2]
