"""Architectures that pick keys, as their configurations say it and back."""

from __future__ import annotations

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.files import packaged
from forescale.frameworks.huggingface.reader import read_huggingface
from forescale.frameworks.huggingface.writer import config_of, same_model
from forescale.spec import Indexer

GLM = packaged("models/glm-5")["huggingface"]


def read(**keys):
    return read_huggingface({**GLM, "num_hidden_layers": 12, **keys}, name="m", where="config.json").model


def picks(model):
    return "".join("F" if layer.attention.indexer else "S" for layer in model.layers)


def test_an_indexer_in_every_layer_unless_told():
    model = read()
    assert picks(model) == "F" * 12
    assert model.layers[0].attention.top_k == 2048
    assert model.layers[0].attention.indexer == Indexer(num_heads=32, head_dim=128, interleaved_rotary=True)
    assert not load_model("deepseek-v3.2").layers[0].attention.indexer.interleaved_rotary
    assert model.mtp_layer is None


@pytest.mark.parametrize(
    "told",
    [
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_pattern": "FFFSSSFSSSFS"},
        {"index_topk_pattern": [{"F": "full", "S": "shared"}[item] for item in "FFFSSSFSSSFS"]},
        {"indexer_types": [{"F": "full", "S": "shared"}[item] for item in "FFFSSSFSSSFS"]},
        {
            "index_topk_freq": 2,
            "indexer_types": [{"F": "full", "S": "shared"}[item] for item in "FFFSSSFSSSFS"],
        },
    ],
)  # fmt: skip
def test_layers_that_share_keys_however_they_are_listed(told):
    """transformers 5.24, GlmMoeDsaConfig.__post_init__; what predicts further picks for itself."""
    model = read(**told)
    assert picks(model) == "FFFSSSFSSSFS"
    assert model.mtp_layer is not None
    assert model.mtp_layer.attention.indexer is not None
    assert read(**told, num_nextn_predict_layers=0).mtp_layer is None


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"index_topk_pattern": "FFX"},
            "wrong_type index_topk_pattern",
        ),
        ({"indexer_types": ["full"] * 3}, "wrong_count indexer_types"),
        ({"indexer_types": ["half"] * 12}, "not_one_of indexer_types"),
        ({"indexer_types": ["shared"] * 12}, "wrong_type the first entry of indexer_types"),
        ({"index_topk_pattern": "S" * 12}, "wrong_type the first entry of index_topk_pattern"),
    ],
)
def test_what_cannot_be_read_is_said(keys, text):
    with raises(ReaderError, text):
        read(**keys)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5", "glm-5.1", "glm-5.2"])
def test_they_are_written_as_they_were_read(name):
    model = load_model(name)
    config = config_of(model)
    assert config["model_type"] == packaged(f"models/{name}")["huggingface"]["model_type"]
    assert same_model(read_huggingface(config, name=name, where="config.json").model, model)
