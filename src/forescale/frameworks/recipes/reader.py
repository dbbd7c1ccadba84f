"""Recipes of trainers in YAML, read by their tables of keys.

The table of a trainer (`NAME.json` next to this module) has the settings that each of its keys sets. A row is the name
of a setting; or settings by name, in which `$` is the value; or rows by value (`$VALUE`); or `["memory" | "time", why]`
for what is not modelled. A key that no table has is looked at by the words in its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from math import lcm, prod
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import (
    MissingError,
    ReaderError,
    UnknownKeyError,
    not_expressed,
    not_found,
)
from forescale.files import is_file, read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.megatron.arguments import known_flags
from forescale.frameworks.megatron.engine import with_engine
from forescale.frameworks.megatron.forks import translate
from forescale.frameworks.megatron.model import MICRO_BATCH, describes_model, open_sizes
from forescale.frameworks.megatron.reader import OVER, read_settings
from forescale.frameworks.reading import DEVICES, Options, ParsedFile, flat, packaged
from forescale.frameworks.recipes.actors import lay_batches, with_policy
from forescale.frameworks.recipes.rules import RULES
from forescale.frameworks.recipes.sharded import example_of, named_model, read_sharded
from forescale.frameworks.settings import Settings, errors_of
from forescale.positions import key_lines
from forescale.syntax import deep_merge, parse_mapping, parse_yaml
from forescale.units import counted

_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
_FUNCTION = re.compile(r"\$\{(mul|multiply|div|divide_ceil|divide_floor):\s*(\d+)\s*,\s*(\d+)\s*\}")
_ASKED = re.compile(r"(?:seq_len\w*|num_nodes|devices|micro_batch_size)$")
"""Keys whose facts are asked for where a file does not hold them."""
_MATTERS = re.compile(
    r"parallel|offload|checkpointing|recompute|shard|precision|dtype|quant|lora|fp8|fp16|bf16|batch|seq_?len"
    r"|hidden|layers|_dim$|heads|experts|zero|compile|optimizer$|dualpipe|fsdp|swap|window|virtual|qlora"
)
"""Words in the names of keys that may change memory or time."""
_ADAPTS = re.compile(r"(?:^|[._])q?lora\.|[._]quant(?:ization)?\.")
"""Tables of keys that make adapters, or weights of few bits."""
_RECOMPUTES = re.compile(r"(?:activation|gradient)s?_?checkpoint|recompute")
"""Names of keys that matter where they are off as well: a trainer may recompute by default."""
_OFF: Final[tuple[object, ...]] = (None, False, "", "none", "None", "null", "no", "off", 0, [], {})


class RecipeReader(Signed):
    """Recipes of one trainer."""

    name: ClassVar[str] = ""
    classifies: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """What is read."""
        return str(packaged("recipes", self.name)["title"])

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the recipe at `path` says."""
        text, notes = read_text(path), list[str]()
        takes_last = packaged("recipes", self.name).get("takes_last")
        content = parse_mapping(text, path, partial(parse_yaml, repeated=notes if takes_last else None))
        whole, lines = composed(content, path), key_lines(text, path.suffix)
        inside = whole.get("rl") if self.name == "flagscale" else None
        if isinstance(inside, dict) and "actor_rollout_ref" in inside:  # which it starts verl with
            return replace(read_recipe("verl", inside, path, options, {}), format=self.name)
        parsed = read_recipe(self.name, whole, path, options, lines)
        return replace(parsed, notes=(*notes, *parsed.notes))


