"""Published runs asked plainly: nothing of the stack but the framework's name reaches the question."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.accuracy import _plain
from scripts.plain_questions import ask_plainly, by_group, named

TABLE = """id,framework,model,cluster,devices,tp,seq_len,global_batch_size,precision,graphs,typed,measured_step_time_s
A-1,megatron-bridge@bf16-moments+26.06,llama-3-8b,h100-sxm,8,2,8192,128,bf16,none,TYPED,15.1
A-2,megatron-bridge@26.06,llama-3-8b,h100-sxm,8,1,8192,128,bf16,none,TYPED,
A-4,megatron-bridge@26.06,llama-3-8b,h100-sxm,8,2,8192,128,bf16,none,TYPED,15.7
A-3,megatron-core,llama-3-8b,h100-sxm,8,1,8192,128,bf16,none,TYPED,14.2
"""
TYPED = (
    '"[""model"",""cluster"",""devices"",""framework"",""strategy.tp"",""workload.seq_len"",'
    '""workload.global_batch_size"",""workload.precision.compute""]"'
)


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("megatron-bridge@bf16-moments+26.06", "megatron-bridge@26.06"),
        ("primus@moe-turbo", "primus"),
        ("torchtitan@2024-eager", "torchtitan@2024"),
        ("megatron-core@bf16-gradients", ""),
    ],
)
def test_frameworks_are_named_with_their_release_alone(framework: str, expected: str) -> None:
    assert named(framework) == expected


def test_rows_of_the_frameworks_are_asked_with_what_a_user_types(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(TABLE.replace("TYPED", TYPED), encoding="utf-8")
    [outcome] = ask_plainly(path, with_framework=True)
    assert outcome.measured_s == pytest.approx((15.1 * 15.7) ** 0.5)
    assert (outcome.case.id, outcome.framework) == ("A-1", "megatron-bridge@26.06")
    assert outcome.fits and not outcome.refused and outcome.low_s < outcome.step_s < outcome.high_s
    groups = by_group([outcome])
    assert list(groups) == [("dense", "all"), ("dense", "megatron-bridge")]
    assert groups["dense", "all"].errors.median_abs == pytest.approx(
        abs(outcome.step_s / outcome.measured_s - 1)
    )
    assert "| named | dense | megatron-bridge | 1 |" in _plain({"named": [outcome]})
