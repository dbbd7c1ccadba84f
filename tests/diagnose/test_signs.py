"""Profiles in which one thing differs from the expected work, and the cause that is named for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from forescale.cost.timings import ProfiledOperator
from forescale.diagnose.signs import Comparison, signs_of
from forescale.diagnose.work import Work, measured_work, work_of_rows
from forescale.files import packaged
from forescale.profiles import TraceSummary, part_of, profile_rows
from forescale.profiles.shapes import Shapes

STEP_S = 0.1
OPERATORS = {
    "aten::mm": (60, 0.04),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (8, 0.01),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (8, 0.01),
    "aten::mul": (90, 0.01),
    "aten::add": (40, 0.005),
    "aten::copy_": (20, 0.002),
    "aten::_log_softmax": (4, 0.003),
    "optimizer: aten::_fused_adamw_": (1, 0.004),
}
"""Calls and seconds."""
COMMUNICATION_S = 0.01


def trace(
    operators=OPERATORS, *, shapes: dict | None = None, messages=(COMMUNICATION_S,), **more
) -> TraceSummary:
    kernels = [
        ProfiledOperator(name=name, part=part_of(name)[0], calls=calls, seconds=seconds)
        for name, (calls, seconds) in operators.items()
    ]
    kernels.append(
        ProfiledOperator(
            name="gloo:all_reduce", part="all_reduce", calls=len(messages), seconds=sum(messages)
        )
    )
    plain = {
        "flops": {"fp32": 1e9},
        "attention": {"forward": 8.0, "backward": 8.0},
        "sequences": {(2, 128): 8.0},
        "messages": {("all_reduce", 4e6): 1.0},
    }
    computing = sum(seconds for _, seconds in operators.values())
    values = {
        "path": "rank0.json", "steps": 1, "step_s": STEP_S, "on_device": False, "computing_s": computing,
        "busy_s": computing + sum(messages), "idle_s": 0.006, "parts_s": {}, "exposed_s": {}, "data_s": 0.0,
        "launches": 300, "kernels": tuple(kernels), "updates": 1.0, "messages_s": {"all_reduce": tuple(messages)},
        "shapes": Shapes(**{**plain, **(shapes or {})}),
    }  # fmt: skip
    values |= more
    expected = sum(seconds for _, seconds in OPERATORS.values()) + COMMUNICATION_S + 0.006
    values["step_s"] = STEP_S + values["busy_s"] + values["idle_s"] - expected
    return TraceSummary(**values)


def changed(factor: float = 1.0, seconds: float = 1.0, pattern: str = "", **more: tuple[int, float]):
    """Return the operators, those of a pattern with calls and seconds multiplied, and others besides."""
    result = {
        name: (calls * factor, took * seconds) if pattern in name else (calls, took)
        for name, (calls, took) in OPERATORS.items()
    }
    return {**result, **{f"aten::{name}": value for name, value in more.items()}}


def signs(*traces: TraceSummary, **more: object) -> list:
    expected = work_of_rows(profile_rows(trace()))
    return signs_of(
        Comparison(expected, measured_work(traces), traces, step_s=STEP_S, tokens=(2, 128), **more)
    )


RECOMPUTED = changed(4 / 3, 4 / 3, "aten::mm") | {
    "aten::_scaled_dot_product_flash_attention_for_cpu": (16, 0.02)
}
UNFUSED = {
    name: value for name, value in changed().items() if "attention" not in name
} | {"aten::bmm": (48, 0.03), "aten::_softmax": (8, 0.02)}  # fmt: skip
CASES = {
    "data_loading": [trace(data_s=0.02, idle_s=0.026)],
    "host_gaps": [trace(pauses=4, pauses_s=0.02, idle_s=0.026)],
    "host_bound": [trace(idle_s=0.03)],
    "more_micro_batches": [
        trace({name: (1.5 * calls, 1.5 * took) for name, (calls, took) in OPERATORS.items()}, shapes={"flops": {"fp32": 1.5e9}})
    ],
    "small_micro_batches": [
        trace({name: (2 * calls, 1.1 * took) for name, (calls, took) in OPERATORS.items()}, shapes={"sequences": {(1, 128): 16.0}})
    ],
    "padding": [trace(changed(1, 1.3), shapes={"sequences": {(2, 160): 8.0}, "flops": {"fp32": 1.25e9}})],
    "large_micro_batches": [trace(changed(1, 1.5), shapes={"sequences": {(3, 128): 8.0}, "flops": {"fp32": 1.5e9}})],
    "unfused_attention": [trace(UNFUSED, shapes={"attention": {}, "sequences": {}})],
    "recompute": [trace(RECOMPUTED, shapes={"attention": {"forward": 16.0, "backward": 8.0}, "flops": {"fp32": 1.33e9}})],
    "fp64_products": [trace(changed(1, 1.5, "aten::mm"), shapes={"flops": {"fp32": 0.5e9, "fp64": 0.5e9}})],
    "uneven_load": [trace(), trace(changed(1, 1.2), shapes={"flops": {"fp32": 1.2e9}})],
    "slow_rank": [trace(), trace(changed(1, 1.2), path="rank1.json")],
    "reduce_per_micro_batch": [trace(messages=(0.01,) * 3, shapes={"messages": {("all_reduce", 4e6): 3.0}})],
    "extra_messages": [trace(messages=(0.01, 0.02), shapes={"messages": {("all_reduce", 4e6): 1.0, ("all_reduce", 9e6): 1.0}})],
    "small_buckets": [trace(messages=(0.002,) * 10, shapes={"messages": {("all_reduce", 4e5): 10.0}})],
    "slow_links": [trace(messages=(0.02,)), trace(messages=(0.03,))],
    "repeated_update": [trace(changed(3, 3, "optimizer"), updates=3.0)],
    "unfused_optimizer": [trace(changed(80, 3, "optimizer"))],
    "statistics": [trace(changed(linalg_vector_norm=(80, 0.004), item=(80, 0.002)))],
    "dropout": [trace(changed(bernoulli_=(16, 0.006), empty=(16, 0.001)))],
    "casts": [trace(changed(3, 3, "copy_", _to_copy=(40, 0.001)))],
    "host_copies": [trace(changed(4, 4, "copy_"))],
    "unfused_kernels": [trace(changed(2, 2, "mul"))],
    "extra_products": [trace(changed(1.5, 1.5, "mm"), shapes={"flops": {"fp32": 1.5e9}})],
    "slow_memory": [trace(changed(1, 1.5, "mul") | changed(1, 1.5, "add") | {"aten::mul": (90, 0.02)})],
    "slow_clock": [trace(changed(1, 1.2)), trace(changed(1, 1.2))],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_difference_is_named(name):
    result = signs(*CASES[name])
    assert result[0].name == name
    assert result[0].seconds > 0.03 * STEP_S


def test_the_expected_work_has_no_sign():
    assert signs(trace(), trace(changed(1, 1.03))) == []


def test_a_step_as_short_as_expected_has_no_sign():
    slow = trace(changed(1, 1.2), path="rank1.json", idle_s=0.0)
    assert signs(trace(messages=(0.001,), idle_s=0.0), slow) == []


def test_work_of_unknown_operators_takes_the_share_that_exceeds_the_expected():
    known = Work(operators={}, messages={}, transfers={}, flops={"fp32": 1e9}, attention={"forward": 8.0})
    padded = trace(shapes={"sequences": {(2, 160): 8.0}}, idle_s=0.02)
    case = Comparison(known, measured_work([padded]), [padded], step_s=STEP_S, tokens=(2, 128))
    assert signs_of(case)[0].name == "padding"
    assert signs_of(case)[0].seconds == pytest.approx(padded.computing_s * (1.0 - 128 / 160))


def test_the_share_of_attention_that_is_not_fused():
    half = {**UNFUSED, **{name: value for name, value in OPERATORS.items() if "attention" in name}}
    (sign,) = signs(trace(half, shapes={"attention": {"forward": 2.0, "backward": 2.0}}))
    assert (sign.name, "75" in sign.text) == ("unfused_attention", True)


def test_experts_and_missing_recompute():
    uneven = signs(*CASES["uneven_load"], routed=True)
    assert [sign.name for sign in uneven] == ["expert_imbalance"]
    assert [sign.name for sign in signs(trace(changed(1, 0.7)), recomputes=True)] == ["no_recompute"]


def test_a_rank_that_waits_does_not_slow_the_links():
    assert signs(trace(messages=(0.05,)), trace(messages=(COMMUNICATION_S,))) == []


def test_every_cause_has_a_text_and_a_remedy():
    texts = {
        name: row
        for name, row in packaged("causes").items()
        if name not in ("source", "projected", "vendors")
    }
    assert all(len(row) == 2 for row in texts.values())
    assert set(CASES) - {"fp64_products"} <= set(texts)


def test_profile_rows_keep_what_is_known():
    one = trace(pauses=2, pauses_s=0.002)
    work = work_of_rows(profile_rows(one), 2.0)
    assert work.operators["aten::mm"] == (120, 0.08)
    assert work.operators["optimizer: aten::_fused_adamw_"] == (1, 0.004)
    assert work.transfers == {"all_reduce": (1, COMMUNICATION_S)}
    assert work.messages == {("all_reduce", 4e6): 1.0}
    assert work.waiting_s == pytest.approx({"pauses": 0.004, "gaps": 0.008})
    assert (work.flops, work.attention) == ({"fp32": 2e9}, {"forward": 16.0, "backward": 16.0})
    assert replace(one, shapes=Shapes()).shapes.flops == {}


STEPS = (0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2)
"""How eight steps of the same work scatter."""


def scattered(*traces: TraceSummary, expected=STEPS, measured=STEPS, **more: object) -> list:
    """Return the signs of traces of which every time scatters over steps; so do two ranks of the expected work."""
    known = [steps(trace(), expected), steps(trace(), expected)]
    work = work_of_rows(profile_rows(known[0], [one.samples for one in known]))
    ranks = [steps(one, measured) for one in traces]
    return signs_of(Comparison(work, measured_work(ranks), ranks, step_s=STEP_S, tokens=(2, 128), **more))


def steps(one: TraceSummary, factors=STEPS) -> TraceSummary:
    kernels = tuple(
        replace(row, samples=tuple(row.seconds * factor for factor in factors)) for row in one.kernels
    )
    figures = {
        "step": one.step_s, "computing": one.computing_s, "pauses": one.pauses_s, "gaps": one.idle_s - one.pauses_s,
    }  # fmt: skip
    samples = {name: tuple(seconds * factor for factor in factors) for name, seconds in figures.items()}
    messages = tuple(seconds * factor for factor in factors for seconds in one.messages_s["all_reduce"])
    return replace(
        one, steps=len(factors), kernels=kernels, samples=samples, messages_s={"all_reduce": messages}
    )


def test_scatter_between_steps_is_no_cause():
    waits = {"idle_s": 0.026, "pauses_s": 0.02, "pauses": 3}
    assert [sign.name for sign in scattered(trace(**waits)) if sign.beyond] == ["host_gaps"]
    assert signs(trace(**waits))[0].beyond
    disturbed = (0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 4.0)
    (longer,) = scattered(trace(**waits), expected=(1.0,) * 8, measured=(1.0, 1.1) * 2 + (1.2, 1.5) * 2)
    assert (longer.name, longer.beyond) == ("host_gaps", True)
    rare = replace(steps(trace(**waits)), samples={"pauses": tuple(0.02 * one for one in disturbed)})
    work = work_of_rows(profile_rows(rare, [rare.samples]))
    case = Comparison(work, measured_work([rare]), [steps(trace(**waits))], step_s=STEP_S, tokens=(2, 128))
    assert not any(sign.beyond for sign in signs_of(case) if sign.name == "host_gaps")


def test_ranks_that_are_expected_to_differ_are_not_slow():
    slow = trace(changed(1, 1.2), path="rank1.json")
    (sign,) = scattered(trace(), slow)
    assert (sign.name, sign.beyond) == ("slow_rank", True)
    assert sign.seconds == pytest.approx(0.2 * 0.95 * trace().computing_s)
    known = [steps(trace()), steps(trace(changed(1, 1.25)))]
    work = work_of_rows(profile_rows(known[0], [one.samples for one in known]))
    ranks = [steps(trace(messages=(0.03,))), steps(replace(slow, step_s=STEP_S + 0.02))]
    case = Comparison(work, measured_work(ranks), ranks, step_s=STEP_S, tokens=(2, 128))
    assert not any(sign.name == "slow_rank" for sign in signs_of(case))


def test_a_rank_with_one_slow_kernel_is_not_slow():
    one = changed(1, 1.9, "aten::mul") | {"aten::mm": (60, 0.041), "aten::add": (40, 0.0051)}
    found = scattered(trace(), trace(one, path="rank1.json"))
    assert [(sign.name, sign.beyond) for sign in found] == [("slow_rank", False)]


def test_what_isfinite_runs_inside_is_of_it():
    finite = {"isfinite": (40, 0.002), "eq": (40, 0.004), "ne": (40, 0.004), "abs": (40, 0.001)}
    assert [sign.name for sign in signs(trace(changed(**finite)))] == ["statistics"]
    norms = {"item": (40, 0.002), "eq": (40, 0.004), "ne": (40, 0.004)}
    assert [sign.name for sign in signs(trace(changed(**norms)))] == ["unfused_kernels"]


def test_counted_work_is_named_where_the_step_is_longer_by_no_more_than_it_scatters():
    known = [steps(trace()), steps(trace(), tuple(1.3 * factor for factor in STEPS))]
    work = work_of_rows(profile_rows(known[0], [one.samples for one in known]))

    def names(one):
        case = Comparison(work, measured_work([one]), [one], step_s=STEP_S, tokens=(2, 128))
        assert case.longer_s < 0.0 < case.mean_longer_s
        return [sign.name for sign in signs_of(case)]

    assert names(trace(changed(bernoulli_=(16, 0.006), dropout=(16, 0.006)))) == ["dropout"]
    assert names(trace(data_s=0.012, idle_s=0.018)) == ["data_loading"]
    assert names(trace(pauses=4, pauses_s=0.012, idle_s=0.018)) == ["host_gaps"]
    assert names(trace(changed(1, 1.2))) == []


def test_other_work_of_a_longer_step_is_named_if_it_takes_a_fifth_of_what_other_causes_need():
    halves = {name: (2 * calls, 1.01 * took) for name, (calls, took) in OPERATORS.items()}
    shapes = {"sequences": {(1, 128): 16.0}}
    longer = signs(trace(halves, shapes=shapes, idle_s=0.01, launches=600))
    assert [sign.name for sign in longer] == ["small_micro_batches"]
    assert 0.006 * STEP_S < longer[0].seconds < 0.015 * STEP_S
    assert signs(trace(halves, shapes=shapes)) == []
    loops = signs(trace(changed(80, 1.5, "optimizer"), idle_s=0.008))
    assert [(sign.name, round(sign.seconds, 4)) for sign in loops] == [("unfused_optimizer", 0.002)]


def test_more_launches_have_more_gaps():
    statistics = trace(changed(item=(600, 0.004)), launches=900, idle_s=0.018)
    assert [sign.name for sign in signs(statistics)] == ["statistics"]
    assert [sign.name for sign in signs(trace(idle_s=0.018))] == ["host_bound"]
