"""Search by bounds against evaluating everything: the same layouts, in the same order, on random spaces."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.bounded import every_bound
from tests.small import MLA, MOE_LAYER, cluster, dense, moe, sees, workload

from forescale.catalogue.frameworks import load_framework
from forescale.errors import InfeasibleError, SpecError
from forescale.question import Question
from forescale.schedule import families
from forescale.search import scope, search, solve
from forescale.search.evaluate import score
from forescale.search.layouts import allowed
from forescale.search.relax import memory_limits
from forescale.search.tree import Tree, enumerate_cells, enumerate_layouts
from forescale.spec import DEFAULT_AXIS_ORDER, DenseFfn, Layer, Layout, Overlap, Precision, Recompute, Share
from forescale.spec.framework import searched
from forescale.spec.layout import Offload
from forescale.spec.space import ORDERS, Space, default_recompute, partial_recompute

MODELS = {f"{make.__name__}-{layers}": make(layers) for make in (dense, moe) for layers in (3, 6)}
LATENT = Layer(attention=MLA, ffn=DenseFfn(ffn_hidden_size=2048))
MODELS["latent-4"] = replace(dense(4), layers=(LATENT,) * 4, tied_embeddings=True)
ROUTED = Layer(attention=MLA, ffn=replace(MOE_LAYER.ffn, score_bias=True))
MODELS["seeing-3"] = sees(3)
MODELS["biased-4"] = replace(moe(4), layers=(ROUTED,) * 4, num_mtp_layers=0)

PRECISIONS = (Precision(), Precision(), Precision(compute="fp8", recipe="blockwise", parameters="fp8"))


PLACEMENTS = [("orders",)] * 2 + [
    ("all",),
    ("orders", "all"),
    ("orders", "all"),
    ((Share(tp=2, dp=2),), "orders"),
    ("orders", (Share(dp=4),)),
]


OFFLOADS = [Offload()] * 3 + [
    Offload(optimizer=0.5, overlap=False),
    Offload(activation_layers=1),
    Offload(activation_layers=2, optimizer=1.0, master=False),
    Offload(parameters=True),
]
LIMITED = [load_framework(name) for name in ("megatron-core", "deepspeed-zero", "maxtext")]
STEPS = 20
"""In which a search of thousands of layouts evaluates them all: a hundred show no more than a few do."""
RULES = [()] * 3 + [searched(framework, Space(), limited=True).rules for framework in LIMITED]


def some(values, most=3):
    """Non-empty lists of distinct values, in any order."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True).map(tuple)


@st.composite
def networks(draw, devices):
    """Nodes of 4 or 8, and a tier of 8 between nodes of 4 and the fabric."""
    whole = cluster(devices)
    node, fabric = whole.tiers
    small, rack = replace(node, size=4), replace(fabric, name="rack", size=8, bandwidth=150e9)
    return replace(whole, tiers=draw(st.sampled_from([whole.tiers, (small, fabric), (small, rack, fabric)])))


@st.composite
def schedules(draw):
    """1F1B; in a quarter of the spaces some schedule of the library beside it or alone."""
    name = draw(st.sampled_from([family.name for family in families()]))
    return draw(st.sampled_from([(None,)] * 6 + [(None, name), (name,)]))


