"""What was measured on one kind of device: kernels and collectives, from any number of files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forescale.cost.calibration import RunFactors
from forescale.cost.collectives import CollectiveModel
from forescale.cost.collectives.measured import MeasuredCollective
from forescale.cost.measured.compute import MeasuredCompute
from forescale.cost.measured.kernel_table import KernelTable
from forescale.cost.measured.messages import MeasuredMessages, curves_of
from forescale.cost.model import ComputeModel
from forescale.errors import SpecError
from forescale.graph.ops import Compute
from forescale.spec.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Timed kernels and collectives of one device."""

    source: str
    """Where they come from: file, date, software."""
    device: str = ""
    """Catalogue name of the device; empty where nobody said."""
    kernels: tuple[tuple[Compute, float], ...] = ()
    """Operators with plain extents, and their seconds."""
    collectives: tuple[MeasuredCollective, ...] = ()
    table: KernelTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the kernels."""
        object.__setattr__(self, "table", KernelTable(self.kernels))

    @classmethod
    def joined(cls, several: Iterable[Measurements]) -> Measurements:
        """Return the measurements of several files as one.

        Raises
        ------
        SpecError
            If they are of different devices.
        """
        each = tuple(several)
        devices = sorted({one.device for one in each if one.device})
        if len(devices) > 1:
            msg = f"measurements must be of one device; {', '.join(one.source for one in each)} are of {devices}"
            raise SpecError(msg)
        return cls(
            source="; ".join(one.source for one in each),
            device=devices[0] if devices else "",
            kernels=tuple(timing for one in each for timing in one.kernels),
            collectives=tuple(row for one in each for row in one.collectives),
        )

    def check(self, cluster: Cluster) -> None:
        """Raise if they were not measured on the cluster's device."""
        if self.device and self.device != cluster.device.name:
            msg = (
                f"{self.source} was measured on {self.device}; {cluster.name} has {cluster.device.name}, "
                "whose kernels take other times"
            )
            raise SpecError(msg)

    def compute(self, fallback: ComputeModel, run: RunFactors) -> ComputeModel:
        """Return the measured model of kernels, `fallback` where nothing was timed."""
        if not self.kernels:
            return fallback
        return MeasuredCompute(table=self.table, fallback=fallback, run=run, source=self.source)

    def messages(self, base: CollectiveModel, cluster: Cluster, *, exchanges: bool = True) -> CollectiveModel:
        """Return the measured model of collectives, `base` where nothing was timed.

        Without `exchanges` all-to-alls are left to `base`.
        """
        rows = tuple(row for row in self.collectives if exchanges or row.kind != "all_to_all")
        if not rows:
            return base
        return MeasuredMessages(base=base, cluster=cluster, curves=curves_of(rows), source=self.source)
