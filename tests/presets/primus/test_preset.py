"""Figures that the Primus projection documentation prints, and what its source says of its own examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small
from tests.errors import raises
from tests.small import asked

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.presets import project_as
from forescale.presets.primus.components import (
    first_components,
    last_components,
    layer_component,
    layer_components,
)
from forescale.presets.primus.preset import DOCUMENTED, PRIMUS, PRIMUS_2026, PrimusPreset, layer_chunks
from forescale.spec import (
    DenseFfn,
    FullAttention,
    Kernels,
    Layer,
    Layout,
    Model,
    MoeFfn,
    Recompute,
    Workload,
)

GB = 2.0**30
EXAMPLE = Layout(pp=4, ep=8, dp_shard=8, micro_batch_size=2, kernels=Kernels(cross_entropy="fused"))
EXAMPLE_INPUT = Workload(seq_len=8192, global_batch_size=128)


def states(stage):
    return (stage.weights + stage.gradients + stage.optimizer) / GB


@pytest.fixture(scope="module")
def mixtral():
    return load_model("mixtral-8x22b")


@pytest.mark.parametrize(("preset", "activations"), [(PRIMUS, 503.56), (PRIMUS_2026, 277.25)])
def test_mixtral_summary(mixtral, preset, activations):
    result = project_as(
        asked(mixtral, load_cluster("mi355x", 32), EXAMPLE, EXAMPLE_INPUT, preset=preset.name)
    )
    rank = result.memory.stages[0]
    assert result.preset == preset.name
    assert result.params.total == 140_845_350_912
    assert rank.weights_bytes == 2 * 6_078_750_720
    kept = (rank.weights_bytes + rank.gradients_bytes + rank.optimizer_bytes) / GB
    assert kept == pytest.approx(79.26, abs=0.005)
    assert rank.activations_bytes / GB == pytest.approx(activations, abs=0.005)
    assert rank.peak_bytes == pytest.approx(kept * GB + rank.activations_bytes)
    if preset is PRIMUS:
        assert rank.peak_bytes / GB == pytest.approx(582.82, abs=0.005)
    assert result.memory.verdict == "OOM"


def test_components_as_primus_prints_them(mixtral):
    """Its documentation's component-wise results of rank 0; a dense layer is listed although the model has none."""
    question = asked(mixtral, load_cluster("mi355x", 32), EXAMPLE, EXAMPLE_INPUT, preset="primus")
    embedding, dense, moe, norm, output, loss = PRIMUS.components(question)
    assert (embedding.name, embedding.parameters, embedding.kept_bytes / GB) == (
        "embedding",
        616_562_688,
        0.1875,
    )
    assert (dense.name, dense.parameters, dense.kept_bytes / GB) == (
        "dense_transformer_layer",
        390_107_136,
        3.25,
    )
    assert (moe.name, moe.parameters, moe.kept_bytes / GB) == ("moe_transformer_layer", 390_156_288, 5.125)
    assert (dense.times, moe.times) == (0, 56)
    assert [(part.name, part.kept_bytes / GB) for part in dense.below] == [
        ("layer_norm", 0.1875),
        ("self_attention", 0.625),
        ("residual_add", 0.1875),
        ("mlp", 1.6875),
    ]
    assert {part.name: part.kept_bytes / GB for part in moe.below}["mlp"] == 3.375
    assert (norm.name, norm.kept_bytes / GB) == ("final_layernorm", 0.1875)
    assert (output.name, output.parameters, output.kept_bytes / GB) == ("output_layer", 616_562_688, 3.0625)
    assert (loss.name, loss.kept_bytes) == ("calc_loss", 0)
    assert project_as(question).params.per_stage[0] == 6_078_750_720


def test_gradient_all_reduce_of_the_example(mixtral):
    """Its documentation's communication breakdown on 8 nodes: 483.2 ms of experts over 2 nodes, 57.1 ms of others."""
    layout = replace(EXAMPLE, dp_shard=16)
    question = asked(mixtral, load_cluster("mi355x", 64), layout, EXAMPLE_INPUT, preset="primus")
    experts, others = PRIMUS.collectives(question)
    assert (experts.num_ranks, others.num_ranks) == (2, 16)
    assert (experts.num_bytes + others.num_bytes) / 2**20 == 24192.0
    assert [round(1e3 * item.seconds, 1) for item in (experts, others)] == [483.2, 57.1]


