"""Prices of experts for bounds: those by the tokens of a rank are the ones of each cell by itself, bit for bit."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.small import cluster, moe, workload

from forescale.question import Question
from forescale.search.bounds import WorkBounds
from forescale.search.ranks import relaxed_placement
from forescale.search.tree import branches_of, enumerate_cells
from forescale.spec import Layout
from forescale.spec.layout import Routing
from forescale.spec.space import Space

OVERLAPS = ((), ("shared_experts",), ("expert",))
ROUTINGS = {
    "plain": Routing(),
    "balanced by a loss": Routing(balance="aux_loss", imbalance=1.3),
    "within a capacity": Routing(capacity_factor=1.25, pad_to_capacity=True, dispatch="fp8"),
}


def seconds_of_experts(question, space):
    """Return what experts take in every cell under each operator list, layer by layer."""
    cells = enumerate_cells(question.model, question.cluster, question.workload, space).whole
    placement = relaxed_placement(cells, question.cluster)
    bounds = WorkBounds(question, cells, branches_of(cells.variants), placement)
    kinds = np.unique(bounds.alike).tolist()
    return cells.num_rows, [
        block for of_list in bounds.of_experts(kinds, np.arange(cells.num_rows)) for block in of_list.all()
    ]


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
@pytest.mark.parametrize("shared", [0, 512], ids=["alone", "shared"])
def test_experts_priced_by_tokens_are_those_of_each_cell(monkeypatch, routing, shared):
    model = moe(3)
    layers = tuple(
        replace(layer, ffn=replace(layer.ffn, shared_ffn_hidden_size=shared)) if nth else layer
        for nth, layer in enumerate(model.layers)
    )
    question = Question(
        model=replace(model, layers=layers),
        cluster=cluster(48),
        workload=workload(seq_len=3072, global_batch_size=48),
    )
    dispatchers = ("all_to_all", "deepep") if routing.capacity_factor is None else ("all_to_all",)
    space = Space(
        base=Layout(routing=routing), dispatcher=dispatchers, cp_kind=("ring", "all_gather"), overlap=OVERLAPS
    )
    count, by_tokens = seconds_of_experts(question, space)
    monkeypatch.setattr(sys.modules["forescale.search.bounds"], "goes_by_tokens", lambda *_: False)
    _, each = seconds_of_experts(question, space)
    assert count > 100
    assert max(float(block.max()) for block in each) > 0.0
    for one, other in zip(by_tokens, each, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
