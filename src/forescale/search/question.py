"""What is searched for: the same for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

from forescale.cost.calibration import RunFactors
from forescale.cost.mesh import Order
from forescale.cost.select import Costs
from forescale.graph.layout import Choices, Degrees, Layout
from forescale.graph.operator import Block
from forescale.graph.parts import Parts, build_blocks
from forescale.project import pricing_of, project
from forescale.projection.result import Projection
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.space import Space
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.time.price import Pricing


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is searched for: the same for all candidates."""

    model: Model
    cluster: Cluster
    workload: Workload
    software: str | None = None
    costs: Costs = field(default_factory=Costs)
    safe: bool = False
    """Whether memory counts at the upper end of its range, not as expected."""

    @property
    def run(self) -> RunFactors:
        """What whole runs lose on these devices under this software."""
        return self.costs.run_factors(self.cluster.device, self.software)

    def pricing(self, degrees: Degrees, choices: Choices, order: Order) -> Pricing:
        """Return the cost models for all candidates of `degrees`."""
        return pricing_of(self.model, self.cluster, degrees, choices, order, self.costs, self.run)

    def blocks(self, degrees: Degrees, choices: Choices) -> Parts[Block]:
        """Return the operator lists for all candidates of `degrees`."""
        precision, seq_len = self.workload.precision, float(self.workload.seq_len)
        return build_blocks(
            self.model, Layout(degrees=degrees, choices=choices, precision=precision, seq_len=seq_len)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a search was asked."""

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    costs: Costs = field(default_factory=Costs)
    max_memory: float | None = None
    """Bytes per device that a layout may need at its peak; None is the device's capacity."""
    safe: bool = False
    """Whether a layout must fit at the upper end of its range."""

    @property
    def question(self) -> Question:
        """What all its layouts share."""
        return Question(
            model=self.model,
            cluster=self.cluster,
            workload=self.workload,
            software=self.space.base.software,
            costs=self.costs,
            safe=self.safe,
        )

    def project(self, layout: Strategy) -> Projection:
        """Return what the question says of one layout: with its cost models, as everything is ranked."""
        return project(self.model, self.cluster, layout, self.workload, costs=self.costs)

    @property
    def memory_limit(self) -> float:
        """Bytes that a layout may need: never more than the device has."""
        capacity = self.cluster.device.hbm_bytes
        return capacity if self.max_memory is None else min(self.max_memory, capacity)
