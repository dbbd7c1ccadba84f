"""What a measured run says of memory: peaks by rank, and single layers."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.errors import SpecError
from forescale.limits import Amount, OptionalExtent


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """Peaks of one device over a step [byte]."""

    rank: OptionalExtent = 0
    stage: OptionalExtent = 0
    """Pipeline rank of the device."""
    peak_allocated_bytes: Amount
    """Most that the allocator handed out (torch.cuda.max_memory_allocated)."""
    peak_reserved_bytes: Amount
    """Most that the allocator held (torch.cuda.max_memory_reserved)."""
    peak_device_bytes: Amount | None = None
    """Most that was used of the device by the driver's count, context and communicators included."""

    def __post_init__(self) -> None:
        """Refuse peaks that cannot be of one device."""
        if self.peak_reserved_bytes < self.peak_allocated_bytes:
            msg = (
                f"rank {self.rank}: peak_reserved_bytes {self.peak_reserved_bytes:.0f} is below "
                f"peak_allocated_bytes {self.peak_allocated_bytes:.0f}; an allocator holds what it hands out"
            )
            raise SpecError(msg)
        if self.peak_device_bytes is not None and self.peak_device_bytes < self.peak_reserved_bytes:
            msg = (
                f"rank {self.rank}: peak_device_bytes {self.peak_device_bytes:.0f} is below "
                f"peak_reserved_bytes {self.peak_reserved_bytes:.0f}; leave it out if it is not known"
            )
            raise SpecError(msg)

    @property
    def outside_bytes(self) -> float | None:
        """What lies outside the allocator; None where it was not measured."""
        return None if self.peak_device_bytes is None else self.peak_device_bytes - self.peak_reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """One layer of one kind, for one micro-batch on one device."""

    kind: str
    """Attention and feed-forward such as "attention+dense"; or one of the two, where it says enough."""
    activation_bytes: Amount | None = None
    """What the layer keeps from forward to backward."""
    forward_s: Amount | None = None
    backward_s: Amount | None = None
