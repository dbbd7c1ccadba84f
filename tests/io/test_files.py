import pytest

from forescale.errors import ReaderError
from forescale.io.files import deep_merge, load_mapping, parse_yaml, parse_yaml_lenient


def test_numbers_in_yaml_are_numbers():
    assert parse_yaml("a: 1e-5\nb: 12.5e9\nc: 1e3x\nd: 010", "x") == {
        "a": 1e-5,
        "b": 12.5e9,
        "c": "1e3x",
        "d": 8,
    }


def test_a_key_given_twice():
    with pytest.raises(ReaderError, match="the key 'a' is given twice at line 2"):
        parse_yaml("a: 1\na: 2", "x")
    assert parse_yaml_lenient("a: 1\na: 2", "x") == {"a": 2}


@pytest.mark.parametrize(
    "text", ["a: [", "a: 'b", "\tx: 1", "a: !!python/object:os.system {}", "a: b: c", "&"]
)
def test_broken_yaml_is_refused_in_one_line(text):
    with pytest.raises(ReaderError, match="x: it is not valid YAML") as caught:
        parse_yaml(text, "x")
    assert "\n" not in str(caught.value)


def test_merging_goes_into_tables_and_leaves_its_input():
    base, over = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": {"e": 5}}
    assert deep_merge(base, over) == {"a": {"b": 4, "c": 2}, "d": {"e": 5}}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


def test_binary_and_folders(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReaderError, match="cannot be read as text"):
        load_mapping(tmp_path / "x.toml")
    (tmp_path / "y.toml").mkdir()
    with pytest.raises(ReaderError, match="cannot be read as text"):
        load_mapping(tmp_path / "y.toml")
