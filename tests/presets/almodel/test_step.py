"""Single formulas against printed figures."""

from __future__ import annotations

import numpy as np
import pytest
from tests.presets.almodel.published import CLUSTER, MODEL, WORKLOAD

from forescale.graph.sharding import Degrees, StructuralOptions, split_layout
from forescale.presets.almodel import ALMODEL, search_almodel
from forescale.presets.almodel.preset import evaluate
from forescale.presets.almodel.step import (
    Clock,
    Message,
    almodel_bubble,
    almodel_compute_time,
    almodel_exposed,
    almodel_keys_and_values,
    almodel_optimizer_bytes,
    almodel_routed_bytes,
)

GB = 2.0**30


def test_compute_at_the_peak():
    """269.1 PFLOP on 147,648 TFLOP/s in 1.823 s."""
    seconds = almodel_compute_time(flops=269.1e15, num_devices=128.0, peak_rate=147648e12 / 128)
    assert seconds == pytest.approx(1.823, abs=0.0006)


@pytest.mark.parametrize(("total", "compute", "printed"), [(4.06, 1.823, 2.51), (4.16, 1.784, 2.64)])
def test_exposed_part_of_fsdp(total, compute, printed):
    assert almodel_exposed(total_s=total, compute_s=compute, overlap=0.85) == pytest.approx(
        printed, abs=0.006
    )
    assert almodel_exposed(total_s=1.0, compute_s=compute, overlap=0.85) == 0.0


def test_bubble_is_its_share_of_compute_and_bubble():
    bubble = almodel_bubble(compute_s=10.0, pp=4.0, repeats=2.0, accumulation=8.0)
    assert bubble / (10.0 + bubble) == pytest.approx((4 - 1) / (2 * 8 + 4 - 1))
    assert almodel_bubble(compute_s=10.0, pp=1.0, repeats=1.0, accumulation=8.0) == 0.0


def test_traffic_of_the_optimizer():
    """28 bytes per parameter of FSDP 32: 14.2 GB, 0.004 s at 3,690 GB/s."""
    traffic = almodel_optimizer_bytes(parameters=17.43e9 / 32, bytes_per_parameter=28.0) / GB
    assert traffic == pytest.approx(14.2, abs=0.05)
    assert traffic / 3690 == pytest.approx(0.004, abs=0.0005)


def test_keys_and_values_of_context_parallelism():
    """CP 2, 80 sequences per rank: 12.5 GB gathered and scattered, half of them each; 16 heads x (128 + 128)."""
    whole = almodel_keys_and_values(sequences=80.0, seq_len=4096.0, width=5 * 16 * 256.0, tp=1.0)
    assert 2 * whole / 2 / GB == pytest.approx(12.5)


def test_routed_copies():
    """EP 2 sends half of all copies four times: 200 GB in 4.68 s at 42.7 GB/s."""
    trip = almodel_routed_bytes(tokens=40 * 4096.0, top_k=20 * 8.0, width=2048.0)
    assert 4 * trip / 2 / GB == pytest.approx(200.0)
    assert 4 * trip / 2 / GB / 42.7 == pytest.approx(4.68, abs=0.005)


def test_messages_add():
    both = Message(volume=1.0, seconds=2.0) + Message(volume=3.0, seconds=5.0)
    assert (both.volume, both.seconds) == (4.0, 7.0)


def test_a_layout_alone_is_itself_in_an_array():
    clock = Clock(model=MODEL, cluster=CLUSTER, workload=WORKLOAD, terms=ALMODEL.terms)
    result = search_almodel(MODEL, CLUSTER, WORKLOAD, top=8, worst=2)
    entries = [*result.best, *result.slowest]
    for policy in {one.strategy.recompute for one in entries}:
        alike = [one for one in entries if one.strategy.recompute == policy]
        single = [split_layout(one.strategy)[0] for one in alike]
        names = Degrees.__dataclass_fields__
        arrays = Degrees(**{name: np.array([getattr(one, name) for one in single]) for name in names})
        memory, step = evaluate(ALMODEL, clock, arrays, StructuralOptions(recompute=policy))
        assert np.broadcast_to(step.total, len(alike)).tolist() == [one.step.total for one in alike]
        assert np.broadcast_to(memory.total, len(alike)).tolist() == [one.memory.total for one in alike]
