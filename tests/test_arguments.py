"""Arguments of public functions: converted, or refused with an error that has the keyword and its value."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from scripts.face import FUNCTIONS
from tests.errors import raises

import forescale as fs
from forescale.arguments import in_python
from forescale.keywords import question_keywords

WORDS: dict[str, Any] = {"devices": 8, "seq_len": 2048, "global_batch_size": 64}
QUESTION: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "h100-sxm", **WORDS}
LAID: dict[str, Any] = {**QUESTION, "tp": 2}
WRONG = (object(), [object()], {1: 2}, b"x", fs)
"""Values that no keyword takes."""
ODD = (*WRONG, "zz", "", -1, 3.5, float("nan"), True, [[1]], (), 10**30, lambda: 1, ["zz"], "a b=c", "1,2,x")
"""Values that most keywords do not take."""
ALONE: dict[str, dict[str, Any]] = {
    "compare": {"a": {}, "b": {}},
    "load_cluster": {"name": "h100-sxm"},
    "load_framework": {},
    "load_model": {},
    "pipeline": {},
    "read_question": {"path": "a.toml"},
    "sweep": {"file": {}},
    "trace": {"model": "config.json"},
    "write_question": {"question": None, "path": "a.toml"},
    "write_trace": {"path": "a.json"},
}
"""Functions that take no question, with arguments that they need."""


def own(name: str) -> list[str]:
    """Return the arguments of a function that are no part of a question; all of one that takes none."""
    names = inspect.signature(getattr(fs, name)).parameters
    return [item for item in names if name in ALONE or item not in question_keywords()]


@pytest.mark.parametrize(
    ("name", "keyword"), [(name, item) for name in (*FUNCTIONS, *ALONE) for item in own(name)]
)
def test_no_function_takes_a_wrong_value_of_its_own_keywords(name: str, keyword: str) -> None:
    known = ALONE.get(name, {**LAID, **({"tokens": "1B"} if name == "run" else {})})
    for value in WRONG:
        with pytest.raises(fs.ForescaleError):
            getattr(fs, name)(**{**known, keyword: value})


@pytest.mark.parametrize("name", ["ask", "ask_search"])
@pytest.mark.parametrize("keyword", question_keywords())
def test_no_part_of_a_question_raises_an_error_of_python(name: str, keyword: str) -> None:
    if keyword not in inspect.signature(getattr(fs, name)).parameters:
        return
    for value in ODD:
        try:
            getattr(fs, name)(**{**QUESTION, keyword: value})
        except fs.ForescaleError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("name", "words", "error"),
    [
        ("run", {"price": "2.5 EUR"}, "not_a_quantity price"),
        ("run", {"seed": "3"}, "wrong_type seed"),
        ("run", {"pue": 0.5}, "out_of_range pue"),
        ("run", {"pue": "1.1"}, "wrong_type pue"),
        ("run", {"days": -3}, "out_of_range days"),
        ("run", {"phases": {"tokens": 3}}, "wrong_type phases"),
        ("run", {"phases": [3]}, "wrong_type phases[0]"),
        ("run", {"days": 3, "operations": {"restart": 60}, "restart": 3}, "given_twice restart"),
        ("run", {"days": 3, "interval": [3]}, "wrong_type checkpointing.interval"),
        ("watch", {"price_per_device_hour": [2.5]}, "wrong_type price_per_device_hour"),
        ("watch", {"fail_below": 3}, "out_of_range fail_below"),
        ("check", {"limits": {"max_cost": "3 EUR"}}, "not_a_quantity"),
        ("diagnose", {"measured": 3}, "wrong_type measured"),
        ("export", {"to": 3}, "wrong_type to"),
    ],
)
def test_the_error_names_the_keyword(name: str, words: dict[str, Any], error: str) -> None:
    with raises(fs.ForescaleError, error):
        getattr(fs, name)(**LAID, **words)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"pp": "3"}, "wrong_type pp"),
        ({"pp": 2.5}, "out_of_range pp"),
        ({"forward": "1"}, "wrong_type forward"),
        ({"comm": -1}, "out_of_range comm"),
        ({"comm_mode": "overlap"}, "not_one_of comm_mode"),
        ({"schedule": 3}, "wrong_type schedule"),
    ],
)
def test_values_of_a_pipeline_are_checked(words: dict[str, Any], error: str) -> None:
    with raises(fs.ForescaleError, error):
        fs.pipeline(**words)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ({"days": "30d"}, {"days": 30}),
        ({"days": "720h"}, {"days": 30}),
        ({"days": "30"}, {"days": np.float64(30)}),
        ({"days": 3, "price": "$2.50/hr"}, {"days": 3, "price": 2.5}),
        ({"days": 3, "electricity_price": "$80/MWh"}, {"days": 3, "electricity_price": 0.08}),
        ({"days": 3, "restart": "10min"}, {"days": 3, "operations": {"restart": 600}}),
        ({"days": 3, "failures": 0.01}, {"days": 3, "operations": {"failures": 0.01}}),
        (
            {"days": 3, "interval": "30min", "failures": "meta-rsc-1"},
            {"days": 3, "operations": {"failures": "meta-rsc-1", "checkpointing": {"interval": 1800}}},
        ),
    ],
)
def test_a_run_takes_what_the_command_line_does(written: dict[str, Any], plain: dict[str, Any]) -> None:
    assert fs.run(**LAID, **written).to_json() == fs.run(**LAID, **plain).to_json()


def test_money_of_limits_has_its_currency() -> None:
    limits = {"max_cost": "$10K", "price_per_device_hour": "2 USD/h"}
    plain = {"max_cost": 1e4, "price_per_device_hour": 2.0}
    assert fs.check(**LAID, tokens="1B", limits=limits) == fs.check(**LAID, tokens="1B", limits=plain)
    assert fs.watch(**LAID, price_per_device_hour="$2.50").price == 2.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("give --tokens, such as 15T", "give tokens, such as 15T"),
        ("give --tokens 15T or --days 30", "give tokens='15T' or days=30"),
        ("--max-memory changes it", "max_memory changes it"),
        ("--no-such-option stays", "--no-such-option stays"),
        (
            "forescale check --tokens 15T finds it; --tokens says it",
            "forescale check --tokens 15T finds it; tokens says it",
        ),
    ],
)
def test_options_are_keywords_in_python(text: str, said: str) -> None:
    assert in_python(text, ("tokens", "days", "max_memory")) == said


def test_errors_of_the_functions_name_no_options() -> None:
    with raises(fs.ForescaleError, "missing") as refused:
        fs.run(**LAID)
    assert "--tokens" not in str(refused.value).partition("forescale ")[0]
    with raises(fs.ForescaleError, "unknown_name") as refused:
        fs.project(**{**QUESTION, "model": "allenai/some-model"})
    assert "--" not in str(refused.value)
    assert "AutoConfig.from_pretrained('allenai/some-model')" in str(refused.value)
