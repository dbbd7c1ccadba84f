"""Naming the framework of a published run gives the layout, the types and the numbers of the accuracy page."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from scripts.rows.cases import load_rows
from scripts.rows.tables import table

from forescale.catalogue.frameworks import load_framework
from forescale.io.named import named_cluster, named_model
from forescale.io.question import build_question, read_question, write_question
from forescale.project import project
from forescale.syntax import dump_toml
from forescale.validation.case import projector_of, published_peak

RUNS = Path(__file__).parents[3] / "data" / "published" / "runs.csv"
OF_ROWS = {
    "cross_entropy",
    "blocking_launches",
    "attention_kernel",
    "fused_softmax",
    "grouped_experts",
    "dropout",
}
"""Kernels that rows say, in remarks, as their attention or by their recipe; all others are the framework's."""


@cache
def runs():
    return tuple(case for case in load_rows(RUNS) if case.skipped_reason is None)


def plan_of(case):
    """Return the plan of someone who names the framework and says what the row says."""
    return {
        "model": named_model(case.model) or asdict(case.model),
        "cluster": named_cluster(case.cluster) or asdict(case.cluster),
        "devices": case.cluster.num_devices,
        "framework": case.stated.framework,
        "strategy": dict(case.stated.strategy),
        "workload": dict(case.stated.workload),
    }


def test_one_run_of_every_source_by_its_file(tmp_path):
    first = {(case.source, case.stated.framework): case for case in reversed(runs())}
    assert len({source for source, _ in first}) > 30
    predict = projector_of()
    for case in first.values():
        file = tmp_path / "plan.toml"
        file.write_text(dump_toml(plan_of(case)))
        plan = read_question(file)
        explicit, result = predict(case), project(plan.model, plan.cluster, plan.strategy, plan.workload)
        assert result.step_time.expected == explicit.step_time_s, case.id
        assert published_peak(result.memory, case.measured) == explicit.peak_bytes, case.id


def test_rows_say_nothing_that_is_their_frameworks():
    for case in runs():
        layout = case.stated.strategy
        assert layout["kernels"].keys() <= OF_ROWS
        assert "allocator" not in layout or "expandable_segments" in case.remarks


def test_sources_name_a_record_and_nothing_more():
    for entry in table("sources"):
        assert entry.keys() <= {"match", "remarks", "released", "framework"}
        load_framework(entry["framework"])
        re.compile(entry["match"])
    named = {entry["framework"].partition("@")[0] for entry in table("sources")}
    assert {case.stated.framework.partition("@")[0] for case in runs()} <= named


def test_what_a_user_adds_goes_over_the_record():
    case = next(case for case in runs() if case.stated.framework == "torchtitan@2024")
    values = plan_of(case)
    values["strategy"] |= {"allocator": "segments", "kernels": {"cross_entropy": "fused"}}
    values["precision"] = {"gradients": "bf16"}
    plan = build_question(values, where="a plan")
    assert (plan.strategy.allocator, plan.strategy.kernels.cross_entropy) == ("segments", "fused")
    assert plan.strategy.kernels.gathers_aside
    assert plan.workload.precision.gradients == "bf16"
    assert plan.workload.precision.parameters == "fp32"


@pytest.mark.parametrize("name", ["torchtitan", "megatron-deepspeed", "nanotron", "maxtext"])
def test_a_plan_with_a_framework_reads_back_equal(name, tmp_path):
    values = {
        "model": "llama-3.1-8b",
        "cluster": "h100-sxm",
        "devices": 64,
        "framework": name,
        "strategy": {"tp": 2, "pp": 4, "overlap": {"grad_reduce": True, "param_gather": False}},
        "workload": {"seq_len": 4096, "global_batch_size": 64},
        "precision": {"compute": "fp16", "moments": "bf16"},
    }
    plan = build_question(values, where="a plan")
    write_question(plan, tmp_path / "plan.toml")
    assert read_question(tmp_path / "plan.toml") == plan
