"""What makes a layout fit: exact, legal for its framework, and the cheapest single change first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forescale.advise import fit
from forescale.advise.changes import changed, changes
from forescale.api import ask
from forescale.catalogue.frameworks import load_framework
from forescale.project import project
from forescale.search.evaluate import score_layouts
from forescale.spec import Recompute
from forescale.units import GIB

LARGE = {
    "dense": ask("llama-3.1-8b", "h100-sxm", devices=16, tp=2, micro_batch_size=4, seq_len=8192, global_batch_size=64),
    "experts": ask("qwen3-30b-a3b", "h100-sxm", devices=16, ep=8, seq_len=4096, global_batch_size=64, micro_batch_size=2,
                   framework="megatron"),
    "by hand": ask("llama-3.1-8b", "h100-sxm", devices=8, pp=4, stage_layers=(7, 8, 8, 9), seq_len=8192,
                   global_batch_size=32, micro_batch_size=4),
    "zero 3": ask("llama-3.1-8b", "h100-sxm", devices=8, zero=3, micro_batch_size=4, seq_len=8192, global_batch_size=64,
                  framework="torchtitan"),
}  # fmt: skip


def layouts_of(question):
    made = ((each, changed(question, (each,))) for each in changes(question))
    return {layout: each for each, layout in made if layout is not None}


@pytest.mark.parametrize("name", LARGE)
def test_layouts_are_scored_as_they_are_projected(name):
    question = LARGE[name]
    layouts = list(layouts_of(question))
    expected, upper = (score_layouts(replace(question, safe=safe), layouts) for safe in (False, True))
    found = [project(question.of(layout)) for layout in layouts]
    np.testing.assert_allclose(expected.step_time, [one.step_time_s for one in found], rtol=1e-12)
    np.testing.assert_allclose(expected.peak, [one.memory.peak_bytes for one in found], rtol=1e-12)
    np.testing.assert_allclose(upper.peak, [one.memory.peak_high_bytes for one in found], rtol=1e-12)


@pytest.mark.parametrize("name", LARGE)
def test_no_single_change_that_fits_for_sure_is_cheaper_than_the_first(name):
    question = LARGE[name]
    found = fit(question)
    first = found.first
    assert first is not None
    assert project(question.of(first.projection.strategy)).memory.verdict == "FITS"
    singles = [project(question.of(layout)) for layout in layouts_of(question)]
    least = min((one.step_time_s for one in singles if one.memory.verdict == "FITS"), default=np.inf)
    assert first.projection.step_time_s <= least
    assert len(first.changes) == (1 if np.isfinite(least) else 2)


def test_after_the_first_what_fits_comes_before_what_does_not_and_singles_before_pairs():
    found = fit(LARGE["dense"])
    grades = [({"FITS": 0, "AT RISK": 1, "OOM": 2}[each.verdict], len(each.changes)) for each in found.fixes]
    assert grades == sorted(grades)
    assert len({tuple(change.kind for change in each.changes) for each in found.fixes}) == len(found.fixes)
    fitting = [each for each in found.fixes[1:] if each.verdict == "FITS" and len(each.changes) == 1]
    lost = [each.lost_s_per_gib for each in fitting if each.lost_s > 0.0]
    assert lost == sorted(lost)


def test_pairs_are_listed_where_they_beat_every_single_change():
    found = fit(LARGE["experts"])
    sure = [each for each in found.fixes if each.verdict == "FITS"]
    singles = [each.projection.step_time_s for each in sure if len(each.changes) == 1]
    pairs = [each.projection.step_time_s for each in sure if len(each.changes) == 2]
    assert pairs
    assert max(pairs) < min(singles)


def test_a_layout_that_fits_is_made_faster():
    question = ask("llama-3.1-8b", "h100-sxm", devices=16, tp=4, seq_len=8192, global_batch_size=64)
    found = fit(question)
    assert found.verdict == "FITS"
    assert found.fixes
    steps = [each.projection.step_time_s for each in found.fixes]
    assert steps == sorted(steps)
    assert steps[-1] < found.now.step_time_s
    assert {each.verdict for each in found.fixes} == {"FITS"}


def test_only_what_the_framework_can_be_told_is_tried():
    question = LARGE["zero 3"]
    limits = load_framework("torchtitan").limits
    for each in changes(question):
        allowed = (
            *limits.values.get(each.kind, ()),
            *limits.others.get(each.kind, ()),
            *limits.reliefs.get(each.kind, ()),
        )
        if allowed and each.kind != "recompute":
            assert each.words.get(each.kind, allowed[0]) in allowed
    kinds = {each.kind for each in changes(question)}
    assert "optimizer_offload" not in kinds
    assert {each.words["recompute"].granularity for each in changes(question) if each.kind == "recompute"} <= {"none", "policy", "full"}  # fmt: skip


def test_rules_of_the_framework_hold_unless_the_layout_breaks_them_already():
    megatron = load_framework("megatron")
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=16, pp=2, seq_len=4096, global_batch_size=64, framework="megatron"
    )
    layouts = layouts_of(question)
    assert all(layout.zero < 2 for layout in layouts if layout.pp > 1)
    sharded = replace(question, strategy=replace(question.layout, zero=2), framework=megatron)
    assert any(layout.zero == 2 and layout.pp > 1 for layout in layouts_of(sharded))
    graphs = replace(question, strategy=replace(question.layout, graphs="partial"))
    full = Recompute(granularity="full")
    assert full in {layout.recompute for layout in layouts}
    assert full not in {layout.recompute for layout in layouts_of(graphs) if layout.graphs == "partial"}


def test_experts_go_with_tp_where_the_framework_splits_them_so():
    words = {"tp": 2, "zero": 3, "micro_batch_size": 1, "framework": "maxtext"}
    asked = ask("mixtral-8x7b", "h100-sxm", devices=16, seq_len=4096, global_batch_size=64, **words)
    degrees = {(layout.tp, layout.etp) for layout in layouts_of(asked)}
    assert degrees >= {(2, 2), (4, 4), (1, 1)}
    assert all(tp == etp for tp, etp in degrees)


def test_the_same_devices_are_used():
    for question in LARGE.values():
        assert {layout.num_devices for layout in layouts_of(question)} == {question.cluster.num_devices}


def test_layers_dealt_by_hand_stay_until_stages_change():
    question = LARGE["by hand"]
    for layout in layouts_of(question):
        same = (layout.pp, layout.vpp) == (question.layout.pp, question.layout.vpp)
        assert (layout.stage_layers == question.layout.stage_layers) == same


def test_a_limit_is_what_must_be_fitted():
    question = replace(LARGE["dense"], max_memory=30 * GIB)
    found = fit(question)
    assert found.first.projection.memory.peak_high_bytes <= 30 * GIB
