from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from scripts.rows.model import model_of

from forescale.catalogue.models import load_model
from forescale.spec import DenseFfn, FullAttention, LatentAttention, Layer, Model, MoeFfn
from forescale.validation.case import InexpressibleError


def build(row, find=lambda _: None):
    notes: list[str] = []
    with mock.patch("scripts.rows.model.catalogue_model", find):
        return model_of(row, notes), notes


def test_llama_is_gated_with_grouped_heads(row):
    model, _ = build(row())
    (kind,) = model.layer_kinds
    assert model.num_layers == 32
    assert kind.attention == FullAttention(num_heads=32, num_kv_heads=8, head_dim=128)
    assert kind.ffn == DenseFfn(ffn_hidden_size=14336)
    assert not model.tied_embeddings


def test_gpt_is_ungated_with_biases_and_tied_embeddings(row):
    model, _ = build(row(model="Megatron-GPT-22B", ffn=16384, kv_heads=32))
    (kind,) = model.layer_kinds
    assert kind.ffn == DenseFfn(ffn_hidden_size=16384, gated=False, bias=True)
    assert model.tied_embeddings
    assert model.norm == "layer"
    assert model.learned_positions == 4096


@pytest.mark.parametrize(("name", "tied"), [("1.34B", True), ("3.57B", True), ("8.86B", False)])
def test_small_models_of_nanotrons_benchmark_tie_their_embeddings(row, name, tied):
    model, _ = build(row(model=f"nanotron-Llama-{name}"))
    assert model.tied_embeddings is tied
    assert model.layer_kinds[0].ffn.gated


def test_routed_layers_follow_the_first_dense_ones(row):
    model, _ = build(
        row(
            model="Moonlight-16B",
            layers=27,
            num_experts=64,
            topk=6,
            moe_ffn=1408,
            n_shared_experts=2,
            first_k_dense=1,
        )
    )
    assert [type(layer.ffn) for layer in model.layers[:3]] == [DenseFfn, MoeFfn, MoeFfn]
    assert model.moe is not None
    assert model.moe.shared_ffn_hidden_size == 2816


def test_latent_attention_takes_its_ranks_from_the_architecture(row):
    model, _ = build(row(model="DeepSeek-V3", heads=128, mla="y"))
    attention = model.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert (attention.q_lora_rank, attention.kv_lora_rank) == (1536, 512)


def test_unknown_latent_ranks_are_a_reason(row):
    with pytest.raises(InexpressibleError, match=r"latent ranks of Llama-3\.1-8B"):
        build(row(mla="y"))


def test_no_shape_is_a_reason(row):
    with pytest.raises(InexpressibleError, match="shape of Mystery is in neither"):
        build(row(model="Mystery", layers="", hidden=""))


def test_an_unknown_name_is_guessed_and_noted(row):
    model, notes = build(row(model="Mystery", ffn=16384))
    assert not model.layers[0].ffn.gated
    assert any("GPT-like assumed" in note for note in notes)
    model, notes = build(row(model="Mystery"))
    assert model.layers[0].ffn.gated
    assert any("Llama-like assumed" in note for note in notes)


def test_a_missing_vocabulary_and_missing_heads_are_noted(row):
    model, notes = build(row(model="GPT3-1.3B", hidden=2048, heads="", kv_heads="", head_dim="", vocab=""))
    assert model.layers[0].attention.num_heads == 16
    assert model.vocab_size == 50257
    assert any("16 heads of 128 assumed" in note for note in notes)
    assert any("vocabulary of 50257 assumed" in note for note in notes)


CATALOGUE = Model(
    name="deepseek-v2",
    hidden_size=5120,
    layers=(
        Layer(
            attention=LatentAttention(
                num_heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
            ),
            ffn=DenseFfn(ffn_hidden_size=12288),
        ),
        *(
            Layer(
                attention=FullAttention(num_heads=128, num_kv_heads=128, head_dim=128, window=64),
                ffn=MoeFfn(num_experts=160, top_k=6, ffn_hidden_size=1536, shared_ffn_hidden_size=3072),
            ),
        )
        * 5,
    ),
    vocab_size=102400,
    num_mtp_layers=1,
)


