import json
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import cluster_record, load_cluster, load_device
from forescale.catalogue.models import load_model
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.errors import AmbiguousNameError, ReaderError, SpecError, UnknownKeyError, UnknownNameError
from forescale.graph.counts import count_parameters
from forescale.io.named import (
    cluster_given,
    cluster_of,
    devices_told,
    model_given,
    model_of,
    named_cluster,
    named_model,
    read_cluster_file,
)

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


def test_a_repository_is_a_catalogue_model_unless_there_is_such_a_folder(tmp_path):
    assert model_of("Qwen/Qwen3-30B-A3B", folder=tmp_path) == load_model("qwen3-30b-a3b")
    with raises(UnknownNameError, "unknown_name model"):
        model_of("Qwen/Qwen3-30B", folder=tmp_path)
    with raises(ReaderError, "not_found file"):
        model_of("../Qwen3-30B-A3B", folder=tmp_path)
    (tmp_path / "Qwen" / "Qwen3-30B-A3B").mkdir(parents=True)
    with pytest.raises(ReaderError):
        model_of("Qwen/Qwen3-30B-A3B", folder=tmp_path)


def test_short_names_of_clusters():
    assert cluster_of("h800", 8) == cluster_of("h800-sxm", 8)
    assert cluster_of("h100", 8) == cluster_of("h100-sxm", 8)


def test_a_short_name_beats_a_file_of_that_name(tmp_path):
    (tmp_path / "h100").mkdir()
    assert cluster_of("h100", 8, folder=tmp_path).name == "h100-sxm"


LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
}  # fmt: skip


def test_a_table_of_hugging_face_s_keys_is_a_model():
    result = model_given({**LLAMA_1B, "_name_or_path": "meta-llama/Llama-3.2-1B"}, "test")
    known = load_model("llama-3.2-1b")
    assert result.name == "Llama-3.2-1B"
    assert count_parameters(result) == count_parameters(known)
    assert model_given(LLAMA_1B, "test").name == "llama"
    with raises(ReaderError, "missing num_attention_heads"):
        model_given({"model_type": "internlm2", "hidden_size": 2048}, "test")


def test_addresses():
    assert model_of("https://huggingface.co/meta-llama/Llama-3.2-1B") == load_model("llama-3.2-1b")
    for item in (model_of, cluster_of):
        with raises(SpecError, "not_found local file"):
            item("https://github.com/org/name/raw/config.json")


def test_what_is_neither():
    with raises(UnknownNameError, "unknown_name model"):
        model_of("llama-3.1-8bb")
    with raises(ReaderError, "not_found file"):
        model_of("missing.yaml")
    with raises(ReaderError, "not_found file"):
        cluster_of("some/where.toml", 8)
    with raises(UnknownNameError, "unknown_name cluster"):
        cluster_of("h100sxm", 8)


def test_names_of_what_the_catalogue_knows():
    model, cluster = load_model("llama-3.1-8b"), load_cluster("b200", 64)
    assert named_model(model) == "llama-3.1-8b"
    assert named_model(replace(model, vocab_size=3)) is None
    assert named_model(replace(model, name="mine")) is None
    assert named_cluster(cluster) == "b200"
    assert named_cluster(replace(cluster, devices_per_node=2)) is None


TOML = """
device = "h100-sxm"
devices_per_node = 4
[[tiers]]
name = "nvlink"
size = 4
bandwidth = "450 GB/s"
latency = "1 us"
[[tiers]]
name = "ethernet"
size = 0
bandwidth = "100 Gb/s"
latency = "10 us"
"""
YAML = """
device: {base: h100-sxm, name: capped, power_w: 500 W}
devices_per_node: 4
tiers:
  - {name: nvlink, size: 4, bandwidth: 450 GB/s, latency: 1 us}
  - {name: ethernet, size: 0, bandwidth: 12.5e9, latency: 10 us}
"""


