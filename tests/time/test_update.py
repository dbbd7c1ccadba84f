"""Offload in a projection: the device holds less, the host more, and copies that do not hide take time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests import toy
from tests.errors import raises
from tests.small import asked, cluster, dense, moe, workload

from forescale.cost.calibration import RunFactors
from forescale.errors import SpecError
from forescale.explain import explain
from forescale.memory.inputs import StateBytes
from forescale.memory.offload import load_host_rates
from forescale.project import memory_timeline, project
from forescale.search import search
from forescale.spec import DenseFfn, Kernels, Layer, Layout, Model, MoeFfn, Precision, Tier, Workload
from forescale.spec.layout import Offload, Recompute
from forescale.spec.space import Space
from forescale.spec.workload import Trainable
from forescale.time import update
from forescale.time.update import (
    device_traffic,
    flat_from,
    host_waits,
    update_gap,
    update_traffic,
    updated_tensors,
)

BASE = Layout(dp_shard=8, micro_batch_size=4)


@pytest.mark.parametrize(("fused", "passes"), [(True, 2.0), (False, 6.0)])
def test_an_update_moves_states_gradients_and_weights(fused, passes):
    """One kernel reads and writes each state once; a kernel for each step of AdamW reads or writes 18 fp32 numbers."""
    setting = SimpleNamespace(
        choices=SimpleNamespace(kernels=Kernels(fused_update=fused)),
        workload=SimpleNamespace(precision=Precision(gradients="bf16")),
    )
    states = StateBytes(weights=0.0, gradients=0.0, optimizer=12e6, updated=1e6, copied=3e5)
    assert device_traffic(setting, states) == passes * 12e6 + 2 * 1e6 + 2 * (1e6 + 3e5)


@pytest.mark.parametrize(
    ("kernels", "tensors"),
    [
        (Kernels(), [0.0, 7.0, 7.0, 0.0]),
        (Kernels(flat_update=True), [0.0, 0.0, 0.0, 0.0]),
        (Kernels(flat_update=True, keeps_product_gradients=True), [0.0, 7.0, 0.0, 0.0]),
    ],
    ids=["tensor-by-tensor", "flat", "flat-with-product-gradients"],
)
def test_tensors_that_an_update_copies_one_by_one(kernels, tensors):
    """Of zero 0 to 3: one kernel takes all tensors without a share of them, and from where they are one flat tensor."""
    stages = range(4)
    result = [float(updated_tensors(zero=zero, sharded=7.0, flat_from=flat_from(kernels))) for zero in stages]
    assert result == tensors


def test_traffic_of_an_update():
    moved = update_traffic(states=100.0, passes=3.0, read=7.0, gradient=2.0, written=11.0, weight=5.0)
    assert moved == 300.0 + 14.0 + 55.0


def test_a_fused_update_is_the_shorter():
    one, many = (
        project(dense(), cluster(8), replace(BASE, kernels=Kernels(fused_update=fused)), workload())
        for fused in (True, False)
    )
    assert many.time_s["optimizer"] > 2.0 * one.time_s["optimizer"]


def run(offload, base=BASE, model=None, fabric=None):
    return project(model or dense(), fabric or cluster(8), replace(base, offload=offload), workload())


def stage(result):
    return result.memory.stages[0]


def test_nothing_offloaded_costs_nothing():
    result = run(Offload())
    assert stage(result).host_bytes == 0.0
    assert result.time_s["host_comm"] == 0.0


@pytest.mark.parametrize("model", [dense(), moe()])
def test_optimizer_states_move_to_the_host_with_their_share(model):
    whole = stage(run(Offload(), model=model)).optimizer_bytes
    for share in (0.25, 0.5, 1.0):
        half = run(Offload(optimizer=share), model=model)
        assert stage(half).optimizer_bytes == pytest.approx((1 - share) * whole)
        assert stage(half).host_bytes == pytest.approx(share * whole * (1 + 4 / 12))  # and fp32 gradients
        assert half.time_s["optimizer"] > run(Offload(), model=model).time_s["optimizer"]


def test_the_master_copy_may_stay():
    whole = stage(run(Offload())).optimizer_bytes
    assert stage(run(Offload(optimizer=1.0, master=False))).optimizer_bytes == pytest.approx(whole / 3)


def test_offloaded_layers_leave_the_device_but_for_two():
    stages = [stage(run(Offload(activation_layers=layers))) for layers in (0, 4, 8, 99)]
    activations = [item.activations_bytes for item in stages]
    assert activations[0] > activations[1] > activations[2] == activations[3]
    assert stages[2].host_bytes == pytest.approx(2 * stages[1].host_bytes)
    layer = stages[1].host_bytes / 4
    assert activations[0] - activations[2] == pytest.approx(6 * layer)


def test_offloaded_modules_leave_the_device_but_for_those_of_two_layers():
    plain, moved, half = (
        stage(run(Offload(modules=modules, module_share=share)))
        for modules, share in (((), 1.0), (("attn_norm", "mlp_norm"), 1.0), (("attn_norm", "mlp_norm"), 0.5))
    )
    assert moved.host_bytes == pytest.approx(2 * half.host_bytes)
    layer = moved.host_bytes / 8
    assert plain.activations_bytes - moved.activations_bytes == pytest.approx(6 * layer)
    with raises(SpecError, "conflicts offload.modules, offload.activation_layers"):
        Offload(modules=("core_attn",), activation_layers=2)


def test_all_that_is_kept_offloaded_by_name_is_as_offloading_all_layers():
    policy = Recompute(granularity="policy", policy="custom", kept=("query_proj", "out_proj"))
    base = replace(BASE, recompute=policy)
    by_layer = run(Offload(activation_layers=99), base=base)
    by_name = run(Offload(modules=("decoder_layer_input", "query_proj", "out_proj")), base=base)
    assert stage(by_name).activations_bytes == pytest.approx(stage(by_layer).activations_bytes, rel=1e-3)
    assert by_name.step_time_s == pytest.approx(by_layer.step_time_s, rel=1e-3)


def test_every_micro_batch_in_flight_is_on_the_host():
    base = Layout(pp=4, dp_shard=2)
    first, last = (
        run(Offload(activation_layers=2), base=base).memory.stages[index].host_bytes for index in (0, 3)
    )
    assert first == pytest.approx(4 * last, rel=0.05)


def test_a_slow_link_shows():
    slow = replace(cluster(8), device=replace(cluster(8).device, host_bandwidth=1e9))
    offload = Offload(activation_layers=8)
    hidden, shown = run(offload, fabric=None), run(offload, fabric=slow)
    assert hidden.time_s["host_comm"] < shown.time_s["host_comm"]
    unhidden = run(replace(offload, overlap=False), fabric=slow)
    assert shown.time_s["host_comm"] < unhidden.time_s["host_comm"]
    assert sum(shown.time_s.values()) == pytest.approx(shown.step_time_s)


def test_parameters_of_stage_3_lie_on_the_host():
    base = replace(BASE, zero=3)
    plain, moved = run(Offload(), base=base), run(Offload(parameters=True), base=base)
    assert stage(moved).weights_bytes == stage(moved).gradients_bytes == stage(moved).optimizer_bytes == 0.0
    states = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert stage(moved).host_bytes >= 0.75 * sum(getattr(stage(plain), name) for name in states)
    assert moved.step_time_s > plain.step_time_s


def test_below_stage_3_parameters_stay():
    with raises(SpecError, "illegal_layout offloaded parameters under zero 3"):
        run(Offload(parameters=True))


def test_bytes_on_the_host_explain_themselves():
    layout = replace(BASE, offload=Offload(activation_layers=4, optimizer=0.5))
    node = explain(asked(dense(), cluster(8), layout, workload()), "memory.host")
    assert node.value == pytest.approx(stage(project(dense(), cluster(8), layout, workload())).host_bytes)
    assert node.inputs


def test_a_search_keeps_to_it():
    offload = Offload(optimizer=1.0, activation_layers=2)
    result = search(dense(), cluster(8), workload(), space=Space(base=Layout(offload=offload)), top=3)
    assert all(one.strategy.offload == offload for one in result.best)
    assert all(stage(one).host_bytes > 0.0 for one in result.best)


def test_a_timeline_says_that_it_does_not_follow():
    with raises(SpecError, "unsupported_by a memory timeline"):
        memory_timeline(dense(), cluster(8), replace(BASE, offload=Offload(activation_layers=2)), workload())


@pytest.mark.parametrize("overlap", [True, False])
def test_the_host_updates_from_fp32_gradients(overlap):
    """Master copy and moments read and written, gradients read: 2 x 12 + 4 bytes; gradients out, weights back in fp32."""
    layout = Layout(dp_shard=8, offload=Offload(optimizer=1.0, overlap=overlap))
    work = replace(workload(), precision=Precision(gradients="bf16"))
    result = project(dense(), toy.cluster(8), layout, work, costs=toy.costs())
    rates, layer = load_host_rates(), 2 * 1024 + 1024 * (16 + 2 * 4) * 64 + 1024 * 1024 + 3 * 1024 * 4096
    share = (8 * layer + 1024 + 2 * 32000 * 1024) / 8
    update, item = share * (2 * 12 + 4) / rates.update_bandwidth, 4 * share / (10e9 * rates.link_share)
    assert result.time_s["optimizer"] == pytest.approx(update, rel=1e-9)
    assert result.time_s["host_comm"] == pytest.approx(max(item - update, 0.0) if overlap else 2 * item)
    assert stage(result).host_bytes == pytest.approx((12 + 4) * share)


def test_copies_of_activations_hide_behind_the_pass_that_makes_them():
    """Out behind forward and back behind backward, at 10 GB/s; both shown where nothing overlaps."""
    layout = Layout(dp_shard=1, offload=Offload(activation_layers=8))
    work = workload(global_batch_size=2)
    hidden, bare = (
        project(dense(), toy.cluster(1), replace(layout, offload=item), work, costs=toy.costs())
        for item in (layout.offload, replace(layout.offload, overlap=False))
    )
    moved = stage(hidden).host_bytes / (10e9 * load_host_rates().link_share)
    (times,) = hidden.stage_times
    shown = max(moved - times.forward_s, 0) + max(moved - times.backward_s, 0)
    assert hidden.time_s["host_comm"] == pytest.approx(2 * shown)
    assert bare.time_s["host_comm"] == pytest.approx(2 * 2 * moved)


HIDDEN, WIDTH, SEQUENCE = 96, 160, 512
FEED = Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=WIDTH), num_norms=1)
FEEDS = Model(name="feeds", hidden_size=HIDDEN, layers=(FEED,) * 6, vocab_size=8, vocab_multiple=1)
KEPT = 2 * SEQUENCE * (2 * HIDDEN + 2 * HIDDEN + 4 + 2 * 2 * WIDTH + 2 * WIDTH)
"""Bytes that a layer keeps of two sequences: input, norm's result and statistic, both factors, their product."""
LINK = 10e9 * load_host_rates().link_share


