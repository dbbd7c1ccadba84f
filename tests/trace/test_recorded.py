"""Packaged recordings are what recording a configuration's own code gives, kernel by kernel.

Peaks of blocks may differ by 5 %, and that of the embedding by 25 %: of the moments within one operator, a recording
keeps the largest at its own dimensions.
"""

import pytest

pytest.importorskip("transformers")

from tests.trace.same import differences

SMALL = {
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_hidden_layers": 2,
    "vocab_size": 520,
    "pad_token_id": 1,
}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2}
CASES = {
    "grouped heads": ({"model_type": "llama", **SMALL, **HEADS, "head_dim": 48}, "bf16", "sdpa"),
    "autocast": ({"model_type": "olmo2", **SMALL, **HEADS}, "autocast", "sdpa"),
    "windows": (
        {"model_type": "gemma3_text", **SMALL, **HEADS, "num_hidden_layers": 6, "head_dim": 48, "sliding_window": 32},
        "autocast",
        "sdpa",
    ),
    "eager attention": ({"model_type": "glm4", **SMALL, **HEADS, "head_dim": 48}, "bf16", "eager"),
    "experts": (
        {
            "model_type": "qwen3_moe", **SMALL, **HEADS, "head_dim": 48, "num_experts": 24, "num_experts_per_tok": 5,
            "moe_intermediate_size": 112,
        },
        "bf16",
        "sdpa",
    ),
    "a type without a decoder": ({"model_type": "smollm3", **SMALL, **HEADS}, "bf16", "sdpa"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_kernel_and_byte_agrees(name):
    config, precision, attention = CASES[name]
    assert differences(config, precision, attention, (3, 72)) == []
