"""The keys of a plan that the options of a layout and of a workload give."""

from __future__ import annotations

from typing import Any

from forescale.cli.advice import table
from forescale.cli.options import LayoutOptions, RunOptions
from forescale.io.plan import with_granularity
from forescale.spec.layout import Layout
from forescale.spec.option import Declared, declared_at


def layout_overrides(layout: LayoutOptions) -> dict[str, Any]:
    """Return the options that are given as the table of a layout in a plan.

    Raises
    ------
    SpecError
        If a value has the wrong form, or an option requires another granularity of recompute.
    """
    table = option_values(layout, Layout)
    if "recompute" in table:
        details = {item.flag: item for item in _typed(layout, Layout) if item.option.granularity}
        table["recompute"] = with_granularity(table["recompute"], details)
    return table


def option_values(group: LayoutOptions | RunOptions, kind: type) -> dict[str, Any]:
    """Return the options that are given as the table of a plan that describes a `kind`."""
    table: dict[str, Any] = {}
    for item in _typed(group, kind):
        place = table
        for name in item.path[:-1]:
            place = place.setdefault(name, {})
        value = getattr(group, item.name)
        key = item.path[-1]
        if item.is_list or item.option.sibling:
            from forescale.io.option_text import text_value

            key, value = text_value(item, value, where=item.flag)
        place[key] = value
    return table


def _typed(group: LayoutOptions | RunOptions, kind: type) -> list[Declared]:
    rows = table()["groups"][f"{type(group).__module__}:{type(group).__name__}"]
    given = (row for name, row in rows.items() if getattr(group, name) is not None)
    return [declared_at(kind, tuple(row["path"])) for row in given]