@st.composite
def questions(draw):
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    devices = draw(st.sampled_from([4, 6, 8, 12]))
    batch = draw(st.sampled_from([8, 12, 24]))
    kinds = [("1d",)] * 3 + ([] if model.is_moe else [("1d", "summa"), ("summa",), ("summa", "1d")])
    space = Space(
        tp_kind=draw(st.sampled_from(kinds)),
        summa_panels=draw(some([1, 2, 5])),
        tp=draw(st.none() | some([1, 2, 4])),
        cp=draw(some([1, 2, 4], 2)),
        pp=draw(st.none() | some([1, 2, 3, 4])),
        vpp=draw(st.none() | some([1, 2, 3])),
        zero=draw(some([0, 1, 2, 3], 4)),
        micro_batch_size=draw(some([1, 2, 3, 4])),
        sp=draw(some([True, False])),
        cp_kind=draw(some(["all_gather", "ring", "ulysses", "hierarchical"], 2)),
        recompute=draw(st.none() | some((*default_recompute(model), *partial_recompute(model)), 4)),
        axis_order=draw(some(ORDERS)),
        placement=draw(st.sampled_from([None, *PLACEMENTS])),
        schedule=draw(schedules()),
        base=Layout(
            overlap=Overlap(**{name: draw(st.booleans()) for name in Overlap.__dataclass_fields__}),
            reshard=draw(st.sampled_from(["default", "always", "never", 2])),
            cp_inner=draw(st.sampled_from([None, 1, 2, 8])),
            offload=draw(st.sampled_from(OFFLOADS)),
        ),
        rules=draw(st.sampled_from(RULES)),
    )
    work = replace(
        workload(seq_len=1024, global_batch_size=batch), precision=draw(st.sampled_from(PRECISIONS))
    )
    return model, draw(networks(devices)), work, space


def ranked(scores, candidates, fits, objective):
    """Rank everything: by the objective, the other one, then the order of the space; equal placements once.

    Return the value and the layout of each.
    """
    values = (scores.step_time, scores.peak) if objective == "step_time" else (scores.peak, scores.step_time)
    first, second = (value.reshape(-1) for value in values)
    feasible = np.flatnonzero(fits)
    order = np.lexsort((feasible, second[feasible], first[feasible]))
    result = {}
    for index in feasible[order].tolist():
        variant, row = divmod(index, fits.shape[1])
        unplaced = replace(candidates.variants[variant], axis_order=DEFAULT_AXIS_ORDER, placement=None)
        result.setdefault((row, unplaced, first[index], second[index]), (variant, row))
    return [(key[2], candidates.strategy(*index)) for key, index in result.items()]


def folded(every, top):
    """Return the first of each shape, and how many others of it are as good as the last of them."""
    firsts = {}
    for value, layout in every:
        firsts.setdefault(shape(layout), (value, layout))
    best = list(firsts.values())[:top]
    worst = best[-1][0] if len(best) == top else np.inf
    counts = Counter(shape(layout) for value, layout in every if value <= worst)
    return [layout for _, layout in best], tuple(counts[shape(layout)] - 1 for _, layout in best)


def shape(layout):
    names = ("tp", "cp", "ep", "etp", "pp", "vpp", "micro_batch_size")
    return tuple(getattr(layout, name) for name in names)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(questions(), st.data())
def test_the_best_by_bounds_are_the_best_of_all(asked, data):
    """Evaluate all layouts of a space and their bounds once, and search it twice: other goals, limits and steps."""
    model, devices, work, space = asked
    whole = space.whole(model)
    try:
        candidates = enumerate_layouts(model, devices, work, whole)
    except SpecError:
        assume(False)  # SUMMA lays out dense models with full attention only
    safe = data.draw(st.sampled_from([False, False, True]))
    question = Question(model=model, cluster=devices, workload=work, safe=safe)
    scores = score(question, candidates)
    if not np.isfinite(scores.peak).any():
        with pytest.raises(InfeasibleError, match="no legal layout"):
            search(model, devices, work, space=space)
        return
    no_layout_is_below_its_bounds(question, whole, scores)
    for _ in range(2):
        a_search_finds_the_best_of_all(replace(question, space=space), candidates, scores, data)


