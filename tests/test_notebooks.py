"""The notebooks in examples/ run from the top to the end, and show something."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def cells(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    names = {}
    shown = []
    for source in cells(path):
        *body, last = ast.parse(source).body
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), path.name, "exec"), names)
            shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
        else:
            exec(compile(ast.Module([*body, last], []), path.name, "exec"), names)
    assert all(value is not None for value in shown)
    assert any(
        "text/html" in value._repr_mimebundle_() for value in shown if hasattr(value, "_repr_mimebundle_")
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_printed(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
