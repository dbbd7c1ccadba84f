from __future__ import annotations

import json

import pytest

CASE = ("llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "16", "--seq-len", "4096", "--global-batch-size", "64")  # fmt: skip


def test_three_steps_and_the_verdict_of_the_search(forescale):
    ran = forescale("advise", *CASE)
    assert ran.code == 0, ran.err
    for text in ("1. Fit.", "2. Batch.", "3. Throughput.", "advice  ", "the exact search"):
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 40


def test_document(forescale):
    ran = forescale("advise", *CASE, "--no-exact", "--json")
    body = json.loads(ran.out)
    assert body["schema"] == "forescale.advice/1"
    assert [step["name"] for step in body["steps"]] == ["fit", "batch", "throughput"]
    assert body["best"] is None
    assert body["advised"]["schema"] == "forescale.projection/1"


def test_bad_memory_is_one_sentence(forescale):
    ran = forescale("advise", *CASE, "--max-memory", "-3GiB")
    assert ran.code == 2
    assert "out_of_range --max-memory" in ran.refused
    assert len(ran.err.strip().splitlines()) == 1


def test_limits_of_a_plan_hold_until_a_flag_says_otherwise(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('max_memory = "40 GiB"\nobjective = "peak_memory"\n')
    local, over = (
        json.loads(forescale("advise", *CASE, "--plan", plan, *flags, "--json").out)
        for flags in ((), ("--max-memory", "60GiB"))
    )
    for body, limit in ((local, 40 * 2**30), (over, 60 * 2**30)):
        facts = {fact["name"]: fact["value"] for fact in body["steps"][0]["facts"]}
        assert facts["memory of a device"] == limit
        assert body["advised"]["memory"]["peak_bytes"] <= limit
        assert body["best"]["memory"]["peak_bytes"] <= limit
        assert body["best"]["step_time_s"] <= body["advised"]["step_time_s"]


def test_what_is_not_searched_counts_in_every_step(forescale):
    """The framework's kernels and words of the layout hold in what is tried as in what the search finds."""
    names = ("--framework", "torchtitan", "--set", "strategy.overlap.grad_reduce=false")
    body = json.loads(forescale("advise", *CASE, *names, "--json").out)
    for layout in (body["advised"]["strategy"], body["best"]["strategy"]):
        assert layout["kernels"]["cross_entropy"] != "vocab_parallel"
        assert layout["overlap"]["grad_reduce"] is False
    usual = json.loads(forescale("advise", *CASE, "--json").out)
    assert body["advised"]["step_time_s"] != usual["advised"]["step_time_s"]


@pytest.mark.parametrize("command", ["advise", "fit"])
def test_no_more_memory_is_asked_for_than_a_device_has(forescale, command):
    ran = forescale(command, *CASE, "--max-memory", "200GiB")
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error.code, ran.error.key, ran.error.value) == ("out_of_range", "--max-memory", "200GiB")
    assert ran.error.allowed == "at most the 79.65 GiB of h100-sxm"


def test_presets_are_refused(forescale):
    ran = forescale("advise", *CASE, "--preset", "playbook")
    assert ran.code == 2
    assert (ran.error.code, ran.error.key, ran.error.value) == ("unsupported_by", "advise", "preset playbook")


def test_the_process_and_the_search_share_the_cost_models(forescale):
    usual, slow = (
        json.loads(forescale("advise", *CASE, *options, "--json").out)
        for options in ((), ("--compute", "tile", "--device-clock-mhz", "1000"))
    )
    for part in (slow["advised"], slow["best"]):
        assert part["costs"]["compute"] == "tile"
        assert part["costs"]["device_clock_hz"] == 1e9
    assert slow["advised"]["step_time_s"] > 1.2 * usual["advised"]["step_time_s"]
    assert slow["excess"] >= 0.0
