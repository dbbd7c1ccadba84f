from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.errors import raises

import forescale.catalogue
from forescale.catalogue.models import hub_name, load_model, model_names, resolve_model_name
from forescale.errors import UnknownNameError
from forescale.files import packaged
from forescale.frameworks.huggingface import read_huggingface
from forescale.graph.counts import count_parameters
from forescale.spec import FullAttention, LatentAttention, LinearAttention, Model

FOLDER = Path(forescale.catalogue.__file__).parent
NAMES = model_names()

PUBLISHED = {
    # Parameters of the released weights in billions, as their model cards and papers print them.
    "bloom": 176.247,
    "dbrx": 131.597,
    "deepseek-v2": 235.7,
    "deepseek-v2-lite": 15.7,
    "deepseek-v3": 671.0,
    "falcon-40b": 41.3,
    "gemma-2-27b": 27.2,
    "gemma-2-9b": 9.24,
    "gemma-3-12b": 12.188,  # vision encoder, embedding, non-embedding: technical report, arXiv:2503.19786, Table 1
    "gemma-3-27b": 27.433,
    "gemma-3-4b": 4.301,
    "glm-4.5": 353.0,
    "gpt-neox-20b": 20.5546,
    "gpt-j-6b": 6.0509,
    "glm-4-9b": 9.4,
    "baichuan-13b": 13.2649,
    "baichuan2-13b": 13.8967,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "gpt2-xl": 1.558,
    "gpt3-175b": 174.6,
    "grok-1": 315.7,
    "kimi-k2": 1026.0,
    "kimi-vl-a3b": 16.4,
    "llama-2-70b": 68.98,
    "llama-2-7b": 6.738,
    "llama-3-8b": 8.03,
    "llama-3.1-405b": 405.9,
    "llama-3.1-70b": 70.55,
    "llama-3.2-1b": 1.236,
    "llama-4-maverick": 401.6,
    "llama-4-scout": 108.6,
    "llama-65b": 65.3,
    "llava-1.5-7b": 7.06,
    "minimax-text-01": 456.0,
    "mistral-7b": 7.242,
    "mistral-large": 122.6,
    "mistral-nemo": 12.25,
    "mistral-small": 23.57,
    "mixtral-8x22b": 140.6,
    "mixtral-8x7b": 46.7,
    "mpt-7b": 6.659,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-4-340b": 341.0,
    "nemotron-h-8b": 8.1,
    "nemotron-nano-12b-v2": 12.31,
    "nemotron-nano-9b-v2": 8.888,
    "olmo-2-1b": 1.485,
    "olmo-2-13b": 13.7,
    "phi-2": 2.78,
    "phi-4": 14.66,
    "pythia-12b": 11.846,
    "qwen2-57b-a14b": 57.4,
    "qwen2.5-72b": 72.7,
    "qwen2.5-vl-7b": 8.29,
    "qwen3-235b-a22b": 235.1,
    "qwen3-30b-a3b": 30.5,
    "qwen3-next-80b-a3b": 79.7,
    "qwen3-vl-30b-a3b": 31.1,
    "qwen3-vl-8b": 8.77,
    "starcoder2-15b": 15.9579,
    "starcoder2-3b": 3.0304,
    "starcoder2-7b": 7.1739,
}
ROUNDED = {
    # Billions where only two or three digits are printed, often cut rather than rounded: docs/models of Megatron-Bridge,
    # model_doc of transformers, files of weights. Classes of transformers tell the last parameter (tests/oracles).
    "exaone-4.0-32b": 32,
    "exaone-4.5-33b": 33,
    "glm-4.5v": 106,
    "k-exaone-236b-a23b": 236,
    "ministral-3-14b": 13.9,
    "ministral-3-3b": 3.8,
    "ministral-3-8b": 8.9,
    "nemotron-3-ultra-550b-a55b": 550,
    "qwen2.5-vl-32b": 33.5,
    "qwen2.5-vl-3b": 3.75,
    "qwen2.5-vl-72b": 73.4,
    "qwen3-vl-235b-a22b": 235,
    "qwen3-vl-2b": 2.13,
    "qwen3-vl-4b": 4.44,
}
ACTIVE = {
    # Parameters used by one token in billions, embeddings included.
    "deepseek-v2": 21.0,
    "deepseek-v3": 37.0,
    "kimi-k2": 32.6,
    "mixtral-8x22b": 39.1,
    "mixtral-8x7b": 12.9,
    "qwen3-235b-a22b": 22.2,
    "qwen3-30b-a3b": 3.35,
    "llama-4-maverick": 17.2,
    "nemotron-3-ultra-550b-a55b": 55.0,
    "qwen3-vl-235b-a22b": 22.0,
}


