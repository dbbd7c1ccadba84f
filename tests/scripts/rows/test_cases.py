from __future__ import annotations

import pytest
from scripts.rows.cases import express, load_rows
from tests.validation.runs import own_columns_only

from forescale.spec import Recompute
from forescale.validation.case import InexpressibleError
from forescale.validation.cases import source_of

from .conftest import EXCERPT


def test_every_row_is_a_case_in_order():
    with own_columns_only():
        cases = load_rows(EXCERPT)
    ids = [line.split(",")[0] for line in EXCERPT.read_text(encoding="utf-8").splitlines()[1:]]
    assert [case.id for case in cases] == ids


def test_the_excerpt_is_expressed_but_for_what_cannot_be(cases):
    skipped = {case.id: case.skipped_reason for case in cases.values() if case.skipped_reason}
    assert set(skipped) == {"BSGPT2-009", "MB260401-040"}
    assert "the row counts" in skipped["BSGPT2-009"]
    assert "shape of Nemotron-3-Super" in skipped["MB260401-040"]


def test_the_catalogue_completes_the_excerpt():
    cases = {case.id: case for case in load_rows(EXCERPT)}
    assert sum(case.skipped_reason is None for case in cases.values()) >= 36


def test_a_skipped_case_says_why_when_asked(row):
    (case,) = express([row(dp=8)])
    assert case.model is None
    with pytest.raises(InexpressibleError, match="the row counts 16 devices"):
        _ = case.question.parts


def test_what_was_measured(cases):
    case = cases["SMX-001"]
    assert case.measured.step_time_s == 0.843
    assert case.measured.peak_bytes == pytest.approx(71.46e9)
    assert case.core
    assert case.source == "SMX"
    assert case.tokens_per_step == 16 * 4096


@pytest.mark.parametrize(("source", "stage"), [("nanotron v0.5", "first"), ("torchtitan", "fullest")])
def test_nanotrons_first_rank_writes_the_peak(row, source, stage):
    (case,) = express([row(source=source, measured_peak_mem_gb=40)])
    assert (case.measured.peak_measure, case.measured.peak_stage) == ("reserved", stage)


@pytest.mark.parametrize(
    ("identifier", "reference", "source"),
    [
        ("SMX-001", "x", "SMX"),
        ("MB260401-040", "x", "MB260401"),
        ("my-lab-7", "x", "my-lab"),
        ("run one", "our cluster", "our cluster"),
        ("run one", "", "run one"),
    ],
)
def test_names_of_sources(identifier, reference, source):
    assert source_of(identifier, reference) == source


def test_published_rows_as_layouts(cases):
    pipeline = cases["ZB-010"].strategy
    assert (pipeline.pp, pipeline.vpp, sum(pipeline.stage_layers)) == (8, 3, 22)
    assert pipeline.flash_attention is False
    assert cases["TT-036"].strategy.recompute == Recompute(
        granularity="full", layer_ids=tuple(range(0, 32, 2)), stops_early=True
    )
    assert cases["MB2511-027"].strategy.recompute == Recompute(granularity="full", num_layers=5)
    assert cases["PRIMUS-026"].strategy.recompute == Recompute(granularity="full", num_layers=1)
    assert len(cases["PRIMUS-027"].strategy.recompute.layer_ids) == 9
    assert (cases["MAXV5E-002"].strategy.dp_replicate, cases["MAXV5E-002"].strategy.dp_shard) == (2, 256)
    assert cases["IEVO-010"].strategy.dp_shard == 8
    assert cases["TPUV6E-006"].strategy.micro_batch_size == 2
    assert cases["MB260401-034"].workload.optimizer == "muon"
    assert cases["MB260401-020"].strategy.overlap.expert
    assert not cases["MBSK-020"].strategy.overlap.expert
    assert cases["BLOOM-002"].cluster.tiers[-1].bandwidth == 6.25e9


@pytest.mark.parametrize(
    ("place", "num_bytes"),
    [("Table 4", 61e9), ("Table 6", 61e3 * 2**20), ("Table 6 (ZB-2p* = half micro-batch)", 61e3 * 2**20)],
)
def test_peaks_are_in_what_their_table_counts_in(row, place, num_bytes):
    """1F1B of table 6 on 16 devices: of two layers states, and what 15 micro-batches keep, are more than 61.5 GB."""
    notes = f"{place}: published 3.38 samples/GPU/s, memory 61 GB (peak, GB as printed)"
    (case,) = express([row(source="Qi et al., Zero Bubble", notes=notes, measured_peak_mem_gb=61)])
    assert case.measured.peak_bytes == num_bytes
    least = 2 * 12 * 4096**2 * 16 + 15 * 2 * (34 * 4096 + 5 * 32 * 1024) * 6 * 1024
    assert 61.5e9 < least < 61e3 * 2**20


def test_schedules_of_the_library_are_projected_and_others_noted(row):
    (case,) = express([row(schedule="zero-bubble ZB-2p")])
    assert (case.strategy.schedule, case.strategy.vpp) == ("zb-2p", 1)
    (case,) = express([row(schedule="zero-bubble ZB-V")])
    assert (case.strategy.schedule, case.strategy.vpp) == ("zbv", 2)
    (case,) = express([row(schedule="spiral")])
    assert case.strategy.schedule is None
    assert "schedule 'spiral' projected as 1F1B" in case.notes
    with own_columns_only():
        (case,) = express([row(schedule="1f1b (DeepSpeed)")])
    assert case.notes == ()


@pytest.mark.parametrize(("schedule", "chunks"), [("ZB-1p", 4), ("ZB-V", 8)])
def test_a_named_schedule_keeps_the_layers_that_its_stages_lack(row, schedule, chunks):
    cells = {"layers": 4 * chunks - 2, "schedule": f"zero-bubble {schedule}", "pp": 4, "dp": 2}
    with own_columns_only():
        (case,) = express([row(**cells)])
    assert case.strategy.stage_layers == (3, *[4] * (chunks - 2), 3)


def test_a_skipped_case_keeps_what_the_row_prints(row):
    (case,) = express([row(dp=8, measured_peak_mem_gb=3)])
    assert (case.measured.step_time_s, case.measured.peak_bytes) == (5.0, 3e9)
    (case,) = express([row(measured_step_s="soon")])
    assert "measured_step_s" in case.skipped_reason
    assert case.measured.step_time_s is None
