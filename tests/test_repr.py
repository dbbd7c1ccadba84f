"""What a notebook shows of a result is a few lines, however many layouts are within."""

from __future__ import annotations

import numpy as np
import pytest
from tests import small

from forescale.advise import advise
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.explain import explain
from forescale.presets.subramanian2024.preset import search_subramanian2024
from forescale.schedule import Request, build_schedule, simulate
from forescale.search import compare, search
from forescale.search.partition import partition_stages
from forescale.search.stages import StagesOf
from forescale.spec import Layout, Workload
from forescale.spec.space import Space

LONGEST = 900


@pytest.fixture(scope="module")
def found():
    model, cluster = load_model("llama-3.1-8b"), load_cluster("h100-sxm", 16)
    return search(model, cluster, Workload(seq_len=4096, global_batch_size=64), space=Space(tp=(2,), cp=(1,)))


def layout_of(question, layout):
    return small.asked(question.model, question.cluster, layout, question.workload)


def test_a_search_and_its_layouts_are_a_few_lines(found):
    best = found.best[0]
    for result in (found, found.pareto(), best, compare(best, found.best[1])):
        assert len(repr(result)) < LONGEST
    assert f"best=({best!r}, … {len(found.best) - 1} more)" in repr(found)
    assert "model=llama-3.1-8b, cluster='16 x h100-sxm', strategy=Layout(tp=2, sp=False" in repr(best)
    assert f"step_time_s={best.step_time_s:.6g}, mfu={best.mfu:.6g}" in repr(best)


def test_a_value_is_shown_by_what_is_not_usual():
    assert (
        repr(Workload(seq_len=4096, global_batch_size=64)) == "Workload(seq_len=4096, global_batch_size=64)"
    )
    assert repr(Layout()) == "Layout()"
    assert repr(StagesOf(None, np.arange(2))) == "StagesOf(plans=None, plan=array([0, 1]))"


def test_explanations_name_what_a_number_was_made_of(found):
    best, question = found.best[0], found.question
    explicit = repr(explain(layout_of(question, best.strategy), "memory.optimizer"))
    assert explicit.startswith("TermNode(name='memory.optimizer', value=")
    assert "inputs=('parameters', 'element_bytes', " in explicit
    assert len(explicit) < LONGEST


def test_cuts_and_studies_too(found):
    question = found.question
    layout = Layout(tp=4, pp=2, dp_shard=2)
    assert len(repr(partition_stages(layout_of(question, layout)))) < 2 * LONGEST
    cluster = load_cluster("b200-nvs8", 256)
    study = search_subramanian2024(
        load_model("gpt3-1t"), cluster, tensor_parallel="1d", global_batch_size=4096, top=2
    )
    assert len(repr(study)) < 2 * LONGEST


def test_advice_schedules_and_simulations_too(found):
    question = found.question
    assert len(repr(advise(question.model, question.cluster, question.workload, exact=False))) < LONGEST
    schedule = build_schedule("zbv", Request(pp=4, num_microbatches=16))
    assert repr(schedule) == "Schedule(name='zbv', num_ranks=4, num_stages=8, num_microbatches=16)"
    assert "makespan=49.5" in repr(simulate(schedule))