def offloaded(layout, offload, count=4):
    """A step of `count` micro-batches of two sequences."""
    layout = replace(layout, micro_batch_size=2, offload=offload)
    work = Workload(seq_len=SEQUENCE, global_batch_size=2 * count * layout.dp)
    return project(FEEDS, toy.cluster(layout.num_devices), layout, work, costs=toy.costs())


@pytest.mark.parametrize(
    ("schedule", "vpp", "in_flight"),
    [
        (None, 1, (2, 1)),
        ("1f1b", 1, (2, 1)),
        ("gpipe", 1, (4, 4)),
        ("zb-h1", 1, (2, 1)),  # what weight gradients wait with is on the device
    ],
)
def test_copies_under_schedules(schedule, vpp, in_flight):
    """Three layers a rank go out and come back with every micro-batch; those in flight are on the host."""
    result = offloaded(Layout(pp=2, vpp=vpp, schedule=schedule), Offload(activation_layers=99, overlap=False))
    assert result.time_s["host_comm"] == pytest.approx(4 * 2 * 3 * KEPT / LINK)
    assert [stage.host_bytes for stage in result.memory.stages] == pytest.approx(
        [item * 3 * KEPT for item in in_flight]
    )


@pytest.mark.parametrize(
    ("schedule", "vpp", "layers"), [("dualpipe", 1, 3), ("zbv", 2, 4), ("interleaved-1f1b", 3, 3)]
)
def test_copies_of_ranks_with_several_stages(schedule, vpp, layers):
    """A rank's layers of all its stages (of a V with 1, 2, 2, 1 the inner ones); of two replicas one is passed."""
    result = offloaded(Layout(pp=2, vpp=vpp, schedule=schedule), Offload(activation_layers=99, overlap=False))
    assert result.time_s["host_comm"] == pytest.approx(4 * 2 * layers * KEPT / LINK)


