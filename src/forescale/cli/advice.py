"""The options of every command, from a table, and what to say of one that a command does not have.

`python -m scripts.flags` writes the table; a test compares it with the commands.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from forescale.synonyms import (
    converted,
    is_hybrid,
    is_slip,
    is_without_effect,
    left_out,
    meant,
    remark,
    spelling,
    with_value,
)

NAMED = 3
"""Options or commands that an error names."""
COMPARED = ("--cluster", "--devices", "--sites")
"""Options of which `compare` takes several values as they are."""
ASKING = ("project", "search", "run", "check", "fit", "memory layout", "compare")
"""Commands that an error may name instead of the one that was typed."""
INTERVAL = "--interval"
"""Of checkpoints."""
ZERO = "--zero"
"""Stage of sharding."""
LORA_RANK = "--lora-rank"
"""Of adapters."""
FAILURES, RATE = "--failures", "a rate, failures of a node and day, or a name, not a time between failures"
"""Of devices and nodes."""
MEASURED = "--measured"
DIAGNOSE = "project takes a folder of what stages took; forescale diagnose takes figures and logs"
"""What is said of figures where a folder is taken."""
COMPARE = "forescale compare takes several"
"""What is said of several values of an option that takes one."""
MICROBATCHES = "--microbatches"
"""Of pipeline schedules, which count them instead of their size."""
SWITCH = "sp"
"""The dimension of a search that is a switch elsewhere."""
AUTOMATIC = ("auto", "best", "optimal")
"""Values that leave it open."""
SHORT = 4
"""Characters of a name up to which others are not taken to have it in theirs."""
SET = {"--offload-optimizer": "layout.offload.optimizer"}
"""Options of a layout that a search does not hold by name, and what its --set calls them."""
UNSAID = {"--moment-dtype": "fp32"}
"""Options that a value of others changes, and what they are where it does not."""


@cache
def table() -> Mapping[str, Any]:
    """Return the options and arguments of every command, and of groups that commands share, and what a search holds."""
    loaded: Mapping[str, Any] = json.loads(Path(__file__).with_name("flags.json").read_text(encoding="utf-8"))
    return loaded


def rows_of(rows: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and row of every option and argument of a command or group, also of groups in it."""
    for name, row in rows.items():
        if isinstance(row, str):
            yield from rows_of(table()["groups"][row])
        else:
            yield name, row


def row_of(name: str, path: str) -> Mapping[str, Any]:
    """Return the row of an option of a command, such as `pipeline draw`; an empty one if it has none of that name."""
    rows = rows_of(table()["commands"].get(path, {}))
    return next((row for _, row in rows if name in row.get("on", ())), {})


def flags_of(path: str) -> dict[str, int]:
    """Return the options of a command, such as `pipeline draw`, with how many words follow each as its value."""
    flags = dict.fromkeys(("-h", "--help"), 0)
    for _, row in rows_of(table()["commands"].get(path, {})):
        flags |= dict.fromkeys((*row.get("on", ()), *row.get("off", ())), int(row["kind"] != "switch"))
    return flags


class Advice(NamedTuple):
    """What an error says of an option that a command does not have."""

    text: str = ""
    words: tuple[str, ...] | None = None
    """What says the same on a command line; None where that is open."""
    has_value: bool = False
    """Whether they hold the value that follows the option."""
    is_same: bool = False
    """Whether the option is another name for exactly these words, so that the command can run with them."""

    def takes(self, value: str) -> bool:
        """Return whether the word behind the option is its value: where what it means is open, if it looks like one."""
        return self.has_value or (self.words is None and value[:1] != "-")


def _in_context(name: str, path: str, value: str, words: Sequence[str]) -> Advice | None:
    """Return the options that another tool's is for its value or next to others; None if it is none of those."""
    from forescale.cli.conversions import in_context

    values = {
        word.partition("=")[0]: word.partition("=")[2] or after
        for word, after in pairwise((*words, ""))
        if word[:2] == "--"
    }
    said = in_context(name, values | {name: value}, path, options_of(path), table()["held_by_fix"])
    if said is None or name in flags_of(path):
        return None
    is_alone = len(said) == 1
    text = f"did you mean {said[0]}?" if is_alone else f"write {' '.join(said)}"
    return Advice(text, said, not is_alone and value[:1] != "-", True)


