import csv
import re
from functools import partial
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import (
    OWN_DEVICE,
    cluster_names,
    cluster_record,
    counted_cluster,
    device_names,
    device_record,
    hardware_cluster,
    hardware_device,
    instance_of,
    is_cluster_name,
    load_cluster,
    load_device,
    meaning_of,
    refuse_parts,
    resolve_cluster_name,
    short_names,
)
from forescale.errors import AmbiguousNameError, SpecError, UnknownNameError
from forescale.files import packaged

ISSUE_NAMES = [
    "h100-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie", "h200-sxm", "b200", "b300", "gb200-nvl72",
    "gb300-nvl72", "h800-sxm", "v100-dgx2", "v100-jean-zay", "mi250x-frontier", "mi300x", "mi325x", "mi350x", "mi355x",
    "mi355x-pods", "perlmutter", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "gaudi2", "gaudi3",
    "trn1", "trn2", "l40s-pcie", "almodel-pod", "a100-nvs4", "h200-nvs8", "b200-nvs64", "rtx-3060", "rtx-3080", "rtx-3090",
    "rtx-4080", "rtx-4080-super", "rtx-4090", "rtx-5080", "rtx-5090",
    "rtx-a6000", "rtx-6000-ada", "rtx-pro-6000", "a10", "a10g", "l4", "t4", "v100-pcie", "h20", "h100-nvl", "gh200", "mi300a",
    "a800-sxm", "a30", "a40", "l20", "dgx-spark",
]  # fmt: skip
HARDWARE = Path(__file__).parents[1] / "data" / "hardware_names.csv"


@pytest.mark.parametrize("name", ISSUE_NAMES)
def test_named_cluster_exists(name):
    assert load_cluster(name, 4).name == name


@pytest.mark.parametrize("name", cluster_names())
def test_cluster_is_sound(name):
    cluster = load_cluster(name, 1)
    assert cluster.tiers[-1].size == 0 or cluster.tiers[-1].size >= 64
    for tier in cluster.tiers:
        assert 1e-7 <= tier.latency <= 2e-5, "latency is in seconds"
        assert 1e9 <= tier.bandwidth <= 4e12, "bandwidth is in byte/s"
        assert tier.link_bandwidth is None or tier.link_bandwidth <= tier.bandwidth
        assert (tier.dimensions > 0) == (tier.topology == "torus")
    bandwidths = [tier.bandwidth for tier in cluster.tiers]
    assert bandwidths == sorted(bandwidths, reverse=True), "outer tiers are never faster"
    assert cluster.device.source and cluster.source
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", cluster_record(name)["date"])


@pytest.mark.parametrize("name", device_names())
def test_device_is_sound(name):
    device = load_device(name)
    rates = device.matrix_flops
    peak = rates.bf16 or rates.fp16
    assert peak is not None and 2e13 <= peak <= 5e15
    assert 1e9 <= device.clock_hz <= 3e9
    assert 1e10 <= device.hbm_bytes <= 4e11
    assert 2.5e11 <= device.hbm_bandwidth <= 1.7e13
    assert 1e12 <= device.vector_flops <= 6e14
    if rates.fp8 and rates.bf16:
        assert 1.0 <= rates.fp8 / rates.bf16 <= 2.1
    assert (rates.bf16 or rates.fp16) >= (rates.tf32 or 0)


@pytest.mark.parametrize("name", device_names())
def test_estimates_are_said(name):
    record = device_record(name)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", record["date"])
    for field in record["estimated"]:
        assert field in record, f"{field} is no field of {name}"
        assert field in record["source"], f"the source of {name} must explain {field}"
        assert re.search("estimated|derived", record["source"])


def test_figures_of_a_node():
    cluster = load_cluster("h100-sxm", 256)
    assert cluster.num_devices == 256
    assert cluster.device.matrix_flops.bf16 == 989e12
    assert cluster.device.num_cores == 132
    assert [tier.bandwidth for tier in cluster.tiers] == [450e9, 50e9]
    assert cluster.tiers[0].in_network_reduction


