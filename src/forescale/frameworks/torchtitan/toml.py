"""Files in TOML of torchtitan 0.2 and earlier, which are not read: the options that ask the same question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale.errors import ForescaleError
from forescale.frameworks.reading import Options, ParsedFile
from forescale.frameworks.torchtitan.reader import read_sections
from forescale.limits import DEVICES
from forescale.spec.layout import Layout
from forescale.spec.option import Declared, options
from forescale.spec.workload import Workload
from forescale.syntax import parse_mapping, parse_toml

NODE: Final = 8
"""Devices of a node where nothing says how many there are."""
STATED: Final = ("micro_batch_size", "seq_len", "global_batch_size")
"""Options that are there although they may have their defaults."""


def options_of_toml(text: str, where: object, known: Options) -> tuple[str, ...]:
    """Return the model and the options that ask what a file says; nothing where it is more than options can say.

    Where the number of devices is not known, it is that of the fewest whole nodes that the degrees occupy.
    """
    try:
        content = parse_mapping(text, str(where), parse_toml)
        parsed = _parsed(content, where, known)
        if known.model_of is None or parsed.model is None:
            return ()
        named = known.model_of(parsed.model.name)
    except ForescaleError:
        return ()
    drafts = () if parsed.model == named else ("--set", "model.num_mtp_layers=0")
    if drafts and parsed.model != replace(named, num_mtp_layers=0):
        return ()
    counted = () if known.num_devices else ("--devices", f"{parsed.num_devices}")
    framework = ("--framework", parsed.framework or "torchtitan@0.2")
    return (parsed.model.name, *drafts, *counted, *framework, *_flags(parsed))


def _parsed(content: Mapping[str, Any], where: object, known: Options) -> ParsedFile:
    known = replace(known, strict=False, layout=True)
    count = known.num_devices
    if count is None:
        fewest = read_sections(content, {}, Path(str(where)), known).strategy
        count = NODE if fewest is None else -(-fewest.num_devices // NODE) * NODE
    return read_sections(
        content, {}, Path(str(where)), replace(known, num_devices=min(count, int(DEVICES.le)))
    )


def _flags(parsed: ParsedFile) -> Iterator[str]:
    """Yield the options of the fields that differ from their defaults; data parallelism follows from the devices."""
    fields = {Layout: dict(parsed.layout_fields), Workload: dict(parsed.workload_fields)}
    if fields[Layout].get("dp_replicate", 1) == 1:
        fields[Layout].pop("dp_shard", None)
    if fields[Layout].get("recompute", {}).get("granularity") == "policy":
        del (recompute := dict(fields[Layout]["recompute"]))["granularity"]  # its policy says so
        fields[Layout]["recompute"] = recompute
    for kind, values in fields.items():
        for item in options(kind):
            value = _at(values, item)
            if value is not None and (item.name in STATED or value != item.default):
                yield from _written(item, value)


def _at(values: Mapping[str, Any], item: Declared) -> Any:  # noqa: ANN401 (a value of any field)
    """Return the value of a declared field in tables; None where they do not have it."""
    value: Any = values
    for name in item.path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _written(item: Declared, value: Any) -> Iterator[str]:  # noqa: ANN401 (a value of any field)
    """Yield an option with its value as the command line takes it."""
    if isinstance(value, bool):
        yield item.flag if value else f"--no-{item.flag[2:]}"
    elif isinstance(value, float) and value.is_integer():
        yield from (item.flag, f"{value:.0f}")
    elif isinstance(value, str | int | float):
        yield from (item.flag, f"{value}")
    elif isinstance(value, list | tuple) and value and all(isinstance(one, str | int) for one in value):
        yield from (item.flag, ",".join(map(str, value)))
