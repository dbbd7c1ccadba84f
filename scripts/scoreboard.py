"""Project newly published runs before any refit, and keep the errors in a log that is never rewritten.

    scripts/scoreboard FILE.csv

FILE.csv is a table of runs (docs/runs.md). Every row is projected with the calibration of this version and appended to
docs/scoreboard/log.csv with the date and the version. The interval is the one that `forescale project` states where as
many settings are left open. A row that cannot be projected has no projection in the log. A row that the log already has
for this version is left out. The picture docs/scoreboard/step-time.svg shows all projections of the log.
"""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from forescale import __version__
from forescale.errors import ForescaleError
from forescale.files import read_table
from forescale.io.question import build_question
from forescale.project import project
from forescale.validation.case import Case
from forescale.validation.cases import load_cases, plan_keys, plan_of
from forescale.validation.chart import ErrorPoint, scatter
from forescale.view.page import write_chart

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "docs" / "scoreboard" / "log.csv"
PICTURE = "step-time.svg"
COLUMNS = (
    "date", "version", "id", "source", "framework", "model", "hardware", "measured_step_time_s",
    "projected_step_time_s", "low_s", "high_s",
)  # fmt: skip


def main(table: str, log: str = str(LOG)) -> None:
    """Append the rows of a table to a log, and draw the log."""
    target = Path(log)
    known = {(row["version"], row["id"]) for row in rows_of(target)}
    today = datetime.now(UTC).date().isoformat()
    cases = [case for case in load_cases(Path(table)) if (__version__, case.id) not in known]
    content = read_table(Path(table))
    plans = {row.id: plan_of(row, plan_keys(content)) for row in content.rows}
    fresh = [_row(case, plans[case.id], today) for case in cases]
    _append(target, fresh)
    draw(target)
    inside = sum(
        float(row["low_s"]) <= float(row["measured_step_time_s"]) <= float(row["high_s"])
        for row in fresh
        if row["low_s"]
    )
    for case, row in zip(cases, fresh, strict=True):
        if not row["low_s"]:
            sys.stderr.write(f"{case.id} is not projected: {case.skipped_reason or 'no step time'}\n")
    sys.stdout.write(f"{len(fresh)} rows added to {target}, {inside} of them inside their interval\n")


def rows_of(log: Path) -> list[dict[str, str]]:
    """Return the rows of a log, oldest first; none where there is no log."""
    if not log.exists():
        return []
    with log.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw(log: Path) -> None:
    """Write the picture of a log next to it."""
    points = [
        ErrorPoint(
            group=row["framework"] or "no framework",
            measured=float(row["measured_step_time_s"]),
            ratio=float(row["projected_step_time_s"]) / float(row["measured_step_time_s"]),
            remark=f"{row['id']}, version {row['version']}",
        )
        for row in rows_of(log)
        if row["low_s"]
    ]
    if chart := scatter("Step time", "runs that no fit had seen", "measured step (s)", points):
        write_chart(chart, log.parent / PICTURE)


def _row(case: Case, plan: dict[str, Any], date: str) -> dict[str, str]:
    """Return the row of a run; without projected figures where it has no step time or cannot be projected."""
    measured, figures = case.measured.step_time_s, ("", "", "")
    if not case.skipped_reason and measured is not None:
        plan.pop("dp", None)
        assumed = () if case.core else build_question(plan, where=case.id).assumed
        result = project(replace(case.question, assumed=assumed))
        time = result.step_time
        figures = (f"{time.expected:.6g}", f"{time.low:.6g}", f"{time.high:.6g}")
    framework = case.stated.framework if case.stated else ""
    printed = "" if measured is None else f"{measured:.6g}"
    cells = (
        date, __version__, case.id, case.reference, framework, case.model_name, case.hardware, printed, *figures,
    )  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


def _append(log: Path, rows: list[dict[str, str]]) -> None:
    """Append rows to a log, which gets its header with the first ones."""
    log.parent.mkdir(parents=True, exist_ok=True)
    is_new = not log.exists()
    with log.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/scoreboard FILE.csv")
    try:
        main(sys.argv[1])
    except ForescaleError as error:
        sys.exit(f"error: {error}")
