from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sweep.questions import grid, sweep

from forescale.sweep.definition import latin_hypercube


@given(points=st.integers(1, 40), dimensions=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_a_latin_hypercube_has_one_point_in_every_slice_of_every_dimension(points, dimensions, seed):
    cube = latin_hypercube(points, dimensions, seed=seed)
    assert cube.shape == (points, dimensions)
    for column in np.floor(cube * points).T:
        assert sorted(column.tolist()) == list(range(points))


def test_samples_follow_their_seed():
    first, again, other = (latin_hypercube(20, 3, seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_points_are_cases_times_grids_times_samples_and_samples_vary_fastest():
    result = sweep(
        case=[{"name": "plain"}, {"name": "wide", "nic_bandwidth": "x2"}],
        vary={"devices": [8, 16, 32], "flops": {"from": "x1", "to": "x4"}},
        sample={"points": 4, "seed": 3},
    )
    points = result.axes.points()
    assert result.axes.names == ("case", "devices", "flops")
    assert len(points) == result.axes.num_points == 2 * 3 * 4
    assert [point.index for point in points] == list(range(24))
    assert [point.shown[:2] for point in points[:5]] == [("plain", 8)] * 4 + [("plain", 16)]
    samples = [point.shown[2] for point in points]
    assert samples[:4] == samples[4:8] == samples[20:]
    assert sorted(np.floor(2.0 * np.log2(samples[:4])).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("scale", "values"), [("log", [100.0, 200.0, 400.0]), ("linear", [100.0, 250.0, 400.0])]
)
def test_ranges_with_steps_are_grids_with_exact_ends(scale, values):
    result = grid(nic_bandwidth={"from": "100 GB/s", "to": "400 GB/s", "steps": 3, "scale": scale})
    shown = [point.shown[0] / 1e9 for point in result.axes.points()]
    assert (shown[0], shown[-1]) == (100.0, 400.0)
    assert shown == pytest.approx(values, rel=1e-12)


def test_whole_numbers_are_sampled_in_multiples():
    result = sweep(vary={"devices": {"from": 8, "to": 128, "multiple": 8}}, sample={"points": 12, "seed": 0})
    devices = [point.shown[0] for point in result.axes.points()]
    assert all(isinstance(count, int) and count % 8 == 0 and 8 <= count <= 128 for count in devices)
    assert len(set(devices)) > 6


def test_lengths_are_written_as_in_a_plan():
    result = sweep(vary={"seq_len": ["4k", 8192]})
    assert [point.shown for point in result.axes.points()] == [(4096,), (8192,)]
    spread = sweep(vary={"seq_len": {"from": "4k", "to": "16k", "steps": 3}})
    assert [point.shown for point in spread.axes.points()] == [(4096,), (8192,), (16384,)]
