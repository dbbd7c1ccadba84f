from __future__ import annotations

import pytest
from scripts.rows.cases import express

from forescale.validation.scoreboard import mean_regret, mean_spearman, sweeps_of

LAYOUTS = ({"tp": 1, "dp": 8}, {"tp": 2, "dp": 4}, {"tp": 4, "dp": 2})


def sweep(row, **cells):
    steps = (5.0, 4.0, 6.0)
    return [
        row(id=f"S-{index}", measured_step_s=step, **(layout | cells))
        for index, (layout, step) in enumerate(zip(LAYOUTS, steps, strict=True))
    ]


def test_three_layouts_of_one_question_are_a_sweep(row):
    (result,) = sweeps_of(express(sweep(row)), {"S-0": 1.0, "S-1": 2.0, "S-2": 3.0})
    assert result.num_layouts == 3
    assert result.spearman == pytest.approx(0.5)
    assert result.regret == pytest.approx(0.25)
    assert (result.picked, result.best) == ("S-0", "S-1")
    assert mean_spearman([result]) == pytest.approx(0.5)
    assert mean_regret([result]) == pytest.approx(0.25)


def test_time_per_token_makes_batches_comparable(row):
    rows = sweep(row)
    rows[2] = row(id="S-2", measured_step_s=6.0, global_batch=128, **LAYOUTS[2])
    (result,) = sweeps_of(express(rows), {"S-0": 3.0, "S-1": 2.0, "S-2": 2.2})
    assert result.best == result.picked == "S-2"


@pytest.mark.parametrize(
    "change",
    [
        {"n_gpus": 32, "dp": 4},
        {"seq_len": 8192},
        {"layers": 16},
        {"compute_dtype": "mxfp8"},
        {"hardware": "B200"},
        {"notes": "CUDA_LAUNCH_BLOCKING=1"},
        {"id": "OTHER-1"},
    ],
)
def test_another_question_is_not_of_the_sweep(row, change):
    rows = sweep(row)
    rows[2] = row(**({"id": "S-2", "measured_step_s": 6.0} | LAYOUTS[2] | change))
    predicted = {r.id: 1.0 for r in rows}
    assert sweeps_of(express(rows), predicted) == []


def test_runs_that_their_source_tells_not_to_compare_are_apart(row):
    """The nodes of Jean Zay were made faster on 25 February 2022 (BigScience's chronicle)."""
    source = "bigscience-workshop/bigscience train/tr11-176B-ml/chronicles-prequel.md line 723"
    days = [row(source=source, **cells) for cells in sweep_cells(("02-23", "02-25", "02-26"))]
    assert [case.sitting for case in express(days)] == ["before 25 February 2022", "", ""]
    assert sweeps_of(express(days), dict.fromkeys(("S-0", "S-1", "S-2"), 1.0)) == []
    same = [row(source=source, **cells) for cells in sweep_cells(("02-25", "02-25", "02-26"))]
    assert len(sweeps_of(express(same), dict.fromkeys(("S-0", "S-1", "S-2"), 1.0))) == 1


def sweep_cells(days):
    return [
        {"id": f"S-{index}", "measured_step_s": 4.0 + index, "notes": f"date {day}", **layout}
        for index, (layout, day) in enumerate(zip(LAYOUTS, days, strict=True))
    ]


def test_two_layouts_measured_thrice_are_no_sweep(row):
    rows = sweep(row)
    rows[2] = row(id="S-2", measured_step_s=6.0, **LAYOUTS[0])
    assert sweeps_of(express(rows), dict.fromkeys(("S-0", "S-1", "S-2"), 1.0)) == []


def test_runs_that_repeat_a_layout_are_one_of_their_median_time(row):
    rows = [*sweep(row), *(row(id=f"S-{index}", measured_step_s=9.0, **LAYOUTS[1]) for index in (3, 4))]
    (result,) = sweeps_of(express(rows), {r.id: float(index) for index, r in enumerate(rows, start=1)})
    assert (len(result.cases), result.num_layouts, result.best) == (5, 3, "S-0")
    assert result.spearman == pytest.approx(0.5)


def test_rows_without_prediction_or_measurement_do_not_count(row):
    rows = sweep(row)
    assert sweeps_of(express(rows), {"S-0": 1.0, "S-1": 1.0}) == []
    rows[0] = row(id="S-0", measured_step_s="", **LAYOUTS[0])
    assert sweeps_of(express(rows), dict.fromkeys(("S-0", "S-1", "S-2"), 1.0)) == []


def test_means_of_nothing_are_none():
    assert mean_spearman([]) is None
    assert mean_regret([]) is None
