"""`forescale mcp`: commands as tools of agents."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from forescale.cli.declare import option
from forescale.errors import ForescaleError, needing, not_found, unknown_name, wrong_type

if TYPE_CHECKING:
    from forescale.agents.server import Tool

TOOLS = ("project", "memory", "search", "fit", "check", "explain", "export", "diagnose")
WRITING = (
    "html",
    "csv",
    "junit",
    "checkpoint",
    "output",
    "force",
    "output_file",
    "patch",
    "emit",
    "save_benchmark",
)
FIXED = ("as_json", "written_as", "verbose", "help", "progress")
"""Options that a tool does not have: those that write files, and the format."""
FILES = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "Texts of files by name, such as a configuration or a log, which other arguments then name.",
}
SYSTEM = (sys.prefix, sys.base_prefix, "/proc/self", "/dev/null", "/usr/share/zoneinfo")
"""Folders that commands may read in addition to --root."""
TYPES: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean"}


def mcp_command(
    *,
    root: Path | None = option("Folder whose files may be read; none by default.", "DIR", panel="Server"),
) -> None:
    """Serve commands as tools of the Model Context Protocol, on standard input and output; nothing is written."""
    with needing("mcp", "mcp", only=("mcp", "mcp_types", "anyio")):
        from forescale.agents.server import serve
    from forescale.confinement import confine

    if root is not None and not root.is_dir():
        raise not_found("--root", "give a folder that exists").at(str(root))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tempfile.tempdir = folder  # what commands keep aside stays inside
        tools = [tool_of(name, Path(folder), root) for name in TOOLS]
        confine(Path(folder), (*SYSTEM, *([] if root is None else [root])))
        serve(tools)


def tool_of(name: str, folder: Path, root: Path | None) -> Tool:
    """Return a command as a tool; its arguments are those of the command line."""
    from forescale.agents.server import Tool

    command = _command(name)
    parameters = {item.name: item for item in command.params if item.name not in (*WRITING, *FIXED)}
    properties = {key: _property(item) for key, item in parameters.items()}
    schema = {
        "type": "object",
        "properties": {**properties, "files": FILES},
        "required": [key for key, item in parameters.items() if item.required],
        "additionalProperties": False,
    }
    call = partial(called, name, parameters, folder, root)
    return Tool(name=name, text=command.help.partition("\n")[0], schema=schema, call=call)


def _command(name: str) -> Any:  # noqa: ANN401  (whichever click typer has)
    from forescale.cli.typed import entry_point

    command = entry_point((name,)).commands[name]
    return command.commands["layout"] if hasattr(command, "commands") else command


def _property(parameter: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the JSON schema of one option."""
    kind = parameter.type_descriptor.annotation
    one: dict[str, Any] = {"type": TYPES.get(kind, "string")}
    if get_origin(kind) is Literal:
        one = {"enum": list(get_args(kind))}
    if parameter.multiple or parameter.nargs == -1:
        one = {"type": "array", "items": {"type": "string"}}
    return {**one, "description": (getattr(parameter, "help", None) or "").strip()}


def called(
    name: str, parameters: Mapping[str, Any], folder: Path, root: Path | None, arguments: Mapping[str, Any]
) -> tuple[str, bool]:
    """Return what a command prints as JSON, and whether it failed; texts of files exist for this call alone."""
    from forescale.cli.app import run

    out, err = io.StringIO(), io.StringIO()
    written: list[Path] = []
    try:
        written = _write(arguments.get("files") or {}, folder)
        words = list(
            _words(parameters, {key: item for key, item in arguments.items() if key != "files"}, root)
        )
        with redirect_stdout(out), redirect_stderr(err):
            code = run([name, *(("layout",) if name == "memory" else ()), "--json", *words])
    except ForescaleError as error:
        return f"error: {error}", True
    finally:
        for path in written:
            path.unlink(missing_ok=True)
    return (out.getvalue(), False) if out.getvalue() else (err.getvalue().strip(), code != 0)


def _write(files: Any, folder: Path) -> list[Path]:  # noqa: ANN401  (JSON)
    if not isinstance(files, Mapping):
        raise wrong_type("files", files, "a table of texts by name")
    paths = []
    for name, text in files.items():
        if not isinstance(text, str) or PurePath(name).name != name or name.startswith("."):
            raise wrong_type("files", name, "texts by plain names, without folders")
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def _words(parameters: Mapping[str, Any], arguments: Mapping[str, Any], root: Path | None) -> Iterator[str]:
    """Yield the arguments as words of a command line; options that do not exist are refused."""
    positional: list[str] = []
    for key, value in arguments.items():
        if (parameter := parameters.get(key)) is None:
            raise unknown_name("argument", key, tuple(parameters), "")
        if value is None:
            continue
        values = value if isinstance(value, list) else [value]
        if parameter.param_type_name == "argument":
            positional += [_place(str(item), root) for item in values]
        elif isinstance(value, bool):
            flags = parameter.opts if value else parameter.secondary_opts
            yield from flags[:1]
        else:
            for item in values:
                yield f"{parameter.opts[0]}={_place(str(item), root)}"
    yield from ("--", *positional)


def _place(text: str, root: Path | None) -> str:
    """Return the path of a file below the root folder; other texts as they are."""
    if root is not None and not PurePath(text).is_absolute() and (root / text).exists():
        return str((root / text).resolve())
    return text
