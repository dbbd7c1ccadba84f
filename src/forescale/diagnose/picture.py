"""A measured step above the expected one on one time axis, differences shaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forescale.atomic_write import write_text
from forescale.diagnose.diagnosis import Diagnosis
from forescale.view.page import write_chart


def write_steps(result: Diagnosis, path: Path) -> None:
    """Write both steps: `.json` for Perfetto, else a chart (`.svg`, `.png`, `.html`).

    Raises
    ------
    SpecError
        If the name ends otherwise, or a picture is wanted and nothing that draws it is installed.
    """
    if path.suffix == ".json":
        write_text(path, json.dumps(to_perfetto(result), indent=1) + "\n")
    else:
        write_chart(result.pictures()[0], path)


def to_perfetto(result: Diagnosis) -> dict[str, Any]:
    """Return both steps as a Chrome trace: one process each, with a slice for each group of work."""
    steps = ((bar.label, bar.values) for bar in result.pictures()[0].bars)
    events = [event for pid, (name, values) in enumerate(steps) for event in _events(pid, name, values)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(pid: int, name: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}]
    start = 0.0
    for part, seconds in values.items():
        if seconds:
            row = {"ph": "X", "cat": "step", "name": part, "pid": pid, "tid": 0}
            events.append({**row, "ts": start * 1e6, "dur": seconds * 1e6})
            start += seconds
    return events
