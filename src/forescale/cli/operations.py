"""How a run is operated: options of every command that says when a run ends."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from annotated_types import Interval

from forescale.cli.help import Rare
from forescale.cli.options import bounded, option
from forescale.errors import SpecError
from forescale.files import place_of

_operated = partial(option, panel=Rare("Whole run"))
_share = partial(_operated, check=bounded(Interval(ge=0, le=1), whole=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsOptions:
    """How the run is operated; what is None is as `Operations` has it."""

    failures: str | None = _operated(
        "Rates of failure: published (llama-3, the default, meta-rsc-1, meta-rsc-2), counted in a file, or per node "
        "and day.",
        "NAME|FILE|RATE",
    )
    failure_factor: float | None = _operated(
        "Failures over what those rates say, such as 2.",
        "FACTOR",
        check=bounded(Interval(ge=0, le=1e6), whole=False),
    )
    checkpoint_mode: Literal["sync", "async", "peer"] | None = _operated(
        "How states are saved; async by default."
    )
    interval: str | None = _operated("Between checkpoints, such as 30min; the best by default.", "TIME")
    checkpoint_stall: str | None = _operated("That every save stops training, beside its bytes.", "TIME")
    storage_bandwidth: str | None = _operated("Of all devices together, such as 2TB/s.", "RATE")
    restart: str | None = _operated("From a failure until all processes run again, such as 10min.", "TIME")
    spares: int | None = _operated(
        "Nodes that wait to replace failed ones; `run` has enough, a plan tries how many.",
        "N",
        check=bounded(Interval(ge=0, le=2**20)),
    )
    repair: str | None = _operated("Until a failed node is back, such as 1d.", "TIME")
    fatal: float | None = _share("Of the failures, those that take a node out of service.", "SHARE")
    elastic: bool | None = _operated("Go on with fewer replicas where no spare is left.")
    evaluation: float | None = _operated(
        "Of the time, for evaluation, warm-up and compilation.",
        "SHARE",
        check=bounded(Interval(ge=0, le=0.99), whole=False),
    )
    stragglers: float | None = _share("Spread of the devices' speeds over their mean.", "SHARE")

    def values(self) -> dict[str, Any]:
        """Return what was given as the words of a plan's `[operations]`, how states are saved in a table of it."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        names = {"checkpoint_mode": "mode", "checkpoint_stall": "stall"}
        names |= {name: name for name in ("interval", "storage_bandwidth")}
        saved = {key: given.pop(name, None) for name, key in names.items()}
        if "failures" in given:
            given["failures"] = _rate(given["failures"])
        return given | {"checkpointing": saved}


def _rate(text: str) -> str | float:
    """Return failures per node and day, or the name of published rates, or the file that counts them."""
    try:
        rate = float(text)
    except ValueError:
        return str(place_of(text).absolute()) if place_of(text).is_file() else text
    if not 0.0 <= rate < math.inf:
        raise SpecError(f"--failures must be 0 or more per node and day, or a name; got {text}")
    return rate
