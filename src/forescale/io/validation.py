"""From plain mappings (TOML, JSON, YAML, a web form) to specifications, with every error at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any, TypeVar

from forescale.catalogue.clusters import DEVICE_DIMENSIONS, LINK_DIMENSIONS, TIER_DIMENSIONS
from forescale.errors import SpecError, UnknownKeyError
from forescale.records import Units, Walk
from forescale.spec import Device, LinkParameters, MatrixRates, Model, Tier, Workload
from forescale.spec.cluster import SiteLink
from forescale.spec.operations import SAVING_DIMENSIONS, SPANS, Checkpointing, Operations

T = TypeVar("T")
_UNITS: Units = MappingProxyType(
    {
        Device: DEVICE_DIMENSIONS,
        Tier: TIER_DIMENSIONS,
        LinkParameters: LINK_DIMENSIONS,
        MatrixRates: {field.name: "FLOP/s" for field in fields(MatrixRates)},
        Workload: {"tokens": "token"},
        SiteLink: {"bandwidth": "byte/s", "latency": "second"},
        Operations: SPANS,
        Checkpointing: SAVING_DIMENSIONS,
    }
)


def build(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Return a `kind` (a specification dataclass) from plain `values`.

    Parameters
    ----------
    kind
        `Model`, `Cluster`, `Strategy`, `Workload` or any dataclass that they are made of.
    values
        Fields by name; tables inside are mappings, tuples are lists, and a field measured in SI units may be
        text with a unit such as "450 GB/s".
    where
        What `values` are, for messages, such as "plan.toml, strategy".

    Raises
    ------
    UnknownKeyError
        If the one thing wrong is a key that `kind` does not have.
    SpecError
        If anything else is wrong; its text names every problem with its path.
    """
    walk = Walk(where, _UNITS)
    built = walk.visit(kind, values, ())
    if not walk.problems:
        return built  # type: ignore[no-any-return]
    if len(walk.problems) == 1 and isinstance(walk.problems[0], UnknownKeyError):
        raise walk.problems[0]
    raise SpecError(f"{where}: " + "; ".join(str(problem) for problem in walk.problems))


def checked_model(model: Model, *, where: str) -> Model:
    """Return a model that a reader made, if `build` would make it from its fields."""
    values = {item.name: getattr(model, item.name) for item in fields(Model)}
    values["layers"] = [asdict(kind) for kind in model.layer_kinds]
    values["patches"] = None if model.patches is None else asdict(model.patches)
    build(Model, values, where=where)
    return model