def test_figures_of_a_torus():
    ici, _ = load_cluster("tpu-v5p", 512).tiers
    assert (ici.topology, ici.dimensions, ici.link_bandwidth, ici.bandwidth) == ("torus", 3, 90e9, 540e9)


@pytest.mark.parametrize("name", ["b200", "gb200"])
def test_a_quoted_peak_is_that_of_the_clock_it_is_quoted_at(name):
    """FlashAttention-4, arXiv:2603.05451: a multiprocessor of Blackwell does 8192 operations in bf16 per clock."""
    device = load_device(name)
    quoted = device.num_cores * 8192.0 * device.rated_clock_hz
    assert quoted == pytest.approx(device.matrix_flops.bf16, rel=2e-3)
    assert device.rated_clock_hz < device.clock_hz


def test_two_dies_are_two_devices():
    assert load_device("mi250x-gcd").hbm_bytes == 64 * 2**30
    assert load_cluster("mi250x-frontier", 8).devices_per_node == 8


def test_published_device_of_the_almodel_analysis():
    device = load_cluster("almodel-pod", 128).device
    assert device.matrix_flops.bf16 * 128 == 147648e12
    assert device.hbm_bandwidth == 3690e9
    assert device.hbm_bytes == 96 * 2**30
    assert load_cluster("almodel-pod", 128).tiers[0].bandwidth * 2 == 1200e9


def test_figures_of_the_subramanian_table():
    cluster = load_cluster("h200-nvs64", 64)
    assert cluster.tiers[0].size == 64
    assert (cluster.tiers[0].latency, cluster.tiers[1].latency) == pytest.approx((2.5e-6, 5e-6))
    assert cluster.device.vector_flops == pytest.approx(133.8e12)
    assert cluster.device.hbm_bytes == 141e9


def published_hardware():
    with HARDWARE.open(newline="") as file:
        return [row["hardware"] for row in csv.DictReader(line for line in file if not line.startswith("#"))]


@pytest.mark.parametrize("hardware", published_hardware())
def test_published_hardware_maps_to_a_device(hardware):
    assert hardware_cluster(hardware) in cluster_names()
    assert hardware_device(hardware) in device_names()


def test_hardware_may_be_a_catalogue_name():
    assert hardware_cluster("h100-sxm") == "h100-sxm"


def test_unknown_names_suggest_the_nearest():
    for load, name, near in (
        (partial(load_cluster, num_devices=8), "h100sxm", "h100-sxm"),
        (partial(load_cluster, num_devices=8), "a100-nvs9", "a100-nvs8"),
        (load_device, "mi300", "mi300x"),
        (hardware_cluster, "H100 SMX", "H100 SXM"),
    ):
        with pytest.raises(UnknownNameError) as caught:
            load(name)
        assert near in caught.value.suggestions == caught.value.nearest


@pytest.mark.parametrize(
    ("name", "near"),
    [("3070", "rtx-3090"), ("4060", "rtx-4090"), ("rtx4070ti", "rtx-4090"), ("RTX 5070", "rtx-5090")],
)
def test_an_unknown_board_is_like_a_board_and_a_file_can_describe_it(name, near):
    with pytest.raises(UnknownNameError) as caught:
        load_cluster(name, num_devices=8)
    assert caught.value.nearest[0] == near
    assert all(item.startswith("rtx-") for item in caught.value.nearest)
    assert caught.value.fix == OWN_DEVICE


