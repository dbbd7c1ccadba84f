"""Primus's hardware configurations, over a cluster or by themselves."""

from __future__ import annotations

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.errors import ReaderError, SpecError
from forescale.frameworks.primus.hardware import read_hardware_config
from forescale.io.named import cluster_of

MI300X = """
hardware_config:
  node_size: 8
  pod_size: 64
  node_bw: 448.0
  node_lat: 0.45
  pod_bw: 50.0
  pod_lat: 2.0
  cluster_bw: 25.0
  cluster_lat: 10.0
  nics_per_node: 8
  vector_flops: 163.0e12
  switch_topology: false
  node_topology: mesh
"""


def config(tmp_path, text, name="mi300x.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_published_file_of_mi300x_is_the_catalogue_s_cluster_of_pods(tmp_path):
    result = cluster_of(str(config(tmp_path, MI300X)), 128)
    known = load_cluster("mi300x-pods", 128)
    assert (result.num_devices, result.devices_per_node) == (128, 8)
    figures = [
        [(tier.size, tier.bandwidth, tier.latency, tier.topology) for tier in cluster.tiers]
        for cluster in (result, known)
    ]
    for ours, published in zip(*figures, strict=True):
        assert ours[:2] + ours[3:] == published[:2] + published[3:]
        assert ours[2] == pytest.approx(published[2])
    assert result.tiers[0].link_bandwidth == 64e9
    assert result.device.vector_flops == 163e12


def test_what_the_file_does_not_say_stays(tmp_path):
    base = load_cluster("h100-sxm", 64)
    changed = read_hardware_config(config(tmp_path, "pod_bw: 25\nnics_per_node: 4\n")).applied(base)
    assert changed.tiers[0] == base.tiers[0]
    assert changed.tiers[1].bandwidth == pytest.approx(25e9 * 4 / 8)
    assert changed.tiers[1].nics_per_device == 0.5
    assert changed.tiers[1].latency == base.tiers[1].latency
    assert changed.device == base.device


def test_efficiencies_and_overheads_are_parameters_of_the_tiers(tmp_path):
    text = "bw_eff: 0.5\np2p_bw_eff: 0.4\nkernel_launch_latency: 3\nrccl_overhead: 200\na2a_peer_lat: 0.9\n"
    cluster = read_hardware_config(config(tmp_path, text)).applied(load_cluster("h100-sxm", 64))
    for link in AlphaBeta.from_cluster(cluster).calibration.links:
        assert link.protocols[-1].efficiency == pytest.approx(0.5)
        assert link.protocols[-1].launch == pytest.approx(203e-6)
        assert (link.exchange_efficiency, link.peer_latency) == (0.4, pytest.approx(0.9e-6))
        assert link.fit.source.startswith("parameters of tier")


def test_keys_of_primus_s_own_model_are_named(tmp_path):
    hardware_config = read_hardware_config(
        config(tmp_path, "node_bw: 448\nar_overlap: 0.9\nhbm_latency: 0.09\n")
    )
    assert hardware_config.unused == ("ar_overlap", "hbm_latency")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node_bandwidth: 448", "unknown_key node_bandwidth"),
        ("node_bw: fast", "wrong_type node_bw"),
        ("node_bw: 0", "out_of_range node_bw"),
        ("nics_per_node: 0", "out_of_range nics_per_node"),
        ("nics: 0", "out_of_range nics"),
        ("vector_flops: 0", "out_of_range vector_flops"),
        ("bw_eff: 91", "wrong_type bw_eff"),
        ("node_topology: ring", "not_one_of node_topology"),
        ("switch_topology: 1", "wrong_type switch_topology"),
        ("hardware_config: 8", "wrong_type hardware_config"),
        ("inter_node_bandwidth_gbps: 400", "has no certain unit; give node_bw"),
    ],
)
def test_wrong_files_say_what_is_wrong(tmp_path, text, message):
    with raises(SpecError, message):
        read_hardware_config(config(tmp_path, text))


def test_no_such_file(tmp_path):
    with raises(ReaderError, "not_found file"):
        read_hardware_config(tmp_path / "none.yaml")


def test_by_itself_it_needs_the_devices(tmp_path):
    with raises(SpecError, "required_with its device"):
        cluster_of(str(config(tmp_path, MI300X, "site.yaml")), 8)
    named = cluster_of(str(config(tmp_path, f"base: mi355x\n{MI300X}", "site.yaml")), 8)
    assert named.device.name == "mi355x"
