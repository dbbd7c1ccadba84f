"""How often the cause of a difference between two profiles is named first: measured traces, transformed.

    .venv/bin/python benchmarks/transformed.py TRACE...

Each trace of torch.profiler is changed as a fault would change it, at three sizes: kernels stretched, bandwidth of
messages lowered, gaps inserted, kernels repeated. The trace itself is what is expected. A change that makes the step
less than 5 % longer is not counted.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forescale.diagnose.signs import MEMORY_BOUND, Comparison, signs_of
from forescale.diagnose.work import measured_work, work_of_rows
from forescale.profiles import TraceSummary, part_of, profile_rows, summarise
from forescale.profiles.summary import DEVICE

Event = dict[str, Any]
Change = Callable[[Event], float]
"""Returns the microseconds by which a kernel, and all that comes after it, ends later."""
SIZES = (0.15, 0.4, 1.5)
LEAST = 0.05
BEFORE_1_12 = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Operator": "cpu_op"}
"""Categories in traces of torch before 1.12."""


def kernels_of(events: Sequence[Event]) -> list[Event]:
    """Return the kernels of a trace, or operators without others inside them where no device was recorded."""
    spans = [item for item in events if item.get("ph") == "X" and isinstance(item.get("dur"), int | float)]
    kernels = sorted((item for item in spans if item.get("cat") in DEVICE), key=lambda item: item["ts"])
    if kernels:
        return kernels
    spans = [item for item in spans if item.get("cat") == "cpu_op" or item["name"].startswith("gloo:")]
    ordered = sorted(spans, key=lambda item: (item["ts"], -item["dur"]))
    return [
        item
        for item, after in zip(ordered, [*ordered[1:], {"ts": float("inf")}], strict=True)
        if item["ts"] + item["dur"] <= after["ts"]
    ]


def transformed(events: Sequence[Event], later: Change, *, longer: bool = True) -> list[Event]:
    """Return a trace in which kernels end later; they run longer, or a gap follows them."""
    chosen = kernels_of(events)
    extra = np.array([later(item) for item in chosen])
    ends = np.array([item["ts"] + item["dur"] for item in chosen])
    order = np.argsort(ends, kind="stable")
    ends, sums = ends[order], np.r_[0.0, np.cumsum(extra[order])]

    def moved(moment: float, side: str) -> float:
        return moment + float(sums[np.searchsorted(ends, moment, side=side)])  # type: ignore[call-overload]

    result = []
    for item in events:
        if item.get("ph") == "X" and isinstance(item.get("dur"), int | float):
            begin = moved(item["ts"], "right")
            end = moved(item["ts"] + item["dur"], "right" if longer else "left")
            result.append({**item, "ts": begin, "dur": max(end - begin, 0.0)})
        else:
            result.append(item)
    return result


def repeated(events: Sequence[Event], share: float) -> list[Event]:
    """Return a trace in which the kernels and operators run once more, a share of them."""
    spans = [item for item in events if item.get("ph") == "X" and item.get("cat") in (*DEVICE, "cpu_op")]
    begin, end = min(item["ts"] for item in spans), max(item["ts"] + item["dur"] for item in spans)
    times = max(1, round(share))
    more = [
        {**item, "ts": item["ts"] + number * (end - begin)}
        for number in range(1, times + 1)
        for item in spans
    ]
    steps = [
        {**item, "dur": item["dur"] + times * (end - begin)}
        if item.get("name", "").startswith("ProfilerStep")
        else item
        for item in events
    ]
    return [*steps, *more]


def cases(events: Sequence[Event], step_us: float) -> list[tuple[str, float, list[Event]]]:
    """Return the changed traces with their causes."""
    kernels = kernels_of(events)
    result = []

    def kind(item: Event) -> tuple[str, bool]:
        return part_of(item["name"])

    def total(condition: Callable[[Event], bool]) -> float:
        return sum(item["dur"] for item in kernels if condition(item)) or 1.0

    for size in SIZES:
        conditions: dict[str, Callable[[Event], bool]] = {
            "slow_clock": lambda item: not kind(item)[1],
            "slow_memory": lambda item: kind(item)[0] in MEMORY_BOUND,
            "slow_links": lambda item: kind(item)[1],
        }
        for name, condition in conditions.items():
            if total(condition) > 0.02 * step_us:
                factor = size * step_us / total(condition)
                later = [condition, factor]
                result.append(
                    (
                        name,
                        size,
                        transformed(events, lambda item, rule=later: rule[1] * item["dur"] * rule[0](item)),
                    )
                )
        short = min(900.0, size * step_us / len(kernels))
        result.append(("host_bound", size, transformed(events, lambda _, gap=short: gap, longer=False)))
        places = {id(item) for item in kernels[:: max(1, len(kernels) // 5)]}
        long = max(1100.0, size * step_us / 5.0)
        result.append(
            (
                "host_gaps",
                size,
                transformed(events, lambda item, gap=long, at=places: gap * (id(item) in at), longer=False),
            )
        )
        result.append(("more_micro_batches", size, repeated(events, 2.0 * size)))
    return result


def read(path: Path) -> list[Event]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        document = json.load(file)
    events: list[Event] = document["traceEvents"] if isinstance(document, dict) else document
    for item in events:
        if item.get("cat") in BEFORE_1_12:
            steps = item["cat"] == "Operator" and item["name"].startswith("ProfilerStep")
            item["cat"] = "user_annotation" if steps else BEFORE_1_12[item["cat"]]
    return events


def summary_of(events: Sequence[Event], folder: Path) -> TraceSummary:
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return summarise(file)


def main() -> int:
    first = third = counted = 0
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as home:
            folder, events = Path(home), read(Path(name))
            plain = summary_of(events, folder)
            expected = work_of_rows(profile_rows(plain))
            own = signs_of(Comparison(expected, measured_work([plain]), [plain], step_s=plain.step_s))
            print(
                f"{Path(name).name}: {plain.step_s:.4g} s, {plain.launches} launches; "
                f"of itself: {[sign.name for sign in own]}"
            )
            for cause, size, changed in cases(events, 1e6 * plain.step_s * plain.steps):
                summary = summary_of(changed, folder)
                slower = summary.step_s / plain.step_s - 1.0
                case = Comparison(expected, measured_work([summary]), [summary], step_s=plain.step_s)
                names = [sign.name for sign in signs_of(case)]
                if slower >= LEAST:
                    counted, first = counted + 1, first + (cause in names[:1])
                    third += cause in names[:3]
                print(
                    f"  {cause:20} {size:<5g} {slower:+7.1%}  {', '.join(names[:4])}"
                    f"{'' if cause in names[:1] else '  <'}"
                )
    print(f"first {first} of {counted}, in the first three {third} of {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
