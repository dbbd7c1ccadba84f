from __future__ import annotations

import pytest

import forescale as fs

QUESTION = {"devices": 8, "seq_len": 8192, "global_batch_size": 64, "zero": 3}


def test_diagnose_and_watch_take_what_project_takes(tmp_path):
    one = fs.project("llama-3.1-8b", "h100-sxm", **QUESTION)
    log = tmp_path / "train.log"
    lines = [
        f" iteration {n}/ 100 | elapsed time per iteration (ms): {2e3 * one.step_time_s} |"
        for n in range(1, 30)
    ]
    log.write_text("\n".join(lines))
    for measured in (log, [log], f"step={2 * one.step_time_s}s"):
        result = fs.diagnose("llama-3.1-8b", "h100-sxm", measured=measured, **QUESTION)
        assert (result.verdict, result.lost_s) == ("slower", pytest.approx(one.step_time_s))
    watcher = fs.watch("llama-3.1-8b", "h100-sxm", **QUESTION)
    for line in lines:
        list(watcher.feed(line))
    assert watcher.speed == pytest.approx(0.5)
