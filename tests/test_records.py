from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

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
        ([], "it must be a table"),
        ({"nam": 1}, "unknown key 'nam' in it; did you mean name"),
        ({"name": "x", "share": 1}, "unknown key 'share' in it; best has it"),
        ({}, "name is required"),
        ({"name": 1}, "name must be text, got 1"),
        ({"name": "x", "kind": "c"}, "kind must be 'a' or 'b', got 'c'"),
        ({"name": "x", "inner": {"p": {"share": 1.5}}}, "inner.p.share must be 1 or less, got 1.5"),
        ({"name": "x", "inner": {"p": {"share": "1"}}}, "inner.p.share must be a number"),
        ({"name": "x", "best": {"share": 1, "sizes": [1]}}, "best.sizes must be a list of 2"),
        ({"name": "x", "words": "w"}, "words must be a list"),
        ({"name": "x", "inner": []}, "inner must be a table"),
    ],
)
def test_what_annotations_forbid_names_its_place(content, message):
    with pytest.raises(ReaderError, match=f"f.json: {message}"):
        record(Outer, content, "", "f.json")
