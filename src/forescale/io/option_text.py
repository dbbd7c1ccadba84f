"""The values that texts of options have: lists with commas, tables, and fields that share an option."""

from __future__ import annotations

from typing import Any, get_args

from forescale.errors import nearest, not_one_of, wrong_type
from forescale.io.space import offloaded_layers, overlap_of, placement_of
from forescale.limits import whole_of
from forescale.spec.layout import OffloadName, Share
from forescale.spec.option import Declared
from forescale.struct import asdict


def text_value(item: Declared, text: str, *, where: str) -> tuple[str, Any]:
    """Return the key and the value of an option whose text is a list, a table or one of two fields.

    `where` it was written, for messages.

    Raises
    ------
    SpecError
        If the text has another form.
    """
    key, number = item.path[-1], whole_of(text)
    if item.option.sibling and text != "all" and number is None:
        return item.option.sibling, _offloaded(names_in(text), where)
    if item.option.sibling:
        return key, offloaded_layers(text, where=where)
    if item.entry is int:
        return key, _counts(text, where, item.option.metavar)
    if item.entry is Share:
        return key, [asdict(share) for share in placement_of(text, where=where)]
    if item.entry is not None:
        return key, names_in(text)
    if key == "overlap":
        return key, asdict(overlap_of(names_in(text), where=where))
    return key, text if number is None or not item.has_numbers else number


def _offloaded(names: list[str], where: str) -> list[str]:
    known = get_args(OffloadName)
    for name in names:
        if name not in known:
            close = nearest(name, known)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise not_one_of(where, name, f"a number of layers, all, or modules ({', '.join(known)})", hint)
    return names


def names_in(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _counts(text: str, option: str, example: str | None) -> list[int]:
    counts = [whole_of(count) for count in text.split(",")]
    if None in counts:
        raise wrong_type(option, text, f"whole numbers such as {example}")
    return [count for count in counts if count is not None]