def written(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    return file


def test_the_outermost_tier_needs_no_size(tmp_path):
    sized = read_cluster_file(written(tmp_path, "lab.toml", TOML), 16)
    assert read_cluster_file(written(tmp_path, "lab.toml", TOML.replace("size = 0\n", "")), 16) == sized


def test_toml_with_a_named_device(tmp_path):
    cluster = read_cluster_file(written(tmp_path, "lab.toml", TOML), 16)
    assert cluster.name == "lab"
    assert cluster.num_devices == 16
    assert cluster.device == load_device("h100-sxm")
    assert cluster.tiers[1].bandwidth == 12.5e9


def test_yaml_with_a_device_in_place(tmp_path):
    cluster = read_cluster_file(written(tmp_path, "lab.yaml", YAML), 16)
    assert cluster.device.name == "capped"
    assert cluster.device.power_w == 500
    assert cluster.device.matrix_flops == load_device("h100-sxm").matrix_flops
    assert cluster.tiers == read_cluster_file(written(tmp_path, "lab.toml", TOML), 16).tiers


def test_json_on_a_base(tmp_path):
    text = json.dumps({"base": "b200", "device": {"hbm_bytes": "100 GiB"}})
    cluster = read_cluster_file(written(tmp_path, "lab.json", text), 16)
    assert cluster.name == "lab"  # its file
    assert cluster.device.hbm_bytes == 100 * 2**30
    assert cluster.device.num_cores == load_device("b200").num_cores
    assert cluster.tiers == load_cluster("b200", 16).tiers


def test_a_catalogue_entry_is_a_cluster_file(tmp_path):
    file = written(tmp_path, "gaudi3.json", json.dumps(dict(cluster_record("gaudi3"))))
    assert read_cluster_file(file, 8) == load_cluster("gaudi3", 8)


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.toml", TOML.replace("bandwidth", "bandwith"), SpecError, "did you mean bandwidth"),
        (
            "a.toml",
            TOML.replace("devices_per_node", "device_per_node"),
            SpecError,
            "did you mean devices_per_node",
        ),
        ("a.toml", TOML.replace("450 GB/s", "450 GB"), SpecError, "not_a_quantity byte/s"),
        (
            "a.toml",
            TOML.replace("size = 0", "size = 8"),
            SpecError,
            "too_large its outermost tier 'ethernet'",
        ),
        (
            "a.toml",
            TOML.replace("size = 4\n", ""),
            SpecError,
            "required_with its size",
        ),
        ("a.toml", TOML.replace("h100-sxm", "h101"), UnknownNameError, "unknown_name device"),
        ("a.toml", "num_devices = 8\n" + TOML, SpecError, "differs its number of devices"),
        ("a.toml", "base = 'h101'", UnknownNameError, "unknown_name cluster"),
        ("a.toml", "base = 'v100'", AmbiguousNameError, "ambiguous cluster"),
        (
            "a.toml",
            "base = 'h100-sxm'\n[[tiers]]\nname = 'a'\nbandwidth = '9 GB/s'\nlatency = 0\n"
            "parameters = { algorithms = ['rong'] }",
            UnknownNameError,
            "unknown_name collective algorithm",
        ),
        (
            "a.toml",
            "base = 'h100-sxm'\n[[tiers]]\nname = 'a'\nbandwidth = '9 GB/s'\nlatency = 5",
            SpecError,
            "out_of_range tiers.0.latency",
        ),
        ("a.toml", "base = 3", SpecError, "wrong_type base"),
        ("a.toml", "base = 'h100-sxm'\nfoo = 1", UnknownKeyError, "unknown_key foo"),
        ("a.toml", "device = ", ReaderError, "cannot_parse TOML"),
        ("a.json", '{"device": "h1', ReaderError, "cannot_parse JSON"),
        ("a.json", "[]", ReaderError, "wrong_type it"),
        ("a.yaml", "device: [", ReaderError, "cannot_parse YAML"),
        ("a.yaml", "device: a\ndevice: b", ReaderError, "cannot_parse YAML"),
        ("a.txt", "", ReaderError, "wrong_suffix the file"),
    ],
)
def test_bad_files(tmp_path, name, text, error, message):
    with raises(error, message) as caught:
        read_cluster_file(written(tmp_path, name, text), 16)
    assert "\n" not in str(caught.value)


def test_a_cluster_file_says_its_size_where_nobody_else_does(tmp_path):
    file = str(written(tmp_path, "lab.toml", "num_devices = 64\n" + TOML))
    assert cluster_of(file).num_devices == devices_told({"cluster": file}) == 64
    assert cluster_of(str(written(tmp_path, "small.toml", TOML))).num_devices == 1
    assert devices_told({"cluster": file, "devices": 8}) == 8
    for counted in (
        {"cluster": file, "nodes": 2},
        {"cluster": "h100-sxm"},
        {"cluster": {"base": "h100-sxm"}},
    ):
        assert devices_told(counted) is None


@pytest.mark.parametrize("given", [cluster_given, model_given])
def test_a_catalogue_name_inside_a_table_brings_no_fields(given):
    name = {cluster_given: "h100-sxm", model_given: "llama-3.1-8b"}[given]
    with raises(SpecError, "incomplete fields"):
        given({"name": name}, "plan.toml")
    assert given({"base": name, "name": "mine"}, "plan.toml").name == "mine"


def test_no_file(tmp_path):
    with raises(ReaderError, "not_found file"):
        read_cluster_file(tmp_path / "none.toml", 8)


def test_a_tier_s_own_collectives(tmp_path):
    local = """
base = "h100-sxm"
[[tiers]]
name = "nvlink"
size = 8
bandwidth = "450 GB/s"
latency = "1 us"
[[tiers]]
name = "infiniband"
size = 0
bandwidth = "50 GB/s"
latency = "5 us"
parameters = { efficiency = 0.6, launch = "80 us", algorithms = ["ring", "tree", "p2p"] }
"""
    path = tmp_path / "site.toml"
    path.write_text(local, encoding="utf-8")
    links = AlphaBeta.from_cluster(read_cluster_file(path, 16)).calibration.links
    assert links[1].protocols[-1].efficiency == pytest.approx(0.6)
    assert links[1].protocols[-1].launch == pytest.approx(80e-6)
    assert links[1].algorithms == ("ring", "tree", "p2p")
    assert links[0] == AlphaBeta.from_cluster(load_cluster("h100-sxm", 16)).calibration.links[0]
    path.write_text(local.replace('"tree"', '"trees"'), encoding="utf-8")
    with raises(UnknownNameError, "unknown_name collective algorithm"):
        AlphaBeta.from_cluster(read_cluster_file(path, 16))
    path.write_text(local.replace("0.6", "1.6"), encoding="utf-8")
    with pytest.raises(SpecError, match="efficiency"):
        read_cluster_file(path, 16)
