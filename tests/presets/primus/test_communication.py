"""The performance example of the Primus projection documentation: Mixtral 8x22B on 8 nodes of MI355X."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.presets.primus.communication import (
    Network,
    communication_notes,
    documented_all_reduce,
    gradient_traffic,
    pipelined_all_reduce,
    primus_dispatch_bytes,
    primus_expert_all_reduce,
)
from forescale.spec import Layout, Workload

MIB = 2**20
STRATEGY = Layout(pp=4, ep=8, dp_shard=16, micro_batch_size=2)


@pytest.fixture(scope="module")
def network():
    cluster = Network.from_cluster(load_cluster("mi355x", 64))
    assert cluster is not None
    return cluster


def test_gradient_all_reduce(network):
    traffic = gradient_traffic(load_model("mixtral-8x22b"), STRATEGY, network, documented_all_reduce)
    assert (traffic.expert_bytes + traffic.other_bytes) / MIB == pytest.approx(24192.00)
    assert traffic.expert_replicas == 2
    assert traffic.expert_s * 1e3 == pytest.approx(483.2, abs=0.05)
    assert traffic.other_s * 1e3 == pytest.approx(57.1, abs=0.05)
    assert (traffic.expert_s + traffic.other_s) * 1e3 == pytest.approx(540.274, abs=0.002)


def test_expert_share_is_held_at_that_of_two_nodes():
    two, many = (
        primus_expert_all_reduce(num_bytes=1e9, replicas=count, bandwidth=35e9) for count in (2.0, 64.0)
    )
    assert two == many
    assert many * 2 * 63 / 64 == pytest.approx(2 * 1e9 * 63 / 64 / 35e9)


def test_all_to_all_message():
    size = primus_dispatch_bytes(tokens=2 * 8192.0, hidden_size=6144.0, top_k=2.0)
    assert size / MIB == 384.00


def test_notes_state_figures_and_defects(network):
    notes = communication_notes(
        load_model("mixtral-8x22b"),
        STRATEGY,
        Workload(seq_len=8192, global_batch_size=128),
        network,
        documented_all_reduce,
    )
    text = " ".join(note.text for note in notes)
    assert "483.2 ms" in text
    assert "384.00 MB" in text
    assert "too fast" in text


def test_dense_models_reduce_all_at_once(network):
    traffic = gradient_traffic(
        load_model("llama-3.1-8b"), Layout(dp_shard=64), network, documented_all_reduce
    )
    assert traffic.expert_bytes == 0.0
    assert traffic.other_bytes == 4 * 32 * (4 * 4096**2 + 3 * 4096 * 14336)


def test_the_source_of_2026_08_overlaps_phases_instead(network):
    """42.6 ms by its own code with MI355X's 537.6 GB/s; the catalogue has 535.5."""
    traffic = gradient_traffic(load_model("mixtral-8x22b"), STRATEGY, network, pipelined_all_reduce)
    assert traffic.expert_s * 1e3 == pytest.approx(483.2, abs=0.05)
    assert traffic.other_s * 1e3 == pytest.approx(42.6 * 537.6 / 535.5, rel=0.003)


def test_experts_on_every_replica_are_reduced_with_the_rest(network):
    """With one replica per expert Primus reduces expert gradients over all of dp, though nobody shares them."""
    layout = Layout(pp=4, ep=8, dp_shard=8, micro_batch_size=2)
    traffic = gradient_traffic(load_model("mixtral-8x22b"), layout, network, documented_all_reduce)
    assert traffic.expert_bytes == 0.0
    assert traffic.other_bytes / MIB == pytest.approx(24192.00)
