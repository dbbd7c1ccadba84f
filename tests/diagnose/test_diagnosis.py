"""Faults with known causes: the groups of a changed question as the measurement, and what is named for them."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace
from tests.errors import raises

import forescale as fs
from forescale.cost.timings import ProfiledOperator
from forescale.diagnose import CAUSES, Measured, diagnose, expected_groups
from forescale.diagnose.diagnosis import Case
from forescale.diagnose.work import Work
from forescale.errors import SpecError
from forescale.profiles import TraceSummary
from forescale.project import project


@cache
def dense():
    return fs.ask("llama-3.1-8b", "h100-sxm", devices=64, seq_len=4096, global_batch_size=256, zero=3, tp=2)


@cache
def experts():
    return fs.ask("mixtral-8x7b", "h100-sxm", devices=64, seq_len=4096, global_batch_size=256, ep=8, tp=2)


def trace(groups: dict[str, float], path: str = "rank0.json") -> TraceSummary:
    """Return a trace in which work of each group takes what it takes, without any side by side."""
    parts = {"attention": groups["attention"], "gemm": groups["gemm"], "elementwise": groups["other_compute"]}
    parts |= {"optimizer": groups["optimizer"], "all_gather": groups["communication"]}
    computing = sum(parts.values()) - groups["communication"]
    idle = groups["waiting"] + groups["data"]
    return TraceSummary(
        path=path,
        steps=1,
        step_s=sum(groups.values()),
        on_device=True,
        computing_s=computing,
        busy_s=computing + groups["communication"],
        idle_s=idle,
        parts_s=parts,
        exposed_s={"all_gather": groups["communication"]},
        data_s=groups["data"],
        launches=1000,
        kernels=(),
    )


def measured(*groups: dict[str, float]) -> Measured:
    traces = tuple(trace(one, f"rank{n}.json") for n, one in enumerate(groups))
    return Measured(step_s=max(one.step_s for one in traces), traces=traces)


NOTHING = Work(operators={}, messages={}, transfers={}, flops={}, attention={})


@cache
def narrow():
    """In fp8 with full recompute, communication of tensor parallelism hidden and an even micro-batch."""
    words = {
        "precision": "fp8",
        "recompute": {"granularity": "full"},
        "overlap": {"tensor": True},
        "micro_batch_size": 2,
    }
    return fs.ask(
        "llama-3.1-70b", "h100-sxm", devices=64, seq_len=4096, global_batch_size=256, zero=2, tp=8, **words
    )


@cache
def small():
    """Bound by the host."""
    return fs.ask("llama-3.2-1b", "h100-sxm", devices=1, seq_len=512, global_batch_size=8)


def at_work(cause, grade):
    """Return the first question that a cause changes, with what it makes of the step."""
    for question in (dense(), experts(), narrow(), small()):
        changed = cause.change(question, grade)
        if changed is not None:
            groups = expected_groups(changed, project(changed))
            expected = expected_groups(question, project(question))
            if Case(question, project, expected, groups, sum(groups.values()), NOTHING).differs:
                return question, groups
    raise AssertionError(f"{cause.name} changes none of the questions")


@pytest.mark.parametrize("grade", [1.5, 3.0])
@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_every_cause_is_found_where_it_is_at_work(cause, grade):
    question, groups = at_work(cause, grade)
    result = diagnose(question, measured(groups), project)
    assert result.explanations[0].explained == pytest.approx(1.0)
    assert cause.name in [one.name for one in result.explanations if one.explained > 0.999]


def test_nothing_is_named_for_the_expected_step():
    groups = expected_groups(dense(), project(dense()))
    result = diagnose(dense(), measured({name: 1.01 * value for name, value in groups.items()}), project)
    assert (result.verdict, result.explanations) == ("as expected", ())


@pytest.mark.parametrize(("group", "name"), [("data", "data_loading"), ("waiting", "host_bound")])
def test_what_a_trace_shows_directly(group, name):
    groups = expected_groups(dense(), project(dense()))
    result = diagnose(dense(), measured({**groups, group: groups[group] + 1.0}), project)
    assert result.explanations[0].name == name
    assert result.explanations[0].seconds == pytest.approx(1.0)


def test_a_rank_that_others_wait_for():
    groups = expected_groups(dense(), project(dense()))
    slow = {**groups, "gemm": groups["gemm"] + 2.0}
    waits = {**groups, "communication": groups["communication"] + 2.0}
    result = diagnose(dense(), measured(waits, slow, waits, waits), project)
    assert result.explanations[0].name == "slow_rank"
    assert result.explanations[0].text.startswith("rank1.json ")


def test_a_printed_rate_over_the_wrong_peak():
    one = project(dense())
    seconds = one.step_time_s
    result = diagnose(dense(), Measured(step_s=seconds, mfu=one.mfu / 2), project)
    assert next(item.name for item in result.conventions if "sparse" in item.name) == "causal:sparse"
    assert not any(item.usual for item in result.conventions)


def test_a_trace_of_the_host_alone_is_said():
    groups = expected_groups(dense(), project(dense()))
    on_host = replace(trace(groups), on_device=False, truncated=True)
    result = diagnose(dense(), Measured(step_s=on_host.step_s, traces=(on_host,)), project)
    assert len(result.remarks) == 2
    assert "host alone" in result.remarks[0]


def test_a_step_beyond_the_peak_rate_is_another_run():
    one = project(dense())
    result = diagnose(dense(), Measured(step_s=one.step_time_s * one.mfu / 2.0), project)
    assert any("MFU would be 200%" in text for text in result.remarks)
    assert diagnose(dense(), Measured(step_s=one.step_time_s), project).remarks == ()


def test_a_step_is_needed():
    with raises(SpecError, "missing the time of a step"):
        diagnose(dense(), replace(Measured(), peak_bytes=1e9), project)


def test_a_picture_shades_what_differs():
    groups = expected_groups(dense(), project(dense()))
    more = {**groups, "attention": groups["attention"] + 1.0, "waiting": groups["waiting"] / 2}
    (chart,) = diagnose(dense(), measured(more), project).pictures()
    one, other = chart.bars
    assert one.values["attention, difference"] == pytest.approx(1.0)
    assert one.values["waiting, difference"] == 0.0
    assert other.values["waiting, difference"] == pytest.approx(groups["waiting"] / 2)
    assert (one.total, other.total) == pytest.approx((sum(more.values()), sum(groups.values())))
    assert chart.parts[:2] == ("attention", "attention, difference")
    colours = dict(zip(*chart.spec()["layer"][0]["encoding"]["color"]["scale"].values(), strict=True))
    assert colours["attention, difference"].startswith(colours["attention"])


def test_a_rank_with_one_slow_kernel_is_listed_as_no_cause():
    groups = expected_groups(dense(), project(dense()))
    even = trace({**groups, "waiting": groups["waiting"] + 0.2 * sum(groups.values())})
    computing = even.computing_s

    def with_kernels(other: float, path: str) -> TraceSummary:
        rows = [("gemm", 0.8 * computing), ("gelu", other)]
        kernels = [ProfiledOperator(name=name, part="gemm", calls=1.0, seconds=took) for name, took in rows]
        return replace(even, path=path, computing_s=0.8 * computing + other, kernels=tuple(kernels))

    ranks = (with_kernels(0.2 * computing, "rank0.json"), with_kernels(0.5 * computing, "rank1.json"))
    result = diagnose(dense(), Measured(step_s=even.step_s, traces=ranks), project)
    (listed,) = result.inside_scatter
    assert (listed.name, listed.seconds) == ("slow_rank", pytest.approx(0.3 * computing))
    assert "slow_rank" not in {item.name for item in result.explanations}
    assert result.to_json()["inside_scatter"][0]["name"] == "slow_rank"


def test_traces_that_say_little_are_named():
    groups = expected_groups(dense(), project(dense()))
    one = replace(trace(groups), launches=8, samples={"step": (0.1, 0.3)})
    remarks = diagnose(dense(), Measured(step_s=one.step_s, traces=(one,)), project).remarks
    assert [text.partition(": ")[2] for text in remarks] == [
        "the marked steps take 0.1 to 0.3 s and are not alike: record steps after the warm-up",
        "a step has 8 kernels, too few to tell causes apart",
    ]


@pytest.mark.parametrize(("cluster", "tool"), [("mi300x", "rocm-smi"), ("h100-sxm", "nvidia-smi")])
def test_remedies_name_the_tools_of_the_vendor(cluster, tool):
    question = fs.ask(
        "llama-3.1-8b", cluster, devices=8, global_batch_size=64, zero=3, framework="torchtitan"
    )
    step = project(question).step_time_s
    remedies = " ".join(
        item.remedy for item in diagnose(question, Measured(step_s=1.7 * step), project).explanations
    )
    assert tool in remedies
    assert ("nvidia-smi" in remedies) == (tool == "nvidia-smi")
    assert "NVLink" not in remedies or tool == "nvidia-smi"
