"""Write the studies anew: tables, pictures, pages and the layouts that their searches find.

`./scripts/studies` writes all studies, `./scripts/studies almodel million` some. `--check` writes nothing and
lists the files that would change. `--known-layouts` projects the layouts that are known instead of searching for
the best ones: seconds instead of minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import suppress
from pathlib import Path

import almodel
import deepseek_v3
import million
import playbook
import subramanian2024_page
from study import Output, Study
from winners import FOLDER, Winners, known_layouts, layouts_text

from forescale.errors import SpecError
from forescale.view.page import picture

STUDIES: dict[str, Study] = {
    item.name: item
    for item in (almodel.STUDY, deepseek_v3.STUDY, million.STUDY, playbook.STUDY, subramanian2024_page.STUDY)
}
DOCS = Path(__file__).parents[1] / "docs" / "studies"


def computed(study: Study, winners: Winners) -> tuple[Output, dict[Path, str]]:
    """Return what a study finds, and the text of each of its files."""
    output = study.output(winners)
    files = {DOCS / name: text for name, text in study.files(output).items()}
    return output, {**files, FOLDER / f"{study.name}.json": layouts_text(winners.layouts)}


def differing(files: dict[Path, str]) -> list[Path]:
    """Return the files that differ from what they should be; numbers in pictures may differ by rounding."""
    return [path for path, text in files.items() if not (path.exists() and _same(path, text))]


def _same(path: Path, text: str) -> bool:
    before = path.read_text(encoding="utf-8")
    if path.suffix != ".json" or before == text:
        return before == text
    return _close(json.loads(before), json.loads(text))


def _close(a: object, b: object) -> bool:
    """Whether two JSON documents are equal up to the rounding of another processor."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def write(output: Output, study: Study, paths: list[Path], files: dict[Path, str]) -> None:
    """Write files, and draw the pictures among them."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    for name, chart in output.charts.items():
        drawn = DOCS / study.name / f"{name}.svg"
        if drawn.with_suffix(".json") in paths or not drawn.exists():
            with suppress(SpecError):  # pictures need forescale[pictures]
                drawn.write_bytes(picture(chart, ".svg"))


def main() -> int:
    """Write or check studies; return 1 if a file would change, or a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "studies", nargs="*", choices=[*STUDIES, []], metavar="STUDY", help=", ".join(STUDIES)
    )
    parser.add_argument("--check", action="store_true", help="write nothing; list files that would change")
    parser.add_argument("--known-layouts", action="store_true", help="project known layouts, do not search")
    args = parser.parse_args()
    failed = False
    for name in args.studies or STUDIES:
        winners = Winners(known_layouts(name) if args.known_layouts else None)
        output, files = computed(STUDIES[name], winners)
        changed = differing(files)
        if not args.check:
            write(output, STUDIES[name], changed, files)
        explicit = "would change" if args.check else "written"
        lines = [f"{explicit}: {path.relative_to(DOCS.parents[1])}" for path in changed]
        false = [parts for parts, holds in output.claims.items() if not holds]
        lines += [f"studies/pages/{name}.md: not true any more, rewrite: {item}" for item in false]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        failed |= bool(false) or (args.check and bool(changed))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
