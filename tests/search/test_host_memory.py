"""Memory that a search takes on this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.errors import SpecError
from forescale.question import Question
from forescale.search import Terms, host_memory, scan_devices, scope, search, solve
from forescale.search.host_memory import AtOnce, HostMemory
from forescale.search.scenarios import Ranking
from forescale.spec.space import Space
from forescale.units import MIB

WORK = workload(global_batch_size=16)
QUESTION = Question(model=moe(4), cluster=cluster(8), workload=WORK, space=Space(cp=(1,)))
MEMORY = HostMemory(num_rows=100_000, num_nodes=200_000)
KEPT = 100_000 * 600 + 200_000 * 300


def test_the_need_is_that_of_rows_nodes_and_what_is_evaluated_at_once():
    at_once = AtOnce(pairs=2048, shardings=1024)
    one = 58 * MIB + KEPT + 2048 * 1300 + 1024 * 1800
    assert MEMORY.needed(at_once) == one
    assert MEMORY.needed(at_once, 2) == 2 * one - (58 - 24) * MIB


@pytest.mark.parametrize(
    ("limit", "pairs", "shardings", "jobs"),
    [
        (float("inf"), 65536, 16384, 2),
        (590 * MIB, 65536, 16384, 2),
        (500 * MIB, 32768, 8192, 2),
        (315 * MIB, 65536, 16384, 1),
        (180 * MIB, 4096, 1024, 1),
    ],
)
def test_less_is_evaluated_at_once_and_then_in_fewer_processes_below_a_limit(limit, pairs, shardings, jobs):
    at_once, count = MEMORY.within(limit, 2)
    assert (at_once.pairs, at_once.shardings, count) == (pairs, shardings, jobs)
    assert MEMORY.needed(at_once, count) <= limit


def test_a_limit_below_the_least_is_an_error_that_names_it():
    least = MEMORY.needed(AtOnce(pairs=1024, shardings=1024))
    MEMORY.check(least)
    with raises(SpecError, "out_of_range max_host_memory | 100.00 MiB"):
        MEMORY.check(100 * MIB)
    with pytest.raises(SpecError, match=f"at least {-(-least // MIB):.0f} MiB"):
        MEMORY.check(least - 1.0)


def facts(result):
    return (
        [(item.strategy, item.step_time_s, item.memory.peak_bytes) for item in result.best],
        (result.num_legal, result.num_feasible, result.num_evaluated),
        (result.num_over_memory, result.num_beaten, result.surest),
    )


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_results_and_counts_are_the_same_however_little_is_evaluated_at_once(monkeypatch, objective):
    question = replace(QUESTION, objective=objective)
    whole = search(question, surest=True)
    pairs, score = [], solve.score_pairs
    monkeypatch.setattr(
        solve, "score_pairs", lambda *given, **more: pairs.append(len(given[3])) or score(*given, **more)
    )
    least = AtOnce(pairs=50, shardings=20)
    monkeypatch.setattr(host_memory, "_sizes", lambda: iter([least]))
    result = search(question, surest=True, max_host_memory=10**12)
    assert facts(result) == facts(whole)
    assert max(pairs) == 50
    assert 0.0 < result.host_memory_bytes < whole.host_memory_bytes


def test_the_estimate_does_not_depend_on_the_number_of_processes(monkeypatch):
    monkeypatch.setattr(scope, "SHARED_FROM", 0)
    assert search(QUESTION, jobs=2).host_memory_bytes == search(QUESTION).host_memory_bytes


def test_processes_that_take_too_much_end(monkeypatch):
    monkeypatch.setattr(scope, "SHARED_FROM", 0)
    monkeypatch.setattr(scope, "SAMPLED_FROM", 0)
    monkeypatch.setattr(solve, "SHARED_FROM", 0)
    counts, run = [], Ranking.check

    def check(self: Ranking, question: Question) -> None:
        counts.append(self.workers.jobs)
        run(self, question)

    monkeypatch.setattr(Ranking, "check", check)
    results = [search(QUESTION, jobs=2, max_host_memory=limit) for limit in (None, 70 * MIB)]
    assert counts == [2, 1]
    assert facts(results[0]) == facts(results[1])


def test_a_search_that_needs_more_says_how_much():
    with raises(SpecError, "out_of_range max_host_memory | 20.00 MiB"):
        search(QUESTION, max_host_memory=20 * MIB)


def test_processes_of_a_scan_share_the_limit():
    question = Question(model=dense(4), cluster=cluster(8), workload=WORK, space=Space(cp=(1,)))
    assert Terms(jobs=4, max_host_memory=8e9).host_limit == 2e9
    assert Terms(jobs=4).host_limit == float("inf")
    with raises(SpecError, "out_of_range max_host_memory | 20.00 MiB"):
        scan_devices(question, [8], terms=Terms(max_host_memory=20 * MIB))