def a_search_finds_the_best_of_all(question, candidates, scores, data):
    """Check all that a search says against the scores of all layouts: the best, how many there are, other limits."""
    peaks = np.sort(scores.peak[np.isfinite(scores.peak)])
    share = data.draw(st.floats(0.02, 1.0))
    limit = float(peaks[int(share * (len(peaks) - 1))])
    objective = data.draw(st.sampled_from(["step_time", "step_time", "peak_memory"]))
    top = data.draw(st.sampled_from([1, 3, 10, 1000]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "FIRST_NODES", data.draw(st.sampled_from([3, 40])))
        for name, most in (("NODES", 40), ("AMONG", 60), ("PLACED", 100), ("LAYOUTS", 100)):
            patch.setattr(solve, f"DIVE_{name}", data.draw(st.sampled_from([5, most])))
        for name in ("LAYOUTS_AT_ONCE", "SIMULATED_AT_ONCE"):
            patch.setattr(solve, name, max(data.draw(st.sampled_from([40, 300])), len(candidates) // STEPS))
        patch.setattr(scope, "SAMPLED_FROM", data.draw(st.sampled_from([0, scope.SAMPLED_FROM])))
        every_one = data.draw(st.booleans())
        request = replace(question, objective=objective, max_memory=limit)
        result = search(request, top=top, all_variants=every_one)
    limit = min(limit, question.cluster.device.hbm_bytes)
    fits = scores.peak <= limit
    every = ranked(scores, candidates, fits, objective)
    alone = [layout for _, layout in every[:top]]
    layouts, variants = (alone, (0,) * len(alone)) if every_one else folded(every, top)
    assert [item.strategy for item in result.best] == layouts
    assert result.variants == variants
    assert result.num_legal == len(candidates)
    assert result.num_evaluated + result.num_over_memory + result.num_beaten == result.num_legal
    assert result.num_feasible <= fits.sum()
    assert result.gap == 0.0
    fastest = [
        float(scores.step_time[scores.peak <= memory_limit].min()) for memory_limit in memory_limits(limit)
    ]
    steps = [step for before, step in pairwise(fastest) if step < before]
    assert [relaxation.step_time_s for relaxation in result.relaxations] == steps


def no_layout_is_below_its_bounds(question, space, scores):
    """Check every bound against the layouts behind it, and what is enumerated by cells against their tree."""
    cells = enumerate_cells(question.model, question.cluster, question.workload, space)
    _, owner, place = cells.expand(np.arange(len(cells)))
    legal = cells.whole.legal
    tree, scored = Tree.from_candidates(cells.whole), legal[:, owner[np.argsort(place)]]
    assert np.array_equal(np.isfinite(scores.step_time), scored)
    assert tree.num_layouts(cells)[tree.nodes].sum() == scored.sum()
    for bound, ratio in every_bound(question, space, scores).ratios().items():
        assert ratio.max() <= 1.0, bound


@settings(max_examples=10, deadline=None)
@given(questions())
def test_placements_that_are_left_out_are_others_by_another_name(asked):
    """Of shards that straddle nodes the network's model has means, which depend on how their ranks are written."""
    model, devices, work, space = asked
    assume(devices.num_devices in (4, 8))
    space = replace(space, placement=("orders", "all"), schedule=(None,), recompute=(Recompute(),))
    space = replace(space, tp_kind=("1d",), cp_kind=("ring",))  # SUMMA leaves out layouts of its own
    candidates = enumerate_layouts(model, devices, work, space)
    if len(candidates) == 0:
        return
    question = Question(model=model, cluster=devices, workload=work)
    dp = candidates.columns["dp_replicate"] * candidates.columns["dp_shard"]
    degrees = {**{axis: candidates.columns[axis] for axis in ("tp", "cp", "pp")}, "dp": dp}
    every = np.stack([allowed(variant.rank_order, degrees) for variant in candidates.variants])
    every &= (candidates.columns["cp"] > 1) | np.array(
        [[variant.cp_kind == candidates.variants[0].cp_kind] for variant in candidates.variants]
    )
    scores = score(question, candidates, only=every)
    kept = candidates.legal
    apart = [
        replace(variant, axis_order=DEFAULT_AXIS_ORDER, placement=None) for variant in candidates.variants
    ]
    for variant, row in zip(*np.nonzero(every & ~kept), strict=True):
        others = [index for index in np.flatnonzero(kept[:, row]) if apart[index] == apart[variant]]
        local = (scores.step_time[variant, row], scores.peak[variant, row])
        assert local in {(scores.step_time[index, row], scores.peak[index, row]) for index in others}
