"""Parameter counts against the classes of transformers, built from the same configuration without weights."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from forescale.catalogue.models import load_model, model_names
from forescale.errors import ForescaleError, UnknownKeyError
from forescale.files import packaged
from forescale.frameworks.huggingface.reader import read_huggingface, supported_model_types
from forescale.graph.counts import count_parameters
from forescale.spec import FullAttention, LinearAttention, Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SAME_CLASS = {"kimi_k2": "deepseek_v3", "kimi_vl": "kimi_k25", "minimax_text_01": "minimax", "mimo": "qwen2"}
"""Architectures outside transformers whose weights are those of a class inside it."""
OTHER = {"baichuan", "grok-1", "internlm", "mpt"}
"""Not in transformers, or not the same model there: its MPT has neither biases nor learned positions."""
MIXED = {
    "exaone4",
    "exaone4_5",
    "exaone_moe",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gpt_oss",
    "llama4",
    "minimax_text_01",
    "olmo3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
}
"""Architectures whose layers differ in how far they see."""
LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
TOWER = re.compile(r"vision_tower|vision_model|visual")
NAMES = [
    name
    for name in model_names()
    if packaged(f"models/{name}").get("huggingface", {}).get("model_type", "grok-1") not in OTHER
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


def class_parameters(config: Mapping[str, Any], *, buffers: bool = True) -> tuple[int, list[int]]:
    """Return the parameters of transformers' class, tied weights once: all, and those of each layer.

    Selection biases of routers are buffers there; they are saved with the weights, and we count them but in traces.
    """
    built = class_configuration(config)
    classes = (
        transformers.AutoModelForImageTextToText
        if "vision_config" in config
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = classes.from_config(built)
    counted = model.named_buffers() if buffers else ()
    biases = [item for item in counted if item[0].endswith("e_score_correction_bias")]
    weights = [(name, tensor.numel()) for name, tensor in (*model.named_parameters(), *biases)]
    layers: Counter[int] = Counter()
    for name, size in weights:
        if (result := LAYER.search(name)) is not None and not TOWER.search(name):
            layers[int(result[1])] += size
    return sum(size for _, size in weights), [layers[i] for i in range(len(layers))]


def our_parameters(model: Model) -> tuple[int, list[int]]:
    """Return the same of our model, without the multi-token prediction that transformers leaves out."""
    model = replace(model, num_mtp_layers=0)
    one, two = (count_parameters(replace(model, layers=model.layers[:1] * times)).total for times in (1, 2))
    rest = 2 * one - two
    layer_kinds = {
        kind: count_parameters(replace(model, layers=(kind,))).total - rest for kind in model.layer_kinds
    }
    return count_parameters(model).total, [layer_kinds[layer] for layer in model.layers]


def our_attention(model: Model) -> list[str]:
    """Return the kind of each layer's attention in transformers' words."""
    result = []
    for layer in model.layers:
        linear = isinstance(layer.attention, LinearAttention)
        local = isinstance(layer.attention, FullAttention) and layer.attention.window is not None
        result.append("linear_attention" if linear else "window" if local else "full_attention")
    return result


def test_the_oracle_covers_the_catalogue():
    types = {packaged(f"models/{name}")["huggingface"]["model_type"] for name in NAMES}
    assert len(NAMES) >= 100
    assert len(types) >= 25


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_parameters_equal_those_of_the_class_to_the_last_one(name: str):
    record = packaged(f"models/{name}")
    expected = class_parameters(record["huggingface"], buffers=not record.get("trace"))
    assert our_parameters(load_model(name)) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name in NAMES if packaged(f"models/{name}")["huggingface"]["model_type"] in MIXED]
)
def test_layers_see_as_far_as_those_of_the_class(name: str):
    near = {"sliding_attention": "window", "chunked_attention": "window"}
    kinds = class_configuration(packaged(f"models/{name}")["huggingface"]).get_text_config().layer_types
    assert our_attention(load_model(name)) == [near.get(kind, kind) for kind in kinds]


def test_no_default_of_transformers_has_a_key_that_seems_misspelt():
    explicit = {}
    kinds = [kind for kind in supported_model_types() if kind in transformers.CONFIG_MAPPING]
    for kind in kinds:
        config = json.loads(json.dumps(transformers.CONFIG_MAPPING[kind]().to_dict(), default=str))
        try:
            read_huggingface(config, name=kind, where="config.json")
        except ForescaleError as error:
            explicit[kind] = type(error)
    assert len(kinds) > 45
    assert UnknownKeyError not in explicit.values()
    without_width = [
        "glm4_moe",
        "glm4v_moe_text",
        "qwen3_omni_moe_text",
    ]  # heads that do not divide the hidden size
    assert sorted(explicit) == sorted(["deepseek_v2", "gemma3", "llama4", *without_width])
