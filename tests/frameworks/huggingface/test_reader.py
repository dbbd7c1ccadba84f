from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.huggingface import load_huggingface, read_huggingface, supported_model_types
from forescale.frameworks.huggingface.keys import Keys
from forescale.frameworks.huggingface.reader import left_out, towers
from forescale.graph.counts import count_parameters
from forescale.spec import DenseFfn, FullAttention, LatentAttention, LinearAttention, Model, MoeFfn
from forescale.spec.model import Images

DATA = Path(__file__).parents[2] / "data" / "huggingface"
BASE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
}
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}


def read(model_type: str, **keys: Any) -> Model:
    config = {**BASE, "model_type": model_type, **keys}
    return read_huggingface(config, name="m", where="config.json").model


def attention(model: Model, layer: int = 0) -> FullAttention:
    result = model.layers[layer].attention
    assert isinstance(result, FullAttention)
    return result


def windows(model: Model) -> list[int | None]:
    return [attention(model, i).window for i in range(model.num_layers)]


def sparse_layers(model: Model) -> list[int]:
    return [i for i, layer in enumerate(model.layers) if isinstance(layer.ffn, MoeFfn)]


class TestTowers:
    """Parts beside the decoder are said to be left out, with their share where the file allows."""

    # SigLIP So400m as Gemma 3 has it: "vision encoder 417M" (Gemma 3 technical report, table 1).
    SIGLIP: ClassVar[dict[str, Any]] = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896
    }  # fmt: skip

    def test_sizes_as_towers_spell_them(self):
        qwen = {"embed_dim": 1280, "hidden_size": 3584, "depth": 32, "mlp_ratio": 4, "patch_size": 14}
        result = towers({"vision_config": self.SIGLIP, "visual": qwen, "audio_config": {"hidden_size": 8}})
        assert result["vision_config"] == pytest.approx(417e6, abs=0.5e6)
        assert result["visual"] == pytest.approx(630e6, rel=0.02)
        assert result["audio_config"] is None

    def test_what_holds_no_weights_is_no_tower(self):
        assert towers({"quantization_config": {"bits": 4}, "rope_scaling": {"factor": 8.0}}) == {}

    def test_the_share_is_of_the_whole_model(self):
        model = load_huggingface(DATA / "llama-like").model
        total = count_parameters(model).total
        assert left_out({"a": total, "b": None}, model).endswith(
            "50.0% of the model), b (parameters unknown)"
        )


