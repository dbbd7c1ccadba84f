from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.catalogue.models import load_model
from forescale.errors import InfeasibleError, UnknownKeyError
from forescale.numeric import divisors
from forescale.project import project
from forescale.question import Question
from forescale.search import search
from forescale.search.evaluate import score
from forescale.search.tree import enumerate_layouts
from forescale.spec import DEFAULT_AXIS_ORDER, Layout
from forescale.spec.space import Space, default_recompute


def layouts(candidates):
    """All (variant, row) of a space."""
    return list(zip(*np.nonzero(candidates.legal), strict=True))


def test_divisors():
    assert divisors(60) == (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)


@pytest.mark.parametrize("model", [dense(), moe()], ids=lambda m: m.name)
def test_no_layout_is_listed_twice_and_all_are_legal(model):
    candidates = enumerate_layouts(model, cluster(8), workload(), Space())
    rows = np.stack(list(candidates.columns.values()))
    assert np.unique(rows, axis=1).shape == rows.shape
    everything = layouts(candidates)
    assert len(everything) == len(candidates)
    for index in np.linspace(0, len(candidates) - 1, 40).astype(int):
        project(model, cluster(8), candidates.strategy(*everything[index]), workload())


@pytest.mark.parametrize("model", [dense(), moe()], ids=lambda m: m.name)
def test_the_best_of_search_is_the_best_of_projecting_everything(model):
    space = Space(
        cp=(1,) if model.is_moe else None,
        zero=(1, 3),
        vpp=(1, 2),
        micro_batch_size=(1, 4),
        recompute=default_recompute(model)[:2],
    )
    small, work = cluster(4), workload(global_batch_size=16)
    candidates = enumerate_layouts(model, small, work, space)
    everything = [project(model, small, candidates.strategy(*index), work) for index in layouts(candidates)]
    fitting = [item for item in everything if item.memory.peak_bytes <= small.device.hbm_bytes]
    result = search(model, small, work, space=space, top=5, all_variants=True)
    assert result.num_legal == len(candidates)
    assert result.num_feasible == len(fitting)
    apart = {
        (
            replace(item.strategy, axis_order=DEFAULT_AXIS_ORDER),
            item.step_time_s,
            item.memory.peak_bytes,
        ): item.step_time_s
        for item in fitting
    }
    assert [item.step_time_s for item in result.best] == sorted(apart.values())[:5]


def test_results_do_not_depend_on_the_chunk():
    space = Space(cp=(1,), micro_batch_size=(1, 2), recompute=default_recompute(moe())[:2])
    candidates = enumerate_layouts(moe(), cluster(8), workload(), space)
    question = Question(model=moe(), cluster=cluster(8), workload=workload())
    whole = score(question, candidates, chunk=10**9)
    parts = score(question, candidates, chunk=97)
    np.testing.assert_array_equal(whole.step_time, parts.step_time)
    np.testing.assert_array_equal(whole.peak, parts.peak)


def test_fixed_dimensions_hold():
    result = search(dense(), cluster(8), workload(), space=Space().fixed({"tp": 2, "pp": 2}))
    assert {(item.strategy.tp, item.strategy.pp) for item in result.best} == {(2, 2)}


def test_an_unknown_dimension_is_refused():
    with raises(UnknownKeyError, "unknown_key micro_batch"):
        search(dense(), cluster(8), workload(), space=Space().fixed({"micro_batch": 2}))


def test_what_fits_nowhere_says_how_much_is_missing():
    with pytest.raises(InfeasibleError, match="needs") as caught:
        search(dense(), cluster(8, hbm_gb=1.5), workload(), space=Space(cp=(1,), vpp=(1,)))
    assert caught.value.rows


