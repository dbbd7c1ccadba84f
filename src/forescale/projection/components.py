"""What a step consists of, part by part: components of the model with their bytes, collectives with their seconds."""

from __future__ import annotations

from typing import Any

from forescale.struct import Struct, attributes


class ComponentBytes(Struct, frozen=True, kw_only=True):
    """A component of the model on one device of the stage that has it."""

    name: str
    parameters: int
    """Elements, before sharding over data parallelism."""
    kept_bytes: int
    """Activations that one micro-batch keeps from forward to backward."""
    times: int = 1
    """How often the model, or the component above, has it."""
    below: tuple[ComponentBytes, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        values = attributes(self, "name", "parameters", "kept_bytes", "times")
        return {**values, "below": [item.to_json() for item in self.below]}


class CollectiveTime(Struct, frozen=True, kw_only=True):
    """A collective of a step on one device."""

    part: str
    """Part of the step time that what is exposed of it belongs to."""
    name: str
    num_bytes: float
    num_ranks: int
    seconds: float
    """Of one call alone."""
    calls: float
    """Calls per step and device of the stage whose layers send longest."""

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return attributes(self, "part", "name", "num_bytes", "num_ranks", "seconds", "calls")
