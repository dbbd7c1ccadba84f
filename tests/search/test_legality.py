"""A search against `project`, layout by layout: every combination of the values of a small space, and what is legal of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from tests.small import cluster, dense, moe, sees, workload
from tests.toy import cluster as toy_cluster
from tests.toy import costs as toy_costs

from forescale.errors import InfeasibleError, SpecError
from forescale.face import ask_search
from forescale.io.space import held_space, wider_space
from forescale.numeric import divisors
from forescale.project import project
from forescale.question import Question
from forescale.schedule.legality import LEGALITY
from forescale.search import search
from forescale.search.evaluate import score_layouts, score_pairs
from forescale.search.relax import _smallest
from forescale.search.tree import enumerate_layouts
from forescale.spec import Layout, Recompute, Share, Tier
from forescale.spec.constraints import check
from forescale.spec.layout import Offload
from forescale.spec.space import DEGREE_NAMES, Space
from forescale.spec.workload import Outer

FULL, NONE = Recompute(granularity="full"), Recompute()
ONE_POLICY = {"recompute": (NONE,), "placement": ("orders",), "axis_order": (("tp", "cp", "dp", "pp"),)}
PLAIN = {**ONE_POLICY, "cp": (1,), "sp": (True,), "cp_kind": ("all_gather",)}
SPACES = {
    "dense": (dense(3), 4, 8, {**ONE_POLICY, "cp": (1,), "recompute": (NONE, FULL), "zero": (0, 1)}),
    "zero": (dense(2), 8, 8, {**PLAIN, "pp": (1,), "micro_batch_size": (1,), "tp": (1, 2)}),
    "zero-of-experts": (moe(2), 4, 4, {**PLAIN, "pp": (1,), "micro_batch_size": (1,), "etp": (1, 2)}),
    "experts": (
        moe(3),
        4,
        8,
        {**PLAIN, "sp": (True, False), "zero": (1,), "etp": (1,), "micro_batch_size": (1,)},
    ),
    "context": (
        dense(2),
        4,
        8,
        {**ONE_POLICY, "cp_kind": ("ring", "ulysses", "hierarchical"), "pp": (1,), "zero": (0, 3)},
    ),
    "context-first-and-last": (
        dense(2),
        8,
        8,
        {**PLAIN, "cp": (2, 4), "pp": (1,), "zero": (1,), "base": Layout(cp_balanced=False)},
    ),
    "stages": (dense(7), 4, 8, {**PLAIN, "tp": (1,), "pp": (2, 4), "zero": (1,)}),
    "groups": (
        dense(7),
        2,
        6,
        {**PLAIN, "tp": (1,), "zero": (1,), "base": Layout(microbatch_group=3)},
    ),
    "schedules": (
        dense(5),
        4,
        8,
        {
            **PLAIN,
            "tp": (1,),
            "zero": (1,),
            "schedule": ("zbv", "dualpipe", None, "interleaved-1f1b", "seq1f1b"),
        },
    ),
    "schedules-of-no-pipeline": (dense(2), 2, 4, {**PLAIN, "schedule": ("zbv",), "zero": (1,)}),
    "summa": (
        dense(2),
        4,
        4,
        {
            **ONE_POLICY,
            "tp_kind": ("summa", "1d"),
            "summa_panels": (1, 5),
            "cp_kind": ("all_gather", "ring"),
            "zero": (1, 3),
        },
    ),
    "neighbours": (dense(2), 4, 4, {**PLAIN, "pp": (1,), "base": Layout(reshard=2)}),
    "host": (dense(2), 2, 4, {**PLAIN, "base": Layout(offload=Offload(parameters=True))}),
    "recompute": (
        sees(3),
        2,
        2,
        {**PLAIN, "zero": (1,), "recompute": (NONE, FULL, *(replace(FULL, num_layers=n) for n in (1, 2, 3)))},
    ),
    "settings-that-exclude-each-other": (
        moe(4),
        4,
        4,
        {
            **PLAIN,
            "recompute": (
                NONE,
                FULL,
                replace(FULL, num_layers=1),
                Recompute(granularity="selective", modules=("moe",)),
            ),
            "tp": (1,),
            "zero": (1,),
            "etp": (1,),
            "graphs": ("none", "partial", "full"),
            "overlap": (None, ("expert",)),
            "base": Layout(software="megatron-core"),
        },
    ),
    "orders": (
        dense(2),
        4,
        4,
        {**PLAIN, "zero": (1,), "axis_order": (("tp", "cp", "dp", "pp"), ("dp", "tp", "pp", "cp"))},
    ),
    "placements": (
        dense(4),
        12,
        12,
        {**PLAIN, "cp": (1, 3), "zero": (1,), "placement": ("orders", (Share(dp=4),), (Share(pp=4),))},
    ),
}
"""Model, devices, batch and what a space holds; what it does not name is open."""


def question_in(name):
    model, devices, batch, kept = SPACES[name]
    return Question(
        model=model,
        cluster=replace(toy_cluster(devices), tiers=cluster(devices).tiers),
        workload=workload(seq_len=512, global_batch_size=batch),
        costs=toy_costs(),
        space=Space(**kept),
    )


def every_combination(question):
    """Yield all layouts of the values of a space: degrees are those that divide something, or any number of stages."""
    space, devices = question.space, divisors(question.cluster.num_devices)
    experts = question.model.is_moe
    names = {
        **dict.fromkeys(("tp", "cp", "pp", "dp_replicate", "dp_shard"), devices),
        "ep": devices if experts else (1,),
        "etp": devices if experts else (1,),
        "vpp": range(1, question.model.num_layers + 3),
        "micro_batch_size": divisors(question.workload.global_batch_size),
        "sp": (True, False),
    }
    values = {name: getattr(space, name) or names[name] for name in (*DEGREE_NAMES, "sp")}
    others = (
        "tp_kind",
        "summa_panels",
        "cp_kind",
        "recompute",
        "axis_order",
        "schedule",
        "graphs",
        "overlap",
    )
    values |= {name: space.values_of(name) for name in others}
    if "summa" not in space.tp_kind:
        values["summa_panels"] = (1,)
    values["placement"] = tuple(None if item == "orders" else item for item in space.placement)
    for tp, cp, pp in product(values.pop("tp"), values.pop("cp"), values.pop("pp")):
        if question.cluster.num_devices % (tp * cp * pp):
            continue
        for item in product(*values.values()):
            named = dict(zip(values, item, strict=True))
            if tp * cp * pp * named["dp_replicate"] * named["dp_shard"] == question.cluster.num_devices:
                yield replace(space.base, tp=tp, cp=cp, pp=pp, **named)


@cache
def legal_layouts(name):
    """Return the legal ones of all combinations, and their scores."""
    question, legal = question_in(name), []
    for layout in every_combination(question):
        try:
            check(question.model, question.cluster, layout, question.workload, LEGALITY)
        except SpecError:
            continue
        legal.append(layout)
    return legal, score_layouts(question, legal)


def effective(layout):
    """Return a layout less the choices that make no difference: of one rank, of one stage, of ranks placed anyhow."""
    usual = Layout()
    if layout.tp == 1:
        layout = replace(layout, sp=True)
    if layout.tp * layout.cp == 1:
        layout = replace(layout, tp_kind="1d", summa_panels=1)
    if layout.cp == 1 or layout.tp_kind == "summa":
        layout = replace(layout, cp_kind="all_gather", cp_inner=None)
    if layout.tp_kind == "1d":
        layout = replace(layout, summa_panels=1)
    if layout.pp == 1:
        layout = replace(layout, schedule=None)
    return replace(layout, axis_order=usual.axis_order, placement=None, cp_inner=None)


@pytest.mark.parametrize("name", SPACES)
def test_a_search_has_every_layout_that_project_accepts(name):
    question = question_in(name)
    legal, scores = legal_layouts(name)
    layouts = enumerate_layouts(question.model, question.cluster, question.workload, question.space)
    every = [
        layouts.strategy(*at) for at in zip(*map(np.ndarray.tolist, np.nonzero(layouts.legal)), strict=True)
    ]
    if name != "recompute":  # counts of layers that are all of a stage are written as all
        assert {effective(item) for item in every} == {effective(item) for item in legal}
    if name not in ("orders", "placements", "recompute"):  # of which several are one layout
        assert len(every) == len({effective(item) for item in legal})
    result = search(question, top=1)
    assert result.num_legal == len(every)
    assert result.best[0].step_time_s == scores.step_time.min()
    for at in (
        np.linspace(0, len(legal) - 1, 5).astype(int).tolist()
    ):  # what scores layouts is what projects them
        one = project(question.with_layout(legal[at]))
        assert (one.step_time_s, one.memory.peak_bytes) == (scores.step_time[at], scores.peak[at])


@pytest.mark.parametrize("name", SPACES)
def test_the_smallest_and_the_fastest_that_fits_are_those_of_all(name):
    question = question_in(name)
    _, scores = legal_layouts(name)
    smallest = search(replace(question, objective="peak_memory"), top=1).best[0]
    assert smallest.memory.peak_bytes == scores.peak.min()
    limit = float(np.quantile(scores.peak, 0.1))
    best = search(replace(question, max_memory=limit), top=1).best[0]
    assert best.step_time_s == scores.step_time[scores.peak <= limit].min()


@pytest.mark.parametrize("name", SPACES)
def test_where_nothing_fits_the_smallest_of_all_is_named(name):
    question = question_in(name)
    least = float(legal_layouts(name)[1].peak.min())
    tight = replace(question, max_memory=least * (1.0 - 1e-6))
    with pytest.raises(InfeasibleError) as error:
        search(tight)
    assert [item for item, _ in error.value.rows] == ["memory"]
    smallest = _smallest(tight)
    assert smallest is not None
    assert smallest[0] == least
    assert _smallest(tight, tight.memory_limit) is None
    assert search(replace(question, max_memory=least), top=1).best[0].memory.peak_bytes == least


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("safe", [False, True])
def test_memory_alone_is_what_a_whole_evaluation_has(name, safe):
    question = replace(question_in(name), safe=safe)
    layouts = enumerate_layouts(question.model, question.cluster, question.workload, question.space)
    pairs = np.nonzero(layouts.legal)
    alone, whole = (score_pairs(question, layouts, *pairs, timed=timed) for timed in (False, True))
    assert (alone.peak == whole.peak).all()
    assert not alone.step_time.any()


def test_no_layout_of_experts_alone_is_by_summa():
    question = replace(
        question_in("experts"),
        space=Space(tp_kind=("1d", "summa"), **{**PLAIN, "zero": (1,), "tp": (2,), "micro_batch_size": (1,)}),
    )
    assert {one.strategy.tp_kind for one in search(question, top=1000).best} == {"1d"}
    with pytest.raises(SpecError, match="summa"):
        search(question.with_space(tp_kind=("summa",)))


@pytest.mark.parametrize(
    ("held", "refused"),
    [
        ({"schedule": ("seq1f1b",), "base": Layout(sequence_pieces=3)}, "pieces of sequences"),
        ({"schedule": ("dualpipe",), "pp": (3,)}, "schedule"),
        ({"vpp": (5,)}, "layers over pp × vpp"),
    ],
)
def test_what_project_refuses_of_a_pipeline_is_no_layout_of_a_search(held, refused):
    model, work = dense(6), workload(seq_len=512, global_batch_size=12)
    space = Space(**{**PLAIN, "pp": (2,), "zero": (1,), **held})
    with pytest.raises(InfeasibleError) as error:
        search(model, cluster(6), work, space=space)
    assert refused in dict(error.value.rows)


def test_experts_are_without_sequence_parallelism_where_it_is_asked_for():
    question = replace(question_in("experts"), space=Space(**{**PLAIN, "sp": None, "tp": (2,), "zero": (1,)}))
    allowed = wider_space(question.space, {"sp": ["false"]}, question.model, where="--allow")
    for space, values in (
        (question.space, {1}),
        (question.with_space(sp=(False,)).space, {0}),
        (allowed, {0, 1}),
    ):
        layouts = enumerate_layouts(question.model, question.cluster, question.workload, space)
        assert set(layouts.columns["sp"].tolist()) == values


def test_replicas_that_are_held_are_those_of_all_sites():
    fabric = Tier(name="wide", size=0, bandwidth=1e9, latency=1e-3, wide_area=True, sites=2)
    two = replace(cluster(16), tiers=(cluster(8).tiers[0], fabric))
    work = replace(workload(seq_len=512, global_batch_size=16), outer=Outer(every=10))
    kept = {"tp": (1,), "zero": (1,), "micro_batch_size": (1,), "dp_replicate": (4,)}
    space = Space(**{**PLAIN, "pp": (1,), **kept})
    best = search(dense(2), two, work, space=space, top=1).best[0]
    assert (best.strategy.dp_replicate, best.strategy.dp_shard) == (4, 4)


def test_a_policy_is_given_by_its_fields_as_to_a_projection():
    request = {"devices": 2, "seq_len": 512, "global_batch_size": 2, "tp": 1, "pp": 1, "zero": 1}
    for value, kinds in (
        ({"granularity": "none"}, {"none"}),
        ([{"granularity": "none"}, {"granularity": "full", "num_layers": 3}], {"none", "full"}),
    ):
        question = ask_search("llama-3.2-1b", "h100-sxm", **request, recompute=value)
        assert {item.granularity for item in question.space.recompute or ()} == kinds


def test_any_order_of_axes_can_be_held():
    space = held_space(Space(), {"axis_order": ["dp-tp-pp-cp"]}, dense(2), where="--fix")
    assert space.axis_order == (("dp", "tp", "pp", "cp"),)


def test_settings_that_exclude_each_other_in_every_layout_are_named():
    question = question_in("settings-that-exclude-each-other").with_space(
        graphs=("partial",), recompute=(FULL,)
    )
    with pytest.raises(InfeasibleError, match="graphs partial cannot be captured"):
        search(question)