def test_some_layers_leave_and_one_or_two_are_in_transit():
    """Two of three: a third stays, and one is on its way; of three of three one is at work beside."""
    all_of_them, subset, none = (
        offloaded(Layout(pp=2), Offload(activation_layers=layers)).memory.stages[0] for layers in (3, 2, 0)
    )
    assert subset.host_bytes == pytest.approx(2 * 2 * KEPT)
    assert none.activations_bytes - subset.activations_bytes == pytest.approx((2 * 2 - 1) * KEPT)
    assert none.activations_bytes - all_of_them.activations_bytes == pytest.approx((2 * 3 - 2) * KEPT)


def test_a_share_of_what_modules_save():
    """Half of the norms' inputs: 2 bytes of each, and a statistic of 4."""
    result = offloaded(Layout(), Offload(modules=("mlp_norm",), module_share=0.5, overlap=False))
    moved = 0.5 * 6 * 2 * SEQUENCE * (2 * HIDDEN + 4)
    assert result.memory.stages[0].host_bytes == pytest.approx(moved)
    assert result.time_s["host_comm"] == pytest.approx(4 * 2 * moved / LINK)


@pytest.mark.parametrize("overlap", [True, False])
def test_shards_of_parameters_come_with_every_pass_and_gradients_leave(overlap):
    """Stage 3 over 4 ranks: weights in 2 bytes before either pass, gradients in 4 after backward."""
    layout = Layout(dp_shard=4, zero=3)
    result = offloaded(layout, Offload(parameters=True, overlap=overlap))
    parameters = 6 * (HIDDEN + 3 * HIDDEN * WIDTH) + HIDDEN + 2 * 8 * HIDDEN
    weights, gradients = 2 * parameters / 4 / LINK, 4 * parameters / 4 / LINK
    if not overlap:
        assert result.time_s["host_comm"] == pytest.approx(4 * (weights + gradients + weights))
        return
    (times,) = result.stage_times
    waits = result.time_s["data_comm"] / 4
    assert result.time_s["host_comm"] <= 4 * (
        max(weights - times.forward_s, 0) + max(gradients - times.backward_s, 0)
    )
    assert waits >= 0.0
    (stage_memory,) = result.memory.stages
    # Weights in 2, gradients in 4, master copy and moments in 12, and fp32 gradients beside the master copy.
    assert stage_memory.host_bytes == pytest.approx((2 + 12 + 4) * parameters / 4)
    kept = offloaded(layout, Offload(parameters=True, optimizer=0.0, master=False)).memory.stages[0]
    assert kept.host_bytes == pytest.approx((2 + 8 + 8) * parameters / 4)


