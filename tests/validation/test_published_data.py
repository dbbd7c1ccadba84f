"""The tables of published measurements: each row is found again, each source is described, no copy drifts."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "data" / "published"
PAGE = (PUBLISHED / "README.md").read_text(encoding="utf-8")


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["runs.csv", "kernels.csv"])
def test_every_source_is_described_with_its_rows(name):
    rows = rows_of(PUBLISHED / name)
    there = Counter(row["id"].rpartition("-")[0] for row in rows)
    section = PAGE.split(f"## `{name}`")[1].split("\n## ")[0]
    described = {}
    for line in section.splitlines():
        codes, count, *_ = (*line.strip("| ").split(" | "), "", "")
        if count.isdigit():
            described[tuple(re.findall("`([^`]+)`", codes))] = int(count)
    assert sorted(code for codes in described for code in codes) == sorted(there)
    assert described == {codes: sum(there[code] for code in codes) for codes in described}
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["source"] for row in rows)


def test_the_page_counts_what_is_there():
    for name, count in re.findall(r"^\| `(\S+\.csv)` \| (\d+) \|", PAGE, re.MULTILINE):
        assert len(rows_of(PUBLISHED / name)) == int(count)
    core = sum(row["core"] == "y" for row in rows_of(PUBLISHED / "runs.csv"))
    assert f"{core} runs" in PAGE


@pytest.mark.parametrize(
    ("excerpt", "whole", "changed"),
    [
        ("runs/excerpt.csv", "runs.csv", ()),
        ("megatron_ci/excerpt.csv", "megatron_ci.csv", ()),
        ("kernels/sample.csv", "kernels.csv", ("notes",)),
    ],
)
def test_excerpts_are_rows_of_the_whole(excerpt, whole, changed):
    taken = rows_of(ROOT / "tests" / "data" / excerpt)
    names = [name for name in taken[0] if name not in changed]

    def facts(row):
        return tuple(row[name] for name in names)

    there = {facts(row) for row in rows_of(PUBLISHED / whole)}
    assert [row for row in taken if facts(row) not in there] == []
