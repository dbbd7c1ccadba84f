"""Options of how an answer is printed, and where else it is written."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from forescale.atomic_write import writable
from forescale.cli.formats import FORMATS, check_format
from forescale.cli.options import OUTPUT, output_option
from forescale.errors import conflicts, wrong_suffix
from forescale.files import is_folder
from forescale.struct import Struct


class PageFile(Struct, frozen=True):
    """Where a command writes a page of what it shows, and the command."""

    path: Path
    command: str = ""


def command_line(values: Iterable[object] | None) -> str:
    """Return the command of such arguments, as a shell takes it; nothing where there are none."""
    return shlex.join(["forescale", *map(str, values)]) if values else ""


def _page_file(context: typer.Context, file: PageFile | None) -> PageFile | None:
    """Return where a page goes, if it can be written there, with the command that writes none."""
    if file is None:
        return None
    if file.path.suffix != ".html" and not is_folder(file.path):
        raise wrong_suffix("--html", file.path.name, (".html",))
    writable(file.path)
    obj = list(context.obj or ())
    for place, word in enumerate(obj):
        if str(word) == "--html":
            obj = obj[:place] + obj[place + 2 :]
        elif str(word).startswith("--html="):
            obj = obj[:place] + obj[place + 1 :]
    return PageFile(file.path, command_line(obj))


HtmlFile: TypeAlias = Annotated[
    PageFile | None,
    typer.Option(
        "--html",
        metavar="FILE.html",
        help="Write a page with pictures and tables.",
        parser=lambda text: PageFile(Path(text)),
        callback=_page_file,
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How an answer is printed."""

    as_json: bool = output_option("Print JSON instead of tables.", flag="--json", default=False)
    written_as: str | None = output_option(
        "Print in this format, such as csv or markdown.",
        "FORMAT",
        flag="--as",
        complete=lambda incomplete: [name for name, _ in FORMATS if name.startswith(incomplete)],
    )
    verbose: bool = output_option("Show all notes, not only the most important.", default=False)

    def __post_init__(self) -> None:
        """Refuse an unknown format, and two formats, before anything is computed."""
        if self.written_as is not None:
            check_format(self.written_as)
        if self.as_json and self.written_as not in (None, "json"):
            raise conflicts(["--json", f"--as {self.written_as}"])

    @property
    def format(self) -> str:
        """Name of the requested format."""
        return "json" if self.as_json else self.written_as or "text"

    @property
    def is_text(self) -> bool:
        """Whether tables of the terminal are printed."""
        return self.format == "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions(OutputOptions):
    """How an answer is printed, and where else it is written."""

    html: HtmlFile = None
