from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from scripts.accuracy import EFFICIENCY, llm_analysis_step

from forescale.errors import ForescaleError
from forescale.graph.counts import model_flops
from forescale.validation.case import InexpressibleError


def test_without_it_one_sentence_says_how_to_get_it(cases, monkeypatch):
    for name in ("llm_analysis", "llm_analysis.analysis", "llm_analysis.config"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ForescaleError, match="pip install --no-deps llm-analysis"):
        llm_analysis_step(cases["SMX-001"])


def test_a_dense_run_takes_about_its_flops_at_that_share_of_the_peak(cases):
    pytest.importorskip("llm_analysis", reason="an optional peer")
    case = next(
        case
        for case in cases.values()
        if case.skipped_reason is None
        and case.core
        and case.family == "dense"
        and case.question.workload.precision.compute == "bf16"
        and case.question.layout.recompute.granularity == "none"
        and case.question.layout.cp == case.question.layout.pp == 1
    )
    model, cluster, layout, workload = case.question.parts
    flops = model_flops(model, workload.seq_len).full * workload.global_batch_size
    ideal = flops / layout.num_devices / (EFFICIENCY * cluster.device.matrix_flops.bf16)
    assert 0.8 * ideal < llm_analysis_step(case) < 2.0 * ideal
    narrow = replace(case, workload=replace(workload, precision=replace(workload.precision, compute="fp8")))
    with pytest.raises(InexpressibleError):
        llm_analysis_step(narrow)
