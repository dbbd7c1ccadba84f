"""A run from failure to failure: the simulation that closed forms are checked with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from forescale.goodput.expected import PARTS, Case, expected
from forescale.struct import Struct

SAVE, WASTED = "unproductive_checkpoint_save_time", "wasted_progress_from_disruption"
RECOVERY, RESTORE = "infrastructure_recovery_from_disruption", "unproductive_checkpoint_restore_time"

INTERVALS = np.exp2(np.arange(-8.0, 9.0) / 4.0)
"""Checkpoint intervals tried, over the best in closed form."""
FAILURES = 500
"""Failures on which they are tried."""
LONGEST = 3_000
"""Expected interruptions of a run, failed restarts among them, that are simulated; of more these stand for all."""
REPAIRS = 50
"""Times that nodes are repaired which a shortened run lasts at least, so that as many are away as in all of it."""


class Outcome(Struct, frozen=True, kw_only=True):
    """One simulated run."""

    parts: Mapping[str, float]
    """Seconds by the names of `PARTS`."""
    failures: int
    planned: int

    @property
    def wall(self) -> float:
        """Seconds on the clock."""
        return sum(self.parts.values())

    @property
    def goodput(self) -> float:
        """Share of the clock that trains."""
        return self.parts["goodput"] / self.wall


def simulate(case: Case, rng: np.random.Generator) -> Outcome:
    """Run a case from failure to failure, which come independently of each other.

    Between failures training and checkpoints alternate; a failure goes back to the last checkpoint that was whole, and
    may itself be interrupted. A failed node that needs repair is replaced by a spare; without one the run waits, or
    goes on with the nodes that are left.
    """
    share = _simulated_share(case)
    run = _Run(case if share == 1.0 else replace(case, work=share * float(case.work)), rng)
    while run.done < run.work:
        run.next()
    for name, seconds in case.divided(run.done).items():
        run.parts[name] += float(seconds)
    parts = {name: seconds / share for name, seconds in run.parts.items()}
    return Outcome(parts=parts, failures=round(run.failures / share), planned=round(run.planned / share))


def _simulated_share(case: Case) -> float:
    """Return the share of a run's work that is simulated: all of it but where far too much happens to it."""
    wall = sum(map(float, expected(case).values()))
    events = wall / float(case.mttf)
    if not events > LONGEST:
        return 1.0
    least = REPAIRS * float(case.repair) / wall if case.spares is not None else 0.0
    return min(1.0, max(LONGEST / events, least))


def best_interval_by_events(case: Case, seed: int = 0) -> float:
    """Return the checkpoint interval [s] whose simulated runs lose least to saving and to work done again.

    Tried are those of `INTERVALS` that a checkpoint is written within, on the same `FAILURES` failures.
    """
    tried = np.unique(np.maximum(case.interval * INTERVALS, case.written))
    work = FAILURES * float(case.mttf)

    def lost(interval: float) -> float:
        parts = simulate(replace(case, work=work, interval=interval), np.random.default_rng(seed)).parts
        return (parts[SAVE] + parts[WASTED]) / parts["goodput"]

    return min((float(item) for item in tried), key=lost)


class _Run:
    """A run between two events."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case, self.rng = case, rng
        self.work, self.mttf, self.interval = float(case.work), float(case.mttf), float(case.interval)
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.clock, self.done = 0.0, 0.0
        self.failures, self.planned = 0, 0
        self.away: list[float] = []
        """When nodes under repair are back, soonest first."""
        self.stop = self._drawn(case.planned_mttf)
        """Seconds until the next planned interruption."""

    def next(self) -> None:
        """Train until something happens, and deal with it."""
        case = self.case
        missing = self._missing
        speed = float(case.speed(missing)) if missing else 1.0
        event, seconds = "end", self._until_done() / speed if speed else np.inf
        for other, until in (
            ("failure", self._drawn(self.mttf)),
            ("planned", self.stop),
            ("repaired", self.away[0] - self.clock if speed < 1.0 else np.inf),
        ):
            if until < seconds:
                event, seconds = other, until
        self.clock += seconds
        self.stop -= seconds
        self.parts["other"] += seconds * (1.0 - speed)
        self._train(event, seconds * speed)
        if event == "failure":
            self._failed()
        elif event == "planned":
            self._spend("custom_badput_events", case.planned)
            self.planned += 1
            self.stop = self._drawn(case.planned_mttf)
        if not self.away:
            return
        self.away = [item for item in self.away if item > self.clock]
        if self._missing and case.replica_share is None:
            self._spend(RECOVERY, self.away[self._missing - 1] - self.clock)

    @property
    def _missing(self) -> int:
        """Nodes that are away with no spare in their place."""
        return 0 if self.case.spares is None else max(0, len(self.away) - self.case.spares)

    def _train(self, event: str, seconds: float) -> None:
        """Count training and checkpoints up to an event; a failure goes back to the last whole checkpoint."""
        case = self.case
        whole, rest = divmod(seconds, self.interval + case.blocking)
        fresh = min(rest, self.interval)
        gained = min(whole * self.interval + fresh, self.work - self.done)
        self.parts[SAVE] += seconds - (whole * self.interval + fresh)
        if event == "end":
            gained = self.work - self.done
        if event == "failure":
            unwritten = self.interval if whole and rest < case.written - case.blocking else 0.0
            self.parts[WASTED] += fresh + unwritten
            gained = max(0.0, gained - fresh - unwritten)
        elif event != "end":
            self._spend(SAVE, case.blocking)
        self.done += gained

    def _failed(self) -> None:
        """Restart and reload, again where something fails meanwhile; nodes that need repair leave."""
        case, whole = self.case, False
        self.failures += 1
        while not whole:
            if case.spares is not None and self.rng.random() < case.fatal:
                self.away = sorted((*self.away, self.clock + self.rng.exponential(case.repair)))
            free = self._drawn(self.mttf)
            whole = free >= case.restart + case.reload
            self._spend(RECOVERY, min(free, case.restart))
            self._spend(RESTORE, min(max(free - case.restart, 0.0), case.reload))

    def _until_done(self) -> float:
        """Return the seconds that the rest takes without failures; none is saved at the end."""
        left = self.work - self.done
        return left + self.case.blocking * max(0, math.ceil(left / self.interval) - 1)

    def _spend(self, part: str, seconds: float) -> None:
        self.parts[part] += seconds
        self.clock += seconds

    def _drawn(self, mean: float) -> float:
        return float(self.rng.exponential(mean)) if math.isfinite(mean) else math.inf
