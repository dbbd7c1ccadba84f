from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.cost_models import check_compute_model

from forescale.catalogue.clusters import load_device
from forescale.cost.calibration import RunFactors, load_calibration
from forescale.cost.measured import KernelTable, MeasuredCompute
from forescale.cost.roofline import Roofline
from forescale.formula import Term
from forescale.graph.ops import AttentionCore, Elementwise, Gemm, GroupedGemm

H100 = load_device("h100-sxm")
ROOFLINE = Roofline(device=H100, calibration=load_calibration(H100))
GEMM = Gemm(m=1024.0, n=4096.0, k=2048.0)
NEUTRAL = RunFactors()


def measured(*timings, run=NEUTRAL):
    return MeasuredCompute(table=KernelTable(timings), fallback=ROOFLINE, run=run, source="bench.json")


SIZES = np.array([512.0, 1024.0, 4096.0, 8192.0])
TIMES = np.array([4e-5, 7e-5, 2.6e-4, 5.3e-4])
GRID = measured(*((replace(GEMM, m=size), time) for size, time in zip(SIZES.tolist(), TIMES, strict=True)))


def test_measured_points_are_returned_to_the_bit():
    assert np.asarray(GRID.seconds(replace(GEMM, m=SIZES))).tolist() == TIMES.tolist()


@given(st.lists(st.floats(512.0, 8192.0), min_size=2, max_size=8))
def test_interpolation_is_monotone_and_within_its_neighbours(sizes):
    sizes = np.sort(sizes)
    seconds = np.asarray(GRID.seconds(replace(GEMM, m=sizes)))
    assert np.all(np.diff(seconds) >= 0.0)
    below, above = np.searchsorted(SIZES, sizes, side="right") - 1, np.searchsorted(SIZES, sizes)
    assert np.all((seconds >= TIMES[below]) & (seconds <= TIMES[above]))


def test_between_neighbours_lies_a_straight_line_over_the_work():
    """2,560 rows are half way from 1,024 to 4,096; in runs that sustain half of the rate they take twice as long."""
    half = (7e-5 + 2.6e-4) / 2
    assert GRID.seconds(replace(GEMM, m=2560.0)) == pytest.approx(half)
    slow = replace(GRID, run=RunFactors(sustained={"bf16": 0.5}))
    assert slow.seconds(replace(GEMM, m=2560.0)) == pytest.approx(half / 0.5)


def test_what_was_not_measured_is_the_other_model_s_and_says_so():
    other = replace(GEMM, m=np.array([1024.0, 16384.0]))
    seconds = np.asarray(GRID.seconds(other))
    assert seconds[0] == 7e-5
    assert seconds[1] == np.asarray(ROOFLINE.seconds(other))[1]
    provenance = GRID.provenance(other)
    assert provenance.kind == ROOFLINE.provenance(other).kind
    assert provenance.source.startswith("not measured in bench.json; ")


def test_provenance_tells_measured_from_interpolated():
    assert GRID.provenance(replace(GEMM, m=SIZES)).kind == "measured"
    between = GRID.provenance(replace(GEMM, m=2000.0))
    assert (between.kind, between.source) == ("interpolated", "bench.json")
    assert between.low < GRID.provenance(GEMM).low < 1.0 < GRID.provenance(GEMM).high < between.high


@pytest.mark.parametrize(
    ("op", "keys"),
    [
        (GEMM, ("bf16",)),
        (GroupedGemm(groups=8.0, m=1024.0, n=512.0, k=256.0, dtype="fp8"), ("fp8", "grouped")),
        (GroupedGemm(groups=1.0, m=1024.0, n=512.0, k=256.0, dtype="fp8"), ("fp8",)),
        (Elementwise(bytes_moved=1e6, family="norm"), ("memory", "norm")),
        (
            AttentionCore(
                batch=1.0, heads=8.0, kv_heads=8.0, q_len=128.0, kv_len=128.0, pairs=8192.0, qk_dim=64.0, v_dim=64.0
            ),
            ("attention",),
        ),
    ],
)  # fmt: skip
def test_runs_sustain_less_than_kernels_timed_alone(op, keys):
    run = RunFactors(sustained={"grouped": 0.1, **dict.fromkeys(keys, 0.5), "unfused": 0.1})
    assert measured((op, 1e-3), run=run).seconds(op) == pytest.approx(1e-3 / 0.5 ** len(keys))


def test_recorded_extents_leave_a_term_with_the_same_value():
    term = GRID.seconds(replace(GEMM, m=Term(np.array([2000.0]), name="tokens")))
    assert isinstance(term, Term)
    assert term.value == GRID.seconds(replace(GEMM, m=np.array([2000.0])))
    names = {node.name for node in term.at(0).walk()}
    assert {"measured_seconds", "share of the way", "tokens"} <= names


def test_the_contract_of_compute_models_holds():
    check_compute_model(measured())
