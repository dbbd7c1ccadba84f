"""The scoreboard: rows are added once for each version, and never changed."""

from __future__ import annotations

import csv
from pathlib import Path

from scripts import scoreboard

TABLE = """id,framework,model,cluster,devices,tp,seq_len,global_batch_size,precision,measured_step_time_s
NEW-001,megatron-bridge@26.06,llama-3-8b,h100-sxm,8,1,8192,128,bf16,14.2
NEW-002,megatron-bridge@26.06,llama-3-8b,h100-sxm,8,2,8192,128,bf16,15.1
"""


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
