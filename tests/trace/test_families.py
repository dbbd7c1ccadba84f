"""Saved bytes and FLOPs of types of transformers against PyTorch's hooks and its counter."""

import pytest

pytest.importorskip("transformers")

from benchmarks.bench_blocks import row_of


@pytest.mark.parametrize(
    "kind",
    [
        "gemma3_text",  # norms in fp32
        "phi3",  # queries whose heads lie apart, as attention's result does then
        "falcon",  # keys of one head, for which no fused attention exists
        "gpt2",  # convolutions of width 1
        "mixtral",  # grouped products
        "deepseek_v3",  # latent attention
    ],
)
def test_saved_bytes_and_flops_are_those_of_pytorch(kind):
    of_bytes, of_flops = row_of(kind)
    assert of_bytes <= 0.01
    assert of_flops == 0.0
