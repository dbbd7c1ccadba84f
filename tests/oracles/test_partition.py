"""Layers to stages against HiGHS, which solves the same question as a mixed-integer program."""

import numpy as np
import pytest

from forescale.schedule import ScheduleError
from forescale.schedule.optimise import Layer, partition_layers

optimize = pytest.importorskip("scipy.optimize")


def by_highs(layers, stages, in_flight, limit):
    """Return the least longest stage; layer l on stage s is x[s, l], recomputed there r[s, l]; infinite if none."""
    count = len(layers)
    cells = stages * count
    time = np.array([layer.time for layer in layers])
    again = np.array([layer.forward for layer in layers])
    state = np.array([layer.state for layer in layers])
    kept = np.array([layer.activation for layer in layers])
    freed = kept - np.array([layer.recomputed_activation for layer in layers])
    rows, low, high = [], [], []

    def row(x=None, r=None, longest=0.0):
        values = np.zeros(2 * cells + 1)
        for part, offset in ((x, 0), (r, cells)):
            for (stage, layer), value in (part or {}).items():
                values[offset + stage * count + layer] = value
        values[-1] = longest
        return values

    def add(values, least, most):
        rows.append(values)
        low.append(least)
        high.append(most)

    every = range(count)
    for layer in every:
        add(row({(s, layer): 1.0 for s in range(stages)}), 1.0, 1.0)
        for stage in range(stages):
            add(row({(stage, layer): 1.0}, {(stage, layer): -1.0}), 0.0, 1.0)
        if layer:
            step = {(s, layer): float(s) for s in range(stages)}
            step |= {(s, layer - 1): -float(s) for s in range(stages)}
            add(row(step), 0.0, np.inf)
    for stage, item in enumerate(in_flight):
        mine = {(stage, layer): time[layer] for layer in every}
        add(row(mine, {(stage, layer): again[layer] for layer in every}, -1.0), -np.inf, 0.0)
        add(row({(stage, layer): 1.0 for layer in every}), 1.0, count)
        uses = {(stage, layer): state[layer] + item * kept[layer] for layer in every}
        add(row(uses, {(stage, layer): -item * freed[layer] for layer in every}), -np.inf, limit)
    cost = np.zeros(2 * cells + 1)
    cost[-1] = 1.0
    milp = optimize.milp(
        cost,
        constraints=optimize.LinearConstraint(np.array(rows), low, high),
        integrality=np.append(np.ones(2 * cells), 0.0),
        bounds=optimize.Bounds(0.0, np.append(np.ones(2 * cells), np.inf)),
    )
    return milp.fun if milp.success else np.inf


def ours(layers, stages, in_flight, limit):
    try:
        return partition_layers(layers, stages, in_flight=in_flight, memory_limit=limit).longest
    except ScheduleError:
        return np.inf


@pytest.mark.parametrize("seed", range(4))
def test_unequal_layers(seed):
    random = np.random.default_rng(seed)
    layers = [Layer(forward=f, input_grad=f, weight_grad=f) for f in random.uniform(0.5, 2.0, 9)]
    assert ours(layers, 3, [1.0] * 3, 1e9) == pytest.approx(by_highs(layers, 3, [1.0] * 3, 1e9))


@pytest.mark.parametrize("limit", [8.0, 10.0, 12.0, 15.0, 30.0])
def test_alike_layers_between_embedding_and_head_within_memory(limit):
    block = Layer(
        forward=1.0, input_grad=1.0, weight_grad=1.0, activation=1.0, recomputed_activation=0.1, state=2.0
    )
    layers = [
        Layer(forward=0.1, input_grad=0.0, weight_grad=0.1, state=3.0),
        *[block] * 8,
        Layer(forward=1.5, input_grad=1.5, weight_grad=1.5, state=3.0),
    ]
    expected = by_highs(layers, 3, [3.0, 2.0, 1.0], limit)
    assert ours(layers, 3, [3.0, 2.0, 1.0], limit) == pytest.approx(expected)
