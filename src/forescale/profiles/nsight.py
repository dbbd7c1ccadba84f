"""Events of Nsight Systems' SQLite exports (`nsys export --type sqlite`), by the tables that its manual documents."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from forescale.errors import ReaderError, cannot_read, wrong_format
from forescale.profiles.events import Header, TraceEvent

MAGIC = b"SQLite format 3\0"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
QUERIES = {
    KERNELS: (
        "SELECT value, 'kernel', start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
        "WHERE deviceId = (SELECT MIN(deviceId) FROM CUPTI_ACTIVITY_KIND_KERNEL) AND end >= start"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "SELECT 'memcpy', 'gpu_memcpy', start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "WHERE deviceId = (SELECT MIN(deviceId) FROM CUPTI_ACTIVITY_KIND_KERNEL) AND end >= start"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "SELECT 'memset', 'gpu_memset', start, end FROM CUPTI_ACTIVITY_KIND_MEMSET "
        "WHERE deviceId = (SELECT MIN(deviceId) FROM CUPTI_ACTIVITY_KIND_KERNEL) AND end >= start"
    ),
    "NVTX_EVENTS": (
        "SELECT COALESCE(text, value, ''), 'user_annotation', start, end FROM NVTX_EVENTS "
        "LEFT JOIN StringIds ON id = textId WHERE end >= start"
    ),
}
"""Name, category, start and end [ns] of the rows of each table."""
STEP = re.compile(r"(^|[^a-z])(step|iter|iteration)[\s_#:=-]*\d+$", re.IGNORECASE)
"""Names of NVTX ranges that are steps."""
BATCH = 10_000
"""Rows from one report of progress to the next."""


def nsight_events(
    path: Path, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Header | TraceEvent]:
    """Yield kernels, copies and NVTX ranges; of several devices in one file those of the first.

    Raises
    ------
    ReaderError
        If the tables are not those of an export, or the file is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
            tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
            if missing := {KERNELS, "StringIds"} - tables:
                fix = "record with nsys profile --trace=cuda,nvtx, then nsys export --type sqlite"
                violation = f"it has no table {' or '.join(sorted(missing))}"
                raise ReaderError(path, wrong_format("an export of Nsight Systems", violation, fix))
            gpus = base.execute("SELECT name FROM TARGET_INFO_GPU") if "TARGET_INFO_GPU" in tables else ()
            yield Header([{"name": name} for (name,) in gpus])
            rows = (row for table, query in QUERIES.items() if table in tables for row in base.execute(query))
            for number, (name, category, start, end) in enumerate(rows):
                if number % BATCH == 0:
                    progress(number)
                if category == "user_annotation" and STEP.search(name):
                    name = f"ProfilerStep#{name}"  # noqa: PLW2901
                yield TraceEvent(name=name, ph="X", cat=category, ts=start / 1e3, dur=(end - start) / 1e3)
    except sqlite3.Error as error:
        raise ReaderError(path, cannot_read(str(error))) from error
