from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.limits import Share
from forescale.records import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: Share
    sizes: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    kind: Literal["a", "b"] = "a"
    inner: Mapping[str, Inner] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    best: Inner | None = None


def test_tables_become_what_annotations_say():
    content = {"name": "x", "inner": {"p": {"share": 1, "sizes": [2, 3]}}, "words": ["w"], "best": None}
    result = record(Outer, content, "", "f.json")
    assert result == Outer(name="x", inner={"p": Inner(share=1, sizes=(2, 3))}, words=("w",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "wrong_type it"),
        ({"nam": 1}, "unknown_key nam"),
        ({"name": "x", "share": 1}, "unknown_key share"),
        ({}, "missing name"),
        ({"name": 1}, "wrong_type name"),
        ({"name": "x", "kind": "c"}, "not_one_of kind"),
        ({"name": "x", "inner": {"p": {"share": 1.5}}}, "out_of_range inner.p.share"),
        ({"name": "x", "inner": {"p": {"share": "1"}}}, "wrong_type inner.p.share"),
        ({"name": "x", "best": {"share": 1, "sizes": [1]}}, "wrong_type best.sizes"),
        ({"name": "x", "words": "w"}, "wrong_type words"),
        ({"name": "x", "inner": []}, "wrong_type inner"),
    ],
)
def test_what_annotations_forbid_names_its_place(content, message):
    with raises(ReaderError, message):
        record(Outer, content, "", "f.json")
