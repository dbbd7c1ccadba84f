"""Numbers that may be given, wherever they are written: options, keys of files and cells of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from forescale.errors import out_of_range, wrong_type

DIGITS = 15
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+", re.ASCII)
MOST_FACTOR = 8
"""Between numbers of a list, such as 64,512: 16,384 and 8,192 are one number each."""
TINY = 1e-24
"""Smallest size of a number other than 0: smaller ones are no measurement, and what is divided by them overflows."""


class Interval(NamedTuple):
    """Numbers above `gt`, or from `ge` on, to `le`: of annotated fields, options, keys and cells."""

    gt: float | None = None
    ge: float = -math.inf
    le: float = math.inf


EXTENT = Interval(gt=0, le=2**24)
"""Sizes of a model: widths, heads, experts, entries of a vocabulary."""
LAYERS = Interval(gt=0, le=10_000)
DEVICES = Interval(gt=0, le=2**24)
"""Devices, nodes and degrees of parallelism."""
COUNT = Interval(gt=0, le=10**9)
"""Tokens of a sequence, sequences of a batch."""
AMOUNT = Interval(gt=0, le=1e24)
"""Rates, bytes, tokens of a run."""
MEMORY = Interval(ge=2**20, le=1e24)
"""Bytes of a device that a search may fill; a number below lacks its unit."""
JOBS = Interval(gt=0, le=1_024)
"""Points worked on at once."""
SWEPT = Interval(gt=0, le=100_000)
"""Points of a sweep."""
TIME = Interval(gt=0, le=1e9)
"""Seconds or days that somebody waits."""
PORTS = Interval(ge=0, le=65_535)
PRICE = Interval(ge=0, le=1e9)
PUE = Interval(ge=1, le=10)
SEED = Interval(ge=0, le=2**32 - 1)
STAGES = Interval(ge=0, le=2**24)
"""Numbers of pipeline stages, from 0."""
SHOWN = Interval(gt=0, le=10_000)
"""Rows that are shown."""
REST = Interval(ge=0, le=10_000)
"""Rows that may be left out altogether."""
SECONDS = Interval(ge=0, le=1e6)
"""Latencies."""

Extent: TypeAlias = Annotated[int, Interval(gt=0, le=2**24)]
OptionalExtent: TypeAlias = Annotated[int, Interval(ge=0, le=2**24)]
"""An extent that 0 leaves out."""
Devices: TypeAlias = Annotated[int, Interval(gt=0, le=2**24)]
Count: TypeAlias = Annotated[int, Interval(gt=0, le=10**9)]
Amount: TypeAlias = Annotated[float, Interval(gt=0, le=1e24)]
Rate: TypeAlias = Annotated[float, Interval(ge=1e6, le=1e24)]
"""FLOP/s, byte/s, bytes and hertz of hardware; a number below lacks its unit."""
Seconds: TypeAlias = Annotated[float, Interval(ge=0, le=1e6)]
Delay: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
"""Seconds of one hop of a network; a number above lacks its unit."""
Share: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
Factor: TypeAlias = Annotated[float, Interval(gt=0, le=1e3)]
"""What multiplies a rate or a time."""
Measure: TypeAlias = Annotated[float, Interval(ge=0, le=1e24)]


def within(value: Any, allowed: Interval, what: str, *, whole: bool = False) -> Any:  # noqa: ANN401 (a number)
    """Return `value` if it is a number that `allowed` holds; `what` it is, for the message.

    Raises
    ------
    SpecError
        If it is not a finite number (or not a `whole` one), or outside; an interval has a lower and an upper end.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and (isinstance(value, int) or math.isfinite(value))
    low = finite and not (value > allowed.gt if allowed.gt is not None else value >= allowed.ge)
    if whole and (low or not finite or value != int(value)):
        violation = f"a whole number of {allowed.ge if allowed.gt is None else allowed.gt + 1} or more"
    else:
        violation = outside(value, allowed) if finite else "a number"
    if violation:
        where, _, key = what.rpartition(": ")
        raise (out_of_range if finite else wrong_type)(key, value, violation).at(where)
    return int(value) if whole else value


def outside(value: float, allowed: Interval) -> str:
    """Return the bound that a number violates, as a description of what is allowed; empty where it is inside."""
    if allowed.gt is not None and not value > allowed.gt:
        return f"greater than {allowed.gt}"
    if allowed.gt is None and value < allowed.ge:
        return f"{allowed.ge} or more"
    if value > allowed.le:
        return f"{written(allowed.le)} or less"
    return f"0 or at least {TINY:g} in size" if 0.0 < abs(value) < TINY else ""


def whole_of(text: str) -> int | None:
    """Return the whole number of at most fifteen digits that `text` is, also in groups of three; None of others.

    Groups each of which is a small multiple of the one before, such as 64,128, are several numbers.
    """
    digits = text.strip()
    if _GROUPED.fullmatch(digits) and not _is_series(digits.split(",")):
        digits = digits.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= DIGITS else None


def _is_series(groups: Sequence[str]) -> bool:
    """Return whether numbers ascend by whole factors of at most `MOST_FACTOR`."""
    numbers = [int(group) for group in groups]
    return all(
        before < after <= MOST_FACTOR * before and after % before == 0 and group[0] != "0"
        for before, after, group in zip(numbers, numbers[1:], groups[1:], strict=False)
    )


def written(bound: Any) -> str:  # noqa: ANN401 (a number)
    """Return a bound as messages write it."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
