"""Rotary positions, norms and weights of experts against the configurations of transformers, which make them of the same keys."""

from __future__ import annotations

from typing import Any

import pytest
from tests.oracles.test_huggingface_parameters import OTHER, SAME_CLASS, class_configuration

from forescale.catalogue.models import load_model, model_names
from forescale.files import packaged
from forescale.frameworks.huggingface.keys import CLASSES, ROPE_TYPES
from forescale.spec.model import USUAL_EPS
from forescale.spec.rope import PLAIN_ROPE, Rope

transformers = pytest.importorskip("transformers")
EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
HERE = {"qwen2_5_vl", "qwen2_vl", "gemma3"}
"""Architectures whose text part has a class of its own, and whose files of transformers 4 hold it in themselves."""
TURNED = [
    name
    for name in model_names()
    if load_model(name).text.ropes[0] and "huggingface" in packaged(f"models/{name}")
]


def table_of(config: Any, kind: str = "full_attention") -> dict[str, Any]:
    """Return transformers' own table of a configuration."""
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    return dict(rope_parameters.get(kind) or rope_parameters)


def said(rope: Rope) -> dict[str, Any]:
    """Return positions in transformers' words."""
    parts = {theirs: getattr(rope, ours) for theirs, ours in ROPE_TYPES.get(rope.scaling, {}).items()}
    return {
        "rope_theta": rope.base,
        "rope_type": "default" if rope.scaling == "none" else rope.scaling,
        **parts,
    }


BASE_ELSEWHERE = ("dbrx", "gptj")
"""Types whose class has the base of rotary positions in another place, or in its code."""


@pytest.mark.parametrize("name", [name for name in TURNED if load_model(name).source])
def test_models_of_the_catalogue(name):
    content = packaged(f"models/{name}")["huggingface"]
    if content["model_type"] in OTHER:
        pytest.skip("no class of transformers")
    config = class_configuration(content)
    config = getattr(config, "text_config", config)
    model = load_model(name).text
    far, near = model.ropes
    theirs = table_of(config)
    if content["model_type"] not in BASE_ELSEWHERE:
        assert {key: theirs[key] for key in said(far)} == said(far)
    if near is not None and near != far:
        local = table_of(config, "sliding_attention")
        assert {key: local[key] for key in said(near)} == said(near)
    assert theirs.get("partial_rotary_factor", far.share) == far.share
    if (scale := getattr(config, "routed_scaling_factor", None)) is not None:
        assert (model.moe.weight_scale, model.moe.normalised) == (scale, config.norm_topk_prob)
    eps = [value for key in EPS if (value := getattr(config, key, None)) is not None]
    assert model.norm_eps in (eps or [USUAL_EPS])


@pytest.mark.parametrize(
    "name", ["gpt-oss-20b", "olmo-3-32b", "ministral-3-8b", "deepseek-v2", "deepseek-v3"]
)
def test_the_factor_of_sines_and_cosines(name):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = class_configuration(packaged(f"models/{name}")["huggingface"])
    config = getattr(config, "text_config", config)
    layers = {"layer_type": "full_attention"} if "full_attention" in config.rope_parameters else {}
    _, theirs = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", **layers)
    assert load_model(name).text.ropes[0].concentration == pytest.approx(theirs)


@pytest.mark.parametrize(
    "kind", sorted({*CLASSES["theta"], *CLASSES["share"], *CLASSES["eps"], *CLASSES["scaling"]})
)
def test_what_a_file_that_says_nothing_has(kind):
    local = SAME_CLASS.get(kind, kind)
    if local not in transformers.CONFIG_MAPPING or kind in HERE:
        pytest.skip("no class of transformers, or none of its text part")
    config = transformers.CONFIG_MAPPING[local]()
    theirs = table_of(config)
    assert theirs["rope_theta"] == CLASSES["theta"].get(kind, PLAIN_ROPE.base)
    assert theirs.get("partial_rotary_factor", 1.0) == CLASSES["share"].get(kind, 1.0)
    assert theirs.items() >= CLASSES["scaling"].get(kind, {"rope_type": "default"}).items()
    assert next(getattr(config, key) for key in EPS if hasattr(config, key)) == CLASSES["eps"].get(
        kind, USUAL_EPS
    )


@pytest.mark.parametrize("kind", sorted(CLASSES["router"]))
def test_weights_of_experts_of_a_file_that_says_nothing(kind):
    local = SAME_CLASS.get(kind, kind)
    if local not in transformers.CONFIG_MAPPING:
        pytest.skip("no class of transformers")
    config = transformers.CONFIG_MAPPING[local]()
    message = CLASSES["router"][kind]
    for key in ("norm_topk_prob", "routed_scaling_factor"):
        if hasattr(config, key):
            assert getattr(config, key) == message[key]