def test_the_catalogue_model_completes_the_row(row):
    question = []
    cells = {
        "model": "DeepSeek-V2 proxy (4 layers)",
        "layers": 4,
        "hidden": 5120,
        "heads": 64,
        "ffn": "",
        "vocab": 1000,
    }
    model, notes = build(row(**cells), lambda name: question.append(name) or CATALOGUE)
    assert question == ["deepseek-v2"]
    assert model.num_layers == 4
    assert model.vocab_size == 1000
    assert model.layers[0].ffn == DenseFfn(ffn_hidden_size=12288)
    assert model.layers[1].attention.window == 64
    assert model.layers[1].attention.num_heads == 64
    assert model.num_mtp_layers == 0
    assert "num_layers 4 instead of 6" in notes[0]
    assert "vocab_size 1000 instead of 102400" in notes[0]


@pytest.mark.parametrize(("first", "dense"), [(0, 0), (2, 2), ("", 1)])
def test_the_row_says_how_many_layers_before_the_experts_are_dense(row, first, dense):
    template = replace(CATALOGUE, layers=CATALOGUE.layers[:1] + CATALOGUE.layers[2:])
    cells = {"model": "DeepSeek-V2", "layers": 3, "first_k_dense": first}
    model, _ = build(row(**cells), lambda _: template)
    assert [isinstance(layer.ffn, DenseFfn) for layer in model.layers] == [True] * dense + [False] * (
        3 - dense
    )
    mixed = replace(CATALOGUE, layers=template.layers[1:] + template.layers)
    model, _ = build(row(**cells), lambda _: mixed)
    assert [type(layer.ffn) for layer in model.layers] == [type(layer.ffn) for layer in mixed.layers[:3]]


def test_the_proxy_of_primus_has_experts_in_every_layer(row):
    cells = {"model": "DeepSeek-V3 proxy (4 layers + MTP)", "layers": 4, "hidden": 5120}
    template = replace(CATALOGUE, layers=CATALOGUE.layers[:1] + CATALOGUE.layers[2:])
    model, _ = build(row(**cells), lambda _: template)
    assert all(isinstance(layer.ffn, MoeFfn) for layer in model.layers)


def test_a_catalogue_model_that_agrees_is_used_as_it_is(row):
    exact = replace(CATALOGUE, layers=CATALOGUE.layers[1:], num_mtp_layers=0)
    cells = {"model": "DeepSeek-V2", "layers": 5, "hidden": 5120, "heads": 128, "kv_heads": 128, "ffn": 1}
    cells["vocab"] = 102400
    model, notes = build(row(**cells), lambda _: exact)
    assert model == exact
    assert notes == ["catalogue model deepseek-v2"]


@pytest.mark.parametrize(
    ("name", "remark", "layers"),
    [
        ("DeepSeek-V3", "TFLOP/token implies with MTP layer", 1),
        ("DeepSeek-V3 proxy (4 layers + MTP)", "", 1),
        ("DeepSeek-V3", "dropless; w/o MTP", 0),
        ("DeepSeek-V3", "no MTP in config read", 0),
        ("DeepSeek-V3", "", 0),
    ],
)
def test_multi_token_prediction_runs_where_the_row_says_so(row, name, remark, layers):
    model, _ = build(row(model=name, mla="y", notes=remark))
    assert model.num_mtp_layers == layers


@pytest.mark.parametrize(("rate", "layers"), [(75.4, 0), (84.7, 2)])
def test_multi_token_prediction_runs_where_the_flops_of_the_row_count_it(row, rate, layers):
    """Nemotron 3 Super has 75.4 GFLOP a token, and 84.7 with its two layers that predict further tokens."""
    shape = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "head_dim"), "")
    cells = {**shape, "measured_tflops_per_gpu": rate, "measured_tokens_per_s_per_gpu": 1000, "seq_len": 8192}
    model, _ = build(
        row(model="Nemotron-3-Super", tflops_convention="model FLOPs, causal attention", **cells), load_model
    )
    assert model.num_mtp_layers == layers


def test_grok_is_what_the_recipe_makes_of_it(row):
    """grok1_314b.yaml: two norms a layer, a head of its own and the vocabulary of Llama 3, unlike the release."""
    released = load_model("grok-1")
    model = model_of(row(model="Grok-1 proxy (2 layers)", vocab=""), [])
    assert (model.vocab_size, model.tied_embeddings, model.layers[0].num_norms) == (128256, False, 2)
    assert (released.vocab_size, released.tied_embeddings, released.layers[0].num_norms) == (131072, True, 4)