def test_tower_of_kimi_has_the_tensors_of_the_released_weights() -> None:
    """Shapes in the model.safetensors of moonshotai/Kimi-K2.5: blocks, embedding of patches, projector."""
    h, inner, wide, text = 1152, 4304, 4608, 7168
    linear = [(inner, h), (h, inner), (h, h), (3 * h, h)]
    block = sum(rows * columns + rows for rows, columns in linear) + 4 * h
    patches = 3 * 14 * 14 * h + h + 64 * 64 * h + 2 * h
    projector = 2 * h + (wide * wide + wide) + (text * wide + text)
    assert count_parameters(load_model("kimi-k2.5")).vision == 27 * block + patches + projector


def without_prediction(name: str) -> Model:
    """Return the model that published totals count: without multi-token-prediction layers."""
    return replace(load_model(name), num_mtp_layers=0)


class TestEntries:
    def test_there_are_many_of_many_architectures(self):
        types = {packaged(f"models/{name}").get("huggingface", {}).get("model_type") for name in NAMES}
        assert len(NAMES) >= 130
        assert len(types) >= 30

    @pytest.mark.parametrize("name", NAMES)
    def test_every_entry_loads_and_names_its_source(self, name: str):
        record = packaged(f"models/{name}")
        assert set(record) - {"trace"} in ({"source", "date", "huggingface"}, {"source", "date", "model"})
        assert len(record["source"]) > 20
        assert len(record["date"]) == len("2026-01-01")
        model = load_model(name)
        assert model.name == name
        assert model.source == record["source"]
        assert len({id(layer) for layer in model.layers}) == len(model.layer_kinds)

    @pytest.mark.parametrize("name", NAMES)
    def test_entries_hold_only_what_describes_the_model(self, name: str):
        record = packaged(f"models/{name}")
        if "huggingface" in record and not record.get("trace"):
            assert read_huggingface(record["huggingface"], name=name, where=name).ignored == ()

    def test_a_cached_model_is_loaded_once(self):
        assert load_model("llama-3.1-70b") is load_model("meta-llama/Llama-3.1-70B")

    def test_loading_needs_no_torch(self):
        code = (
            "import sys; from forescale.catalogue.models import load_model; load_model('llama-3.1-70b');"
            "sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestNames:
    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
            ("LLAMA3.1-70B", "llama-3.1-70b"),
            ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
            ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
            ("Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b"),
            ("google/gemma-3-27b-it", "gemma-3-27b"),
            ("gpt3_1T", "gpt3-1t"),
            ("Qwen/Qwen3-VL-235B-A22B-Instruct", "qwen3-vl-235b-a22b"),
            ("mistralai/Ministral-3-8B-Base-2512", "ministral-3-8b"),
            (" Mixtral 8x7B ", "mixtral-8x7b"),
            ("https://huggingface.co/meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
            ("hf.co/Qwen/Qwen3-8B/tree/main", "qwen3-8b"),
            ("https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json?x=1", "qwen3-8b"),
            ("http://www.huggingface.co/gpt2/", "gpt2"),
        ],
    )
    def test_common_spellings(self, given: str, name: str):
        assert resolve_model_name(given) == name

    def test_unknown_name_gives_the_nearest(self):
        with raises(UnknownNameError, "unknown_name model") as error:
            load_model("llama-3.1-71b")
        assert "llama-3.1-70b" in error.value.suggestions

    @pytest.mark.parametrize(
        ("name", "near"),
        [("bert-large", ""), ("t5-large", ""), ("mistal-7b", "mistral-7b"), ("70b", "llama-3.3-70b")],
    )
    def test_names_of_other_families_are_not_suggested(self, name: str, near: str):
        with pytest.raises(UnknownNameError, match="did you mean" if near else "ORGANISATION/NAME") as error:
            load_model(name)
        assert near in (*error.value.suggestions, "")
        assert bool(error.value.suggestions) == bool(near)

    @pytest.mark.parametrize(
        ("address", "hub"),
        [
            ("https://huggingface.co/org/unheard-of", "org/unheard-of"),
            ("https://huggingface.co/datasets/org/name", None),
            ("https://github.com/org/name", None),
            ("org/name", None),
        ],
    )
    def test_unknown_addresses(self, address: str, hub: str | None):
        assert hub_name(address) == hub
        with pytest.raises(UnknownNameError) as caught:
            load_model(address)
        assert caught.value.name == (hub or address)
        assert (f"https://huggingface.co/{hub}/resolve/main/config.json" in str(caught.value)) == bool(hub)

    @pytest.mark.parametrize("name", ["", "..", "models", "llama-3.1-70b.json", "*"])
    def test_names_are_not_paths(self, name: str):
        with pytest.raises(UnknownNameError):
            load_model(name)

    def test_aliases_are_plain_unique_and_lead_to_models(self):
        listed = json.loads((FOLDER / "model_aliases.json").read_text())
        aliases = [alias for group in listed.values() for alias in group]
        assert set(listed) <= set(NAMES)
        assert len(aliases) == len(set(aliases))
        assert not set(aliases) & set(NAMES)
        assert all(alias == alias.lower().replace("_", "-").replace(" ", "-") for alias in aliases)


