"""DeepEP's buffers, against its own size hints worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from forescale.memory.communicators import expert_buffer_bytes, hybrid_buffer_bytes, nvlink_buffer_bytes

HIDDEN = 7168 * 2.0
WORKSPACE = 32 * 2**20
TOKEN = 7168 * 2 + 8 + 128 * 8 + 128 * 4 + 128 * 4


def aligned(size: int) -> int:
    return -(-size // 128) * 128


def test_one_node_has_nvlink_buffers_only():
    """Config(20, 6, 256, 6, 128): 10 channels, 8 ranks."""
    nvlink = 10 * 8 * ((2 * 1 + 3) * 4 + 256 * TOKEN)
    assert expert_buffer_bytes(ranks=8.0, hidden_bytes=HIDDEN) == aligned(nvlink) + WORKSPACE


def test_a_part_of_a_node_has_buffers_for_its_own_ranks():
    """get_nvl_buffer_size_hint: min(ranks, 8) peers, and ranks // 8 nodes, one at least."""
    for ranks, peers in ((2, 2), (4, 4), (12, 8)):
        result = nvlink_buffer_bytes(
            ranks=float(ranks), peers=8.0, channels=10.0, tokens=256.0, token_bytes=float(TOKEN)
        )
        assert result == aligned(10 * peers * ((2 * 1 + 3) * 4 + 256 * TOKEN))


def test_eight_nodes_add_rdma_buffers_in_both_directions():
    """Config(20, 32, 288, 8, 128): 64 ranks on 8 nodes."""
    nvlink = 10 * 8 * ((2 * 8 + 3) * 4 + 288 * TOKEN)
    rdma = 10 * 8 * 2 * ((8 * 2 + 2) * 4 + 128 * (TOKEN + 16))
    expected = aligned(nvlink) + aligned(rdma) + WORKSPACE
    assert expert_buffer_bytes(ranks=64.0, hidden_bytes=HIDDEN) == expected
    assert expected == pytest.approx(747.3e6, rel=1e-3)


def test_received_chunks_are_rounded_up_to_those_sent():
    """Config(20, 36, 288, 20, 128) of 16 ranks: 128 received tokens become 140, seven times 20."""
    nvlink = 10 * 8 * ((2 * 2 + 3) * 4 + 288 * TOKEN)
    rdma = 10 * 2 * 2 * ((8 * 2 + 2) * 4 + 140 * (TOKEN + 16))
    assert expert_buffer_bytes(ranks=16.0, hidden_bytes=HIDDEN) == aligned(nvlink) + aligned(rdma) + WORKSPACE


def test_a_single_rank_has_none_and_arrays_are_their_elements():
    ranks = np.array([1.0, 2.0, 8.0, 16.0, 64.0, 160.0, 256.0])
    together = expert_buffer_bytes(ranks=ranks, hidden_bytes=HIDDEN)
    assert together[0] == 0.0
    assert list(together) == [float(expert_buffer_bytes(ranks=one, hidden_bytes=HIDDEN)) for one in ranks]


def test_hybridep_holds_what_all_ranks_of_a_node_may_send():
    """8 ranks, 4,096 tokens of 7,168 numbers, 32 experts each: one token buffer for dispatch and combine."""
    tokens = 4096 * 8
    result = hybrid_buffer_bytes(ranks=8.0, near=8.0, tokens=4096.0, hidden=7168.0, experts=32.0)
    assert result == tokens * 7168 * 2 + tokens * 32 * 8 * 4 + tokens * 56 * 4


def test_hybridep_between_nodes_has_buffers_for_each_other_node():
    """16 ranks on two nodes, 16 experts each."""
    tokens, everybody = 4096, 4096 * 16
    fast = everybody * (7168 * 2 + 16 * 8 * 4 + 56 * 4)
    sent = tokens * (7168 * 2 + 16 * 16 * 4 + 56 * 4)
    dispatched = tokens * (7168 * 2 + 16 * 8 * 4 + 56 * 4)
    combined = 2 * tokens * (7168 * 2 + 16 * 8 * 4)
    result = hybrid_buffer_bytes(ranks=16.0, near=8.0, tokens=4096.0, hidden=7168.0, experts=16.0)
    assert result == fast + sent + dispatched + combined


def test_one_rank_needs_no_hybridep():
    assert hybrid_buffer_bytes(ranks=1.0, near=1.0, tokens=4096.0, hidden=7168.0, experts=8.0) == 0.0
