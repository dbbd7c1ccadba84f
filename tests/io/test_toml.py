import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescale.io.toml import dump_toml

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
