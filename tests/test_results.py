"""What results show of themselves in a notebook, and give to other programs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
import vl_convert
from tests.errors import raises
from tests.small import asked, cluster, dense, workload

import forescale as fs
from forescale import results
from forescale.api import pipeline
from forescale.errors import SpecError
from forescale.explain import explain
from forescale.project import memory_timeline, project
from forescale.search import compare, search
from forescale.spec import Layout, Space
from forescale.units import format_bytes, format_seconds, format_span

QUESTION = asked(dense(4), cluster(8), Layout(pp=2, dp_shard=4, zero=1), workload())
SPACE = Space(tp=(1, 2), cp=(1,), pp=(1, 2), zero=(1,), micro_batch_size=(1,))


@pytest.fixture(scope="module")
def found():
    one, other = project(QUESTION), project(QUESTION.with_layout(Layout(tp=2, dp_shard=4, zero=1)))
    ranked = search(QUESTION.model, QUESTION.cluster, QUESTION.workload, space=SPACE)
    timeline = memory_timeline(QUESTION)
    return {
        "projection": one,
        "search": ranked,
        "front": ranked.pareto(),
        "comparison": compare(one, other),
        "timeline": timeline,
        "explanation": explain(QUESTION, "step_time"),
    }


NAMES = ("projection", "search", "front", "comparison", "timeline", "explanation")


@pytest.mark.parametrize("name", NAMES)
def test_every_result_has_a_frame_a_page_and_plain_values(found, name):
    result = found[name]
    frame = result.to_frame()
    assert len(frame) == len(result.rows()) > 0
    assert list(frame.columns) == list(result.rows()[0])
    ET.fromstring(f"<p>{result._repr_html_()}</p>")
    assert result.to_dict() == json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert len(repr(result)) < 1000


def test_pictures_are_the_numbers(found):
    one = found["projection"]
    step, stages = one.pictures()
    assert sum(bar.total for bar in step.bars) == pytest.approx(one.step_time_s)
    assert [bar.total for bar in stages.bars] == pytest.approx(
        [stage.peak_bytes / 2**30 for stage in one.memory.stages]
    )
    assert one._repr_html_().count("title=") == sum(
        value > 0 for chart in (step, stages) for bar in chart.bars for value in bar.values.values()
    )


@pytest.mark.parametrize("name", ["projection", "search", "front", "comparison", "timeline"])
def test_pictures_are_specifications_that_compile(found, name):
    assert vl_convert.vegalite_to_vega(found[name].to_vega_lite())["marks"]


def test_a_notebook_gets_page_and_chart_of_the_same_figures(found):
    one = found["projection"]
    bundle = one._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/html"] == one._repr_html_()
    step, stages = (chart["data"]["values"] for chart in bundle[results.VEGA_LITE]["vconcat"])
    assert sum(row["value"] for row in step) == pytest.approx(one.step_time_s)
    assert {row["bar"] for row in stages} == {"0", "1"}
    json.dumps(bundle, allow_nan=False)
    assert set(found["explanation"]._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_headlines_state_the_numbers(found):
    one, timeline, node = found["projection"], found["timeline"], found["explanation"]
    assert node.headline.startswith(f"step_time = {format_seconds(one.step_time_s)}: ")
    assert format_bytes(timeline.peak.allocated_bytes) in timeline.headline
    memory = one.memory
    sizes = f"{memory.peak_bytes / 2**30:.2f} of {memory.capacity_bytes / 2**30:.2f} GiB"
    assert f"small-dense on 8 × {one.cluster.name}" in timeline.headline
    assert f"{memory.verdict}, {sizes}" in timeline.headline
    assert (
        f"weights {timeline.projection.memory.stages[0].parts['weights']:.2f}, gradients" in timeline.headline
    )
    compared = found["comparison"]
    assert f"a: {format_seconds(compared.step_time.a)} per step" in compared.headline
    assert f"{compared.step_time.ratio - 1.0:+.1%}" in compared.headline
    assert found["front"].headline.startswith(f"Pareto front of {len(found['front'].front)} layout")
    for result in found.values():
        assert str(result).splitlines() == [result.headline, *result.details]
        assert result.headline != repr(result) and "\n" not in result.headline


def test_print_shows_parts_and_what_was_assumed():
    asked = {"devices": 8, "seq_len": 4096, "global_batch_size": 512, "zero": 2, "micro_batch_size": 16}
    one = fs.project("qwen2.5-1.5b", "a100-sxm-80gb", framework="megatron-bridge", **asked)
    step, memory, *notes = one.details
    assert all(f"{part} {format_seconds(seconds)}" in step for part, seconds in one.time_s.items() if seconds)
    assert memory == f"memory: {one.memory}"
    (assumed,) = [note for note in one.notes if "recompute" in note.text and "assumed" in note.text]
    assert f"note ({assumed.topic}): {assumed.text}" in notes
    few = fs.project("qwen2.5-1.5b", "a100-sxm-80gb", framework="megatron-bridge", detail=False, **asked)
    assert few.details == tuple(notes) and few.notes == one.notes
    assert list(few.to_dict()) == list(few.rows()[0]) and "notes" not in few.to_dict()


def test_print_shows_failures_money_and_energy_of_a_run():
    asked = {"devices": 16384, "seq_len": 4096, "global_batch_size": 15360, "pp": 16, "ep": 64}
    result = fs.run(
        "deepseek-v3", "h100-sxm", framework="megatron-bridge", tokens="14.8T", price=2.0, **asked
    )
    one = result.phases[0].projection
    assert one.memory.verdict != "OOM", "recompute is assumed as for one layout"
    phase, failures, money, energy, *_ = result.details
    assert phase == f"phase 1: {one.headline}"
    assert failures.startswith(
        f"{sum(result.interruptions.values()):,.0f} unexpected interruptions, one every "
    )
    assert format_span(result.interval_s) in failures
    assert money == f"money: {result.money.expected:,.0f}" and f"{result.node_mwh:,.0f} MWh" in energy


def test_a_schedule_is_a_result():
    step = pipeline("interleaved", pp=2, microbatches=4, vpp=2)
    frame = step.to_frame()
    assert list(frame["rank"]) == [0, 1] and frame["busy"].tolist() == pytest.approx([12.0, 12.0])
    assert frame["idle_share"].mean() == pytest.approx(step.bubble_rate_makespan)
    (chart,) = step.pictures()
    assert sum(span.end - span.start for span in chart.spans) == pytest.approx(24.0)
    assert {span.part for span in chart.spans} == {
        f"{name}{chunk}" for name in ("forward", "backward") for chunk in ("", ", later chunks")
    }
    assert vl_convert.vegalite_to_vega(step.to_vega_lite())["marks"]
    page = ET.fromstring(f"<p>{step._repr_html_()}</p>")
    assert page.find(".//strong").text == step.headline
    assert step.to_dict()["makespan"] == step.makespan


def test_a_front_is_drawn_as_points(found):
    (chart,) = found["front"].pictures()
    rows = found["front"].rows()
    assert [(dot.x * 2**30, dot.y) for dot in chart.lines[-1].dots] == [
        (row["peak_bytes"], row["step_time_s"]) for row in rows
    ]


def test_a_notebook_shows_a_headline_and_at_most_twelve_columns(found):
    for result in found.values():
        page = ET.fromstring(f"<p>{result._repr_html_()}</p>")
        assert page.find(".//strong").text == result.headline
        assert 0 < len(page.findall(".//th")) <= results.MOST_COLUMNS
    assert found["projection"].headline.startswith("small-dense on 8 × ")


def test_a_plot_is_written_to_files(found, tmp_path):
    found["projection"].plot().save(tmp_path / "step.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1.json", "step-2.json"]
    assert set(found["projection"].plot()._repr_mimebundle_()) == {
        "text/plain",
        "text/html",
        results.VEGA_LITE,
    }
    with raises(SpecError, "empty the list of pictures of TermNode"):
        found["explanation"].plot()


def test_a_table_shows_what_differs_and_counts_what_it_leaves_out(found):
    page = found["search"]._repr_html_()
    assert ">rank</th>" in page
    assert ">cp</th>" not in page  # the same in every row
    many = type(
        "Many", (results.Result,), {"headline": "50 rows", "rows": lambda _: [{"a": n} for n in range(50)]}
    )()
    assert "… 30 more" in many._repr_html_()


def test_a_frame_without_a_library_names_the_extra(found, monkeypatch):
    monkeypatch.setattr(results, "find_spec", lambda _: None)
    with raises(SpecError, "extra_missing a data frame"):
        found["projection"].to_frame()


@pytest.mark.parametrize(
    ("name", "wanted", "local"),
    [
        ("search", "to_dataframe", "to_frame()"),
        ("search", "layouts", "best"),
        ("projection", "peak_memory", "memory.peak_bytes"),
        ("projection", "throughput", "tokens_per_s_per_device"),
        ("comparison", "to_pandas", "to_frame()"),
    ],
)
def test_attributes_of_other_libraries_name_ours(found, name, wanted, local):
    with pytest.raises(AttributeError) as raised:
        getattr(found[name], wanted)
    assert str(raised.value).endswith(f"has no attribute {wanted!r}; did you mean {local}?")
    with pytest.raises(AttributeError) as raised:
        _ = found[name].zzz
    assert "has no attribute 'zzz'; it has " in str(raised.value)
    assert "to_frame" in str(raised.value)


def test_figures_of_other_libraries_name_ours(found):
    result = found["projection"]
    for value, name, ours in (
        (result, "peak_memory", "memory.peak_bytes"),
        (result, "daily_tokens", "tokens_per_day"),
        (result.memory, "peak_gb", "peak_bytes"),
    ):
        with pytest.raises(AttributeError, match=f"did you mean {ours}"):
            getattr(value, name)
    day = result.tokens_per_s_per_device * result.cluster.num_devices * 86400.0
    assert result.tokens_per_day == pytest.approx(day)