def test_weights_alone_on_the_host_leave_gradients_and_states_on_the_device():
    """DeepSpeed's offload_param: weights in 2 bytes before either pass, and back once they are updated."""
    layout = Layout(dp_shard=4, zero=3)
    plain = offloaded(layout, Offload()).memory.stages[0]
    result = offloaded(layout, Offload(parameters=True, states=False, overlap=False))
    (moved,) = result.memory.stages
    parameters = 6 * (HIDDEN + 3 * HIDDEN * WIDTH) + HIDDEN + 2 * 8 * HIDDEN
    assert moved.weights_bytes == 0.0
    assert (moved.gradients_bytes, moved.optimizer_bytes) == (plain.gradients_bytes, plain.optimizer_bytes)
    assert moved.host_bytes == pytest.approx(2 * parameters / 4)
    assert result.time_s["host_comm"] == pytest.approx((4 * (2 + 2) + 2) * parameters / 4 / LINK)


@pytest.mark.parametrize(
    ("layout", "passes"),
    [
        (Layout(dp_shard=4, zero=3, reshard="never"), 0),  # kept whole, they come once
        (Layout(pp=2, dp_shard=2, zero=3), 0),  # as of several stages by default
        (Layout(pp=2, dp_shard=2, zero=3, schedule="dualpipe", reshard="always"), 4),  # one of two replicas
    ],
)
def test_parameters_come_with_every_pass_unless_they_are_kept_whole(layout, passes):
    """A quarter of all, of dualpipe half of each of two stages' shards: 2 bytes twice and gradients of 4 once."""
    result = offloaded(layout, Offload(parameters=True, overlap=False))
    parameters = 6 * (HIDDEN + 3 * HIDDEN * WIDTH) + HIDDEN + 2 * 8 * HIDDEN
    assert result.time_s["host_comm"] == pytest.approx(passes * (2 + 2 + 4) * parameters / 4 / LINK)


@pytest.mark.parametrize(
    ("overlap", "split", "shown"),
    [
        (True, False, (5 - 3, 6 - 4, 0)),
        (True, True, (5 - 3, 5 - 4, 6 - 2)),
        (False, False, (5, 6 + 5, 0)),
        (False, True, (5, 5, 6)),
    ],
)
def test_copies_of_parameters_behind_passes(overlap, split, shown):
    """Weights of 5 s back before passes of 3 and 4 s, gradients of 6 s out behind 4 s, or 2 s of weight gradients."""
    setting = SimpleNamespace(
        choices=Layout(reshard="always", offload=Offload(parameters=True, overlap=overlap)),
        cluster=toy.cluster(1),
    )
    states = SimpleNamespace(host_weights=2 * 5 * LINK, host_gradients=2 * 6 * LINK)
    inputs = SimpleNamespace(states=states, degrees=SimpleNamespace(pp=2), stages=None)
    pipeline = SimpleNamespace(
        in_flight=SimpleNamespace(copies=2), per_stage=lambda numbers: numbers, split=split
    )
    assert host_waits(setting, inputs, pipeline, (3.0, 4.0, 2.0)) == pytest.approx(shown)


@pytest.mark.parametrize(
    ("overlap", "split", "shown"),
    [
        (True, False, (7 - 3, 12 - 4, 0)),
        (True, True, (7 - 3, 12 - 4, 6 - 2)),
        (False, False, (12, 18, 0)),
        (False, True, (12, 12, 6)),
    ],
)
def test_copies_of_activations_and_parameters_share_the_link(overlap, split, shown, monkeypatch):
    """Activations of 7 s go out behind forward and come back with weights of 5 s behind backward, as gradients of 6 s leave."""
    monkeypatch.setattr(update, "offloaded_bytes", lambda *_: 7 * LINK)
    offload = Offload(parameters=True, activation_layers=1, overlap=overlap)
    setting = SimpleNamespace(choices=Layout(reshard="always", offload=offload), cluster=toy.cluster(1))
    states = SimpleNamespace(host_weights=5 * LINK, host_gradients=6 * LINK)
    inputs = SimpleNamespace(states=states, degrees=SimpleNamespace(pp=2), stages=None)
    pipeline = SimpleNamespace(
        in_flight=SimpleNamespace(copies=1), per_stage=lambda numbers: numbers, split=split
    )
    assert host_waits(setting, inputs, pipeline, (3.0, 4.0, 2.0)) == pytest.approx(shown)


