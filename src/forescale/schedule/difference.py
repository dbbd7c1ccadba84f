"""Why a measured step is not as long as the simulated one: which passes, messages and pauses of the host make it so.

The measured step is walked back from its last pass: each pass began when its rank was free (a pause of the host lies
between) or when a message came (its time lies between). Time spent on that path adds up to the measured makespan. The
same path costs no more in the simulation than the simulated makespan, so what its parts took longer explains at least
the whole difference; what is left over is the simulation's own, longer path.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.schedule.actions import Kind, unpack
from forescale.schedule.draw.timeline import Shade, Timeline
from forescale.schedule.measured import Aligned, MeasuredStep
from forescale.schedule.program import ABSENT
from forescale.schedule.simulation import Simulation, shared_blocks
from forescale.struct import Struct

Cause: TypeAlias = Literal["pass", "message", "host"]
NAMES: dict[Cause, str] = {"pass": "passes", "message": "messages", "host": "pauses of the host"}
SLOW = 1.1
"""A rank whose passes take so many times those of the median rank is named."""


class Part(Struct, frozen=True):
    """One stretch of the measured path; milliseconds."""

    cause: Cause
    rank: int
    """Of a message, the rank that waited for it."""
    action: str
    """The pass, or the one that a message or a pause came before."""
    measured: float
    simulated: float

    @property
    def excess(self) -> float:
        """What it took longer than simulated."""
        return self.measured - self.simulated


class Compared(Struct, frozen=True):
    """One pass beside its simulation; milliseconds."""

    rank: int
    action: str
    start: float
    taken: float
    simulated_start: float
    simulated_taken: float
    lost_before: float
    """What its rank fell back before it: it waited or paused longer than simulated."""
    lost_within: float
    """What it took longer than simulated."""


class Difference(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """A measured step beside a simulation of the same schedule; milliseconds."""

    step: MeasuredStep
    simulation: Simulation

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The path that set the measured makespan, first to last."""
        aligned, at = self._aligned, self._last
        parts: list[Part] = []
        while at != ABSENT:
            parts.append(self._part("pass", at, self._taken[at], self._simulated_taken[at]))
            before, source = int(aligned.before[at]), int(aligned.source[at])
            awaited = bool(aligned.awaited[at])
            origin = source if awaited else before
            if origin == ABSENT:
                break
            gap = 1e3 * (aligned.start[at] - aligned.end[origin])
            simulated = self._gap(origin, message=awaited)
            parts.append(self._part("message" if awaited else "host", at, gap, simulated))
            at = origin
        return tuple(reversed(parts))

    @cached_property
    def passes(self) -> tuple[Compared, ...]:
        """Every pass, rank after rank."""
        aligned, result = self._aligned, []
        starts, taken = self._simulated_start, self._simulated_taken
        for at in np.nonzero(aligned.flat.kind <= Kind.W)[0].tolist():
            before = int(aligned.before[at])
            idle, simulated_idle = 1e3 * aligned.start[at], starts[at]
            if before != ABSENT:
                idle -= 1e3 * aligned.end[before]
                simulated_idle -= starts[before] + taken[before]
            result.append(
                Compared(
                    rank=int(aligned.flat.rank[at]),
                    action=self._name(at),
                    start=1e3 * float(aligned.start[at]),
                    taken=float(self._taken[at]),
                    simulated_start=float(starts[at]),
                    simulated_taken=float(taken[at]),
                    lost_before=float(idle - simulated_idle),
                    lost_within=float(self._taken[at] - taken[at]),
                )
            )
        return tuple(result)

    @property
    def timeline(self) -> Timeline:
        """The measured step with what its ranks lost against the simulation shaded."""
        shades = []
        for pass_ in self.passes:
            end = pass_.start + pass_.taken
            if pass_.lost_before > 0.0:
                shades.append(Shade(pass_.rank, pass_.start - pass_.lost_before, pass_.start))
            if pass_.lost_within > 0.0:
                shades.append(Shade(pass_.rank, end - min(pass_.lost_within, pass_.taken), end))
        return self.step.timeline.shaded(shades)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to tell: the difference, its causes with the passes and messages that weigh most, slow ranks."""
        measured, simulated = 1e3 * self.step.makespan_s, self.simulation.makespan
        explicit = [
            f"measured {measured:.2f} ms, simulated {simulated:.2f} ms ({simulated / measured - 1.0:+.1%})",
        ]
        causes: tuple[Cause, ...] = ("pass", "message", "host")
        explicit += [line for cause in causes if (line := self._told(cause, 1e-3 * measured))]
        rest = measured - simulated - sum(part.excess for part in self.parts)
        if abs(rest) > 1e-3 * measured:
            explicit.append(f"{rest:+.2f} ms: the simulated critical path differs from the measured one")
        busy = np.array([self._per_pass(rank) for rank in range(self.step.schedule.num_ranks)])
        typical = float(np.median(busy))
        explicit += [
            f"rank {rank} is slow: its passes take {share / typical:.2f} times those of the median rank"
            for rank, share in enumerate(busy.tolist())
            if typical and share > SLOW * typical
        ]
        return tuple(explicit)

    def _told(self, cause: Cause, least: float) -> str | None:
        """Return what one cause adds on the path, with where it adds most; None of nothing."""
        parts = [part for part in self.parts if part.cause == cause]
        total = sum(part.excess for part in parts)
        worst = sorted(parts, key=lambda item: -item.excess)[:3]
        if abs(total) < least and (not worst or worst[0].excess < least):
            return None
        by_rank: dict[int, float] = {}
        for part in parts:
            by_rank[part.rank] = by_rank.get(part.rank, 0.0) + part.excess
        rank = max(by_rank, key=lambda key: by_rank[key])
        named = ", ".join(f"{item.action} {item.excess:+.2f}" for item in worst if item.excess > 0.1 * least)
        where = f"; most on rank {rank} ({by_rank[rank]:+.2f})" if by_rank[rank] > 0.0 else ""
        late = "late before " if cause == "message" else "before " if cause == "host" else ""
        return f"{total:+.2f} ms: {NAMES[cause]}{where}{f': {late}{named}' if named else ''}"

    def _per_pass(self, rank: int) -> float:
        """Return what a rank computes in all."""
        return float(
            self._taken[(self._aligned.flat.rank == rank) & (self._aligned.flat.kind <= Kind.W)].sum()
        )

    def _part(self, cause: Cause, at: int, measured: float, simulated: float) -> Part:
        return Part(
            cause, int(self._aligned.flat.rank[at]), self._name(at), float(measured), float(simulated)
        )

    def _name(self, at: int) -> str:
        return str(unpack(int(self._aligned.flat.code[at])))

    def _gap(self, origin: int, *, message: bool) -> float:
        """Return what the simulation spends between two passes if nothing else is waited for."""
        compiled, laid = self.simulation.compiled, self.simulation.laid
        node = compiled.program.node_of_action[origin]
        host = 0.0 if laid.host is None else float(laid.host[compiled.program.duration[node]])
        if not message:
            return host
        sizes, flat = compiled.program.sizes, compiled.program.flat
        delay = laid.delays[sizes.message_class(flat, np.array([origin]))]
        return float(delay.reshape(-1)[0]) + host

    @cached_property
    def _aligned(self) -> Aligned:
        return self.step.aligned

    @cached_property
    def _taken(self) -> Array:
        return 1e3 * (self._aligned.end - self._aligned.start)

    @cached_property
    def _simulated_start(self) -> Array:
        return shared_blocks(self.simulation)[0]

    @cached_property
    def _simulated_taken(self) -> Array:
        starts, ends = shared_blocks(self.simulation)
        return np.asarray(ends - starts)

    @property
    def _last(self) -> int:
        computed = np.where(self._aligned.flat.kind <= Kind.W, self._aligned.end, -np.inf)
        return int(np.argmax(computed))
