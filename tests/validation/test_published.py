from __future__ import annotations

import pytest

from forescale.spec import Strategy
from forescale.validation.cases import express
from forescale.validation.corpus import read_corpus
from forescale.validation.published import convention_peak, published_flops
from forescale.validation.tables import all_matches

from .conftest import EXCERPT

NONE = {"measured_step_s": ""}


def measured(row):
    (case,) = express([row], find_model=lambda _: None)
    assert case.skipped_reason is None
    return case.measured


def test_a_printed_step_time_is_taken_as_it_is(row):
    assert measured(row(measured_tokens_per_s_per_gpu=1.0)).step_time_s == 5.0


def test_tokens_per_second_become_a_step_time(row):
    found = measured(row(**NONE, measured_tokens_per_s_per_gpu=4096))
    assert found.step_time_s == pytest.approx(64 * 4096 / 16 / 4096)
    assert found.step_time_from == "tokens/s"


def test_tflops_become_a_step_time_by_the_rows_convention(row):
    full = measured(
        row(**NONE, measured_tflops_per_gpu=400, tflops_convention="attention not halved for causality")
    )
    half = measured(
        row(**NONE, measured_tflops_per_gpu=400, tflops_convention="causal attention, logits incl.")
    )
    assert full.step_time_from == half.step_time_from == "TFLOP/s"
    assert half.step_time_s < full.step_time_s < 1.2 * half.step_time_s


def test_mfu_is_of_the_printed_peak_or_the_devices(row):
    printed = measured(row(**NONE, measured_mfu_pct=40, tflops_convention="MFU; denominator 989.5"))
    device = measured(row(**NONE, measured_mfu_pct=40, tflops_convention="MFU"))
    assert printed.step_time_s == pytest.approx(device.step_time_s, rel=1e-3)


def test_nothing_published_is_no_step_time(row):
    assert measured(row(**NONE)).step_time_s is None


@pytest.mark.parametrize(
    ("text", "peak"),
    [
        ("MFU (attention not halved)/312; HFU 57.0%", 312e12),
        ("before PR #1988 unless noted; denominator 459", 459e12),
    ],
)
def test_printed_peaks(row, text, peak):
    (case,) = express([row()], find_model=lambda _: None)
    assert convention_peak(text, case.cluster, case.workload) == peak


def test_megatron_flops_of_the_weak_scaling_study(row):
    # Narayanan et al. 2021, equation 3: 96·B·s·l·h²·(1 + s/6h + V/16lh) with full recompute.
    layers, hidden, vocab, seq = 24, 2304, 51200, 2048
    cells = {
        "layers": layers,
        "hidden": hidden,
        "ffn": 4 * hidden,
        "heads": 24,
        "kv_heads": 24,
        "head_dim": 96,
    }
    (case,) = express(
        [row(model="Megatron-GPT-1.7B", vocab=vocab, seq_len=seq, **cells)], find_model=lambda _: None
    )
    formula = 96 * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    flops = published_flops(case.model, seq, full_recompute(), {"attention": "full", "recompute": True})
    assert flops == pytest.approx(formula, rel=1e-12)


def full_recompute():
    from forescale.spec import Recompute

    return Strategy(recompute=Recompute(granularity="full"))


def test_rows_that_print_both_agree_with_their_own_convention(cases):
    """Published TFLOP/s against published time, by the publisher's formula: they must agree."""
    checked = 0
    for row in read_corpus(EXCERPT).rows:
        case, rate = cases[row.id], row.number("measured_tflops_per_gpu")
        if (
            case.skipped_reason
            or case.measured.step_time_from not in {"step time", "tokens/s"}
            or not rate
            or case.family == "moe"
        ):
            continue
        convention = all_matches("conventions", row.text("tflops_convention"))
        flops = published_flops(case.model, case.workload.seq_len, case.strategy, convention)
        seconds = flops * case.tokens_per_step / case.strategy.num_devices / (rate * 1e12)
        assert seconds == pytest.approx(case.measured.step_time_s, rel=0.04), row.id
        checked += 1
    assert checked >= 8
