"""Check the sections of a plan, and read fields and values that earlier releases wrote otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forescale.errors import (
    ReaderError,
    conflicts,
    given_twice,
    listed,
    no_value,
    required_with,
    wrong_type,
)
from forescale.positions import says_lines
from forescale.question import Note
from forescale.schedule.library import family
from forescale.spec.option import Declared
from forescale.spec.workload import EXCEPTIONS, Precision
from forescale.units import length_of

REPLAYS = {"modules": ("selective",), "policy": ("policy",), "num_layers": ("selective", "full", "policy")}
"""Granularities of recompute under which its other words mean something."""


@says_lines
def uncontradicted(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan file says, if no two of its words say different things.

    Raises
    ------
    ReaderError
        If a key has no value, a type is given twice, or a word of recompute goes with another granularity.
    """
    for key, value in values.items():
        if value is None:
            raise ReaderError(path, no_value(key))
    top, inner, layout = (values.get(name) for name in ("precision", "workload", "strategy"))
    nested = inner.get("precision") if isinstance(inner, dict) else None
    if isinstance(top, dict) and isinstance(nested, dict) and (twice := sorted(top.keys() & nested.keys())):
        fix = "give it in precision or in workload.precision"
        raise ReaderError(path, given_twice(f"precision.{twice[0]}", fix=fix))
    recompute = layout.get("recompute") if isinstance(layout, dict) else None
    for word, kinds in REPLAYS.items():
        if not (isinstance(recompute, dict) and recompute.get(word)):
            continue
        kind = recompute.get("granularity", kinds[0] if "framework" in values else "none")
        if kind not in kinds:
            granularity = f"the granularity {listed(kinds)}"
            raise ReaderError(path, required_with(granularity, f"recompute.{word}", kind).at("strategy"))
    return values


def with_granularity(recompute: Mapping[str, Any], details: Mapping[str, Declared]) -> dict[str, Any]:
    """Return the table of recompute with its granularity, which details of one granularity imply.

    `details` are the options that are given, by the names that messages have.

    Raises
    ------
    SpecError
        If a detail requires another granularity.
    """
    implied = next((item.option.granularity for item in details.values()), "")
    kind: str = recompute.get("granularity") or implied
    for name, item in details.items():
        if item.option.granularity != kind:
            raise required_with(f"recompute {item.option.granularity}", name, kind)
    if kind == "selective" and not details:
        return {"granularity": kind, "modules": ["core_attn"]}
    return {**recompute, "granularity": kind}


def check_names(values: Mapping[str, Any], where: str) -> None:
    """Refuse a preset that there is not, and types that are no names: a framework completes them unread.

    Raises
    ------
    SpecError
        If one of them is not.
    """
    if (preset := values.get("preset", "default")) != "default":
        from forescale.presets import load_preset

        load_preset(str(preset))
    work = values["workload"]
    precision = work.get("precision", {}) if isinstance(work, Mapping) else {}
    if not isinstance(precision, Mapping | Precision):
        raise wrong_type("precision", precision, "a table ([precision])").at(f"{where}, workload")
    for table in (precision, values.get("precision", {})):
        for name, value in table.items() if isinstance(table, Mapping) else ():
            if isinstance(value, Mapping | list) and name not in EXCEPTIONS:
                raise wrong_type(f"precision.{name}", value, "a name").at(f"{where}, workload")


def names_of(value: object, where: str) -> list[str]:
    """Return a list of names, none where nothing is given; refuse what is no list of text.

    Raises
    ------
    SpecError
        If it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise wrong_type(where, value, "a list of names")
    return list(value)


IN_PRODUCT, APART = "accumulate_in_product", "sums_gradients_apart"
"""Flags of kernels that plans and documents had until November 2026; `gradient_sum` says both."""


def in_todays_words(layout: Any, space: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:  # noqa: ANN401
    """Return the words of a layout and of a space with what flags of before said as they say it today."""
    return _today(layout), {**space, "base": _today(space["base"])} if "base" in space else space


def _today(layout: Any) -> Any:  # noqa: ANN401 (a section of a plan)
    kernels = layout.get("kernels") if isinstance(layout, Mapping) else None
    if not isinstance(kernels, Mapping):
        return layout
    flags = {name: kernels[name] for name in (IN_PRODUCT, APART) if isinstance(kernels.get(name), bool)}
    parts = {name: value for name, value in kernels.items() if name not in flags}
    if flags.get(APART):
        parts["gradient_sum"] = "apart"
    elif IN_PRODUCT in flags:
        parts["gradient_sum"] = "in_product" if flags[IN_PRODUCT] else "after_product"
    return {**layout, "kernels": parts}


def with_fixed_vpp(layout: Any) -> tuple[Any, tuple[Note, ...]]:  # noqa: ANN401 (a section of a plan)
    """Return a layout with the vpp that its schedule requires, if it gives none, and a note that says so."""
    if (
        not isinstance(layout, Mapping)
        or layout.get("vpp") is not None
        or not isinstance(layout.get("schedule"), str)
    ):
        return layout, ()
    pp = layout.get("pp")
    if not isinstance(pp, int) or pp < 2:
        return layout, ()
    result = family(layout["schedule"])
    if result.fixed_vpp in (None, 1):
        return layout, ()
    text = f"vpp = {result.fixed_vpp}, the only value that schedule {result.name} allows"
    return {**layout, "vpp": result.fixed_vpp}, (Note(topic="schedule", text=text),)


def spelt_out(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as `build` takes them: lengths such as "128k" are numbers, and selective recompute has modules.

    Selective recompute without modules recomputes core_attn, as in Megatron-LM. The section `layout` is `strategy`. A
    cluster such as 8xH100 gives the number of devices too, where nothing else does.

    Raises
    ------
    SpecError
        If both `layout` and `strategy` are given.
    """
    return _with_length(_with_modules(_with_layout(_with_count(values))))


def _with_count(values: dict[str, Any]) -> dict[str, Any]:
    """Return values in which a cluster's name such as 8xH100 is the name and the number of devices."""
    cluster = values.get("cluster")
    if not isinstance(cluster, str) or {"devices", "nodes"} & values.keys():
        return values
    from forescale.catalogue.clusters import counted_cluster, is_cluster_name

    name, count = ("", "") if is_cluster_name(cluster) else counted_cluster(cluster) or ("", "")
    return {**values, "cluster": name, "devices": int(count)} if count else values


def _with_layout(values: dict[str, Any]) -> dict[str, Any]:
    if "layout" not in values:
        return values
    if "strategy" in values:
        raise conflicts(["the sections layout", "strategy"])
    return {"strategy" if key == "layout" else key: value for key, value in values.items()}


def _with_modules(values: dict[str, Any]) -> dict[str, Any]:
    layout = values.get("strategy")
    if not isinstance(layout, dict):
        return values
    recompute = layout.get("recompute")
    if (
        not isinstance(recompute, dict)
        or recompute.get("granularity") != "selective"
        or "modules" in recompute
    ):
        return values
    return {**values, "strategy": {**layout, "recompute": {**recompute, "modules": ["core_attn"]}}}


def _with_length(values: dict[str, Any]) -> dict[str, Any]:
    work = values.get("workload")
    if not isinstance(work, dict):
        return values
    names = {name: work[name] for name in ("seq_len", "document_len") if isinstance(work.get(name), str)}
    lengths = {name: None if text.isdecimal() else length_of(text) for name, text in names.items()}
    known = {name: length for name, length in lengths.items() if length is not None}
    return {**values, "workload": {**work, **known}} if known else values
