from __future__ import annotations

import pytest

from forescale.cost.collectives.algorithms import bus_bytes, passes
from forescale.presets.almodel import measured_terms
from forescale.presets.almodel.step import almodel_message_time, listed


def seconds(kind, gigabytes, ranks):
    volume = bus_bytes(num_bytes=gigabytes * 1e9, num_ranks=ranks, passes=passes(kind))
    bandwidth = listed(measured_terms().rates[kind], float(ranks))
    return float(almodel_message_time(volume=volume, num_ranks=float(ranks), bandwidth=bandwidth))


@pytest.mark.parametrize(("ranks", "weights", "printed"), [(4, 2.03, 0.07), (2, 1.01, 0.04)])
def test_all_reduce_times_of_the_analysis(ranks, weights, printed):
    assert round(seconds("all_reduce", weights, ranks), 2) == printed


def test_sharded_data_parallelism_of_the_best_plan():
    # FSDP=32 moves 754.9 GB in 4.06 s: two gathers per scatter or not, both run at the rate of 8 devices.
    whole = 754.9 / (31 / 32)
    gather, scatter = seconds("all_gather", whole / 2, 32), seconds("reduce_scatter", whole / 2, 32)
    assert gather + scatter == pytest.approx(4.06, abs=0.005)


def test_context_parallel_gather_and_scatter():
    # CP=2: 12.5 GB in 0.32 s, half of it gathered and half of it scattered.
    assert seconds("all_gather", 12.5, 2) + seconds("reduce_scatter", 12.5, 2) == pytest.approx(
        0.32, abs=0.005
    )


def test_one_rank_is_free():
    assert seconds("all_gather", 1.0, 1) == 0.0
