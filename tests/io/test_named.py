import json
from dataclasses import replace

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import ReaderError, UnknownNameError
from forescale.io.named import cluster_of, model_of, named_cluster, named_model

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip
MEGATRON = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 10 --micro-batch-size 1"


def test_names_files_and_folders_are_models(tmp_path):
    assert model_of("llama-3.1-8b") == load_model("llama-3.1-8b")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert model_of(str(tmp_path / "config.json")).hidden_size == 64
    assert model_of(str(tmp_path)).hidden_size == 64
    assert model_of("config.json", folder=tmp_path).hidden_size == 64
    (tmp_path / "train.sh").write_text(MEGATRON)
    assert model_of("train.sh", folder=tmp_path).num_layers == 4


def test_a_catalogue_name_beats_a_folder_of_that_name(tmp_path):
    (tmp_path / "llama-3.1-8b").mkdir()
    assert model_of("llama-3.1-8b", folder=tmp_path) == load_model("llama-3.1-8b")


def test_what_is_neither():
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-8b"):
        model_of("llama-3.1-8bb")
    with pytest.raises(ReaderError, match="there is no such file"):
        model_of("missing.yaml")
    with pytest.raises(ReaderError, match="there is no such file"):
        cluster_of("some/where.toml", 8)
    with pytest.raises(UnknownNameError, match="h100-sxm"):
        cluster_of("h100sxm", 8)


def test_names_of_what_the_catalogue_knows():
    model, cluster = load_model("llama-3.1-8b"), load_cluster("b200", 64)
    assert named_model(model) == "llama-3.1-8b"
    assert named_model(replace(model, vocab_size=3)) is None
    assert named_model(replace(model, name="mine")) is None
    assert named_cluster(cluster) == "b200"
    assert named_cluster(replace(cluster, devices_per_node=2)) is None
