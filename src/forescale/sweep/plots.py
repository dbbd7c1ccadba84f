"""Which pictures a sweep is asked for: `[[plot]]` tables of its file, and `--plot` in the same words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from forescale.errors import SpecError, UnknownKeyError, UnknownNameError
from forescale.sweep.definition import Plot

KINDS: Mapping[str, tuple[str, ...]] = {
    "scaling": ("by", "title"),
    "line": ("x", "y", "by", "title"),
    "bars": ("x", "title"),
    "map": ("x", "y", "value", "title"),
}
"""Kinds of pictures and the keys that each takes."""
PLOT_KEYS = ("kind", "x", "y", "value", "by", "title")


def plot_of(given: Mapping[str, Any], columns: Collection[str], *, where: str) -> Plot:
    """Return one picture.

    Raises
    ------
    SpecError
        If it asks for a column that the sweep does not have, or lacks one that its kind needs.
    """
    kind = str(given.get("kind"))
    if kind not in KINDS:
        msg = f"{where}: a plot's kind must be {', '.join(KINDS)}; got {kind!r}"
        raise SpecError(msg)
    for key, value in given.items():
        if key != "kind" and key not in KINDS[kind]:
            raise UnknownKeyError(key, f"{where}, plot of kind {kind}", KINDS[kind])
        if not isinstance(value, str):
            msg = f"{where}: {key} of a plot must be the name of a column, got {value!r}"
            raise SpecError(msg)
        if key in ("x", "y", "value", "by") and value not in columns:
            what = f"column ({where}, {key} of plot)"
            raise UnknownNameError(what, value, columns)
    needed = [key for key in ("x", "y") if key in KINDS[kind] and key not in given]
    if needed:
        msg = f"{where}: a plot of kind {kind} needs {' and '.join(needed)}"
        raise SpecError(msg)
    return Plot(**given)


def parse_plot(text: str, columns: Collection[str]) -> Plot:
    """Return the picture that `--plot` asks for: "map:x=hbm_capacity,y=nic_bandwidth,value=mfu"."""
    kind, _, rest = text.partition(":")
    given: dict[str, str] = {"kind": kind.strip()}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            msg = f"--plot takes KIND:KEY=COLUMN,KEY=COLUMN, such as line:x=devices,y=mfu; got {text!r}"
            raise SpecError(msg)
        given[key.strip()] = value.strip()
    return plot_of(given, columns, where=f"--plot {text}")
