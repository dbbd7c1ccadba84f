from __future__ import annotations

import pytest

from forescale.errors import ReaderError
from forescale.validation.corpus import read_corpus

HEADER = "id,model,hardware,n_gpus"


def write(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_every_row_in_order(tmp_path):
    corpus = read_corpus(write(tmp_path, f"{HEADER}\nB-1,m,h,8\nA-2,m,h,16\n"))
    assert [row.id for row in corpus.rows] == ["B-1", "A-2"]
    assert [row.line for row in corpus.rows] == [2, 3]


def test_columns_that_nothing_reads_are_listed(tmp_path):
    corpus = read_corpus(write(tmp_path, f"{HEADER},colour\nA-1,m,h,8,red\n"))
    assert corpus.ignored_columns == ("colour",)


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
        ("", "lacks the column id"),
        (f"{HEADER}\nA-1,m,h\n", "line 2 has not as many cells"),
        (f"{HEADER}\nA-1,m,h,8,9\n", "line 2 has not as many cells"),
        (f"{HEADER}\n,m,h,8\n", "line 2 has no id"),
        (f"{HEADER}\nA-1,m,h,8\nA-1,m,h,8\n", "line 3 repeats the id 'A-1' of line 2"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(tmp_path, text, message):
    with pytest.raises(ReaderError, match=message):
        read_corpus(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ReaderError, match=r"nowhere\.csv"):
        read_corpus(tmp_path / "nowhere.csv")


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ReaderError):
        read_corpus(path)


def test_a_cell_that_is_no_number_names_its_place(row):
    with pytest.raises(ReaderError, match=r"line 2, column tp: 'two' is not a number"):
        row(tp="two").integer("tp")
    with pytest.raises(ReaderError, match=r"line 2, column tp: '1.5' is not a whole number"):
        row(tp="1.5").integer("tp")
