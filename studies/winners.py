"""The layouts that the searches of a study find.

A search takes seconds, a projection milliseconds. So a study keeps the layouts that its searches found, and a test
computes every figure of the study from them, without searching.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forescale.errors import InfeasibleError
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.search import search
from forescale.spec import Layout

Layouts = dict[str, list[dict[str, Any]]]
"""For each search, by its name: its best layouts, fastest first, as fields that differ from the default layout."""
FOLDER = Path(__file__).parent / "layouts"


class Winners:
    """The best layouts of the searches of one study.

    Without `known` layouts each question is searched. Known layouts are projected, except those of the names in
    `searched`. `layouts` has what was found.
    """

    def __init__(self, known: Layouts | None = None, *, searched: Collection[str] = ()) -> None:
        self._known = known
        self._searched = frozenset(searched)
        self._answers: dict[str, tuple[Question, tuple[Projection, ...]]] = {}

    def best(self, name: str, question: Question, top: int = 1) -> tuple[Projection, ...]:
        """Return the `top` best layouts of a question, fastest first; none if no layout fits.

        `name` identifies the question in the file of layouts.

        Raises
        ------
        ValueError
            If two questions have the same name, or the file has no layouts of this name.
        """
        if name not in self._answers:
            self._answers[name] = (question, self._projected(name, question, top))
        request, answer = self._answers[name]
        if request != question:
            raise ValueError(f"two different questions have the name {name!r}; give each its own name")
        return answer

    @property
    def layouts(self) -> Layouts:
        """The layouts of all searches so far, by name."""
        return {
            name: [_changed(msgspec.to_builtins(one.strategy), DEFAULT) for one in answer]
            for name, (_, answer) in sorted(self._answers.items())
        }

    def _projected(self, name: str, question: Question, top: int) -> tuple[Projection, ...]:
        if self._known is None or name in self._searched:
            try:
                return search(question, top=top).best
            except InfeasibleError:
                return ()
        if name not in self._known:
            raise ValueError(f"no layouts are known of {name!r}; run ./scripts/studies to search for them")
        layouts = (msgspec.convert(_merged(DEFAULT, one), Layout) for one in self._known[name])
        return tuple(project(question.with_layout(layout)) for layout in layouts)


DEFAULT: dict[str, Any] = msgspec.to_builtins(Layout())


def known_layouts(study: str) -> Layouts:
    """Return the layouts that a study keeps."""
    layouts: Layouts = json.loads((FOLDER / f"{study}.json").read_text(encoding="utf-8"))
    return layouts


def layouts_text(layouts: Layouts) -> str:
    """Return the text of a file of layouts: one line for each layout."""
    texts = []
    for name, layout in layouts.items():
        rows = ",".join("\n  " + json.dumps(one) for one in layout)
        texts.append(f"{json.dumps(name)}: [{rows}]")
    return "{\n" + ",\n".join(texts) + "\n}\n"


def _changed(layout: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a layout that differ from the default."""
    return {
        name: _changed(value, default[name])
        if isinstance(value, dict) and isinstance(default[name], dict)
        else value
        for name, value in layout.items()
        if value != default[name]
    }


def _merged(default: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default with changed fields, the inverse of `_changed`."""
    return {
        name: _merged(value, changed[name])
        if isinstance(value, dict) and isinstance(changed.get(name), dict)
        else changed.get(name, value)
        for name, value in default.items()
    }
