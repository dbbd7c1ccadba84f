"""The model of a recipe: the catalogue's by its name on Hugging Face, with what the recipe changes of it."""

import pytest
from tests.errors import raises, refusal
from tests.frameworks.bridge.checkout import checkout, read, read_file

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError


@pytest.mark.parametrize(
    ("lines", "layers", "vocabulary", "ahead"),
    [
        ("pass", 61, 129280, 1),
        ("cfg.model.mtp_num_layers = None; cfg.model.pipeline_model_parallel_layout = None; cfg.model.pipeline_model_parallel_size = 1", 61, 129280, 0),
        ("cfg.tokenizer.use_tokenizer_vocab_size = True", 61, 32000, 1),
        ("cfg.model.vocab_size = 64000", 61, 64000, 1),
        ("cfg.model.vocab_size = None", 61, 129280, 1),
    ],
)  # fmt: skip
def test_what_a_recipe_changes_of_a_named_model(lines, layers, vocabulary, ahead, tmp_path):
    model = read(tmp_path, lines, base="deep_base_config").model
    assert (model.name, model.num_layers, model.vocab_size, model.num_mtp_layers) == (
        "deepseek-v3",
        layers,
        vocabulary,
        ahead,
    )
    assert model.layers == load_model("deepseek-v3").layers


def test_sizes_laid_over_a_named_model_make_another(tmp_path):
    model = read(tmp_path, "cfg.model.num_layers = 8; cfg.model.ffn_hidden_size = 4096").model
    assert (model.num_layers, model.hidden_size, model.layers[0].ffn.ffn_hidden_size) == (8, 4096, 4096)


def test_a_tokenizer_that_goes_over_the_model_is_noted(tmp_path):
    notes = read(tmp_path, "cfg.tokenizer.use_tokenizer_vocab_size = True").notes
    assert any(
        "the vocabulary is the tokenizer's, 32,000" in note and "not the model's 128,256" in note
        for note in notes
    )


NAMED = "from megatron.bridge import AutoBridge\nfrom megatron.bridge.recipes.common import pretrain\n"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("AutoBridge.from_hf_pretrained('no/such-thing').get_model_config()", "unknown_name model (line 7)"),
        ("AutoBridge.from_hf_pretrained(path()).get_model_config()", "needs_running the model (line 7)"),
        ("AutoBridge.from_hf_config(changed()).get_model_config()", "needs_running the model (line 7)"),
        ("DiffusionProvider(num_layers=2)", "not_expressed a model (line 7)"),
        ("SeeingProvider(num_layers=2, hidden_size=64)", "a SeeingProvider, whose tower (vision_config) its fields do not describe"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_known_are_refused_with_their_line(made, said, tmp_path):
    classes = "class DiffusionProvider(TransformerConfig): pass\nclass SeeingProvider(GPTModelProvider):\n    vision_config: int = 1\n"
    with pytest.raises(ReaderError) as refused:
        path = checkout(tmp_path) / "recipes" / "mine.py"
        path.write_text(
            f"{NAMED}\ndef mine_config():\n    cfg = pretrain()\n\n    cfg.model = {made}\n    return cfg\n\n{classes}"
        )
        read_file(path)
    assert said in refusal(refused.value)


def test_a_text_model_is_taken_from_the_configuration_of_a_seeing_one(tmp_path):
    start = f"{NAMED}from transformers import AutoConfig"
    lines = "\n    ".join((
        'text = AutoConfig.from_pretrained("Qwen/Qwen3.5-27B").text_config',
        "cfg.model = AutoBridge.from_hf_config(text).to_megatron_provider()",
    ))  # fmt: skip
    model = read(tmp_path, lines, base="pretrain", start=start).model
    assert (model.name, model.vision, model.num_layers) == (
        "qwen3.5-27b",
        None,
        load_model("qwen3.5-27b").num_layers,
    )


def test_a_base_that_is_not_read_is_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from megatron.bridge.recipes.family import deep_base_config as base\n\ndef mine_config():\n    cfg = base()\n    cfg.train.micro_batch_size = 2\n    return cfg\n")  # fmt: skip
    message = "not_found recipe base of megatron.bridge.recipes.family, which builds the model,"
    with raises(ReaderError, message):
        read_file(path)
    checkout(tmp_path / "elsewhere")
    file = read_file(path, folders=(tmp_path / "elsewhere",))
    assert (file.model.name, file.strategy.pp, file.strategy.micro_batch_size) == ("deepseek-v3", 4, 2)


def test_classes_of_their_own_are_read_by_their_fields(tmp_path):
    kind = "class OddModelProvider(GPTModelProvider):\n    window_size = (15, 0)\n    interleaved_attn_pattern: tuple = (2, 1)\n"
    sizes = "num_layers=6, hidden_size=64, num_attention_heads=4, vocab_size=100, gated_linear_unit=True"
    path = checkout(tmp_path) / "recipes" / "mine.py"
    path.write_text(f"{NAMED}\n{kind}\ndef mine_config():\n    cfg = pretrain()\n    cfg.model = OddModelProvider({sizes})\n    return cfg\n")  # fmt: skip
    file = read_file(path)
    assert [layer.attention.window for layer in file.model.layers] == [16, 16, None] * 2
    assert "the model is a OddModelProvider; it is read by its fields, as a plain transformer" in file.notes
