"""Rotary positions and norms of models that torchtitan has no flavor of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from forescale.catalogue.models import load_model
from forescale.export import export
from forescale.face import ask

LLAMA3 = "theta=500000.0, scaling='llama', scaling_factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, "


def exported(model: str, to: str):
    """A model of fewer layers, which no registry has."""
    known = load_model(model)
    question = ask(
        replace(known, layers=known.layers[:5], num_mtp_layers=0),
        "h100-sxm",
        devices=8,
        seq_len=4096,
        global_batch_size=8,
        zero=3,
        framework=to,
    )
    return export(question)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("llama-3.1-8b", f"{LLAMA3}original_max_position_embeddings=8192)"),
        ("qwen3-8b", "CosSinRoPE.Config(dim=128, max_seq_len=40960, theta=1000000.0)"),
        (
            "deepseek-v2-lite",
            "scaling='yarn', rope_factor=40.0, beta_fast=32.0, beta_slow=1.0, original_seq_len=4096",
        ),
        ("deepseek-v2-lite", "mscale=0.707,"),
    ],
)
def test_python(model, text):
    result = exported(model, "torchtitan@0.3")
    assert text in result.texts["plan.py"]
    assert {item.word for item in result.unsaid} <= {"model.norm_eps"}
