"""What settings that a question leaves open add to the interval of its step time: fitted by splits in time.

    python -m benchmarks.assumed_spreads

Every published run of a framework with recipes is asked with model, cluster, degrees, batch, length and precision, once
with its framework and release and once without. A layout has one vote, however often it was printed. The parameters
are those of all runs; each split fits them to releases up to one and judges them by the later ones.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.cost.run_calibration import RECIPE, Assumptions, load_run_calibration, years_of
from forescale.errors import ForescaleError
from forescale.files import read_table
from forescale.io.question import build_question
from forescale.project import project
from forescale.struct import Struct
from forescale.validation.case import Case
from forescale.validation.cases import load_cases, plan_keys, plan_of

ROWS = Path("data/published/plans/runs.csv")
TARGET = Path("src/forescale/catalogue/calibrations/runs/published.json")
FRAMEWORKS = ("megatron-bridge", "nemo", "primus", "torchtitan", "maxtext")
SECTIONS = ("model", "cluster", "devices", "nodes")
LAYOUT = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp_replicate", "dp_shard", "zero", "micro_batch_size")
WORKLOAD = ("seq_len", "global_batch_size", "trainable")
SPLITS = ("25.11", "26.02", "26.04")
SHARE = 0.8
"""Share of layouts that an interval is fitted to contain."""
UNDATED = "25.08"
"""Release of runs whose framework has none: what they are is older than the first split."""


class Asked(Struct, frozen=True, kw_only=True):
    """One layout that was asked plainly."""

    moe: bool
    plan: str
    """What is asked, without the framework."""
    release: str
    error: float
    """Mean ln(measured / projected) over its rows."""
    base: float
    """Half width, as a logarithm, without the settings that are assumed."""
    assumed: tuple[str, ...]


def asked(*, named: bool) -> list[Asked]:
    """Return every layout of the table, asked with or without its framework."""
    table = read_table(ROWS)
    keys, cases = plan_keys(table), {case.id: case for case in load_cases(ROWS)}
    groups: dict[str, list[Asked]] = defaultdict(list)
    for row in table.rows:
        case, values = cases[row.id], plan_of(row, keys)
        framework = plain_framework(str(values.get("framework") or ""))
        if framework is None or case.skipped_reason or case.measured.step_time_s is None:
            continue
        plan = plain(values)
        try:
            one = _asked(plan | ({"framework": framework} if named else {}), case, named=named)
        except ForescaleError:
            continue
        groups[json.dumps([plan, framework], sort_keys=True, default=str)].append(one)
    return [
        replace(items[0], error=float(np.mean([item.error for item in items]))) for items in groups.values()
    ]


def plain_framework(label: str) -> str | None:
    """Return a framework and its release without the lines that a source's own settings are kept in."""
    name, _, release = label.partition("@")
    if name not in FRAMEWORKS:
        return None
    dated = [line for line in release.split("+") if line[:1].isdigit()]
    return "@".join([name, *dated[-1:]])


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return what a user types of a row's plan."""
    layout, workload = values.get("strategy", {}), values.get("workload", {})
    precision = workload.get("precision", {})
    return {
        **{name: values[name] for name in SECTIONS if name in values},
        "strategy": {name: layout[name] for name in LAYOUT if layout.get(name) is not None},
        "workload": {
            **{name: workload[name] for name in WORKLOAD if name in workload},
            "precision": {name: precision[name] for name in ("compute", "recipe") if name in precision},
        },
    }


def _asked(plan: dict[str, Any], case: Case, *, named: bool) -> Asked:
    question = build_question(plan, where=case.id, default_framework=not named)
    alone = project(replace(question, assumed=()))
    assert case.measured.step_time_s is not None
    release = (question.layout.software or "").partition("@")[2] if named else ""
    return Asked(
        moe=question.model.is_moe,
        plan=json.dumps({**plan, "framework": ""}, sort_keys=True, default=str),
        release=release or UNDATED,
        error=math.log(case.measured.step_time_s / alone.step_time_s),
        base=math.log(alone.step_time.high / alone.step_time_s),
        assumed=question.assumed,
    )


