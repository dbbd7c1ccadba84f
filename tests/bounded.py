"""Every bound of a search beside what it bounds: all layouts of a small space, evaluated one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forescale.question import Question
from forescale.search.bounds import MemoryBounds, WorkBounds
from forescale.search.evaluate import Scores, score
from forescale.search.layouts import Rows
from forescale.search.least import KnownTraffic, cell_bounds
from forescale.search.ranks import RelaxedPlacement, relaxed_placement
from forescale.search.tree import Cells, Tree, enumerate_cells, enumerate_layouts
from forescale.spec.space import Space

Values = NDArray[np.float64]
TIME = ("coarse", "fine", "cell", "traffic", "placed")
MEMORY = ("least", "cell", "placed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Bounds of (variant, cell) pairs, and the least of what lies behind each: infinite where nothing is legal."""

    time: dict[str, Values]
    memory: dict[str, Values]
    least_time: dict[str, Values]
    least_memory: dict[str, Values]

    def ratios(self) -> dict[str, Values]:
        """Return each bound over the least of what it bounds, (nodes,) by "time coarse" and so on."""
        result = {}
        for kind, bounds, least in (
            ("time", self.time, self.least_time),
            ("memory", self.memory, self.least_memory),
        ):
            for name, values in bounds.items():
                result[f"{kind} {name}"] = values / least[name]
        return result


def every_bound(question: Question, space: Space, scores: Scores | None = None) -> Bounded:
    """Return the bounds of all nodes of a search, beside what lies behind them; `scores` are of every layout.

    "coarse", "fine" and "least" are of all placements and recomputes of a list, "cell" of all placements, "traffic"
    those with the traffic in the best of them, "placed" of one variant; each of all ways to shard.
    """
    cells = enumerate_cells(question.model, question.cluster, question.workload, space)
    _, owner, place = cells.expand(np.arange(len(cells)))
    owner = owner[np.argsort(place)]
    tree, everywhere = Tree.from_candidates(cells.whole), relaxed_placement(cells.whole, question.cluster)
    legal = cells.whole.legal
    variant, cell = np.nonzero(legal)
    node = tree.branch_of[variant]
    work = WorkBounds(question, cells.whole, tree.branches, everywhere)
    least = MemoryBounds(question, cells, tree, everywhere)
    of = _in_parts if scores is None else cell_bounds
    wherever, placed = of(question, cells, variant, cell, everywhere), of(question, cells, variant, cell)
    in_best_order = cell_bounds(question, cells, variant, cell, everywhere, traffic=KnownTraffic())
    groups = {
        "coarse": (node, cell),
        "fine": (node, cell),
        "least": (node, cell),
        "cell": (node, tree.policy_of[variant], cell),
        "traffic": (node, tree.policy_of[variant], cell),
        "placed": (variant, cell),
    }

    if scores is None:
        layouts = enumerate_layouts(question.model, question.cluster, question.workload, space)
        scores = score(question, layouts)

    def behind(values: Values, name: str) -> Values:
        """Return the least of what lies behind each pair under the bound `name`."""
        local = np.full((len(legal), len(cells)), np.inf)
        for row, item in enumerate(values):
            np.minimum.at(local[row], owner, item)
        shape = tuple(int(part.max()) + 1 for part in groups[name])
        grouped = np.full(shape, np.inf)
        np.minimum.at(grouped, groups[name], local[variant, cell])
        result: Values = grouped[groups[name]]
        return result

    return Bounded(
        time={
            "coarse": work.coarse()[node, cell],
            "fine": work.fine(node, cell),
            "cell": wherever.step_time,
            "traffic": in_best_order.step_time,
            "placed": placed.step_time,
        },
        memory={"least": least.fine(node, cell), "cell": wherever.peak, "placed": placed.peak},
        least_time={name: behind(scores.step_time, name) for name in TIME},
        least_memory={name: behind(scores.peak, name) for name in MEMORY},
    )


def _in_parts(
    question: Question, cells: Cells, variant: Rows, cell: Rows, everywhere: RelaxedPlacement | None = None
) -> Scores:
    """Return the bounds of pairs, of cells with even and with odd numbers apart: a search takes some at a time."""
    step, peak = np.empty(len(cell)), np.empty(len(cell))
    for parity in (0, 1):
        part = np.flatnonzero(cell % 2 == parity)
        result = cell_bounds(question, cells, variant[part], cell[part], everywhere)
        step[part], peak[part] = result.step_time, result.peak
    return Scores(step_time=step, peak=peak)
