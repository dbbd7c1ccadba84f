from __future__ import annotations

import numpy as np
import pytest
from tests.small import dense, moe

from forescale.errors import SpecError
from forescale.graph.stage import layers_per_stage, plan_stages


def sizes(num_layers, pp, vpp=1):
    return [len(rank) for rank in layers_per_stage(num_layers, pp, vpp)]


def test_the_remainder_goes_to_the_first_stages():
    assert sizes(61, 4) == [16, 15, 15, 15]


def test_every_layer_stands_on_one_rank_in_order():
    ranks = layers_per_stage(80, 4, 5)
    assert sorted(layer for rank in ranks for layer in rank) == list(range(80))
    assert ranks[1][:4] == (4, 5, 6, 7)
    assert ranks[0][4:8] == (16, 17, 18, 19)


def test_chunks_two_layers_short_spare_the_ends():
    assert sizes(126, 16, 8) == [7] + [8] * 14 + [7]


def test_explicit_counts():
    plan = plan_stages(dense(8), pp=3, stage_layers=(2, 4, 2))
    np.testing.assert_array_equal(plan.counts[:, 0], [2, 4, 2])
    with pytest.raises(SpecError, match="add up"):
        plan_stages(dense(8), pp=3, stage_layers=(2, 4, 3))
    with pytest.raises(SpecError, match="3 counts"):
        plan_stages(dense(8), pp=3, stage_layers=(4, 4))


def test_compressed_plan_keeps_sums_and_the_fullest_rank():
    plan = plan_stages(moe(8), pp=4)
    small = plan.compressed()
    assert (small.counts * small.multiplicity[:, None]).sum() == 8
    assert len(small.index) < 4 or len(np.unique(plan.counts, axis=0)) > 2
    assert small.multiplicity.sum() == 4
    np.testing.assert_array_equal(small.index, [0, 1, 3])
