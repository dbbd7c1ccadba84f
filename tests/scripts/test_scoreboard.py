"""The scoreboard: rows are added once for each version, and never changed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import forescale as fs
from scripts import scoreboard

TABLE = """id,framework,model,cluster,devices,tp,seq_len,global_batch_size,precision,measured_step_time_s
NEW-001,megatron-bridge@26.06,llama-3-8b,h100-sxm,8,1,8192,128,bf16,14.2
NEW-002,megatron-bridge@26.06,llama-3-8b,h100-sxm,8,2,8192,128,bf16,15.1
"""


def test_an_interval_is_as_wide_as_what_project_states_and_narrower_where_all_is_known(
    tmp_path: Path,
) -> None:
    widths = {}
    for core in ("", "true"):
        table, log = tmp_path / "new.csv", tmp_path / f"board{core}" / "log.csv"
        table.write_text(
            "id,framework,model,cluster,devices,ep,seq_len,global_batch_size,precision,measured_step_time_s,core\n"
            f"NEW-001,megatron-bridge@26.06,qwen3-30b-a3b,h100-sxm,16,8,4096,128,bf16,14.2,{core}\n",
            encoding="utf-8",
        )
        scoreboard.main(str(table), str(log))
        (row,) = csv.DictReader(log.read_text(encoding="utf-8").splitlines())
        widths[core] = float(row["high_s"]) / float(row["projected_step_time_s"])
    asked = fs.project(
        "qwen3-30b-a3b", framework="megatron-bridge@26.06", cluster="h100-sxm", devices=16, ep=8, seq_len=4096,
        global_batch_size=128, precision="bf16",
    )  # fmt: skip
    assert widths[""] == pytest.approx(asked.step_time.high / asked.step_time_s, rel=1e-4)
    assert widths["true"] < widths[""]


def test_a_row_that_cannot_be_projected_is_in_the_log_without_a_projection(tmp_path: Path, capsys) -> None:
    table, log = tmp_path / "new.csv", tmp_path / "board" / "log.csv"
    table.write_text(TABLE.replace("h100-sxm,8,2", "h100-sxm,8,3"), encoding="utf-8")
    scoreboard.main(str(table), str(log))
    good, bad = csv.DictReader(log.read_text(encoding="utf-8").splitlines())
    assert (good["id"], bad["id"]) == ("NEW-001", "NEW-002")
    assert good["low_s"] and not (bad["projected_step_time_s"] or bad["low_s"] or bad["high_s"])
    assert capsys.readouterr().err.startswith("NEW-002 ")
    scoreboard.main(str(table), str(log))
    assert log.read_text(encoding="utf-8").count("NEW-002") == 1


def test_rows_are_appended_once_and_drawn(tmp_path: Path, capsys) -> None:
    table, log = tmp_path / "new.csv", tmp_path / "board" / "log.csv"
    first, both = TABLE.splitlines(keepends=True)[:2], TABLE
    table.write_text("".join(first), encoding="utf-8")
    scoreboard.main(str(table), str(log))
    before = log.read_text(encoding="utf-8")
    table.write_text(both, encoding="utf-8")
    scoreboard.main(str(table), str(log))
    after = log.read_text(encoding="utf-8")
    assert after.startswith(before)
    rows = list(csv.DictReader(after.splitlines()))
    assert [row["id"] for row in rows] == ["NEW-001", "NEW-002"]
    assert all(
        float(row["low_s"]) < float(row["projected_step_time_s"]) < float(row["high_s"]) for row in rows
    )
    assert (log.parent / scoreboard.PICTURE).exists()
    assert capsys.readouterr().out.count("1 rows added") == 2
