"""The question that an address holds: every field of the form is a parameter, so a link is the whole question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, TypeAlias, get_args
from urllib.parse import urlencode

from msgspec.structs import replace

from forescale import wording
from forescale.catalogue.clusters import cluster_names, load_cluster, resolve_cluster_name
from forescale.catalogue.frameworks import NONE, framework_names
from forescale.catalogue.models import model_names, resolve_model_name
from forescale.errors import ForescaleError, ReaderError, SpecError, UnknownKeyError, UnknownNameError
from forescale.files import parse_json
from forescale.frameworks.huggingface import read_huggingface
from forescale.io.merge import with_overrides
from forescale.io.named import checked_model, devices_of_node, framework_given
from forescale.io.question import build_question
from forescale.presets import preset_names
from forescale.projection.result import Projection
from forescale.question import Question, TensorParallel
from forescale.schedule import families
from forescale.spec.framework import searched, with_recipes
from forescale.spec.layout import Layout
from forescale.spec.option import Declared, declared
from forescale.spec.space import Space
from forescale.spec.workload import ComputeType, Workload
from forescale.struct import Struct
from forescale.syntax import toml_value
from forescale.units import GIB, parse

Query = Sequence[tuple[str, str]]
"""Names and values, as they stand in an address."""
Path: TypeAlias = tuple[str, ...]
"""Where a word stands in a plan."""
WHERE = "the page"
PASTED = "the pasted config.json"
LONGEST_VALUE = 50_000
"""Characters of a pasted config.json."""
MOST_FIELDS = 64
MOST_LAYERS = 2_000
"""Layers that are projected while somebody waits."""
MOST_SETS = 96
OWN = "own"
"""What stands for the model where a config.json is pasted."""
DERIVED: Path = ("strategy", "dp_shard")
"""The degree that follows from the others and the number of devices."""
ROOTS = ("strategy", "workload", "precision", "preset_options")
"""Tables of a plan that `set` may change; the others may name files."""


class FormError(SpecError):
    """A question that cannot be answered, as the form shows it: `field` is the input at fault, empty if unknown."""

    def __init__(self, message: str, field: str = "") -> None:
        self.field = field
        super().__init__(message)


class Field(Struct, frozen=True, kw_only=True):
    """One input of the form."""

    name: str
    label: str
    group: str
    path: Path = ()
    """Where its value goes in a plan."""
    choices: tuple[str, ...] = ()
    usual: str = ""
    """What stands there when the page opens."""
    hint: str = ""
    listed: bool = False
    """Whether choices are suggestions of a text field."""
    slider: tuple[float, float, float] | None = None
    """Least and greatest power of two of a slider beside it, and its step."""


def _choices(values: object) -> tuple[str, ...]:
    return ("", *(str(arg) for arg in get_args(values)))


def _layout_field(item: Declared) -> Field:
    """Return the input of a declared field of a layout; for a schedule with the names of the library."""
    names = tuple(family.name for family in families()) if item.name == "schedule" else item.values
    return Field(
        name=item.name,
        label=item.option.label,
        group="Layout",
        path=("strategy", *item.path),
        choices=("", *(str(name).lower() for name in names)) if names else (),
        usual=OPENED.get(item.name, ""),
    )


OPENED = {"tp": "8", "pp": "4"}
"""Degrees with which the page opens."""
FIELDS: tuple[Field, ...] = (
    Field(name="model", label="Model", group="Run", path=("model",), choices=(OWN, *model_names()),
          usual="llama-3.1-70b", hint=f"{OWN}: the config.json pasted below", listed=True),
    Field(name="cluster", label="Cluster", group="Run", path=("cluster",), choices=cluster_names(),
          usual="h100-sxm", listed=True),
    Field(name="devices", label="Devices", group="Run", path=("devices",), usual="256",
          slider=(3, 14, 1)),
    Field(name="seq_len", label="Tokens per sequence", group="Run", path=("workload", "seq_len"), usual="8192"),
    Field(name="global_batch_size", label="Sequences per step", group="Run",
          path=("workload", "global_batch_size"), usual="1024", slider=(3, 14, 1)),
    Field(name="tokens", label="Tokens to train", group="Run", path=("workload", "tokens"), hint="e.g. 15T"),
    Field(name="price", label="Device-hour price", group="Run", hint="e.g. 2.50"),
    Field(name="framework", label="Framework", group="Run", path=("framework",),
          choices=(NONE, *framework_names()), hint="the usual one of the devices", listed=True),
    Field(name="preset", label="Published analysis", group="Run", path=("preset",),
          choices=("", *preset_names()[1:]), hint="Forescale's own engine"),
    Field(name="tensor_parallel", label="… its tensor parallelism", group="Run",
          path=("preset_options", "tensor_parallel"), choices=_choices(TensorParallel)),
    Field(name="precision", label="Compute type", group="Run", path=("precision", "compute"),
          choices=_choices(ComputeType)),
    Field(name="images", label="Images per sequence", group="Run", path=("workload", "images", "count"),
          hint="default"),
    Field(name="image_size", label="Image size (px)", group="Run", path=("workload", "images", "size"),
          hint="default"),
    *(_layout_field(item) for item in declared(Layout) if item.option.label),
    Field(name="hbm_gib", label="Memory per device [GiB]", group="What if", hint="of the device", slider=(4, 9, 0.25)),
    Field(name="network", label="Network between nodes ×", group="What if", hint="1",
          slider=(-3, 3, 0.5)),
)  # fmt: skip
"""The form, in order. `set` (PATH=VALUE) may be given besides, any number of times, and `config`."""
NEEDED = {
    "model": "Enter a model",
    "cluster": "Enter a cluster",
    "devices": "Enter the number of devices",
    "seq_len": "Enter the number of tokens per sequence",
    "global_batch_size": "Enter the number of sequences per step",
}
"""What to say where a field is empty that has no default."""
NAMES = (*(item.name for item in FIELDS), "set", "config")
LONGEST_NAME = 120
"""Characters of a name that are read."""


_PLACE = re.compile(rf"{WHERE}(?:, (\w+))?: ")
"""How a message about the page begins; its table in a plan is the group."""
_VALUED = re.compile(r"\b(\w+) (?:= )?['\d]")
"""What a message states with its value."""


def form_error(error: ForescaleError) -> FormError:
    """Return an error as the form shows it: with the field at fault, and without the place, which is the page."""
    if isinstance(error, FormError):
        return error
    place = _PLACE.match(str(error))
    text = str(error)[place.end() :] if place else str(error)
    if isinstance(error, UnknownNameError):
        return FormError(text, error.kind if error.kind in NAMES else "")
    if isinstance(error, UnknownKeyError):
        return FormError(text.replace(f" in {WHERE}, ", " in "), "set")
    if isinstance(error, ReaderError):
        return FormError(text, "config" if error.path == PASTED else "")
    paths = {item.path: item.name for item in FIELDS if item.path}
    for key in (error.key, text.partition(" ")[0]):
        path = (*((place[1],) if place and place[1] else ()), *key.split("."))
        named = paths.get(path) or paths.get(path[1:])  # a plan has precision outside the workload
        if named or key in NAMES:
            return FormError(text, named or key)
    return FormError(text, next((name for name in _VALUED.findall(text) if name in NAMES), ""))


def opened() -> Query:
    """Return the question with which the page opens."""
    return [(item.name, item.usual) for item in FIELDS if item.usual]


def told(query: Query) -> Query:
    """Return what an address says, without empty fields, in the order of the form.

    Raises
    ------
    SpecError
        If there is too much of it, a name that no field has, or a field with two values.
    """
    if len(query) > 2 * MOST_FIELDS:
        raise wording.too_large("the question", f"{len(query)} parameters", 2 * MOST_FIELDS).at(WHERE)
    message = [(name, value.strip()) for name, value in query if value.strip()]
    first = dict(reversed(message))
    for name, value in message:
        if name not in NAMES:
            raise UnknownNameError("parameter", name[:80], NAMES)
        if name != "set" and value != first[name]:
            raise wording.given_twice(name, first[name][:80], value[:80]).at(WHERE)
        if len(value) > LONGEST_VALUE:
            raise wording.too_large(name, f"{len(value):,} characters", LONGEST_VALUE).at(WHERE)
    return sorted(message, key=lambda pair: NAMES.index(pair[0]))


def address(query: Query) -> str:
    """Return the part of a link after its question mark."""
    return urlencode(list(told(query)))


def changed(query: Query, **values: str) -> Query:
    """Return the question with some fields changed; an empty value leaves a field out."""
    return told([*((name, value) for name, value in query if name not in values), *values.items()])


def question(query: Query) -> Question:
    """Return the question of one layout that an address asks.

    Raises
    ------
    ForescaleError
        If anything is missing, unknown or impossible; a name is one of the catalogue, never a file.
    """
    values = _values(told(query))
    values.setdefault("strategy", {})
    request = build_question(values, where=WHERE, default_framework=True)
    return _bounded(request)


def price_of(query: Query) -> float | None:
    """Return the price of a device and hour that an address says, if it says one."""
    text = dict(told(query)).get("price")
    return (
        None if text is None else _number(text, "price", most=1e6, read=partial(parse, dimension="money/h"))
    )


def search_question(query: Query) -> Question:
    """Return the question of the best layout: what an address says of the layout is left free."""
    values = _values(of_search(query))
    bounded = _bounded(build_question(values, where=WHERE, default_framework=True))
    if bounded.preset != "default":
        return replace(bounded, strategy=None)
    space = Space() if bounded.strategy is None else Space(base=bounded.strategy)
    if bounded.framework is not None:
        space = searched(bounded.framework, space, limited=False)
        space = with_recipes(bounded.framework, space, bounded.model, bounded.cluster, bounded.assumed)
    return replace(bounded, strategy=None, space=space)


def of_search(query: Query) -> Query:
    """Return what an address says but for the layout."""
    lines = [line for name, value in query if name == "set" for line in value.splitlines()]
    others = "\n".join(line for line in lines if not line.strip().startswith("strategy."))
    layout = {item.name: "" for item in FIELDS if item.group == "Layout"}
    return changed(query, **layout, set=others)


def laid_out(query: Query, one: Projection) -> Query | None:
    """Return the question of the address with the layout of a projection; None if no fields express it.

    Only what differs from the defaults is set; the degree that follows from the others is set only if it must be.
    """
    free = of_search(query)
    requested, built = _words_of(one.strategy, one.workload), _default_words(tuple(free))
    for _ in range(3):  # with what is set, a framework chooses otherwise
        parts = {path: value for path, value in requested.items() if value != built.get(path)}
        if not parts:
            return free
        free = _saying(free, {path: parts[path] for path in parts if path != DERIVED} or parts)
        try:
            request = question(free)
        except ForescaleError:
            return None
        built = _words_of(request.layout, request.workload)
    return free if built == requested else None


@lru_cache(maxsize=8)
def _default_words(free: tuple[tuple[str, str], ...]) -> dict[Path, Any]:
    """Return the words of the default layout; none where it is not possible."""
    try:
        request = question(free)
    except ForescaleError:
        return {}
    return _words_of(request.layout, request.workload)


def _words_of(layout: Layout, workload: Workload) -> dict[Path, Any]:
    """Return all words of a layout and of what is trained, by their paths in a plan."""
    values = {"strategy": asdict(layout), "workload": asdict(workload)}
    return dict(leaves({**values, "precision": values["workload"].pop("precision")}))


def leaves(values: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value of nested tables with its path."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _saying(query: Query, values: Mapping[Path, Any]) -> Query:
    """Return the question with some words of a plan, as fields of the form or as lines of `set`."""
    names = {item.path: item.name for item in FIELDS if item.path}
    fields = {
        names[path]: "" if value is None else str(value) for path, value in values.items() if path in names
    }
    lines = [
        f"{'.'.join(path)}={toml_value(value)}"
        for path, value in values.items()
        if path not in names and value is not None
    ]
    return changed(query, **fields, set="\n".join(filter(None, [dict(query).get("set", ""), *lines])))


def _values(query: Query) -> dict[str, Any]:
    """Return what is said as the values of a plan."""
    values: dict[str, Any] = {}
    fields = {item.name: item for item in FIELDS}
    one: dict[str, Any] = dict(query)
    for name, text in query:
        field = fields.get(name)
        if field is None or not field.path:
            continue
        place = values
        for step in field.path[:-1]:
            place = place.setdefault(step, {})
        place[field.path[-1]] = _value(text)
    values["model"] = _model(one)
    if (size := devices_of_node(one)) is not None:
        one["devices"] = values["devices"] = size
    for name in NEEDED:
        _present(one, name)
    values["cluster"] = _cluster(one)
    if "framework" in one:
        values["framework"] = framework_given(one["framework"], WHERE) or NONE
    sets = [line for name, text in query if name == "set" for line in text.splitlines() if line.strip()]
    if len(sets) > MOST_SETS:
        raise wording.too_large("the question", f"{len(sets)} changes", MOST_SETS).at(WHERE)
    for line in sets:
        if line.partition(".")[0] not in ROOTS:
            raise FormError(
                f"{line[:80]!r} is not a key of {', '.join(ROOTS)}; write a line such as strategy.sp=false",
                "set",
            )
    return with_overrides(values, sets)


def _value(text: str) -> object:
    """Return a whole number where it is one; 128k is read as the command line reads it."""
    digits = text.replace("_", "").replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) < 19 else text


def _model(texts: Mapping[str, str]) -> object:
    name = _present(texts, "model")
    if name != OWN:
        return resolve_model_name(name[:LONGEST_NAME])
    return _own_model(texts.get("config", ""))


def _own_model(text: str) -> object:
    """Return the model of a pasted text: a config.json, or all fields of a model as a plan has them."""
    where = PASTED
    config = parse_json(text, where, infinite=True)
    if not isinstance(config, dict):
        raise ReaderError(where, wording.wrong_format("a JSON object"))
    if "layers" not in config or "model_type" in config:
        read = read_huggingface(config, name=str(config.pop("name", "pasted")), where=where)
        return checked_model(read.model, where=WHERE)
    if "base" in config:  # of a plan, where it may be a file
        raise ReaderError(where, wording.unsupported_by("the page", "base", "give all fields of the model"))
    return config


def _present(texts: Mapping[str, str], name: str) -> str:
    if name not in texts:
        raise FormError(NEEDED[name], name)
    return texts[name]


def _cluster(texts: Mapping[str, str]) -> object:
    name = _present(texts, "cluster")
    full = resolve_cluster_name(name[:LONGEST_NAME])
    changes = [name for name in ("hbm_gib", "network") if name in texts]
    if not changes:
        return name
    cluster = load_cluster(full, 1)
    if "hbm_gib" in texts:
        hbm = _number(texts["hbm_gib"], "hbm_gib", most=1e6) * GIB
        cluster = replace(cluster, device=replace(cluster.device, hbm_bytes=hbm))
    if "network" in texts:
        factor = _number(texts["network"], "network", most=1e3)
        tiers = [
            tier if index == 0 else replace(tier, bandwidth=tier.bandwidth * factor)
            for index, tier in enumerate(cluster.tiers)
        ]
        cluster = replace(cluster, tiers=tuple(tiers))
    return replace(cluster, name=f"{full} ({', '.join(f'{change} {texts[change]}' for change in changes)})")


def _number(text: str, name: str, *, most: float, read: Callable[[str], float] = float) -> float:
    try:
        value = read(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= most:
        raise wording.out_of_range(name, text[:40], f"a number above 0 and up to {most:g}").at(WHERE)
    return value


def _bounded(request: Question) -> Question:
    if request.model.num_layers > MOST_LAYERS:
        value = f"{request.model.num_layers:,} layers"
        allowed = f"{MOST_LAYERS:,} on the page"
        raise wording.too_large("the model", value, allowed, "the command line has no such limit").at(WHERE)
    return request
