"""Frameworks by name: one data file each, beside this module in `frameworks/`, with its release lines inside.

Keys of a file hold for all its releases, those of a release go over them. `base` names what both start from: another
framework, or another release of the same one ("@2024"); tables are laid over tables, but for `recompute`. `limits`,
the options that the framework supports, are of the file, and may be another's by its name or go over them (`base`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from forescale.errors import UnknownKeyError, UnknownNameError, wrong_type
from forescale.files import packaged, packaged_names
from forescale.records import record
from forescale.spec.cluster import Device
from forescale.spec.framework import RULES, Framework
from forescale.spec.framework_options import Limits, Variant
from forescale.spec.layout import Kernels, Layout, Recompute
from forescale.spec.recipes import Recipe
from forescale.struct import asdict

_OF_FILE = frozenset({"aliases", "default", "base", "releases", "limits", "today", "numbered"})
DATED = re.compile(r"2\d\.(0[1-9]|1[0-2])(\.\d\d)?")
"""Releases that are named by year and month (25.09, 26.04.01)."""
NUMBERED = re.compile(r"\d+(\.\d+)+")
"""Releases of a file that is `numbered` (4.36.2)."""


def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks, sorted."""
    return tuple(sorted(_files()))


def release_names(name: str) -> tuple[str, ...]:
    """Return the release lines of a framework, the usual one first."""
    content = _files()[resolve_framework_name(name)]
    return tuple(sorted(content["releases"], key=lambda release: release != content["default"]))


def load_framework(name: str) -> Framework:
    """Return the framework that `name` means: NAME, in its usual release line, or NAME@RELEASE.

    Lines joined by "+" go over one another: megatron-bridge@bf16-moments+25.11. A date without an entry means the last
    release before it (`Framework.line`), and so does a number where the file is `numbered`. The number of a library
    that has a line of its own is that library's: trl@0.24 means transformers@trl-0.22.

    Raises
    ------
    UnknownNameError
        If there is no such framework or release; it names the nearest ones.
    """
    if not isinstance(name, str):
        raise wrong_type("load_framework", name, "a name such as torchtitan or nemo@24.07")
    return _loaded(name)


@cache
def _loaded(name: str) -> Framework:
    framework, at, release = name.partition("@")
    framework_name = resolve_framework_name(framework)
    if not at:  # a name that stands for what is its own successor today
        framework_name = _files()[framework_name].get("today", framework_name)
    content = _files()[framework_name]
    if at and not release:
        raise UnknownNameError(f"release of {framework_name}", release, release_names(framework_name))
    release = release or (framework if framework in content["releases"] else content["default"])
    if at and NUMBERED.fullmatch(release) and framework in content["releases"]:
        release = f"{framework}-{release}"
    lines = {line: _known_line(framework_name, line) for line in release.split("+")}
    known = "+".join(lines.values())
    values = {"name": framework_name, "release": release, **_merged(framework_name, known)}
    if new := [line for line, item in lines.items() if line != item]:
        values |= {"line": known} | ({} if content.get("numbered") else {"released": new[-1][:5]})
    variants, recipes = values.pop("variants", ()), values.pop("recipes", "")
    limits = values.pop("limits", content.get("limits"))
    result = record(Framework, values, "", f"catalogue framework {framework_name}@{release}")
    return replace(
        result,
        variants=tuple(_variant(entry, result) for entry in variants),
        limits=_limits(limits, result),
        recipes=_recipes(recipes) if recipes else (),
    )


def _known_line(name: str, line: str) -> str:
    """Return a release line of a framework; for a date or number without an entry the last one before, or the first.

    Raises
    ------
    UnknownNameError
        If there is no such line and it is neither.
    """
    lines: Mapping[str, Any] = _files()[name]["releases"]
    pattern = NUMBERED if _files()[name].get("numbered") else DATED
    library = _library(line)
    known = [item for item in lines if _library(item) == library]
    known = sorted((item for item in known if pattern.fullmatch(item.removeprefix(library))), key=_parts)
    if line in lines:
        return line
    if not (known and pattern.fullmatch(line.removeprefix(library))):
        raise UnknownNameError(f"release of {name}", line, release_names(name))
    return max((item for item in known if _parts(item) <= _parts(line)), key=_parts, default=known[0])


def _library(line: str) -> str:
    """Return the library whose number a release line has ("trl-" of trl-0.24), or nothing."""
    name, dash, number = line.rpartition("-")
    return name + dash if NUMBERED.fullmatch(number) else ""


def _parts(release: str) -> tuple[int, ...]:
    """Return the numbers of a release's name."""
    return tuple(map(int, release.removeprefix(_library(release)).split(".")))


@cache
def _recipes(name: str) -> tuple[Recipe, ...]:
    """Return the performance recipes of a data file in `recipes/`."""
    return tuple(Recipe(**entry) for entry in packaged(f"recipes/{name}")["recipes"])


