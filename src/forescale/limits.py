"""Numbers that may be given, wherever they are written: options, keys of files and cells of tables."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, Gt, Interval, Le

from forescale.errors import SpecError, shown

EXTENT = Interval(gt=0, le=10**7)
"""Sizes of a model: widths, heads, experts, entries of a vocabulary."""
LAYERS = Interval(gt=0, le=10_000)
DEVICES = Interval(gt=0, le=2**24)
"""Devices, nodes and degrees of parallelism."""
COUNT = Interval(gt=0, le=10**9)
"""Tokens of a sequence, sequences of a batch."""
AMOUNT = Interval(gt=0, le=1e24)
"""Rates, bytes, tokens of a run."""
SECONDS = Interval(ge=0, le=1e6)
"""Latencies."""

Extent: TypeAlias = Annotated[int, Gt(0), Le(10**7)]
OptionalExtent: TypeAlias = Annotated[int, Ge(0), Le(10**7)]
"""An extent that 0 leaves out."""
Devices: TypeAlias = Annotated[int, Gt(0), Le(2**24)]
Count: TypeAlias = Annotated[int, Gt(0), Le(10**9)]
Amount: TypeAlias = Annotated[float, Gt(0), Le(1e24)]
Rate: TypeAlias = Annotated[float, Gt(0), Ge(1.0), Le(1e24)]
"""FLOP/s, byte/s, bytes and hertz of hardware."""
Seconds: TypeAlias = Annotated[float, Ge(0), Le(1e6)]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
Factor: TypeAlias = Annotated[float, Gt(0), Le(1e3)]
"""What multiplies a rate or a time."""
Measure: TypeAlias = Annotated[float, Ge(0), Le(1e24)]


def within(value: Any, allowed: Interval, what: str, *, whole: bool = False) -> Any:  # noqa: ANN401 (a number)
    """Return `value` if it is a number that `allowed` holds; `what` it is, for the message.

    Raises
    ------
    SpecError
        If it is no finite number (or no `whole` one), or lies outside.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (isinstance(value, int) or math.isfinite(value)):
        problem = "must be a whole number" if whole else "must be a number"
    elif whole and value != int(value):
        problem = "must be a whole number"
    elif allowed.gt is not None and not value > allowed.gt:
        problem = f"must be greater than {allowed.gt}"
    elif allowed.ge is not None and not value >= allowed.ge:
        problem = f"must be {allowed.ge} or more"
    elif allowed.le is not None and not value <= allowed.le:
        problem = f"must be {_written(allowed.le)} or less"
    else:
        return int(value) if whole else value
    msg = f"{what} {problem}, got {shown(value)}"
    raise SpecError(msg)


def _written(bound: Any) -> str:  # noqa: ANN401 (a number)
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
