"""What relaxed constraints gain, against searches that relax them by hand."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from tests.small import cluster, dense, moe, workload

from forescale import ask_search
from forescale.catalogue.frameworks import load_framework
from forescale.errors import InfeasibleError
from forescale.graph.counts import count_parameters
from forescale.question import Question, question_of
from forescale.search import remedies, search
from forescale.search.evaluate import score
from forescale.search.relax import memory_limits
from forescale.search.tree import enumerate_layouts
from forescale.spec import MoeFfn, Recompute
from forescale.spec.cluster import SiteLink
from forescale.spec.framework import searched
from forescale.spec.space import ORDERS, Space
from forescale.spec.workload import Outer

relax = import_module("forescale.search.relax")
NARROW = Space(tp=(2,), cp=(1,), zero=(1,), recompute=(Recompute(),))
INNER, OUTER = cluster(8).tiers
NODES = replace(cluster(8), devices_per_node=4, tiers=(replace(INNER, size=4), OUTER))
WORK = workload(global_batch_size=12)


@pytest.fixture(scope="module")
def narrow():
    """What frees a space in which almost all is held."""
    return search(dense(), NODES, WORK, space=NARROW, top=1, relax=True)


def gained(result, change):
    (relaxation,) = (item for item in result.relaxations if item.change == change)
    return relaxation


def test_a_dimension_that_is_held_is_freed(narrow):
    free = search(dense(), NODES, WORK, space=replace(NARROW, tp=None), top=1)
    result = gained(narrow, "tp free")
    assert result.constraint == "tp"
    assert result.step_time_s == free.best[0].step_time_s
    assert result.gain == pytest.approx(1.0 - free.best[0].step_time_s / narrow.best[0].step_time_s)
    assert result.strategy == free.best[0].strategy


def test_values_left_out_are_tried_beside_those_held(narrow):
    wider = search(dense(), NODES, WORK, space=replace(NARROW, zero=(1, 0, 2, 3)), top=1)
    assert gained(narrow, "zero 0, 2, 3 too").step_time_s == wider.best[0].step_time_s


def test_each_rule_of_a_framework_is_dropped_by_itself():
    space = replace(searched(load_framework("deepspeed"), Space(), limited=True), micro_batch_size=(1,))
    result = search(dense(), cluster(8), workload(), space=space, top=1, relax=True)
    by_rule = {item.constraint: item for item in result.relaxations if item.change.startswith("without ")}
    assert set(by_rule) == {rule.name for rule in space.rules}
    without = replace(space, rules=space.rules[1:])
    best = search(dense(), cluster(8), workload(), space=without, top=1).best[0]
    assert by_rule[space.rules[0].name].step_time_s == best.step_time_s


def test_a_network_twice_as_fast_is_searched_anew(narrow):
    inner, outer = NODES.tiers
    twice = replace(NODES, tiers=(inner, replace(outer, bandwidth=2.0 * outer.bandwidth)))
    best = search(dense(), twice, WORK, space=NARROW, top=1).best[0]
    assert gained(narrow, f"twice the bandwidth of {outer.name}").step_time_s == best.step_time_s


def test_batches_are_compared_by_token(narrow):
    for other in (16, 24):
        best = search(dense(), NODES, workload(global_batch_size=other), space=NARROW, top=1).best[0]
        per_token = best.step_time_s / other / (narrow.best[0].step_time_s / 12)
        result = gained(narrow, f"{other} sequences, per token")
        assert result.gain == pytest.approx(max(0.0, 1.0 - per_token))


def test_heads_that_need_not_divide():
    model = dense()
    space = Space(
        tp=(3,),
        cp=(1,),
        pp=(1,),
        zero=(1,),
        waived=("heads over tp", "key/value heads over tp", "feed-forward over tp"),
    )
    candidates = enumerate_layouts(model, cluster(6), workload(global_batch_size=12), space)
    assert len(candidates)
    assert not len(
        enumerate_layouts(model, cluster(6), workload(global_batch_size=12), replace(space, waived=()))
    )
    scores = score(
        Question(model=model, cluster=cluster(6), workload=workload(global_batch_size=12)), candidates
    )
    assert (scores.step_time > 0.0).all()


def test_nothing_that_is_relaxed_loses_and_the_most_binds():
    space = Space(pp=(1, 2), cp=(1,), sp=(True,), micro_batch_size=(1, 2), recompute=FEW.recompute)
    result = search(moe(), cluster(4), workload(), space=space, top=1, relax=True)
    gains = [item.gain for item in result.relaxations]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) >= 0.0
    assert result.binding is result.relaxations[0]


def test_memory_is_relaxed_by_one_and_eight_gibibytes():
    assert memory_limits(80.0 * 2**30) == tuple(gib * 2.0**30 for gib in (80, 81, 88, 120, 160))


FEW = Space(
    tp=(1, 2),
    cp=(1,),
    vpp=(1,),
    zero=(1,),
    sp=(True,),
    micro_batch_size=(1, 2),
    recompute=(Recompute(), Recompute(granularity="full")),
    axis_order=(("tp", "cp", "dp", "pp"),),
)


@pytest.mark.parametrize("size", [4.2, 4.6, 5.0])
def test_safe_layouts_are_those_that_fit_at_the_upper_end(size):
    devices = cluster(8, hbm_gb=size)
    every = search(dense(), devices, workload(), space=FEW, top=1000, surest=True, all_variants=True).best
    sure = [one for one in every if one.memory.verdict == "FITS"]
    assert 0 < len(sure) < len(every)
    safe = search(dense(), devices, workload(), space=FEW, top=1000, safe=True, all_variants=True)
    assert list(safe.best) == sure
    best = search(dense(), devices, workload(), space=FEW, top=1, surest=True)
    assert best.surest == sure[0]
    assert search(dense(), devices, workload(), space=FEW, surest=True).surest == sure[0]
    assert best.best[0] == every[0]


def test_the_surest_is_looked_for_only_where_asked():
    assert search(dense(), cluster(8), workload(), space=FEW, top=1).surest is None


def test_where_nothing_fits_the_remedies_do():
    small = cluster(8, hbm_gb=1.5)
    result = remedies(dense(), small, workload(), space=FEW)
    assert result[0].constraint == "memory"
    for item in result:
        assert item.fits == (item.peak_bytes <= small.device.hbm_bytes) or item.constraint == "memory"
    larger = replace(small, device=replace(small.device, hbm_bytes=result[0].peak_bytes))
    assert search(dense(), larger, workload(), space=FEW, top=1).num_feasible >= 1
    more = [item for item in result if item.constraint == "devices" and item.fits]
    for entry in more:
        count = int(entry.change.split()[0].replace(",", ""))
        assert search(dense(), small.sized(count), workload(), space=FEW, top=1).best


def test_remedies_of_what_a_search_knows_are_the_same():
    small = cluster(8, hbm_gb=1.5)
    with pytest.raises(InfeasibleError) as error:
        search(dense(), small, workload(), space=FEW)
    smallest = error.value.smallest
    assert isinstance(smallest, Question)
    known = (error.value.smallest_bytes, smallest.layout)
    assert remedies(dense(), small, workload(), space=FEW, known=known) == remedies(
        dense(), small, workload(), space=FEW
    )


@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "moe"])
def test_states_spread_over_all_devices_are_less_than_any_layout_holds(model):
    question, count = question_of(model, cluster(8), workload()), count_parameters(model)
    spread = relax.least_states(
        question
    )  # ZeRO has 16 bytes a parameter with gradients in 2; here these have 4
    assert spread == pytest.approx(18 * (count.total + count.mtp) / 8, rel=1e-3)
    assert spread <= score(question, enumerate_layouts(model, cluster(8), workload(), Space())).peak.min()


def test_remedies_that_states_alone_rule_out_are_what_a_search_rules_out(monkeypatch):
    first, *others = moe(4).layers
    many = tuple(replace(other, ffn=replace(other.ffn, num_experts=256)) for other in others)
    few = {"recompute": (Recompute(), Recompute(granularity="full")), "micro_batch_size": (1,), "sp": (True,)}
    question = question_of(
        replace(moe(4), layers=(first, *many)),
        cluster(8, hbm_gb=2.5),  # of states 3.8 GB on 8 devices, 2.6 on 12; 32 suffice
        workload(512, 256),
        space=Space(cp=(1,), pp=(1,), **few),
    )
    result = remedies(question)
    monkeypatch.setattr(relax, "least_states", lambda _: 0.0)
    assert remedies(question) == result


def over_sites(*, devices, outer, hbm_gb=64.0):
    link = SiteLink(count=2, bandwidth=1e8)
    work = replace(workload(), outer=outer)
    return question_of(dense(), cluster(devices, hbm_gb=hbm_gb).over_sites(link, devices), work, space=FEW)


def test_more_devices_make_the_sites_larger():
    question = over_sites(devices=16, outer=Outer(), hbm_gb=1.5)
    result = {remedy.constraint: remedy for remedy in remedies(question)}
    count = int(result["devices"].change.split()[0])
    assert result["devices"].fits
    larger = question.cluster.sized(count)
    assert larger.num_sites == 2
    assert search(replace(question, cluster=larger), top=1).best[0].sites.num_sites == 2


def test_what_sites_exchange_is_relaxed():
    result = search(over_sites(devices=8, outer=Outer(every=4)), top=1, relax=True)
    gains = {
        relaxation.change: relaxation.gain
        for relaxation in result.relaxations
        if relaxation.constraint == "outer"
    }
    assert list(gains) == sorted(gains, key=gains.__getitem__, reverse=True)
    assert set(gains) == {"bits 4", "every 8 steps", "overlap 1"}
    assert gains["bits 4"] > gains["every 8 steps"] > 0.3
    narrow = search(over_sites(devices=8, outer=Outer(every=4, bits=4.0, overlap=1)), top=1, relax=True)
    assert {relaxation.change for relaxation in narrow.relaxations if relaxation.constraint == "outer"} == {
        "every 8 steps"
    }


def test_what_a_search_had_no_time_to_relax_is_left_out():
    question = []

    def watch(progress):
        question.append(progress)
        return len(question) < 4

    result = search(dense(), cluster(8), workload(), space=FEW, top=1, relax=True, watch=watch)
    constraints = {item.constraint for item in result.relaxations}
    assert "memory" in constraints
    assert "network" not in constraints


def test_remedies_of_a_router_with_biases_are_found_where_layouts_differ_in_the_batch_alone():
    plain = moe(2)
    layers = tuple(
        replace(layer, ffn=replace(layer.ffn, score_bias=True)) if isinstance(layer.ffn, MoeFfn) else layer
        for layer in plain.layers
    )
    kept = {"tp": (1,), "cp": (1,), "pp": (2,), "vpp": (1,), "ep": (1,), "etp": (1,), "zero": (1,)}
    space = Space(**kept, dp_shard=(4,), recompute=(Recompute(),), axis_order=ORDERS[:1])
    result = remedies(replace(plain, layers=layers), cluster(8, hbm_gb=1.0), workload(), space=space)
    assert {item.constraint for item in result} >= {"memory", "seq_len"}
    least = next(item.peak_bytes for item in result if item.constraint == "memory")
    assert all(
        item.peak_bytes < least for item in result if item.constraint != "memory"
    )  # others save nothing


def test_where_nothing_fits_under_a_framework_its_limits_are_left_out():
    """Recorded operators of transformers are not split, so 10 GiB are too few for its layouts alone."""
    question = ask_search(
        "gemma-3-1b",
        cluster="rtx-3080",
        devices=16,
        seq_len=4096,
        global_batch_size=64,
        framework="transformers",
    )
    (remedy,) = [item for item in remedies(question) if item.constraint == "framework"]
    assert remedy.fits
    assert remedy.change.startswith("--framework none")
    assert remedy.strategy.tp * remedy.strategy.cp > 1