def fit(named: Sequence[Asked], unnamed: Sequence[Asked], latest: str) -> Assumptions:
    """Return the parameters, one after the other: settings, the recipe, the framework, the release."""
    known = [item for item in named if years_of(item.release) <= years_of(latest)]
    own = [item for item in known if RECIPE not in item.assumed]
    result = Assumptions()
    result = _with(result, dense=_least(result, "dense", [item for item in own if not item.moe], latest))
    result = _with(result, moe=_least(result, "moe", [item for item in own if item.moe], latest))
    result = _with(result, recipe=_least(result, "recipe", [i for i in known if RECIPE in i.assumed], latest))
    result = _with(result, framework=_least(result, "framework", unnamed, latest))
    return _with(result, release=drift(known))


def drift(items: Sequence[Asked]) -> float:
    """Return what 8 of 10 errors of a layout differ by between releases a year apart; it grows as the root of time."""
    releases: dict[str, dict[str, float]] = defaultdict(dict)
    for item in items:
        releases[item.plan][item.release] = item.error
    changes = [
        abs(errors[one] - errors[other]) / math.sqrt(years_of(other) - years_of(one))
        for errors in releases.values()
        for one, other in pairwise(sorted(errors, key=years_of))
    ]
    return round(float(np.quantile(changes, SHARE)), 3) if changes else 0.0


def _with(values: Assumptions, **more: float) -> Assumptions:
    return Assumptions(**{**{name: getattr(values, name) for name in values.__struct_fields__}, **more})


def _least(values: Assumptions, name: str, items: Sequence[Asked], latest: str) -> float:
    """Return the least value of a parameter with which intervals contain enough layouts."""
    grid = [step / 200.0 for step in range(200)]
    return next(
        (one for one in grid if _share(_with(values, **{name: one}), items, latest) >= SHARE), grid[-1]
    )


def half(values: Assumptions, item: Asked, latest: str) -> float:
    """Return the half width of a layout's interval."""
    years = max(0.0, years_of(item.release) - years_of(latest))
    return math.hypot(item.base, values.doubt(item.assumed, moe=item.moe, years=years))


def _share(values: Assumptions, items: Sequence[Asked], latest: str) -> float:
    """Return the share of layouts that intervals contain; dense models and those with experts count alike."""
    kinds = ([item for item in items if item.moe == moe] for moe in (False, True))
    shares = [
        float(np.mean([abs(item.error) <= half(values, item, latest) for item in local]))
        for local in kinds
        if local
    ]
    return float(np.mean(shares)) if shares else 1.0


def main() -> None:
    """Print coverage and half width by split, and write the parameters of all runs."""
    named, unnamed = asked(named=True), asked(named=False)
    rows = []
    for split in SPLITS:
        values = fit([item for item in named if years_of(item.release) <= years_of(split)], unnamed, split)
        later = [item for item in named if years_of(item.release) > years_of(split)]
        rows.append(_row(f"up to {split}, later ones", values, later, split))
    latest = load_run_calibration().latest
    values = fit(named, unnamed, latest)
    rows += [
        _row("all, framework named", values, named, latest),
        _row("all, none named", values, unnamed, latest),
    ]
    for row in rows:
        print(row)
    content = json.loads(TARGET.read_text(encoding="utf-8"))
    content["assumed"] = {name: getattr(values, name) for name in values.__struct_fields__}
    TARGET.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(label: str, values: Assumptions, items: Sequence[Asked], latest: str) -> str:
    parts = [label]
    for kind, moe in (("dense", False), ("moe", True)):
        local = [item for item in items if item.moe == moe]
        widths = [math.expm1(half(values, item, latest)) for item in local]
        parts.append(
            f"{kind}: {len(local)} layouts, {100 * _share(values, local, latest):.0f} % inside, "
            f"half width {100 * float(np.median(widths)):.1f} %"
        )
    return "; ".join(parts) + f"; {values}"


if __name__ == "__main__":
    main()
