"""Run the notebooks of examples/ and store what their cells show: `python -m scripts.notebooks`."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
KINDS = ("text/html", "text/plain")
"""What is stored of a value; the charts of Vega-Lite are left out, which not every viewer draws."""


def read(path: Path) -> dict[str, Any]:
    """Return a notebook as it is stored."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def executed(notebook: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a notebook with the outputs of its code cells, run from the top."""
    names: dict[str, Any] = {}
    count = 0
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            value = _value("".join(cell["source"]), name, names)
            cells.append({**cell, "execution_count": count, "outputs": list(_outputs(value, count))})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _value(source: str, name: str, names: dict[str, Any]) -> object:
    """Run a cell; return the value of its last expression, None if it ends otherwise."""
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.Module(body, []), name, "exec"), names)  # noqa: S102
    return eval(compile(ast.fix_missing_locations(ast.Expression(last.value)), name, "eval"), names)  # noqa: S307


def _outputs(value: object, count: int) -> Iterator[dict[str, Any]]:
    if value is None:
        return
    shown = {"text/plain": repr(value)}
    if hasattr(value, "_repr_mimebundle_"):
        shown = value._repr_mimebundle_()
    elif hasattr(value, "_repr_html_"):
        shown["text/html"] = value._repr_html_()
    data = {kind: shown[kind].splitlines(keepends=True) for kind in KINDS if kind in shown}
    yield {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}


def main() -> None:
    """Run all notebooks and store their outputs."""
    for path in NOTEBOOKS:
        notebook = executed(read(path), path.name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