class TestFiles:
    def test_folder_and_file_give_the_same_model_named_after_the_folder(self):
        folder = load_huggingface(DATA / "llama-like")
        file = load_huggingface(str(DATA / "llama-like" / "config.json"))
        assert folder == file
        model = folder.model
        assert (model.name, model.num_layers, model.hidden_size, model.vocab_size) == (
            "llama-like",
            3,
            512,
            1000,
        )
        assert model.tied_embeddings
        assert model.max_seq_len == 4096
        assert attention(model) == FullAttention(num_heads=8, num_kv_heads=2, head_dim=64)
        assert model.layers[0].ffn == DenseFfn(ffn_hidden_size=1376)

    def test_keys_that_do_not_describe_the_model_are_listed(self):
        ignored = load_huggingface(DATA / "llama-like").ignored
        assert {"architectures", "torch_dtype", "use_cache"} <= set(ignored)
        assert not {
            "hidden_size",
            "mlp_bias",
            "rope_theta",
            "rms_norm_eps",
            "num_key_value_heads",
            "tie_word_embeddings",
        } & set(ignored)

    def test_both_parts_of_a_multimodal_model(self):
        read_model = load_huggingface(DATA / "multimodal")
        assert read_model.model.hidden_size == 256
        assert read_model.model.tied_embeddings
        assert windows(read_model.model) == [128] * 5 + [None] + [128] * 2
        near, far = (layer_kind.attention.rope.base for layer_kind in read_model.model.layer_kinds)
        assert (near, far) == (10_000, 1_000_000)
        assert "vision_config" not in read_model.ignored
        vision = read_model.model.vision
        assert (vision.encoder.num_layers, vision.tokens(Images()), vision.projector) == (2, 16, (256,))
        assert not read_model.model.left_out

    def test_missing_file_says_what_to_give(self):
        with raises(ReaderError, "not_found file"):
            load_huggingface(DATA / "nowhere")

    def test_truncated_file_says_where_it_breaks_off(self):
        with raises(ReaderError, "cannot_parse JSON"):
            load_huggingface(DATA / "truncated.json")

    def test_other_json_is_refused(self, tmp_path: Path):
        (tmp_path / "config.json").write_text("[1, 2]")
        with raises(ReaderError, "wrong_format"):
            load_huggingface(tmp_path)

    def test_binary_file_is_refused(self, tmp_path: Path):
        (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\x81")
        with raises(ReaderError, "cannot_read"):
            load_huggingface(tmp_path)


class TestRefusals:
    def test_unsupported_architecture_names_the_nearest_and_all(self):
        with pytest.raises(ReaderError, match="'qwen9' is not supported") as error:
            read("qwen9")
        assert "qwen3" in str(error.value)
        assert all(kind in str(error.value) for kind in supported_model_types())

    def test_no_model_type(self):
        with raises(ReaderError, "wrong_format"):
            read_huggingface({"hidden_size": 8}, name="m", where="x.json")

    @pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
    def test_missing_required_key_is_named(self, key: str):
        config = {name: value for name, value in BASE.items() if name != key}
        with raises(ReaderError, "missing"):
            read_huggingface({**config, "model_type": "internlm2"}, name="m", where="config.json")

    @pytest.mark.parametrize(
        ("kind", "count"), [("falcon", 6_921_720_704), ("bloom", 16_156_544), ("cohere2", 34_980_831_232)]
    )
    def test_a_type_alone_has_the_parameters_that_transformers_builds(self, kind: str, count: int):
        assert (
            count_parameters(read_huggingface({"model_type": kind}, name="m", where="").model).total == count
        )

    def test_sizes_that_are_left_out_have_the_defaults_of_a_recorded_type(self):
        model = read_huggingface(
            {"model_type": "qwen3", "num_hidden_layers": 2}, name="m", where="here"
        ).model
        attention = model.layers[0].attention
        assert (model.hidden_size, model.vocab_size) == (4096, 151936)
        assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (32, 32, 128)

    @pytest.mark.parametrize("value", ["256", -1, 0, 2.5, True])
    def test_impossible_size(self, value: object):
        with raises(ReaderError, f"{'out_of_range' if value in (-1, 0) else 'wrong_type'} hidden_size"):
            read("llama", hidden_size=value)

    def test_impossible_flag_and_list(self):
        with raises(ReaderError, "wrong_type attention_bias"):
            read("llama", attention_bias="yes")
        with raises(ReaderError, "wrong_type layer_types"):
            read("gemma2", layer_types="full_attention")

    def test_layer_types_must_cover_all_layers(self):
        with raises(ReaderError, "wrong_count layer_types"):
            read("gemma2", layer_types=["full_attention", "sliding_attention"])

    def test_heads_must_divide_the_hidden_size_unless_their_width_is_given(self):
        with raises(ReaderError, "not_divisible hidden_size"):
            read("llama", num_attention_heads=3)
        assert (
            attention(read("llama", num_attention_heads=3, num_key_value_heads=3, head_dim=80)).head_dim == 80
        )

    def test_what_the_model_cannot_express_is_refused(self):
        with raises(ReaderError, "not_expressed qk_layernorm"):
            read("phi", qk_layernorm=True)


class TestDense:
    def test_absent_kv_heads_and_head_dim(self):
        config = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
        model = read_huggingface({**config, "model_type": "llama"}, name="m", where="x").model
        assert (attention(model).num_kv_heads, attention(model).head_dim) == (4, 64)
        assert not model.tied_embeddings

    def test_head_dim_need_not_divide_the_hidden_size(self):
        assert attention(read("qwen3", hidden_size=320)).head_dim == 128
        assert attention(read("qwen3", head_dim=96)).head_dim == 96
        assert attention(read("gemma2")).head_dim == 256

    def test_biases(self):
        assert attention(read("llama", attention_bias=True)).output_bias
        qwen = attention(read("qwen2"))
        assert qwen.qkv_bias
        assert not qwen.output_bias

    def test_window_is_off_unless_it_is_used(self):
        assert windows(read("qwen2", sliding_window=4096, use_sliding_window=False)) == [None] * 6
        used = read("qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=4)
        assert windows(used) == [None] * 4 + [4096] * 2

    def test_window_as_long_as_the_longest_sequence_is_none(self):
        assert windows(read("mistral", sliding_window=4096)) == [4096] * 6
        assert windows(read("mistral", sliding_window=8192)) == [None] * 6
        assert windows(read("mistral", sliding_window=None)) == [None] * 6

    def test_layer_types_of_version_5_win_over_the_pattern(self):
        kinds = ["full_attention"] * 5 + ["sliding_attention"]
        assert windows(read("gemma2", sliding_window=64)) == [64, None] * 3
        assert windows(read("gemma2", sliding_window=64, layer_types=kinds)) == [None] * 5 + [64]

    def test_exaone_letters_numbers_and_lists_of_what_slides(self):
        lists = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 2
        result = [
            read("exaone4", sliding_window=64, sliding_window_pattern=pattern, layer_types=kinds)
            for pattern, kinds in ((4, None), (None, None), ("LLLG", lists))
        ]
        assert [windows(model) for model in result] == [[64] * 3 + [None] + [64] * 2] * 3
        assert [attention(result[0], i).rotary for i in range(6)] == [True] * 3 + [False] + [True] * 2
        last_sees_all = read("exaone4", sliding_window=64, sliding_window_pattern="LLLG")
        assert windows(last_sees_all) == [64] * 3 + [None, 64, None]
        assert attention(last_sees_all).qk_norm == "head"

    def test_exaone_without_windows_keeps_rotary_positions(self):
        model = read("exaone4", sliding_window=None, layer_types=["full_attention"] * 6)
        assert windows(model) == [None] * 6
        assert all(attention(model, i).rotary for i in range(6))

    def test_falcon_before_and_after_its_new_form(self):
        old = read("falcon", multi_query=True, parallel_attn=True)
        assert (attention(old).num_kv_heads, old.layers[0].num_norms, old.layers[0].parallel) == (1, 1, True)
        new = read("falcon", new_decoder_architecture=True, num_kv_heads=2, num_key_value_heads=None)
        assert (attention(new).num_kv_heads, new.layers[0].num_norms) == (2, 2)
        assert old.tied_embeddings

    def test_qwen_1_halves_the_size_of_its_feed_forward(self):
        model = read("qwen", intermediate_size=512, no_bias=True)
        assert model.layers[0].ffn.ffn_hidden_size == 256
        assert (attention(model).qkv_bias, attention(model).output_bias) == (True, False)
        assert not model.tied_embeddings

    def test_baichuan_with_the_length_of_the_13b_alone_has_no_rotary_positions(self):
        assert attention(read("baichuan")).rotary
        assert attention(read("baichuan", model_max_length=4096)).rotary
        assert not attention(read("baichuan", model_max_length=4096, max_position_embeddings=None)).rotary

    def test_gpt2_names(self):
        config = {
            "model_type": "gpt2",
            "n_embd": 96,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "vocab_size": 9,
        }
        model = read_huggingface(config, name="m", where="x").model
        assert (model.hidden_size, model.learned_positions, model.norm) == (96, 64, "layer")
        assert model.layers[0].ffn == DenseFfn(ffn_hidden_size=384, gated=False, bias=True)

    def test_opt_positions_and_narrow_embedding(self):
        model = read("opt", ffn_dim=512, word_embed_proj_dim=64, do_layer_norm_before=False)
        assert (model.learned_positions, model.embedding_size, model.final_norm) == (8194, 64, False)

    def test_equal_layers_share_one_object(self):
        model = read("gemma2", sliding_window=64)
        assert len({id(layer) for layer in model.layers}) == 2


class TestExperts:
    def test_intermediate_size_is_the_expert_in_mixtral_and_the_dense_layer_in_qwen(self):
        mixtral = read("mixtral", num_local_experts=8, num_experts_per_tok=2)
        assert mixtral.layers[0].ffn == MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=1024)
        qwen = read("qwen3_moe", mlp_only_layers=[1], **MOE)
        assert qwen.layers[0].ffn == MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=64, normalised=False)
        assert qwen.layers[1].ffn == DenseFfn(ffn_hidden_size=1024)

    def test_qwen_phase_counts_from_the_second_layer(self):
        assert sparse_layers(read("qwen2_moe", decoder_sparse_step=2, **MOE)) == [1, 3, 5]
        assert sparse_layers(read("qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[3], **MOE)) == [1, 5]

    def test_qwen2_shared_expert_has_a_gate(self):
        ffn = read("qwen2_moe", shared_expert_intermediate_size=512, **MOE).layers[0].ffn
        assert isinstance(ffn, MoeFfn)
        assert (ffn.shared_ffn_hidden_size, ffn.shared_gate) == (512, True)

    def test_how_routers_weigh_experts(self):
        def weights(kind, **keys):
            latent = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
            moe = read(kind, **MOE, **latent, **keys).moe
            return moe.score, moe.normalised, moe.weight_scale

        assert weights("deepseek_v3") == ("sigmoid", True, 2.5)
        assert weights("deepseek_v2") == ("softmax", False, 1.0)
        assert weights("deepseek_v2", routed_scaling_factor=16, norm_topk_prob=True) == (
            "softmax",
            True,
            16.0,
        )
        assert weights("qwen3_moe", norm_topk_prob=True) == ("softmax", True, 1.0)
        with raises(ReaderError, "not_one_of scoring_func"):
            weights("deepseek_v3", scoring_func="relu")

    def test_deepseek_leading_dense_layers_shared_experts_and_prediction(self):
        model = read(
            "deepseek_v3",
            n_routed_experts=16,
            n_shared_experts=2,
            num_experts_per_tok=4,
            moe_intermediate_size=96,
            first_k_dense_replace=2,
            q_lora_rank=None,
            kv_lora_rank=128,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
            num_nextn_predict_layers=1,
        )
        assert sparse_layers(model) == [2, 3, 4, 5]
        assert model.layers[0].attention == LatentAttention(
            num_heads=4, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
        )
        moe = model.moe
        assert moe is not None
        assert (moe.num_experts, moe.shared_ffn_hidden_size, moe.score_bias) == (16, 192, True)
        assert model.num_mtp_layers == 1

    def test_exaone_dense_first_and_a_dense_layer_that_predicts(self):
        keys = {**MOE, "num_shared_experts": 1, "sliding_window": 64, "num_nextn_predict_layers": 1}
        model = read("exaone_moe", **keys)
        assert sparse_layers(model) == [1, 2, 3, 4, 5]
        assert model.moe == MoeFfn(
            num_experts=8, top_k=2, ffn_hidden_size=64, shared_ffn_hidden_size=64, score_bias=True, score="sigmoid",
            weight_scale=2.5,
        )  # fmt: skip
        assert model.mtp_layer is not None
        assert model.mtp_layer.ffn == DenseFfn(ffn_hidden_size=1024)
        assert model.mtp_layer.attention == attention(model, 3)
        listed = read("exaone_moe", is_moe_layer=[False, True] * 3, **keys)
        assert sparse_layers(listed) == [1, 3, 5]
        assert sparse_layers(read("exaone_moe", first_k_dense_replace=0, **keys)) == [0, 1, 2, 3, 4, 5]
        with raises(ReaderError, "not_expressed sliding_windows"):
            read("exaone_moe", sliding_windows=[64] * 6, **keys)

    def test_llama4_interleave_sizes_and_chunks(self):
        model = read(
            "llama4_text",
            num_hidden_layers=8,
            intermediate_size_mlp=2048,
            interleave_moe_layer_step=2,
            num_local_experts=4,
            num_experts_per_tok=1,
            attention_chunk_size=1024,
        )
        assert sparse_layers(model) == [1, 3, 5, 7]
        assert model.layers[0].ffn == DenseFfn(ffn_hidden_size=2048)
        moe = model.moe
        assert moe is not None
        assert (moe.ffn_hidden_size, moe.shared_ffn_hidden_size) == (1024, 1024)
        assert windows(model) == [1024, 1024, 1024, None] * 2
        assert [attention(model, i).rotary for i in range(4)] == [True, True, True, False]

    def test_llama4_listed_moe_layers(self):
        model = read(
            "llama4_text",
            intermediate_size_mlp=2048,
            moe_layers=[5],
            num_local_experts=4,
            num_experts_per_tok=1,
        )
        assert sparse_layers(model) == [5]

    def test_gpt_oss_both_names_of_top_k(self):
        config = {
            **BASE,
            "model_type": "gpt_oss",
            "num_local_experts": 4,
            "experts_per_token": 3,
            "sliding_window": 128,
        }
        model = read_huggingface(config, name="m", where="x").model
        moe = MoeFfn(num_experts=4, top_k=3, ffn_hidden_size=1024, bias=True, limited=True, router_bias=True)
        assert model.moe == moe
        assert windows(model) == [128, None] * 3
        assert (attention(model).sinks, attention(model).scaled_rotary) == (True, True)

    def test_dbrx_nested_sizes(self):
        model = read(
            "dbrx",
            attn_config={"kv_n_heads": 2, "clip_qkv": 8},
            ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        )
        assert (attention(model).num_kv_heads, model.norm) == (2, "layer_no_bias")
        assert model.moe == MoeFfn(num_experts=4, top_k=2, ffn_hidden_size=64)

    def test_dense_layers_need_a_size(self):
        with raises(ReaderError, "required_with intermediate_size"):
            read("qwen3_moe", intermediate_size=None, mlp_only_layers=[0], **MOE)


class TestHybrids:
    def test_qwen3_next_every_fourth_layer_sees_all(self):
        model = read("qwen3_next", num_hidden_layers=8, shared_expert_intermediate_size=64, **MOE, **DELTA)
        kinds = [isinstance(layer.attention, LinearAttention) for layer in model.layers]
        assert kinds == [True, True, True, False] * 2
        assert attention(model, 3).output_gate

    def test_minimax_both_spellings_of_the_pattern(self):
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
        old = read("minimax_text_01", attn_type_list=[0, 0, 1] * 2, **experts)
        new = read(
            "minimax", layer_types=["linear_attention", "linear_attention", "full_attention"] * 2, **experts
        )
        assert old.layers == new.layers

    def test_nemotron_h_letters(self):
        model = read(
            "nemotron_h",
            num_hidden_layers=4,
            hybrid_override_pattern="M-*E",
            mamba_num_heads=8,
            mamba_head_dim=32,
            n_groups=2,
            ssm_state_size=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
        )
        parts = [(type(layer.attention).__name__, type(layer.ffn).__name__) for layer in model.layers]
        assert parts == [
            ("LinearAttention", "NoneType"),
            ("NoneType", "DenseFfn"),
            ("FullAttention", "NoneType"),
            ("NoneType", "MoeFfn"),
        ]
        assert model.layers[3].ffn.latent_size == 0
        with raises(ReaderError, "wrong_type hybrid_override_pattern"):
            read("nemotron_h", num_hidden_layers=3, hybrid_override_pattern="MMX")

    def test_nemotron_h_names_of_version_5(self):
        routes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        ahead = {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]}
        new = read(
            "nemotron_h",
            num_hidden_layers=None,
            layers_block_type=["attention", "moe"] * 2,
            **routes,
            **ahead,
        )
        ahead = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
        old = read("nemotron_h", num_hidden_layers=4, hybrid_override_pattern="*E*E", **routes, **ahead)
        assert new == old
        assert new.mtp_layer is not None
        assert isinstance(new.mtp_layer.ffn, MoeFfn)
        with raises(ReaderError, "wrong_type mtp_layers_block_type"):
            read("nemotron_h", layers_block_type=["attention"] * 6, mtp_layers_block_type=["moe", "mamba"])


def tower(kind, **keys):
    text = {"model_type": "qwen2", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 512}  # fmt: skip
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 2}
    vision = {"model_type": "siglip_vision_model", "image_size": 112, "patch_size": 14, **sizes}
    if kind == "internvl_chat":
        vision = {"model_type": "intern_vit_6b", "qkv_bias": True, **sizes}
    name = "llm_config" if kind == "internvl_chat" else "text_config"
    return {"model_type": kind, name: text, "vision_config": vision, **keys}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            tower("llava_onevision", vision_aspect_ratio="pad"),
            "wrong_type vision_aspect_ratio",
        ),
        (tower("llava_next", image_grid_pinpoints=[[56, 112]]), r"'image_grid_pinpoints' must list heights"),
        (tower("llava_next", image_grid_pinpoints=[112]), r"'image_grid_pinpoints' must list heights"),
        (tower("internvl_chat", min_dynamic_patch=13), "out_of_range min_dynamic_patch"),
        (tower("internvl_chat", max_dynamic_patch=10**6), r"'max_dynamic_patch'"),
        (tower("glm4v"), "differs out_hidden_size"),
    ],
)
def test_what_is_wrong_with_a_tower_is_said(config, said):
    with raises(ReaderError, said):
        read_huggingface(config, name="seen", where="config.json")


