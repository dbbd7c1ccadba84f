"""What is searched for: the same for all candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

from forescale import question as base
from forescale.cost.mesh import Order
from forescale.cost.select import Costs
from forescale.graph.layout import Choices, Degrees, Layout
from forescale.graph.operator import Block
from forescale.graph.parts import Parts, build_blocks
from forescale.inputs import pricing_of
from forescale.project import project
from forescale.projection.result import Projection
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.space import Space
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.time.price import Pricing


class Question(base.Question):
    """What is searched for: the same for all candidates."""

    __slots__ = ()

    def pricing(self, degrees: Degrees, choices: Choices, order: Order) -> Pricing:
        """Return the cost models for all candidates of `degrees`."""
        return pricing_of(self, degrees, choices, order)

    def blocks(self, degrees: Degrees, choices: Choices) -> Parts[Block]:
        """Return the operator lists for all candidates of `degrees`."""
        return build_blocks(self.model, Layout.of(self.workload, degrees, choices))


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
            space=self.space,
            costs=self.costs,
            safe=self.safe,
        )

    def project(self, layout: Strategy) -> Projection:
        """Return what the question says of one layout: with its cost models, as everything is ranked."""
        return project(self.question.of(layout))

    @property
    def memory_limit(self) -> float:
        """Bytes that a layout may need: never more than the device has."""
        capacity = self.cluster.device.hbm_bytes
        return capacity if self.max_memory is None else min(self.max_memory, capacity)