def first_releases(name: str, layout: Layout) -> dict[str, str]:
    """Return the first release whose recipes have each setting of a layout that the oldest software lacks, by setting.

    These are the dispatcher, graphs and expert overlap that differ from the defaults.
    """
    releases = [load_framework(f"{name}@{release}") for release in release_names(name)]
    dated = [item for item in releases if item.released and item.recipes] or releases
    recipes = [(item.release, one.layout) for item in dated for one in item.recipes]
    settings = {
        f"{setting} {value}": {release for release, recipe in recipes if recipe.get(setting) == value}
        for setting in ("dispatcher", "graphs")
        if (value := getattr(layout, setting)) != getattr(Layout(), setting)
    }
    if layout.overlap.expert:
        settings["overlap expert"] = {
            release for release, recipe in recipes if recipe.get("overlap", {}).get("expert")
        }
    return {setting: min(known) for setting, known in settings.items() if known}


NONE = "none"
"""Name that stands for the defaults of no framework."""


_OF_ROW = ("vendor", "architectures", "framework")
"""Keys of a row of the table of usual frameworks that are not facts of a question."""


def default_stack(device: Device, facts: Mapping[str, object]) -> Framework | None:
    """Return the framework that trains where a question names none; None for devices that the table lacks.

    `facts` are what rows of the table may require: `devices`, `zero`, `moe`, `offload`, `adapters`, and `cut`: whether
    degrees other than data parallelism cut the model.
    """
    for row in packaged("default_stacks")["stacks"]:
        known = row["vendor"] == device.vendor and device.architecture in row.get(
            "architectures", (device.architecture,)
        )
        if known and all(facts.get(name) == value for name, value in row.items() if name not in _OF_ROW):
            return load_framework(row["framework"])
    return None


def resolve_framework_name(name: str) -> str:
    """Return the catalogue's own name of the framework that `name` means; case and underscores do not matter."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    aliases = {alias: local for local, content in _files().items() for alias in content.get("aliases", ())}
    plain = aliases.get(plain, plain)
    if plain not in _files():
        raise UnknownNameError("framework", name, [*framework_names(), *aliases, NONE])
    return plain


def _merged(name: str, release: str) -> dict[str, Any]:
    """Return the fields of one release with everything that it starts from."""
    content = _files()[name]
    before, joined, last = release.rpartition("+")
    local = content["releases"][last]
    if joined:
        return _over(_merged(name, before), {key: value for key, value in local.items() if key != "base"})
    start = local.get("base") or content.get("base")
    values = {} if start is None else _merged_of(start, name)
    if not str(local.get("base", "")).startswith("@"):
        values = _over(values, {key: value for key, value in content.items() if key not in _OF_FILE})
    return _over(values, {key: value for key, value in local.items() if key != "base"})


def _merged_of(start: str, name: str) -> dict[str, Any]:
    """Return the fields that `start` of the framework `name` means: "maxtext", "maxtext@2026" or "@2026"."""
    framework, _, release = start.partition("@")
    framework = framework or name
    return _merged(framework, release or _files()[framework]["default"])


def _over(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in more.items():
        below = merged.get(key)
        tables = key != "recompute" and isinstance(value, dict) and isinstance(below, dict)
        merged[key] = {**below, **value} if tables else value  # type: ignore[dict-item]
    return merged


def _variant(entry: Mapping[str, Any], framework: Framework) -> Variant:
    kernels = {**asdict(framework.kernels), **entry["kernels"]}
    record(Kernels, kernels, "kernels", f"a variant of {framework.label}")
    when = {name: tuple(values) for name, values in entry["when"].items()}
    return Variant(when=when, kernels=entry["kernels"])


def _limits(value: Any, framework: Framework) -> Limits | None:  # noqa: ANN401 (JSON)
    """Return the options that a framework supports; what it recomputes by default is as its record says."""
    if isinstance(value, str):
        value = {"base": value}
    if value is None:
        return None
    if "base" in value:
        value = {**_files()[value["base"]]["limits"], **value}
    rules = value.get("rules", {})
    for name in rules:
        if name not in RULES:
            raise UnknownKeyError(name, f"the limits of {framework.name}", RULES)
    return Limits(
        source=value["source"],
        note=value.get("note", ""),
        compute=tuple(value.get("compute", ())),
        values={name: _values(name, item, framework) for name, item in value["values"].items()},
        others={name: _values(name, other, framework) for name, other in value.get("others", {}).items()},
        reliefs={name: _values(name, relief, framework) for name, relief in value.get("reliefs", {}).items()},
        rules=rules,
    )


def _values(name: str, values: list[Any], framework: Framework) -> tuple[Any, ...]:
    if name == "recompute":
        return tuple(_recompute(word, framework) for word in values)
    return tuple(tuple(word) if isinstance(word, list) else word for word in values)


def _recompute(word: str, framework: Framework) -> Recompute:
    if word == "default":
        return framework.recompute
    fields = {"granularity": word} if word in ("none", "full") else {"granularity": "policy", "policy": word}
    return record(Recompute, fields, "recompute", f"the limits of {framework.name}")


@cache
def _files() -> Mapping[str, Any]:
    return MappingProxyType({name: packaged(f"frameworks/{name}") for name in packaged_names("frameworks")})
