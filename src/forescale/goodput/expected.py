"""What is left of the time where things fail, in closed form: of one run, or of many at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count as whole_numbers

from forescale.arrays import np
from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.struct import Struct

DALY = "Daly 2006, FGCS 22(3)"
PARTS: Mapping[str, str] = {
    "goodput": "training that counts",
    "unproductive_checkpoint_save_time": "saving checkpoints",
    "unproductive_checkpoint_restore_time": "reading the last one again",
    "wasted_progress_from_disruption": "work since the last checkpoint, done again",
    "infrastructure_recovery_from_disruption": "detection, restart, waiting for nodes",
    "custom_badput_events": "evaluation, planned interruptions",
    "other": "stragglers, training with fewer replicas",
}
"""Where the wall clock goes, by the names of Google's ml-goodput-measurement (`BadputType`, 0.0.16)."""
NEVER = 1e18
"""Seconds between failures beyond which nothing fails."""
WAITING = 0.01
"""Share of the time that a run with enough spares waits for repairs."""
RARE = 1e-12
"""Chance that more nodes are away than are counted one by one."""


@formula(
    unit="s", source="Young 1974, CACM 17(9): a first order approximation to the optimum checkpoint interval"
)
def young_interval(*, blocking: Numeric, mttf: Numeric) -> Numeric:
    """√(2 × checkpoint × mean time to failure)."""
    return np.sqrt(2.0 * blocking * mttf)


@formula(unit="s", source=f"{DALY}, equation 37")
def daly_interval(*, blocking: Numeric, mttf: Numeric) -> Numeric:
    """√(2CM) × (1 + √(C/2M)/3 + (C/2M)/9) − C, at most M; C is the checkpoint, M the mean time to failure."""
    share = blocking / (2.0 * mttf)
    best = np.sqrt(2.0 * blocking * mttf) * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - blocking
    return np.where(share < 1.0, best, mttf)


@formula(unit="1", source=f"{DALY}, equation 20: complete model of the wall clock time")
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


class Case(Struct, frozen=True, kw_only=True):
    """A run as events see it; seconds. `work`, `interval` and `mttf` may be arrays of many runs."""

    work: Numeric
    """Training without any interruption, evaluation and stragglers counted."""
    interval: Numeric
    blocking: float
    written: float
    """From the start of a checkpoint until it can be gone back to."""
    restart: float
    """Detection and restart."""
    mttf: Numeric
    reload: float = 0.0
    planned_mttf: float = np.inf
    planned: float = 0.0
    spares: int | None = None
    """None is always enough."""
    repair: float = 0.0
    fatal: float = 0.0
    replica_nodes: int = 1
    """Nodes of a data-parallel replica."""
    replica_share: float | None = None
    """Share of the speed that training without one replica lacks; None waits for the node instead."""
    evaluation: float = 0.0
    """Share of `work` that evaluates."""
    stragglers: float = 0.0
    """How much longer than the mean the slowest device takes."""

    def divided(self, work: Numeric) -> dict[str, Numeric]:
        """Return seconds of training by what they are spent on."""
        ideal = work * (1.0 - self.evaluation) / (1.0 + self.stragglers)
        evaluated = work * self.evaluation
        return {"goodput": ideal, "custom_badput_events": evaluated, "other": work - ideal - evaluated}

    def speed(self, missing: Numeric) -> Numeric:
        """Return the speed with so many nodes missing, over that with all."""
        lost = np.ceil(missing / self.replica_nodes) * (self.replica_share or 0.0)
        return np.maximum(0.0, 1.0 - lost)


def expected(case: Case) -> dict[str, Numeric]:
    """Return the expected seconds of a run by the names of `PARTS`.

    Daly's complete model, with what else happens: a failure before a checkpoint is whole goes back one further, planned
    interruptions write one first, and nodes are away for repairs, alone or with others (Erlang).
    """
    mttf, period = np.minimum(case.mttf, NEVER), case.interval + case.blocking
    count = case.work / case.interval
    with np.errstate(over="ignore"):
        failures = count * np.expm1(period / mttf)
        away = failures * mttf * np.expm1((case.restart + case.reload) / mttf)
    whole = case.interval * (case.written - case.blocking) / period
    values: dict[str, Numeric] = {**dict.fromkeys(PARTS, 0.0), **case.divided(case.work)}
    values["unproductive_checkpoint_save_time"] = count * case.blocking
    values["wasted_progress_from_disruption"] = failures * (mttf + whole) - count * period
    both = case.restart + case.reload
    reading = case.reload / both if both else 0.0
    values["unproductive_checkpoint_restore_time"] = away * reading
    values["infrastructure_recovery_from_disruption"] = away * (1.0 - reading)
    trained = count * period + values["wasted_progress_from_disruption"]
    stops = trained / case.planned_mttf
    values["custom_badput_events"] = values["custom_badput_events"] + stops * case.planned
    values["unproductive_checkpoint_save_time"] = (
        values["unproductive_checkpoint_save_time"] + stops * case.blocking
    )
    return _short_of_nodes(case, values, trained + away)


def _short_of_nodes(case: Case, values: dict[str, Numeric], busy: Numeric) -> dict[str, Numeric]:
    """Add what a run waits for repairs, or trains more slowly without a replica, where spares run out."""
    load = nodes_away(fatal=case.fatal, repair=case.repair, mttf=case.mttf)
    if case.spares is None or not np.any(load):
        return values
    if case.replica_share is None:
        share = erlang_b(load=load, servers=case.spares + 1)
        waited = busy * share / (1.0 - share)
        name = "infrastructure_recovery_from_disruption"
        return {**values, name: values[name] + waited}
    slow = 1.0 - _mean_speed(case, load)
    with np.errstate(divide="ignore"):
        return {**values, "other": values["other"] + busy * slow / (1.0 - slow)}


@formula(unit="1", source="Little's law: arrivals × time away")
def nodes_away(*, fatal: Numeric, repair: Numeric, mttf: Numeric) -> Numeric:
    """Mean number of nodes that are away for repairs."""
    return fatal * repair / mttf


def enough_spares(load: float) -> int:
    """Return the fewest spare nodes with which a run waits for repairs less than `WAITING` of the time.

    `load` is the mean number of nodes that are away.
    """
    fewest = whole_numbers(max(0, int(load * (1.0 - WAITING)) - 1))
    return next(spares for spares in fewest if erlang_b(load=load, servers=spares + 1) < WAITING)


@formula(unit="1", source="Erlang 1917: blocking of an M/M/c/c system, by its recursion")
def erlang_b(*, load: Numeric, servers: int) -> Numeric:
    """Share of the time that all of `servers` are busy, at so many arrivals in a mean service time."""
    blocked = np.ones(np.shape(load))
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
        if np.all(blocked < RARE):
            break
    return blocked


def _mean_speed(case: Case, load: Numeric) -> Numeric:
    """Return the mean speed while the number of nodes away is Poisson distributed with mean `load`."""
    assert case.spares is not None
    most = float(np.max(load))
    away = np.arange(int(most + 12.0 * np.sqrt(most) + 20.0)) * 1.0
    logs = np.log(np.asarray(load, dtype=np.float64))[..., None]
    chance = np.exp(away * logs - np.exp(logs) - np.cumsum(np.log(np.maximum(away, 1.0))))
    speeds = case.speed(np.maximum(0.0, away - case.spares))
    return np.asarray((chance * speeds).sum(axis=-1) / chance.sum(axis=-1), dtype=np.float64)
