from __future__ import annotations

import json

import pytest
from tests.cli.questions import DENSE, LAYOUT, MACHINE, RUN


def test_one_screen_by_default(forescale):
    for quantity in ("step_time", "memory.peak", "mfu", "step_time.data_comm", "memory.activations"):
        ran = forescale("explain", DENSE[0], quantity, *MACHINE, *RUN, *LAYOUT)
        assert ran.code == 0, ran.err
        assert ran.out.startswith(f"{quantity} = ")
        assert len(ran.out.splitlines()) <= 25


def test_depth_and_sources(forescale):
    shallow = forescale("explain", DENSE[0], "memory.weights", *MACHINE, *RUN, *LAYOUT, "--depth", 0)
    assert len(shallow.out.splitlines()) == 1
    cited = forescale("explain", DENSE[0], "memory.weights", *MACHINE, *RUN, *LAYOUT, "--cite")
    assert "1910.02054" in cited.out


def test_json(forescale):
    ran = forescale("explain", DENSE[0], "step_time", *MACHINE, *RUN, *LAYOUT, "--json")
    body = json.loads(ran.out)
    assert body["schema"] == "forescale.explanation/1"
    assert body["quantity"] == "step_time"
    assert body["tree"]["value"] == pytest.approx(sum(part["value"] for part in body["tree"]["inputs"]))


def test_a_plan_needs_no_model(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 8\n'
        "[workload]\nseq_len = 4096\nglobal_batch_size = 64\n",
        encoding="utf-8",
    )
    assert forescale("explain", "step_time", "--plan", plan).code == 0
