"""Buffers of communicators against what NCCL's own logs and its users measured."""

from __future__ import annotations

import numpy as np
import pytest

from forescale.memory.communicators import (
    channels_used,
    communication_of,
    connection_bytes,
    exchange_bytes,
    multicast_bytes,
    ring_bytes,
)

MIB = 2**20


def test_a_connection_is_what_the_log_of_nccl_allocates():
    """NVIDIA/nccl issue 1685: allocations of 10485760 and 2097152 bytes."""
    both = connection_bytes(simple=4 * MIB, ll=MIB // 2, ll128=4915200, granularity=2 * MIB)
    assert both == 10485760 + 2097152


def test_all_to_all_within_a_node_of_h100():
    """NVIDIA/nccl issue 1685: memory grows from 1.06 to 4.34 GB with the first all-to-all of 8 H100."""
    hopper = communication_of("NVIDIA", "hopper")
    result = exchange_bytes(
        near=7.0,
        far=0.0,
        per_peer=hopper.exchange,
        shared=hopper.exchange_across,
        connection=hopper.connection_bytes,
    )
    assert result == pytest.approx(3.28e9, rel=0.15)
    assert result < 3.28e9  # rings of the same communicator come on top


def test_all_reduce_of_two_a100():
    """NVIDIA/nccl issue 964: 544 MiB for a group of two, with what one communicator takes at most."""
    ampere = communication_of("NVIDIA", "ampere")
    ring = ring_bytes(
        size=2.0, channels=ampere.collective, connection=ampere.connection_bytes, neighbours=2.0
    )
    assert ring + ampere.fixed_bytes[2] == 544 * MIB


def test_rings_stop_growing_beyond_three_ranks():
    result = ring_bytes(size=np.array([1.0, 2.0, 3.0, 512.0]), channels=16.0, connection=1.0, neighbours=2.0)
    assert result.tolist() == [0, 16, 32, 32]


def test_channels_over_nodes_are_fewer():
    result = channels_used(size=np.array([8.0, 16.0]), within=np.array([8.0, 8.0]), inside=24.0, across=16.0)
    assert result.tolist() == [24, 16]


def test_switches_reduce_for_more_than_two_ranks_that_share_them():
    size, within = np.array([2.0, 8.0, 16.0, 64.0]), np.array([2.0, 8.0, 8.0, 64.0])
    result = multicast_bytes(size=size, within=within, channels=16.0, rank_bytes=2.0, most_ranks=32.0)
    assert result.tolist() == [0, 256, 0, 1024]


def test_exchange_over_nodes_shares_its_buffers():
    shared = {"per_peer": 2.0, "shared": 16.0, "connection": 1.0}
    assert exchange_bytes(near=7.0, far=0.0, **shared) == 14
    assert exchange_bytes(near=7.0, far=8.0, **shared) == exchange_bytes(near=7.0, far=56.0, **shared) == 30


def test_devices_without_nccl_or_rccl_have_none():
    assert communication_of("Google", "tpu-v5e") is None
