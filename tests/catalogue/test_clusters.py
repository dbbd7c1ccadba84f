import csv
import re
from pathlib import Path

import pytest

from forescale.catalogue.clusters import (
    cluster_names,
    cluster_record,
    device_names,
    device_record,
    hardware_cluster,
    hardware_device,
    load_cluster,
    load_device,
)
from forescale.errors import SpecError, UnknownNameError

ISSUE_NAMES = [
    "h100-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie", "h200-sxm", "b200", "b300", "gb200-nvl72",
    "gb300-nvl72", "h800-sxm", "v100-dgx2", "v100-jean-zay", "mi250x-frontier", "mi300x", "mi325x", "mi350x", "mi355x",
    "mi355x-pods", "perlmutter", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "gaudi2", "gaudi3",
    "trn1", "trn2", "l40s-pcie", "almodel-pod", "a100-nvs4", "h200-nvs8", "b200-nvs64",
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
    assert peak is not None and 5e13 <= peak <= 5e15
    assert 1e9 <= device.clock_hz <= 3e9
    assert 1.5e10 <= device.hbm_bytes <= 4e11
    assert 4e11 <= device.hbm_bandwidth <= 1.7e13
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
    with pytest.raises(UnknownNameError, match="did you mean h100-sxm"):
        load_cluster("h100sxm", 8)
    with pytest.raises(UnknownNameError, match=r"a100-pcie or a100-sxm-80gb or a100-sxm-40gb\?"):
        load_cluster("a100", 8)
    with pytest.raises(UnknownNameError, match="mi300x"):
        load_device("mi300")
    with pytest.raises(UnknownNameError, match="H100 SXM"):
        hardware_cluster("H100 SMX")


def test_a_pod_holds_only_so_many():
    with pytest.raises(SpecError, match="at most 9,216"):
        load_cluster("almodel-pod", 10000)
