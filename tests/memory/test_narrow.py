"""What products in 8 and 4 bits keep: inputs, weights beside or instead of the parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small

from forescale.catalogue.clusters import load_cluster
from forescale.graph.layer import layer_block
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.states import narrow_weight_bytes, wide_weight_bytes
from forescale.project import project
from forescale.spec import Kernels, Layer, Layout, Overlap, Precision, Recompute

TOKENS = 512.0
HOPPER, BLACKWELL = (load_cluster(name, 8).device for name in ("h100-sxm", "b200"))
CURRENT = Precision(compute="fp8", recipe="current")


def kept(layer: Layer, precision: Precision, recompute: Recompute | None = None, **kernels: bool):
    degrees, choices = split_layout(Layout(sp=False, kernels=Kernels(**kernels)))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=precision, seq_len=TOKENS)
    block = layer_block(small.moe(), layer, layout)
    return {tensor.name: tensor.num_bytes for tensor in keep(block, recompute or Recompute()).tensors}


def test_an_input_of_one_linear_layer_is_kept_in_8_bits():
    wide, narrow = kept(small.DENSE_LAYER, Precision()), kept(small.DENSE_LAYER, CURRENT)
    for name in ("attention.input", "ffn.input", "ffn.activated"):
        assert narrow[name] == wide[name] / 2
    assert narrow["ffn.up"] == wide["ffn.up"], "the activation keeps its own input as it is"


def test_the_attention_output_is_kept_wide_for_the_core_and_narrow_for_the_product():
    narrow = kept(small.DENSE_LAYER, CURRENT)
    assert narrow["attention.output.input"] == narrow["attention.core_output"] / 2
    assert "attention.output.input" not in kept(small.DENSE_LAYER, Precision())


def test_every_linear_layer_narrows_for_itself():
    """Queries and keys/values of latent attention go down apart; the router reads 16 bits, shared experts 8."""
    narrow = kept(small.MOE_LAYER, CURRENT)
    elements = TOKENS * 1024
    assert narrow["attention.query_down.input"] == narrow["attention.kv_down.input"] == elements
    assert "attention.input" not in narrow
    assert narrow["ffn.input"] == 2 * elements
    assert narrow["shared.up.input"] == elements


def test_a_norm_that_is_made_again_brings_its_narrow_copies_back():
    """Megatron-LM: set_save_original_input where the input is recomputed."""
    policy = Recompute(granularity="selective", modules=("layernorm",))
    narrow = kept(small.MOE_LAYER, CURRENT, policy)
    assert not {"attention.input", "attention.query_down.input", "shared.up.input"} & set(narrow)


def test_deepseeks_stack_keeps_inputs_of_activations_in_8_bits_and_attention_in_12():
    """DeepSeek-V3, section 3.3.3; what is replayed of SwiGLU starts from its input in 8 bits."""
    blockwise = Precision(compute="fp8", recipe="blockwise")
    stack = {"narrow_activation_inputs": True, "narrow_core_output": True}
    wide, narrow = kept(small.MOE_LAYER, blockwise), kept(small.MOE_LAYER, blockwise, **stack)
    scale = 4 / 128
    for name in ("moe.up", "shared.up"):
        assert name not in narrow
        assert narrow[f"{name}.narrow"] == wide[name] / 2 * (1 + scale)
    assert narrow["attention.core_output.narrow"] == wide["attention.core_output"] / 2 * (1.5 + scale)
    assert not {"attention.core_output", "attention.output.input"} & set(narrow)
    again = Recompute(granularity="selective", modules=("moe_act",))
    assert set(narrow) - set(kept(small.MOE_LAYER, blockwise, again, **stack)) == {"moe.activated"}
    assert kept(small.MOE_LAYER, Precision(), **stack) == kept(small.MOE_LAYER, Precision())


def test_torchao_keeps_wide_inputs():
    wide, narrow = (kept(small.DENSE_LAYER, p, narrow_inputs=False) for p in (Precision(), CURRENT))
    assert wide == narrow


@pytest.mark.parametrize(
    ("precision", "per_element"),
    [
        (CURRENT, 1.0),
        (Precision(compute="fp8", recipe="blockwise"), 1.0 + 4.0 / 128),
        (Precision(compute="mxfp8"), 33.0 / 32),
        (Precision(compute="nvfp4"), 9.0 / 16),
    ],
)
def test_scales_of_blocks_are_kept_too(precision, per_element):
    assert kept(small.DENSE_LAYER, precision)["ffn.input"] == TOKENS * 1024 * per_element


@pytest.mark.parametrize(
    ("device", "precision", "added"),
    [
        (HOPPER, Precision(), 0.0),
        (HOPPER, CURRENT, 2.0),
        (BLACKWELL, CURRENT, 1.0),
        (BLACKWELL, Precision(compute="mxfp8"), 2 * 33.0 / 32),
        (HOPPER, replace(CURRENT, parameters="fp8"), 1.0),
        (BLACKWELL, replace(CURRENT, parameters="fp8"), 0.0),
    ],
)
def test_weights_along_rows_and_columns(device, precision, added):
    assert narrow_weight_bytes(device, precision, Kernels()) == added


def test_only_narrow_weights_are_stored_in_8_bits():
    assert wide_weight_bytes(replace(CURRENT, parameters="fp8")) == 1.0
    assert wide_weight_bytes(CURRENT) == wide_weight_bytes(Precision()) == 0.0


def weights(precision: Precision, zero: int = 1, **kernels: bool) -> float:
    layout = Layout(dp_shard=8, zero=zero, kernels=Kernels(**kernels))
    workload = replace(small.workload(), precision=precision)
    return project(small.dense(), small.cluster(8), layout, workload).memory.stages[0].weights_bytes


def test_weights_of_a_stage():
    layers = 8 * (1024 * 64 * (16 + 2 * 4) + 1024 * 1024 + 3 * 1024 * 4096)
    plain = weights(Precision())
    assert weights(CURRENT) == plain + 2 * layers
    assert weights(CURRENT, caches_narrow_weights=False) == plain
    assert weights(replace(CURRENT, parameters="fp8")) == plain
    blockwise = replace(CURRENT, recipe="blockwise", parameters="fp8")
    both, one = weights(blockwise), weights(blockwise, transposes_weights=True)
    assert both - one == layers * (1 + 4 / 128)
    assert weights(CURRENT, zero=3) == weights(Precision(), zero=3)


def test_overlapped_products_have_workspaces_of_their_own():
    def buffers(overlap: Overlap) -> float:
        layout = Layout(tp=2, dp_shard=4, overlap=overlap)
        result = project(small.dense(), load_cluster("h100-sxm", 8), layout, small.workload())
        return result.memory.stages[0].buffers_bytes

    assert buffers(Overlap(tensor=True)) - buffers(Overlap()) == 3 * 32 * 2**20
