"""Rotary positions and norms in Megatron-Bridge's fields, and in Primus' keys."""

from __future__ import annotations

import pytest

from forescale.export import export
from forescale.face import ask

ROPE = "model.layers.attention.rope"


def exported(model: str, to: str):
    return export(ask(model, "h100-sxm", devices=64, ep=1, seq_len=4096, global_batch_size=64, framework=to))


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        (
            "llama-3.1-8b",
            (
                "rotary_base = 500000",
                "rope_scaling = True",
                "rope_scaling_factor = 8.0",
                "layernorm_epsilon = 1e-05",
            ),
        ),
        ("glm-4.5-air", ("rotary_base = 1000000", "rotary_percent = 0.5")),
        (
            "kimi-k2",
            (
                "rotary_base = 50000",
                "rotary_scaling_factor = 32.0",
                "mscale_all_dim = 1.0",
                "beta_fast = 1.0",
            ),
        ),
        ("gpt-oss-20b", ("yarn_rotary_scaling_factor = 32.0", "yarn_mscale = 1.0")),
    ],
)
def test_fields_of_a_recipe(model, lines):
    result = exported(model, "megatron-bridge")
    assert [line for line in lines if f"cfg.model.{line}\n" not in result.texts["recipe.py"]] == []
    assert ROPE not in {item.word for item in result.unsaid}


def test_a_recipe_over_a_named_model_keeps_its_own_base(tmp_path):
    from forescale.catalogue.models import load_model
    from forescale.frameworks.readers import read_file
    from forescale.frameworks.reading import Options

    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from megatron.bridge import AutoBridge\n"
        "from megatron.bridge.recipes.common import _pretrain_common\n\n"
        "def recipe():\n"
        "    cfg = _pretrain_common()\n"
        "    cfg.model = AutoBridge.from_hf_pretrained('Qwen/Qwen3-8B').to_megatron_provider(load_weights=False)\n"
        "    cfg.model.rotary_base = 5000000\n"
        "    cfg.train.micro_batch_size, cfg.train.global_batch_size = 1, 8\n"
        "    cfg.model.seq_length = 4096\n"
        "    return cfg\n"
    )
    read = read_file(recipe, Options(model_of=load_model, num_devices=8))
    assert read.model.ropes[0].base == 5e6
    assert read.model.shape == load_model("qwen3-8b").shape


@pytest.mark.parametrize(
    ("model", "lines", "unsaid"),
    [
        ("qwen3-8b", ("rotary_base: 1000000", "norm_epsilon: 1e-06"), False),
        ("deepseek-v3", ("rotary_scaling_factor: 40.0", "mscale_all_dim: 1.0"), False),
        ("kimi-k2", ("rotary_scaling_factor: 32.0",), True),  # betas of latent attention have no keys
    ],
)
def test_keys_of_an_experiment(model, lines, unsaid):
    result = exported(model, "primus")
    assert [line for line in lines if f" {line}\n" not in result.texts["experiment.yaml"]] == []
    assert (ROPE in {item.word for item in result.unsaid}) is unsaid
