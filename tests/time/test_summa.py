"""Layouts by SUMMA as projections: messages behind products, memory, refusals, a published account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises
from tests.small import asked, cluster, dense, moe, workload

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.mesh import groups
from forescale.errors import SpecError
from forescale.graph.sharding import split_layout
from forescale.presets import project_as
from forescale.project import project
from forescale.search import search
from forescale.search.layouts import variants_of
from forescale.spec import Kernels, Layout, Recompute
from forescale.spec.space import Space
from forescale.time.overlap import panel_time

GRID = Layout(tp=4, cp=2, tp_kind="summa", dp_shard=2)


def pipelined(steps, message, product):
    """Seconds of steps whose messages run one after another, each before its product."""
    sent = done = 0.0
    for _ in range(steps):
        sent += message
        done = max(done, sent) + product
    return done


@pytest.mark.parametrize("steps", [1, 2, 8, 32])
@pytest.mark.parametrize(("message", "product"), [(1.0, 3.0), (3.0, 1.0), (1.0, 0.0), (0.0, 1.0), (2.0, 2.0)])
def test_messages_of_a_step_run_beside_the_step_before(steps, message, product):
    shown = panel_time(communication=steps * message, cover=steps * product, steps=float(steps))
    assert steps * product + shown == pytest.approx(pipelined(steps, message, product))


def test_contention_shows_a_share_of_what_is_hidden():
    free = panel_time(communication=8.0, cover=16.0, steps=4.0)
    assert free == 2.0
    assert panel_time(communication=8.0, cover=16.0, steps=4.0, contention=0.5) == 5.0


def test_more_panels_shorten_the_prologue_and_the_products():
    times = [
        project(dense(), cluster(16), replace(GRID, summa_panels=panels, graphs="full"), workload())
        for panels in (1, 4)
    ]
    products = [time.time_s["ffn"] for time in times]
    assert products[1] > products[0]


def test_memory_of_states_is_that_of_1d_over_the_whole_grid():
    model = replace(dense(), vocab_size=32768)
    grid = project(model, cluster(16), Layout(tp=2, cp=2, tp_kind="summa", dp_shard=4), workload())
    line = project(model, cluster(16), Layout(tp=4, dp_shard=4), workload())
    norms = 17 * 1024  # of 1D whole on every rank, of the grid split over tp
    assert line.params.per_device_max - grid.params.per_device_max == norms / 2
    for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        mine, other = (getattr(item.memory.stages[0], name) for item in (grid, line))
        assert mine / grid.params.per_device_max == pytest.approx(other / line.params.per_device_max)


def test_copies_of_weights_are_those_of_data_parallel_ranks_alone():
    degrees, _ = split_layout(GRID)
    order = GRID.axis_order
    assert groups(degrees, order, "summa")["dp_cp"].num_ranks == 2.0
    assert groups(degrees, order)["dp_cp"].num_ranks == 4.0
    one, two = (
        project(dense(), cluster(16), replace(GRID, zero=zero), workload()).memory.stages[0].optimizer_bytes
        for zero in (0, 1)
    )
    assert one == 2.0 * two


def test_gradients_of_norms_are_summed_along_cp():
    alone = Layout(tp=2, cp=8, tp_kind="summa")
    assert project(dense(), cluster(16), alone, workload()).time_s["data_comm"] > 0.0
    assert (
        project(dense(), cluster(16), Layout(tp=16, tp_kind="summa"), workload()).time_s["data_comm"] == 0.0
    )


def test_only_full_attention_and_dense_layers_lie_on_the_grid():
    with raises(SpecError, "illegal_layout summa: models"):
        project(moe(), cluster(16), GRID, workload())
    result = search(moe(), cluster(16), workload(), space=Space(tp_kind=("summa", "1d")))
    assert {one.strategy.tp_kind for one in result.best} == {"1d"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cp_kind": "ring"}, "illegal_layout summa: keys and values"),
        ({"sp": False}, "illegal_layout summa: sequence parallelism"),
        ({"summa_panels": 3}, "illegal_layout summa: panels"),
    ],
)
def test_what_summa_cannot_do_is_said(changed, said):
    with raises(SpecError, said):
        project(dense(), cluster(16), replace(GRID, **changed), workload())


def test_the_loss_fused_with_the_head_needs_another_layout():
    kernels = Kernels(cross_entropy="fused_linear")
    with raises(SpecError, "conflicts cross_entropy fused_linear, tp_kind summa"):
        project(dense(), cluster(16), replace(GRID, kernels=kernels), workload())


def test_a_search_finds_the_grid_where_it_is_allowed():
    space = Space(
        tp=(4,),
        cp=(2,),
        pp=(1,),
        zero=(1,),
        micro_batch_size=(1,),
        recompute=(Recompute(),),
        tp_kind=("1d", "summa"),
        summa_panels=(1, 2),
    )
    result = search(dense(), cluster(16), workload(), space=space, top=100, all_variants=True)
    kinds = {(item.strategy.tp_kind, item.strategy.summa_panels) for item in result.best}
    assert kinds == {("1d", 1), ("summa", 1), ("summa", 2)}
    best = min(result.best, key=lambda item: item.step_time_s)
    assert best is result.best[0]
    again = project(dense(), cluster(16), best.strategy, workload())
    assert again.step_time_s == best.step_time_s


def test_the_usual_space_has_no_grid():
    assert {variant.tp_kind for variant in variants_of(Space(), dense(), cluster(8))} == {"1d"}


def test_the_published_account_projects_it_too():
    model, devices = load_model("gpt3-1t"), load_cluster("b200-nvs64", 512)
    work = workload(seq_len=2048, global_batch_size=512)
    one = Layout(tp=8, cp=4, pp=8, dp_shard=2, micro_batch_size=8)
    line, grid = (
        project_as(asked(model, devices, replace(one, tp_kind=kind), work, preset="subramanian2024"))
        for kind in ("1d", "summa")
    )
    ours = project(model, devices, replace(one, tp_kind="summa"), work)
    assert line.memory.stages[0].weights_bytes == pytest.approx(
        4.0 * grid.memory.stages[0].weights_bytes, rel=1e-3
    )
    assert ours.memory.stages[1].weights_bytes == pytest.approx(grid.memory.stages[1].weights_bytes, rel=1e-3)
    assert np.isfinite(grid.step_time_s)
    with raises(SpecError, "not_one_of tp_kind of preset playbook"):
        project_as(asked(model, devices, replace(one, tp_kind="summa"), work, preset="playbook"))