def test_of_an_omni_model_the_thinker_is_read_and_the_rest_named():
    thinker = tower("qwen2_5_omni_thinker", audio_config={"d_model": 64, "encoder_layers": 2})
    thinker["vision_config"] = {"depth": 2, "hidden_size": 64, "num_heads": 2, "out_hidden_size": 128}
    talker = {"text_config": {"hidden_size": 32}}
    read = read_huggingface(
        {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": talker, "enable_audio_output": True},
        name="omni",
        where="config.json",
    )  # fmt: skip
    assert read.model.vision is not None
    assert "audio_config (about" in read.model.left_out
    assert "talker_config (parameters unknown)" in read.model.left_out
    assert read.ignored == ("enable_audio_output",)


def test_two_spellings_of_a_key_say_the_same():
    assert read("gpt_neox", n_layer=6).num_layers == 6
    with raises(ReaderError, "differs num_hidden_layers"):
        read("gpt_neox", n_layer=24)


def test_keys_that_are_read_for_one_another_may_differ():
    """A tower's `embed_dim` is its width where `hidden_size` is that of its output (Qwen2-VL's config.json)."""
    value = {
        "projection_dim": 4,
        "num_image_tokens": 256,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "seq_length": None,
    }
    keys = Keys(value, "config.json")
    assert keys.get("embed_dim", "hidden_size") == 1280
    assert keys.get("projection_dim", "num_image_tokens") == 4
    assert keys.get("seq_length", "hidden_size") == 3584


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"layer_types": ["full_attention"] * 5 + ["full"]}, "not_one_of layer_types"),
        ({"mlp_layer_types": ["moe"] * 6, **MOE}, "not_one_of mlp_layer_types"),
        ({"hidden_size": float("nan")}, "wrong_type hidden_size"),
    ],
)  # fmt: skip
def test_words_of_layers_and_sizes_that_are_none_are_refused(keys, said):
    with raises(ReaderError, said):
        read("qwen3_moe", **{**MOE, **keys})


def test_an_error_says_the_line_where_the_folder_is_named(tmp_path):
    text = '{\n "model_type": "llama",\n "hidden_size": 4,\n "num_attention_heads": 0\n}'
    (tmp_path / "config.json").write_text(text)
    with raises(ReaderError, "out_of_range num_attention_heads"):
        load_huggingface(tmp_path)
