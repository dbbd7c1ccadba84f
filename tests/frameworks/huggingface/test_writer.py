"""transformers builds the same parameters from the configuration that is written for a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.huggingface.writer import config_of
from forescale.graph.counts import count_parameters

ONE_OF_EACH = (
    "llama-3.2-1b", "mistral-7b", "qwen2.5-7b", "qwen3-4b", "gemma-7b", "gemma-2-2b", "gemma-3-1b", "olmo-2-7b",
    "gpt2-xl", "pythia-1b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen2-57b-a14b", "deepseek-v2-lite", "gpt-oss-20b",
)  # fmt: skip


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_transformers_makes_the_same_parameters(name: str) -> None:
    import torch
    import transformers

    model = load_model(name)
    model = replace(model, layers=model.layers[:3])
    config = config_of(model)
    for_model = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(for_model)
    assert sum(parameter.numel() for parameter in built.parameters()) == count_parameters(model).total
