"""Check the budgets of the source: lines per file and per function; print the size of the core."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "forescale"
FILE_LINES, FUNCTION_LINES, FORMULA_LINES = 600, 40, 25


def main() -> int:
    """Return 1 if any budget is exceeded."""
    broken = [problem for path in sorted(SOURCE.rglob("*.py")) for problem in problems(path)]
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    sys.stdout.write(f"{len(sizes)} files, {sum(sizes.values()):,} lines\n")
    for problem in broken:
        sys.stdout.write(f"over budget: {problem}\n")
    return 1 if broken else 0


def problems(path: Path) -> list[str]:
    """Return what in one file is too long."""
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(SOURCE)
    result = []
    if len(text.splitlines()) > FILE_LINES:
        result.append(f"{where}: {len(text.splitlines())} lines (at most {FILE_LINES})")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            formula = any(
                isinstance(d, ast.Call) and getattr(d.func, "id", "") == "formula"
                for d in node.decorator_list
            )
            limit = FORMULA_LINES if formula else FUNCTION_LINES
            length = body_lines(node)
            if length > limit:
                result.append(f"{where}: {node.name} has {length} lines (at most {limit})")
    return result


def body_lines(node: ast.FunctionDef) -> int:
    """Return the lines of a function's body, its docstring not counted."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


if __name__ == "__main__":
    sys.exit(main())
