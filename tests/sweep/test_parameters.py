from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sweep.questions import grid, sweep

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.question import Question
from forescale.spec.cluster import LinkParameters
from forescale.sweep.parameters import parameters

PODS = "mi300x-pods"


def asked(result):
    return [one.question for one in result.asked]


def question(**changed) -> Question:
    (result,) = asked(grid(**changed))
    assert isinstance(result, Question)
    return result


BASE = load_cluster("h100-sxm", 16)


def tier(index, **changed):
    tiers = list(BASE.tiers)
    tiers[index] = replace(tiers[index], **changed)
    return replace(BASE, tiers=tuple(tiers))


def device(**changed):
    return replace(BASE, device=replace(BASE.device, **changed))


@pytest.mark.parametrize(
    ("name", "value", "cluster"),
    [
        ("hbm_capacity", "160 GiB", device(hbm_bytes=160 * 2.0**30)),
        ("hbm_capacity", "x2", device(hbm_bytes=2 * BASE.device.hbm_bytes)),
        ("hbm_bandwidth", "6.7 TB/s", device(hbm_bandwidth=6.7e12)),
        ("device.hbm_bandwidth", "x2", device(hbm_bandwidth=2 * BASE.device.hbm_bandwidth)),
        ("cluster.device.num_cores", 264, device(num_cores=264)),
        ("price_per_device_hour", "$2.50/hr", device(price_per_hour=2.5)),
        (
            "flops.bf16",
            "2 PFLOP/s",
            device(matrix_flops=replace(BASE.device.matrix_flops, bf16=2e15)),
        ),
        ("domain_size", 72, tier(0, size=72)),
        ("link_bandwidth", "900 GB/s", tier(0, bandwidth=900e9)),
        ("link_latency", "x2", tier(0, latency=2 * BASE.tiers[0].latency)),
        ("nic_bandwidth", "x0.5", tier(1, bandwidth=0.5 * BASE.tiers[1].bandwidth)),
        ("nic_latency", "10 us", tier(1, latency=1e-5)),
        ("cluster.tiers.infiniband.bandwidth", "800 Gb/s", tier(1, bandwidth=100e9)),
        (
            "cluster.tiers.nvlink.parameters.efficiency",
            0.9,
            tier(0, parameters=LinkParameters(efficiency=0.9)),
        ),
        ("cluster.devices_per_node", 4, replace(BASE, devices_per_node=4)),
        ("devices", 64, BASE.sized(64)),
        ("devices", "x4", BASE.sized(64)),
        ("nodes", 3, BASE.sized(24)),
        ("cluster", "b200", load_cluster("b200", 16)),
    ],
)
def test_parameters_change_the_cluster_and_nothing_else(name, value, cluster):
    result = question(**{name: [value]})
    assert result.cluster == cluster
    assert result.model == load_model("llama-3.1-8b")
    assert (result.workload.seq_len, result.workload.global_batch_size) == (4096, 64)


def test_a_factor_of_flops_scales_every_type_that_the_device_has():
    rates, before = question(flops=["x3"]).cluster.device.matrix_flops, BASE.device.matrix_flops
    assert rates.bf16 == 3 * before.bf16
    assert rates.fp8 == 3 * before.fp8
    assert rates.fp4 is None is before.fp4


def test_networks_beyond_the_domain_keep_their_proportion():
    base = load_cluster(PODS, 16).tiers
    (result,) = asked(sweep(cluster=PODS, vary={"nic_bandwidth": ["100 GB/s"]}))
    now = result.cluster.tiers
    assert now[0] == base[0]
    assert now[1].bandwidth == 100e9
    assert now[2].bandwidth / now[1].bandwidth == pytest.approx(base[2].bandwidth / base[1].bandwidth)


def test_links_between_single_pairs_follow_the_bandwidth_of_their_tier():
    (result,) = asked(sweep(cluster=PODS, vary={"link_bandwidth": ["x2"]}))
    before, now = load_cluster(PODS, 16).tiers[0], result.cluster.tiers[0]
    assert before.link_bandwidth is not None
    assert (now.bandwidth, now.link_bandwidth) == (2 * before.bandwidth, 2 * before.link_bandwidth)


def test_a_factor_applies_to_the_cluster_of_its_point():
    result = asked(grid(cluster=["h100-sxm", "b200"], hbm_capacity=["x1", "x2"]))
    sizes = [one.cluster.device.hbm_bytes for one in result]
    assert sizes[1] == 2 * sizes[0]
    assert sizes[3] == 2 * sizes[2]
    assert sizes[2] == load_cluster("b200", 1).device.hbm_bytes


