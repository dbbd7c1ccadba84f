"""Layers of torchtitan give the gradients of transformers' with the same weights, and keep what is projected of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench.tiny import LATENT, question
from tests.oracles.parsers import asked_of, needs

from forescale.bench import huggingface, model, torchtitan
from forescale.bench.training import adapter_of, as_run
from forescale.catalogue.frameworks import load_framework
from forescale.errors import ForescaleError, SpecError
from forescale.spec.layout import Recompute

TITAN = load_framework("torchtitan")
PACKAGE = "torchtitan-0.3.0"


@needs(PACKAGE)
def test_layers_of_torchtitan_have_the_gradients_of_a_llama():
    plain, replayed = asked_of("torchtitan_blocks.py", PACKAGE, [{}, {"granularity": "full"}])
    for item in (plain, replayed):
        assert item["away"] < 1e-6
        assert item["kept"] == pytest.approx(item["projected"], rel=0.02)
        assert item["blocks"] == ["attention+dense", "embedding", "head", "model"]
    assert plain["apart"] == ["input_gradient", "weight_gradient"]
    assert replayed["kept"]["attention+dense"] < plain["kept"]["attention+dense"] / 10


def test_classes_follow_from_the_framework_where_it_is_installed(monkeypatch):
    request = replace(question(), framework=TITAN)
    assert adapter_of(question()) is huggingface.ADAPTER
    monkeypatch.setattr(model, "version", lambda _: "0.3.0")
    assert adapter_of(request) is torchtitan.ADAPTER
    assert as_run(request).layout.kernels.cross_entropy == "eager"
    assert as_run(question()).layout.kernels.cross_entropy == "loss_parallel"

    def absent(_):
        raise model.PackageNotFoundError

    monkeypatch.setattr(model, "version", absent)
    assert adapter_of(request) is huggingface.ADAPTER


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (question(tp=2), r"\(tp 2, cp 1\): bench on one device"),
        (question(recompute=Recompute(granularity="selective")), "ask with --recompute none or full"),
        (question(LATENT), "run tiny here, only dense Llamas"),
    ],
)
def test_what_torchtitans_classes_do_not_do_is_said(monkeypatch, asked, text):
    monkeypatch.setattr(torchtitan, "_imported", lambda: None)
    with pytest.raises(SpecError, match=text):
        torchtitan.check(asked)


def test_a_package_that_cannot_be_imported_is_named():
    with pytest.raises(ForescaleError, match="pip install torchtitan triton"):
        torchtitan.check(question())
