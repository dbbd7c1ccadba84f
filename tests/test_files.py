from __future__ import annotations

from pathlib import Path

import pytest
from tests.errors import raises

import forescale as fs
from forescale.errors import ReaderError, UnknownNameError
from forescale.files import exists, is_file, is_folder, parse_json, place_of, read_table, read_text
from forescale.io.question import is_plan

UNREADABLE = {
    "folder": None,
    "UTF-16": "tp = 1".encode("utf-16"),
    "Latin-1": b"ok\nname = \xe9\n",
    "zero byte": b"a\0b",
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_text_is_refused(tmp_path, kind):
    path, content = tmp_path / "x", UNREADABLE[kind]
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with raises(ReaderError, "cannot_read"):
        read_text(path)


def test_links_in_a_circle_and_endless_files_are_refused(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with raises(ReaderError, "cannot_read"):
        read_text(loop)
    with raises(ReaderError, "too_large it"):
        read_text("/dev/zero")
    with raises(ReaderError, "wrong_format a file name"):
        read_text("a\0b")


def test_marks_and_line_ends_of_other_systems_are_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"


def test_a_home_that_is_nobodys_is_a_plain_name():
    assert str(place_of("~nobody-here/x")) == "~nobody-here/x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "more than 64 deep"),
        ("[" * 70 + "]" * 70, "more than 64 deep"),
        ('{"a": 1, "b": 2, "a": 3}', "given_twice a"),
        ('{"a": NaN}', "wrong_type a"),
        ('{"a": [1e400]}', "wrong_type a"),
        (f'{{"a": {2**63}}}', "too_large a"),
        ("9" * 5000, "too_large a number"),
        ('{"a": 1,}', "cannot_parse JSON"),
        ('{"a": CONFIG_BATCH_SIZE,\n"b": 1}', "cannot_parse JSON"),
        ("", "cannot_parse JSON"),
    ],
)
def test_json_that_cannot_be(text, message):
    with raises(ReaderError, message):
        parse_json(text, "x")


def test_time_steps_up_to_infinity_are_read_where_they_are_usual():
    assert (
        parse_json('{"time_step_limit": [0.0, Infinity]}', "x", infinite=True)["time_step_limit"][1] > 1e308
    )


def test_tables_pass_over_empty_lines(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'\xef\xbb\xbfid, b\r\n\r\nA,"1,\n2"\r\n')
    table = read_table(path)
    assert table.columns == ("id", "b")
    assert [(row.id, row.text("b"), row.line) for row in table.rows] == [("A", "1,\n2", 4)]


def test_a_cell_of_endless_length_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id\n" + "a" * 200_000)
    with raises(ReaderError, "cannot_parse CSV"):
        read_table(path)


@pytest.mark.parametrize(
    ("cell", "instead"), [("14,43", "14.43"), ("1,400.5", "1400.5"), ("12 000", "12000"), ("1,2,3", None)]
)
def test_a_cell_that_is_no_number_says_how_to_write_it(tmp_path, cell, instead):
    path = tmp_path / "x.csv"
    path.write_text(f'id,b\nA,"{cell}"\n')
    with pytest.raises(ReaderError) as raised:
        read_table(path).rows[0].number("b")
    assert raised.value.fix == (f"write {instead}" if instead else "")


@pytest.mark.parametrize("name", ["é" * 200, "a" * 5000, "a\0b"])
def test_names_that_no_file_can_have_are_of_none(name):
    assert not any(ask(Path(name)) for ask in (exists, is_file, is_folder))
    assert not is_plan(name)
    for load in (fs.load_model, lambda name: fs.load_cluster(name, 8), fs.load_framework):
        with pytest.raises(UnknownNameError):
            load(name)
