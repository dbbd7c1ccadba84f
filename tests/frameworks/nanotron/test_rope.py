"""Rotary positions and norms in nanotron's configuration."""

from __future__ import annotations

import pytest
import yaml
from msgspec.structs import replace

from forescale.export import export
from forescale.face import ask
from forescale.spec.model import Model
from forescale.spec.rope import Rope


def exported(model: str, rope: Rope | None = None):
    question = ask(model, "h100-sxm", devices=8, seq_len=1024, global_batch_size=8, framework="nanotron")
    if rope is not None:
        question = replace(question, model=turned(question.model, rope))
    return export(question)


def turned(model: Model, rope: Rope) -> Model:
    """Return a model all of whose layers have such positions."""
    layers = (replace(layer, attention=replace(layer.attention, rope=rope)) for layer in model.layers)
    return replace(model, layers=tuple(layers))


@pytest.mark.parametrize(
    ("model", "theta", "eps"),
    [("llama-3-8b", 5e5, 1e-5), ("qwen2.5-7b", 1e6, 1e-6), ("mistral-7b", 1e4, 1e-5)],
)
def test_bases_and_epsilons_are_written(model, theta, eps):
    result = exported(model)
    config = yaml.safe_load(result.texts["run.yaml"])["model"]["model_config"]
    assert (config["rope_theta"], config["rms_norm_eps"]) == (theta, eps)
    assert not result.unsaid


def test_only_qwen_slows_positions_and_all_alike():
    result = exported("llama-3-8b", Rope(base=1e4, scaling="linear", factor=4.0))
    config = yaml.safe_load(result.texts["run.yaml"])["model"]["model_config"]
    assert (config["is_qwen2_config"], config["rope_seq_len_interpolation_factor"]) == (True, 4.0)
    assert not result.unsaid
    partial = exported("llama-3-8b", Rope(base=1e4, share=0.5))
    assert [item.word for item in partial.unsaid] == ["model.layers.attention.rope"]