def test_workload_precision_and_space_can_vary():
    result = question(**{"precision": ["fp8"], "precision.recipe": ["delayed"], "optimizer": ["lion"],
                        "workload.seq_len": ["x2"], "space.tp": [[2, 4]], "tokens": ["15T"]})  # fmt: skip
    work = result.workload
    assert (work.precision.compute, work.precision.recipe, work.optimizer) == ("fp8", "delayed", "lion")
    assert (work.seq_len, work.tokens, result.space.tp) == (8192, 15e12, (2, 4))


def test_lengths_have_their_letters_by_whatever_name():
    result = question(**{"workload.seq_len": ["8k"], "workload.document_len": ["2k"]})
    assert (result.workload.seq_len, result.workload.document_len) == (8192, 2048)


def test_how_a_run_is_operated_can_vary():
    vary = {"operations.failures": ["meta-rsc-1"], "operations.failure_factor": ["x4"],
            "operations.checkpointing.interval": ["10 min"], "operations.spares": [3]}  # fmt: skip
    operations = question(**vary).operations
    assert (operations.failures, operations.failure_factor, operations.spares) == ("meta-rsc-1", 4.0, 3)
    assert operations.checkpointing.interval == 600.0
    kept = sweep(operations={"repair": "2 d"}, vary={"operations.restart": ["1 min", "1 h"]})
    assert [(one.operations.repair, one.operations.restart) for one in asked(kept)] == [
        (172_800.0, 60.0),
        (172_800.0, 3600.0),
    ]


def test_weak_scaling_lets_the_batch_grow_with_the_devices():
    result = asked(grid(devices=[8, 16, 48], scaling=["strong", "weak"]))
    batches = [one.workload.global_batch_size for one in result]
    assert batches == [64, 32, 64, 64, 64, 192]


def test_a_batch_that_does_not_come_out_even_is_an_impossible_point():
    work = {"seq_len": 4096, "global_batch_size": 6}
    good, bad = sweep(workload=work, scaling="weak", vary={"devices": [24, 20]}).asked
    assert good.question.workload.global_batch_size == 9
    assert bad.question is None
    assert all(text in bad.problem for text in ("global batch size 6 ", "= 16", "20 devices"))


def test_nodes_follow_the_cluster():
    result = sweep(devices=None, nodes=4, vary={"cluster": ["h100-sxm", "gb200-nvl72"]})
    assert [one.cluster.num_devices for one in asked(result)] == [32, 16]


def test_combinations_that_cannot_be_are_points_with_a_reason():
    (good, bad) = sweep(cluster=PODS, vary={"domain_size": [8, 128]}).asked
    assert (good.problem, bad.question) == ("", None)
    assert "the sizes of the tiers" in bad.problem and "[128, 64, 0]" in bad.problem


def test_max_memory_may_be_a_factor_of_the_capacity_of_each_point():
    result = sweep(vary={"hbm_capacity": ["80 GiB", "160 GiB"]}, search={"max_memory": "x0.5"})
    assert [one.max_memory for one in asked(result)] == [40 * 2.0**30, 80 * 2.0**30]


def test_every_name_can_be_varied():
    samples = {"topology": "switch", "optimizer": "adamw", "vendor": "nvidia", "architecture": "hopper",
               "in_network_reduction": True, "varied_lengths": True, "cp_kind": "ring", "sp": True, "recompute": "none",
               "axis_order": "tp-cp-dp-pp", "placement": "all", "tp_kind": "1d", "schedule": "default", "scaling": "strong", "model": "llama-3.1-8b",
               "cluster": "h100-sxm", "recipe": "none", "elastic": True, "wide_area": False, "method": "local_sgd", "failures": "meta-rsc-1", "mode": "peer", "reference": "none", "preset": "default", "fp32_frozen": "none"}  # fmt: skip
    for name, parameter in parameters(["nvlink", "infiniband"]).items():
        last = name.rpartition(".")[2]
        text = samples.get(last, 1 if name.startswith("space.") else "bf16")
        values = {
            "whole": 16,
            "number": 0.5
            if ".parameters." in name or name.startswith(("operations.", "workload.outer."))
            else 1.0
            if last.endswith("latency") or "nics" in last
            else 1e12,
        }
        value = values.get(parameter.kind, text) if parameter.takes_values else "x1"
        if last == "frozen":  # of weights that are not trained, of which this question has none
            with pytest.raises(SpecError, match="frozen weights"):
                grid(**{name: [value]})
            continue
        if last == "sites":  # of a wide area, which this cluster does not have
            with pytest.raises(SpecError, match="sites of a tier"):
                grid(**{name: [value]})
            continue
        if last == "tensor_parallel":  # of a published analysis, which this question does not ask
            with pytest.raises(SpecError, match="tensor_parallel must be"):
                grid(**{name: [value]})
            continue
        (result,) = grid(**{name: [value]}).asked
        assert result.question is not None, (name, result)
