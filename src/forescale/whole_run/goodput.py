"""What is left of the time where things fail: closed forms, and a simulation of events that they are checked with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric


@formula(
    unit="s", source="Young 1974, CACM 17(9): a first order approximation to the optimum checkpoint interval"
)
def young_interval(*, blocking: Numeric, mttf: Numeric) -> Numeric:
    """√(2 × checkpoint × mean time to failure)."""
    return np.sqrt(2.0 * blocking * mttf)


@formula(unit="s", source="Daly 2006, FGCS 22(3), equation 37")
def daly_interval(*, blocking: Numeric, mttf: Numeric) -> Numeric:
    """√(2CM) × (1 + √(C/2M)/3 + (C/2M)/9) − C, at most M; C is the checkpoint, M the mean time to failure."""
    share = blocking / (2.0 * mttf)
    best = np.sqrt(2.0 * blocking * mttf) * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - blocking
    return np.where(share < 1.0, best, mttf)


@formula(unit="1", source="Daly 2006, FGCS 22(3), equation 20: complete model of the wall clock time")
def daly_goodput(*, interval: Numeric, blocking: Numeric, restart: Numeric, mttf: Numeric) -> Numeric:
    """Training over wall clock: τ / (M e^(R/M) (e^((τ+C)/M) − 1))."""
    return interval / (mttf * np.exp(restart / mttf) * np.expm1((interval + blocking) / mttf))


@formula(unit="1", source="Kokolis et al. 2024, arXiv:2410.21680, section III: expected ETTR to first order")
def kokolis_goodput(*, mttf: Numeric, restart: Numeric, interval: Numeric) -> Numeric:
    """1 − (restart + interval/2) / MTTF."""
    return 1.0 - (restart + interval / 2.0) / mttf


@formula(unit="1", source="expected maximum of N normal variables, Blom 1958")
def slowest_share(*, spread: Numeric, num_devices: Numeric) -> Numeric:
    """How much longer the slowest of N devices takes than the mean: spread × √(2 ln N), to leading order."""
    return spread * np.sqrt(2.0 * np.log(np.maximum(num_devices, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run as events see it; seconds."""

    work: float
    """Training without any interruption."""
    interval: float
    blocking: float
    written: float
    """From the start of a checkpoint until it can be gone back to."""
    restart: float
    """Detection, restart and reload."""
    mttf: float
    planned_mttf: float = np.inf
    planned: float = 0.0
    nodes: int = 1
    spares: int | None = None
    """None is always enough."""
    repair: float = 0.0
    fatal: float = 0.0
    elastic: bool = False


PARTS: Mapping[str, str] = MappingProxyType(
    {
        "productive": "training that counts",
        "checkpoint": "saving checkpoints",
        "lost": "work since the last checkpoint, done again",
        "restart": "detection, restart and reload",
        "planned": "planned interruptions",
        "waiting": "waiting for repaired nodes, or training with fewer",
    }
)
"""Where the wall clock goes, after the badput types of Google's ml-goodput-measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
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
        return self.parts["productive"] / self.wall


def simulate(case: Case, rng: np.random.Generator) -> Outcome:
    """Run a case from failure to failure, which come independently of each other.

    Between failures training and checkpoints alternate; a failure goes back to the last checkpoint that was whole, and
    may itself be interrupted. A failed node that needs repair is replaced by a spare; without one the run waits, or
    goes on with the nodes that are left.
    """
    run = _Run(case, rng)
    while run.done < case.work:
        run.next()
    return Outcome(parts=run.parts, failures=run.failures, planned=run.planned)


class _Run:
    """A run between two events."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case, self.rng = case, rng
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
        spares = len(self.away) if case.spares is None else case.spares
        missing = max(0, len(self.away) - spares)
        speed = 1.0 - missing / case.nodes if case.elastic else 1.0
        events = {
            "end": _until_done(case, case.work - self.done) / speed,
            "failure": self._drawn(case.mttf),
            "planned": self.stop,
            "repaired": self.away[0] - self.clock if missing and case.elastic else np.inf,
        }
        event = min(events, key=events.__getitem__)
        self.clock += events[event]
        self.stop -= events[event]
        self.parts["waiting"] += events[event] * (1.0 - speed)
        self._train(event, events[event] * speed)
        if event == "failure":
            self._failed()
        elif event == "planned":
            self._spend("planned", case.planned)
            self.planned += 1
            self.stop = self._drawn(case.planned_mttf)
        self.away = [each for each in self.away if each > self.clock]
        if case.spares is not None and len(self.away) > case.spares and not case.elastic:
            self._spend("waiting", self.away[len(self.away) - case.spares - 1] - self.clock)

    def _train(self, event: str, seconds: float) -> None:
        """Count training and checkpoints up to an event; a failure goes back to the last whole checkpoint."""
        case, parts = self.case, self.parts
        whole, rest = divmod(seconds, case.interval + case.blocking)
        fresh = min(rest, case.interval)
        gained = min(whole * case.interval + fresh, case.work - self.done)
        parts["checkpoint"] += seconds - (whole * case.interval + fresh)
        if event == "end":
            gained = case.work - self.done
        if event == "failure":
            unwritten = case.interval if whole and rest < case.written - case.blocking else 0.0
            parts["lost"] += fresh + unwritten
            gained = max(0.0, gained - fresh - unwritten)
        elif event != "end":
            self._spend("checkpoint", case.blocking)
        parts["productive"] += gained
        self.done += gained

    def _failed(self) -> None:
        """Restart, again where the restart fails; a node that needs repair leaves."""
        self.failures += 1
        while (free := self._drawn(self.case.mttf)) < self.case.restart:
            self._spend("restart", free)
        self._spend("restart", self.case.restart)
        if self.case.spares is not None and self.rng.random() < self.case.fatal:
            self.away = sorted((*self.away, self.clock + self.rng.exponential(self.case.repair)))

    def _spend(self, part: str, seconds: float) -> None:
        self.parts[part] += seconds
        self.clock += seconds

    def _drawn(self, mean: float) -> float:
        return float(self.rng.exponential(mean)) if np.isfinite(mean) else np.inf


def _until_done(case: Case, work: float) -> float:
    """Return the seconds that so much work takes without failures; none is saved at the end."""
    return work + case.blocking * max(0, int(np.ceil(work / case.interval)) - 1)
