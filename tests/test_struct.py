"""Structs: they answer what dataclasses are asked."""

from __future__ import annotations

import copy
import pickle
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec import field
from tests.errors import raises

from forescale.errors import SpecError
from forescale.spec import Layout, Precision, Recompute, Workload
from forescale.struct import Struct, attributes
from forescale.struct import asdict as nested

if TYPE_CHECKING:
    from decimal import Decimal


class Part(Struct, frozen=True, kw_only=True):
    name: str
    size: float = 1.0


class Whole(Part, frozen=True, kw_only=True):
    parts: tuple[Part, ...]
    words: dict[str, Any] = field(default_factory=dict)
    price: Decimal | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size")


WHOLE = Whole(name="w", size=2.0, parts=(Part(name="p"),), words={"of": Part(name="q", size=3.0)})


def test_fields_are_those_of_a_dataclass_in_the_order_of_the_constructor() -> None:
    assert is_dataclass(WHOLE)
    assert is_dataclass(Whole)
    assert [(item.name, item.type, item.default) for item in fields(Part)] == [
        ("name", "str", MISSING),
        ("size", "float", 1.0),
    ]
    known = {item.name: item for item in fields(WHOLE)}
    assert list(known) == list(WHOLE.__struct_fields__)
    assert set(known) == {"name", "size", "parts", "words", "price"}
    assert known["parts"].default is known["parts"].default_factory is MISSING
    assert known["price"].default is None
    assert known["words"].default is MISSING
    assert known["words"].default_factory() == {}


def test_fields_of_a_base_and_of_what_extends_it_stay_apart() -> None:
    assert [item.name for item in fields(Whole)] != [item.name for item in fields(Part)]
    assert len(fields(Part)) == 2


def test_tables_of_parts_are_those_of_dataclasses() -> None:
    values = (WHOLE, Layout(), Workload(seq_len=1, global_batch_size=1), Recompute(granularity="full"))
    for value in values:
        assert repr(nested(value)) == repr(asdict(value))
    assert nested(WHOLE)["words"] is not WHOLE.words
    with pytest.raises(TypeError, match="got dict"):
        nested({})


def test_asdict_goes_into_parts() -> None:
    assert asdict(WHOLE) == {
        "name": "w",
        "size": 2.0,
        "parts": ({"name": "p", "size": 1.0},),
        "words": {"of": {"name": "q", "size": 3.0}},
        "price": None,
    }


def test_replace_is_checked_like_the_constructor() -> None:
    assert replace(WHOLE, size=4.0) == Whole(name="w", size=4.0, parts=WHOLE.parts, words=WHOLE.words)
    with pytest.raises(ValueError, match="size"):
        replace(WHOLE, size=-1.0)
    with pytest.raises(TypeError, match="length"):
        replace(WHOLE, length=1.0)


def test_values_are_frozen_and_equal_by_their_fields_and_kind() -> None:
    with pytest.raises(AttributeError):
        WHOLE.size = 3.0  # type: ignore[misc]
    assert Part(name="a") == Part(name="a")
    assert hash(Part(name="a")) == hash(Part(name="a"))
    assert Part(name="a") != Part(name="a", size=2.0)


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_copies_are_equal(twin: Any) -> None:
    assert twin(WHOLE) == WHOLE


def test_attributes_are_plain_values_and_results_within_say_themselves() -> None:
    class Found(Struct, frozen=True, kw_only=True):
        share: float

        def to_json(self) -> dict[str, Any]:
            return {"percent": 100.0 * self.share}

    class Held(Struct, frozen=True, kw_only=True):
        part: Part
        several: tuple[Found | int, ...]
        curve: np.ndarray
        left_out: int = 3

    kept = Held(part=Part(name="a"), several=(Found(share=0.5), 2), curve=np.arange(2.0))
    assert attributes(kept, "several", "curve", "part") == {
        "several": [{"percent": 50.0}, 2],
        "curve": [0.0, 1.0],
        "part": {"name": "a", "size": 1.0},
    }


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Layout(tpp=2), "unknown_key tpp"),  # type: ignore[call-arg]
        (lambda: Workload(seqlen=1), "unknown_key seqlen"),  # type: ignore[call-arg]
        (lambda: Layout(2), "wrong_type the arguments of Layout"),  # type: ignore[misc]
        (lambda: Workload(seq_len=1), "required_with global_batch_size"),  # type: ignore[call-arg]
    ],
)
def test_what_a_constructor_does_not_take_is_named_with_its_class(make: Any, said: str) -> None:
    with raises(SpecError, said):
        make()


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Workload, {"seq_len": 8, "global_batch_size": 8, "precision": "fp8"}, "wrong_type precision"),
        (Workload, {"seq_len": 8, "global_batch_size": 8, "precision": {}}, "wrong_type precision"),
        (Recompute, {"modules": 5}, "wrong_type modules"),
        (Recompute, {"unit": "2"}, "wrong_type unit"),
        (Layout, {"axis_order": 5}, "wrong_type axis_order"),
        (Precision, {"compute": np.array([1, 2])}, "not_one_of compute"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused_with_its_field(kind, given, message):
    with raises(SpecError, message):
        kind(**given)
