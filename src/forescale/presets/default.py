"""Our own engine under the same contract."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.projection.result import Projection
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPreset:
    """Forescale's own operator list, cost models and schedules."""

    name: str = "default"
    source: str = "Forescale's own engine"

    def project(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Projection:
        """Project one layout as `forescale.project.project` does."""
        from forescale.project import project

        return project(model, cluster, strategy, workload)


DEFAULT = DefaultPreset()
