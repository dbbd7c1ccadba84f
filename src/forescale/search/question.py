"""What is searched for: the same for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

from forescale.cost.calibration import RunFactors
from forescale.cost.mesh import Order
from forescale.cost.select import Costs
from forescale.graph.layout import Choices, Degrees, Layout
from forescale.graph.operator import Block
from forescale.graph.parts import Parts, build_blocks
from forescale.project import pricing_of
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
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
