"""Where commands write: a place that takes no file is refused before the work, and a full disk loses nothing."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from pathlib import Path

import pytest
from tests.cli.questions import DENSE, LAYOUT, SEARCH

RUNS = Path(__file__).parents[1] / "data" / "runs" / "excerpt_plans.csv"
PIPELINE = ("--pp", 2, "--microbatches", 4)
REPORT = (*SEARCH[:-2], "--fix", "tp=4", "--top", 1, "--details", 0, "--worst", 0, "--output")
WRITE = {
    "report.md": ("report", *REPORT),
    "report.html": ("report", *REPORT),
    "layouts.csv": ("search", *SEARCH, "--csv"),
    "layouts.parquet": ("search", *SEARCH, "--parquet"),
    "search.npz": ("search", *SEARCH, "--checkpoint"),
    "steps.json": ("memory", *DENSE, *LAYOUT, "--export"),
    "steps.pickle": ("memory", *DENSE, *LAYOUT, "--export"),
    "stages.svg": ("memory", "compare", *DENSE, *LAYOUT, "--across", "zero", "--values", "0,1", "--plot"),
    "picture.svg": ("pipeline", "draw", *PIPELINE, "--format", "svg", "--output"),
    "schedule.csv": ("pipeline", "optimise", *PIPELINE, "--time-limit", 0, "--output"),
    "own.json": ("calibrate", RUNS, "--device", "h100-sxm", "--output"),
    "scores.svg": ("validate", RUNS, "--chart"),
}  # fmt: skip


def refused(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("name", "arguments"), WRITE.items(), ids=WRITE)
def test_a_full_disk_is_a_sentence_and_leaves_nothing_half_written(
    forescale, tmp_path, monkeypatch, name, arguments
):
    if name == "layouts.parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr("forescale.atomic_write.os.fsync", refused)
    monkeypatch.setattr(import_module("forescale.search.checkpoint"), "SAVED_EVERY_S", 0.0)
    ran = forescale(*arguments, tmp_path / name)
    assert ran.code == 2
    assert ran.err.startswith(f"error: cannot write {tmp_path / name.split('.')[0]}")
    assert ran.err.endswith(": No space left on device\n")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("name", "arguments"), WRITE.items(), ids=WRITE)
def test_a_folder_that_is_not_there_is_refused_before_the_work(
    forescale, tmp_path, monkeypatch, name, arguments
):
    def works(*_, **__):
        raise AssertionError

    monkeypatch.setattr("forescale.io.question.build_question", works)
    monkeypatch.setattr("forescale.validation.cases.load_cases", works)
    monkeypatch.setattr("forescale.schedule.optimise.optimise", works)
    file = tmp_path / "no" / name
    ran = forescale(*arguments, file)
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: cannot write {file}: No such file or directory\n")
