from __future__ import annotations

import pytest

from forescale.explain.tidy import tidy
from forescale.formula import REGISTRY, Term, formula, total

N, BYTES = Term(4.0, name="n", unit="1"), Term(8.0, name="size", unit="byte")


@formula(unit="s", source="test")
def larger_of(*, first: float, second: float) -> float:
    """The larger."""
    return max(first, second)


REGISTRY.pop("larger_of")  # the registry holds the formulas of the package only


def test_sums_are_flat_and_without_zeros():
    node = tidy(((0.0 + N) + (0.0 + BYTES) + N).at())
    assert [part.name for _, part in node.inputs] == ["n", "size", "n"]
    assert node.value == 16.0


def test_products_are_flat_and_without_ones():
    node = tidy((1.0 * N * (BYTES * N)).at())
    assert [part.name for _, part in node.inputs] == ["n", "size", "n"]


def test_labelled_parts_of_a_sum_keep_their_labels():
    node = tidy(total({"first": BYTES + N, "second": BYTES}, name="all", unit="byte").at())
    assert [(label, part.value) for label, part in node.inputs] == [("first", 12.0), ("second", 8.0)]


def test_a_product_of_one_thing_is_that_thing():
    assert tidy((1.0 * N / 1.0 - 0.0).at()).name == "n"


def test_a_named_sum_of_one_thing_keeps_its_name():
    node = tidy((0.0 + BYTES).renamed("buffer").at())
    assert (node.name, node.value, node.unit) == ("buffer", 8.0, "byte")


def test_nothing_has_no_inputs():
    assert tidy((0.0 * N).at()).inputs == ()


def test_the_branch_not_taken_keeps_its_value_only():
    node = tidy(larger_of(first=N + N, second=BYTES * N).at())
    assert {label: (part.value, bool(part.inputs)) for label, part in node.inputs} == {
        "first": (8.0, False),
        "second": (32.0, True),
    }


@pytest.mark.parametrize(
    ("term", "unit"), [(BYTES + 1.0, "byte"), (BYTES * N, "byte"), (BYTES / N, "byte"), (N * N, "")]
)
def test_units_follow_where_arithmetic_allows(term, unit):
    assert tidy(term.at()).unit == unit
