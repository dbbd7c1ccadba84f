"""A question in few words: what it says beyond its framework, and the command line that asks it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from forescale.catalogue.frameworks import NONE
from forescale.cost.run_calibration import FRAMEWORK
from forescale.errors import SpecError
from forescale.io.question import build_run
from forescale.io.question_values import question_values
from forescale.io.recipes import is_usual
from forescale.question import Question
from forescale.schedule.library import family
from forescale.spec import Layout
from forescale.spec.option import Under, declared, options
from forescale.spec.space import Space
from forescale.syntax import toml_value

USUAL = Layout()


def has_effect(under: Under, layout: Layout | Space) -> bool:
    """Return whether a condition is met by a layout, or by any of a space, where None stands for all values."""
    value = getattr(layout, under.field)
    if isinstance(layout, Space):
        return value is None or any(_meets(under, item) for item in value)
    return _meets(under, value)


def _meets(under: Under, value: Any) -> bool:  # noqa: ANN401 (a value of any field)
    if under.schedule:
        return value is not None and bool(getattr(family(value), under.schedule))
    return under.is_met(value)


def told_words(question: Question) -> dict[str, Any]:
    """Return a question as the sections of a plan, without what its framework, or the usual, says anyway."""
    values = question_values(question)
    sections = {name: _said(values.pop(name)) for name in ("strategy", "workload", "precision")}
    same = partial(_is_said, question)
    derived = {name: value for name, value in sections["strategy"].items() if not name.startswith("dp_")}
    if same({**sections, "strategy": derived}):
        sections["strategy"] = derived
    for path, _ in list(_leaves(sections, ())):
        fewer = _without(sections, path)
        if path[-1] not in ("seq_len", "global_batch_size") and same(fewer):
            sections = fewer
    return {**values, "strategy": {}, **sections}


def _is_said(question: Question, sections: Mapping[str, Any]) -> bool:
    """Return whether sections of a plan, completed by the framework, are the layout and the workload of a question."""
    parts = question.model, question.cluster, question.framework
    try:
        layout, workload = build_run({"strategy": {}, **sections}, *parts, where="the question")
    except SpecError:  # a word that others need
        return False
    same = layout == question.strategy or _read(layout) == _read(question.strategy)
    return workload == question.workload and same


def has_words(question: Question) -> bool:
    """Return whether options can ask a question: its framework fills nothing that its layout leaves out."""
    values = question_values(question)
    return _is_said(question, {name: _said(values[name]) for name in ("strategy", "workload", "precision")})


def _read(layout: Layout | None) -> Layout | None:
    """Return a layout with the fields as usual that no formula reads."""
    if layout is None:
        return None
    under = ((item.name, item.option.under) for item in declared(Layout))
    idle = {name for name, condition in under if condition is not None and not has_effect(condition, layout)}
    return replace(layout, **{name: getattr(USUAL, name) for name in idle})


def project_line(question: Question, *, model: str | None = None) -> str:
    """Return the words after `forescale project` that ask a question of one layout.

    Parameters
    ----------
    question
        One layout; of what its framework says anyway nothing is repeated.
    model
        The file that describes the model, where the catalogue does not have it.
    """
    values = told_words(question)
    layout, workload = (dict(values.pop(name, {})) for name in ("strategy", "workload"))
    if (
        FRAMEWORK in question.assumed
        and question.framework is not None
        and question.strategy is not None
        and not is_usual(question, layout.get("zero"))
    ):
        layout["zero"] = question.strategy.zero  # the usual framework follows from it
    parts = [_named(values.pop("model"), model or question.model.name)]
    if question.framework is None and question.preset == "default":
        values["framework"] = NONE
    elif FRAMEWORK in question.assumed:
        values.pop("framework")
    for option in ("cluster", "devices", "framework", "preset"):
        if (value := values.pop(option, None)) is not None:
            parts += [f"--{option}", _named(value, question.cluster.name)]
    for option in ("seq_len", "global_batch_size"):
        parts += [_flag(option), str(workload.pop(option))]
    if "tokens" in workload:
        parts += ["--tokens", f"{workload.pop('tokens'):.15g}"]
    flags = {item.name: item.flag for item in options(Layout) if item.path == (item.name,)}
    for name, flag in flags.items():  # fields of tables are set by --set
        if isinstance(layout.get(name), int | str):
            parts += _option(flag, layout.pop(name))
    values |= {"strategy": layout, "workload": workload}
    for name in ("space", "assumed"):  # flags leave the same open
        values.pop(name, None)
    for path, value in _leaves(values, ()):
        parts += ["--set", f"{'.'.join(path)}={value if isinstance(value, str) else toml_value(value)}"]
    return shlex.join(parts)


def _named(value: object, name: str) -> str:
    """Return what stands for a model or a cluster; a table has no form on a command line but its name."""
    return name if isinstance(value, Mapping) else str(value)


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _option(flag: str, value: int | str) -> list[str]:
    """Return an option with its value, or a switch turned on or off."""
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]


def _leaves(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        elif value is not None:
            yield (*path, name), value


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables without None, which neither a plan nor an option can say."""
    kept = {name: value for name, value in values.items() if value is not None}
    return {name: _said(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def _without(values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return nested tables without the value at `path`, and without tables that nothing is left in."""
    name, *rest = path
    changed = {**values, name: _without(values[name], tuple(rest)) if rest else {}}
    return {key: value for key, value in changed.items() if key != name or value}
