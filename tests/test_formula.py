from __future__ import annotations

import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import forescale
from forescale.formula import REGISTRY, Term, TermNode, as_term, formula, named, total, value_of

UNITS = {
    "1",
    "s",
    "byte",
    "FLOP",
    "pair",
    "d",
    "token",
    "element",
    "device",
    "parameter",
    "currency",
    "J",
    "W",
}
"""What units are made of, with / between."""


def _import_everything():
    skipped = ("forescale.bench", "forescale.runtime", "forescale.web", "forescale.cli")
    for module in pkgutil.walk_packages(forescale.__path__, "forescale."):
        if not module.name.startswith(skipped) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@formula(unit="byte", source="test")
def area(*, a, b):
    """a·b."""
    return a * b


def test_plain_numbers_pass_through():
    assert area(a=2.0, b=3.0) == 6.0
    assert named(2.0, "x") == 2.0
    np.testing.assert_array_equal(
        total({"x": np.array([1.0, 2.0]), "y": 1.0}, name="sum", unit="s"), [2.0, 3.0]
    )


def test_a_term_remembers_formula_inputs_and_arithmetic():
    side = Term(np.array([2.0, 5.0]), name="side", unit="1")
    result = total({"area": area(a=side, b=3.0), "rest": 1.0}, name="all", unit="byte")
    np.testing.assert_array_equal(value_of(result), [7.0, 16.0])
    node = result.at(1)
    assert (node.name, node.value, node.unit) == ("all", 16.0, "byte")
    first = dict(node.inputs)["area"]
    assert (first.name, first.value, first.source, first.text) == ("area", 15.0, "test", "a·b.")
    assert {inner.name for inner in node.walk()} >= {"all", "area", "side"}


def test_the_recorded_value_is_the_plain_value():
    numbers = np.linspace(1.0, 2.0, 5)
    plain = np.maximum(area(a=numbers, b=2.0) / 3.0, numbers) - 1.0
    recorded = np.maximum(area(a=as_term(numbers), b=2.0) / 3.0, as_term(numbers)) - 1.0
    np.testing.assert_array_equal(value_of(recorded), plain)


def test_every_formula_says_unit_source_and_equation():
    _import_everything()
    ours = [entry for entry in REGISTRY.values() if entry.function.__module__.startswith("forescale.")]
    assert len(ours) > 40
    for entry in ours:
        assert set(entry.unit.split("/")) <= UNITS, entry.name
        assert len(entry.source) > 8, entry.name
        assert entry.summary, entry.name


def test_the_documentation_of_a_formula_states_its_unit_and_source():
    assert inspect.getdoc(area) == "a·b.\n\nUnit: byte. Source: test."


def test_terms_compare_as_their_values_do():
    """With numbers, arrays, other terms, and what answers comparisons itself."""
    term, other = Term(2.0, name="one"), Term(3.0, name="other")
    assert term == pytest.approx(2.0)
    assert (term < other).value
    assert (other >= 3.0).value
    assert ((term**2.0).value, (7.0 // term).value, (other % 2.0).value, (-term).value) == (
        4.0,
        3.0,
        1.0,
        -2.0,
    )
    assert ((term > 1.0) & (term != 3.0)).value


def test_print_of_an_explanation_shows_what_the_number_is_made_of():
    leaf = TermNode(name="leaf", value=2.0, unit="s", source="", text="", inputs=())
    middle = TermNode(name="+", value=4.0, unit="s", source="", text="sum", inputs=(("a", leaf), ("b", leaf)))
    whole = TermNode(name="whole", value=4.0, unit="s", source="", text="", inputs=(("0", middle),))
    assert str(whole).splitlines() == [
        "whole = 4.000 s",
        "  + = 4.000 s: sum",
        "    a = 2.000 s",
        "    b = 2.000 s",
    ]
    wide = TermNode(name="wide", value=1.0, unit="", source="", text="", inputs=(("0", middle),) * 20)
    assert wide.details == ("  + = 4.000 s: sum",) * 20
