"""The timeline is the projection seen over time: same peaks, named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, sees, workload

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.memory.timeline import (
    Sized,
    StageLoad,
    Standing,
    block_loads,
    build_timeline,
    schedule_of,
    stage_loads,
    total_bytes,
)
from forescale.project import memory_timeline, project
from forescale.schedule import Request, build_schedule
from forescale.schedule.model import loop
from forescale.spec import DenseFfn, FullAttention, Layer, Layout, Precision, Recompute, Workload
from forescale.spec.layout import Kernels, Routing

DENSE, MOE, MLA = (load_model(name) for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"))
CLUSTER = load_cluster("h100-sxm", 16)
WORKLOAD = Workload(seq_len=4096, global_batch_size=64)
LAYOUT = Layout(tp=2, pp=4, dp_shard=2)
RECOMPUTE = {
    "none": Recompute(),
    "selective": Recompute(granularity="selective", modules=("core_attn", "mlp")),
    "full": Recompute(granularity="full"),
    "of two layers": Recompute(granularity="full", num_layers=2),
    "of listed layers": Recompute(granularity="full", layer_ids=(0, 3, 5, 20)),
    "in units": Recompute(granularity="full", unit=3),
    "policy": Recompute(granularity="policy", policy="minimal"),
}


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_under_1f1b_every_rank_peaks_where_the_projection_says(model, recompute):
    layout = replace(LAYOUT, recompute=RECOMPUTE[recompute])
    timeline = memory_timeline(model, CLUSTER, layout, WORKLOAD)
    projected = project(model, CLUSTER, layout, WORKLOAD).memory.stages
    for rank, stage in zip(timeline.ranks, projected, strict=True):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("batch", [1, 8])
def test_metrics_of_a_micro_batch_come_when_its_backward_is_over(pp, vpp, recompute, batch):
    kernels = Kernels(cross_entropy="fused", logged_losses=2)
    layout = replace(LAYOUT, tp=1, pp=pp, vpp=vpp, dp_shard=16 // pp, micro_batch_size=batch, kernels=kernels)
    layout = replace(layout, recompute=RECOMPUTE[recompute])
    work = replace(WORKLOAD, global_batch_size=512)
    timeline = memory_timeline(DENSE, CLUSTER, layout, work)
    projected = project(DENSE, CLUSTER, layout, work).memory.stages
    for rank, stage in zip(timeline.ranks, projected, strict=True):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-12)
    logits = batch * 4096 * DENSE.vocab_size
    last = {tensor.name: tensor.num_bytes for tensor in timeline.ranks[-1].peak.tensors}
    if recompute == "full" and batch == 8:
        assert (last["head.logits"], last["head.logged"]) == (2 * logits, 8 * logits)
        assert "∂head.logits" not in last
    elif recompute == "none" and vpp == 1:
        assert last["head.logits"] == 2 * logits
        assert "head.logged" not in last


def test_losses_wait_beside_fewer_passes_than_a_rank_holds_at_most():
    """V-ZB of three ranks and five micro-batches: where a loss waits, a third of the most passes have come back."""
    layout = replace(LAYOUT, tp=1, pp=3, vpp=2, dp_shard=4, schedule="v-zb")
    work, model = replace(WORKLOAD, global_batch_size=20), replace(DENSE, layers=DENSE.layers[:6])
    timeline = memory_timeline(model, load_cluster("h100-sxm", 12), layout, work)
    stages = project(model, load_cluster("h100-sxm", 12), layout, work).memory.stages
    for rank, stage in zip(timeline.ranks, stages, strict=True):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-12)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_loads_are_what_the_projection_sums(recompute):
    layout = replace(LAYOUT, pp=1, dp_shard=8, recompute=RECOMPUTE[recompute])
    model = replace(MLA, num_mtp_layers=1)
    (load,) = stage_loads(model, layout, WORKLOAD, loop(1))
    activations = project(model, CLUSTER, layout, WORKLOAD).memory.stages[0].activations_bytes
    work = max(total_bytes(load.forward), total_bytes(load.backward))
    assert total_bytes(load.kept) + work == pytest.approx(activations, rel=1e-12)


@pytest.mark.parametrize(
    ("vpp", "schedule"), [(1, None), (2, None), (4, None), (2, "zbv"), (1, "zb-h1"), (1, "gpipe")]
)
def test_what_lives_at_the_peak_adds_up_to_it(vpp, schedule):
    layout = replace(LAYOUT, vpp=vpp, schedule=schedule)
    timeline = memory_timeline(DENSE, CLUSTER, layout, WORKLOAD)
    for rank in timeline.ranks:
        named = sum(tensor.num_bytes for tensor in rank.peak.tensors)
        assert named == pytest.approx(rank.peak.allocated_bytes, rel=1e-12)
        assert rank.allocated.max() == pytest.approx(rank.peak.allocated_bytes, rel=1e-12)
        assert rank.activations[0] == rank.activations[-1] == pytest.approx(0.0, abs=1.0)
        assert (rank.time_s[1:] >= rank.time_s[:-1]).all()


@pytest.mark.parametrize("vpp", [2, 4])
def test_interleaving_agrees_with_the_closed_form(vpp):
    layout = replace(LAYOUT, vpp=vpp)
    timeline = memory_timeline(DENSE, CLUSTER, layout, WORKLOAD)
    for rank, stage in zip(
        timeline.ranks, project(DENSE, CLUSTER, layout, WORKLOAD).memory.stages, strict=True
    ):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-4)


@pytest.mark.parametrize("recompute", ["none", "full", "of two layers"])
@pytest.mark.parametrize(
    ("group", "count"), [(4, 32), (16, 32), (32, 32), (5, 34), (6, 34), (8, 36), (24, 32)]
)
def test_groups_of_micro_batches_agree_with_the_timeline(group, count, recompute):
    """Those of 5, 6, 8 and 24 leave 4 or 8 micro-batches for the last one."""
    layout = replace(LAYOUT, vpp=2, microbatch_group=group, recompute=RECOMPUTE[recompute])
    work = replace(WORKLOAD, global_batch_size=2 * count)
    timeline = memory_timeline(DENSE, CLUSTER, layout, work)
    projected = project(DENSE, CLUSTER, layout, work).memory.stages
    for rank, stage in zip(timeline.ranks, projected, strict=True):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-12)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (4, 2)])
def test_a_forward_that_crosses_a_backward_stands_beside_it(pp, vpp):
    """The next micro-batch's first layer, whole, while the backward of this one's last layer has freed nothing."""
    alone = Layout(pp=pp, vpp=vpp, dp_shard=16 // pp, ep=4)
    crossed = replace(alone, overlap=replace(alone.overlap, expert=True))
    whole, both = (project(MOE, CLUSTER, item, WORKLOAD).memory.stages[0] for item in (alone, crossed))
    (layer,) = block_loads(MOE, alone, WORKLOAD).layers
    if pp > 1:  # else the loss is what lasts
        beside = both.activations_bytes - whole.activations_bytes
        assert beside == pytest.approx(total_bytes(layer.forward), rel=1e-12)
    timeline = memory_timeline(MOE, CLUSTER, crossed, WORKLOAD).ranks[0]
    assert timeline.peak.allocated_bytes == pytest.approx(both.allocated_bytes, rel=1e-4)


def test_one_micro_batch_crosses_no_other():
    alone = Layout(dp_shard=16, ep=4, micro_batch_size=4)
    crossed = replace(alone, overlap=replace(alone.overlap, expert=True))
    one, other = (project(MOE, CLUSTER, item, WORKLOAD).memory for item in (alone, crossed))
    assert one == other


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("eager-1f1b", 1), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2), ("v-min", 2), ("dualpipe", 1), ("dualpipev", 2), ("chimera", 1), ("hanayo", 2), ("pipeoffload", 2)],
)  # fmt: skip
def test_other_schedules_agree_with_the_projection(schedule, vpp):
    layout = replace(LAYOUT, vpp=vpp, schedule=schedule)
    timeline = memory_timeline(DENSE, CLUSTER, layout, WORKLOAD)
    stages = project(DENSE, CLUSTER, layout, WORKLOAD).memory.stages
    for rank, stage in zip(timeline.ranks, stages, strict=True):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-4)
        named = sum(tensor.num_bytes for tensor in rank.peak.tensors)
        assert named == pytest.approx(rank.peak.allocated_bytes, rel=1e-9)


LOGGED = Kernels(cross_entropy="fused", logged_losses=2)
SMALL = Layout(pp=2, dp_shard=4, micro_batch_size=2)
NARROW = Layer(
    attention=FullAttention(num_heads=1, num_kv_heads=1, head_dim=16), ffn=DenseFfn(ffn_hidden_size=16)
)
CASES = {
    "a schedule named where there is no pipeline": (
        dense(),
        replace(SMALL, pp=1, dp_shard=8, schedule="gpipe"),
    ),
    "a tower": (sees(), SMALL),
    "a tower that is replayed": (sees(), replace(SMALL, recompute=RECOMPUTE["full"])),
    "a tower that is not": (sees(), replace(SMALL, recompute=Recompute(granularity="full", towers=False))),
    "a tower whose weight gradients wait": (sees(), replace(SMALL, schedule="zb-unlimited")),
    "two layers of prediction": (replace(moe(), num_mtp_layers=2), replace(SMALL, schedule="zb-h1")),
    "units": (dense(), replace(SMALL, schedule="zb-h1", recompute=RECOMPUTE["in units"])),
    "a limit": (dense(), replace(SMALL, schedule="zb-2p")),
    "a tower wider than its layers": (
        replace(sees(), layers=(NARROW,) * 8, hidden_size=64),
        replace(SMALL, recompute=RECOMPUTE["full"]),
    ),
    "masks of dropout": (dense(), replace(SMALL, kernels=Kernels(dropout=True), recompute=RECOMPUTE["full"])),
    "logits held for metrics": (
        replace(dense(), vocab_size=2048),
        replace(SMALL, kernels=LOGGED, recompute=RECOMPUTE["full"]),
    ),
    "gathered shards": (replace(dense(), vocab_size=2048), replace(SMALL, pp=1, dp_shard=8, zero=3)),
    "a pool of graphs": (moe(), replace(SMALL, graphs="partial", ep=4)),
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_on_a_stage_is_there_when_the_projection_says(case):
    model, layout = CASES[case]
    work = replace(workload(seq_len=4096), global_batch_size=128)
    timeline = memory_timeline(model, cluster(8), layout, work)
    stages = project(model, cluster(8), layout, work).memory.stages
    for rank, stage in zip(timeline.ranks, stages, strict=True):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-12)
        named = sum(tensor.num_bytes for tensor in rank.peak.tensors)
        assert named == pytest.approx(rank.peak.allocated_bytes, rel=1e-12)


def test_a_graph_of_the_whole_step_gives_nothing_back_to_the_update():
    layout = replace(SMALL, graphs="full")
    timeline = memory_timeline(dense(), cluster(8), layout, workload(global_batch_size=128))
    stages = project(dense(), cluster(8), layout, workload(global_batch_size=128)).memory.stages
    for rank, stage in zip(timeline.ranks, stages, strict=True):
        assert rank.allocated[-2] == pytest.approx(stage.allocated_bytes, rel=1e-12)


def test_ranks_are_at_work_for_all_passes_of_their_micro_batches():
    """Both chunks of a rank share its layers; 16 micro-batches."""
    layout, work = replace(SMALL, vpp=2), workload(global_batch_size=128)
    result = project(dense(), cluster(8), layout, work)
    timeline = memory_timeline(dense(), cluster(8), layout, work)
    for rank, seconds in zip(timeline.ranks, result.stage_times, strict=True):
        passes = rank.time_s[1:-2]
        busy = float((passes[1::2] - passes[::2]).sum())
        assert busy == pytest.approx(16 * (seconds.forward_s + seconds.backward_s))


def test_a_picture_of_many_moments_has_their_highest():
    timeline = memory_timeline(dense(), cluster(8), SMALL, workload(global_batch_size=2048))
    rank = timeline.ranks[0]
    dots = rank.outline()
    assert len(dots) <= 400 < len(rank.time_s)
    assert max(dot.y for dot in dots) == rank.allocated.max() / 2**30
    assert min(dot.y for dot in dots[4:-4]) > rank.allocated.min() / 2**30  # each stands for several moments


def test_sequence_pieces_are_refused():
    request = Request(pp=4, num_microbatches=8)
    cut = build_schedule("seq1f1b", request)
    loads = stage_loads(DENSE, LAYOUT, WORKLOAD, cut.placement)
    with raises(SpecError, "unsupported_by a memory timeline"):
        build_timeline(project(DENSE, CLUSTER, LAYOUT, WORKLOAD), cut, loads, ())


def test_the_first_rank_peaks_in_its_first_backward_with_all_in_flight():
    peak = memory_timeline(DENSE, CLUSTER, LAYOUT, WORKLOAD).peak
    assert (peak.rank, peak.stage, peak.action, peak.in_flight) == (0, 0, "0B0", 4)
    assert [tensor.name for tensor in peak.tensors[:3]] == ["optimizer", "gradients", "ffn.up"]


def test_fewer_microbatches_than_ranks_hold_fewer():
    workload = replace(WORKLOAD, global_batch_size=4)
    timeline = memory_timeline(DENSE, CLUSTER, LAYOUT, workload)
    assert [rank.peak.in_flight for rank in timeline.ranks] == [2, 2, 2, 1]


def test_gpipe_keeps_the_losses_of_all_microbatches_on_the_last_rank():
    few, many = (
        memory_timeline(DENSE, CLUSTER, replace(LAYOUT, schedule="gpipe"), replace(WORKLOAD, global_batch_size=2 * count))
        for count in (2, 3)
    )  # fmt: skip
    softmax = [
        next(tensor.num_bytes for tensor in item.ranks[3].peak.tensors if tensor.name == "head.softmax")
        for item in (few, many)
    ]
    assert softmax[1] / softmax[0] == pytest.approx(1.5)


def test_where_little_is_kept_the_update_is_the_peak():
    precision = Precision(gradients="bf16")
    workload = Workload(seq_len=128, global_batch_size=4, precision=precision)
    layout = Layout(tp=1, pp=1, dp_replicate=16, zero=0, recompute=Recompute(granularity="full"))
    workload = replace(workload, global_batch_size=16)
    timeline = memory_timeline(DENSE, CLUSTER, layout, workload)
    assert (timeline.peak.stage, timeline.peak.action) == (None, "update")
    assert sum(tensor.num_bytes for tensor in timeline.peak.tensors) == pytest.approx(
        timeline.peak.allocated_bytes
    )
    projected = project(DENSE, CLUSTER, layout, workload).memory.stages[0]
    assert timeline.peak.allocated_bytes == pytest.approx(projected.allocated_bytes)


@pytest.mark.parametrize("graphs", ["partial", "full"])
@pytest.mark.parametrize("seq_len", [128, 4096])
def test_what_graphs_hold_of_their_own_is_there_in_passes_and_in_the_update(graphs, seq_len):
    """A second pool beside the working set; or all activations, which the update of short sequences finds no room in."""
    workload = Workload(seq_len=seq_len, global_batch_size=16, precision=Precision(gradients="bf16"))
    layout = Layout(pp=2, dp_replicate=8, zero=0, graphs=graphs)
    timeline = memory_timeline(MOE, CLUSTER, layout, workload)
    for rank, stage in zip(
        timeline.ranks, project(MOE, CLUSTER, layout, workload).memory.stages, strict=True
    ):
        assert rank.peak.allocated_bytes == pytest.approx(stage.allocated_bytes, rel=1e-12)
        named = sum(tensor.num_bytes for tensor in rank.peak.tensors)
        assert named == pytest.approx(rank.peak.allocated_bytes, rel=1e-12)
    if graphs == "full":
        assert timeline.peak.action == "update"
        assert "memory of captured graphs" in {tensor.name for tensor in timeline.peak.tensors}


def test_a_forward_that_needs_more_than_its_backward_is_the_peak():
    """Unfused norms of 8-bit inputs: the forward of a Mamba layer has the input in 32 bits beside it."""
    hybrid = load_model("nemotron-3-nano-30b-a3b")
    model = replace(hybrid, layers=hybrid.layers[:8])
    workload = Workload(
        seq_len=16384, global_batch_size=16, precision=Precision(compute="fp8", recipe="current")
    )
    layout = Layout(
        tp=4,
        sp=False,
        pp=4,
        flash_attention=False,
        kernels=Kernels(fused=False),
        routing=Routing(capacity_factor=0.5),
    )
    timeline = memory_timeline(model, CLUSTER, layout, workload)
    stages = project(model, CLUSTER, layout, workload).memory.stages
    assert [rank.peak.action for rank in timeline.ranks[:3]] == ["0F3", "1F2", "2F1"]
    assert [rank.peak.allocated_bytes for rank in timeline.ranks] == pytest.approx(
        [stage.allocated_bytes for stage in stages], rel=1e-12
    )


def test_uneven_stages_keep_what_stands_on_them():
    layout = replace(LAYOUT, stage_layers=(5, 9, 9, 9))
    schedule = schedule_of(layout, 32)
    loads = stage_loads(DENSE, layout, WORKLOAD, schedule.placement)
    assert total_bytes(loads[1].kept) / total_bytes(loads[2].kept) == pytest.approx(1.0)
    assert total_bytes(loads[0].kept) / total_bytes(loads[1].kept) == pytest.approx(5 / 9, rel=1e-3)


def test_the_document_holds_the_curve():
    timeline = memory_timeline(DENSE, CLUSTER, LAYOUT, WORKLOAD)
    body = timeline.to_json()
    assert body["schema"] == "forescale.memory_timeline/1"
    assert max(body["ranks"][0]["allocated_bytes"]) == pytest.approx(body["peak"]["allocated_bytes"])
    assert len(body["ranks"]) == 4


def load(stage, *, kept, forward, backward, between=0.0):
    """A stage of whose tensors there is one of each kind."""

    def sized(name, num_bytes):
        return (Sized(owner=f"stage {stage}", name=name, num_bytes=num_bytes),) if num_bytes else ()

    return StageLoad(
        stage=stage,
        rank=stage,
        kept=sized("kept", kept),
        awaited=sized("awaited", 0.4 * kept),
        forward=sized("forward", forward),
        backward=sized("backward", backward),
        between=sized("loss", between),
    )


LOADS = (
    load(0, kept=100.0, forward=10.0, backward=30.0),
    load(1, kept=200.0, forward=20.0, backward=40.0, between=7.0),
)
HELD = Standing(weights=1.0, gradients=2.0, optimizer=4.0, buffers=8.0, lasting=3.0, update=50.0, graphs=0.0)


def by_hand(schedule, *, update=50.0, count=2):
    layout = Layout(pp=2, schedule=schedule)
    fabric = load_cluster("h100-sxm", 2)
    result = project(DENSE, fabric, layout, Workload(seq_len=4096, global_batch_size=count))
    return result, build_timeline(
        result, schedule_of(layout, count), LOADS, (HELD, replace(HELD, update=update))
    )


def test_every_moment_of_one_forward_one_backward():
    """F0 F1 B0 B1 on the first rank, F0 B0 F1 B1 on the last; what is kept, and what is at work beside it."""
    result, timeline = by_hand(None)
    first, last = timeline.ranks
    assert first.activations.tolist() == [0, 110, 100, 210, 200, 230, 100, 130, 0, 0, 0]
    assert last.activations.tolist() == [0, 220, 207, 240, 0, 220, 207, 240, 0, 0, 0]
    (f0, b0), (f1, b1) = ((stage_time.forward_s, stage_time.backward_s) for stage_time in result.stage_times)
    back = [max(2 * f0, f0 + f1 + b1)]
    back.append(max(back[0] + b0, f0 + 2 * (f1 + b1)))
    ends = [back[1] + b0, back[1] + b0 + result.time_s["optimizer"]]
    assert first.time_s.tolist() == pytest.approx(
        [0, 0, f0, f0, 2 * f0, back[0], back[0] + b0, back[1], back[1] + b0, *ends]
    )
    assert timeline.step_time_s == pytest.approx(ends[1])
    assert first.allocated.tolist() == pytest.approx(
        [item + 15 for item in (0, 110, 100, 210, 200, 230, 100, 130, 0, 50 - 8, 0)]
    )
    assert (first.peak.action, first.peak.in_flight, first.peak.allocated_bytes) == ("0B0", 2, 230 + 15)
    assert first.peak.time_s == pytest.approx(back[0])
    sizes = {tensor.name: tensor.num_bytes for tensor in first.peak.tensors}
    assert sizes == {
        "kept": 200, "backward": 30, "buffers and workspaces": 8, "optimizer": 4, "gradients": 2, "weights": 1
    }  # fmt: skip
    assert (last.peak.action, last.peak.in_flight, last.peak.allocated_bytes) == ("1B0", 1, 240 + 15)


def test_every_moment_of_all_forwards_first():
    """The last rank's losses wait: of both micro-batches, less the one at work."""
    _, timeline = by_hand("gpipe")
    last = timeline.ranks[1]
    assert last.activations.tolist() == [0, 220, 207, 427, 414, 447, 207, 240, 0, 0, 0]
    assert (last.peak.action, last.peak.in_flight, last.peak.allocated_bytes) == ("1B0", 2, 447 + 15)
    sizes = {tensor.name: tensor.num_bytes for tensor in last.peak.tensors}
    assert (sizes["kept"], sizes["backward"], sizes["loss"]) == (400, 40, 7)