def is_figure(name: str, path: str, value: str) -> bool:
    """Return whether --measured has figures or a log where a command takes a folder of what its stages took."""
    return path == "project" and name == MEASURED and not Path(value).is_dir()


def is_failure_time(value: str) -> bool:
    """Return whether a value of --failures is a time between them."""
    from forescale.cli.conversions import is_time

    return is_time(value)


def is_link(name: str, value: str) -> bool:
    """Return whether --vary has rates of a network, such as network=400G,200G."""
    from forescale.cli.conversions import names_link

    return name == "--vary" and names_link(*value.partition("=")[::2])


def varied_as(field: str, values: str) -> str | None:
    """Return what --vary takes for several values as others write them; None where they are of several options.

    Values that differ in another option alone, such as optimizers of 32 and 8 bits, are values of that.
    """
    kind = row_of(f"--{field}", "compare").get("kind", "")
    ours = []
    for item in values.split(","):
        words = (with_value(item) or "").split()
        plain = [f"--{field}", spelling(item, kind if isinstance(kind, list) else ()) or item]
        said = words if words[:1] == plain[:1] and plain[1] not in kind else plain
        ours.append(dict(zip(said[::2], said[1::2], strict=True)))
    others = {name for one in ours for name in one} - {f"--{field}"}
    if not others:
        return f"{field}={','.join(one[f'--{field}'] for one in ours)}"
    if len(others) > 1 or len({one[f"--{field}"] for one in ours}) > 1 or not others <= UNSAID.keys():
        return None
    [other] = others
    return f"{other[2:]}={','.join(one.get(other, UNSAID[other]) for one in ours)}"


def _written(name: str, path: str, value: str) -> tuple[str, ...]:
    """Return the options of a command that say what an option of others does with a value; nothing if that is open."""
    options = options_of(path)
    if name == "--vary":
        varied = varied_as(*value.partition("=")[::2]) if name in options else None
        return () if varied is None else (name, varied)
    held = table()["held_by_fix"] if "--fix" in options else ()
    if meant(name, held) and (fixed := _fixed((with_value(value) or "").split())):
        return fixed
    return of_value(_called(name, options) or name, value, options)


def of_value(name: str, value: str, options: Collection[str]) -> tuple[str, ...]:
    """Return the options that say what a value of others does, such as adamw_8bit; nothing for values of ours."""
    written = tuple((with_value(value) or "").split())
    is_other = (
        written[:1] == (name,)
        and remark(value) is None
        and written[1] != value
        and {*written[::2]} <= {*options}
    )
    return written if is_other else ()


def is_several(name: str, path: str, value: str) -> bool:
    """Return whether an option of one number or word is given several, which --vary takes."""
    if "," not in value or name in COMPARED or "--vary" not in options_of(path):
        return False
    kind = row_of(name, path)["kind"]
    return kind in ("whole", "number", "length") or isinstance(kind, list)


def is_listed(name: str, path: str, value: str) -> bool:
    """Return whether an option of one value is given several by a command that does not compare them."""
    options = options_of(path)
    if "," not in value or path not in ASKING or "--vary" in options or name not in options:
        return False
    return name == COMPARED[0] or row_of(name, path)["kind"] in ("whole", "length")


def options_of(path: str) -> list[str]:
    """Return the long options of a command, such as `pipeline draw`."""
    return [name for name in flags_of(path) if name[:2] == "--"]


def instead(name: str, path: str) -> str:
    """Return which options of a command are like a name that it does not have, and which other commands have it."""
    text = advised(name, path, "").text
    return f"; {text}" if text else ""


def without_value(name: str, path: str) -> str:
    """Return what to say of an option that was typed without its value."""
    row = row_of(name, path)
    kind, usual = row.get("kind"), row.get("default")
    allowed = f", one of {', '.join(kind)}" if isinstance(kind, list) else ""
    return f"{name} takes a value{allowed}{'' if usual is None else f'; {usual} where it is left out'}"


