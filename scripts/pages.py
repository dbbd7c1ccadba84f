"""Run what the pages show, and write what it prints into them: `python scripts/pages.py`.

README.md and all pages of docs/ are run from the top in one process, in a folder that only has the
examples. Run are

- commands: lines that are indented or begin with `$`, and call forescale. What they print is compared where a page
  shows it: below a `$` line, or in the block that follows at once;
- Python blocks, one after the other with the same names. `# > text` behind an expression is its value, a block
  that follows at once what was printed;
- TOML blocks are read, and written to the file that their first line names: `# sweep.toml`.

A comment `<!-- not run: REASON -->` before a block leaves it out; `<!-- dry run: REASON -->` asks a sweep what it would
ask.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"<!-- (not run|dry run): (.+) -->")
COMMAND = re.compile(r"(\./scripts/)?forescale ")
VALUE = "# > "
"""What stands before the value of an expression."""
CLOCK = re.compile(r"\bin \d+\.\d\d s\b")
"""How long it took."""


def pages() -> list[Path]:
    """Return every page whose blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(slots=True)
class Block:
    """Lines of a page that are run, and those that show what they print."""

    kind: str
    """command, python or toml."""
    first: int
    """Lines of the source, from 0, the last excluded."""
    last: int
    source: str
    mark: str = ""
    reason: str = ""
    shown: tuple[int, int] | None = None


def blocks(lines: list[str]) -> Iterator[Block]:
    """Yield what a page would have run."""
    at, mark, reason, before = 0, "", "", None
    while at < len(lines):
        line, end, fenced = lines[at], at + 1, None
        if marked := MARK.fullmatch(line.strip()):
            mark, reason = marked.groups()
        elif line.startswith("```"):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```")) + 1
            fenced = _fenced(lines, at, end, before)
        elif line.startswith("    ") and not (at and lines[at - 1].strip()):
            end = next(
                i for i in range(at, len(lines) + 1) if i == len(lines) or not lines[i].startswith("    ")
            )
            source = "\n".join(text[4:] for text in lines[at:end])
            fenced = (
                Block("command", at, end, source) if re.search(rf"^{COMMAND.pattern}", source, re.M) else None
            )
        if line.strip() and not marked:
            if fenced is not None:
                fenced.mark, fenced.reason = mark, reason
                yield fenced
            mark, reason, before = "", "", fenced
        at = end


def _fenced(lines: list[str], at: int, end: int, before: Block | None) -> Block | None:
    """Return the block between two fences; one without a language shows what the one before prints."""
    kind, inner = lines[at][3:], lines[at + 1 : end - 1]
    if kind in ("python", "toml"):
        return Block(kind, at + 1, end - 1, "\n".join(inner))
    if not kind and inner and inner[0].startswith("$ forescale"):
        explicit = next(i for i, line in enumerate(inner) if not line.endswith("\\")) + 1
        source = "\n".join([inner[0][2:], *inner[1:explicit]])
        return Block("command", at + 1, at + 1 + explicit, source, shown=(at + 1 + explicit, end - 1))
    if not kind and before is not None:
        before.shown = (at + 1, end - 1)
    return None


@dataclass(slots=True)
class Runner:
    """Runs blocks in a folder, one after the other."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, block: Block) -> tuple[str, str]:
        """Return the source with present values, and what it prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            source = getattr(self, f"_{block.kind}")(block)
        return source, "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())

    def _command(self, block: Block) -> str:
        from forescale.cli.app import run

        for line in block.source.replace("\\\n", "").splitlines():
            parts = shlex.split(line, comments=True)
            if parts and COMMAND.match(line):
                dry = ["--dry-run"] if block.mark == "dry run" else []
                errors = io.StringIO()
                with contextlib.redirect_stderr(errors):
                    code = run([*parts[1:], *dry])
                if code:
                    msg = f"{line}: exit code {code}: {errors.getvalue()}"
                    raise RuntimeError(msg)
        return block.source

    def _python(self, block: Block) -> str:
        lines = block.source.splitlines()
        for node in ast.parse(block.source).body:
            if not isinstance(node, ast.Expr):
                exec(compile(ast.Module([node], []), "page", "exec"), self.names)  # noqa: S102
                continue
            value = eval(compile(ast.Expression(node.value), "page", "eval"), self.names)  # noqa: S307
            last = (node.end_lineno or 0) - 1
            head, explicit, _ = lines[last].replace("#> ", VALUE).partition(VALUE)
            lines[last] = f"{head}{VALUE}{value!r}" if explicit else head
        return "\n".join(lines)

    def _toml(self, block: Block) -> str:
        tomllib.loads(block.source)
        first = block.source.splitlines()[0]
        if first.endswith(".toml"):
            Path(first.removeprefix("# ")).write_text(block.source, encoding="utf-8")
        return block.source


def refreshed(text: str) -> str:
    """Return a page with what its blocks print and give at present."""
    lines, runner = text.splitlines(), Runner()
    result = [(block, *runner.run(block)) for block in [*blocks(lines)] if block.mark != "not run"]
    for block, source, printed in reversed(result):  # from the last, so that lines keep their numbers
        if block.shown is not None:
            place = slice(*block.shown)
            lines[place] = _as_quick(printed, "\n".join(lines[place])).splitlines()
        if block.kind == "python":
            lines[block.first : block.last] = source.splitlines()
    return "\n".join([*lines, ""])


def _as_quick(printed: str, shown: str) -> str:
    """Return what was printed with the durations that the page shows: they are never the same."""
    result = iter([*CLOCK.findall(shown), *CLOCK.findall(printed)])
    return CLOCK.sub(lambda _: next(result), printed)


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """Stay in an empty folder that has the examples."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main() -> None:
    """Write every page anew, and with them the tables of docs/seeds.md and the summary of docs/learn."""
    from scripts import learn, seeds

    seeds.main()
    learn.main()
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        text = page.read_text(encoding="utf-8")
        with workplace():
            new = refreshed(text)
        page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
