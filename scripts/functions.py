"""List functions of the engine: what each returns, in which unit, and who calls it: `python scripts/functions.py TEXT`.

TEXT is a part of a name, such as `memory.peak` or `gemm`. Callers are found by name; methods of one name share theirs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src" / "forescale"
ENGINE = ("graph", "memory", "time", "cost")
"""Packages whose functions are listed."""
SHOWN = 4
"""Callers of a function that are named."""


class Function(NamedTuple):
    """A public function or method."""

    module: str
    name: str
    returns: str
    summary: str
    unit: str
    callers: tuple[str, ...]


def functions(*packages: str) -> Iterator[Function]:
    """Yield the public functions and methods of the engine with their callers, or with those in some packages."""
    paths = sorted(path for name in packages or ("",) for path in (SOURCE / name).rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    callers = _callers(trees)
    for path, tree in trees.items():
        module = _module(path)
        if module.partition(".")[0] not in ENGINE:
            continue
        for owner, node in _defined(tree):
            text = ast.get_docstring(node) or ""
            names = dict.fromkeys(
                caller for caller in callers[node.name] if caller != f"{module}.{node.name}"
            )
            returns = "" if node.returns is None else ast.unparse(node.returns)
            yield Function(
                module, owner + node.name, returns, text.partition("\n")[0], _unit(node), tuple(names)
            )


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for item in inside:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                yield owner, item


def _callers(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Return the functions that use each name, as module.function."""
    callers: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                used = {
                    item.id if isinstance(item, ast.Name) else item.attr
                    for item in ast.walk(node)
                    if isinstance(item, ast.Name | ast.Attribute)
                }
                for name in used:
                    callers[name].append(f"{_module(path)}.{node.name}")
    return callers


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def _unit(node: ast.FunctionDef) -> str:
    """Return the unit of a formula, which its decorator states; that of other functions is in their summary."""
    units = [re.search(r"unit='([^']*)'", ast.unparse(item)) for item in node.decorator_list]
    return next((unit[1] for unit in units if unit), "")


def main(text: str) -> None:
    """Print the functions whose name contains `text`."""
    for one in functions():
        if text in f"{one.module}.{one.name}":
            unit = f" [{one.unit}]" if one.unit else ""
            more = f" and {len(one.callers) - SHOWN} more" if len(one.callers) > SHOWN else ""
            lines = (
                f"{one.module}.{one.name} -> {one.returns}{unit}\n    {one.summary}",
                f"    called by {', '.join(one.callers[:SHOWN]) or 'nothing in the package'}{more}",
            )
            sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
