from __future__ import annotations

import pytest

from forescale.cost.mesh import Group
from forescale.errors import SpecError, UnknownNameError
from forescale.presets.almodel.terms import load_bandwidth_table


def seconds(kind, gigabytes, ranks):
    table = load_bandwidth_table("almodel")
    return float(table.seconds(kind=kind, num_bytes=gigabytes * 1e9, group=Group(size=float(ranks))))


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


def test_one_rank_is_free_and_a_permute_moves_the_message():
    assert seconds("all_gather", 1.0, 1) == 0.0
    assert seconds("p2p", 6.0, 4) == pytest.approx(0.01)


def test_missing_figures_are_an_error():
    with pytest.raises(SpecError, match="no figures for all_to_all; it has all_reduce"):
        seconds("all_to_all", 1.0, 8)
    with pytest.raises(UnknownNameError, match="almodel"):
        load_bandwidth_table("almodell")
