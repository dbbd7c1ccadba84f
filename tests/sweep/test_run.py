from __future__ import annotations

import json
import math
import sys

import pytest
from tests.errors import raises
from tests.sweep.questions import grid, sweep

from forescale.errors import PhysicsError, UnknownNameError
from forescale.io.space import held_space
from forescale.search import search
from forescale.spec.space import Space
from forescale.sweep import Local, run
from forescale.sweep.result import columns

HERE = Local(jobs=1)


@pytest.fixture(scope="module")
def result():
    """Device counts and memory: the smallest memory fits nothing on the fewest devices."""
    return run(grid(devices=[8, 16], hbm_capacity=["8 GiB", "80 GB", "160 GB"]), executor=HERE)


def test_every_point_is_a_full_search(result):
    kept = {name: (str(value).lower(),) for name, value in result.sweep.content["space"].items()}
    for item, row in zip(result.sweep.asked, result.points, strict=True):
        if row["status"] != "ok":
            continue
        question = item.question
        space = held_space(Space(), kept, question.model, where="test")
        best = search(question.model, question.cluster, question.workload, space=space, top=1).best[0]
        assert row["step_time_s"] == best.step_time_s
        assert row["mfu"] == best.mfu
        assert row["peak_bytes"] == best.memory.peak_bytes
        assert (row["tp"], row["dp_shard"]) == (best.strategy.tp, best.strategy.dp_shard)
        assert row["tokens_per_s"] == pytest.approx(row["tokens_per_s_per_device"] * row["num_devices"])
        communication = sum(seconds for part, seconds in best.time_s.items() if part.endswith("_comm"))
        assert row["communication_share"] == pytest.approx(communication / best.step_time_s)


def test_points_without_a_layout_are_rows_with_the_reason(result):
    row = result.points[0]
    assert row["status"] == "infeasible"
    assert "fits 8.00 GiB" in row["problem"]
    assert row["step_time_s"] is None is row["tp"]
    assert (row["num_devices"], row["device_hbm_bytes"]) == (8, 8 * 2.0**30)
    assert result.counts == {"ok": 4, "infeasible": 2, "impossible": 0, "defect": 0}


def test_impossible_points_are_rows_too():
    results_found = run(sweep(cluster="mi300x-pods", vary={"domain_size": [8, 128]}), executor=HERE)
    assert [row["status"] for row in results_found.points] == ["ok", "impossible"]
    assert "[128, 64, 0]" in results_found.points[1]["problem"]


def test_a_defect_is_named_and_does_not_end_the_sweep(monkeypatch):
    def broken(*_args, **_given):
        msg = "faster than light"
        raise PhysicsError(msg)

    monkeypatch.setattr(sys.modules["forescale.sweep.result"], "search", broken)
    results_found = run(grid(devices=[8, 16]), executor=HERE)
    assert [(row["status"], row["problem"]) for row in results_found.points] == [
        ("defect", "faster than light")
    ] * 2


def test_every_row_has_every_column(result):
    names = [column.name for column in columns(result.sweep.axes)]
    assert len(set(names)) == len(names)
    assert all(list(row) == names for row in result.points)


def test_processes_find_the_same_table():
    question = grid(devices=[8, 16, 32], nic_bandwidth=["x1", "x2"])
    assert run(question, executor=Local(jobs=2)).points == run(question, executor=HERE).points


def test_the_best_of_every_value(result):
    (small, none), (one, normal), (two, double) = result.best_by("hbm_capacity")
    assert (small, one, two) == (8 * 2.0**30, 80e9, 160e9)
    assert none is None
    assert double["tokens_per_s_per_device"] >= normal["tokens_per_s_per_device"]
    assert result.metric == "tokens_per_s_per_device"
    best = result.best()
    assert best["tokens_per_s_per_device"] == max(row["tokens_per_s_per_device"] for row in result.feasible)
    assert result.best("step_time_s")["num_devices"] == 16
    with raises(UnknownNameError, "unknown_name metric"):
        result.best("mfus")


def test_exponents_recover_a_power_law(result):
    rows = tuple(
        {**row, "status": "ok", "step_time_s": 3.0 / row["num_devices"] ** 0.75 * (place % 3 + 1.0) ** 0.5,
         "vary.hbm_capacity": place % 3 + 1.0}
        for place, row in enumerate(result.points)
    )  # fmt: skip
    from dataclasses import replace

    exponents = replace(result, points=rows).exponents("step_time_s")
    assert exponents.of == pytest.approx({"devices": -0.75, "hbm_capacity": 0.5})
    assert exponents.r_squared == pytest.approx(1.0)


def test_cost_models_are_those_asked_for():
    rooflines, tiles = (
        run(sweep(vary={"devices": [16]}, cost={"compute": kind}), executor=Local(jobs=1)).points[0]
        for kind in ("roofline", "tile")
    )
    assert rooflines["step_time_s"] != tiles["step_time_s"]


def test_a_price_holds_for_every_cluster():
    results_found = run(
        sweep(vary={"cluster": ["h100-sxm", "b200"]}, search={"price_per_device_hour": 2}), executor=HERE
    )
    assert all(row["cost_per_million_tokens"] > 0.0 for row in results_found.points)


def test_the_document_can_be_written(result):
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == "forescale.sweep/1"
    assert document["best"] == result.best()["index"]
    assert [axis["name"] for axis in document["axes"]] == ["devices", "hbm_capacity"]
    assert len(document["rows"]) == 6


def test_progress_counts_up():
    seen = []
    run(grid(devices=[8, 16]), executor=HERE, progress=lambda known, whole: seen.append((known, whole)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_prices_and_power_become_cost_and_energy():
    row = run(
        sweep(vary={"devices": [16]}, search={"price_per_device_hour": 3.6},
              workload={"seq_len": 4096, "global_batch_size": 64, "tokens": 1e9}),
        executor=HERE,
    ).points[0]  # fmt: skip
    tokens = 64 * 4096
    per_token = 3.6 / 3600 * 16 * row["step_time_s"] / tokens
    assert row["cost_per_million_tokens"] == pytest.approx(per_token * 1e6)
    assert row["cost"] == pytest.approx(per_token * 1e9)
    assert math.isclose(row["training_days"], 1e9 / tokens * row["step_time_s"] / 86400)


def test_a_sweep_is_a_result_with_a_headline_and_pictures():
    result = run(sweep(vary={"devices": [8, 16]}), executor=HERE)
    best = result.best()
    assert str(result) == result.headline
    assert (
        f"best {result.metric} {best[result.metric]:,.0f} at devices {best['vary.devices']}"
        in result.headline
    )
    assert result.rows() == list(result.points) and len(result.to_frame()) == 2
    assert [chart.title for chart in result.plot().charts] == [chart.title for chart in result.pictures()]
    page = result._repr_html_()
    assert 0 < page.count("<th ") <= 12 and "vary.devices" in page
