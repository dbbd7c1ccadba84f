from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scripts.rows.cases import load_rows

from forescale.errors import ReaderError
from forescale.projection.result import MemorySummary, StageMemory
from forescale.validation.case import Measured, projector_of, published_peak
from forescale.validation.published import Speed

EXCERPT = Path(__file__).parents[2] / "data" / "megatron_ci" / "excerpt.csv"


@pytest.fixture(scope="module")
def cases():
    return {case.id: case for case in load_rows(EXCERPT)}


def test_every_row_is_a_case_in_order(cases):
    assert len(cases) == len(EXCERPT.read_text(encoding="utf-8").splitlines()) - 1
    assert next(iter(cases)) == "gpt3_mcore_te_tp2_pp2/dev_dgx_a100"


def test_flags_become_a_question(cases):
    case = cases["gpt3_mcore_te_tp2_pp2/dev_dgx_a100"]
    model, cluster, layout, workload = case.question.parts
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (12, 512, 50257)
    assert (layout.tp, layout.pp, layout.dp, layout.micro_batch_size) == (2, 2, 2, 4)
    assert (cluster.name, cluster.num_devices) == ("a100-sxm-80gb", 8)
    assert (workload.seq_len, workload.global_batch_size) == (1024, 32)
    assert layout.kernels.dropout
    assert layout.kernels.gradient_sum == "after_product"
    assert not layout.flash_attention


def test_what_was_measured(cases):
    measured = cases["gpt3_mcore_te_tp2_pp2/dev_dgx_a100"].measured
    assert measured == Measured(
        speed=Speed(step_time_s=0.2154),
        step_time_s=0.2154,
        step_time_from="step time",
        peak_bytes=1900158464.0,
        peak_measure="allocated",
        peak_stage="last",
    )


def test_devices_are_given_or_those_of_the_test_node(cases):
    gpt3_7b_tp1_pp4_memory_speed_dev_dgx_gb200 = cases["gpt3_7b_tp1_pp4_memory_speed/dev_dgx_gb200"]
    assert gpt3_7b_tp1_pp4_memory_speed_dev_dgx_gb200.core
    assert gpt3_7b_tp1_pp4_memory_speed_dev_dgx_gb200.question.cluster.num_devices == 8
    assert cases["gpt3_mcore_te_tp2_pp2_mla_1node/dev_dgx_gb200"].question.cluster.num_devices == 4
    assumed = cases["gpt3_mcore_te_tp2_pp2/dev_dgx_a100"]
    assert not assumed.core
    assert any("devices not given" in note for note in assumed.notes)


def test_what_cannot_be_expressed_says_why(cases):
    reasons = {case.id.split("/")[0]: case.skipped_reason for case in cases.values() if case.skipped_reason}
    assert "multimodal_llava_mcore_te_tp1_pp1" not in reasons
    assert "hybrid_mr_mcore_te_tp1_pp4_cp1_dgx_a100_1N8G" not in reasons
    assert "number of devices" in reasons["mixtral_8x7b_alltoall_tp2pp4ep4_release"]
    assert any("cut short" in reason for reason in reasons.values())


def test_a_table_with_a_missing_cell_is_refused(tmp_path):
    file = tmp_path / "ci.csv"
    file.write_text("test_case,golden,platform,all_args\na,b\n", encoding="utf-8")
    with pytest.raises(ReaderError, match="line 2 has 2 cells, not as many as the 4 columns"):
        load_rows(file)


def _stage(index, allocated, overhead, fragmentation):
    return StageMemory(
        stage=index,
        num_layers=1,
        weights_bytes=allocated,
        gradients_bytes=0.0,
        optimizer_bytes=0.0,
        activations_bytes=0.0,
        buffers_bytes=0.0,
        overhead_bytes=overhead,
        fragmentation_bytes=fragmentation,
        peak_bytes=allocated + overhead,
    )


@pytest.mark.parametrize(
    ("measure", "stage", "expected"),
    [
        ("allocated", "last", 60.0),
        ("reserved", "last", 62.0),
        ("device", "last", 70.0),
        ("unstated", "last", 70.0),
        ("allocated", "first", 80.0),
        ("allocated", "fullest", 80.0),
    ],
)
def test_the_projection_answers_by_the_measure_of_the_source(measure, stage, expected):
    stages = (_stage(0, 80.0, 12.0, 3.0), _stage(1, 60.0, 10.0, 2.0))
    memory = MemorySummary(
        peak_bytes=92.0,
        peak_low_bytes=90.0,
        peak_high_bytes=95.0,
        capacity_bytes=100.0,
        verdict="FITS",
        stages=stages,
    )
    assert published_peak(memory, Measured(peak_measure=measure, peak_stage=stage)) == expected


def test_the_stage_of_the_case_is_compared(cases):
    case = cases["gpt3_7b_tp1_pp4_memory_speed/dev_dgx_gb200"]
    first = replace(case, measured=replace(case.measured, peak_stage="first"))
    predict = projector_of()
    assert predict(first).peak_bytes != predict(case).peak_bytes
