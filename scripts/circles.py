"""Refuse circles of imports in the source: those for typing only and those within functions count too.

The face of the package (`forescale/__init__.py`) hands names on and is no part of a circle; nothing imports it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src"
FACE = "forescale"


def main() -> int:
    """Return 1 and name a circle if there is one."""
    files = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}
    graph = {name: set(imported(path, name, files)) for name, path in files.items() if name != FACE}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        sys.stdout.write(f"circle of imports: {' <- '.join(error.args[1])}\n")
        return 1
    return 0


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, name: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports anywhere in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        for target in targets:
            result = target
            while result and result not in files:
                result = result.rpartition(".")[0]
            if result and result not in (name, FACE):
                yield result


if __name__ == "__main__":
    sys.exit(main())