def test_part_of_the_optimizer_on_the_host_updates_both_sides_at_once():
    layout, share = Layout(dp_shard=4), 0.25
    parameters = (6 * (HIDDEN + 3 * HIDDEN * WIDTH) + HIDDEN + 2 * 8 * HIDDEN) / 4
    result = offloaded(layout, Offload(optimizer=share, overlap=False))
    device = (1 - share) * (2 * 12 + 4 + 2) * parameters / 1e12
    host = share * (2 * 12 + 4) * parameters / load_host_rates().update_bandwidth
    assert result.time_s["optimizer"] == pytest.approx(device + host)
    assert result.time_s["host_comm"] == pytest.approx(2 * 4 * share * parameters / LINK)
    stage_memory = result.memory.stages[0]
    assert stage_memory.optimizer_bytes == pytest.approx(0.75 * 12 * parameters)
    assert stage_memory.host_bytes == pytest.approx(share * (12 + 4) * parameters)
    apart = offloaded(layout, Offload(optimizer=share, master=False, overlap=False)).memory.stages[0]
    assert apart.optimizer_bytes == pytest.approx((12 - share * 8) * parameters)
    assert apart.host_bytes == pytest.approx(share * (8 + 8) * parameters)


def test_gradients_and_weights_pass_however_little_the_optimizer_keeps():
    """Adafactor without a master copy: sums of rows and columns twice, gradients in 4 bytes and weights in 2."""
    precision = Precision(master="none")
    work = Workload(seq_len=SEQUENCE, global_batch_size=8, optimizer="adafactor", precision=precision)
    result = project(FEEDS, toy.cluster(4), Layout(dp_shard=4), work, costs=toy.costs())
    vectors, up, down = HIDDEN, 2 * HIDDEN * WIDTH, WIDTH * HIDDEN
    ends = 2 * 8 * HIDDEN
    parameters = 6 * (vectors + up + down) + HIDDEN + ends
    sums = 6 * (vectors + HIDDEN + 2 * WIDTH + WIDTH + HIDDEN) + HIDDEN + 2 * (8 + HIDDEN)
    (stage_memory,) = result.memory.stages
    assert stage_memory.optimizer_bytes == pytest.approx(4 * sums / 4)
    assert result.time_s["optimizer"] == pytest.approx((2 * 4 * sums + (4 + 2) * parameters) / 4 / 1e12)


EXPERT = MoeFfn(num_experts=4, top_k=2, ffn_hidden_size=WIDTH)
EXPERTS = replace(FEEDS, name="experts", layers=(replace(FEED, ffn=EXPERT),) * 6)
OF_EXPERTS = 6 * 4 * 3 * HIDDEN * WIDTH
"""Weights of all experts of all layers."""
IN_16_BITS = Precision(gradients="bf16", moments="bf16", master="none")


def updated(workload, **layout):
    """The step of a mixture of experts over 4 ranks, each of which holds half of the experts."""
    question = Layout(dp_shard=4, ep=2, micro_batch_size=2, **layout)
    whole = Workload(seq_len=SEQUENCE, global_batch_size=8, **workload)
    return project(EXPERTS, toy.cluster(4), question, whole, costs=toy.costs())


@pytest.mark.parametrize(
    ("zero", "dense_ranks", "expert_ranks"), [(0, 1, 1), (1, 4, 2), (2, 4, 2), (3, 4, 2)]
)
@pytest.mark.parametrize(("precision", "sizes"), [(Precision(), (4, 4, 4, 2)), (IN_16_BITS, (0, 2, 2, 2))])
def test_experts_that_keep_fewer_moments(precision, sizes, zero, dense_ranks, expert_ranks):
    """Muon: one moment of experts and routers, two of norms, embedding and head; of each a gradient and a weight."""
    master, moment, gradient, weight = sizes
    vectors, routers, ends = 7 * HIDDEN, 6 * 4 * HIDDEN, 2 * 8 * HIDDEN
    both = gradient + weight
    dense = (vectors + ends) * (2 * (master + 2 * moment) + both) + routers * (2 * (master + moment) + both)
    expert = OF_EXPERTS / 2 * (2 * (master + moment) + both)
    result = updated({"optimizer": "muon", "precision": precision}, zero=zero)
    assert result.time_s["optimizer"] == pytest.approx((dense / dense_ranks + expert / expert_ranks) / 1e12)


