"""Precision, overlap and offload as choices of a search: as if each had been searched by itself."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from tests.small import cluster, dense, moe, workload

import forescale as fs
from forescale.catalogue.frameworks import load_framework
from forescale.errors import InfeasibleError
from forescale.project import project
from forescale.question import Question
from forescale.search import pareto_search, search
from forescale.search.scenarios import scenarios
from forescale.search.tree import enumerate_layouts
from forescale.spec import Layout, Overlap, Precision, Recompute
from forescale.spec.framework import explicit_fields, merged, searched
from forescale.spec.space import Space

MODEL, DEVICES = moe(3), cluster(8)
WORK = workload(seq_len=1024, global_batch_size=16)
SMALL = Space(zero=(1,), micro_batch_size=(1, 2), cp=(1,), axis_order=Space().axis_order[:1])
FEW = replace(
    SMALL,
    tp=(1, 2),
    pp=(1, 2),
    vpp=(1,),
    ep=(1, 2),
    recompute=(Recompute(), Recompute(granularity="full")),
)
WIDE = replace(
    FEW,
    precision=(None, ("fp8", "delayed")),
    overlap=(None, ("tensor", "expert")),
    optimizer_offload=(None, 0.5),
)


def key(one):
    layout = one.strategy
    return one.step_time_s, one.memory.peak_bytes, one.workload.precision, layout.overlap, layout.offload


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_several_questions_are_ranked_as_if_each_were_asked(objective):
    few = {"ep": (2,), "micro_batch_size": (1,)}
    space = replace(WIDE, **few)
    together = search(MODEL, DEVICES, WORK, space=space, objective=objective, top=12, all_variants=True)
    alone = [
        search(
            MODEL,
            DEVICES,
            replace(WORK, precision=precision),
            space=replace(
                FEW,
                **few,
                base=Layout(overlap=overlap, offload=replace(Layout().offload, optimizer=share)),
            ),
            objective=objective,
            top=12,
            all_variants=True,
        )
        for precision in (Precision(), Precision(compute="fp8", recipe="delayed"))
        for overlap in (Overlap(), Overlap(tensor=True, expert=True))
        for share in (0.0, 0.5)
    ]
    by_time = objective == "step_time"
    every = sorted(
        (key(one) for item in alone for one in item.best), key=lambda one: one[:2] if by_time else one[1::-1]
    )
    assert [key(one) for one in together.best] == every[:12]
    assert together.num_legal == sum(item.num_legal for item in alone)
    assert together.num_evaluated + together.num_over_memory + together.num_beaten == together.num_legal
    assert together.gap == 0.0


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_variants_fold_over_all_questions(objective):
    space = replace(FEW, precision=(("fp8", "delayed"), None))
    question = {"space": space, "objective": objective}
    every = search(MODEL, DEVICES, WORK, **question, top=10**4, all_variants=True)
    value = {"step_time": lambda one: one.step_time_s, "peak_memory": lambda one: one.memory.peak_bytes}
    ranked = [(shape(one.strategy), value[objective](one), key(one)) for one in every.best]
    assert 50 < len(ranked) < 10**4
    for top in (1, 4):
        folds(search(MODEL, DEVICES, WORK, **question, top=top), ranked, top)


def folds(result, ranked, top):
    """Check the best of each shape, and how many others are as good as the last of them."""
    firsts = {}
    for name, worth, one in ranked:
        firsts.setdefault(name, (worth, one))
    best = list(firsts.items())[:top]
    worst = best[-1][1][0] if len(best) == top else float("inf")
    assert [key(one) for one in result.best] == [one for _, (_, one) in best]
    alike = [sum(name == other and worth <= worst for other, worth, _ in ranked) for name, _ in best]
    assert list(result.variants) == [count - 1 for count in alike]
    assert [row["variants"] for row in result.rows()] == list(result.variants)


def shape(layout):
    names = ("tp", "cp", "ep", "etp", "pp", "vpp", "micro_batch_size")
    return tuple(getattr(layout, name) for name in names)


def test_what_the_question_has_already_counts_once():
    once = search(MODEL, DEVICES, WORK, space=SMALL)
    twice = search(MODEL, DEVICES, WORK, space=replace(SMALL, precision=(None, ("bf16", "none"))))
    assert twice.num_legal == once.num_legal
    assert twice.best == once.best


def test_a_front_of_several_questions_is_that_of_their_fronts():
    together = pareto_search(MODEL, DEVICES, WORK, space=replace(SMALL, dispatcher=(None, "deepep")))
    alone = [
        pareto_search(MODEL, DEVICES, WORK, space=replace(SMALL, base=Layout(dispatcher=dispatcher)))
        for dispatcher in ("all_to_all", "deepep")
    ]
    points = [(one.step_time_s, one.memory.peak_bytes) for item in alone for one in item.front]
    best = sorted({one for one in points if not any(a <= one and a != one for a in points if a[1] <= one[1])})
    assert [(one.step_time_s, one.memory.peak_bytes) for one in together.front] == best
    assert together.num_legal == sum(item.num_legal for item in alone)


def test_a_model_without_experts_has_no_use_for_dispatchers():
    space = replace(SMALL, dispatcher=(None, "deepep"))
    assert search(dense(3), DEVICES, WORK, space=space).num_legal == (
        search(dense(3), DEVICES, WORK, space=SMALL).num_legal
    )


def test_progress_is_that_of_all_scenarios():
    explicit = []

    def watch(progress):
        explicit.append(progress)
        return True

    result = search(MODEL, DEVICES, WORK, space=WIDE, watch=watch)
    settled = [item.num_evaluated + item.num_pruned for item in explicit]
    assert settled == sorted(settled)
    assert {item.num_legal for item in explicit} == {result.num_legal} == {settled[-1]}
    assert [item.bound > 0.0 for item in explicit] == sorted(item.bound > 0.0 for item in explicit)
    assert explicit[-1].gap == 0.0


def as_told(name, types, zero=(0, 1), model=MODEL, **space):
    """Return the question of a space under a framework, and the words of what it trains."""
    framework = load_framework(name)
    explicit = replace(WORK, precision=types)
    base, work = framework.applied(Layout(), explicit, model, DEVICES)
    kept = searched(framework, replace(SMALL, base=base, zero=zero, **space), limited=False)
    return Question(model=model, cluster=DEVICES, workload=work, framework=framework, space=kept), explicit


@pytest.mark.parametrize("name", ["nemo@25", "deepseek", "deepspeed-zero", "pax"])
@pytest.mark.parametrize("compute", ["bf16", "fp8"])
def test_every_row_is_what_its_framework_makes_of_it_alone(name, compute):
    names = {name: getattr(FEW, name) for name in ("pp", "vpp", "ep", "recompute")}
    question, explicit = as_told(name, Precision(compute=compute), tp=(1,), micro_batch_size=(2,), **names)
    result = search(question, top=100, all_variants=True)
    assert {one.strategy.zero for one in result.best} == ({1} if name == "deepseek" else {0, 1})
    for one in result.best:
        asked = replace(question, workload=one.workload)
        assert asked.violation(one.strategy) == asked.violation(None)
        parts = {
            **explicit_fields(one.strategy, question.space.base),
            "recompute": asdict(one.strategy.recompute),
        }
        layout, work = question.framework.applied(merged(Layout(), parts), explicit, MODEL, DEVICES)
        alone = project(replace(question, strategy=merged(layout, parts), workload=work))
        assert (alone.step_time, alone.memory, alone.workload) == (one.step_time, one.memory, one.workload)


def test_types_that_are_chosen_come_with_all_that_the_framework_makes_of_them():
    selected, _ = as_told("nemo@25", Precision(), precision=(("fp8", "none"),))
    question, _ = as_told("nemo@25", Precision(compute="fp8"))
    parts = [(scenario.workload, scenario.space) for scenario in scenarios(question)]
    assert [
        (scenario.workload, replace(scenario.space, precision=(None,))) for scenario in scenarios(selected)
    ] == parts
    assert {work.precision.parameters for work, _ in parts} == {"fp8", "bf16"}


def test_types_that_were_told_stay_whatever_is_sharded():
    question, _ = as_told("nemo@25", Precision(compute="fp8", moments="bf16"))
    assert {scenario.space.zero for scenario in scenarios(question)} == {(0,), (1,)}
    assert {scenario.workload.precision.moments for scenario in scenarios(question)} == {"bf16"}


def test_a_search_that_no_keys_can_be_picked_in_says_so():
    parts = {"devices": 32, "seq_len": 4096, "global_batch_size": 32, "cp": 2, "cp_kind": "ring"}
    with pytest.raises(InfeasibleError, match="cp_kind of what reads picked keys is all_gather, not ring"):
        fs.search("deepseek-v3.2", "h100-sxm", **parts)


def test_a_layout_without_tensor_parallelism_counts_once_beside_neighbours():
    space = Space(
        cp=(1, 2), vpp=(1,), zero=(0, 3), micro_batch_size=(1,), sp=(True,), tp_kind=("summa", "1d"),
        cp_kind=("all_gather",), axis_order=SMALL.axis_order, base=Layout(reshard=2),
    )  # fmt: skip
    question = Question(model=dense(4), cluster=cluster(4), workload=WORK, space=space)
    layouts = enumerate_layouts(
        question.model, question.cluster, question.workload, space.whole(question.model)
    )
    assert search(question).num_legal == layouts.legal.sum()


def test_what_the_framework_refuses_alone_has_a_way_on():
    """ZeRO 3 under a pipeline is what Megatron lacks, not what is illegal."""
    question, _ = as_told("megatron-bridge", Precision(), zero=(3,), pp=(2,))
    with pytest.raises(InfeasibleError, match="--framework none") as caught:
        search(question)
    assert dict(caught.value.rows)["megatron-bridge: stages 2 and 3 have no pipeline"] > 0
