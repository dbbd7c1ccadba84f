"""The spellings and conventions that published runs use, read from the JSON tables beside this module."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forescale.catalogue.frameworks import release_names
from forescale.files import Row
from forescale.spec.framework import merge_sections


@cache
def table(name: str) -> Any:  # noqa: ANN401  (JSON)
    """Return the content of `tables/NAME.json`."""
    return json.loads((Path(__file__).parent / "tables" / f"{name}.json").read_text(encoding="utf-8"))


@cache
def framework_name(source: str, remarks: str) -> str:
    """Return the record of the framework that a published source trained with, as `--framework` takes it."""
    for entry in table("sources"):
        explicit = re.search(entry.get("remarks", ""), remarks, re.IGNORECASE)
        if explicit and re.search(entry["match"], source, re.IGNORECASE):
            result = re.search(entry["released"], source) if "released" in entry else None
            return _of_release(entry["framework"], result)
    raise AssertionError("the table of sources ends with what matches all")


def _of_release(label: str, result: re.Match[str] | None) -> str:
    """Return the label of a record in the release that a source names, where the record knows it."""
    name, _, line = label.partition("@")
    if result is None or result[1] not in release_names(name):
        return label
    return f"{name}@{line}+{result[1]}" if line else f"{name}@{result[1]}"


def names_framework(source: str) -> bool:
    """Return whether a source is one whose framework is known; another's is taken to be the usual one."""
    return any(
        entry["match"] and re.search(entry["match"], source, re.IGNORECASE) for entry in table("sources")
    )


@cache
def first_match(name: str, text: str) -> Mapping[str, Any]:
    """Return the first entry of table `name` whose `match` is found in `text`, or an empty mapping."""
    for entry in table(name):
        if re.search(entry["match"], text, re.IGNORECASE):
            return MappingProxyType(entry)
    return MappingProxyType({})


@cache
def all_matches(name: str, text: str) -> Mapping[str, Any]:
    """Return the union of all entries of table `name` found in `text`; earlier entries win."""
    values: dict[str, Any] = {}
    for entry in table(name):
        if re.search(entry["match"], text, re.IGNORECASE):
            values = {**entry, **values}
    return MappingProxyType(values)


def words_of(row: Row) -> dict[str, Any]:
    """Return what cells of a row say in the words of a plan, as `strategy` and `workload`; later entries win."""
    values: dict[str, Any] = {}
    for entry in _of_row("words", row):
        names = {part: entry[part] for part in ("strategy", "workload") if part in entry}
        values = merge_sections(values, _with_tuples(names))
    return values


def reasons_of(row: Row) -> dict[str, Any]:
    """Return why cells of a row imply plan fields, by section, field and nested field."""
    values: dict[str, Any] = {}
    for entry in _of_row("words", row):
        why = str(entry.get("why", "the row's columns"))
        values = merge_sections(
            values, _filled({part: entry[part] for part in ("strategy", "workload") if part in entry}, why)
        )
    return values


def _filled(value: Any, text: str) -> Any:  # noqa: ANN401  (JSON)
    """Return nested tables with `text` in place of every value."""
    return {name: _filled(part, text) for name, part in value.items()} if isinstance(value, dict) else text


def _with_tuples(value: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return JSON with its lists as tuples, as a layout has them."""
    if isinstance(value, dict):
        return {name: _with_tuples(part) for name, part in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def doubt_of(row: Row) -> str:
    """Return why what a row says does not determine its memory; empty where it does."""
    return next((str(entry["doubt"]) for entry in _of_row("doubtful", row)), "")


def sitting_of(row: Row) -> str:
    """Return what tells apart runs that their source says are not to be compared; empty where it says nothing.

    It may name groups of what was found in the notes, such as the day.
    """
    for entry in _of_row("sittings", row):
        if result := re.search(entry["when"]["notes"], row.text("notes")):
            return result.expand(entry["sitting"])
    return ""


def _of_row(name: str, row: Row) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of table `name` whose patterns are all found in the row's cells."""
    for entry in table(name):
        if all(re.search(pattern, row.text(column)) for column, pattern in entry["when"].items()):
            yield entry
