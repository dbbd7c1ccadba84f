"""Cluster and device files: what they may leave out, and nodes and tiers that agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import forescale as fs
from forescale.catalogue.clusters import cluster_record, load_cluster, load_device
from forescale.errors import ReaderError, SpecError, UnknownNameError
from forescale.io.named import cluster_notes, cluster_of, read_cluster_file
from forescale.spec.cluster import Cluster, Device, MatrixRates

ROOT = Path(__file__).parents[2]
DEVICE = """
hbm_bytes = "96 GiB"
hbm_bandwidth = "3 TB/s"
[matrix_flops]
bf16 = "500 TFLOP/s"
"""


def written(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_defaults_of_a_device_are_those_of_the_specification(tmp_path):
    cluster = read_cluster_file(written(tmp_path, "chip.toml", DEVICE), 16)
    rates = MatrixRates(bf16=500e12)
    assert cluster.device == Device(name="chip", matrix_flops=rates, hbm_bytes=96 * 2**30, hbm_bandwidth=3e12)
    assert (cluster.name, cluster.num_devices, cluster.devices_per_node) == ("chip", 16, 8)
    assert [(tier.name, tier.size) for tier in cluster.tiers] == [("pcie", 8), ("ethernet", 0)]


def test_a_device_in_everyday_words(tmp_path):
    text = (
        'flops = "500 TFLOP/s"\nfp8 = "1 PFLOP/s"\nmemory = "96 GiB"\nbandwidth = "3 TB/s"\npower = "700 W"\n'
    )
    device = read_cluster_file(written(tmp_path, "chip.toml", text), 8).device
    assert device.matrix_flops == MatrixRates(bf16=500e12, fp8=1e15)
    assert (device.hbm_bytes, device.hbm_bandwidth, device.power_w) == (96 * 2**30, 3e12, 700.0)


@pytest.mark.parametrize("table", ["", "[device]\n"])
def test_everyday_words_change_the_device_of_a_base(tmp_path, table):
    text = f'base = "h100"\n{table}flops = "2 PFLOPS"\nmemory = "192 GB"\nbandwidth = "x2"\n'
    base = load_cluster("h100-sxm", 8)
    cluster = read_cluster_file(written(tmp_path, "chip.toml", text), 8)
    device = cluster.device
    assert (device.matrix_flops.bf16, device.hbm_bytes) == (2e15, 192e9)
    assert device.matrix_flops.fp8 == base.device.matrix_flops.fp8
    assert (device.hbm_bandwidth, cluster.tiers) == (2 * base.device.hbm_bandwidth, base.tiers)


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ('device = "chip.toml"\n', [("pcie", 8, 32e9), ("ethernet", 0, 12.5e9)]),
        ('device = "chip.toml"\ndevices_per_node = 2\n', [("pcie", 2, 32e9), ("ethernet", 0, 12.5e9)]),
        ('device = "chip.toml"\ndevices_per_node = 1\n', [("ethernet", 0, 12.5e9)]),
        ("[device]\nhost_bandwidth = '4 GB/s'\n" + DEVICE.replace("[m", "[device.m"), [("pcie", 8, 4e9), ("ethernet", 0, 4e9)]),
    ],
)  # fmt: skip
def test_what_a_new_device_is_joined_by_has_defaults(tmp_path, text, tiers):
    written(tmp_path, "chip.toml", DEVICE)
    cluster = read_cluster_file(written(tmp_path, "lab.toml", text), 8)
    assert [(tier.name, tier.size, tier.bandwidth) for tier in cluster.tiers] == tiers
    assert cluster.name == "lab"


def test_a_device_file_may_have_a_base(tmp_path):
    written(tmp_path, "chip.toml", 'base = "4090"\nhbm_bytes = "48 GiB"\n')
    text = json.dumps({**cluster_record("rtx-4090"), "device": "chip.toml"})
    device = read_cluster_file(written(tmp_path, "lab.json", text), 8).device
    assert (device.name, device.hbm_bytes) == ("chip", 48 * 2**30)
    assert device.matrix_flops == load_device("rtx-4090").matrix_flops


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (DEVICE.replace('hbm_bandwidth = "3 TB/s"', ""), SpecError, "hbm_bandwidth is required"),
        (DEVICE.replace("bf16", "bf8"), SpecError, "bf8"),
        (DEVICE.replace('bf16 = "500 TFLOP/s"', ""), SpecError, "at least one of fp32, tf32, fp16, bf16"),
        (f"hbm_size = 3\n{DEVICE}", SpecError, "unknown key 'hbm_size'"),
        ('device = "none.toml"', ReaderError, "none.toml"),
        ('device = "h101"', UnknownNameError, "h101"),
    ],
)
def test_wrong_devices_are_refused(tmp_path, text, error, said):
    with pytest.raises(error) as caught:
        read_cluster_file(written(tmp_path, "chip.toml", text), 8)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def on_base(folder, base, node):
    return read_cluster_file(
        written(folder, "lab.toml", f'base = "{base}"\ndevices_per_node = {node}\n'), node * 4
    )


@pytest.mark.parametrize(
    ("base", "node", "sizes"),
    [
        ("h100-pcie", 2, [2, 0]),
        ("h100", 4, [4, 0]),
        ("h100-sxm", 1, [0]),
        ("h100-pcie", 16, [16, 0]),
        ("h100-nvl", 4, [2, 4, 0]),
        ("h100-nvl", 2, [2, 0]),
        ("mi250x-frontier", 4, [2, 4, 0]),
        ("gb200-nvl72", 8, [72, 0]),
        ("tpu-v5p", 8, [8960, 0]),
        ("trn2-ultraserver", 32, [32, 64, 0]),
    ],
)
def test_tiers_inside_a_node_follow_its_size(tmp_path, base, node, sizes):
    result, known = on_base(tmp_path, base, node), load_cluster(base, 1)
    assert [tier.size for tier in result.tiers] == sizes
    assert result.devices_per_node == node
    assert {tier.name for tier in result.tiers} <= {tier.name for tier in known.tiers}


@pytest.mark.parametrize("base", ["h100-pcie", "mi300x", "gb200-nvl72", "gh200", "tpu-v4"])
def test_the_size_of_the_base_s_own_nodes_changes_nothing(tmp_path, base):
    known = load_cluster(base, 1)
    result = on_base(tmp_path, base, known.devices_per_node)
    assert result.name == "lab"
    assert replace(result, name=known.name) == known.sized(result.num_devices)


@pytest.mark.parametrize(
    ("base", "node", "tier"), [("mi250x-frontier", 3, "package"), ("gb200-nvl72", 5, "nvlink"), ("gh200", 4, "inside a node")]
)  # fmt: skip
def test_nodes_that_tiers_do_not_fill_are_refused(tmp_path, base, node, tier):
    with pytest.raises(
        SpecError, match="give tiers, innermost first, or leave out devices_per_node"
    ) as caught:
        on_base(tmp_path, base, node)
    assert tier in str(caught.value)
    assert "lab.toml, line 2" in str(caught.value)


@pytest.mark.parametrize(
    ("tier", "size", "fix"),
    [("pcie", 8, "size 2"), ("infinity-fabric", 8, "size 2"), ("nvlink", 9, "size 8")],
)
def test_tiers_that_contradict_the_nodes_are_refused(tmp_path, tier, size, fix):
    text = f'base = "h100-pcie"\ndevices_per_node = 2\n[[tiers]]\nname = "{tier}"\nsize = {size}\n'
    text += 'bandwidth = "63 GB/s"\nlatency = 0\n[[tiers]]\nname = "b"\nbandwidth = "50 GB/s"\nlatency = 0\n'
    with pytest.raises(SpecError) as caught:
        read_cluster_file(written(tmp_path, "lab.toml", text), 16)
    assert fix in str(caught.value)
    assert repr(tier) in str(caught.value)


def test_a_domain_of_several_nodes_is_no_contradiction():
    known = load_cluster("gb200-nvl72", 144)
    assert isinstance(known, Cluster)
    assert (known.tiers[0].size, known.devices_per_node) == (72, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("h100", "h100 means h100-sxm"),
        ({"base": "4090"}, "4090 means rtx-4090"),
        ("h100-sxm", ""),
        ({"base": "rtx-4090"}, ""),
    ],
)
def test_what_is_noted_of_a_cluster(given, said):
    texts = [note.text for note in cluster_notes(given, "test")]
    assert bool(texts) == bool(said)
    assert all(text.startswith(said) for text in texts)


@pytest.mark.parametrize("name", ["cluster.toml", "device.toml"])
def test_examples_are_what_the_guide_shows(name):
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert text in (ROOT / "docs" / "guides" / "machine.md").read_text(encoding="utf-8")
    cluster = cluster_of(str(ROOT / "examples" / name))
    assert cluster.num_devices == {"cluster.toml": 8, "device.toml": 1}[name]


def test_tiers_over_a_base_change_by_name_and_by_factor(tmp_path):
    text = 'base = "h100-sxm"\n[tiers.infiniband]\nbandwidth = "x0.5"\nlatency = "9 us"\n[device]\nhbm_bytes = "x1.5"\n'
    cluster, base = read_cluster_file(written(tmp_path, "lab.toml", text), 16), load_cluster("h100-sxm", 16)
    assert cluster.tiers[0] == base.tiers[0]
    assert cluster.tiers[1].bandwidth == 0.5 * base.tiers[1].bandwidth
    assert cluster.tiers[1].latency == 9e-6
    assert cluster.device.hbm_bytes == 1.5 * base.device.hbm_bytes
    assert cluster.device.hbm_bandwidth == base.device.hbm_bandwidth


@pytest.mark.parametrize(
    "text",
    [
        'network = "x0.5"',
        'infiniband = "25 GB/s"',
        '[network]\nbandwidth = "x0.5"',
        '[tiers.infiniband]\nbandwidth = "x0.5"',
    ],
)
def test_links_of_a_base_are_named_without_their_tier(tmp_path, text):
    cluster = read_cluster_file(written(tmp_path, "lab.toml", f'base = "h100-sxm"\n{text}\n'), 16)
    assert [(tier.name, tier.bandwidth) for tier in cluster.tiers] == [
        ("nvlink", 450e9),
        ("infiniband", 25e9),
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[tiers]\nbandwidth = 3\n", "such as tiers.infiniband.bandwidth"),
        ("[tiers.ib]\nbandwidth = 'x2'\n", "did you mean infiniband"),
        ("[tiers]\ninfiniband = 3\n", "tiers.infiniband must be a table"),
        ("[tiers.infiniband]\nbandwidth = 'y2'\n", "tiers.infiniband.bandwidth = 'y2' is not a quantity"),
        ("network = '100Gxps'\n", ": network = '100Gxps' is not a quantity"),
        ("[network]\nbandwidth = '100Gxps'\n", ": network.bandwidth = '100Gxps' is not a quantity"),
    ],
)
def test_changes_of_tiers_that_the_base_has_not(tmp_path, text, match):
    with pytest.raises((ReaderError, SpecError), match=match):
        read_cluster_file(written(tmp_path, "lab.toml", f'base = "h100-sxm"\n{text}'), 16)


def test_a_node_in_everyday_words(tmp_path):
    text = 'flops = "1 PFLOP/s"\nmemory = "192 GB"\nbandwidth = "6 TB/s"\n'
    node = 'gpus_per_node = 4\nnvlink = "600 GB/s"\nnic = "400 Gb/s"\n'
    cluster = read_cluster_file(written(tmp_path, "chip.toml", text + node), 8)
    assert (cluster.name, cluster.devices_per_node, cluster.device.name) == ("chip", 4, "chip")
    assert [(tier.name, tier.size, tier.bandwidth) for tier in cluster.tiers] == [
        ("nvlink", 4, 600e9),
        ("roce", 0, 50e9),
    ]
    alone = read_cluster_file(written(tmp_path, "own.toml", text + 'infiniband = "50 GB/s"\n'), 16)
    assert [(tier.name, tier.size) for tier in alone.tiers] == [("pcie", 8), ("infiniband", 0)]


@pytest.mark.parametrize(
    ("text", "node", "tiers"),
    [
        ('device = "h100"\n', 8, [("nvlink", 450e9), ("infiniband", 50e9)]),
        ('gpu = "h100"\ngpus_per_node = 4\n', 4, [("nvlink", 450e9), ("infiniband", 50e9)]),
        ('device = "h100"\nroce = "25 GB/s"\n', 8, [("nvlink", 450e9), ("roce", 25e9)]),
        (
            'device = "h100"\nintra_node_bandwidth = "300 GB/s"\ninter_node_bandwidth = "10 GB/s"\n',
            8,
            [("nvlink", 300e9), ("roce", 10e9)],
        ),
    ],
)
def test_a_known_device_brings_its_node_and_network(tmp_path, text, node, tiers):
    cluster = read_cluster_file(written(tmp_path, "lab.toml", text), 16)
    assert cluster.device == load_cluster("h100-sxm", 16).device
    assert cluster.devices_per_node == node
    assert [(tier.name, tier.bandwidth) for tier in cluster.tiers] == tiers


def test_nodes_count_the_devices_of_a_cluster(tmp_path):
    text = 'device = "h100"\ngpus_per_node = 4\nnum_nodes = 6\n'
    assert read_cluster_file(written(tmp_path, "lab.toml", text), None).num_devices == 24
    with pytest.raises(SpecError, match="num_nodes"):
        read_cluster_file(written(tmp_path, "wrong.toml", 'device = "h100"\nnum_nodes = "six"\n'), None)


def test_a_link_of_both_directions_is_noted(tmp_path):
    file = written(tmp_path, "lab.toml", 'device = "h100"\nnvlink = "900 GB/s"\n')
    [note] = cluster_notes(str(file), "cluster")
    assert note.topic == "hardware"
    assert "nvlink 900 GB/s" in note.text
    usual = written(tmp_path, "usual.toml", 'device = "h100"\nnvlink = "450 GB/s"\n')
    assert cluster_notes(str(usual), "cluster") == ()


def test_nodes_of_a_cluster_are_the_devices_of_a_question(tmp_path):
    text = 'device = "h100"\ngpus_per_node = 4\nnodes = 6\n'
    file = written(tmp_path, "lab.toml", text)
    asked = {"seq_len": 2048, "global_batch_size": 48}
    assert fs.ask("llama-3.1-8b", str(file), **asked).cluster.num_devices == 24
    table = {"device": "h100", "gpus_per_node": 4, "nodes": 6}
    assert fs.ask("llama-3.1-8b", table, **asked).cluster.num_devices == 24
    with pytest.raises(SpecError):
        fs.ask("llama-3.1-8b", table, devices=8, **asked)
