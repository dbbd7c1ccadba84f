"""The calls that set up a training (`calls.json`): what each one sets and which fact it decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from forescale.frameworks.python.values import Call, Opaque
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

NAMES: Final = ("model_name", "pretrained_model_name_or_path")
"""Arguments that name a model."""
LOADED: Final = re.compile(
    r"(?!(?:.*\.)?PeftModel)(?!.*(?:Tokenizer|Processor|Config|Extractor|tokenizer|processor|config)\w*\.from)"
    r".*\.(?:from_pretrained|_?from_config)$"
)
"""Calls that make a model; adapters are laid on one that another call makes."""
CONFIGURES: Final = re.compile(r"(?:\w+\.)*\w*Config\.from_(?:pretrained|json_file)")
"""Calls that load a model's configuration alone."""
WRAPPED: Final = 8
"""Calls around a model that are looked through for the one that loads it."""


def model_name(call: Call) -> str:
    """Return the model that a call loads; "" of one that only running shows."""
    values = (*call.args, *map(call.fields.get, NAMES))
    return next((item for item in values if isinstance(item, str)), "")


NAMED: Final = re.compile(
    r"""(?<!Tokenizer)(?<!Processor)(?<!Config)\.from_pretrained\(\s*["']([^"']+)["']"""
)
"""A model that a method of a class names, which nothing calls."""


def configured_model(calls: Sequence[Call], text: str = "") -> dict[str, str]:
    """Return the model whose configuration calls load first, as an argument, else one that a text names."""
    names = (model_name(call) for call in calls if CONFIGURES.fullmatch(call.name))
    named = NAMED.search(text)
    name = next(filter(None, names), named[1] if named else "")
    return {"model_name_or_path": name} if name else {}


def loaded_from(value: object) -> Any:  # noqa: ANN401
    """Return the model whose configuration a call loads, or what is known of a table; other values as they are."""
    if isinstance(value, dict):
        return {key: loaded_from(item) for key, item in value.items() if _is_known(item)}
    is_loaded = isinstance(value, Call) and CONFIGURES.fullmatch(str(value.name).partition("(")[0])
    return (model_name(value) or value) if is_loaded else value  # type: ignore[arg-type]


def _is_known(value: object) -> bool:
    """Whether a value is known, or is one of torch's."""
    return value.text.startswith("torch.") if isinstance(value, Opaque) else not isinstance(value, Call)


def of_trained(calls: list[Call]) -> tuple[list[Call], list[str]]:
    """Return the calls without those that load other models than the one trained, and the warnings of these.

    It is the model of the last Trainer where that shows; else one that is loaded instead of a checkpoint.
    """
    loaded = [call for call in calls if LOADED.match(call.name)]
    trained, at = _trained(calls, loaded)
    if trained is None and len(others := [call for call in loaded if not _depends(call)]) == 1:
        trained = others[0]
    if trained is None or not (name := model_name(trained)):
        return calls, []
    others = [call for call in loaded if call is not trained]
    named = dict.fromkeys(map(model_name, (call for call in calls[:at] if call in others)))
    warnings = [
        f"it also loads {other}, which is not in the figures" for other in named if other not in ("", name)
    ]
    if at == 0:
        warnings = [f"{call.name} is given {call.args[0].text}; {name} is projected" for call in others]
    return [call for call in calls if call not in others], warnings


def _depends(call: Call) -> bool:
    """Whether the model that a call loads is the one of a branch that may not be taken."""
    named = next(iter(call.args), None)
    return isinstance(named, Opaque) and named.text.startswith("what depends on")


def _trained(calls: Sequence[Call], loaded: Sequence[Call]) -> tuple[Call | None, int]:
    """Return the call that loads the model of the last Trainer, which others may wrap, and the place of this."""
    for at, call in reversed([*enumerate(calls)]):
        if not any(name.endswith("Trainer") for name in (call.name, *call.kinds)):
            continue
        model: object = call
        for _ in range(WRAPPED):
            if not isinstance(model, Call):
                return None, 0
            if made := [other for other in loaded if other.place == model.place and model_name(other)]:
                return made[0], at
            model = model.fields.get("model", next(iter(model.args), None))
    return None, 0


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
    given = {**dict(zip(row.get("args", ()), call.args, strict=False)), **call.fields}
    return {name: loaded_from(value) for name, value in given.items()}


def made_elsewhere(calls: Sequence[Call]) -> list[str]:
    """Return the warning of a model that a function makes which is not read."""
    if any(LOADED.match(call.name) for call in calls):
        return []
    for call in calls:
        trains = any(name.endswith("Trainer") for name in (call.name, *call.kinds))
        model = call.fields.get("model", next(iter(call.args), None)) if trains else None
        if isinstance(model, Opaque) or (isinstance(model, Call) and not model.known):
            made = model.text if isinstance(model, Opaque) else model.name
            return [
                f"{made} is not read: adapters, types and recomputation of the model that it makes are not known"
            ]
    return []


WHOLE: Final = (
    "FSDP is given no auto_wrap_policy: it gathers the whole model at once, which is not modelled; layers one by one "
    "are projected"
)
STAGED: Final[Mapping[str, int]] = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0}
"""Stages of ZeRO that the strategies of FSDP amount to."""


def sharded_by(calls: Sequence[Call]) -> tuple[int | None, list[str]]:
    """Return the stage of ZeRO that calls of FSDP amount to, and their warnings; None where they do not decide it."""
    made = [call for call in calls if call.name.rpartition(".")[2] in FSDP]
    stages = set(map(_stage, made))
    if len(stages) != 1 or not all(call.known and not call.open for call in made):
        return None, []
    is_whole = all(call.name.endswith(FSDP[:2]) and not WRAPS & call.fields.keys() for call in made)
    return stages.pop(), [WHOLE] * is_whole


FSDP: Final = ("FSDP", "FullyShardedDataParallel", "fully_shard", "FSDPStrategy")
"""Functions and classes of PyTorch and Lightning that shard states."""
WRAPS: Final = frozenset(("auto_wrap_policy", "fsdp_auto_wrap_policy"))


def _stage(call: Call) -> int | None:
    named = call.fields.get("sharding_strategy")
    if named is None:
        return 2 if call.fields.get("reshard_after_forward") is False else 3
    text = named.text if isinstance(named, Opaque) else str(named)
    return STAGED.get(text.rpartition(".")[2].lower())