def advised(name: str, path: str, value: str) -> Advice:
    """Return what is like an option that a command does not have; a `value` may be the option that follows it."""
    rules = (_left_out, _one_of_several, _of_switch, _said_otherwise, _as_argument, _held)
    advice = (rule(name, path, value) for rule in rules)
    return next((item for item in advice if item is not None), None) or _alike(name, path, value)


def advised_of(name: str, path: str, value: str, words: Sequence[str]) -> Advice:
    """Return what `advised` does, of an option among the words of its command."""
    return _in_context(name, path, value, words) or advised(name, path, value)


def _left_out(name: str, path: str, value: str) -> Advice | None:
    """Return that an option has no effect, or what answers it; None for others."""
    is_idle = is_without_effect(name)
    reason = "it changes neither time nor memory" if is_idle else left_out(name, path)
    said = f"leave it out: {reason}"
    return None if reason is None else Advice(said, (), has_value=value[:1] != "-", is_same=is_idle)


def _one_of_several(name: str, path: str, value: str) -> Advice | None:
    """Return which command takes several values of a command's option, or what else it takes; None for others."""
    if is_link(name, value):
        return Advice()
    if name == FAILURES:
        return Advice(RATE if is_failure_time(value) else "")
    if is_figure(name, path, value):
        return Advice(DIAGNOSE)
    return Advice(COMPARE) if is_listed(name, path, value) else None


def _said_otherwise(name: str, path: str, value: str) -> Advice | None:
    """Return the options that say what another tool's option does with its value; None where that is open."""
    written = _written(name, path, value)
    return Advice(f"write {' '.join(written)}", written, True, True) if written else None


def _as_argument(name: str, path: str, value: str) -> Advice | None:
    """Return that an argument is not an option; None for other names."""
    if name.strip("-") not in {
        key for key, row in rows_of(table()["commands"].get(path, {})) if "on" not in row
    }:
        return None
    alone = None if value[:1] == "-" else (value,)
    text = f"it stands without one: forescale {path} {name.strip('-').upper()}"
    return Advice(text, alone, True, alone is not None)


def _held(name: str, path: str, value: str) -> Advice | None:
    """Return how a search holds a dimension of a layout; None for other commands and names."""
    word, held = name.strip("-").replace("-", "_"), table()["held_by_fix"]
    dimension = word if word in held else meant(word, held)
    options = options_of(path)
    if "--fix" not in options or dimension is None or f"--{dimension.replace('_', '-')}" in options:
        return None
    is_switch = dimension == SWITCH and value[:1] == "-"
    value = "true" if is_switch else value
    local = ("--fix", f"{dimension}={value}") if value[:1] != "-" and converted(word) is None else None
    return Advice(f"a search holds it with --fix {dimension}=VALUE", local, not is_switch, local is not None)


def _alike(name: str, path: str, value: str) -> Advice:
    """Return which options are like one that a command does not have, and which commands have it."""
    options = options_of(path)
    like = _like(name, options)
    is_same = _called(name, options) is not None
    is_slipped = len(like) == 1 and is_slip(name, like[0]) and not _is_of_another(name)
    is_sure = is_same or is_slipped
    is_list = "," in value and "--vary" in options and len(like) == 1 and is_sure and like[0] not in COMPARED
    if is_list and (varied := varied_as(like[0][2:], value)) is not None:
        return Advice(f"write --vary {varied}", ("--vary", varied), True, True)
    if is_sure and is_listed(like[0], path, value):
        return Advice(f"did you mean {like[0]}? {COMPARE}")
    if like == [INTERVAL] and value in AUTOMATIC:
        return Advice(f"{INTERVAL} is the best one by default", (), True, True)
    is_ours = not like or _letters(like[0]) == _letters(name) or like == [MICROBATCHES]
    how = None if is_ours or _is_value(path, like[0], value) else converted(name.strip("-"))
    if like == [INTERVAL] and value.isdecimal():
        how = "a time, such as 30min, not steps"
    hint = [f"did you mean {' or '.join(like)}?{f' {how}' if how else ''}"] if like else []
    sure = len(like) == 1 and how is None and (flags_of(path)[like[0]] > 0) == (value[:1] != "-") and is_sure
    said = ("; " if how else " ").join([*hint, *_homes(name, like)])
    return Advice(said, (like[0],) if sure else None, is_same=sure and is_same)


