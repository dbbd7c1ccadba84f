"""Memory beyond what the allocator hands out: context, and what the allocator holds besides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from msgspec.structs import replace

from forescale.cost.anchor import Anchor, Residual
from forescale.files import packaged
from forescale.formula import formula, total
from forescale.numeric import Numeric, square_root
from forescale.spec.cluster import Device
from forescale.spec.layout import Allocator
from forescale.struct import Struct


class Bounds(Struct, frozen=True, kw_only=True):
    """A number with its 80 % interval."""

    low: Numeric
    expected: Numeric
    high: Numeric


class Overhead(Struct, frozen=True, kw_only=True):
    """What no operator owns, from the calibration file of memory."""

    context: Bounds
    """Driver context and libraries, or what XLA leaves to its runtime: outside the allocator [byte]."""
    fragmentation: Bounds
    """Reserved over allocated."""
    source: str
    largest_tensor: float | None = None
    """Reserved less allocated memory over the largest tensor, instead of `fragmentation`."""
    kept: float = 0.0
    """With `largest_tensor`: what of it stays, over allocated memory, where the device has no room left."""
    formulas: Bounds | None = None
    """Measured over projected memory; None is that of published runs."""
    anchor: Anchor | None = None
    """A measurement that tells the gap between allocated and reserved instead, where it has a residual."""

    @property
    def residual(self) -> Residual | None:
        """What was measured, or tracked, beyond the formulas."""
        return None if self.anchor is None else self.anchor.residual

    @property
    def measured(self) -> Residual | None:
        """The same where an allocator was measured, whose gap between allocated and reserved is then known."""
        return None if self.residual is None or self.residual.tracked else self.residual


class Outside(Struct, frozen=True, kw_only=True):
    """Bytes of one device outside the allocator."""

    context: Bounds
    communicators: Bounds

    @property
    def expected(self) -> Numeric:
        """Return the expected bytes outside the allocator: the device's context and communicators together."""
        parts = {"context": self.context.expected, "communicators": self.communicators.expected}
        return total(parts, name="outside the allocator", unit="byte")


@cache
def overhead_of(
    device: Device, allocator: Allocator, *, varied: bool = False, loads_all: bool = False
) -> Overhead:
    """Return what a device holds beyond what is allocated.

    PyTorch's allocator keeps freed memory in pieces; how small, depends on whether tensors are as large in every
    step or, where lengths are `varied`, not. Its context is larger where the driver `loads_all` kernels. XLA places
    all buffers when it compiles, whatever the `allocator`; a CPU core has no context.
    """
    data = packaged("calibrations/memory/overhead")
    for table in (data["xla"], data["host"]):
        if device.vendor in table["vendors"]:
            reserved = table["reserved_bytes"].get(device.architecture, table["reserved_bytes"]["other"])
            return Overhead(
                context=_bounds(reserved if isinstance(reserved, list) else [reserved] * 3),
                fragmentation=_bounds(table["fragmentation"]),
                source=f"{table['reserved_source']} {table['fragmentation_source']}",
            )
    torch = data["pytorch"]
    ratios, context = torch["fragmentation"][allocator], torch["context"]["all" if loads_all else "used"]
    sizes = context["bytes"]
    return Overhead(
        context=_bounds(sizes.get(device.architecture, sizes["other"])),
        fragmentation=_bounds(ratios["varied" if varied else "fixed"]),
        source=f"{context['source']} {ratios['source']}",
    )


def recorded_overhead(usual: Overhead, *, varied: bool = False) -> Overhead:
    """Return the overhead of a model whose operators were recorded, which knows its tensors.

    Where lengths are `varied`, the allocator may still lose what it loses of other models.
    """
    data, kept = packaged("calibrations/memory/overhead")["recorded"], usual.fragmentation
    return replace(
        usual,
        context=_bounds(data["context"]),
        fragmentation=_bounds([1.0, 1.0, float(kept.high / kept.expected) if varied else 1.0]),
        largest_tensor=data["largest_tensor"],
        kept=data["kept"],
        formulas=_bounds(data["residual"]),
        source=f"{data['source']} {data['kept_source']}",
    )


def load_residual() -> Bounds:
    """Return measured over projected allocated memory, of published runs whose configuration is known."""
    return _bounds(packaged("calibrations/memory/overhead")["allocated"]["bounds"])


def _bounds(values: Sequence[float]) -> Bounds:
    low, expected, high = values
    return Bounds(low=low, expected=expected, high=high)


@formula(
    unit="byte", source="measured ratios of reserved to allocated memory: calibrations/memory/overhead.json"
)
def fragmentation_bytes(*, allocated: Numeric, ratio: float) -> Numeric:
    """Allocated × (reserved over allocated − 1)."""
    return allocated * (ratio - 1.0)


@formula(
    unit="byte",
    source="measured: calibrations/memory/overhead.json; PyTorch, c10/cuda/CUDACachingAllocator.cpp: smaller tensors "
    "split the room of the largest one, which then needs another segment",
)
def room_bytes(*, largest: Numeric, ratio: float) -> Numeric:
    """Largest tensor × (reserved − allocated over it)."""
    return largest * ratio


@formula(unit="byte", source="independent deviations add as squares")
def away(*, context: Numeric, communicators: Numeric, fragmentation: Numeric, formulas: Numeric) -> Numeric:
    """Root of the sum of squares of what each source may be away from what is expected of it."""
    return square_root(context**2 + communicators**2 + fragmentation**2 + formulas**2)
