"""Parameter counts against the classes of transformers, built from the same configuration without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from forescale.catalogue.models import load_model, model_names, model_record
from forescale.graph.parameters import count_parameters
from forescale.spec import FullAttention, LinearAttention, Model, MoeFfn

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SAME_CLASS = {"kimi_k2": "deepseek_v3", "minimax_text_01": "minimax", "mimo": "qwen2"}
"""Architectures outside transformers whose weights are those of a class inside it."""
OTHER = {"grok-1", "internlm", "mpt"}
"""Not in transformers, or not the same model there: its MPT has neither biases nor learned positions."""
NAMES = [
    name
    for name in model_names()
    if model_record(name).get("huggingface", {}).get("model_type", "grok-1") not in OTHER
]


def class_configuration(config: Mapping[str, Any]) -> Any:
    """Return transformers' own reading of `config`."""
    keys = dict(config)
    kind = keys.pop("model_type")
    kind = SAME_CLASS.get(kind, kind)
    if "attn_type_list" in keys:
        names = ("linear_attention", "full_attention")
        keys["layer_types"] = [names[softmax] for softmax in keys.pop("attn_type_list")]
    if kind == "dbrx":
        keys["attn_config"] = {**keys["attn_config"], "rope_theta": 500000}
    return transformers.AutoConfig.for_model(kind, **keys)


def class_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters of transformers' class, tied weights once.

    Selection biases of routers are buffers there; they are saved with the weights, and we count them.
    """
    built = class_configuration(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    weights = sum(parameter.numel() for parameter in model.parameters())
    biases = (b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    return int(weights + sum(biases))


def class_layers(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what transformers makes of each layer: its attention and its feed-forward, where it says."""
    built = class_configuration(config)
    attention = getattr(built, "layer_types", None) or ["?"] * built.num_hidden_layers
    mlp = getattr(built, "mlp_layer_types", None) or ["?"] * built.num_hidden_layers
    near = {"sliding_attention": "window", "chunked_attention": "window"}
    return [(near.get(kind, kind), ffn) for kind, ffn in zip(attention, mlp, strict=True)]


def our_layers(model: Model) -> list[tuple[str, str]]:
    """Return the same of our model."""
    found = []
    for layer in model.layers:
        linear = isinstance(layer.attention, LinearAttention)
        local = isinstance(layer.attention, FullAttention) and layer.attention.window is not None
        kind = "linear_attention" if linear else "window" if local else "full_attention"
        found.append((kind, "sparse" if isinstance(layer.ffn, MoeFfn) else "dense"))
    return found


def test_the_oracle_covers_the_catalogue():
    types = {model_record(name)["huggingface"]["model_type"] for name in NAMES}
    assert len(NAMES) >= 100
    assert len(types) >= 25


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_total_equals_that_of_the_class_to_the_last_parameter(name: str):
    # transformers leaves multi-token-prediction layers out.
    ours = count_parameters(replace(load_model(name), num_mtp_layers=0)).total
    assert ours == class_parameters(model_record(name)["huggingface"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in NAMES if "nemotron" not in name])
def test_layers_are_of_the_kinds_that_the_class_makes(name: str):
    theirs = class_layers(model_record(name)["huggingface"])
    ours = our_layers(load_model(name))
    assert len(ours) == len(theirs)
    for layer, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert other[0] in ("?", mine[0]), f"attention of layer {layer}"
        assert other[1] in ("?", mine[1]), f"feed-forward of layer {layer}"
