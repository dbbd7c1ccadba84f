"""Tables of published runs as explicit columns: nothing is lost, every field has an origin."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from scripts.rows.cases import load_rows
from scripts.rows.plans import convert, explicit, read_rows, text_of

from forescale.errors import ReaderError
from forescale.validation.case import projector_of
from forescale.validation.cases import COLUMNS, load_cases

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "data" / "published"
TABLES = ("runs", "megatron_ci")


@pytest.fixture(scope="module", params=TABLES)
def converted(request, tmp_path_factory):
    target = tmp_path_factory.mktemp("plans") / "plans.csv"
    pairs = read_rows(PUBLISHED / f"{request.param}.csv")
    target.write_text(text_of([explicit(case, row) for case, row in pairs]), encoding="utf-8", newline="")
    return request.param, target, [case for case, _ in pairs]


def test_every_case_is_the_same(converted):
    """Equal questions and measurements have equal projections, to the last digit."""
    _, target, before = converted
    after = load_cases(target)
    assert len(before) == len(after) > 300
    for old, new in zip(before, after, strict=True):
        assert old == new, old.id


def test_the_committed_tables_are_what_is_written(converted):
    name, target, _ = converted
    assert (PUBLISHED / "plans" / f"{name}.csv").read_bytes() == target.read_bytes()


def test_every_plan_field_has_one_origin(converted):
    with converted[1].open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            fields = [name for name, cell in row.items() if cell and name not in COLUMNS]
            lists = [json.loads(row.get(name) or "[]") for name in ("published", "derived", "assumed")]
            assert sorted(fields) == sorted(name for names in lists for name in names), row["id"]
            assert set(json.loads(row.get("typed") or "[]")) <= set(fields)


def test_projections_of_an_excerpt_are_equal(tmp_path):
    excerpt, target, predict = (
        ROOT / "tests" / "data" / "runs" / "excerpt.csv",
        tmp_path / "plans.csv",
        projector_of(),
    )
    convert(excerpt, target)
    for old, new in zip(load_rows(excerpt), load_cases(target), strict=True):
        if old.skipped_reason is None:
            assert predict(old) == predict(new), old.id


@pytest.mark.parametrize("name", ["runs/excerpt", "runs/sample", "megatron_ci/excerpt"])
def test_converted_test_data_is_up_to_date(tmp_path, name):
    source, target = ROOT / "tests" / "data" / f"{name}.csv", tmp_path / "plans.csv"
    convert(source, target)
    assert source.with_name(f"{source.stem}_plans.csv").read_bytes() == target.read_bytes()


def test_a_file_that_is_not_a_table_of_runs_is_refused(tmp_path):
    table = tmp_path / "runs.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(ReaderError) as caught:
        convert(table, tmp_path / "out.csv")
    assert caught.value.path == str(table)
    assert not (tmp_path / "out.csv").exists()
