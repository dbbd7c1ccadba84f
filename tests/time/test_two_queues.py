"""What stage 3 shows of its traffic, against two queues that run a micro-batch layer by layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, workload

from forescale.project import project
from forescale.spec import Layout
from forescale.spec.layout import Kernels, Overlap
from forescale.time.overlap import exposed_ends, exposed_gather, largest_share


def makespan(layers, *, forward, backward, gather, reduce):
    """Return when one queue of compute and one of messages are done, a layer's gather issued one layer ahead."""
    network = compute = started = 0.0
    ready = [0.0] * layers
    for layer in range(layers):
        network = max(network, started) + gather
        ready[layer] = network
        started = max(compute, ready[layer])
        compute = started + forward
    # The last layer's parameters are still whole.
    arrived = compute
    for layer in reversed(range(layers)):
        started = max(compute, arrived)
        if layer + 1 < layers:
            network = max(network, started) + reduce
        if layer > 0:
            network = max(network, started) + gather
            arrived = network
        compute = started + backward
    return max(compute, max(network, compute) + reduce)


@pytest.mark.parametrize(
    ("gather", "reduce"), [(0.1, 0.2), (0.9, 0.9), (1.0, 0.5), (2.0, 0.5), (3.0, 1.5), (0.0, 0.0)]
)
def test_what_shows_is_what_two_queues_leave(gather, reduce):
    layers, forward, backward = 24, 1.0, 2.0
    pure = layers * (forward + backward)
    shown = layers * (
        exposed_gather(gather=gather, cover=forward, overlapped=True)
        + exposed_gather(gather=gather + reduce, cover=backward, overlapped=True)
    ) + exposed_ends(gather=gather, reduction=reduce, share=1.0, overlapped=True)
    exact = makespan(layers, forward=forward, backward=backward, gather=gather, reduce=reduce)
    # The closed form counts each layer against its own compute, the queues against a neighbour's.
    assert pure + shown == pytest.approx(exact, rel=2.0 / layers)
    if gather <= forward and gather + reduce <= backward:
        assert pure + shown == pytest.approx(exact)


def test_without_overlap_nothing_is_shown_twice():
    assert exposed_ends(gather=1.0, reduction=2.0, share=1.0, overlapped=False) == 0.0
    assert exposed_ends(gather=1.0, reduction=2.0, share=0.5, overlapped=True) == 1.5
    assert largest_share(largest=2.0, parameters=8.0) == 0.25


def test_fsdp_shows_its_ends_and_weights_one_by_one_less_of_them():
    layout = Layout(dp_shard=16, zero=3, micro_batch_size=8, overlap=Overlap(param_gather=True))
    work = replace(workload(), seq_len=8192, global_batch_size=128)
    blocks = project(dense(), cluster(16), layout, work)
    weights = project(dense(), cluster(16), replace(layout, kernels=Kernels(gathers_each_weight=True)), work)
    assert 0.0 < weights.time_s["data_comm"] < blocks.time_s["data_comm"]
