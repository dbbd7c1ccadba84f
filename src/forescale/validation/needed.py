"""Recompute of runs that do not state it: a run that finished had memory enough."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from forescale.files import Row
from forescale.project import project
from forescale.question import Question
from forescale.spec import Cluster, Model, Strategy, Workload
from forescale.spec.strategy import Recompute
from forescale.validation.shape import Notes


def with_needed_recompute(
    row: Row, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload, notes: Notes
) -> Strategy:
    """Return the strategy, recomputing as few whole layers of each stage as fit, where a row is silent.

    A row that ran out of memory, or says that a policy of its framework applies, stays as it is.
    """
    silent = not row.text("recompute") and strategy.recompute == Recompute()
    if not silent or re.search(r"\bOOM\b|out of memory", row.text("notes"), re.IGNORECASE):
        return strategy

    def with_layers(count: int) -> Strategy:
        return replace(strategy, recompute=Recompute(granularity="full", num_layers=count))

    def fits(layout: Strategy) -> bool:
        asked = Question(model=model, cluster=cluster, workload=workload, strategy=layout)
        return project(asked).memory.verdict != "OOM"

    most = math.ceil(model.num_layers / (strategy.pp * strategy.vpp))
    if fits(strategy) or not fits(with_layers(most)):
        return strategy
    few, enough = 0, most
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if fits(with_layers(middle)) else (middle, enough)
    notes.append(f"without recompute it could not have run: {enough} layers of each stage recomputed")
    return with_layers(enough)