SHORT = {
    "h100": "h100-sxm", "h200": "h200-sxm", "h800": "h800-sxm", "a100": "a100-sxm-80gb", "a100-40gb": "a100-sxm-40gb",
    "a100-80gb": "a100-sxm-80gb", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72", "l40s": "l40s-pcie", "v5p": "tpu-v5p",
    "v5e": "tpu-v5e", "v6e": "tpu-v6e", "v4": "tpu-v4", "v7": "tpu-v7", "ironwood": "tpu-v7", "3090": "rtx-3090",
    "3060": "rtx-3060", "4080": "rtx-4080", "NVIDIA GeForce RTX 4080 SUPER": "rtx-4080-super", "4080 super": "rtx-4080-super", "RTX 5080": "rtx-5080", "NVIDIA GeForce RTX 3080": "rtx-3080",
    "4090": "rtx-4090", "5090": "rtx-5090", "a6000": "rtx-a6000", "6000-ada": "rtx-6000-ada", "pro-6000": "rtx-pro-6000",
    "mi250x": "mi250x-frontier", "trainium2": "trn2", "H100 SXM": "h100-sxm", "RTX_4090": "rtx-4090",
    "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA GeForce RTX 4090": "rtx-4090", "Tesla T4": "t4",
    "AMD Instinct MI300X": "mi300x", "b200": "b200", "h20": "h20", "a800": "a800-sxm",
    "gb10": "dgx-spark", "v100-32gb": "v100-jean-zay",
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_short_names_mean_the_vendor_s_standard_form(name):
    assert resolve_cluster_name(name) == SHORT[name]
    assert load_cluster(name, 8).name == SHORT[name]
    assert bool(meaning_of(name)) == (name != SHORT[name])
    assert SHORT[name] in meaning_of(name) or name == SHORT[name]


@pytest.mark.parametrize("alias", short_names())
def test_aliases_are_no_names_of_their_own(alias):
    assert alias not in cluster_names()
    assert short_names()[alias] in cluster_names()
    assert not cluster_record(alias).get("paper")


@pytest.mark.parametrize(("name", "device"), [("h100", "h100-sxm"), ("4090", "rtx-4090"), ("v7", "tpu-v7x")])
def test_short_names_of_clusters_mean_their_devices(name, device):
    assert load_device(name).name == device
    assert device_record(name) == device_record(device)


def test_short_names_that_can_mean_several_name_them_all():
    with pytest.raises(AmbiguousNameError) as caught:
        load_cluster("v100", 8)
    result = caught.value
    assert (result.kind, result.name) == ("cluster", "v100")
    assert result.suggestions == tuple(name for name in cluster_names() if name.startswith("v100-"))
    assert not is_cluster_name("v100")


def test_clusters_of_a_paper_are_meant_by_their_full_names_only():
    papers = [name for name in cluster_names() if cluster_record(name).get("paper")]
    assert {"a100-nvs4", "b200-nvs64", "mi355x-pods", "almodel-pod"} <= set(papers)
    for short in ("nvs8", "pods", "almodel"):
        assert not is_cluster_name(short)
    assert all(resolve_cluster_name(name) == name for name in papers)


OWNED = {
    # cluster: 16-bit and 8-bit TFLOP/s with fp32 accumulation, GB/s of memory, GB/s to a neighbour
    "rtx-3090": (71, None, 936, 31.5), "rtx-4090": (165.2, 330.3, 1008, 31.5), "rtx-5090": (209.5, 419, 1792, 63),
    "rtx-3060": (25.5, None, 360, 31.5), "rtx-3080": (59.5, None, 760, 31.5), "rtx-4080": (97.5, 194.9, 716.8, 31.5),
    "rtx-4080-super": (104.4, 208.9, 736, 31.5),
    "rtx-5080": (112.6, 225.1, 960, 63),
    "rtx-a6000": (154.8, None, 768, 31.5), "rtx-6000-ada": (364.2, 728.5, 960, 31.5),
    "rtx-pro-6000": (503.8, 1007.6, 1792, 63), "a10": (125, None, 600, 31.5), "a10g": (70, None, 600, 31.5),
    "l4": (121, 242.5, 300, 31.5), "t4": (65, None, 320, 15.75), "v100-pcie": (112, None, 900, 15.75),
    "a800": (312, None, 2039, 200), "a30": (165, None, 933, 31.5), "a40": (149.7, None, 696, 31.5),
    "l20": (119.5, 239, 864, 31.5), "dgx-spark": (125, 250, 273, 25),
    "h20": (148, 296, 4000, 450), "h100-nvl": (835.5, 1670.5, 3900, 300), "gh200": (989, 1979, 4000, 50),
    "mi250x": (191.5, None, 1640, 200), "mi300a": (980.6, 1961.2, 5300, 384), "mi325x": (1307, 2610, 6000, 448),
}  # fmt: skip


@pytest.mark.parametrize("name", OWNED)
def test_data_sheets_of_devices_that_people_own(name):
    cluster = load_cluster(name, 1)
    device, rates = cluster.device, cluster.device.matrix_flops
    wide, narrow, memory, link = OWNED[name]
    assert (rates.bf16 or rates.fp16, rates.fp8) == (wide * 1e12, narrow and narrow * 1e12)
    assert device.hbm_bandwidth == memory * 1e9
    assert cluster.tiers[0].bandwidth == link * 1e9


@pytest.mark.parametrize(
    ("name", "per_clock", "reduced"),
    [
        ("rtx-3090", 512, 2), ("rtx-4090", 512, 2), ("rtx-5090", 512, 2), ("a10g", 512, None), ("rtx-a6000", 1024, None),
        ("rtx-6000-ada", 1024, None), ("rtx-pro-6000", 1024, None), ("a10", 1024, None), ("l4", 1024, None),
        ("t4", 1024, None),
    ],
)  # fmt: skip
def test_geforce_accumulates_16_bit_products_in_fp32_at_half_rate(name, per_clock, reduced):
    """FLOP per clock and multiprocessor, at the boost clock; the rate that accumulates in fp16 stays beside it."""
    device = load_device(name)
    assert device.matrix_flops.fp16 / device.num_cores / device.clock_hz == pytest.approx(per_clock, rel=3e-3)
    known = device.reduced_accumulation_flops
    assert (known and round(known.fp16 / device.matrix_flops.fp16)) == reduced


def test_a_pod_holds_only_so_many():
    with raises(SpecError, "too_large its outermost tier 'ici'"):
        load_cluster("almodel-pod", 10000)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("p5.48xlarge", "aws-p5"),
        ("a3-megagpu", "a3-megagpu-8g"),
        ("Standard_ND96isr_H100_v5", "h100-sxm"),
        ("DGX H100", "h100-sxm"),
        ("a100 40 gb", "a100-sxm-40gb"),
    ],
)
def test_machines_of_clouds_and_makers_are_known(name, full):
    assert resolve_cluster_name(name) == full


