from __future__ import annotations

from dataclasses import fields, replace

import pytest
from tests import small

from forescale.advise import advise
from forescale.advise.advice import Case
from forescale.advise.decide import reliefs
from forescale.errors import InfeasibleError
from forescale.question import question_of
from forescale.search import search
from forescale.spec import Layout, Recompute, Workload
from forescale.spec.cluster import SiteLink
from forescale.spec.workload import Outer

WORKLOAD = Workload(seq_len=4096, global_batch_size=64)


def steps_of(advice):
    return {step.name: step for step in advice.steps}


def taken(step):
    return [trial for trial in step.trials if trial.taken]


def test_data_parallelism_comes_first_where_memory_is_no_concern():
    advice = advise(small.dense(), small.cluster(8), WORKLOAD)
    assert len(advice.rows()) == sum(len(step.trials) for step in advice.steps)
    assert {"step", "move", "tp", "zero", "step_time_s", "taken"} <= advice.rows()[0].keys()
    assert "taken" in advice._repr_html_()
    fit = steps_of(advice)["fit"]
    assert len(fit.trials) == 1
    assert taken(fit)[0].strategy.dp == 8
    assert (fit.trials[0].strategy.zero, fit.trials[0].strategy.tp) == (0, 1)


def test_what_sites_exchange_is_the_last_step():
    work = replace(WORKLOAD, outer=Outer(every=4))
    apart = small.cluster(16).over_sites(SiteLink(count=2, bandwidth=1e8), 16)
    advice = advise(small.dense(), apart, work, exact=False)
    step = steps_of(advice)["sites"]
    best = step.trials[0]
    assert best.move == "bits 4"
    assert "bits 4" in step.finding
    narrow = advise(small.dense(), apart, replace(work, outer=Outer(every=4, bits=4.0)), exact=False)
    assert best.step_time_s == narrow.advised.step_time_s
    wide = small.cluster(16).over_sites(SiteLink(count=2, bandwidth=1e15), 16)
    assert steps_of(advise(small.dense(), wide, work, exact=False))["sites"].finding == "they hardly wait"


def test_less_memory_goes_further_down_the_tree():
    reached = []
    for gigabytes in (80.0, 5.0, 3.5):
        advice = advise(small.dense(), small.cluster(16, hbm_gb=gigabytes), WORKLOAD, exact=False)
        fit = steps_of(advice)["fit"]
        reached.append(len(fit.trials))
        assert all(not trial.fits for trial in fit.trials[:-1] if trial.problem is None)
        assert taken(fit)[0].peak_bytes <= gigabytes * 1e9
    assert reached == sorted(reached)
    assert len(set(reached)) == 3


def test_long_sequences_ask_for_context_parallelism_before_stages():
    limit = 6e9
    for seq_len, axis in ((131072, "cp"), (512, "pp")):
        workload = Workload(seq_len=seq_len, global_batch_size=64)
        advice = advise(small.dense(32), small.cluster(64), workload, exact=False, max_memory=limit)
        beyond = [
            trial.strategy
            for trial in steps_of(advice)["fit"].trials
            if max(trial.strategy.cp, trial.strategy.pp) > 1
        ]
        if beyond:
            assert getattr(beyond[0], axis) == 2
        else:
            assert axis == "pp"


def test_batch_step_makes_up_the_global_batch():
    advice = advise(small.dense(), small.cluster(8), WORKLOAD, exact=False)
    batch = steps_of(advice)["batch"]
    facts = {fact.name: fact.value for fact in batch.facts}
    size = taken(batch)[0].strategy.micro_batch_size
    assert facts["replicas"] * size * facts["gradient accumulation steps"] == 64
    assert facts["tokens per step"] == 64 * 4096
    fitting = [trial.step_time_s for trial in batch.trials if trial.fits]
    assert taken(batch)[0].step_time_s == min(fitting)


