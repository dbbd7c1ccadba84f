"""What the calls of a person's own program say that makes no Trainer: adapters, few bits, recomputation, its loop."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale.errors import MissingFact, ReaderError
from forescale.frameworks.python.values import Call, Opaque
from forescale.frameworks.reading import Options, ParsedFile
from forescale.frameworks.trainers.calls import (
    FACTS,
    LOADED,
    SHARDS,
    TUNES,
    configured_model,
    fields_of,
    rows_of,
    sharded_by,
)
from forescale.frameworks.trainers.census import place_of
from forescale.frameworks.trainers.facts import CONFIGURATION, decided_by
from forescale.frameworks.trainers.lengths import LENGTH, tokenized
from forescale.frameworks.trainers.loop import adds_up, key_of, table_constants
from forescale.frameworks.trainers.program import ADAPTERS, DECIDED, Program, is_loop
from forescale.frameworks.trainers.record import record_of
from forescale.frameworks.trainers.recorder import Recorder, follow_script
from forescale.frameworks.trainers.run import MICRO, Start

TYPES: Final = frozenset(("bf16", "fp16"))
"""Arguments that decide the type of computation before an autocast does."""
SUGGESTIVE: Final = re.compile(
    r"bf16|fp16|fp8|fp32|b?float16|mixed|q?lora|offload|recompute|(?:activation[-_])?checkpoint(?:ing)?|int[48]|nf4|[48]bit"
)
"""Values of arguments that suggest types, recomputation, offloading or adapters."""


ALL: Final = "DataParallel"
"""A wrapper that drives all devices from one process."""
COPIES: Final = frozenset(
    (ALL, "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "prepare")
)
"""Wrappers that lay a model out on devices."""


def followed(
    program: Program, file: Path | None, given: Mapping[str, Any], start: Start, count: int | None
) -> Program:
    """Return what a program says with what its calls say, where they are followed with the arguments of a command.

    `count` is the number of devices that flags give.
    """
    given = {**given, **(start.own or {})}
    recorder = Recorder(given=given, words=start.words, ranks=start.ranks(count))
    with suppress(ReaderError):
        if file is not None and follow_script(file, recorder, Options()):
            loops = is_loop(file)
            is_alone = not start.kinds or start.count(count) == 1
            settings = table_constants(recorder.settings, is_alone=is_alone) if loops else {}
            left = tuple((name, value) for name, value in program.defaults if key_of(name) not in settings)
            settings = {name: value for name, value in settings.values() if value is not None}
            program = replace(program, defaults=left, constants={**program.constants, **settings})
            return _with_calls(program, recorder, given, loops=loops)
    return program


def _with_calls(program: Program, recorder: Recorder, given: Mapping[str, Any], *, loops: bool) -> Program:
    calls, doubtful, adapters = _called(recorder, loops=loops)
    kind = FACTS["mixed"].get(str(calls.pop("mixed_precision", "")))
    if kind and TYPES.isdisjoint((*calls, *given, *dict(program.defaults))):
        calls[kind] = True
    calls.pop("device_map", None)
    calls = {**(configured_model(recorder.calls) if loops else {}), **calls}
    steps = recorder.steps.content if loops else {}
    if recorder.steps.batches:
        calls.pop(MICRO, None)
    calls |= steps
    names = {*calls, *given, *dict(program.defaults), *program.constants}
    if loops and not any(LENGTH.fullmatch(name) for name in names):
        calls |= tokenized(recorder.calls, recorder.lengths)
    if loops and not any(LOADED.match(call.name) for call in recorder.calls):
        calls.setdefault("dtype", "float32")
    named = (*doubtful.values(), *["get_peft_model"] * ("use_peft" in doubtful))
    others = [site for site in recorder.doubted if not site.startswith(named)]
    recorder.doubted = []
    stage, told = sharded_by(recorder.calls)
    warnings = [*recorder.warnings(must_train=False), *_doubted(others), *told]
    return replace(
        program,
        calls={**program.calls, **calls},
        doubtful=doubtful,
        adapters=adapters,
        asked=frozenset(
            (*recorder.arguments.used, *(path for table in recorder.tables for path in _paths(table)))
        ),
        warnings=tuple(warnings),
        stepped=frozenset(steps),
        stage=stage,
        is_open=recorder.steps.is_open,
    )


def _called(recorder: Recorder, *, loops: bool) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return what calls set, those under conditions that would set something, and the adapters that these would."""
    calls, doubtful, adapters = dict[str, Any](), dict[str, str](), dict[str, Any]()
    once = set[str]()
    for call in recorder.calls:
        for row in rows_of(call, once if call.known else set(once), loops=loops):
            if not loops and row.get("decides") not in TUNES:
                continue
            sets = _sets(call, row)
            decided = DECIDED.intersection(sets)
            if call.known and (decided or loops):
                calls |= sets
            elif decided and not call.known:
                doubtful[min(decided)] = f"{call.name.rpartition('.')[2]} ({place_of(call.place)})"
                adapters |= {key: value for key, value in sets.items() if key in ADAPTERS}
    return calls, doubtful, adapters


