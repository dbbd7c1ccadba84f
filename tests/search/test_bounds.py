"""The first bounds: of memory never above any peak, of work never without what is within a cutoff."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.small import cluster, dense, moe, workload

from forescale.question import Question
from forescale.search.bounds import MemoryBounds
from forescale.search.evaluate import score
from forescale.search.least import cell_bounds
from forescale.search.ranks import relaxed_placement
from forescale.search.scope import Scope
from forescale.search.tree import Tree, enumerate_cells, enumerate_layouts
from forescale.spec import Layout, Recompute
from forescale.spec.layout import Kernels, Offload
from forescale.spec.space import Space

PARTLY = (
    Recompute(granularity="full", num_layers=1),
    Recompute(granularity="selective", modules=("mlp",), num_layers=1),
)
TOGETHER = (Recompute(granularity="full", unit=2), Recompute(granularity="full", unit=4, num_layers=3))
LISTED = (Recompute(granularity="full", layer_ids=(0, 2)), Recompute())
POLICIES = [LISTED, (Recompute(granularity="full"),), (Recompute(),), PARTLY, TOGETHER, (*PARTLY, *TOGETHER)]
OFFLOADS = [Offload(), Offload(modules=("core_attn",)), Offload(activation_layers=1, optimizer=0.5)]
MODELS = {"dense": dense(6), "moe": moe(6)}
NAMES = {
    "recompute": ["listed", "full", "none", "partly", "units", "several"],
    "offload": ["device", "modules", "layers"],
}
CASES = [
    (model, recompute, offload, schedule)
    for recompute in range(len(POLICIES))
    for offload in range(len(OFFLOADS))
    for model in MODELS
    for schedule in (None, "zb-h1")
]
"""Every policy with every way to offload, each pair with every model and schedule."""


def bounded_peaks(question, space):
    """Return the peaks of all layouts, the coarse bounds of their cells, none above a peak, and each one's cell."""
    cells = enumerate_cells(question.model, question.cluster, question.workload, space)
    layouts, owner, _ = cells.expand(np.arange(len(cells)))
    peaks = score(question, layouts).peak
    tree = Tree.from_candidates(cells.whole)
    bounds = MemoryBounds(question, cells, tree, relaxed_placement(cells.whole, question.cluster)).coarse()
    assert np.isfinite(peaks).any()
    assert (bounds[tree.branch_of][:, owner] <= peaks).all()
    return peaks, bounds, owner


def case_name(case):
    model, recompute, offload, schedule = case
    return f"{model}-{NAMES['recompute'][recompute]}-{NAMES['offload'][offload]}-{schedule}"


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_no_layout_needs_less_than_its_cell(case):
    name, policies, offloaded, schedule = case
    model, recompute, offload = MODELS[name], POLICIES[policies], OFFLOADS[offloaded]
    devices, work = cluster(8), workload(seq_len=1024, global_batch_size=8)
    space = Space(
        recompute=recompute, base=Layout(offload=offload), schedule=(schedule,), cp=(1, 2), sp=(True,)
    )
    question = Question(model=model, cluster=devices, workload=work)
    peaks, bounds, owner = bounded_peaks(question, space)
    least, bounds = peaks.min(axis=0), bounds.min(axis=0)[owner]
    legal = np.isfinite(least)
    assert (bounds[legal] / least[legal]).max() > 0.5


@pytest.mark.parametrize("schedule", [None, "zb-h1", "interleaved-1f1b"])
@pytest.mark.parametrize("vocab", [1024, 65536])
def test_metrics_of_the_logits_are_in_the_bounds_of_memory(schedule, vocab):
    model, devices, work = (
        replace(dense(6), vocab_size=vocab),
        cluster(8),
        workload(seq_len=1024, global_batch_size=8),
    )
    base = Layout(kernels=Kernels(cross_entropy="fused", logged_losses=2))
    space = Space(recompute=(Recompute(granularity="full"), Recompute()), base=base, schedule=(schedule,))
    question = Question(model=model, cluster=devices, workload=work)
    bounded_peaks(question, space)


@pytest.mark.parametrize("model", [dense(11), moe(11)], ids=["dense", "moe"])
@pytest.mark.parametrize("schedule", [(None,), (None, "zb-h1")])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_cells_that_are_promising_hold_all_layouts_within_a_cutoff(model, schedule, share):
    devices, work = cluster(8), workload(seq_len=1024, global_batch_size=8)
    space = Space(schedule=schedule, recompute=(Recompute(),))
    question = Question(model=model, cluster=devices, workload=work)
    layouts = enumerate_layouts(model, devices, work, space)
    steps = score(question, layouts).step_time.min(axis=0)
    cutoff = float(np.quantile(steps[np.isfinite(steps)], share))
    scope = Scope.from_question(question, space).bounded(question)
    cells = scope.within(cutoff)
    result, _, _ = cells.expand(np.arange(len(cells)))
    names = sorted(layouts.columns)
    subset = set(zip(*(result.columns[name].tolist() for name in names), strict=True))
    all_rows = list(zip(*(layouts.columns[name].tolist() for name in names), strict=True))
    assert subset <= set(all_rows)
    assert {row for row, step in zip(all_rows, steps.tolist(), strict=True) if step <= cutoff} <= subset
    assert len(scope.within(0.2 * float(steps.min()))) < len(cells)
    every = scope.within(np.inf)
    assert len(every) == len(enumerate_cells(model, devices, work, space))
    assert scope.num_layouts == Tree.from_candidates(every.whole).num_layouts(every).sum()
    cells = scope.closer(question, cutoff).within(cutoff)
    result, _, _ = cells.expand(np.arange(len(cells)))
    subset = set(zip(*(result.columns[name].tolist() for name in names), strict=True))
    assert {row for row, step in zip(all_rows, steps.tolist(), strict=True) if step <= cutoff} <= subset


@pytest.mark.parametrize("policies", [item for item in POLICIES if item != (Recompute(),)])
@pytest.mark.parametrize("schedule", [None, "zb-h1"])
@pytest.mark.parametrize("name", MODELS)
def test_no_step_is_shorter_with_recompute_than_without(name, schedule, policies):
    """Where no activations are offloaded: recompute leaves less to copy."""
    space = Space(
        recompute=(Recompute(), *policies),
        schedule=(schedule,),
        cp=(1, 2),
        sp=(True,),
        overlap=((), ("expert",)) if name == "moe" and schedule is None else (None,),
    )
    work = workload(seq_len=1024, global_batch_size=8)
    question = Question(model=MODELS[name], cluster=cluster(8), workload=work)
    cells = enumerate_cells(question.model, question.cluster, question.workload, space)
    tree, anywhere = Tree.from_candidates(cells.whole), relaxed_placement(cells.whole, question.cluster)
    bare = replace(cells, whole=MemoryBounds(question, cells, tree, anywhere).bare)
    variant, cell = np.nonzero(cells.whole.legal)
    bounds = cell_bounds(question, cells, variant, cell, anywhere).step_time
    least = cell_bounds(question, bare, tree.branch_of[variant], cell, anywhere).step_time
    assert (least <= bounds * (1.0 + 1e-12)).all()
    assert (least < bounds).any()
