"""Layers of Megatron-Core: counted as projected, both gradients apart, and split over two ranks what they are on one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench.tiny import FULL, LATENT, MOE, question
from tests.oracles.parsers import asked_of, needs

from forescale.bench import megatron, model
from forescale.bench.training import adapter_of, as_run
from forescale.catalogue.frameworks import load_framework
from forescale.errors import ForescaleError, SpecError
from forescale.spec.layout import Recompute

CORE = load_framework("megatron-core")
PACKAGE = "megatron-core-0.19.2"
SCORES = {"flash_attention": False}


@needs(PACKAGE)
def test_layers_of_megatron_run_as_blocks():
    cases = [
        ["FULL", "DENSE", 1, {}],
        ["FULL", "MOE", 1, {}],
        ["FULL", "DENSE", 1, {"recompute": {"granularity": "full"}}],
    ]
    plain, routed, replayed = asked_of("megatron_blocks.py", PACKAGE, cases, timeout=900)
    for result, kind in (
        (plain, "attention+dense"),
        (routed, "attention+moe"),
        (replayed, "attention+dense"),
    ):
        assert result["parameters"] == result["counted"]
        assert result["away"] < 1e-6
        assert result["blocks"] == [kind, "embedding", "head", "model"]
        # copies of key/value heads for each query, and rotations by position, are small beside wider models
        assert result["kept"] == pytest.approx(result["projected"], rel=0.15)
    assert plain["apart"] == ["input_gradient", "weight_gradient"]
    assert replayed["kept"]["attention+dense"] < plain["kept"]["attention+dense"] / 10
    assert replayed["loss"] == plain["loss"]


@needs(PACKAGE)
def test_two_ranks_of_megatron_find_the_gradients_of_one():
    selected = {"routing": {"imbalance": 1.5}}  # by the router; in turn they depend on the order of tokens
    cases = [
        ["FULL", "DENSE", 2, {"tp": 2}],
        ["FULL", "DENSE", 2, {"tp": 2, "sp": True}],
        ["FULL", "MOE", 2, {"tp": 2, "sp": True, "etp": 1, "ep": 2}],
        ["FULL", "MOE", 2, {"dp_shard": 2, "ep": 2, **selected}],
    ]
    assert max(asked_of("megatron_blocks.py", PACKAGE, cases, timeout=900)) < 1e-6


def test_classes_of_megatron_run_where_they_are_installed(monkeypatch):
    request = replace(question(), framework=CORE)
    monkeypatch.setattr(model, "version", lambda _: "0.19.2")
    assert adapter_of(request) is megatron.ADAPTER
    kernels = as_run(request).layout.kernels
    assert not kernels.fused and not kernels.grouped_experts and kernels.pads_vocabulary


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (question(), "ask with --no-flash-attention"),
        (question(cp=2, **SCORES), r"ask with --cp 1"),
        (question(dp_shard=2, zero=3, **SCORES), "ask with --zero 1"),
        (question(LATENT, **SCORES), "latent attention without Transformer Engine"),
        (question(ffn=MOE, tp=2, **SCORES), "split experts over tp without sp"),
        (question(tp=4, **SCORES), "copy key/value heads over tp 4"),
        (question(replace(FULL, window=8), **SCORES), "run tiny here"),
        (
            question(recompute=Recompute(granularity="selective", modules=("mlp",)), **SCORES),
            "ask with --recompute none or full",
        ),
    ],
)
def test_what_megatrons_classes_do_not_do_is_said(monkeypatch, asked, text):
    monkeypatch.setattr(megatron, "_imported", lambda: None)
    with pytest.raises(SpecError, match=text):
        megatron.check(asked)


def test_a_package_that_cannot_be_imported_is_named():
    with pytest.raises(ForescaleError, match="pip install megatron-core triton"):
        megatron.check(question())