def test_component_rows_of_the_example(mixtral):
    s = PRIMUS.sizes(mixtral, EXAMPLE, EXAMPLE_INPUT)
    moe = layer_components(mixtral.layers[0], s)
    rows = {name: part.activation / GB for name, part in moe.items()}
    assert rows == {
        "layer_norm": 0.1875,
        "self_attention": 0.625,
        "residual_add": 0.1875,
        "router": 0.1875,
        "mlp": 3.375,
    }
    assert layer_component(mixtral.layers[0], s).parameters == 390_156_288
    assert layer_component(mixtral.layers[0], s).activation / GB == 5.125
    dense = Layer(attention=mixtral.layers[0].attention, ffn=DenseFfn(ffn_hidden_size=16384))
    assert layer_component(dense, s).parameters == 390_107_136
    assert layer_component(dense, s).activation / GB == 3.25
    assert layer_components(dense, s)["mlp"].activation / GB == 1.6875
    assert moe["self_attention"].parameters == pytest.approx(0.088e9, abs=0.5e6)
    assert moe["mlp"].parameters == pytest.approx(0.302e9, abs=0.5e6)
    embedding, last = first_components(s)["embedding"], last_components(s)
    assert (embedding.parameters, embedding.activation / GB) == (616_562_688, 0.1875)
    assert last["output_layer"].parameters == 616_562_688
    assert last["output_layer"].activation / GB == 3.0625
    assert last["final_layernorm"].activation / GB == 0.1875


def four_and_a_half_trillion() -> tuple[Model, Layout, Workload]:
    layer = Layer(
        attention=FullAttention(num_heads=64, num_kv_heads=1, head_dim=128),
        ffn=MoeFfn(num_experts=2304, top_k=36, ffn_hidden_size=2048, shared_ffn_hidden_size=2048),
    )
    model = Model(name="moe-4.5t", hidden_size=8192, layers=(layer,), vocab_size=100352)
    return model, Layout(cp=4, micro_batch_size=4), Workload(seq_len=16384, global_batch_size=64)


def test_rows_of_the_4_5_t_model():
    model, layout, workload = four_and_a_half_trillion()
    exact = PrimusPreset(name="x", source="x", terms=replace(DOCUMENTED, statistics_as_query=False))
    s = exact.sizes(model, layout, workload)
    assert s.tokens == 16384
    parts = {name: part.activation / GB for name, part in layer_components(model.layers[0], s).items()}
    assert 3 * parts["layer_norm"] == 0.75
    assert 2 * parts["residual_add"] == 0.5
    assert parts["router"] == 0.25
    assert parts["self_attention"] == pytest.approx(0.51, abs=0.005)
    assert parts["mlp"] == pytest.approx(16.19, abs=0.005)
    assert layer_component(model.layers[0], s).activation / GB == pytest.approx(18.20, abs=0.005)
    assert s.hidden_state / GB == 0.25


def test_the_attention_row_of_the_4_5_t_model_contradicts_the_formula_beside_it():
    model, layout, workload = four_and_a_half_trillion()
    s = PRIMUS.sizes(model, layout, workload)
    attention = layer_components(model.layers[0], s)["self_attention"]
    assert attention.activation / GB == pytest.approx(0.758, abs=0.001)


RUN = {
    "llama-2-7b": (8, Layout(dp_shard=8, micro_batch_size=4), (4096, 256), (35.69, 79.56)),
    "llama-3.1-8b": (8, Layout(dp_shard=8, micro_batch_size=2), (8192, 128), (38.15, 83.31)),
    "qwen3-30b-a3b": (
        8,
        Layout(
            dp_shard=8,
            ep=8,
            micro_batch_size=8,
            recompute=Recompute(granularity="full", num_layers=5),
        ),
        (4096, 512),
        (64.59, 125.25),
    ),
}


@pytest.mark.parametrize("name", RUN)
def test_figures_of_the_source_of_2026_08(name):
    devices, layout, (seq_len, batch), expected = RUN[name]
    fused = replace(layout, kernels=Kernels(cross_entropy="fused"))
    account = PRIMUS_2026.account(
        load_model(name),
        small.cluster(devices),
        fused,
        Workload(seq_len=seq_len, global_batch_size=batch),
    )
    result = (states(account.stages[0]), account.stages[0].activations / GB)
    assert result == pytest.approx(expected, abs=0.005)