def test_an_update_that_needs_more_than_activations_is_the_peak():
    result, timeline = by_hand(None, update=1000.0)
    peak = timeline.ranks[1].peak
    assert (peak.action, peak.stage, peak.in_flight, peak.allocated_bytes) == ("update", None, 0, 1000 + 7)
    assert peak.time_s == pytest.approx(timeline.step_time_s - result.time_s["optimizer"])
    assert timeline.peak == peak
    assert timeline.ranks[1].allocated.tolist()[-2:] == [1000 + 7, 15]
    sizes = {tensor.name: tensor.num_bytes for tensor in peak.tensors}
    assert (sizes["fp32 gradients of the update"], sizes["buffers and workspaces"]) == (1000 - 3, 3)


def test_a_split_backward_lets_go_with_its_weight_gradients():
    """ZB-H1: input gradients free losses and what weight gradients do not need; each takes half of a backward."""
    result, timeline = by_hand("zb-h1")
    last = timeline.ranks[1]
    # F0 I0 F1 I1 W0 W1
    assert last.activations.tolist() == [0, 220, 207, 240, 80, 300, 287, 320, 160, 160, 80, 80, 0, 0, 0]
    (f0, _), (f1, b1) = ((stage_time.forward_s, stage_time.backward_s) for stage_time in result.stage_times)
    begins = last.time_s[1:-2:2].tolist()
    assert begins[:2] == pytest.approx([f0, f0 + f1])
    assert begins[4] - begins[3] == pytest.approx(b1 / 2)
    assert last.peak.allocated_bytes == 320 + 15
    assert {tensor.name: tensor.num_bytes for tensor in last.peak.tensors}["awaited"] == 80


def test_outputs_that_stages_keep_live_beside_what_they_saved():
    """A message of 2 bytes for every number of a token's stream, on all ranks but the last."""
    kept = replace(LAYOUT, kernels=Kernels(keeps_stage_outputs=True))
    schedule = schedule_of(LAYOUT, 32)
    plain, more = (stage_loads(DENSE, layout, WORKLOAD, schedule.placement) for layout in (LAYOUT, kept))
    differences = [
        total_bytes(one.kept) - total_bytes(other.kept) for one, other in zip(more, plain, strict=True)
    ]
    assert differences == [2 * 4096 / 2 * 4096] * 3 + [0]


def test_the_first_step_has_no_moments_before_its_update():
    """AdamW in fp32 with an fp32 master copy: two thirds of its states come with the first update."""
    timeline = memory_timeline(dense(), cluster(8), Layout(pp=4, dp_shard=2), workload())
    for rank in timeline.ranks:
        assert rank.standing.moments == pytest.approx(rank.standing.optimizer * 2 / 3)
        assert rank.first_step[:-2] == pytest.approx(rank.allocated[:-2] - rank.standing.moments)
        assert rank.first_step[-2:].tolist() == rank.allocated[-2:].tolist()