@pytest.mark.parametrize(
    ("name", "full"), [("8xH100", "h100-sxm"), ("h100 x 8", "h100-sxm"), ("v5p-128", "tpu-v5p")]
)
def test_a_name_with_a_number_of_devices_is_answered_with_both_apart(name, full):
    with pytest.raises(UnknownNameError) as caught:
        resolve_cluster_name(name)
    assert full in caught.value.fix
    assert "--devices" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "cluster", "devices"),
    [
        ("p5.48xlarge", "aws-p5", 8),
        ("g6e.12xlarge", "l40s-pcie", 4),
        ("Standard_ND96isr_H100_v5", "h100-sxm", 8),
        ("BM.GPU.MI300X.8", "mi300x", 8),
        ("DGX B200", "b200", 8),
        ("HGX-H100", "h100-sxm", 8),
    ],
)
def test_types_of_instances_have_their_devices(name, cluster, devices):
    assert instance_of(name) == (cluster, devices)
    assert counted_cluster(name) is None
    assert resolve_cluster_name(name) == cluster


@pytest.mark.parametrize("name", ["h100", "dgx-spark", "dgx-gb200", "p5"])
def test_other_names_are_of_no_instance(name):
    assert instance_of(name) is None


def test_a_part_of_a_node_is_no_node():
    refuse_parts("g5.48xlarge", 2)
    with raises(SpecError, "wrong_type --nodes | 2"):
        refuse_parts("g5.12xlarge", 2)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("p4d.24xlarge", 1152), ("aws-p5", 2048), ("p5.4xlarge", 256), ("g5.12xlarge", 192), ("a10g", 0)],
)
def test_nodes_of_known_instances_have_host_memory(name, gib):
    assert load_cluster(name, 1).host_memory_bytes == gib * 2**30


def test_host_memory_is_of_types_of_instances_alone():
    assert all(instance_of(name) for name in packaged("instances")["host_memory"])
