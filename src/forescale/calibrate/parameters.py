"""The numbers of a run calibration that a fit may move: their priors, and how sure those are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from forescale.cost.run_calibration import RunCalibration
from forescale.numeric import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One positive number, fitted as its logarithm."""

    path: str
    """Where it stands in a run calibration, such as "devices.hopper.wide"."""
    prior: float
    spread: float
    """Standard deviation of its logarithm around the prior."""
    low: float
    high: float
    shared_by: tuple[str, ...] = ()
    """Paths that take the same value."""


def parameters_of(base: RunCalibration, table: dict[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a table of priors: {section: {entry: {field: [prior, spread, low, high]}}}.

    An entry "*" stands for all entries of that section which are not named. Entries that `same` lists share the
    numbers of another entry, but for those that they name themselves.
    """
    found = [_parameter(f"shared.{name}", numbers) for name, numbers in table["shared"].items()]
    for section in ("devices", "software"):
        priors, same = table[section], table.get("same", {}).get(section, {})
        for entry in getattr(base, section):
            own = priors.get(entry, {})
            fields = own if entry in same else {**priors["*"], **own}
            for name, numbers in fields.items():
                paths = tuple(
                    f"{section}.{follower}.{name}"
                    for follower, leader in same.items()
                    if leader == entry and name not in priors.get(follower, {})
                )
                found.append(_parameter(f"{section}.{entry}.{name}", numbers, paths))
    return tuple(found)


def _parameter(path: str, numbers: Sequence[float], shared_by: tuple[str, ...] = ()) -> Parameter:
    prior, spread, low, high = numbers
    return Parameter(path=path, prior=prior, spread=spread, low=low, high=high, shared_by=shared_by)


def load_priors() -> dict[str, Any]:
    """Return the table of priors that comes with the package."""
    path = resources.files("forescale.calibrate") / "priors.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def logs_of(calibration: RunCalibration, parameters: Sequence[Parameter]) -> Array:
    """Return the logarithms of the parameters' present values."""
    return np.log([value_at(calibration, item.path) for item in parameters])


def value_at(calibration: RunCalibration, path: str) -> float:
    """Return the number at `path`."""
    section, *rest = path.split(".")
    entry = getattr(calibration, section)
    if section != "shared":
        entry = entry[".".join(rest[:-1])]
    value: float = getattr(entry, rest[-1])
    return value


def with_logs(calibration: RunCalibration, parameters: Sequence[Parameter], logs: Array) -> RunCalibration:
    """Return the calibration with other parameters: numbers, or arrays where `logs` has a second axis."""
    changes: dict[str, dict[str, dict[str, Any]]] = {}
    for item, log in zip(parameters, logs, strict=True):
        value = np.exp(log) if np.ndim(log) else float(np.exp(log))
        for path in (item.path, *item.shared_by):
            section, *rest = path.split(".")
            changes.setdefault(section, {}).setdefault(".".join(rest[:-1]), {})[rest[-1]] = value
    shared = replace(calibration.shared, **changes.get("shared", {}).get("", {}))
    tables: dict[str, Any] = {
        section: {
            name: replace(entry, **changes.get(section, {}).get(name, {}))
            for name, entry in getattr(calibration, section).items()
        }
        for section in ("devices", "software")
    }
    return replace(calibration, shared=shared, **tables)
