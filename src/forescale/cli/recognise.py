"""`forescale formats`: the formats that can be read, and which of them a file is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale.cli.console import show
from forescale.cli.declare import argument
from forescale.cli.formats import Answer
from forescale.cli.output import OutputOptions
from forescale.errors import ForescaleError, not_found
from forescale.files import is_file, read_text

if TYPE_CHECKING:
    from forescale.report.document import View

SCHEMA = "forescale.formats/1"
SAMPLE = 5_000
"""Lines in which a log is recognised."""


def formats_command(
    *,
    file: Path | None = argument(
        "A framework's file, a log or a profiler's trace; without it, all formats.", "FILE"
    ),
    output: OutputOptions,
) -> None:
    """List the formats that can be read, or explain which of them a file is in and what is read of it."""
    rows = _formats() if file is None else _explained(file)
    answer = Answer(
        view=lambda: _view(rows, file),
        document=lambda: {"schema": SCHEMA, "formats": rows},
        rows=lambda: rows,
    )
    show(answer, output)


def _formats() -> list[dict[str, Any]]:
    from forescale.frameworks.readers import READERS

    return [{"format": reader.name, "reads": reader.title} for reader in READERS]


def _explained(file: Path) -> list[dict[str, Any]]:
    from forescale.catalogue.models import load_model
    from forescale.frameworks.readers import read_file, recognised
    from forescale.frameworks.reading import Options

    if not is_file(file):
        raise not_found().at(file)
    if (kind := _measured(file)) is not None:
        return [{"fact": name, "value": value} for name, value in kind.items()]
    reader, detection = recognised(read_text(file), file)
    facts: dict[str, Any] = {
        "format": reader.name,
        "is": reader.title,
        "because of": detection.reason if detection else "",
        "rejected": ", ".join(detection.others) if detection else "",
    }
    try:
        parsed = read_file(file, Options(strict=False, model_of=load_model))
    except ForescaleError as error:
        facts["cannot be read"] = str(error)
    else:
        facts |= {
            "framework": parsed.framework or "",
            "read": ", ".join(parsed.used),
            "without effect": ", ".join(parsed.ignored),
            "unknown": ", ".join(parsed.unknown),
            "missing": ", ".join(fact.flag for fact in parsed.missing),
        }
    return [{"fact": name, "value": value} for name, value in facts.items() if value]


def _measured(file: Path) -> dict[str, str] | None:
    """Return what a file of a run that was measured is, and what reads it; None if it is none."""
    from itertools import islice

    from forescale.frameworks.detect import detect
    from forescale.logs import format_of, lines_of
    from forescale.profiles import is_trace, stream_events

    reads = f"forescale diagnose MODEL --measured {file}"
    if is_trace(file):
        next(stream_events(file), None)
        return {
            "format": "profile",
            "is": "profiler trace of PyTorch, JAX or Nsight Systems",
            "read by": reads,
        }
    lines = list(islice(lines_of(file), SAMPLE))
    log = format_of(lines)
    if log is None or detect("".join(lines)) is not None:
        return None
    return {
        "format": log.name,
        "is": f"log of a run: {log.title}",
        "read by": f"{reads}, or forescale watch {file}",
    }


def _view(rows: list[dict[str, Any]], file: Path | None) -> View:
    from forescale.report.document import Column, View, listed

    first, second = ("format", "reads") if file is None else ("fact", "value")
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column(f"|{first}", lambda row: str(row[first])),
        Column(f"<{second}", lambda row: str(row[second])),
    )
    return View(contents=(listed(columns, rows),))
