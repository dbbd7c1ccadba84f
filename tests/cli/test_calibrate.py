from __future__ import annotations

import json
from pathlib import Path

from tests.cli.questions import DENSE, LAYOUT

RUNS = Path(__file__).parent.parent / "data" / "runs" / "excerpt.csv"


def test_a_few_runs_move_the_calibration_towards_them(forescale, tmp_path):
    output = tmp_path / "own.json"
    ran = forescale("calibrate", RUNS, "--device", "b200", "--output", output, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["schema"] == "forescale.calibration/1"
    before, after = (sum(abs(run[when]) for run in document["runs"]) for when in ("before", "after"))
    assert after < before
    assert document["moves"]
    assert output.exists()


def test_a_projection_with_it_says_something_else(forescale, tmp_path):
    output = tmp_path / "own.json"
    assert forescale("calibrate", RUNS, "--device", "h100-sxm", "--output", output).code == 0
    plain = json.loads(forescale("project", *DENSE, *LAYOUT, "--json").out)
    own = json.loads(forescale("project", *DENSE, *LAYOUT, "--calibration", output, "--json").out)
    assert own["step_time_s"] != plain["step_time_s"]


def test_bad_input_is_one_sentence(forescale, tmp_path):
    missing = forescale("calibrate", tmp_path / "none.csv", "--output", tmp_path / "own.json")
    assert (missing.code, missing.out) == (2, "")
    (tmp_path / "half.json").write_text('{"name": ')
    broken = forescale("project", *DENSE, "--calibration", tmp_path / "half.json")
    assert broken.code == 2
    assert "half.json" in broken.err
    unwritable = forescale("calibrate", RUNS, "--device", "b200", "--output", tmp_path / "no" / "own.json")
    assert unwritable.code == 2
    nothing = forescale("calibrate", RUNS, "--device", "gaudi2", "--output", tmp_path / "own.json")
    assert nothing.code == 2
