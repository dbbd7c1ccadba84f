"""The report of a search under our own engine."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.report.document import Table
from forescale.report.layouts import search_report
from forescale.search import search
from forescale.search.rank import score_all, slowest_of
from forescale.spec import Layout, Workload
from forescale.spec.phrases import layout
from forescale.spec.space import Space

SPACE = Space(micro_batch_size=(1,), zero=(1,), vpp=(1,), cp=(1, 2))


@pytest.fixture(scope="module")
def found():
    workload = Workload(seq_len=4096, global_batch_size=16)
    return search(load_model("llama-3.1-8b"), load_cluster("h100-sxm", 8), workload, space=SPACE, top=4)


@pytest.fixture(scope="module")
def slowest(found):
    return slowest_of(found.question, 3)


@pytest.fixture(scope="module")
def report(found, slowest):
    return search_report(found, slowest, num_detailed=2)


def table(report, title):
    section = next(one for one in report.contents if one.title.startswith(title))
    return next(one for one in section.contents if isinstance(one, Table))


def test_the_slowest_are_slower_than_all_others(found, slowest):
    scored = score_all(found.question)
    times = scored.scores.step_time[scored.fits]
    assert slowest[0].step_time_s == pytest.approx(times.max(), rel=1e-12)
    assert len(slowest) == 3
    assert [one.step_time_s for one in slowest] == sorted((one.step_time_s for one in slowest), reverse=True)
    assert all(one.memory.verdict != "OOM" for one in slowest)


def test_rankings_show_what_was_found(report, found, slowest):
    for title, entries in (("Layouts by", found.best), ("Slowest", slowest)):
        shown = table(report, title)
        at = {heading.text: index for index, heading in enumerate(shown.headings)}
        for row, one in zip(shown.rows, entries, strict=True):
            assert row[at["step(s)"]] == f"{one.step_time_s:.3f}"
            assert int(row[at["dp_shard"]]) == one.strategy.dp_shard
            fullest = max(stage.peak_bytes for stage in one.memory.stages)
            assert float(row[at["peak"]]) == pytest.approx(fullest / 2**30, abs=0.051)


def test_times_of_a_row_add_up_to_its_step(report):
    shown = table(report, "Layouts by")
    at = [heading.text for heading in shown.headings]
    first, last = at.index("compute"), at.index("step(s)")
    for row in shown.rows:
        assert sum(float(cell) for cell in row[first:last]) == pytest.approx(float(row[last]), abs=0.01)


def test_details_and_summary(report, found):
    titles = [one.title for one in report.contents if one.level == 2]
    assert titles == [
        "Column legend",
        *(f"#{i}: {layout(one.strategy)}" for i, one in enumerate(found.best[:2], 1)),
    ]
    summary = next(one for one in report.contents if one.title == "Summary").contents[0]
    assert summary.items[0] == f"Best layout: {layout(found.best[0].strategy)}"
    assert any(item.startswith("Step time range") for item in summary.items)


def test_columns_that_say_nothing_are_left_out(report):
    headings = {heading.text for heading in table(report, "Layouts by").headings}
    assert not headings & {"ep", "etp", "vpp"}
    assert {"step(s)", "MFU%", "bottleneck"} <= headings


@pytest.mark.parametrize(("vpp", "said"), [(2, "groups of 6"), (1, "")])
def test_groups_of_micro_batches_are_a_choice_where_chunks_take_turns(vpp, said):
    """12 micro-batches on 4 ranks."""
    space = Space(pp=(4,), vpp=(vpp,), tp=(1,), micro_batch_size=(1,), base=Layout(microbatch_group=6))
    workload = Workload(seq_len=4096, global_batch_size=12)
    result = search(load_model("llama-3.1-8b"), load_cluster("h100-sxm", 4), workload, space=space, top=2)
    assert all(("groups of 6" in layout(one.strategy)) == bool(said) for one in result.best)
    shown = table(search_report(result, (), num_detailed=1), "Layouts by")
    at = {heading.text: index for index, heading in enumerate(shown.headings)}
    assert [row[at["choices"]] if "choices" in at else "" for row in shown.rows] == [said] * len(result.best)
