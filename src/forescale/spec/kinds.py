"""Base of the rows that describe kinds of context parallelism, dispatchers and optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import field

from forescale.struct import SpecStruct


class Kind(SpecStruct, frozen=True, kw_only=True):
    """A kind of something that a layout or a workload chooses by name."""

    frameworks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the kind in the files of each framework; the first is the one that is written."""


def framework_names(kinds: Iterable[Any], framework: str) -> dict[str, Any]:
    """Return the kinds that a framework's files can name: Forescale's name by the framework's."""
    return {theirs: kind.name for kind in kinds for theirs in kind.frameworks.get(framework, ())}
