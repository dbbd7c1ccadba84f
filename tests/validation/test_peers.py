from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.validation.case import InexpressibleError, Prediction
from forescale.validation.metrics import relative_error
from forescale.validation.peers import compare_peers
from forescale.validation.scoreboard import score


def exact(case):
    return Prediction(step_time_s=case.measured.step_time_s, peak_bytes=case.measured.peak_bytes)


def remarked(case, text):
    return replace(case, remarks=text)


def test_simumax_is_read_from_the_notes(cases):
    case = cases["SMX-001"]
    board = score([case], exact)
    (group,) = compare_peers(board)
    assert group.peer == "SimuMax 1.2, as published"
    assert group.time.bias == pytest.approx(relative_error(0.8288, case.measured.step_time_s))
    assert group.time.bias == pytest.approx(-0.0169, abs=2e-4)
    assert group.memory.bias == pytest.approx(-0.0017, abs=2e-4)
    assert group.our_time.median_abs == 0.0
    assert group.our_memory.median_abs == 0.0


def test_calculon_is_read_as_an_error(cases):
    case = remarked(cases["SMX-002"], "Calculon prediction error on this cell: -3.3% [derived]")
    (group,) = compare_peers(score([case], exact))
    assert (group.peer, group.time.bias, group.memory.count) == ("Calculon, as published", -0.033, 0)


def test_rows_without_a_citation_have_no_peer(cases):
    assert compare_peers(score([remarked(cases["SMX-002"], "nothing here")], exact)) == ()


def test_a_tool_that_is_asked_counts_where_it_answers(cases):
    remarkeds = [remarked(cases[name], "") for name in ("SMX-001", "SMX-002")]

    def ask(case):
        if case.id == "SMX-002":
            raise InexpressibleError("no words for it")
        return 2.0 * case.measured.step_time_s

    (group,) = compare_peers(score(remarkeds, exact), {"twice": ask})
    assert (group.peer, group.time.count, group.time.bias) == ("twice", 1, 1.0)
