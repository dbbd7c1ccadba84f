"""Offload in a projection: the device holds less, the host more, and copies that do not hide take time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import cluster, dense, moe, workload

from forescale.errors import SpecError
from forescale.explain import explain
from forescale.memory.offload import load_host_rates
from forescale.project import memory_timeline, project
from forescale.search import search
from forescale.spec import Precision, Strategy
from forescale.spec.space import Space
from forescale.spec.strategy import Offload, Recompute

BASE = Strategy(dp_shard=8, micro_batch_size=4)


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
    held = [stage(run(Offload(activation_layers=layers))) for layers in (0, 4, 8, 99)]
    activations = [each.activations_bytes for each in held]
    assert activations[0] > activations[1] > activations[2] == activations[3]
    assert held[2].host_bytes == pytest.approx(2 * held[1].host_bytes)
    layer = held[1].host_bytes / 4
    assert activations[0] - activations[2] == pytest.approx(6 * layer)


def test_offloaded_modules_leave_the_device_but_for_those_of_two_layers():
    plain, moved, half = (
        stage(run(Offload(modules=modules, module_share=share)))
        for modules, share in (((), 1.0), (("attn_norm", "mlp_norm"), 1.0), (("attn_norm", "mlp_norm"), 0.5))
    )
    assert moved.host_bytes == pytest.approx(2 * half.host_bytes)
    layer = moved.host_bytes / 8
    assert plain.activations_bytes - moved.activations_bytes == pytest.approx(6 * layer)
    with pytest.raises(SpecError, match=r"leave out offload\.activation_layers"):
        Offload(modules=("core_attn",), activation_layers=2)


def test_all_that_is_kept_offloaded_by_name_is_as_offloading_all_layers():
    policy = Recompute(granularity="policy", policy="custom", kept=("query_proj", "out_proj"))
    base = replace(BASE, recompute=policy)
    by_layer = run(Offload(activation_layers=99), base=base)
    by_name = run(Offload(modules=("decoder_layer_input", "query_proj", "out_proj")), base=base)
    assert stage(by_name).activations_bytes == pytest.approx(stage(by_layer).activations_bytes, rel=1e-3)
    assert by_name.step_time_s == pytest.approx(by_layer.step_time_s, rel=1e-3)


def test_every_micro_batch_in_flight_is_on_the_host():
    base = Strategy(pp=4, dp_shard=2)
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
    with pytest.raises(SpecError, match="zero 3"):
        run(Offload(parameters=True))


def test_bytes_on_the_host_explain_themselves():
    layout = replace(BASE, offload=Offload(activation_layers=4, optimizer=0.5))
    node = explain(dense(), cluster(8), layout, workload(), "memory.host")
    assert node.value == pytest.approx(stage(project(dense(), cluster(8), layout, workload())).host_bytes)
    assert node.inputs


def test_a_search_keeps_to_it():
    offload = Offload(optimizer=1.0, activation_layers=2)
    found = search(dense(), cluster(8), workload(), space=Space(base=Strategy(offload=offload)), top=3)
    assert all(one.strategy.offload == offload for one in found.best)
    assert all(stage(one).host_bytes > 0.0 for one in found.best)


def test_a_timeline_says_that_it_does_not_follow():
    with pytest.raises(SpecError, match="offload"):
        memory_timeline(dense(), cluster(8), replace(BASE, offload=Offload(activation_layers=2)), workload())


@pytest.mark.parametrize("overlap", [True, False])
def test_the_host_updates_from_fp32_gradients(overlap):
    """Master copy and moments read and written, gradients read: 2 x 12 + 4 bytes; gradients out, weights back in fp32."""
    layout = Strategy(dp_shard=8, offload=Offload(optimizer=1.0, overlap=overlap))
    work = replace(workload(), precision=Precision(gradients="bf16"))
    result = project(dense(), toy.cluster(8), layout, work, costs=toy.costs())
    rates, layer = load_host_rates(), 2 * 1024 + 1024 * (16 + 2 * 4) * 64 + 1024 * 1024 + 3 * 1024 * 4096
    share = (8 * layer + 1024 + 2 * 32000 * 1024) / 8
    update, each = share * (2 * 12 + 4) / rates.update_bandwidth, 4 * share / (10e9 * rates.link_share)
    assert result.time_s["optimizer"] == pytest.approx(update, rel=1e-9)
    assert result.time_s["host_comm"] == pytest.approx(max(each - update, 0.0) if overlap else 2 * each)
    assert stage(result).host_bytes == pytest.approx((12 + 4) * share)


def test_copies_of_activations_hide_behind_the_pass_that_makes_them():
    """Out behind forward and back behind backward, at 10 GB/s; both shown where nothing overlaps."""
    layout = Strategy(dp_shard=1, offload=Offload(activation_layers=8))
    work = workload(global_batch_size=2)
    hidden, bare = (
        project(dense(), toy.cluster(1), replace(layout, offload=each), work, costs=toy.costs())
        for each in (layout.offload, replace(layout.offload, overlap=False))
    )
    moved = stage(hidden).host_bytes / (10e9 * load_host_rates().link_share)
    (times,) = hidden.stage_times
    shown = max(moved - times.forward_s, 0) + max(moved - times.backward_s, 0)
    assert hidden.time_s["host_comm"] == pytest.approx(2 * shown)
    assert bare.time_s["host_comm"] == pytest.approx(2 * 2 * moved)
