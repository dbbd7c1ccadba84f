from __future__ import annotations

from dataclasses import replace

import pytest
from scripts.rows.cases import express
from scripts.rows.columns import read_corpus
from scripts.rows.measured import speed_of
from scripts.rows.tables import all_matches
from tests.validation.runs import own_columns_only

from forescale.spec import (
    DenseFfn,
    FullAttention,
    LatentAttention,
    Layer,
    Layout,
    LinearAttention,
    Model,
    MoeFfn,
)
from forescale.validation.published import layer_flops, published_flops

from .conftest import EXCERPT

NONE = {"measured_step_s": ""}


def measured(row):
    with own_columns_only():
        (case,) = express([row])
    assert case.skipped_reason is None
    return case.measured


def test_a_printed_step_time_is_taken_as_it_is(row):
    assert measured(row(measured_tokens_per_s_per_gpu=1.0)).step_time_s == 5.0


def test_tokens_per_second_become_a_step_time(row):
    result = measured(row(**NONE, measured_tokens_per_s_per_gpu=4096))
    assert result.step_time_s == pytest.approx(64 * 4096 / 16 / 4096)
    assert result.step_time_from == "tokens/s"


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
    assert speed_of(row(tflops_convention=text)).peak_tflops == peak / 1e12


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
    with own_columns_only():
        (case,) = express([row(model="Megatron-GPT-1.7B", vocab=vocab, seq_len=seq, **cells)])
    formula = 96 * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    flops = published_flops(case.model, seq, full_recompute(), {"attention": "full", "recompute": True})
    assert flops == pytest.approx(formula, rel=1e-12)


def full_recompute():
    from forescale.spec import Recompute

    return Layout(recompute=Recompute(granularity="full"))


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
            or case.workload.trainable.lora_rank  # their formula is of whole training
        ):
            continue
        convention = all_matches("conventions", row.text("tflops_convention"))
        flops = published_flops(case.model, case.workload.seq_len, case.strategy, convention)
        seconds = flops * case.tokens_per_step / case.strategy.num_devices / (rate * 1e12)
        assert seconds == pytest.approx(case.measured.step_time_s, rel=0.04), row.id
        checked += 1
    assert checked >= 8


def forward_flops(attention=None, ffn=None, *, halved=False):
    return layer_flops(Layer(attention=attention, ffn=ffn), 130, 462, halved=halved)


def test_flops_of_each_kind_of_layer_by_hand():
    """Two per weight and token, and two per pair, head and number of a score or a value."""
    full = FullAttention(num_heads=12, num_kv_heads=4, head_dim=38)
    weights = 130 * 38 * (12 + 4 + 4) + 12 * 38 * 130
    assert forward_flops(full) == 2 * weights + 4 * 12 * 38 * 462
    assert forward_flops(full, halved=True) == 2 * weights + 4 * 12 * 38 * 462 / 2
    assert forward_flops(replace(full, window=97)) == 2 * weights + 4 * 12 * 38 * 97
    latent = LatentAttention(
        num_heads=6, q_lora_rank=74, kv_lora_rank=58, qk_nope_head_dim=22, qk_rope_head_dim=10, v_head_dim=26
    )
    queries, others = 130 * 74 + 74 * 6 * 32, 130 * (58 + 10) + 58 * 6 * (22 + 26) + 6 * 26 * 130
    assert forward_flops(latent) == 2 * (queries + others) + 2 * 6 * (32 + 26) * 462
    assert forward_flops(replace(latent, q_lora_rank=None)) == 2 * (130 * 6 * 32 + others) + 2 * 6 * 58 * 462
    state = LinearAttention(num_heads=10, num_key_heads=6, key_head_dim=14, value_head_dim=22, chunk_size=66)
    widths = 2 * 6 * 14 + 3 * 10 * 22  # queries and keys; values, gate and output
    assert forward_flops(state) == 2 * 130 * widths + 2 * 10 * (14 + 22) * 66
    assert forward_flops(replace(state, output_gate=False)) == 2 * 130 * (widths - 220) + 2 * 10 * 36 * 66
    assert forward_flops(ffn=DenseFfn(ffn_hidden_size=46)) == 2 * 3 * 130 * 46
    assert forward_flops(ffn=DenseFfn(ffn_hidden_size=46, gated=False)) == 2 * 2 * 130 * 46
    routed = MoeFfn(num_experts=20, top_k=6, ffn_hidden_size=34, shared_ffn_hidden_size=58)
    assert forward_flops(ffn=routed) == 2 * 130 * (20 + 3 * 6 * 34 + 3 * 58)
    inside = 2 * 130 * (20 + 3 * 58 + 2 * 42) + 2 * 42 * 3 * 6 * 34
    assert forward_flops(ffn=replace(routed, latent_size=42)) == inside


def test_flops_of_a_token_by_hand():
    """Forward once and backward twice; a multi-token-prediction layer joins 2h to h and has logits of its own."""
    layer = Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=46))
    model = Model(name="by-hand", hidden_size=130, layers=(layer,) * 5, vocab_size=950)
    one, logits = 2 * 3 * 130 * 46, 2 * 130 * 950
    assert published_flops(model, 462, Layout(), {}) == 3 * (5 * one + logits)
    again = {"recompute": True}
    assert published_flops(model, 462, full_recompute(), again) == 4 * 5 * one + 3 * logits
    assert published_flops(model, 462, Layout(), again) == 3 * (5 * one + logits)
    extra = replace(model, num_mtp_layers=2)
    assert published_flops(extra, 462, Layout(), {}) == 3 * (7 * one + 2 * 2 * 2 * 130**2 + 3 * logits)
    assert published_flops(model, 462, Layout(), {"formula": "parameters"}) == 3 * 2 * 12 * 5 * 130**2