def test_every_move_made_shortens_the_step_and_fits():
    cluster = small.cluster(16, hbm_gb=8.0)
    advice = advise(small.moe(), cluster, WORKLOAD, exact=False)
    steps = steps_of(advice)
    times = [trial.step_time_s for trial in (*taken(steps["batch"]), *taken(steps["throughput"]))]
    assert times == sorted(times, reverse=True)
    assert all(trial.fits for trial in taken(steps["throughput"]))
    assert advice.advised.step_time_s == times[-1]
    rejected = [trial.step_time_s for trial in steps["throughput"].trials if trial.fits and not trial.taken]
    assert min(rejected) > times[-1] * (1.0 - 2e-3)


def test_exact_search_is_never_slower_than_the_advice():
    advice = advise(small.dense(), small.cluster(16, hbm_gb=8.0), WORKLOAD)
    best = search(small.dense(), small.cluster(16, hbm_gb=8.0), WORKLOAD, top=1).best[0]
    assert advice.best.step_time_s == best.step_time_s
    assert advice.excess == pytest.approx(advice.advised.step_time_s / best.step_time_s - 1.0)
    assert advice.excess >= 0.0
    assert advice.agrees == (advice.excess <= 0.01)


def test_what_cannot_fit_is_said_with_its_states():
    with pytest.raises(InfeasibleError, match=r"nothing that the process tries fits .* per device"):
        advise(small.dense(), small.cluster(8), WORKLOAD, max_memory=1e8)


def test_the_playbooks_own_example():
    """1024 sequences of 4k tokens, micro-batch 2: 4 accumulation steps on 128 devices, 1 on 512."""
    for devices, accumulation in ((128, 4), (512, 1)):
        assert 1024 // (devices * 2) == accumulation
        workload = Workload(seq_len=4096, global_batch_size=1024)
        advice = advise(small.dense(), small.cluster(devices), workload, exact=False)
        trial = next(
            trial for trial in steps_of(advice)["batch"].trials if trial.strategy.micro_batch_size == 2
        )
        assert trial.strategy.dp == devices
        assert trial.problem is None


def test_a_batch_that_no_layout_divides_is_said():
    with pytest.raises(InfeasibleError, match=r"is legal; the first, data parallel.*global_batch_size 64"):
        advise(small.dense(), small.cluster(7), WORKLOAD)


def test_recompute_that_a_move_drops_does_not_come_back_in_the_same_move():
    case = Case(question=question_of(small.dense(), small.cluster(8), WORKLOAD, max_memory=1e9))
    plain = Layout(dp_shard=8)
    full = replace(plain, recompute=Recompute(granularity="full"))
    assert [what for what, _ in reliefs(case, plain, before=full)] == ["zero 2"]
    assert any("recompute" in what for what, _ in reliefs(case, plain, before=plain))


def test_changes_are_counted_one_by_one():
    cluster = small.cluster(16, hbm_gb=8.0)
    steps = steps_of(advise(small.moe(), cluster, WORKLOAD, exact=False))
    before, after = taken(steps["batch"])[0].strategy, taken(steps["throughput"])[-1].strategy
    made = [
        item.name
        for item in fields(Layout)
        if not item.name.startswith("dp_") and getattr(before, item.name) != getattr(after, item.name)
    ]
    assert steps["throughput"].finding.startswith(f"{len(made)} change")


def test_a_layout_that_may_run_out_of_memory_is_marked_and_safe_avoids_it():
    question = question_of(small.dense(), small.cluster(8), WORKLOAD)
    risky, limit = advise(question, exact=False), question.memory_limit
    while risky.verdict == "FITS":  # until nothing smaller is as fast
        limit = 1.001 * risky.advised.memory.peak_bytes
        risky = advise(replace(question, max_memory=limit), exact=False)
    assert risky.advised.memory.peak_bytes <= limit < risky.advised.memory.peak_high_bytes
    assert risky.to_json()["verdict"] == risky.verdict == "AT RISK"
    assert "AT RISK" in {trial.verdict for step in risky.steps for trial in step.trials if trial.taken}
    safe = advise(replace(question, max_memory=limit, safe=True), exact=False)
    assert safe.advised.memory.peak_high_bytes <= limit
    assert safe.verdict == "FITS"
