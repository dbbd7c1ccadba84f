"""Checkpoints worked out by hand: bytes, and what of them training waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster

from forescale.errors import SpecError
from forescale.goodput.operations import case_of, checkpoint_bytes, mean_time_to_failure, saving
from forescale.spec import Cluster, Precision, Tier
from forescale.spec.operations import Checkpointing, Failures, Operations

PARAMETERS, DEVICES = 3e9, 16
SIZE = PARAMETERS * (2 + 4 + 2 * 4)
"""16-bit weights, fp32 master copies and two moments."""
STALL, STORAGE = 5.0, 2e9
HOST = 8e9
USUAL = Precision()


def fabric(network: float) -> Cluster:
    """Return devices whose host link carries `HOST`, and whose nodes `network` byte/s each."""
    local = cluster(DEVICES)
    outer = Tier(name="outer", size=0, bandwidth=network, latency=1e-6)
    return replace(local, device=replace(local.device, host_bandwidth=HOST), tiers=(local.tiers[0], outer))


def saved(mode, network=4e9, precision=USUAL, **more):
    operations = Operations(
        checkpointing=Checkpointing(mode=mode, stall=STALL, storage_bandwidth=STORAGE, **more)
    )
    return saving(operations, PARAMETERS, precision, fabric(network))


def test_a_checkpoint_holds_weights_master_copies_and_moments():
    assert saved("sync").bytes == SIZE
    assert saved("sync", precision=Precision(master="none", moments="bf16")).bytes == PARAMETERS * (2 + 2 * 2)
    assert checkpoint_bytes(parameters=7.0, weight_bytes=2.0, master_bytes=3.0, moment_bytes=5.0) == 7 * 15.0


def test_training_waits_for_storage_if_saved_in_step():
    one, stored = saved("sync"), SIZE / STORAGE
    assert (one.blocking, one.written, one.reload) == (STALL + stored, STALL + stored, stored)


def test_training_waits_for_the_host_if_saved_beside_it():
    one, copied, stored = saved("async"), STALL + SIZE / DEVICES / HOST, SIZE / STORAGE
    assert (one.blocking, one.written, one.reload) == (copied, copied + stored, stored)


@pytest.mark.parametrize(("network", "slower"), [(4e9, 4e9), (20e9, HOST)], ids=["network", "host"])
def test_copies_of_peers_go_at_the_slower_of_network_and_host_link(network, slower):
    one, copied, sent = saved("peer", network), STALL + SIZE / DEVICES / HOST, SIZE / DEVICES / slower
    assert (one.blocking, one.written, one.reload) == (copied, copied + sent, sent)


def test_checkpoints_are_not_started_before_the_last_is_written():
    written = saved("async").written
    assert saved("async", interval=written).written == written
    with pytest.raises(SpecError):
        saved("async", interval=0.99 * written)


def test_failures_of_all_devices_come_together():
    assert mean_time_to_failure(num_devices=16.0, per_device_day=0.5) == 86400.0 / 8
    operations = Operations(
        failures=Failures(per_device_day={"gpu": 0.001, "link": 0.003}, planned_per_device_day=0.002, restart=77.0),
        checkpointing=Checkpointing(mode="peer", stall=STALL, interval=900.0),
        stragglers=0.1,
        evaluation=0.2,
        planned=60.0,
        spares=2,
        repair=3600.0,
        fatal=0.25,
    )  # fmt: skip
    case, one = case_of(
        operations, parameters=PARAMETERS, precision=Precision(), cluster=fabric(4e9), seconds=1000.0
    )
    assert (case.mttf, case.planned_mttf) == (86400 / (16 * 0.004), 86400 / (16 * 0.002))
    assert (case.blocking, case.written, case.reload) == (one.blocking, one.written, one.reload)
    assert (case.interval, case.restart, case.planned, case.spares) == (900.0, 77.0, 60.0, 2)
    assert (case.repair, case.fatal, case.evaluation) == (3600.0, 0.25, 0.2)
    slower = 0.1 * (2 * 2.772588722239781) ** 0.5
    assert case.stragglers == pytest.approx(slower)
    assert case.work == pytest.approx(1000.0 * (1 + slower) / 0.8)
    assert case.replica_share is None
    elastic = case_of(
        Operations(elastic=True), parameters=1e6, precision=Precision(), cluster=fabric(4e9), seconds=1.0
    )
    assert elastic[0].replica_share == 1 / (DEVICES // fabric(4e9).devices_per_node)
