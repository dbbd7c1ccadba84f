"""What studies, benchmarks, examples and scripts import from the package is there."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    path
    for folder in ("studies", "benchmarks", "examples", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)


def imported(path):
    """Return ``(module, name)`` of all that a file imports from forescale, in functions too."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [(node.module, alias.name) for node in nodes if _ours(node.module) for alias in node.names]


def _ours(module):
    return module is not None and module.split(".")[0] == "forescale"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_a_program_imports_is_there(path):
    for module, name in imported(path):
        if "runtime" in module:
            pytest.importorskip("torch")
        import_module = importlib.import_module(module)
        assert hasattr(import_module, name) or importlib.import_module(f"{module}.{name}"), f"{module}.{name}"