def composed(content: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return a configuration with the files that its `defaults` name: whole ones under it, Hydra's under their groups.

    Raises
    ------
    ReaderError
        If one of them is not there.
    """
    items = content.get("defaults")
    named = items if isinstance(items, list) else [items]
    for name in reversed([str(item) for item in named if str(item).endswith((".yaml", ".yml"))]):
        file = path.parent / name
        if not is_file(file):
            raise ReaderError(path, not_found(f"file {name}", "put it there, or give a complete file"))
        content = deep_merge(composed(parse_mapping(read_text(file), file, parse_yaml), file), content)
    groups = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    for group, name in [pair for item in groups for pair in item.items()]:
        file = path.parent / str(group) / f"{name}.yaml"
        if not is_file(file):
            fix = "put it next to this one, or give it in its place"
            raise ReaderError(path, not_found(f"file {group}/{name}.yaml", fix))
        content = {**content, str(group): parse_mapping(read_text(file), file, parse_yaml)}
    return content


def readers() -> tuple[RecipeReader, ...]:
    """Return one reader for each trainer."""
    names = packaged("recipes", "common")["trainers"]
    return tuple(type(f"{name}Reader", (RecipeReader,), {"name": name})() for name in names)


def read_recipe(
    name: str, content: Mapping[str, Any], path: Path, options: Options, lines: Mapping[str, int]
) -> ParsedFile:
    """Return what the keys of a recipe say."""
    table = packaged("recipes", name)
    root = table.get("root", "")
    inside = content.get(root) if root and isinstance(content.get(root), dict) else content
    before = f"{root}." if inside is not content else ""
    values = _resolved(dict(flat(inside))) if isinstance(inside, dict) else {}
    if before:
        values |= {key: value for key, value in flat(content) if not key.startswith(before)}
    values = _renamed(values, table.get("older", {}))
    table = packaged("recipes", _variant(name, table.get("variants", {}), values))
    with errors_of(path):
        result = _flags(table, values, path) if table.get("flags") else _translated(table, values)
    if result.unknown and options.strict:
        where = f"{path}, line {lines.get(before + result.unknown[0], 1)}"
        raise UnknownKeyError(result.unknown[0], where, sorted(table["keys"]))
    places = {
        key: lines[before + origin] for key, origin in result.spelling.items() if before + origin in lines
    }
    settings = Settings({**table.get("defaults", {}), **result.values}, str(path), result.spelling, places)
    settings.warnings += result.warnings
    with errors_of(path):
        if name in RULES:
            RULES[name](settings, {key.replace("-", "_"): value for key, value in values.items()}, path)
        lay_batches(settings, options)
        read = partial(_megatron, based=bool(table.get("based"))) if "engine" in table else read_sharded
        framework = settings.text("framework", table["framework"])
        parsed = with_policy(read(settings, name, framework, path, options), settings)
    origins = set(result.spelling.values())
    return replace(
        parsed,
        used=tuple(sorted({key for key in parsed.used if key in origins})),
        ignored=tuple(sorted({*result.ignored, *(origins - set(parsed.used))})),
        unknown=result.unknown,
        remedies=_remedies(table, settings),
    )


def _renamed(values: Mapping[str, Any], older: Mapping[str, str]) -> dict[str, Any]:
    """Return values by the present names of keys that once began otherwise, which come first."""
    moved = {
        f"{now}{key.removeprefix(once)}": value
        for once, now in older.items()
        for key, value in values.items()
        if key.startswith(once)
    }
    return {key: value for key, value in values.items() if not key.startswith(tuple(older))} | moved


def _variant(name: str, variants: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Return the table of a back end: the first whose keys begin so, or whose key has such a value."""
    for start, row in variants.items():
        if isinstance(row, str) and (start == "*" or any(key.startswith(start) for key in values)):
            return row
        choices = row.items() if isinstance(row, dict) else ()
        if named := next((item for text, item in choices if fnmatchcase(str(values.get(start)), text)), None):
            return str(named)
    return name


def _remedies(table: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Return the keys that make a change; an example of a pair counts for two sequences."""
    remedies = dict(table.get("remedies", {}))
    if remedies and settings.raw("sequences") == 2:
        micro = {
            key: "{half}" if value == "{value}" else value
            for key, value in remedies["micro_batch_size"].items()
        }
        remedies["micro_batch_size"] = micro
    return remedies


def _megatron(
    settings: Settings, form: str, framework: str, path: Path, options: Options, *, based: bool
) -> ParsedFile:
    """Return what Megatron-LM trains with settings that a recipe makes.

    Raises
    ------
    MissingError
        If the recipe leaves sizes open.
    """
    settings.override(options.over, OVER)
    inner, pp = (prod(settings.degree(key) for key in keys) for keys in DEGREES)
    ep = settings.degree("expert_model_parallel_size") * settings.count(
        EXPERT, settings.degree(TENSOR), least=1
    )
    stated = _stated_devices(settings, options) or _counted_devices(settings, options, inner * pp)
    devices = options.num_devices or (None if stated and stated % lcm(inner * pp, ep * pp) else stated)
    reason = f"{stated} are stated, which the degrees do not divide; the launcher sets more"
    fact = DEVICES._replace(
        example=f"--devices {example_of(settings, inner, pp, ep)}",
        reason=reason if stated else DEVICES.reason,
    )
    missing = (fact,) if devices is None and options.layout else ()
    facts = [] if "micro_batch_size" in settings else [MICRO_BATCH]
    steps = settings.count("accumulation")
    if "global_batch_size" not in settings and "micro_batch_size" in settings and steps:
        dp = (devices or inner * pp) // (inner * pp)
        settings.set("global_batch_size", settings.size("micro_batch_size") * steps * dp)
    if options.model is None and settings.text("model") and not describes_model(settings):
        options = replace(options, model=named_model(settings, path, options, facts))
    if facts := facts + [
        fact for fact in open_sizes(settings, options) if fact.part not in {f.part for f in facts}
    ]:
        raise MissingError.of(path, (*facts, *missing))
    if based and not describes_model(settings) and "model" not in settings:
        settings.warnings.append(
            "it changes a recipe that is not here: what it does not set is as in Megatron-Core"
        )
    parsed = read_settings(
        settings,
        name=path.stem,
        options=options,
        num_devices=devices,
        form=form,
        framework=framework,
        based=based,
    )
    bucket = settings.number("reduce_bucket_size")
    parsed = with_engine(parsed, {"kernels": {"bucket_elements": bucket}}) if bucket else parsed
    return replace(parsed, missing=missing)


TENSOR, EXPERT = "tensor_model_parallel_size", "expert_tensor_parallel_size"
DEGREES: Final = ((TENSOR, "context_parallel_size"), ("pipeline_model_parallel_size",))


def _stated_devices(settings: Settings, options: Options) -> int | None:
    nodes, per_node = settings.count("num_nodes"), settings.count("devices_per_node")
    count = (nodes or 1) * per_node if per_node else None
    if count and options.num_devices is None and options.layout:
        settings.note_devices(count, "devices_per_node", *(["num_nodes"] if nodes else []))
    return count


def _counted_devices(settings: Settings, options: Options, inner: int) -> int | None:
    """Return the devices on which micro-batches and their accumulation make the batch, where a file gives all three."""
    keys = ("global_batch_size", "micro_batch_size", "accumulation")
    if not options.layout or any(key not in settings for key in keys):
        return None
    batch, step = settings.size(keys[0]), settings.size(keys[1]) * settings.size(keys[2])
    whole, *parts = (settings.spell(key) for key in keys)
    count, given = batch // step * inner, options.num_devices
    if batch % step or given == count:
        return None
    if given is not None:
        fix = f"give --devices {count} or --global-batch-size {step * max(1, given // inner)}"
        other = f"{' × '.join(parts)} × dp"
        settings.refuse(wording.differs(whole, batch, other, step * (given // inner), fix))
    settings.note(f"{counted(count, 'device')}, from {whole} {batch} / ({' × '.join(parts)} = {step})")
    return count


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with references to other keys (`${max_seq_len}`, `${multiply:4, ${.hidden_size}}`) put in."""

    def reference(match: re.Match[str], key: str) -> object:
        section = key.split(".")[: -len(match[1])] if match[1] else []
        inside = values.get(
            match[2].partition(".")[2], match[0]
        )  # of a file that a launcher includes by a name
        return values.get(".".join([*section, match[2]]), values.get(match[2], inside))

    def value(key: str, item: object) -> object:
        for _ in range(4):
            if not isinstance(item, str) or "${" not in item:
                return item
            whole = _REFERENCE.fullmatch(item)
            if whole is not None:
                item = reference(whole, key)
            elif ":" in item:
                item = _computed(_REFERENCE.sub(lambda match: str(reference(match, key)), item))
        return None if _ASKED.search(key) and "${" in str(item) else item

    return {key: value(key, item) for key, item in values.items()}


def _computed(text: str) -> int | str:
    """Return the value of a function of two numbers; the text itself if it is none."""
    match = _FUNCTION.fullmatch(text)
    if match is None or match[3] == "0":
        return text
    one, two = int(match[2]), int(match[3])
    product, below = one * two, one // two
    kinds = {"mul": product, "multiply": product, "div": below, "divide_floor": below}
    return kinds.get(match[1], -(-one // two))


class _Translated:
    """Settings that keys set, and what became of the other keys."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.spelling: dict[str, str] = {}
        self.warnings: list[str] = []
        self.ignored: list[str] = []
        self.unknown: tuple[str, ...] = ()


def _translated(table: Mapping[str, Any], values: Mapping[str, Any]) -> _Translated:
    result, unknown = _Translated(), list[str]()
    matters: dict[str, list[str]] = {"memory": [], "time": [], "off": []}
    for key, value in values.items():
        row = _row(table, key)
        if isinstance(row, dict) and next(iter(row), "").startswith("$"):
            chosen = row.get(f"${value}", row.get("$*"))
            row = ["memory", str(value)] if chosen is None and value not in _OFF else chosen or {}
        if row is None:
            unknown.append(key)
        elif isinstance(row, list):
            result.ignored.append(key)
            matters[_kind(row, key, value)].append(f"{key} ({row[1]})")
        else:
            _take(result, {} if row == "none" else {row: "$"} if isinstance(row, str) else row, key, value)
    for what, keys in (("memory", matters["memory"]), ("step time", matters["time"])):
        if keys:
            result.warnings.append(f"not modelled, may change {what}: {'; '.join(keys)}")
    if {"adapter_rank", "lora_rank"}.isdisjoint(result.values):
        unknown += [key for key in result.ignored if _ADAPTS.search(key) and values[key] not in _OFF]
    if matter := [key for key in unknown if _may_matter(key, values[key]) or _ADAPTS.search(key)]:
        result.warnings.append(f"not known, may change memory or step time: {', '.join(matter)}")
    result.unknown = tuple(unknown)
    return result


def _kind(row: list[str], key: str, value: object) -> str:
    """Return what a key changes: memory, time, or nothing where it is off."""
    if value in _OFF:
        return "off"
    if row[0] == "refuse":
        raise not_expressed(key, f"({row[1]})")
    return row[0]


def _take(result: _Translated, rows: Mapping[str, Any], key: str, value: object) -> None:
    """Set what a key sets."""
    if not rows:
        result.ignored.append(key)
    if value is None and "$" in rows.values():
        return
    for name, item in rows.items():
        setting = value if item == "$" else item
        if setting is not None:
            result.values[name], result.spelling[name] = setting, key


def _flags(table: Mapping[str, Any], values: Mapping[str, Any], path: Path) -> _Translated:
    """Return keys that are flags of Megatron-LM, with underscores, in tables of any name, after the rows of `table`.

    A key without a value, or one of another fork that is False, is no flag.
    """
    known = {
        key
        for key in values
        if key in table["keys"] or any(fnmatchcase(key, row) for row in table["patterns"])
    }
    result, pairs = _translated(table, {key: values[key] for key in known}), list[tuple[str, object]]()
    for key, value in values.items():
        flag = _flag(key)
        if key in known:
            continue
        if flag not in known_flags() or value is None:
            off = value is None or value is False or flag in HOUSEKEEPING
            pairs += [] if off else [(flag, value)]
            result.ignored.append(key)
            continue
        setting, kind = known_flags()[flag]
        result.values[setting] = value if kind == "value" else (kind == "true") is (value is not False)
        result.spelling[setting] = key
    effects, made = translate(None, pairs, result.values, str(path))
    result.spelling |= {setting: setting for setting in made if setting not in result.spelling}
    result.unknown = tuple(key for key in result.ignored if _flag(key) in effects.unknown)
    result.ignored = [key for key in result.ignored if key not in result.unknown]
    effects.unknown[:] = [flag for flag in effects.unknown if _may_matter(flag.replace("-", "_"), True)]
    result.warnings += effects.warnings()
    return result


def _flag(key: str) -> str:
    return f"--{key.rpartition('.')[2].replace('_', '-')}"


HOUSEKEEPING: Final = ("--no-shared-fs", "--enabled", "--ckpt-format")
"""Keys of runners in the same tables, as flags."""


def _row(table: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401  (JSON)
    """Return the row of a key; dashes are underscores, `*` in a row stands for any part."""
    keys, plain = table["keys"], key.replace("-", "_")
    if plain in keys:
        return keys[plain]
    for pattern, row in table.get("patterns", {}).items():
        if fnmatchcase(plain, pattern):
            return row
    shared = packaged("recipes", "common")["patterns"]
    return "none" if any(fnmatchcase(plain, pattern) for pattern in shared) else None


def _may_matter(key: str, value: object) -> bool:
    name = key.rpartition(".")[2].lower()
    return (value not in _OFF and _MATTERS.search(name) is not None) or _RECOMPUTES.search(name) is not None
