"""A question of a sweep while its parameters are being set: specifications as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

from forescale.spec import Cluster, Model

Path: TypeAlias = tuple[str | int, ...]
Plain: TypeAlias = int | float | str | bool | tuple[str, ...]
Scaling: TypeAlias = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Times what it would be otherwise."""

    by: float


Value: TypeAlias = Factor | Plain


@dataclass(slots=True, kw_only=True)
class Draft:
    """What one point asks, open to changes; empty tables where nothing was given yet."""

    model: Model | None = None
    cluster: dict[str, Any] = field(default_factory=dict)
    """Fields of a cluster, its device and tiers as tables."""
    num_devices: int | None = None
    num_nodes: int | None = None
    """Nodes instead of devices: how many devices they are depends on the cluster."""
    base_devices: int | None = None
    """Devices that the batch belongs to under weak scaling."""
    workload: dict[str, Any] = field(default_factory=lambda: {"precision": {}})
    scaling: Scaling = "strong"
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Words of the dimensions of the search that are held."""

    def copy(self) -> Draft:
        """Return a draft whose tables are its own."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        return Draft(**{**own, "cluster": deepcopy(self.cluster), "workload": deepcopy(self.workload)})

    def place(self, cluster: Cluster) -> None:
        """Ask the question of another cluster."""
        self.cluster = asdict(cluster)

    def at(self, path: Path) -> Any:  # noqa: ANN401 (whatever a specification holds)
        """Return the value at `path`, None where nothing was given."""
        found: Any = self._table(path[0])
        for key in path[1:]:
            found = found.get(key) if isinstance(found, dict) else None if found is None else found[key]
        return found

    def put(self, path: Path, value: object) -> None:
        """Set the value at `path`."""
        place: Any = self._table(path[0])
        for key in path[1:-1]:
            if place[key] is None:  # a table of which nothing was given
                place[key] = {}
            place = place[key]
        place[path[-1]] = value

    def _table(self, name: str | int) -> dict[str, Any]:
        return self.cluster if name == "cluster" else self.workload
