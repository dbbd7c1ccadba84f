"""Human units at the edge: inside, everything is SI floats (byte, second, FLOP, FLOP/s, byte/s)."""

from __future__ import annotations

import re
from decimal import Decimal

from forescale.errors import not_a_quantity, shown
from forescale.limits import Interval, within
from forescale.patterns import pattern

KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SCALES: dict[str, dict[str, float]] = {
    "byte": {**{f"{p}B": f for p, f in _PREFIX.items()}, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB},
    "byte/s": {
        **{f"{p}B/s": f for p, f in _PREFIX.items()},
        **{f"{p}{bit}/s": f / 8 for p, f in _PREFIX.items() for bit in ("b", "bit")},
        "GiB/s": GIB,
        "TiB/s": TIB,
        **{f"{p}Bps": f for p, f in _PREFIX.items()},
        **{f"{p}bps": f / 8 for prefix, f in _PREFIX.items() for p in {prefix, prefix.lower()}},
    },
    "FLOP/s": {f"{p}FLOP/s": f for p, f in _PREFIX.items()},
    "FLOP": {f"{p}FLOP": f for p, f in _PREFIX.items()},
    "second": {
        "s": 1.0,
        "ms": 1e-3,
        "us": 1e-6,
        "µs": 1e-6,
        "ns": 1e-9,
        "min": 60.0,
        "h": 3600.0,
        "d": 86400.0,
    },
    "hertz": {f"{p}Hz": f for p, f in _PREFIX.items()},
    "watt": {"W": 1.0, "kW": 1e3},
    "token": {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12},
    "length": {"": 1.0, "k": KIB, "K": KIB, "M": MIB},
    "money": {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9},
    "money/h": {"": 1.0, "/h": 1.0, "/hr": 1.0, "/hour": 1.0},
    "money/kWh": {"": 1.0, "/kWh": 1.0, "/MWh": 1e-3},
}
_SHORT = ("bps", "Bps")
"""Ends of other spellings of rates, which an error does not list."""
_CURRENCY = pattern(r"^\s*(?:US)?\$\s*|^\s*USD\s*(?=\d)|(?<=[\dKMB])\s*(?:USD|\$)(?=$|[\s/])")
"""The signs of the currency of published prices, which an amount may have."""
_OF_DEVICE = pattern(r"\s*(?:/|\bper\b)\s*(?:(?:GPU|device|chip)s?\s*[-/]?\s*)?(?=[hkM])")
"""What precedes the unit of a price, such as "/GPU-h" and "per device-hour"."""
_ANY = Interval(ge=-1e24, le=1e24)
_MORE = {
    "token": "; 20x is 20 per active parameter",
    "money": ", with or without $ or USD; amounts in another currency have no sign",
}
"""What else may be written in a dimension, for its error."""
_LONGEST = 60
_DIGITS = 4000
"""Python reads no more of a whole number."""
_THOUSANDS = pattern(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_QUANTITY = pattern(r"^\s*([-+]?[0-9][0-9_,]*\.?[0-9]*(?:[eE][-+]?[0-9]{1,3})?)\s*([^\s0-9]\S*)?\s*$")


def parse(text: str | float, dimension: str) -> float:
    """Return the SI value of `text` such as "989 TFLOP/s", "450 GB/s", "80 GiB" or a bare number.

    Raises
    ------
    SpecError
        If `text` is not a number with a unit of `dimension`; the message lists the units allowed.
    """
    scales = _SCALES[dimension]
    if isinstance(text, int | float):
        return float(within(text, _ANY, f"a quantity in {dimension}"))
    if dimension == "FLOP/s":  # as data sheets write it
        text = re.sub(r"FLOP[Ss]$", "FLOP/s", text.rstrip())
    written = text
    if dimension.startswith("money") and len(text) <= _LONGEST:  # as bills write it
        text = _OF_DEVICE.sub("/", _CURRENCY.sub("", text.strip()))
    match = _QUANTITY.match(text) if len(text) <= _LONGEST else None
    if match is None or (match[2] or "") not in {*scales, ""}:
        if dimension.startswith("money") and written.startswith("."):  # what a shell leaves of $2.50
            raise not_a_quantity(dimension, written, f"write 0{written}; a shell needs '$2.50' in quotes")
        units = ", ".join(unit for unit in scales if unit and not unit.endswith(_SHORT))
        more = _MORE.get(dimension.partition("/")[0], "")
        raise not_a_quantity(dimension, written, f"write a number and one of {units}{more}")
    if "," in match[1] and not _THOUSANDS.fullmatch(match[1]):
        point = f"{match[1].replace(',', '.')} {match[2] or ''}".rstrip()
        explicit = (
            f"write {point!r}" if match[1].count(",") == 1 and "." not in match[1] else "write 1,024 or 1024"
        )
        raise not_a_quantity(dimension, text, explicit)
    number = Decimal(match[1].replace("_", "").replace(",", ""))
    value = float(number * Decimal(repr(scales.get(match[2] or "", 1.0))))
    return float(within(value, _ANY, shown(text)))


def in_days(text: str) -> float:
    """Return the days of a text such as "30", "30d" or "12h".

    Raises
    ------
    SpecError
        If it is neither a number nor a time with a unit.
    """
    match = _QUANTITY.match(text) if len(text) <= _LONGEST else None
    unit = "" if match is None else match[2]
    return parse(text, "second") / (1.0 if match is not None and not unit else 86400.0)


def is_count(text: str) -> bool:
    """Return whether a text is a number with or without K, M, B or T."""
    match = _QUANTITY.match(text) if len(text) <= _LONGEST else None
    return match is not None and (match[2] or "") in _SCALES["token"]


def length_of(text: str) -> int | None:
    """Return the tokens of a sequence as people write them, None where it is not a number; k and M are of 1,024."""
    match = re.fullmatch(r"\s*(\d[\d_]*)([kKM]?)\s*", text, re.ASCII)
    return (
        None
        if match is None or len(text) > _DIGITS
        else int(match[1]) * {"": 1, "M": 1024**2}.get(match[2], 1024)
    )


THOUSANDS = ("--devices", "--nodes", "--global-batch-size", "--batch-size")
"""Options whose whole numbers may be written in thousands of 1,024: what is a power of two as a rule."""


def in_thousands(flag: str, text: str) -> int | None:
    """Return the number that a text such as 16k is to an option; None where it is none, or the option takes none."""
    named = f"--{flag.rsplit(maxsplit=1)[-1].lstrip('-').replace('_', '-')}" if flag else ""
    written = named in THOUSANDS and text.strip()[-1:] in ("k", "K")
    return length_of(text) if written else None


def counted(count: float, noun: str) -> str:
    """Return "1 layer", "2 layers", "3 searches"."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:{',.0f' if float(count).is_integer() else ',.4g'}} {noun}{ending}"


def format_bytes(value: float) -> str:
    """Return `value` bytes in GiB (or MiB, KiB) with sensible digits."""
    for name, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value) >= scale * (10 if name == "TiB" else 1):
            return f"{value / scale:.2f} {name}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Return `value` seconds as s, ms or µs with three significant digits or more."""
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= scale:
            return (
                f"{value / scale:.3f} {name}" if abs(value) < 1000 * scale else f"{value / scale:,.0f} {name}"
            )
    return f"{value / 1e-9:.1f} ns" if value else "0 s"


def format_span(seconds: float) -> str:
    """Return a time in the largest unit of which it has two or more: days, hours, minutes or those below."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2.0 * size:
            return (
                f"{seconds / size:,.3g} {unit}" if seconds < 1e3 * size else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds:.3g} s" if seconds >= 1.0 else format_seconds(seconds)


def format_count(value: float) -> str:
    """Return a large count as 70.6 B, 12.1 T and so on."""
    for name, scale in (("P", 1e15), ("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:.4g}"


_SI = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def format_quantity(value: float, unit: str) -> str:
    """Return a number with the unit that explanations use."""
    match unit:
        case "s" | "second":
            return format_seconds(value)
        case "byte":
            return format_bytes(value)
        case "parameter" | "token":
            return f"{format_count(value)} {unit}s"
        case "" | "1":
            return format_number(value)
        case "d":
            return f"{value:,.1f} days"
        case "token/s":
            return f"{value:,.1f} {unit}"
        case _:
            return format_prefixed(value, unit)


def format_prefixed(value: float, unit: str) -> str:
    """Return a large number with an SI prefix before its unit."""
    for prefix, scale in _SI:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{format_number(value)} {unit}"


def format_number(value: object) -> str:
    """Return a number without unit: whole ones in full, others with six digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.6g}"


def share_of(text: str) -> float | None:
    """Return the share of 1 that a text states, above 0 and up to 1; 35%, 35 and 0.35 are the same. None if none."""
    try:
        value = float(text.rstrip("% "))
    except ValueError:
        return None
    share = value / 100.0 if text.rstrip().endswith("%") or value > 1.0 else value
    return share if 0.0 < share <= 1.0 else None
