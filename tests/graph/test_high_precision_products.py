"""Products that an 8- or 4-bit recipe leaves in 16 bits: modules, and layers at both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from tests import small

from forescale.errors import SpecError
from forescale.graph.layer import layer_block, mtp_block
from forescale.graph.ops import Gemm, GroupedGemm
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.inputs import with_high_precision_layers
from forescale.presets import project_as
from forescale.question import question_of
from forescale.spec import Layout, Precision

LATENT = changed(small.MOE_LAYER, ffn=changed(small.MOE_LAYER.ffn, latent_size=256))
LAYOUT = Layout(dp_shard=8, ep=4)


def rules(*modules: str) -> ShardingRules:
    degrees, choices = split_layout(LAYOUT)
    types = Precision(compute="nvfp4", high_precision_modules=modules)
    return ShardingRules(degrees=degrees, choices=choices, precision=types, seq_len=512.0)


def types_of(block) -> dict[str, str]:
    """Return the type of each operator's products."""
    return {
        operator.name: op.dtype
        for operator in block.operators
        for op in operator.forward
        if isinstance(op, Gemm | GroupedGemm)
    }


@pytest.mark.parametrize(
    ("module", "products"),
    [
        (
            "attention",
            {f"attention.{name}" for name in ("query_down", "query_up", "kv_down", "kv_up", "output")},
        ),
        ("latent", {"moe.latent_down", "moe.latent_up"}),
        ("mtp", set()),
    ],
)
def test_a_module_is_left_in_16_bits(module, products):
    plain, wide = layer_block(small.moe(), LATENT, rules()), layer_block(small.moe(), LATENT, rules(module))
    before, after = types_of(plain), types_of(wide)
    assert {name for name in after if after[name] != before[name]} == products
    assert all(before[name] == "nvfp4" and after[name] == "bf16" for name in products)
    narrow = {item.name for item in plain.parameters if item.narrow}
    assert narrow - {item.name for item in wide.parameters if item.narrow} == {
        f"{name}.weight" for name in products
    }


def test_layers_that_predict_further_tokens_are_left_in_16_bits():
    model = replace(small.moe(), num_mtp_layers=1)
    assert "nvfp4" in types_of(mtp_block(model, rules())).values()
    assert set(types_of(mtp_block(model, rules("mtp"))).values()) == {"bf16"}


def test_a_wide_layer_is_one_of_16_bits():
    wide = layer_block(small.moe(), changed(LATENT, high_precision=True), rules())
    plain = layer_block(small.moe(), LATENT, replace(rules(), precision=Precision()))
    assert types_of(wide) == types_of(plain)
    assert wide.tensors == plain.tensors
    assert not any(item.narrow for item in wide.parameters)
    assert wide.name == f"16-bit {plain.name}"


def question(compute: str, **types: object):
    workload = changed(small.workload(), precision=Precision(compute=compute, **types))
    return question_of(small.dense(8), small.cluster(8), workload, strategy=Layout(dp_shard=8, zero=1))


def test_layers_at_both_ends_are_marked():
    asked = question("fp8", num_layers_at_start_in_bf16=1, num_layers_at_end_in_bf16=2)
    marked = [layer.high_precision for layer in with_high_precision_layers(asked).model.layers]
    assert marked == [True, *[False] * 5, True, True]
    assert (
        with_high_precision_layers(question("bf16", num_layers_at_end_in_bf16=2))
        .model.layers[-1]
        .high_precision
        is False
    )


def test_more_layers_than_the_model_has_are_refused():
    with pytest.raises(SpecError, match="9 layers in bf16; small-dense has 8"):
        project_as(question("fp8", num_layers_at_start_in_bf16=4, num_layers_at_end_in_bf16=5))


@pytest.mark.parametrize(
    ("compute", "types", "said"),
    [
        ("bf16", {"num_layers_at_end_in_bf16": 2, "high_precision_modules": ("mtp",)}, "high_precision_modules, num_"),
        ("fp8", {"num_layers_at_end_in_bf16": 8}, "all 8 layers are in bf16"),
        ("fp8", {"num_layers_at_end_in_bf16": 2}, ""),
    ],
)  # fmt: skip
def test_what_leaves_no_product_in_8_bits_is_noted(compute, types, said):
    texts = [
        note.text
        for note in project_as(question(compute, **types)).notes
        if "in bf16" in note.text or "8 bits" in note.text
    ]
    assert len(texts) == bool(said)
    assert all(said in text for text in texts)


def test_half_of_the_layers_cost_half_of_the_difference():
    narrow, half, whole = (
        project_as(question("fp8", num_layers_at_end_in_bf16=count)).step_time.expected for count in (0, 4, 8)
    )
    assert half == pytest.approx((narrow + whole) / 2.0, rel=1e-3)
    assert narrow != whole
