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
    from forescale.schedule.program import Program


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
    none = compiled.sizes.no_delay
    num_computing = compiled.sizes.num_compute + len(program.blocks)
    last: dict[int, int] = {}
    start: dict[int, str] = {}
    lines = []
    stream, duration = program.stream.tolist(), program.duration.tolist()
    waits = _waits(program)
    order = np.argsort(program.level, kind="stable").tolist()
    names = _Names(order, stream, waits)
    for node in order:
        at = stream[node]
        ready = names.of[last[at]] if at in last else "z"
        for index, (before, delay) in enumerate(waits[node]):
            late = names.of[before]
            if with_delays and delay != none:
                lines.append(f" t = {late} + e{delay}")
                late = "t"
            ready = f"({late} if {late} > {ready} else {ready})"
            if index + 1 < len(waits[node]):
                lines.append(f" r = {ready}")
                ready = "r"
        if at not in start and duration[node] < num_computing:
            start[at] = f"s{at}"
            lines.append(f" s{at} = {ready}")
        lines.append(f" {names.take(node)} = {ready} + d{duration[node]}")
        last[at] = node
    ranks = range(compiled.schedule.num_ranks)
    ends = ", ".join(names.of[last[rank]] if rank in last else "z" for rank in ranks)
    starts = ", ".join(start.get(rank, "z") for rank in ranks)
    head = ["def run(d, e):", " z = 0.0", *(f" d{c} = d[{c}]" for c in sorted(set(duration)))]
    if with_delays:
        delays = sorted({delay for each in waits for _, delay in each} - {none})
        head += [f" e{c} = e[{c}]" for c in delays]
    return "\n".join([*head, *lines, f" return ({ends},), ({starts},)"])


def _waits(program: Program) -> list[list[tuple[int, int]]]:
    """Return what each node waits for on other streams: (node, delay class)."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(program.stream.size)]
    for before, delay in program.columns:
        for node in np.nonzero(before != ABSENT)[0].tolist():
            found[node].append((int(before[node]), int(delay[node])))
    return found


class _Names:
    """Variables for the nodes' ends, used again once no later node reads them.

    Python reaches the first 256 variables of a function faster than others.
    """

    def __init__(self, order: list[int], stream: list[int], waits: list[list[tuple[int, int]]]) -> None:
        self.of: dict[int, str] = {}
        self._free: list[str] = []
        self._done: list[list[int]] = [[] for _ in order]
        """By node, those whose last reader it is."""
        reader: dict[int, int] = {}
        last: dict[int, int] = {}
        for node in order:
            for before, _ in waits[node]:
                reader[before] = node
            if stream[node] in last:
                reader[last[stream[node]]] = node
            last[stream[node]] = node
        ends = set(last.values())
        for node, by in reader.items():
            if node not in ends:
                self._done[by].append(node)

    def take(self, node: int) -> str:
        """Return the variable of a node's end, once all that it reads is written down."""
        self._free += [self.of[each] for each in self._done[node]]
        self.of[node] = self._free.pop() if self._free else f"x{len(self.of)}"
        return self.of[node]