ADAPTERS = Trainable(lora_rank=4, lora_targets=("gate_proj", "up_proj", "down_proj"))
ADAPTED = 6 * 4 * 3 * 4 * (HIDDEN + WIDTH)
"""Parameters of adapters of rank 4 beside three matrices of every expert."""


@pytest.mark.parametrize("frozen", [None, "nf4"])
@pytest.mark.parametrize(("master", "held"), [("fp32", 12), ("none", 8)])
def test_where_all_but_experts_is_frozen_the_adapters_of_experts_are_updated(master, held, frozen):
    """Master copy and moments twice, gradients in 4 bytes and weights in 2; nothing of what is frozen."""
    precision = Precision(master=master, frozen=frozen)
    result = updated({"trainable": ADAPTERS, "precision": precision})
    assert result.time_s["optimizer"] == pytest.approx((2 * held + 4 + 2) * ADAPTED / 4 / 1e12)


def test_experts_that_keep_fewer_moments_on_the_host():
    """A quarter of Muon's states: read and written there beside fp32 gradients; the others on the device."""
    dense, routers = (7 * HIDDEN + 2 * 8 * HIDDEN) / 4, 6 * 4 * HIDDEN / 4
    one, two, rates = OF_EXPERTS / 4 + routers, dense, load_host_rates()
    result = updated({"optimizer": "muon"}, offload=Offload(optimizer=0.25, overlap=False))
    device = 0.75 * (one * (2 * 8 + 6) + two * (2 * 12 + 6)) / 1e12
    host = 0.25 * (one * (2 * 8 + 4) + two * (2 * 12 + 4)) / rates.update_bandwidth
    assert result.time_s["optimizer"] == pytest.approx(device + host)
    assert result.time_s["host_comm"] == pytest.approx(0.25 * 2 * 4 * (one + two) / LINK)


def test_adapters_of_experts_on_the_host():
    result = updated({"trainable": ADAPTERS}, offload=Offload(optimizer=1.0, overlap=False))
    assert result.time_s["optimizer"] == pytest.approx(
        (2 * 12 + 4) * ADAPTED / 4 / load_host_rates().update_bandwidth
    )


@pytest.mark.parametrize(
    ("precision", "device", "host"),
    [
        (Precision(), 2 * 4 + 2, 2 * 12 + 4),  # its weights are written from the master copy
        (Precision(moments="bf16"), 2 * 4 + 2, 2 * 8 + 4),
        (Precision(parameters="fp32", master="none"), 0, 2 * 8 + 4),  # copied to the weights
    ],
)
def test_master_copies_that_stay_are_written_and_read(precision, device, host):
    """No gradients are read on the device where the host updates all."""
    offload = Offload(optimizer=1.0, master=False)
    result = updated({"precision": precision}, offload=offload)
    parameters = (OF_EXPERTS + (7 + 6 * 4 + 2 * 8) * HIDDEN) / 4
    expected = parameters * (device / 1e12 + host / load_host_rates().update_bandwidth)
    assert result.time_s["optimizer"] == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
def test_the_stage_that_moves_most_is_waited_for(optimizer):
    """A stage of experts beside one of dense layers alone, whose states differ by parameter."""
    layers = (FEED,) * 3 + (EXPERTS.layers[0],) * 3
    work = Workload(seq_len=SEQUENCE, global_batch_size=8, optimizer=optimizer)
    layout = Layout(pp=2, ep=2, dp_shard=2, micro_batch_size=2)
    result = project(replace(EXPERTS, layers=layers), toy.cluster(4), layout, work, costs=toy.costs())
    optimizer_byteses = [item.optimizer_bytes for item in result.memory.stages]
    experts = 3 * 4 * 3 * HIDDEN * WIDTH / 2
    last = (3 * (HIDDEN + 4 * HIDDEN) + HIDDEN + 8 * HIDDEN) / 2 + experts
    assert optimizer_byteses[1] > optimizer_byteses[0]
    assert result.time_s["optimizer"] == pytest.approx((2 * optimizer_byteses[1] + 6 * last) / 1e12)


@pytest.mark.parametrize("schedule", [None, "1f1b", "zb-h1"])
def test_modules_that_save_nothing_move_nothing(schedule):
    result = offloaded(Layout(pp=2, schedule=schedule), Offload(modules=("core_attn",), overlap=False))
    assert result.time_s["host_comm"] == 0.0
    assert [stage_memory.host_bytes for stage_memory in result.memory.stages] == [0, 0]


def test_copies_of_activations_and_of_the_update_add_up():
    layout = Layout(dp_shard=4)
    both, update, layers = (
        offloaded(layout, Offload(overlap=False, **item)).time_s["host_comm"]
        for item in (
            {"optimizer": 0.5, "activation_layers": 3},
            {"optimizer": 0.5},
            {"activation_layers": 3},
        )
    )
    assert both == pytest.approx(update + layers)
    assert min(update, layers) > 0


