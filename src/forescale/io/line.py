"""A question in few words: what it says beyond its framework, and the command line that asks it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from forescale.errors import SpecError
from forescale.io.question import build_question, question_values
from forescale.question import Question
from forescale.schedule.library import cuts_sequences
from forescale.spec import Layout
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.space import Space
from forescale.syntax import toml_value

OPTIONS = (
    "tp", "cp", "cp_kind", "ep", "etp", "pp", "vpp", "schedule", "dp_replicate", "dp_shard", "zero", "micro_batch_size",
    "dispatcher", "allocator",
)  # fmt: skip
"""Fields of a layout that are options of the same name; what is not among them goes by --set."""


class Condition(NamedTuple):
    """What a field of a layout works under: another one with such a value, as it is said."""

    field: str
    holds: Callable[[Any], bool]
    words: str

    def works(self, layout: Layout | Space) -> bool:
        """Return whether it holds of a layout, or of any of a space; None is every value there is."""
        value = getattr(layout, self.field)
        if hasattr(layout, "base"):
            return value is None or any(map(self.holds, value))
        return self.holds(value)


def _several(ranks: int) -> bool:
    return ranks > 1


WORKS_UNDER: Mapping[str, Condition] = {
    "axis_order": Condition("placement", lambda placed: placed in (None, "orders"), "no placement"),
    "cp_balanced": Condition("cp", _several, "cp of 2 or more"),
    "cp_inner": Condition("cp_kind", lambda kind: CONTEXT_KINDS[kind].halves, "cp_kind hierarchical"),
    "cp_kind": Condition("cp", _several, "cp of 2 or more"),
    "microbatch_group": Condition("vpp", _several, "vpp of 2 or more"),
    "reshard": Condition("zero", lambda stage: stage >= 2, "zero 2 or 3"),
    "sequence_pieces": Condition(
        "schedule", cuts_sequences, "a schedule that cuts sequences, such as seq1f1b"
    ),
    "sp": Condition("tp", _several, "tp of 2 or more"),
    "summa_panels": Condition("tp_kind", lambda kind: kind == "summa", "tp_kind summa"),
}
"""By field of a layout; where what it works under is not so, the field is read by no formula."""


def told_words(question: Question) -> dict[str, Any]:
    """Return a question as the sections of a plan, without what its framework, or the usual, says anyway."""
    values = question_values(question)
    parts = {"model": question.model, "cluster": question.cluster, "framework": question.framework}
    sections = {name: values.pop(name) for name in ("strategy", "workload", "precision")}

    def same(values: Mapping[str, Any]) -> bool:
        try:
            result = build_question({"strategy": {}, **values, **parts}, where="the question")
        except SpecError:  # a word that others need
            return False
        return (_read(result.strategy), result.workload) == (_read(question.strategy), question.workload)

    derived = {name: value for name, value in sections["strategy"].items() if not name.startswith("dp_")}
    if same({**sections, "strategy": derived}):
        sections["strategy"] = derived
    for path, _ in list(_leaves(sections, ())):
        fewer = _without(sections, path)
        if path[-1] not in ("seq_len", "global_batch_size") and same(fewer):
            sections = fewer
    return {**values, "strategy": {}, **sections}


def _read(layout: Layout | None) -> Layout | None:
    """Return a layout with the fields as usual that no formula reads."""
    idle = {name for name, item in WORKS_UNDER.items() if layout is not None and not item.works(layout)}
    return layout if layout is None else replace(layout, **{name: getattr(Layout(), name) for name in idle})


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
    parts = [_named(values.pop("model"), model or question.model.name)]
    for option in ("cluster", "devices", "framework", "preset"):
        if (value := values.pop(option, None)) is not None:
            parts += [f"--{option}", _named(value, question.cluster.name)]
    for option in ("seq_len", "global_batch_size"):
        parts += [_flag(option), str(workload.pop(option))]
    if "tokens" in workload:
        parts += ["--tokens", f"{workload.pop('tokens'):.15g}"]
    for option in OPTIONS:
        if option in layout:
            parts += [_flag(option), str(layout.pop(option))]
    values |= {"strategy": layout, "workload": workload}
    values.pop("space", None)
    for path, value in _leaves(values, ()):
        parts += ["--set", f"{'.'.join(path)}={value if isinstance(value, str) else toml_value(value)}"]
    return shlex.join(parts)


def _named(value: object, name: str) -> str:
    """Return what stands for a model or a cluster; a table has no form on a command line but its name."""
    return name if isinstance(value, Mapping) else str(value)


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _leaves(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        elif value is not None:
            yield (*path, name), value


def _without(values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return nested tables without the value at `path`, and without tables that nothing is left in."""
    name, *rest = path
    changed = {**values, name: _without(values[name], tuple(rest)) if rest else {}}
    return {key: value for key, value in changed.items() if key != name or value}
