"""Adapters beside frozen products: how many parameters they have, and what is multiplied for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import dense, moe

from forescale import project
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.graph.counts import EVERYTHING, count_parameters, count_trained, model_flops
from forescale.graph.layer import embedding_block, head_block, layer_block
from forescale.graph.ops import Collective, Elementwise, Gemm, GroupedGemm
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import FullAttention, Kernels, Layout, LinearAttention, Model
from forescale.spec.workload import ALL_LINEAR, Precision, Trainable

QUERY_VALUE = ("q_proj", "v_proj")
PASSES = ("forward", "backward_input", "backward_weight")


def lora(rank, **more):
    return Trainable(lora_rank=rank, **more)


@pytest.mark.parametrize(
    ("model", "trainable", "published"),
    [
        # Hu et al. 2021, arXiv:2106.09685, table 4: LoRA on GPT-3 175B, 4.7M and 37.7M
        ("gpt3-175b", lora(1, lora_targets=QUERY_VALUE), 4.7e6),
        ("gpt3-175b", lora(8, lora_targets=QUERY_VALUE), 37.7e6),
        # torchtune, docs/source/tutorials/lora_finetune.rst: rank 8 on q and v of Llama-2-7B
        ("llama-2-7b", lora(8, lora_targets=QUERY_VALUE), 4_194_304),
        # PEFT, all-linear of rank 16 on Llama-3.1-8B: 16 · Σ (inputs + outputs) of seven products in 32 layers
        ("llama-3.1-8b", lora(16), 41_943_040),
    ],
)
def test_published_numbers_of_trained_parameters(model, trainable, published):
    result = count_trained(load_model(model), trainable)
    assert result == pytest.approx(published, rel=0.01 if isinstance(published, float) else 0.0)


def test_fused_targets_have_one_adapter():
    model = load_model("llama-3.1-8b")
    h, kv, ffn, rank = 4096, 1024, 14336, 32
    fused = lora(rank, lora_targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    item = (h + h + 2 * kv) + (h + h) + (h + 2 * ffn) + (ffn + h)
    assert count_trained(model, fused) == 32 * rank * item


def test_recurrent_layers_have_one_adapter_where_they_begin_and_one_where_they_end():
    # Mamba-2 of Nemotron 3 Nano: one in_proj makes gate, values, keys, queries and decay (mamba_ssm, Mamba2).
    model, rank = load_model("nemotron-3-nano-30b-a3b"), 16
    mamba = sum(isinstance(layer.attention, LinearAttention) for layer in model.layers)
    h, inner, groups, states, heads = 2688, 4096, 8, 128, 64
    into, out = h + 2 * inner + 2 * groups * states + heads, inner + h
    for targets, item in ((("in_proj",), into), (("out_proj",), out), (("in_proj", "out_proj"), into + out)):
        assert count_trained(model, lora(rank, lora_targets=targets)) == mamba * rank * item
    # Megatron's linear_qkv and linear_proj are of attention: 32 heads of 128, two of keys and values
    attention = sum(isinstance(layer.attention, FullAttention) for layer in model.layers)
    item = (h + 4096 + 2 * 256) + (4096 + h)
    assert count_trained(model, lora(rank, lora_targets=("qkv_proj", "o_proj"))) == attention * rank * item


def test_adapters_of_recurrent_layers_are_refused_where_there_are_none():
    question = {"cluster": "h100-sxm", "devices": 8, "seq_len": 2048, "global_batch_size": 8}
    trainable = {"lora_rank": 8, "lora_targets": ("q_proj", "out_proj")}
    with raises(SpecError, "illegal_layout adapters of recurrent layers"):
        project("opt-13b", **question, trainable=trainable)
    whole = {"lora_rank": 8, "lora_targets": (*ALL_LINEAR, "in_proj", "out_proj")}
    plain = project("opt-13b", **question, trainable={"lora_rank": 8})
    assert project("opt-13b", **question, trainable=whole).step_time_s == plain.step_time_s


def test_experts_have_their_own_adapters_or_share_one_or_have_none():
    model = moe()
    spec = model.moe
    assert spec is not None
    local, shared, none = (
        count_trained(model, lora(4, lora_experts=kind)) for kind in ("own", "shared", "none")
    )
    one = 4 * (3 * (model.hidden_size + spec.ffn_hidden_size))
    num_layers = sum(layer.ffn == spec for layer in model.layers)
    assert local - none == num_layers * spec.num_experts * one
    assert shared - none == num_layers * one


def test_parts_trained_whole_beside_adapters():
    model = dense()
    ends = count_trained(model, lora(4, whole=("embedding", "head"))) - count_trained(model, lora(4))
    assert ends == count_parameters(model).embedding + model.hidden_size  # the norm before the head


def test_everything_is_trained_unless_frozen():
    model = dense()
    assert count_trained(model, EVERYTHING) == count_parameters(model).total
    halves = (("embedding", "attention", "norm"), ("ffn", "moe", "head"))
    assert (
        sum(count_trained(model, Trainable(frozen=half)) for half in halves) == count_parameters(model).total
    )


def test_flops_of_frozen_weights_are_two_thirds():
    """Megatron-Bridge, training/utils/flop_utils.py: 2/3 of the products by frozen weights, all of attention."""
    model = load_model("llama-3.1-8b")
    whole, subset = (
        model_flops(model, 1024, trainable=trainable)
        for trainable in (EVERYTHING, Trainable(frozen=("attention", "ffn", "norm", "embedding")))
    )
    head = 6.0 * 1024 * model.hidden_size * model.vocab_size
    assert subset.full - head == pytest.approx(2 / 3 * (whole.full - head), rel=0.03)
    assert whole.full - subset.full == pytest.approx(
        2.0 * 1024 * (count_parameters(model).total - count_parameters(model).embedding), rel=1e-3
    )


def block_of(model: Model, trainable: Trainable, precision: Precision | None = None, **layout):
    degrees, choices = split_layout(Layout(**layout))
    types = precision or Precision()
    sharding = ShardingRules(
        degrees=degrees, choices=choices, precision=types, seq_len=256.0, trainable=trainable
    )
    return layer_block(model, model.layers[-1], sharding)


def test_adapters_send_what_megatron_bridge_sends():
    """Down's rank is gathered, or its result summed; up's gradient is summed, and of row products up is gathered."""
    block = block_of(dense(), lora(8, lora_targets=("q_proj", "down_proj")), tp=2)
    sent = {
        operator.name: [
            [(item.kind, float(item.num_bytes)) for item in work if isinstance(item, Collective)]
            for work in (operator.forward, operator.backward_input)
        ]
        for operator in block.operators
        if "_proj" in operator.name or ".lora" in operator.name
    }
    low, whole = 256 * 8 * 2.0, 256 * dense().hidden_size * 2.0
    assert sent == {
        "attention.qkv.q_proj": [[("all_gather", low)], [("all_reduce", low)]],
        "ffn.down.lora": [
            [("all_reduce", low), ("all_gather", whole)],
            [("all_gather", whole), ("all_reduce", low)],
        ],
    }


def test_frozen_experts_multiply_twice_and_keep_nothing():
    model = moe()
    operators = {
        operator.name: operator for operator in block_of(model, Trainable(frozen=("moe",))).operators
    }
    for name in ("moe.up", "moe.down"):
        assert operators[name].saves == ()
        assert operators[name].backward_weight == ()
        products = [
            primitive for primitive in operators[name].primitives if isinstance(primitive, Gemm | GroupedGemm)
        ]
        assert len(products) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora_targets": QUERY_VALUE}, "required_with lora_rank"),
        ({"lora_rank": 8, "frozen": ("head",)}, "no_effect frozen"),
        ({"lora_rank": 8, "lora_targets": ("qkv_proj", "q_proj")}, "given_twice qkv_proj and q_proj"),
    ],
)
def test_contradictions_are_refused(given, said):
    with raises(SpecError, said):
        Trainable(**given)


def test_products_of_adapters_on_two_tensor_ranks():
    """Of a column product the rank is cut for down and the outputs for up; of a row product the inputs, then outputs.

    Scaling a result reads and writes it once, adding it reads two and writes one: two kernels. In backward a gradient is
    scaled, and that of the input added to the other's.
    """
    block = block_of(dense(), lora(8, lora_targets=("q_proj", "down_proj")), tp=2, sp=True)
    operators = {operator.name: operator for operator in block.operators}
    h, ffn, rows, rank = 1024, 4096, 256, 8
    for name, inputs, low in (("attention.qkv.q_proj", h, rank / 2), ("ffn.down.lora", ffn / 2, rank)):
        one = operators[name]
        sizes = [[(e.m, e.n, e.k) for e in getattr(one, item) if isinstance(e, Gemm)] for item in PASSES]
        assert sizes == [
            [(rows, low, inputs), (rows, h / 2, rank)],
            [(rows, rank, h / 2), (rows, inputs, low)],
            [(h / 2, rank, rows), (low, inputs, rows)],
        ]
        moved = [(e.bytes_moved, e.kernels) for e in one.primitives if isinstance(e, Elementwise)]
        added = rows * h / 2
        assert moved == [(2 * 5 * added, 2), (2 * (2 * added + 3 * rows * inputs), 2)]
        local = {parameter.name: parameter.local_elements for parameter in block.parameters}
        assert (local[f"{name}.down"], local[f"{name}.up"]) == (inputs * low, rank * h / 2)
    assert not block.tensors["attention.input.beside"].differentiable  # of the input there is one gradient
    kept = [block.tensors[save] for save in operators["attention.qkv.q_proj"].saves]
    assert sum(item.elements * item.element_bytes for item in kept) == 2 * rows * (h + rank)


def test_quantised_weights_are_read_narrow_and_written_wide_before_each_product():
    """NF4: 4 bits and one fp32 constant per 64 elements (arXiv:2305.14314); products are of bf16."""
    model = moe()
    spec, h = model.moe, model.hidden_size
    assert spec is not None
    made = (4 + 32 / 64) / 8 + 2
    for of, name, weights in (
        (dense(), "ffn.up", 2 * h * 4096),
        (dense(), "ffn.down", h * 4096),
        (model, "moe.up", spec.num_experts * h * 2 * spec.ffn_hidden_size),
        (model, "moe.down", spec.num_experts * h * spec.ffn_hidden_size),
    ):
        block = block_of(of, lora(8, lora_experts="none"), precision=Precision(frozen="nf4"))
        operator = next(operator for operator in block.operators if operator.name == name)
        casts = [
            [e.bytes_moved for e in getattr(operator, item) if isinstance(e, Elementwise)] for item in PASSES
        ]
        assert casts == [[made * weights], [made * weights], []]
        wide = block.tensors[f"{name}.wide_weight"]
        assert (wide.elements, wide.differentiable) == (weights, False)


def test_matrices_alone_are_quantised_and_no_adapter():
    """bitsandbytes replaces linear layers; norms and biases stay as they are, ends and adapters too."""
    model = replace(dense(), norm="layer")
    for frozen, expected in (("nf4", {"query", "key", "value", "output", "up", "down"}), (None, set())):
        block = block_of(model, lora(8), precision=Precision(frozen=frozen))
        names = {parameter.name for parameter in block.parameters if parameter.quantised}
        assert {name.split(".")[1] for name in names} == expected
        assert not any(part in name for name in names for part in ("norm", "proj", "lora"))
        degrees, choices = split_layout(Layout())
        types = Precision(frozen=frozen)
        layout = ShardingRules(
            degrees=degrees, choices=choices, precision=types, seq_len=256.0, trainable=lora(8)
        )
        for end in (embedding_block, head_block):
            assert not any(parameter.quantised for parameter in end(model, layout).parameters)


def test_adapters_of_experts_that_are_split_take_a_rank_s_columns_and_inputs():
    """tp 2, etp 2: half of the width of each of 4 local experts, and the rows of both ranks."""
    block = block_of(moe(), lora(8), tp=2, ep=4, etp=2, dp_shard=4)
    rows, h, half = 2 * 256 / 2 * 4, 1024, 512 / 2
    for name, (inputs, outputs) in {
        "moe.up.up_proj": (h, half), "moe.up.gate_proj": (h, half), "moe.down.lora": (half, h)
    }.items():  # fmt: skip
        down, up = products_of(block, name)
        assert [(item.m, item.n, item.k) for item in (down, up)] == [(rows, 8, inputs), (rows, outputs, 8)]


def products_of(block, name):
    (operator,) = [operator for operator in block.operators if operator.name == name]
    return [item for item in operator.forward if isinstance(item, Gemm | GroupedGemm)]


@pytest.mark.parametrize("kernels", ["one", "each"])
def test_adapters_of_experts_on_four_ranks(kernels):
    """16 experts over ep 4: four local ones, each with h x 8 and 8 x 2f; every rank gets as many rows as it sends."""
    value = lora(8, lora_targets=("gate_up_proj",))
    layout = {"ep": 4, "dp_shard": 4, "kernels": Kernels(expert_kernels=kernels)}
    block = block_of(moe(), value, **layout)
    rows = 256 * 4
    for product, extents in zip(
        products_of(block, "moe.up.lora"), ((rows, 8, 1024), (rows, 2 * 512, 8)), strict=True
    ):
        assert isinstance(product, GroupedGemm)
        assert (product.m, product.n, product.k) == extents
        assert (product.groups, product.together) == (4, kernels == "one")
    (operator,) = [operator for operator in block.operators if operator.name == "moe.up.lora"]
    along = {
        item: [e.contract for e in getattr(operator, item) if isinstance(e, GroupedGemm)] for item in PASSES
    }
    assert along == dict(
        zip(PASSES, (["k", "k"], ["k", "k"], ["m", "m"]), strict=True)
    )  # weights' sum over rows
    sums = {
        item: [e.accumulate_bytes for e in getattr(operator, item) if isinstance(e, GroupedGemm)]
        for item in PASSES
    }
    assert sums == dict(
        zip(PASSES, ([0, 0], [0, 0], [2 * 4 - 2] * 2), strict=True)
    )  # fp32, beside a 16-bit result
    local = {parameter.name: parameter.local_elements for parameter in block.parameters}
    assert {
        parameter.group for parameter in block.parameters if parameter.name.startswith("moe.up.lora")
    } == {"expert"}
    assert local["moe.up.lora.down"] == 4 * 1024 * 8
    assert local["moe.up.lora.up"] == 4 * 8 * 2 * 512
    one = block_of(moe(), replace(value, lora_experts="shared"), **layout)
    assert {parameter.group for parameter in one.parameters if parameter.name.startswith("moe.up.lora")} == {
        "dense"
    }, "all ranks hold it"
    shared = products_of(one, "moe.up.lora")
    assert [(item.m, item.n, item.k) for item in shared if isinstance(item, Gemm)] == [
        (rows, 8, 1024),
        (rows, 1024, 8),
    ]


def test_one_adapter_of_queries_keys_and_values_on_two_ranks():
    block = block_of(dense(), lora(8, lora_targets=("qkv_proj",)), tp=2)
    down, up = products_of(block, "attention.qkv.qkv_proj")
    assert (down.n, up.n) == (4, (1024 + 2 * 256) / 2)
    copied = products_of(
        block_of(dense(), lora(8, lora_targets=("qkv_proj",)), tp=8), "attention.qkv.qkv_proj"
    )
    assert [item.n for item in copied] == [1, 1024 / 8 + 2 * 64]  # of 4 key heads one whole
    result = block.tensors["attention.qkv.qkv_proj.result"]
    assert result.elements == 2 * 256 * up.n, "what is added stands beside what it is scaled from"
    assert not result.differentiable


def test_keys_that_ranks_hold_copies_of_have_adapters_as_wide():
    """4 key heads of 64 over 8 ranks: each has one whole, and its part of the rank."""
    block = block_of(dense(), lora(8, lora_targets=("k_proj",)), tp=8)
    down, up = products_of(block, "attention.qkv.k_proj")
    assert (down.n, up.n) == (1, 64)


def test_dropout_before_an_adapter_keeps_what_is_left_and_a_mask_of_bytes():
    block = block_of(dense(), lora(8, lora_targets=("q_proj",), lora_dropout=True))
    (operator,) = [operator for operator in block.operators if operator.name == "attention.qkv.q_proj"]
    kept = {save: block.tensors[save] for save in operator.saves}
    assert kept["attention.qkv.q_proj.dropped"].num_bytes == 2 * 256 * 1024
    mask = kept["attention.qkv.q_proj.mask"]
    assert (mask.num_bytes, mask.differentiable) == (256 * 1024, False)
    first = operator.forward[0]
    assert isinstance(first, Elementwise)
    assert first.bytes_moved == (2 + 2 + 1) * 256 * 1024