def test_layers_that_are_replayed_move_their_inputs_alone():
    """Two of six: their input, of the others everything."""
    layout = Layout(recompute=Recompute(granularity="full", num_layers=2))
    result = offloaded(layout, Offload(activation_layers=99, overlap=False))
    moved = 2 * 2 * 2 * SEQUENCE * HIDDEN + 4 * KEPT
    assert result.memory.stages[0].host_bytes == pytest.approx(moved)
    assert result.time_s["host_comm"] == pytest.approx(4 * 2 * moved / LINK)


def test_of_layers_that_are_replayed_together_the_first_moves_its_input():
    """Three units of two, two units of which the last is of one, and six layers each with its own."""
    for unit, inputs in ((2, 3), (4, 2), (1, 6)):
        layout = Layout(recompute=Recompute(granularity="full", unit=unit))
        moved = inputs * 2 * 2 * SEQUENCE * HIDDEN
        for named in ({"activation_layers": 99}, {"modules": ("mlp_norm",)}):
            result = offloaded(layout, Offload(overlap=False, **named))
            assert result.memory.stages[0].host_bytes == pytest.approx(moved)
            assert result.time_s["host_comm"] == pytest.approx(4 * 2 * moved / LINK)


@pytest.mark.parametrize("mtp", [1, 2])
@pytest.mark.parametrize("schedule", [None, "1f1b", "dualpipe"])
def test_modules_of_prediction_move_with_the_last_stage(schedule, mtp):
    """Norms before feed-forwards: 2 bytes of the input and a statistic; of two replicas half of either passes."""
    model = replace(FEEDS, num_mtp_layers=mtp)
    offload = Offload(modules=("mlp_norm",), overlap=False)
    layout = Layout(pp=2, schedule=schedule, micro_batch_size=2, offload=offload)
    work = Workload(seq_len=SEQUENCE, global_batch_size=8)
    result = project(model, toy.cluster(2), layout, work, costs=toy.costs())
    item = 2 * SEQUENCE * (2 * HIDDEN + 4)
    layers = (6 + mtp) / 2 if schedule == "dualpipe" else 3 + mtp
    assert result.time_s["host_comm"] == pytest.approx(4 * 2 * layers * item / LINK)


@pytest.mark.parametrize("schedule", [None, "1f1b", "zb-h1"])
def test_copies_hide_behind_the_passes_of_a_schedule(schedule):
    """Out behind forward; back behind all of backward, or where weight gradients are apart behind the rest of it."""
    layout = Layout(pp=2, schedule=schedule, stage_layers=(2, 4))
    result = offloaded(layout, Offload(activation_layers=99))
    rows, moved = 2 * SEQUENCE, 4 * KEPT / LINK
    _, slowest = result.stage_times
    weights = sum(
        max(2 * rows * k * n / 100e12, (2 * rows * (k + n) + 8 * k * n) / 1e12)
        for k, n in [(HIDDEN, 2 * WIDTH), (WIDTH, HIDDEN)] * 4 + [(HIDDEN, 8)]
    )
    behind = slowest.backward_s - (weights if schedule == "zb-h1" else 0.0)
    assert result.time_s["host_comm"] == pytest.approx(4 * (2 * moved - slowest.forward_s - behind))
    if schedule != "zb-h1":  # the first stage's two layers are crossed once, as long as their copies take
        assert result.time_s["bubble"] == pytest.approx(2 * 2 * KEPT / LINK)


def test_a_schedule_s_own_copies_take_the_link_s_sustained_rate():
    """PipeOffload of one micro-batch: the second rank's first stage of two layers waits for both copies of it.

    Twice as fast a link saves half of what they take.
    """
    layout = Layout(pp=2, vpp=2, schedule="pipeoffload", micro_batch_size=2)
    model, work = replace(FEEDS, layers=(FEED,) * 8), Workload(seq_len=SEQUENCE, global_batch_size=2)
    usual = toy.cluster(2)
    quick = replace(usual, device=replace(usual.device, host_bandwidth=20e9))
    slow, fast = (
        project(model, item, layout, work, costs=toy.costs()).time_s["bubble"] for item in (usual, quick)
    )
    assert slow - fast == pytest.approx(2 * 2 * KEPT / LINK / 2)


MATRICES = HIDDEN + 3 * HIDDEN * WIDTH
"""Parameters of a layer, its norm among them."""


def slow(devices, network, host):
    """Return toys on a slow network, each with a link to its host that sustains `host` byte/s."""
    fabric = toy.cluster(devices, Tier(name="toy", size=0, bandwidth=network, latency=0.0))
    bandwidth = host / load_host_rates().link_share
    return replace(fabric, device=replace(fabric.device, host_bandwidth=bandwidth))