@pytest.mark.parametrize(
    ("batch", "held", "refused"),
    [
        (3, {"dp_shard": 8, "tp": 1, "pp": 1}, "global batch"),
        (64, {"micro_batch_size": 3}, "global batch"),
        (64, {"vpp": 2, "pp": 1}, "vpp needs pp"),
        (64, {"vpp": 6, "pp": 2}, "layers over pp × vpp"),
    ],
)
def test_no_legal_layout_names_what_refused(batch, held, refused):
    """What is not tried, as no divisor is, counts too."""
    with pytest.raises(InfeasibleError, match="no legal layout") as caught:
        search(dense(8), cluster(8), workload(global_batch_size=batch), space=Space().fixed(held))
    assert dict(caught.value.rows)[refused] > 0


def test_no_legal_layout_of_a_model_whose_images_have_no_size():
    model = load_model("qwen2.5-vl-3b")
    with pytest.raises(InfeasibleError, match=r"give --image-size, such as 448$") as caught:
        search(model, cluster(8), workload(global_batch_size=8))
    assert dict(caught.value.rows)["images"] > 0


def test_a_tighter_memory_limit_never_speeds_up_and_says_what_more_would_buy():
    free = search(dense(), cluster(8), workload(), top=1)
    limit = free.best[0].memory.peak_bytes * 0.9
    tight = search(dense(), cluster(8), workload(), top=1, max_memory=limit)
    assert tight.best[0].step_time_s > free.best[0].step_time_s
    assert tight.best[0].memory.peak_bytes <= limit
    assert tight.relaxations[0].gain > 0


def test_rows_that_cannot_fit_are_skipped_without_losing_one_that_fits():
    question = Question(model=moe(), cluster=cluster(8), workload=workload())
    candidates = enumerate_layouts(moe(), cluster(8), workload(), Space())
    whole = score(question, candidates)
    limit = float(np.quantile(whole.peak[np.isfinite(whole.peak)], 0.2))
    pruned = score(question, candidates, memory_limit=limit)
    assert np.isinf(pruned.peak).sum() > np.isinf(whole.peak).sum()
    fits = whole.peak <= limit
    np.testing.assert_array_equal(pruned.peak[fits], whole.peak[fits])
    np.testing.assert_array_equal(pruned.step_time[fits], whole.step_time[fits])


def test_named_schedules_are_searched_beside_the_closed_forms():
    space = Space(schedule=(None, "zb-h1", "zbv", "seq1f1b"), zero=(1,), cp=(1,), micro_batch_size=(1,))
    work = workload(global_batch_size=16)
    question = Question(model=dense(), cluster=cluster(8), workload=work)
    candidates = enumerate_layouts(dense(), cluster(8), work, space)
    scores = score(question, candidates)
    named = [index for index in layouts(candidates) if candidates.variants[index[0]].schedule is not None]
    assert {candidates.variants[index[0]].schedule for index in named} == {"zb-h1", "zbv", "seq1f1b"}
    for index in named[:: max(1, len(named) // 25)]:
        alone = project(dense(), cluster(8), candidates.strategy(*index), work)
        assert alone.step_time_s == scores.step_time[index]
        assert alone.memory.peak_bytes == scores.peak[index]


def test_layouts_of_one_stage_are_scored_as_no_schedule_at_all():
    """Beside layouts of several stages, whose backward the schedule splits."""
    few = {"tp": (4,), "pp": (1, 2), "vpp": (1,), "cp": (1,), "zero": (1,), "micro_batch_size": (1,)}
    work = workload(global_batch_size=16)
    question = Question(model=dense(), cluster=cluster(8), workload=work)
    named, plain = (
        enumerate_layouts(
            dense(), cluster(8), work, Space(schedule=(item,), base=Layout(graphs="full"), **few)
        )
        for item in ("zb-h1", None)
    )
    scores, closed = score(question, named), score(question, plain)
    one = named.columns["pp"] == 1
    assert one.any()
    assert (named.legal & ~one).any()
    np.testing.assert_array_equal(scores.step_time[:, one], closed.step_time[:, one])
    np.testing.assert_array_equal(scores.peak[:, one], closed.peak[:, one])
    for index in layouts(named):
        alone = project(dense(), cluster(8), named.strategy(*index), work)
        assert (alone.step_time_s, alone.memory.peak_bytes) == (scores.step_time[index], scores.peak[index])
