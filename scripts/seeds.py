"""Write docs/seeds.md from the tables in studies/seeds, and compare their rows with what the commands print.

`python scripts/seeds.py` writes the page. `--check [TABLE …]` runs the commands as well, `--refresh [TABLE …]`
writes the present values of expressions into the tables. The columns of studies/seeds/*.csv are

- seed, section, what: the source, its section, and the quantity that is compared;
- command: a command line that starts with `forescale` and runs in a folder that only has the examples. If it ends in
  ` | jq EXPRESSION`, `ours` is the value of the expression in the JSON document that it prints, otherwise a text that
  it prints. The expression is a path such as `.memory.peak_bytes` or `.rows[0].seconds`, or the difference of two in
  parentheses, optionally times or divided by a number (`(.peak_bytes - .overhead_bytes) / 1e9`); it must agree in the
  digits of `ours`. A row without a command states why there is none in `remark`;
- seed_value, ours, unit: the figure of the seed, that of Forescale, and their unit;
- tolerance: `exact`, a relative difference such as `0.5%`, or empty where the figures are not expected to agree, which
  `remark` then explains;
- remark: what explains the difference.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "studies" / "seeds"
PAGE = ROOT / "docs" / "seeds.md"
HEAD = """# Published accounts

<!-- written by `python scripts/seeds.py` from the tables in studies/seeds -->

Forescale implements the methods of published accounts of training runs. This page lists the sections, tables and
figures of each account with the command that reproduces them, the published figure and Forescale's. A test runs all of
these commands. A row without a tolerance is not expected to agree; its remark states why. Commands that end in `| jq …`
take the figure from the JSON document that the command prints.
"""
LEAST_DIGITS = 4
"""Significant digits of a refreshed value, at least."""
_PATH = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\.?\[?\"([^\"]+)\"\]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table of studies/seeds."""

    seed: str
    section: str
    what: str
    command: str
    seed_value: str
    ours: str
    unit: str
    tolerance: str
    remark: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the command, without the program and without the part behind `|`."""
        return tuple(shlex.split(self.command.partition(" | jq ")[0])[1:])

    @property
    def expression(self) -> str:
        """Return the expression of jq; empty where the command has none."""
        return self.command.partition(" | jq ")[2].strip().strip("'")


def rows(path: Path) -> list[Row]:
    """Return the rows of one table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**values) for values in csv.DictReader(file, strict=True)]


def tables() -> list[Path]:
    """Return the tables of all seeds, in the order of the page."""
    return sorted(TABLES.glob("*.csv"))


def page(tabled: Iterable[Row]) -> str:
    """Return docs/seeds.md."""
    text = HEAD
    for seed, part in groupby(tabled, lambda row: row.seed):
        text += (
            f"\n## {seed}\n\n| section | quantity | command | published | Forescale | tolerance | remark |\n"
        )
        text += "|---|---|---|---:|---:|---|---|\n"
        for row in part:
            command = f"`{row.command}`" if row.command else ""
            values = [f"{value} {row.unit}".strip() if value else "" for value in (row.seed_value, row.ours)]
            cells = (row.section, row.what, command, *values, row.tolerance, row.remark)
            text += f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
    return text


@cache
def printed(arguments: tuple[str, ...]) -> str:
    """Return what a command prints.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    from forescale.cli.app import run

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = run([*arguments])
    if code:
        raise RuntimeError(f"forescale {shlex.join(arguments)}: exit code {code}: {errors.getvalue()}")
    return output.getvalue()


def value_at(document: Any, expression: str) -> Any:  # noqa: ANN401  (JSON)
    """Return the value of an expression of jq in a document, of the kind that this module's docstring describes."""
    paths, operator, number = next(
        (parts for sign in (" / ", " * ") if (parts := expression.partition(sign))[1]), (expression, "", "1")
    )
    first, minus, second = paths.strip("() ").partition(" - ")
    value = _at(document, first) - _at(document, second) if minus else _at(document, first)
    factor = float(number)
    return value if not operator else value / factor if "/" in operator else value * factor


def _at(document: Any, path: str) -> Any:  # noqa: ANN401  (JSON)
    value = document
    for key, index, quoted in _PATH.findall(path):
        value = value[int(index)] if index else value[key or quoted]
    return value


def violations(row: Row) -> list[str]:
    """Return how a row disagrees with what its command prints, and with its tolerance."""
    problems = []
    if row.command:
        text = printed(row.arguments)
        if row.expression:
            value = value_at(json.loads(text), row.expression)
            if not _agrees(value, row.ours):
                problems.append(f"it prints {value}, the table has {row.ours}")
        elif " ".join(row.ours.split()) not in " ".join(text.split()):
            problems.append(f"it does not print {row.ours!r}")
    elif not row.remark:
        problems.append("it has neither a command nor a remark")
    if row.tolerance == "exact" and row.ours != row.seed_value:
        problems.append(f"{row.ours} differs from {row.seed_value}")
    elif row.tolerance.endswith("%"):
        limit = float(row.tolerance.rstrip(" %")) / 100
        if not _close(_number(row.ours), _number(row.seed_value), limit):
            problems.append(f"{row.ours} differs from {row.seed_value} by more than {row.tolerance}")
    elif not row.tolerance and row.seed_value != row.ours and not row.remark:
        problems.append("it has neither a tolerance nor a remark")
    return problems


def refreshed(row: Row) -> Row:
    """Return a row with the present value of its expression, in as many digits as the published one."""
    if not row.expression:
        return row
    value = value_at(json.loads(printed(row.arguments)), row.expression)
    return replace(row, ours=_written(value, row.seed_value))


def _agrees(value: object, text: str) -> bool:
    """Return whether a value, in as many significant digits as a text has, is what the text says."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_number(text):
        return str(value) == text
    return float(f"{value:.{max(_digits(text), 1)}g}") == _number(text)


def _digits(text: str) -> int:
    return len(re.sub(r"\D", "", text.lower().partition("e")[0]).lstrip("0"))


def _written(value: object, like: str) -> str:
    """Return a value in as many significant digits as a text has; text and whole numbers as they are."""
    if isinstance(value, int) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and "," in like else str(value)
    digits = _digits(like) if _is_number(like) else 0
    text = f"{value:.{max(digits, LEAST_DIGITS)}g}"
    return f"{float(text):.0f}" if "e" in text and abs(value) >= 1.0 else text


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _close(value: float, other: float, limit: float) -> bool:
    return abs(value - other) <= limit * abs(other) * (1 + 1e-9)


def _refresh(paths: Iterable[Path]) -> None:
    """Write the tables with the present values of their expressions."""
    from scripts.pages import workplace

    for path in paths:
        with workplace():
            present = [asdict(refreshed(row)) for row in rows(path)]
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*Row.__slots__], lineterminator="\n")
            writer.writeheader()
            writer.writerows(present)


def main(arguments: Sequence[str] = ()) -> int:
    """Write the page; with --check, return 1 if a row disagrees with its command."""
    wanted = [name for name in arguments if not name.startswith("--")]
    paths = tables()
    if "--refresh" in arguments:
        _refresh([path for path in paths if not wanted or path.stem in wanted])
    PAGE.write_text(page(row for path in paths for row in rows(path)), encoding="utf-8")
    if "--check" not in arguments:
        return 0
    from scripts.pages import workplace

    broken = 0
    with workplace():
        for path in [path for path in paths if not wanted or path.stem in wanted]:
            for row in rows(path):
                for problem in violations(row):
                    broken += 1
                    sys.stdout.write(f"{path.name}: {row.section}, {row.what}: {problem}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
