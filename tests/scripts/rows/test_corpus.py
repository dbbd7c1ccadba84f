from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.rows.columns import COLUMNS, read_corpus
from tests.errors import raises

from forescale.errors import ReaderError

HEADER = "id,model,hardware,n_gpus"


def write(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_every_row_in_order(tmp_path):
    corpus = read_corpus(write(tmp_path, f"{HEADER}\nB-1,m,h,8\nA-2,m,h,16\n"))
    assert [row.id for row in corpus.rows] == ["B-1", "A-2"]
    assert [row.line for row in corpus.rows] == [2, 3]


def test_a_misspelt_column_is_refused(tmp_path):
    with raises(ReaderError, "unknown_key seq_length"):
        read_corpus(write(tmp_path, f"{HEADER},seq_length\nA-1,m,h,8,4096\n"))


def test_free_text_has_columns_of_its_own(tmp_path):
    (row,) = read_corpus(write(tmp_path, f"{HEADER},notes (ours)\nA-1,m,h,8,red\n")).rows
    assert row.text("notes (ours)") == "red"


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0", "9e30", "4,096", "1_0", "x", "1e400"])
@pytest.mark.parametrize("column", ["tp", "vpp", "ep", "hidden", "measured_step_s", "n_gpus"])
def test_a_cell_that_its_column_cannot_hold_is_refused(tmp_path, column, text):
    cells = {"id": "A-1", "model": "m", "hardware": "h", "n_gpus": "8", column: f'"{text}"'}
    with pytest.raises(ReaderError, match=f"line 2, column {column}: "):
        read_corpus(write(tmp_path, f"{','.join(cells)}\n{','.join(cells.values())}\n"))


def test_the_page_lists_every_column():
    page = (Path(__file__).parents[3] / "scripts" / "rows" / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", page, re.MULTILINE))
    assert listed == {name: column.meaning for name, column in COLUMNS.items()}


def test_a_column_the_file_lacks_reads_as_empty(tmp_path):
    (row,) = read_corpus(write(tmp_path, f"{HEADER}\nA-1,m,h,8\n")).rows
    assert row.text("notes") == ""
    assert row.integer("tp") is None
    assert row.flag("sp") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,model,hardwear,n_gpus\nA-1,m,h,8\n", "lacks the column hardware; did you mean hardwear"),
        (f"{HEADER}\n", "no runs below its header"),
        ("", "empty it"),
        (f"{HEADER}\nA-1,m,h\n", "line 2 has 3 cells, not as many as the 4 columns"),
        (f"{HEADER}\nA-1,m,h,8,9\n", "line 2 has 5 cells"),
        (f"{HEADER}\n,m,h,8\n", "line 2 has no id"),
        (f"{HEADER},tp,tp\n", "given_twice tp"),
        (HEADER.replace(",", ";"), "its columns are separated by semicolons"),
        (f'{HEADER}\nA-1,m,h,"8\n', "cannot_parse CSV"),
        (f"{HEADER}\nA-1,m,h,8\nA-1,m,h,8\n", "line 3 repeats the id 'A-1' of line 2"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(tmp_path, text, message):
    with raises(ReaderError, message):
        read_corpus(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with raises(ReaderError, "not_found file"):
        read_corpus(tmp_path / "nowhere.csv")


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ReaderError):
        read_corpus(path)


def test_a_cell_that_is_no_number_names_its_place(row):
    with raises(ReaderError, "wrong_type tp"):
        row(tp="two").integer("tp")
    with raises(ReaderError, "wrong_type tp"):
        row(tp="1.5").integer("tp")
