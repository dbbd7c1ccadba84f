"""Searches under published analyses: the rankings, fronts and scans of our own engine, by other formulas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import InfeasibleError, SpecError
from forescale.presets import scores_of
from forescale.question import PresetOptions, Question
from forescale.search import pareto_search, scan_devices, search
from forescale.search.rank import slowest_of
from forescale.spec import Workload
from forescale.spec.space import Space

PAPER = Question(
    model=load_model("gpt3-1t"),
    cluster=load_cluster("b200-nvs8", 256),
    workload=Workload(seq_len=2048, global_batch_size=4096),
    preset="subramanian2024",
    preset_options=PresetOptions(tensor_parallel="1d"),
)
ANALYSIS = Question(
    model=load_model("almodel"),
    cluster=load_cluster("almodel-pod", 128),
    workload=Workload(seq_len=4096, global_batch_size=5120),
    preset="almodel",
)


def test_the_best_of_a_paper_are_ordinary_projections():
    result = search(PAPER, top=4)
    scores = scores_of(PAPER)
    assert [one.step_time_s for one in result.best] == pytest.approx(sorted(scores.step_time)[:4], rel=1e-12)
    assert (result.num_legal, result.num_feasible) == (scores.num_legal, len(scores.step_time))
    assert result.num_feasible_is_exact
    assert result.gap == 0.0
    assert result.held_fixed == ()
    smallest = search(replace(PAPER, objective="peak_memory"), top=1).best[0]
    assert smallest.memory.peak_bytes == pytest.approx(min(scores.peak), rel=1e-12)


def test_each_layout_of_the_analysis_has_its_fastest_policy():
    steps = [4.402, 4.426, 4.444, 4.718, 4.743]
    assert [one.step_time_s for one in search(ANALYSIS, top=5).best] == pytest.approx(steps, abs=6e-4)
    every = search(ANALYSIS, top=5, all_variants=True).best
    assert every[1].strategy.dp_shard == every[0].strategy.dp_shard
    assert slowest_of(ANALYSIS, 1)[0].step_time_s == pytest.approx(40.41, abs=6e-3)


def test_the_front_is_beaten_by_no_layout():
    front, scores = pareto_search(PAPER).front, scores_of(PAPER)
    for one in front:
        faster = scores.step_time < one.step_time_s * (1 - 1e-9)
        assert not (scores.peak[faster] <= one.memory.peak_bytes * (1 - 1e-9)).any()
    assert front[0].step_time_s == pytest.approx(min(scores.step_time))


def test_a_scan_over_devices_is_a_search_for_each():
    points = scan_devices(PAPER, [64, 256]).points
    assert points[0].best is None
    assert points[1].best == search(PAPER, top=1).best[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"preset": "playbook", "preset_options": PresetOptions()}, "unsupported_by preset playbook"),
        ({"space": Space(tp=(8,))}, "no_effect the search space"),
        ({"preset_options": PresetOptions()}, "missing --tensor-parallel"),
        (
            {"preset_options": PresetOptions(tensor_parallel="1d", fix=("panels=8",))},
            "no_effect panels",
        ),
    ],
)
def test_what_is_refused(changes, says):
    with raises(SpecError, says):
        search(replace(PAPER, **changes))


def test_a_limit_of_memory_is_kept():
    limit = 1.6e11
    assert search(replace(PAPER, max_memory=limit), top=1).best[0].memory.peak_bytes <= limit
    with pytest.raises(InfeasibleError, match="configurations of gpt3-1t fits"):
        search(replace(PAPER, max_memory=1e9))


def test_relaxations_belong_to_our_own_engine():
    with raises(SpecError, "no_effect relax, checkpoint"):
        search(PAPER, relax=True)