def _is_value(path: str, option: str, value: str) -> bool:
    """Return whether an option takes a value; a number next to a switch of others may count something else."""
    kind = row_of(option, path)["kind"]
    if isinstance(kind, list):
        return value in kind or spelling(value, kind) is not None
    return option == LORA_RANK and value.isdecimal()


def _of_switch(name: str, path: str, value: str) -> Advice | None:
    """Return the options with values that say what a switch of others does; None if it is none, or has a value."""
    if is_hybrid(value) and _called(name, options_of(path)) == ZERO:
        return Advice(f"write {with_value(value)}; {remark(value)}", (ZERO, "3"), has_value=True)
    said = with_value(name) if value[:1] == "-" else None
    if said and "--fix" in options_of(path) and not _takes(path, said) and (fixed := _fixed(said.split())):
        return Advice(f"write {' '.join(fixed)}", fixed, is_same=remark(name) is None)
    homes = [other for other in (path, *table()["commands"]) if said and _takes(other, said)]
    if said is None or not homes:
        return None
    here, remarked = homes[0] == path, remark(name) or ""
    return Advice(
        f"write {'' if here else f'forescale {homes[0]} '}{said}{remarked and f'; {remarked}'}",
        (*said.split(),) if here else None,
        is_same=here and remark(name) is None,
    )


def _fixed(words: Sequence[str]) -> tuple[str, ...]:
    """Return options of a layout, with their values, as a search takes them; nothing where it cannot hold one."""
    dimensions = {f"--{name.replace('_', '-')}": name for name in table()["held_by_fix"]}
    named = [*zip(words[::2], words[1::2], strict=False)]
    if not all(name in dimensions or name in SET for name, _ in named):
        return ()
    pairs = [
        ("--fix", f"{dimensions[name]}={value}") if name in dimensions else ("--set", f"{SET[name]}={value}")
        for name, value in named
    ]
    return tuple(word for pair in pairs for word in pair)


def _takes(path: str, words: str) -> bool:
    """Return whether a command has every option of some words."""
    return {word for word in words.split() if word[:2] == "--"} <= {*options_of(path)}


def _is_of_another(name: str) -> bool:
    """Return whether any command has an option of exactly this name, which is then meant."""
    return any(name in options_of(path) for path in table()["commands"])


def _homes(name: str, like: Sequence[str]) -> list[str]:
    """Return which other commands have an option, or one that is like it where nothing else is."""
    others = {other: options_of(other) for other in table()["commands"]}
    known = {option for options in others.values() for option in options}
    message = []
    for option in [name] if name in known else [] if like else _like(name, sorted(known))[:1]:
        homes = [f"forescale {other}" for other, options in others.items() if option in options]
        few = ", ".join(homes[:NAMED]) + (" and others" if len(homes) > NAMED else "")
        message.append(f"{few} {'has' if len(homes) == 1 else 'have'} {'it' if option == name else option}")
    return message


def _like(name: str, options: Sequence[str]) -> list[str]:
    """Return the options that others call so, that have a name in theirs, or else that hardly differ from it."""
    from difflib import get_close_matches

    if (same := _called(name, options)) is not None:
        return [same]
    plain = {option.strip("-"): option for option in options}
    kept = [option for option in options if name.strip("-") in option] if len(name) > SHORT else []
    close = get_close_matches(name.strip("-"), plain, n=NAMED, cutoff=0.7)
    return kept[:NAMED] or [plain[item] for item in close]


def _called(name: str, options: Sequence[str]) -> str | None:
    """Return which of the options others call so; None if it is none."""
    spelt = [option for option in options if _letters(option) == _letters(name)]
    field = meant(name, {option.strip("-").replace("-", "_") for option in options})
    return spelt[0] if spelt else None if field is None else f"--{field.replace('_', '-')}"


def _letters(option: str) -> str:
    """Return what an option is compared by: dashes and a plural make no difference."""
    return option.strip("-").replace("-", "").replace("_", "").lower().removesuffix("s")
