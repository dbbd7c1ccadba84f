"""A compiled schedule as straight-line Python: one comparison and one addition per node.

For single timings of small schedules this beats array operations, whose cost is per call. The recurrence and
the order of additions are those of `CompiledSchedule.run`, so results agree bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forescale.schedule.flat import ABSENT

if TYPE_CHECKING:
    from forescale.schedule.compiled import CompiledSchedule, Straight


def write(compiled: CompiledSchedule) -> Straight:
    """Return a function from (durations, delays) by class to (last ends, first starts) by rank."""
    plain, delayed = (_source(compiled, with_delays=flag) for flag in (False, True))
    space: dict[str, Straight] = {}
    exec(compile(plain, "<schedule>", "exec"), {}, space)  # noqa: S102 -- generated from integers only
    without = space["run"]
    made: list[Straight] = []

    def run(durations: list[float], delays: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if not any(delays):
            return without(durations, delays)
        if not made:
            later: dict[str, Straight] = {}
            exec(compile(delayed, "<schedule>", "exec"), {}, later)  # noqa: S102
            made.append(later["run"])
        return made[0](durations, delays)

    return run


def _source(compiled: CompiledSchedule, *, with_delays: bool) -> str:
    program = compiled.program
    last: dict[int, str] = {}
    start: dict[int, str] = {}
    lines = []
    stream, duration = program.stream.tolist(), program.duration.tolist()
    columns = [(before.tolist(), delay.tolist()) for before, delay in program.columns]
    none = compiled.sizes.no_delay
    num_computing = compiled.sizes.num_compute + len(program.blocks)
    for node in np.argsort(program.level, kind="stable").tolist():
        at, cost = stream[node], f"d{duration[node]}"
        ready = last.get(at, "z")
        for index, (before, delay) in enumerate(columns):
            if before[node] == ABSENT:
                continue
            late = f"x{before[node]}"
            if with_delays and delay[node] != none:
                lines.append(f" t = {late} + e{delay[node]}")
                late = "t"
            if index + 1 < len(columns) and any(b[node] != ABSENT for b, _ in columns[index + 1 :]):
                lines.append(f" r = {late} if {late} > {ready} else {ready}")
                ready = "r"
            else:
                ready = f"({late} if {late} > {ready} else {ready})"
        if at not in start and duration[node] < num_computing:
            start[at] = f"s{at}"
            lines.append(f" s{at} = {ready}")
        lines.append(f" x{node} = {ready} + {cost}")
        last[at] = f"x{node}"
    ranks = range(compiled.schedule.num_ranks)
    ends = ", ".join(last.get(rank, "z") for rank in ranks)
    starts = ", ".join(start.get(rank, "z") for rank in ranks)
    used = sorted(set(duration))
    head = ["def run(d, e):", " z = 0.0", *(f" d{c} = d[{c}]" for c in used)]
    if with_delays:
        delays = sorted({c for _, delay in columns for c in delay} - {none})
        head += [f" e{c} = e[{c}]" for c in delays]
    return "\n".join([*head, *lines, f" return ({ends},), ({starts},)"])
