"""How a run is operated: options of `run`, and of `search` where it plans a whole run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from annotated_types import Interval

from forescale.cli.help import Rare
from forescale.cli.options import bounded, option
from forescale.errors import SpecError

if TYPE_CHECKING:
    from forescale.goodput.operations import Operations

_operated = partial(option, panel=Rare("Operations"))
_seconds = partial(_operated, check=bounded(Interval(ge=0, le=1e7), whole=False))
_share = partial(_operated, check=bounded(Interval(ge=0, le=1), whole=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsOptions:
    """How the run is operated; what is None is as `Operations` has it."""

    failures: str | None = _operated(
        "Published rates of failure (llama-3, the default, meta-rsc-1, meta-rsc-2), or failures per node and day.",
        "NAME|RATE",
    )
    checkpoint_mode: Literal["sync", "async", "peer"] | None = _operated(
        "How states are saved; async by default."
    )
    interval: float | None = _operated(
        "Between checkpoints; the best by default.",
        "SECONDS",
        check=bounded(Interval(gt=0, le=1e7), whole=False),
    )
    storage_bandwidth: str | None = _operated("Of all devices together, such as 2TB/s.", "RATE")
    restart: float | None = _seconds("From a failure until all processes run again.", "SECONDS")
    spares: int | None = _operated(
        "Nodes that wait to replace failed ones; `run` has enough, a plan tries how many.",
        "N",
        check=bounded(Interval(ge=0, le=2**20)),
    )
    repair: float | None = _seconds("Until a failed node is back.", "SECONDS")
    fatal: float | None = _share("Of the failures, those that take a node out of service.", "SHARE")
    elastic: bool | None = _operated("Go on with fewer replicas where no spare is left.")
    evaluation: float | None = _share("Of the time, for evaluation, warm-up and compilation.", "SHARE")
    stragglers: float | None = _share("Spread of the devices' speeds over their mean.", "SHARE")

    def refuse(self, why: str) -> None:
        """Raise if any of these options is given."""
        for name, value in asdict(self).items():
            if value is not None:
                raise SpecError(f"--{name.replace('_', '-')} {why}")

    def read(self) -> Operations:
        """Return how the run is operated."""
        from forescale.goodput.calendar import USUAL
        from forescale.goodput.operations import Checkpointing, Operations, failures_of
        from forescale.units import parse

        bandwidth = None if self.storage_bandwidth is None else parse(self.storage_bandwidth, "byte/s")
        if bandwidth is not None and bandwidth <= 0:
            msg = f"--storage-bandwidth must be greater than 0, got {self.storage_bandwidth}"
            raise SpecError(msg)
        names = ("restart", "spares", "repair", "fatal", "elastic", "evaluation", "stragglers")
        kept = {name: value for name in names if (value := getattr(self, name)) is not None}
        saved = Checkpointing(
            mode=self.checkpoint_mode or "async", interval=self.interval, storage_bandwidth=bandwidth
        )
        return Operations(failures=failures_of(self.failures or USUAL), checkpointing=saved, **kept)