@pytest.mark.parametrize(("schedule", "vpp"), [(None, 1), ("interleaved-1f1b", 2), ("zb-h1", 1)])
def test_copies_hide_behind_passes_that_wait_for_messages(schedule, vpp):
    """Stage 3 over 2 ranks: each pass takes as long as its messages, the slower stage's of 4 layers and the head.

    Backward ends with a layer's gather and reduction that nothing hides; split, weights come back behind gathers and
    gradients leave behind reductions, together the longer copy shows.
    """
    layout = Layout(
        pp=2, vpp=vpp, dp_shard=2, zero=3, reshard="always", schedule=schedule, stage_layers=(2, 4),
        micro_batch_size=2, offload=Offload(parameters=True),
    )  # fmt: skip
    work = Workload(seq_len=SEQUENCE, global_batch_size=16)
    result = project(FEEDS, slow(4, 1e7, 5e6), layout, work, costs=toy.costs())
    kept = 4 * MATRICES + HIDDEN + 8 * HIDDEN
    gather, reduction = 2 * kept / 2 / 1e7, 4 * kept / 2 / 1e7
    weights, gradients = 2 * kept / 2 / 5e6, 4 * kept / 2 / 5e6
    ends = (2 + 4) * MATRICES / 2 / 1e7
    shown = weights - gather + gradients - reduction
    shown += weights - gather - ends if schedule == "zb-h1" else -gather - ends
    if (
        schedule is None
    ):  # the first stage: weights of 2 bytes, then a gather and a reduction of everything and the ends
        first = 2 * MATRICES + 8 * HIDDEN
        waits = 2 * first / 2 / 5e6 + (2 + 4) * first / 2 / 1e7 + ends
        assert result.time_s["bubble"] == pytest.approx(waits)
    assert result.time_s["host_comm"] == pytest.approx(4 * shown)
    assert result.time_s["data_comm"] == pytest.approx(
        4 * (2 * gather + reduction + ends - sum_of_passes(result))
    )


def sum_of_passes(result):
    """Seconds of both passes of the last stage."""
    return result.stage_times[-1].forward_s + result.stage_times[-1].backward_s


def test_traffic_of_a_step_hides_behind_passes_that_wait_for_copies():
    """Each pass takes as long as activations of six layers to or from the host; sums and gathers show beyond that."""
    layout = Layout(dp_shard=4, micro_batch_size=2, offload=Offload(activation_layers=99))
    work = Workload(seq_len=SEQUENCE, global_batch_size=8)
    result = project(FEEDS, slow(4, 1e8, LINK), layout, work, costs=toy.costs())
    kept, moved = 6 * MATRICES + HIDDEN + 2 * 8 * HIDDEN, 6 * KEPT / LINK
    reduced, gathered = 3 / 4 * 4 * kept / 1e8, 3 / 4 * 2 * kept / 1e8
    assert result.time_s["data_comm"] == pytest.approx(reduced + gathered - 2 * moved)


def test_sums_among_replicas_hide_behind_passes_that_wait_for_messages():
    """Once a step, over a link of a tenth: behind the gathers and reductions of one split backward and its ends."""
    layout = Layout(
        pp=2, dp_replicate=2, dp_shard=2, zero=3, reshard="always", schedule="zb-h1", stage_layers=(2, 4),
        micro_batch_size=2,
    )  # fmt: skip
    work = Workload(seq_len=SEQUENCE, global_batch_size=32)
    tiers = (
        Tier(name="toy", size=2, bandwidth=1e7, latency=0.0),
        Tier(name="toy network", size=0, bandwidth=1e6, latency=0.0),
    )
    result = project(FEEDS, toy.cluster(8, *tiers), layout, work, costs=toy.costs())
    kept = 4 * MATRICES + HIDDEN + 8 * HIDDEN
    gather, reduction, ends = 2 * kept / 2 / 1e7, 4 * kept / 2 / 1e7, (2 + 4) * MATRICES / 2 / 1e7
    once = 2 * (4 * kept / 2) / 2 / 1e6 - (gather + ends + reduction)
    item = 2 * gather + reduction + ends - sum_of_passes(result)
    assert result.time_s["data_comm"] == pytest.approx(4 * item + once)


@pytest.mark.parametrize(("measured", "gap"), [((), 20 - 5), ((None,), 20 - 5), ((object(),), 0)])
def test_a_measured_update_holds_its_launches(measured, gap):
    """10 launches of 2 s beside 5 s of work; blocks alone may have been measured."""
    setting = SimpleNamespace(run=RunFactors(kernel_interval_s=2.0), choices=Layout())
    anchor = SimpleNamespace(update=measured[0]) if measured else None
    pricing = SimpleNamespace(models=SimpleNamespace(anchor=anchor))
    assert update_gap(setting, 10.0, 5.0, pricing) == gap
