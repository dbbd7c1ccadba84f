"""The calls that set up a training (`calls.json`): what each one sets and which fact it decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from forescale.frameworks.python.values import Call
from forescale.frameworks.reading import packaged

FACTS: Final = packaged("trainers", "calls")
KEYS: Final = frozenset(FACTS["facts"])
"""Keys of TrainingArguments that decide a fact."""


def _pattern(*kinds: str) -> re.Pattern[str]:
    """Return the pattern of the dotted names of calls that decide facts of these kinds, or of classes like them."""
    rows = (row["name"].removeprefix(r"(?:\w+\.)*") for row in FACTS["calls"] if row.get("decides") in kinds)
    return re.compile(rf"(?:^|\.)(?:\w*(?=[A-Z]))?(?:{'|'.join(rows)})$")


MAKES: Final = _pattern("arguments")
"""Calls that settle how a Trainer trains."""
SHARDS: Final = _pattern("sharding")
"""Calls that shard states."""
TUNES: Final = ("adapters", "types", "recomputation")
"""Kinds of facts that calls decide in any program; in a training loop of its own they decide all."""
DECIDES: Final = _pattern(*TUNES, "arguments", "sharding", "configuration")
"""Calls that decide adapters, number formats, recomputation, sharding or the arguments of a Trainer."""


def names_of(call: Call) -> tuple[str, ...]:
    """Return the names of a call and of the classes that it builds on; none of a class of a program's own."""
    last = call.name.rpartition(".")[2]
    return (
        ()
        if call.kinds == (call.name,)
        else (call.name, *call.kinds, *[f"{call.origin}.{last}"] * bool(call.origin))
    )


def makes(name: str) -> bool:
    """Whether a call of that name settles how a Trainer trains, or makes one."""
    return MAKES.search(name) is not None or name.rpartition(".")[2] in ("Trainer", "SFTTrainer")


def rows_of(call: Call, once: set[str], *, loops: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a call that count; those of a training loop where one trains, and no Trainer.

    `once` collects the rows of which the first call alone counts.
    """
    for row in FACTS["calls"]:
        name = row["name"]
        counts = name not in once and (loops or not row.get("loop"))
        if counts and call.fields.get("enabled") is not False and is_of(call, row):
            once |= {name} if row.get("first") else set()
            yield row


def is_of(call: Call, row: Mapping[str, Any]) -> bool:
    """Whether a call is one of a row."""
    return any(re.fullmatch(row["name"], name) for name in names_of(call))


def fields_of(call: Call, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, those by their place included."""
    return {**dict(zip(row.get("args", ()), call.args, strict=False)), **call.fields}