class TestFigures:
    @pytest.mark.parametrize("name", PUBLISHED)
    def test_total_is_the_published_one(self, name: str):
        total = count_parameters(without_prediction(name)).total / 1e9
        assert total == pytest.approx(PUBLISHED[name], rel=2e-3)

    @pytest.mark.parametrize("name", ROUNDED)
    def test_total_is_near_what_is_printed_with_few_digits(self, name: str):
        total = count_parameters(without_prediction(name)).total / 1e9
        assert total == pytest.approx(ROUNDED[name], rel=3e-2)

    @pytest.mark.parametrize("name", ACTIVE)
    def test_active_is_the_published_one(self, name: str):
        active = count_parameters(without_prediction(name)).active / 1e9
        assert active == pytest.approx(ACTIVE[name], rel=2e-2)

    def test_megatron_models_carry_their_size_in_their_name(self):
        # Narayanan et al. 2021, Table 1: sizes in billions.
        sized = [name for name in NAMES if name.startswith("megatron-gpt-") and "." in name]
        assert len(sized) == 9
        for name in sized:
            stated = float(name.removeprefix("megatron-gpt-").removesuffix("b"))
            total = count_parameters(load_model(name)).total / 1e9
            assert total == pytest.approx(stated, abs=0.06)

    def test_almodel_reproduces_its_counts(self):
        model = load_model("almodel")
        count = count_parameters(model)
        assert round(count.total / 1e9, 2) == 17.43
        assert round(count.expert / 1e9, 2) == 16.11
        assert round((count.total - count.expert) / 1e9, 2) == 1.33
        kinds = [type(layer.attention) for layer in model.layers]
        assert (kinds.count(LinearAttention), kinds.count(LatentAttention)) == (16, 5)
        assert sum(layer.ffn == model.moe for layer in model.layers) == 20

    def test_models_of_subramanian_2024(self):
        # 12 e^2 weights per block, norms aside: section II of arXiv:2410.00273.
        gpt, vit = load_model("gpt3-1t"), load_model("vit-era5")
        for model, width, layers, heads in ((gpt, 25600, 128, 160), (vit, 12288, 48, 64)):
            attention = model.layers[0].attention
            assert isinstance(attention, FullAttention)
            assert (model.hidden_size, model.num_layers, attention.num_heads) == (width, layers, heads)
            assert (model.vocab_size, model.final_norm) == (0, False)
            blocks = layers * (12 * width**2 + 4 * width)
            assert count_parameters(model).total == pytest.approx(blocks, rel=1e-4)
        assert gpt.layers[0].attention != vit.layers[0].attention
        assert isinstance(vit.layers[0].attention, FullAttention)
        assert not vit.layers[0].attention.causal
        assert vit.patches is not None
        assert (vit.max_seq_len, 720 * 1440 // 16) == (64800, 64800)