def standard_attention(name: str, num_heads: int) -> Model:
    """DeepSeek models as Primus's MI300X examples run them: multi-latent attention off."""
    model = load_model(name)
    attention = FullAttention(num_heads=num_heads, num_kv_heads=num_heads, head_dim=128, qk_norm="head")
    kinds = {kind: replace(kind, attention=attention) for kind in model.layer_kinds}
    return replace(model, layers=tuple(kinds[layer] for layer in model.layers), num_mtp_layers=0)


@pytest.mark.parametrize(
    ("name", "heads", "devices", "strategy", "batch", "expected"),
    [
        ("deepseek-v2-lite", 16, 8, Layout(dp_shard=8, ep=8, micro_batch_size=4), 640, (41.52, 52.84)),
        (
            "deepseek-v2",
            128,
            32,
            Layout(pp=4, dp_shard=8, ep=8, recompute=Recompute(granularity="full", num_layers=14)),
            256,
            (169.69, 7.73),
        ),
    ],
)
def test_deepseek_figures_are_those_of_standard_attention(name, heads, devices, strategy, batch, expected):
    fused = replace(strategy, kernels=Kernels(cross_entropy="fused"))
    account = PRIMUS_2026.account(
        standard_attention(name, heads),
        small.cluster(devices),
        fused,
        Workload(seq_len=4096, global_batch_size=batch),
    )
    result = (states(account.stages[0]), account.stages[0].activations / GB)
    assert result == pytest.approx(expected, abs=0.01)


def test_deepseek_v3_total_and_first_rank_of_the_mi355x_example():
    """pp 16, vpp 2: rank 0 has the first layer and two of the middle (layout Et*1|t*1|t*2|...)."""
    model = load_model("deepseek-v3")
    dense, moe = model.layer_kinds
    reordered = replace(model, layers=(dense, moe, moe, dense, dense) + (moe,) * 56, num_mtp_layers=0)
    layout = Layout(
        pp=16,
        vpp=2,
        dp_shard=8,
        ep=8,
        micro_batch_size=2,
        stage_layers=(3, 3, *([4] * 13), 3),
        kernels=Kernels(cross_entropy="fused"),
    )
    account = PRIMUS_2026.account(
        reordered, small.cluster(128), layout, Workload(seq_len=4096, global_batch_size=4096)
    )
    assert account.total_parameters == 669_894_111_232
    assert states(account.stages[0]) == pytest.approx(59.81, abs=0.005)
    assert account.stages[0].activations / GB == pytest.approx(286.04, abs=0.005)


def test_61_layers_on_4_ranks():
    model = replace(small.dense(61))
    assert [sum(map(len, rank)) for rank in layer_chunks(model, Layout(pp=4))] == [16, 15, 15, 15]


def test_virtual_stages_are_interleaved():
    chunks = layer_chunks(small.dense(8), Layout(pp=2, vpp=2))
    assert chunks == (((0, 1), (4, 5)), ((2, 3), (6, 7)))


def test_full_recompute_keeps_inputs_one_working_layer_and_the_embedding():
    model, workload = small.dense(8), Workload(seq_len=2048, global_batch_size=64)
    layout = Layout(pp=2, dp_shard=2, recompute=Recompute(granularity="full"))
    account = PRIMUS.account(model, small.cluster(4), layout, workload)
    s = PRIMUS.sizes(model, layout, workload)
    working = layer_component(model.layers[0], s).activation
    expected = 4 * s.hidden_state * 2 * 1.5 + working + s.hidden_state
    assert account.stages[0].activations == pytest.approx(expected)


def test_accumulation_below_the_stages_saves_memory():
    model = small.dense(8)
    layout = Layout(pp=4, dp_shard=1)
    few, many = (
        PRIMUS.account(model, small.cluster(4), layout, Workload(seq_len=2048, global_batch_size=batch))
        .stages[0]
        .activations
        for batch in (2, 4)
    )
    assert few == pytest.approx(many / 2)


def test_what_it_has_no_formula_for_is_refused():
    model = load_model("almodel")
    with raises(SpecError, "unsupported_by preset primus"):
        PRIMUS.account(model, small.cluster(8), Layout(dp_shard=8), small.workload())
