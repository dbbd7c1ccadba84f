"""What a search may choose, from names and words (`tp=8`, `zero=1,2`, `recompute=full`) or a space file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain, permutations
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec.structs import replace

from forescale.catalogue.frameworks import load_framework
from forescale.errors import (
    ReaderError,
    SpecError,
    UnknownKeyError,
    differs,
    not_one_of,
    whole_from,
    wrong_type,
)
from forescale.files import read_text
from forescale.limits import DEVICES, whole_of
from forescale.positions import says_lines
from forescale.schedule import family
from forescale.spec.framework import Framework, check_choice, searched
from forescale.spec.layout import (
    ALL_LAYERS,
    DEFAULT_AXIS_ORDER,
    Layout,
    Overlap,
    Placement,
    Recompute,
    RematPolicy,
    Share,
)
from forescale.spec.model import Model
from forescale.spec.option import declared
from forescale.spec.space import NAMES, SETTING_NAMES, Space, default_recompute, partial_recompute
from forescale.spec.workload import ComputeType, Precision
from forescale.synonyms import spelling
from forescale.syntax import parse_mapping, parse_toml

Words = Mapping[str, Sequence[str]]
"""Words by dimension."""
FILE_KEYS = ("for", "fix", "allow", "overlap")


def held_space(
    space: Space, kept: Words, model: Model, *, where: str, framework: Framework | None = None
) -> Space:
    """Return `space` with every dimension of `kept` left to the values that its words mean.

    `where` says where they were written, for messages.

    Raises
    ------
    UnknownKeyError
        If there is no such dimension.
    SpecError
        If a word means no value of its dimension, or none that `framework` knows.
    """
    return replace(space, **_meant(space, kept, model, where, framework))


def wider_space(
    space: Space, allowed: Words, model: Model, *, where: str, framework: Framework | None = None
) -> Space:
    """Return `space` with the values of `allowed` beside those that it has; errors as for `held_space`."""
    values = _meant(space, allowed, model, where, framework)
    local: dict[str, Any] = {"recompute": space.whole(model).recompute, "sp": space.sequence_parallel(model)}
    for name, more in values.items():
        present = local.get(name, getattr(space, name))
        values[name] = None if present is None else tuple(dict.fromkeys((*present, *more)))
    return replace(space, **values)


@says_lines
def read_space(
    path: Path, model: Model, *, base: Space | None = None, framework: Framework | None = None
) -> tuple[Space, Framework | None]:
    """Return the space that a file describes, and the framework it is for (`framework`, if it names none).

    Keys: `for`, a framework's name; `overlap`, the communication that runs beside compute; the tables `fix` (values
    instead of the usual ones) and `allow` (values beside them), with dimensions as keys.

    Raises
    ------
    ReaderError
        If the file cannot be read, or says something that no space has.
    """
    document = parse_mapping(read_text(path), path, parse_toml)
    try:
        return _space_of(document, model, base or Space(), framework)
    except SpecError as error:
        raise ReaderError(path, error) from error


def space_framework(path: Path) -> str | None:
    """Return the framework that a space file is for, if it names one."""
    named = parse_mapping(read_text(path), path, parse_toml).get("for")
    return named if isinstance(named, str) else None


def _space_of(
    document: dict[str, Any], model: Model, base: Space, framework: Framework | None
) -> tuple[Space, Framework | None]:
    for key in document:
        if key not in FILE_KEYS:
            raise UnknownKeyError(key, "the space", FILE_KEYS)
    if "for" in document:
        local = load_framework(str(document["for"]))
        if framework not in (None, local):
            fix = "give one of them"
            raise differs("the framework of the space", local.name, "the requested one", framework.name, fix)
        framework = local
    space = base if framework is None else searched(framework, base, limited=True)
    if "overlap" in document:
        overlap = overlap_of(_words("overlap", document["overlap"]))
        space = replace(space, base=replace(space.base, overlap=overlap))
    space = held_space(space, _table(document, "fix"), model, where="fix", framework=framework)
    return wider_space(space, _table(document, "allow"), model, where="allow", framework=framework), framework


def _table(document: dict[str, Any], key: str) -> dict[str, list[str]]:
    table = document.get(key, {})
    if not isinstance(table, dict):
        raise wrong_type(key, table, f"a table of dimensions, such as [{key}] tp = [4, 8]")
    return {name: _words(f"{key}.{name}", value) for name, value in table.items()}


def _words(key: str, value: object) -> list[str]:
    """Return a value, or a list of them, as words."""
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str | int | float) for item in items):
        raise wrong_type(key, value, "a word, a number or a list of them")
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in items]


def overlap_of(names: Sequence[str], *, where: str = "overlap") -> Overlap:
    """Return which communication overlaps: exactly the named kinds, or none; `where` they were written."""
    known = [item.name for item in fields(Overlap)]
    requested = [name for name in names if name != "none"]
    for name in requested:
        if name not in known:
            raise not_one_of(where, name, (*known, "none"))
    if requested and len(requested) < len(names):
        raise wrong_type(where, ",".join(names), "none, or names what overlaps")
    return Overlap(**{name: name in requested for name in known})


def _meant(
    space: Space, value: Words, model: Model, where: str, framework: Framework | None
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, item in value.items():
        if name not in (*NAMES, *SETTING_NAMES):
            raise UnknownKeyError(name, where, (*NAMES, *SETTING_NAMES))
        iterable = tuple(chain.from_iterable(_values(space, name, word, model, where) for word in item))
        if framework is not None:
            check_choice(framework, name, iterable)
        values[name] = iterable
    return values


def _values(space: Space, name: str, text: str, model: Model, where: str) -> tuple[object, ...]:
    """Return what one value of a dimension means."""
    if name in SETTING_NAMES and not _FEW.get(name):
        return (_scenario(name, text, where),)
    if name == "placement":
        return (text,) if text in ("orders", "all") else (placement_of(text, where=f"{where} placement"),)
    if name == "schedule":
        return (None,) if text == "default" else (family(text).name,)
    if name == "recompute":
        return _recompute(space, text, model, where)
    values = {str(value).lower(): value for value in _FEW.get(name, ())}
    if name == "axis_order":
        values = {"-".join(order): order for order in permutations(DEFAULT_AXIS_ORDER)}
    if (word := spelling(text, values)) is not None:
        return (values[word],)
    number = whole_of(text)
    if values or number is None or not 1 <= number <= DEVICES.le:
        raise not_one_of(f"{where} {name}", text, list(values) or whole_from(1))
    return (number,)


_FEW = {item.path[-1]: item.values for item in declared(Layout) if len(item.path) == 1}
"""All values of the fields of a layout that have few."""


def _recompute(space: Space, text: str, model: Model, where: str) -> tuple[Recompute, ...]:
    """Return the policies of a granularity that a search tries, full recompute of N layers, or a named policy."""
    kind, colon, count = text.partition(":")
    if kind == "full" and colon and (layers := whole_of(count)):
        return (Recompute(granularity="full", num_layers=layers),)
    if text == "full:any":
        return partial_recompute(model)
    if text in get_args(RematPolicy):
        return (Recompute(granularity="policy", policy=text),)  # type: ignore[arg-type]
    for policies in (space.recompute or (), default_recompute(model)):
        result = tuple(policy for policy in policies if policy.granularity == text)
        if result:
            return result
    known = ("none", "selective", "full", "full:N", "full:any", *get_args(RematPolicy))
    raise not_one_of(f"{where} recompute", text, known)


def _scenario(name: str, text: str, where: str) -> object:
    """Return a compute type with its recipe, what overlaps too, or what is on the host."""
    if name == "precision":
        return _precision(text, where)
    if name == "overlap":
        names = tuple(text.split("+"))
        overlap_of(names)
        return () if names == ("none",) else names
    if name == "activation_offload":
        return offloaded_layers(text, where=f"{where} activation_offload")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise wrong_type(f"{where} optimizer_offload", text, "a share from 0 to 1")
    return share


def _precision(text: str, where: str) -> tuple[str, str]:
    value, _, recipe = text.partition(":")
    compute = spelling(value, get_args(ComputeType))
    recipes = get_args(get_type_hints(Precision)["recipe"])
    if compute is None or (recipe or "none") not in recipes:
        raise not_one_of(f"{where} precision", text, f"{', '.join(get_args(ComputeType))}, or fp8:blockwise")
    return compute, recipe or "none"


def offloaded_layers(text: str, *, where: str) -> int:
    """Return how many layers of each stage keep their activations on the host: a number, or all of them."""
    number = ALL_LAYERS if text == "all" else whole_of(text)
    if number is None:
        raise wrong_type(where, text, "a number of layers, or all")
    return number


AXES = ("tp", "cp", "dp", "pp")


def placement_of(text: str, *, where: str) -> Placement:
    """Return the shares of tiers that `text` names; `where` says where it was written, for messages.

    Raises
    ------
    SpecError
        If it is written otherwise, or names an axis twice.
    """
    return tuple(_share(part, text, where) for part in text.split("/"))


def _share(part: str, text: str, where: str) -> Share:
    ranks: dict[str, int] = {}
    for item in part.split(","):
        axis, _, count = (word.strip() for word in item.partition("="))
        if axis not in AXES or axis in ranks or not whole_of(count):
            allowed = f"ranks of {', '.join(AXES)} inside each tier, such as tp=4,dp=2 or tp=8/pp=4"
            raise not_one_of(where, text, allowed)
        ranks[axis] = whole_of(count) or 1
    return Share(**ranks)
