"""Layers to stages: against brute force, and with embedding, head and recompute."""

from itertools import combinations

import numpy as np
import pytest
from tests.errors import raises

from forescale.schedule import ScheduleError
from forescale.schedule.optimise import Layer, partition_layers

BLOCK = Layer(
    forward=1.0, input_grad=1.0, weight_grad=1.0, activation=1.0, recomputed_activation=0.1, state=2.0
)


def test_head_takes_layers_off_the_last_stage():
    head = Layer(forward=2.0, input_grad=2.0, weight_grad=2.0, name="head")
    embedding = Layer(forward=0.1, input_grad=0.0, weight_grad=0.1, name="embedding")
    layers = [embedding, *[BLOCK] * 14, head]
    result = partition_layers(layers, 4, in_flight=[1.0] * 4)
    sizes = np.diff(result.bounds)
    assert sizes.sum() == 16
    assert sizes[-1] - 1 == 2  # two blocks beside a head worth two
    assert result.longest == pytest.approx(12.2, abs=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_cut_is_better(seed):
    random = np.random.default_rng(seed)
    layers = [Layer(forward=f, input_grad=f, weight_grad=f) for f in random.uniform(0.5, 2.0, 9)]
    result = partition_layers(layers, 3, in_flight=[1.0] * 3)
    best = min(
        max(sum(layer.time for layer in layers[a:b]) for a, b in ((0, i), (i, j), (j, 9)))
        for i, j in combinations(range(1, 9), 2)
    )
    assert result.longest == pytest.approx(best)


def test_full_stages_recompute_just_enough():
    layers = [BLOCK] * 8
    roomy = partition_layers(layers, 2, in_flight=[2.0, 1.0], memory_limit=100.0)
    assert roomy.recomputed == ((), ())
    # stage 0: states 8 and 2 x 4 activations = 16; each recomputed layer frees 1.8
    tight = partition_layers(layers, 2, in_flight=[2.0, 1.0], memory_limit=13.0)
    assert max(tight.stage_memory) <= 13.0
    assert sum(map(len, tight.recomputed)) > 0
    assert tight.longest >= roomy.longest


def test_memory_moves_layers_to_ranks_that_hold_less():
    layers = [
        Layer(forward=1.0, input_grad=1.0, weight_grad=1.0, activation=1.0, recomputed_activation=1.0)
    ] * 8
    result = partition_layers(layers, 2, in_flight=[2.0, 1.0], memory_limit=6.0)
    assert np.diff(result.bounds).tolist() == [3, 5]


def test_a_stage_may_have_as_few_layers_as_it_must():
    assert partition_layers([BLOCK] * 3, 3, in_flight=[1.0] * 3).bounds == (0, 1, 2, 3)
    assert partition_layers([BLOCK] * 4, 2, in_flight=[1.0] * 2, min_layers=2).bounds == (0, 2, 4)


def test_of_cuts_with_one_slowest_stage_the_most_even_is_taken():
    long = Layer(forward=6.0, input_grad=6.0, weight_grad=6.0)
    assert partition_layers([long, *[BLOCK] * 4], 3, in_flight=[1.0] * 3).bounds == (0, 1, 3, 5)


def test_what_frees_most_memory_per_second_is_recomputed():
    """3 in a second before 4 in four: 2.5 must go."""
    quick, slow = (
        Layer(forward=seconds, input_grad=1.0, weight_grad=1.0, activation=kept, recomputed_activation=1.0)
        for seconds, kept in ((1.0, 4.0), (4.0, 5.0))
    )
    result = partition_layers([slow, quick], 1, in_flight=[1.0], memory_limit=6.5)
    assert (result.recomputed, result.stage_time, result.stage_memory) == (((1,),), (9.0 + 1.0,), (6.0,))


def test_what_cannot_fit_is_refused():
    with raises(ScheduleError, "out_of_memory any partition of 4 layers over 2 stages"):
        partition_layers([BLOCK] * 4, 2, in_flight=[1.0, 1.0], memory_limit=1.0)
    with raises(ScheduleError, "out_of_range the number of layers"):
        partition_layers([BLOCK] * 2, 3, in_flight=[1.0] * 3)


def test_many_layers_of_few_kinds():
    """500 layers on 5 stages: 100 each; the first holds most and recomputes what does not fit."""
    layer = Layer(
        forward=1.0, input_grad=1.0, weight_grad=1.0, activation=4.0, recomputed_activation=1.0, state=2.0
    )
    cut = partition_layers([layer] * 500, 5, in_flight=[5.0, 4.0, 3.0, 2.0, 1.0])
    assert cut.bounds == (0, 100, 200, 300, 400, 500)
    # a stage of n layers with h in flight needs n (2 + 4 h), each recomputed layer frees 3 h
    cut = partition_layers([layer] * 500, 5, in_flight=[5.0, 4.0, 3.0, 2.0, 1.0], memory_limit=1400.0)
    assert max(cut.stage_memory) <= 1400.0
    for low, high, item, again in zip(
        cut.bounds, cut.bounds[1:], (5, 4, 3, 2, 1), cut.recomputed, strict=False
    ):
        count = high - low
        assert len(again) == max(0, -(-(count * (2 + 4 * item) - 1400) // (3 * item)))
    assert cut.longest == max(
        3 * (b - a) + len(c) for a, b, c in zip(cut.bounds, cut.bounds[1:], cut.recomputed, strict=False)
    )
