import tomllib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.syntax import (
    deep_merge,
    dump_toml,
    load_mapping,
    parse_toml,
    parse_yaml,
)


def test_numbers_in_yaml_are_numbers():
    assert parse_yaml("a: 1e-5\nb: 12.5e9\nc: 1e3x\nd: 010", "x") == {
        "a": 1e-5,
        "b": 12.5e9,
        "c": "1e3x",
        "d": 8,
    }


def test_a_key_given_twice():
    with raises(ReaderError, "cannot_parse YAML"):
        parse_yaml("a: 1\na: 2", "x")
    assert parse_yaml("a: null\na: 2", "x") == {"a": 2}


@pytest.mark.parametrize(
    "text", ["a: [", "a: 'b", "\tx: 1", "a: !!python/object:os.system {}", "a: b: c", "&"]
)
def test_broken_yaml_is_refused_in_one_line(text):
    with raises(ReaderError, "cannot_parse YAML") as caught:
        parse_yaml(text, "x")
    assert "\n" not in str(caught.value)


def test_merging_goes_into_tables_and_leaves_its_input():
    base, over = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": {"e": 5}}
    assert deep_merge(base, over) == {"a": {"b": 4, "c": 2}, "d": {"e": 5}}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


def test_binary_and_folders(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with raises(ReaderError, "cannot_read"):
        load_mapping(tmp_path / "x.toml")
    (tmp_path / "y.toml").mkdir()
    with raises(ReaderError, "cannot_read"):
        load_mapping(tmp_path / "y.toml")
    with raises(ReaderError, "wrong_format a file | folder"):
        load_mapping(tmp_path)


BOMB = "a: &a [1,2,3,4,5,6,7,8,9]\n" + "\n".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]" for before, name in pairwise("abcdefgh")
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [*x]", "too_large it"),
        (BOMB, "too_large it"),
        ("a: " + "[" * 50_000, "too_deep"),
        ("a: " + "[" * 100 + "@", "too_deep"),  # what follows is not even scanned
        ("a: " + "9" * 6_000, "cannot_parse YAML"),
        ("a: .inf", "wrong_type a"),
        ("1: 2", "wrong_type a key"),
        ("a: !!bool x", "cannot_parse YAML"),
        ("a: !!timestamp x", "cannot_parse YAML"),
        ("a: 1\n" * 300_000, "too_large it"),
    ],
)  # fmt: skip
def test_yaml_without_bounds_is_refused(text, message):
    with raises(ReaderError, message):
        parse_yaml(text, "x")


def test_dates_in_yaml_are_text_and_tables_merge():
    assert parse_yaml("a: 2026-99-99\nb: &b {c: 1}\nd: {<<: *b, e: 2}", "x") == {
        "a": "2026-99-99",
        "b": {"c": 1},
        "d": {"c": 1, "e": 2},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5_000, "too_deep"),
        ("a = " + "9" * 5_000, "too_large a number"),
        ("a = nan", "wrong_type a"),
        ("a = 2026-01-01", "wrong_type a"),
    ],
)
def test_toml_without_bounds_is_refused(text, message):
    with raises(ReaderError, message):
        parse_toml(text, "x")


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALAR = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUE, max_size=5))
def test_the_standard_library_reads_back_the_same(values):
    assert tomllib.loads(dump_toml(values)) == values


def test_plain_values_stand_before_tables():
    text = dump_toml({"table": {"x": 1, "none": None}, "y": [True, {"a": 1}]})
    assert text == "y = [true, { a = 1 }]\n\n[table]\nx = 1\n"


def test_what_toml_cannot_say():
    with pytest.raises(TypeError, match="no form in TOML"):
        dump_toml({"x": object()})
