from __future__ import annotations

import pytest
from scripts.rows.cluster import cluster_of

from forescale.catalogue.clusters import load_cluster
from forescale.validation.case import InexpressibleError


def build(row):
    notes: list[str] = []
    return cluster_of(row, notes), notes


def test_hardware_names_a_catalogue_cluster_of_the_rows_size(row):
    cluster, notes = build(row())
    assert (cluster.device.name, cluster.num_devices, notes) == ("h100-sxm", 16, [])


def test_remarks_in_brackets_are_dropped_if_need_be(row):
    assert build(row(hardware="H100 SXM (Eos, some rack)"))[0].device.name == "h100-sxm"


@pytest.mark.parametrize(
    ("hardware", "device"),
    [
        ("A100-80GB SXM4", "a100-sxm-80gb"),
        ("B200 HGX", "b200"),
        ("A100-80GB", "a100-sxm-80gb"),
        ("H100", "h100-sxm"),
    ],
)
def test_a_spelling_akin_to_a_known_one_is_taken_and_noted(row, hardware, device):
    cluster, notes = build(row(hardware=hardware, gpus_per_node=""))
    assert cluster.device.name == device
    assert notes[0].startswith(f"hardware {hardware} taken as")


def test_unknown_hardware_is_a_reason(row):
    with pytest.raises(InexpressibleError, match="no catalogue cluster is of hardware 'Abacus'"):
        build(row(hardware="Abacus"))


@pytest.mark.parametrize(
    ("remark", "bandwidth", "nics"),
    [
        ("Jean Zay, 4 Omni-Path 100G links per node; date 02-17", 6.25e9, None),
        ("Jean Zay, 4 Omni-Path 100G links per node; date 02-25", 6.25e9, 0.5),
        ("inter-node 4x100Gb RoCE per node (shared by 8 GPUs)", 6.25e9, 0.5),
        ("seq/s printed 1; inter-node 1600 Gb/s per node RoCE", 25e9, 1.0),
        ("200 Gb/s HDR IB per GPU", 25e9, 1.0),
    ],
)
def test_the_network_between_nodes_is_what_the_row_says(row, remark, bandwidth, nics):
    cluster, _ = build(row(notes=remark, hardware="A100-80GB SXM"))
    assert cluster.tiers[-1].bandwidth == pytest.approx(bandwidth)
    assert nics in (None, cluster.tiers[-1].nics_per_device)


@pytest.mark.parametrize(("date", "measured"), [("17", True), ("24", True), ("25", False), ("28", False)])
def test_a_site_whose_network_is_known_has_what_was_measured_of_it_until_it_was_improved(row, date, measured):
    remark = f"Jean Zay, 4 Omni-Path 100G links per node; memory of the first node; date 02-{date}; rounded"
    cluster, notes = build(row(notes=remark, hardware="A100-80GB SXM"))
    known = load_cluster("a100-jean-zay", cluster.num_devices).tiers[-1]
    assert (cluster.tiers[-1] == known) is measured
    assert ("between nodes as a100-jean-zay" in notes) is measured


def test_a_torus_is_cut_into_the_slices_of_the_row(row):
    cluster, notes = build(
        row(hardware="TPU v5e", n_gpus=512, gpus_per_node=4, notes="4 slice(s) of v5e-128")
    )
    assert cluster.tiers[0].size == 128
    assert "slices of 128 devices" in notes


def test_half_chips_are_counted_as_devices(row):
    cluster, _ = build(row(hardware="TPU v7x (Ironwood)", n_gpus=256, gpus_per_node=8))
    assert cluster.device.name == "tpu-v7x-core"
    cluster, _ = build(row(hardware="TPU v7x (Ironwood)", n_gpus=128, gpus_per_node=4))
    assert cluster.device.name == "tpu-v7x"


def test_neuron_cores_are_the_devices_of_trainium_1(row):
    hardware = "Trainium1 (trn1.32xlarge, 16 chips = 32 NeuronCores)"
    cluster, _ = build(row(hardware=hardware, n_gpus=64, gpus_per_node=32))
    assert cluster.device.name == "trainium1-core"
