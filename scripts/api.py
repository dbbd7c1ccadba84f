"""Write docs/api.md from the docstrings of what `import forescale` offers: `python scripts/api.py`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from pathlib import Path

import forescale

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
INTRODUCTION = """# Python

`import forescale as fs` loads nothing until a name is used. Every function takes a `Question`, or what makes one: names
of the catalogue, files, specifications, keywords. Every result has a short `repr`, a table with its picture in a
notebook, `to_frame()` (pandas or polars) and `to_dict()`, the document that the command prints with `--json`
([json.md](json.md)). Importing a package such as `forescale.search` first leaves `fs.search` the function; its contents
come with `from forescale.search import …`.

This page is generated from the docstrings by `python scripts/api.py`.
"""
FUNCTIONS = (
    "search",
    "project",
    "memory",
    "explain",
    "compare",
    "export",
    "advise",
    "fit",
    "ask",
    "ask_search",
    "read_question",
    "write_question",
    "load_model",
    "load_cluster",
    "load_framework",
    "model_names",
    "cluster_names",
    "framework_names",
    "preset_names",
)
"""In the order in which they are wanted."""


def page() -> str:
    """Return the page."""
    classes = [name for name in forescale.__all__ if inspect.isclass(getattr(forescale, name))]
    parts = [INTRODUCTION, "## Functions\n", *map(_function, FUNCTIONS), "## Values\n", *map(_value, classes)]
    return "\n".join(parts)


def _function(name: str) -> str:
    function = getattr(forescale, name)
    shown = inspect.signature(inspect.unwrap(function))
    plain = ", ".join(_parameter(each) for each in shown.parameters.values())
    if any(each.kind is each.KEYWORD_ONLY for each in shown.parameters.values()):
        first = next(each for each in shown.parameters.values() if each.kind is each.KEYWORD_ONLY)
        plain = plain.replace(_parameter(first), f"*, {_parameter(first)}", 1)
    return f"### `{name}({plain})`\n\n{_text(function)}\n"


def _parameter(each: inspect.Parameter) -> str:
    if each.kind is each.VAR_KEYWORD:
        return f"**{each.name}"
    return each.name if each.default is each.empty else f"{each.name}={each.default!r}"


def _field_docs(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass that has one."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


def _value(name: str) -> str:
    kind = getattr(forescale, name)
    lines = [f"### `{name}`\n", _text(kind), ""]
    if isinstance(kind, type) and is_dataclass(kind):
        described = _field_docs(kind)
        for item in fields(kind):
            told = " ".join(described.get(item.name, "").split())
            lines.append(f"- `{item.name}: {item.type}`{f' – {told}' if told else ''}")
        lines.append("")
    for method, function in vars(kind).items():
        if not method.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            text = (function.__doc__ or "").strip().splitlines()[0]
            lines.append(f"- `.{method}{'' if isinstance(function, property) else '()'}` – {text}")
    return "\n".join(lines).rstrip() + "\n"


def _text(documented: object) -> str:
    """Return a docstring with its sections as headings of lists."""
    text = inspect.getdoc(documented) or ""
    lines: list[str] = []
    given = text.splitlines()
    for place, line in enumerate(given):
        below = given[place + 1] if place + 1 < len(given) else ""
        if set(line) == {"-"}:
            continue
        lines.append(f"**{line}**\n" if below and set(below) == {"-"} else line)
    return "\n".join(_listed(lines))


def _listed(lines: list[str]) -> list[str]:
    """Return entries of sections, which are followed by indented lines, as items of a list."""
    found: list[str] = []
    for place, line in enumerate(lines):
        below = lines[place + 1] if place + 1 < len(lines) else ""
        if line and not line.startswith((" ", "*")) and below.startswith("    "):
            found.append(f"- `{line}`:")
        else:
            found.append(line.replace("    ", "  ", 1) if line.startswith("    ") else line)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
