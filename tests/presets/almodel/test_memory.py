"""Memory columns that the ALModel analysis prints, in GB of 2^30 bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small
from tests.errors import raises
from tests.small import asked

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.presets import project_as
from forescale.presets.almodel import ALMODEL
from forescale.presets.almodel.step import (
    almodel_device_parameters,
    almodel_fsdp_buffer,
    almodel_layer_kept,
    almodel_logits,
    almodel_reserve,
    almodel_scores_kept,
    almodel_state_bytes,
    full_layer,
)
from forescale.spec import Layout, Recompute, Workload

GB = 2.0**30
WORKLOAD = Workload(seq_len=4096, global_batch_size=5120)
FULL = Recompute(granularity="full")


def policy(name):
    return Recompute(granularity="policy", policy=name)


def layout(*, dp=1, fsdp, ep=1, cp=1, batch, recompute):
    return Layout(
        dp_replicate=dp,
        dp_shard=fsdp * ep,
        ep=ep,
        cp=cp,
        zero=3,
        micro_batch_size=batch,
        recompute=recompute,
    )


def columns(strategy):
    stage = ALMODEL.account(load_model("almodel"), strategy, WORKLOAD).stages[0]
    parts = (
        stage.weights,
        stage.optimizer,
        stage.gradients,
        stage.buffers,
        stage.activations,
        stage.overhead,
        stage.total,
    )
    return tuple(part / GB for part in parts)


OUT, QKV = policy("save_out_proj"), policy("save_qkv_proj")
DETAILED = [
    (layout(dp=4, fsdp=32, batch=10, recompute=OUT), (2.03, 4.06, 2.03, 8.14, 54.53, 21.24, 92.02)),
    (layout(dp=2, fsdp=64, batch=10, recompute=OUT), (1.01, 2.03, 1.01, 8.27, 54.53, 20.06, 86.91)),
    (layout(fsdp=64, cp=2, batch=20, recompute=OUT), (1.01, 2.03, 1.01, 8.27, 54.53, 20.06, 86.91)),
    (
        layout(dp=2, fsdp=32, cp=2, batch=20, recompute=OUT),
        (2.03, 4.06, 2.03, 8.14, 54.53, 21.24, 92.02),
    ),
]


@pytest.mark.parametrize(("strategy", "printed"), DETAILED)
def test_detailed_configurations(strategy, printed):
    assert columns(strategy) == pytest.approx(printed, abs=0.0101)


def test_detailed_configuration_with_queries_keys_and_values_kept():
    result = columns(layout(fsdp=128, batch=10, recompute=QKV))
    assert result[:4] == pytest.approx((0.51, 1.01, 0.51, 8.33), abs=0.005)
    assert result[4:] == pytest.approx((61.80, 21.65, 93.81), rel=0.0015)


@pytest.mark.parametrize(
    ("strategy", "printed"),
    [
        (layout(dp=8, fsdp=16, batch=10, recompute=FULL), (4.1, 8.1, 4.1, 7.9, 51.2)),
        (layout(dp=4, fsdp=16, cp=2, batch=20, recompute=FULL), (4.1, 8.1, 4.1, 7.9, 51.2)),
        (layout(dp=4, fsdp=32, batch=10, recompute=OUT), (2.0, 4.1, 2.0, 8.1, 54.5)),
        (layout(dp=2, fsdp=64, batch=10, recompute=QKV), (1.0, 2.0, 1.0, 8.3, 61.8)),
        (
            layout(fsdp=128, batch=10, recompute=policy("save_dot_except_mlp")),
            (0.5, 1.0, 0.5, 8.3, 65.1),
        ),
    ],
)
def test_rows_of_the_first_table(strategy, printed):
    assert columns(strategy)[:5] == pytest.approx(printed, abs=0.08)


@pytest.mark.parametrize(
    ("strategy", "printed"),
    [
        (layout(dp=2, fsdp=4, ep=2, cp=8, batch=8, recompute=FULL), (8.7, 17.5, 8.7, 4.0)),
        (layout(dp=8, fsdp=16, batch=1, recompute=FULL), (4.1, 8.1, 4.1, 7.9)),
        (layout(dp=2, fsdp=8, cp=8, batch=8, recompute=FULL), (8.1, 16.2, 8.1, 7.3)),
        (layout(dp=2, fsdp=2, ep=4, cp=8, batch=8, recompute=FULL), (10.0, 19.9, 10.0, 1.9)),
    ],
)
def test_states_and_buffer_of_the_slowest_rows(strategy, printed):
    assert columns(strategy)[:4] == pytest.approx(printed, abs=0.0501)


def test_states_without_any_parallelism():
    """W = 64.9 GB + O = 129.9 GB + G = 64.9 GB = 259.8 GB."""
    weights, optimizer = (almodel_state_bytes(parameters=17.43e9, copies=count) for count in (1.0, 2.0))
    assert weights / GB == pytest.approx(64.9, abs=0.05)
    assert optimizer / GB == pytest.approx(129.9, abs=0.05)
    assert (2 * weights + optimizer) / GB == pytest.approx(259.8, abs=0.15)


def test_expert_and_other_weights():
    shape = {"ep": 1.0, "fsdp": 32.0, "model_ranks": 1.0}
    expert = almodel_device_parameters(expert=16.11e9, other=0.0, **shape)
    other = almodel_device_parameters(expert=0.0, other=1.33e9, **shape)
    assert almodel_state_bytes(parameters=expert, copies=1.0) / GB == pytest.approx(1.88, abs=0.005)
    assert almodel_state_bytes(parameters=other, copies=1.0) / GB == pytest.approx(0.15, abs=0.005)


def test_buffer_of_two_layers():
    layer = full_layer(load_model("almodel"))
    assert layer == 256 * 3 * 2048 * 512 + 157184 * 2048
    assert almodel_fsdp_buffer(layer_parameters=layer, fsdp=32.0) / GB == pytest.approx(8.14, abs=0.005)
    assert almodel_fsdp_buffer(layer_parameters=layer, fsdp=1.0) == 0


def test_logits_and_reserve():
    """51.2 GB of full recompute: 21 inputs of 4096 x 2048 in bf16 and the logits, for 10 sequences."""
    logits = almodel_logits(tokens=40960.0, vocab_size=157184.0, tp=1.0)
    assert (logits + 10 * 21 * 4096 * 2048 * 2) / GB == pytest.approx(51.2, abs=0.0501)
    modelled = 2.03 + 4.06 + 2.03 + 8.14 + 54.53
    assert almodel_reserve(modelled=modelled, share=0.30) == pytest.approx(21.24, abs=0.005)


@pytest.mark.parametrize(("cp", "printed"), [(1, 25.8), (2, 22.1), (4, 20.2), (8, 19.3)])
def test_what_is_kept_without_recompute(cp, printed):
    """Activations of the slowest configurations: 21 layers, scores of 5 of them, logits."""
    layers = 21 * almodel_layer_kept(tokens=4096.0, hidden_size=2048.0, layer_bytes=82.5, tp=1.0)
    part = 4096.0 / cp
    scores = almodel_scores_kept(
        sequences=float(cp), queries=part, keys=part, num_heads=16.0, score_bytes=6.0, tp=1.0
    )
    logits = almodel_logits(tokens=4096.0, vocab_size=157184.0, tp=1.0)
    assert (layers + 5 * scores + logits) / GB == pytest.approx(printed, abs=0.05)


def test_projection_says_what_it_knows():
    result = project_as(
        asked(
            load_model("almodel"),
            small.cluster(128, hbm_gb=96 * 1.073741824),
            layout(dp=4, fsdp=32, batch=10, recompute=OUT),
            WORKLOAD,
            preset="almodel",
        )
    )
    assert result.memory.peak_bytes / GB == pytest.approx(92.02, abs=0.0101)
    assert result.memory.verdict == "FITS"
    assert {"activations", "buffers", "flops", "network"} <= {note.topic for note in result.notes}


def test_what_it_does_not_state_is_refused():
    model, known = load_model("almodel"), layout(dp=4, fsdp=32, batch=10, recompute=OUT)
    for strategy, message in (
        (replace(known, recompute=Recompute(granularity="selective")), "unsupported_by preset almodel"),
        (replace(known, zero=1), "not_one_of zero of preset almodel"),
        (replace(known, dp_shard=4, ep=8), "not_a_factor ep"),
    ):
        with raises(SpecError, message):
            ALMODEL.account(model, strategy, WORKLOAD)