def _paths(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the paths with dots of the entries of a configuration."""
    for name, value in table.items():
        yield from _paths(value, f"{before}{name}.") if isinstance(value, Mapping) else [f"{before}{name}"]


def _doubted(sites: Sequence[str]) -> list[str]:
    """Return the warning of places under conditions that are not known, which are not read."""
    return (
        [f"under a condition that only running shows, taken as not met: {', '.join(sites)}"] if sites else []
    )


def _sets(call: Call, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a call sets by a row; not what an argument decides."""
    result = dict(row.get("sets", {}))
    fields = fields_of(call, row)
    for name, key in row["keys"].items():
        value = fields.get(name)
        if isinstance(value, Opaque) and value.text.startswith("torch."):
            value = value.text
        if isinstance(value, Opaque | Call):
            result.pop(key, None)
        elif value not in (None, False):
            result[key] = value
    return result


def unread_optimizer(
    own: str, program: Program, content: Mapping[str, Any], over: Mapping[str, Any]
) -> list[str]:
    """Return the warning of an optimizer that ends the steps of a loop in lines which are not followed."""
    keys = {key_of(name) for name in content}
    if not program.loop or "optimizer" in over or keys & {"optim", "deepspeed", "deepspeed_config"}:
        return []
    return [
        f"the optimizer of {own} is made in lines that are not followed: AdamW is projected (--optimizer)"
    ]


def left_open(
    parsed: ParsedFile, program: Program, content: Mapping[str, Any], own: str, kinds: Collection[str]
) -> list[MissingFact]:
    """Return what a program that is looked through leaves open: its accumulation, or DeepSpeed's configuration."""
    facts = list[MissingFact]()
    if program.is_open or adds_up(program.loop, content, program.stepped):
        facts += decided_by(own, parsed.num_devices)[1:]
    facts = [fact for fact in facts if fact.what not in [other.what for other in parsed.missing]]
    if "deepspeed" in kinds and own and parsed.framework == "transformers":
        facts.append(CONFIGURATION._replace(reason=f"deepspeed starts {own}, and no argument names it"))
    return facts


def warnings_of(parsed: ParsedFile, own: str, program: Program, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the warnings of what names and arguments of a person's own program suggest."""
    if own and (keys := [key for key in parsed.unknown if SUGGESTIVE.fullmatch(str(values.get(key, "")))]):
        yield f"{'; '.join(f'{key} {values[key]}' for key in keys)}: not known, may change memory or time"
    types = parsed.workload_fields.get("precision", {})
    if differing := program.differing(values, record_of("trainer")) if own else []:
        yield f"{own} has {'; '.join(differing)}: defaults that differ, none of which is projected"
    if (
        any(map(SHARDS.search, program.names))
        and program.loop
        and "16" in str(values.get("dtype", program.calls.get("dtype", "")))
    ):
        yield (
            f"{own} loads weights in 16 bits and shards them itself: master weights and moments may have that type "
            "too, fp32 is projected (--master-dtype, --moment-dtype)"
        )
    if (parsed.num_devices or 1) > 1 and {name.rpartition(".")[2] for name in program.names} & COPIES == {
        ALL
    }:
        yield (
            f"{own} copies its model to all devices from one process ({ALL}) and splits its batch: a process "
            "with such a batch for each device is projected (--micro-batch-size)"
        )
    if "deepspeed.initialize" in program.names and types.get("compute") == "tf32":
        yield f"{own} makes DeepSpeed's configuration: its types are not known; tf32 is projected (--precision)"
