"""Commands and options that do not exist: the error, known from a table before anything else is loaded.

`python -m scripts.flags` writes the table; a test compares it with the commands.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from forescale.cli.front import COMMANDS
from forescale.synonyms import (
    EXAMPLES,
    INFERENCE,
    command_called,
    converted,
    is_hybrid,
    is_per_device,
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
USUAL = {"memory": "memory layout"}
"""Commands of groups that need not be named."""
COMPARED = ("--cluster", "--devices", "--sites")
"""Options of which `compare` takes several values as they are."""
ASKING = ("project", "search", "run", "check", "fit", "memory layout", "compare")
"""Commands that an error may name instead of the one that was typed."""
INTERVAL = "--interval"
"""Of checkpoints."""
ZERO = "--zero"
"""Stage of sharding."""
MICROBATCHES = "--microbatches"
"""Of pipeline schedules, which count them instead of their size."""
SWITCH = "sp"
"""The dimension of a search that is a switch elsewhere."""
AUTOMATIC = ("auto", "best", "optimal")
"""Values that leave it open."""
SHORT = 4
"""Characters of a name up to which others are not taken to have it in theirs."""
REPLACED = ("--tokens", "--cluster", "--devices")
"""Options that a conversion changes: tokens of one epoch, a cluster with the number of its devices."""
SET = {"--offload-optimizer": "layout.offload.optimizer"}
"""Options of a layout that a search does not hold by name, and what its --set calls them."""
UNSAID = {"--moment-dtype": "fp32"}
"""Options that a value of others changes, and what they are where it does not."""
OF_DEVICE = "; --micro-batch-size or --per-device-train-batch-size gives one device's"
"""What a note adds to a global batch where Hugging Face's Trainer is used."""
HUGGING_FACE = (
    "transformers",
    "trl",
    "unsloth",
    "axolotl",
    "llama-factory",
    "llamafactory",
    "ms-swift",
    "accelerate",
)
"""Names that `--framework` has for it and for what trains by it."""
REMARKS = {
    "--global-batch-size": " (sequences of a step over all devices)",
    "--stragglers": " (spread of the speeds of all devices, not one slow device)",
}
"""What a note adds to an option that others count differently."""
WIDTH = 100
"""Columns of a note."""
BUDGET, MAX_COST, SOLVE_TOKENS = "--budget", "--max-cost", ("--solve", "tokens")
"""A budget without tokens asks how many it pays for."""
EVERYTHING = "--help-all"
"""Asks for the help with every option; commands take it before they parse."""
HELP = ("-h", "--help", EVERYTHING)


@cache
def table() -> Mapping[str, Any]:
    """Return the options and arguments of every command, and of groups that commands share, and what a search holds."""
    loaded: Mapping[str, Any] = json.loads(Path(__file__).with_name("flags.json").read_text(encoding="utf-8"))
    return loaded


def examples_of(path: str) -> Sequence[tuple[str, str]]:
    """Return questions and the commands that answer them, as the help of a command shows them."""
    text = Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Sequence[tuple[str, str]]] = json.loads(text)
    return loaded.get(path, ())


def started(words: Sequence[str]) -> str:
    """Return the first example of a command that was typed without anything else, for an error; else nothing."""
    path, rest = command_in(words)
    shown = [] if path is None or rest else examples_of(path)
    return f"For example: forescale {shown[0][1]} (more: forescale {path} --help)" if shown else ""


def rows_of(rows: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and row of every option and argument of a command or group, also of groups in it."""
    for name, row in rows.items():
        if isinstance(row, str):
            yield from rows_of(table()["groups"][row])
        else:
            yield name, row


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


class Correction(NamedTuple):
    """A command line with the options that its command has."""

    unknown: Mapping[str, str]
    """What to say of each option that the command does not have."""
    words: tuple[str, ...] | None
    """The arguments of a command that says the same; None where something is open."""
    read: Mapping[str, str]
    """What each option is another name for, by option; options that are not another name for something are absent."""

    @property
    def is_same(self) -> bool:
        """Return whether every option is another name for one that the command has."""
        return self.words is not None and self.unknown.keys() == self.read.keys()


def translated(arguments: Sequence[str]) -> tuple[list[str], str] | None:
    """Return arguments in which other tools' names of options are ours, and a note that says so; None if none are."""
    path, words = command_in(arguments)
    if path is None or any(word in HELP for word in arguments):
        return None
    correction = _corrected(path, words)
    if not correction.unknown or not correction.is_same or correction.words is None:
        return None
    from textwrap import wrap

    parts = [
        f"{name} as {text}{REMARKS.get(text, '')}{_of_device(text, words)}"
        for name, text in correction.read.items()
        if text
    ]
    if parts:
        parts[0] = parts[0].replace(" as ", " is read as ", 1)
    idle = [name for name, text in correction.read.items() if not text]
    if idle:
        parts.append(f"{', '.join(idle)}: no effect on time and memory")
    read = ", ".join(parts)
    return [*correction.words], "\n".join(wrap(f"note (options): {read}", WIDTH, break_on_hyphens=False))


def _of_device(option: str, words: Sequence[str]) -> str:
    """Return how a batch of one device is given, where words of Hugging Face's Trainer are next to a global one."""
    frameworks = {
        word.partition("=")[2] or after for word, after in pairwise((*words, "")) if "framework" in word
    }
    names = {name.partition("@")[0] for name in frameworks}
    is_theirs = any(map(is_per_device, words)) or {*HUGGING_FACE} & names
    return OF_DEVICE if option == "--global-batch-size" and is_theirs else ""


def misspelt(arguments: Sequence[str]) -> str | None:
    """Return the error for a command that is none, or for the options that it does not have; None if it has all.

    None as well where that cannot be said from names alone: without a command, or with short options in one word.
    """
    if arguments and arguments[0][:1] != "-" and arguments[0] not in COMMANDS:
        local, said = command_called(arguments[0]), no_command(arguments[0])
        if local is None or len(arguments) == 1:
            return f"{said} (see forescale --help)"
        return f"{said}. For example: {shlex.join(('forescale', local, *arguments[1:]))}"
    path, words = command_in(arguments)
    if path is None or any(word in HELP for word in arguments):
        return None
    correction = _corrected(path, words)
    if not correction.unknown:
        return None
    if len(correction.unknown) == 1:
        [(name, text)] = correction.unknown.items()
        said = f"No such option: {name}{text and f'; {text}'}"
    else:
        named = ", ".join(name + (text and f" ({text})") for name, text in correction.unknown.items())
        said = f"No such options: {named}"
    if (example := _example(path, words, correction)) is None:
        return f"{said} (see forescale {path} --help)"
    return f"{said}{'' if said[-1] == '?' else '.'} For example: {example}"


def _example(path: str, words: Sequence[str], correction: Correction) -> str | None:
    """Return a command line that says the same, with this or another command; None where there is none."""
    if path in ("project", "run") and BUDGET in correction.unknown and "--tokens" not in words:
        words = [word.replace(BUDGET, MAX_COST, 1) for word in words]
        asked = _corrected("check", words)
        return shlex.join(["forescale", *(asked.words or ("check", *words)), *SOLVE_TOKENS])
    if correction.words is not None:
        flags = flags_of(path)
        return shlex.join(["forescale", *correction.words, *lacking(correction.words, flags)])
    several = any("," in word for word in words)  # machines or values, which few commands take
    for other in ("compare",) if several else _others(correction.unknown):
        there = _corrected(other, words)
        if other != path and there.words is not None:
            return shlex.join(["forescale", *there.words, *lacking(there.words, flags_of(other))])
    return None


def _others(names: Collection[str]) -> list[str]:
    """Return the commands that have any of some options, those that have most of them first."""
    wanted = {word for name in names for word in (with_value(name) or name).split() if word[:2] == "--"}
    having = {path: len(wanted & {*options_of(path)}) for path in ASKING}
    return sorted((path for path, count in having.items() if count), key=lambda path: -having[path])


def command_in(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the command that arguments name, None if that is open, and the words behind it."""
    for size in (1, 2):
        if (name := " ".join(arguments[:size])) in table()["commands"]:
            return name, arguments[size:]
    counts = len(arguments) > 1 and arguments[1][:1].isdigit()  # parameters of `memory states`
    return (None if counts else USUAL.get(arguments[0]) if arguments else None), arguments[1:]


def _corrected(path: str, words: Sequence[str]) -> Correction:
    """Return what to say of the options that a command does not have, and arguments that say the same.

    The arguments are None where something is open. What follows -- or joined short options is not looked at.
    """
    from forescale.cli.conversions import batch_per_device

    flags, left = flags_of(path), list(words)
    unknown, read, values, open_names = dict[str, str](), dict[str, str](), dict[str, str](), set[str]()
    example = path.split()
    while left:
        word = left.pop(0)
        name, assigned, value = word.partition("=")
        if word == "--" or (word[:1] == "-" and word[:2] != "--" and word not in flags):
            example += [word, *left]
            break
        values[name] = value = value if assigned else (left or ["-"])[0]
        is_other = name not in flags or _is_otherwise(name, path, value, flags, assigned=bool(assigned))
        if name[:2] != "--" or not is_other:
            taken = 0 if assigned else flags.get(name, 0)
            example += [word, *left[:taken]]
            del left[:taken]
            continue
        unknown[name] = (advice := advised(name, path, value)).text
        if advice.words is None:
            open_names.add(name)
        elif advice.is_same:
            read[name] = " ".join(advice.words) or ("" if is_without_effect(name) else "the default")
        example += advice.words or ()
        has_value = advice.has_value or (advice.words is None and value[:1] != "-")
        if not assigned:
            del left[: int(has_value)]
        elif not has_value:
            example[-1] += f"={value}"
    open_names |= _without_replicas(unknown, values, example)
    example += batch_per_device(values, lacking(example, flags), read)
    replacing = _converted(path, values, open_names)
    for name, (said, is_same) in replacing.items():
        open_names.discard(name)
        if not open_names:
            unknown.setdefault(name, f"write {' '.join(said)}")
        if is_same:
            read[name] = " ".join(said) or "the devices of each node"
    _put(example, _pairs([said for said, _ in replacing.values()]))
    return Correction(unknown, None if open_names else tuple(example), read)


def _put(words: list[str], options: Mapping[str, str]) -> None:
    """Add options with their values to the words of a command, in place of those of `REPLACED` that it has."""
    for option, text in options.items():
        if option in words[:-1] and option in REPLACED:
            del words[(place := words.index(option)) : place + 2]
        words += [option, text]


def _is_otherwise(name: str, path: str, value: str, flags: Mapping[str, int], *, assigned: bool) -> bool:
    """Return whether an option has values that others write, several of them, or none where it needs one."""
    lacks = flags[name] > 0 and not assigned and value[:2] in ("-", "--") and with_value(name) is not None
    if name == "--vary":
        return _is_link(name, value) or _varied(*value.partition("=")[::2]) not in (None, value)
    return lacks or _is_several(name, path, value) or bool(_of_value(name, value, flags))


def _is_link(name: str, value: str) -> bool:
    """Return whether --vary has rates of a network, such as network=400G,200G."""
    from forescale.cli.conversions import names_link

    return name == "--vary" and names_link(*value.partition("=")[::2])


def _varied(field: str, values: str) -> str | None:
    """Return what --vary takes for several values as others write them; None where they are of several options.

    Values that differ in another option alone, such as optimizers of 32 and 8 bits, are values of that.
    """
    rows = (row for _, row in rows_of(table()["commands"]["compare"]) if f"--{field}" in row.get("on", ()))
    kind = next(rows, {"kind": ""})["kind"]
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


def _pairs(replacements: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the options of words such as --devices 8, with their values."""
    return {
        name: value for words in replacements for name, value in zip(words[::2], words[1::2], strict=True)
    }


def _without_replicas(names: Collection[str], values: Mapping[str, str], words: Sequence[str]) -> set[str]:
    """Return the options for hybrid sharding where words do not give the replicas."""
    is_given = any("dp-replicate" in word for word in words)
    return set() if is_given else {name for name in names if is_hybrid(name) or is_hybrid(values[name])}


def _converted(
    path: str, values: Mapping[str, str], names: Collection[str]
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Return our options for those of other units, and whether they say exactly the same."""
    from forescale.cli.conversions import (
        accumulated,
        all_devices,
        counted_devices,
        failure_rate,
        network_rates,
        replicas,
        trained_tokens,
        wide_area_link,
    )

    options, result = options_of(path), dict[str, tuple[tuple[str, ...], bool]]()
    if "--tokens" in options and (counted := trained_tokens(values)) and counted[0] & {*names}:
        result |= dict.fromkeys(counted[0] & {*names}, (("--tokens", f"{counted[1]}"), True))
    if {"--cluster", "--devices"} <= {*options} and (written := counted_devices(values)) is not None:
        result[written[0]] = (written[1], True)
    for name in names:
        if path == "sites" and (link := wide_area_link(name, values[name])) is not None:
            result[name] = (("--sites", link), False)
            continue
        if "--devices" in options and (devices := all_devices(name, values[name], values)) is not None:
            result[name] = (devices, True)
            continue
        if "--micro-batch-size" in options and (batch := accumulated(name, values)) is not None:
            result[name] = batch
            continue
        if "--dp-replicate" in options and (count := replicas(name, values)) is not None:
            result[name] = (("--dp-replicate", count), False)
            continue
        if "--failures" in options and meant(name, {"failures", "cluster"}) == "failures":
            rate = failure_rate(values[name], values)
            result |= {name: (("--failures", rate), False)} if rate else {}
        elif tier := network_rates(name, values[name], values):
            several = "--vary" in options and "," in tier
            result[name] = (("--vary" if several else "--set", tier), name == "--vary")
    return result


def _written(name: str, path: str, value: str) -> tuple[str, ...]:
    """Return the options of a command that say what an option of others does with a value; nothing if that is open."""
    options = options_of(path)
    if name == "--vary":
        varied = _varied(*value.partition("=")[::2])
        return () if varied is None else (name, varied)
    held = table()["held_by_fix"] if "--fix" in options else ()
    if meant(name, held) and (fixed := _fixed((with_value(value) or "").split())):
        return fixed
    return _of_value(_called(name, options) or name, value, options)


def _of_value(name: str, value: str, options: Collection[str]) -> tuple[str, ...]:
    """Return the options that say what a value of others does, such as adamw_8bit; nothing for values of ours."""
    written = tuple((with_value(value) or "").split())
    is_other = (
        written[:1] == (name,)
        and remark(value) is None
        and written[1] != value
        and {*written[::2]} <= {*options}
    )
    return written if is_other else ()


def _is_several(name: str, path: str, value: str) -> bool:
    """Return whether an option of one number or word is given several, which --vary takes."""
    if "," not in value or name in COMPARED or "--vary" not in options_of(path):
        return False
    row = next(row for _, row in rows_of(table()["commands"][path]) if name in row.get("on", ()))
    return row["kind"] in ("whole", "number", "length") or isinstance(row["kind"], list)


def lacking(words: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Return what a question of a model by name needs and words do not give: no file says it."""
    given = {word.partition("=")[0] for word in words}
    from_file = given & {"--plan", "--config", "--preset"} or any(
        "." in Path(word).name and Path(word).exists() for word in words[1:]
    )
    if from_file or "--" in words or "--global-batch-size" in given or "--global-batch-size" not in flags:
        return []
    counted = given & {"--devices", "--nodes"} or "--devices" not in flags
    lacking = [*([] if counted else ["devices"]), "global_batch_size"]
    return [word for name in lacking for word in (f"--{name.replace('_', '-')}", str(EXAMPLES[name]))]


def no_command(name: str) -> str:
    """Return the error for a command that is none, with what others call so or what is like it."""
    from difflib import get_close_matches

    if (local := command_called(name)) is not None:
        return f"No such command {name!r}; forescale {local} does that"
    if left_out(name, "") == INFERENCE:
        return f"No such command {name!r}: {INFERENCE}"
    like = " or ".join(f"forescale {item}" for item in get_close_matches(name, COMMANDS, n=NAMED))
    return f"No such command {name!r}" + (f"; did you mean {like}?" if like else "")


def options_of(path: str) -> list[str]:
    """Return the long options of a command, such as `pipeline draw`."""
    return [name for name in flags_of(path) if name[:2] == "--"]


def instead(name: str, path: str) -> str:
    """Return which options of a command are like a name that it does not have, and which other commands have it."""
    text = advised(name, path, "").text
    return f"; {text}" if text else ""


def without_value(name: str, path: str) -> str:
    """Return what to say of an option that was typed without its value."""
    rows = rows_of(table()["commands"].get(path, {}))
    row = next((row for _, row in rows if name in row.get("on", ())), {})
    kind, usual = row.get("kind"), row.get("default")
    allowed = f", one of {', '.join(kind)}" if isinstance(kind, list) else ""
    return f"{name} takes a value{allowed}{'' if usual is None else f'; {usual} where it is left out'}"


def advised(name: str, path: str, value: str) -> Advice:
    """Return what is like an option that a command does not have; a `value` may be the option that follows it."""
    is_idle = is_without_effect(name)
    if (reason := "it changes neither time nor memory" if is_idle else left_out(name, path)) is not None:
        return Advice(f"leave it out: {reason}", (), has_value=value[:1] != "-", is_same=is_idle)
    options = options_of(path)
    if (switch := Advice() if _is_link(name, value) else _of_switch(name, path, value)) is not None:
        return switch
    if written := _written(name, path, value):
        return Advice(f"write {' '.join(written)}", written, True, True)
    arguments = {key for key, row in rows_of(table()["commands"].get(path, {})) if "on" not in row}
    if name.strip("-") in arguments:
        alone = None if value[:1] == "-" else (value,)
        text = f"it stands without one: forescale {path} {name.strip('-').upper()}"
        return Advice(text, alone, True, alone is not None)
    word, held = name.strip("-").replace("-", "_"), table()["held_by_fix"]
    dimension = word if word in held else meant(word, held)
    if "--fix" in options and dimension is not None:
        is_switch = dimension == SWITCH and value[:1] == "-"
        value = "true" if is_switch else value
        local = ("--fix", f"{dimension}={value}") if value[:1] != "-" and converted(word) is None else None
        text = f"a search holds it with --fix {dimension}=VALUE"
        return Advice(text, local, not is_switch, local is not None)
    like = _like(name, options)
    is_same = _called(name, options) is not None
    is_sure = is_same or (len(like) == 1 and is_slip(name, like[0]))
    is_list = "," in value and "--vary" in options and len(like) == 1 and is_sure and like[0] not in COMPARED
    if is_list and (varied := _varied(like[0][2:], value)) is not None:
        return Advice(f"write --vary {varied}", ("--vary", varied), True, True)
    is_ours = not like or _letters(like[0]) == _letters(name) or like == [MICROBATCHES]
    how = None if is_ours else converted(word)
    if like == [INTERVAL] and value in AUTOMATIC:
        return Advice(f"{INTERVAL} is the best one by default", (), True, True)
    if like == [INTERVAL] and value.isdecimal():
        how = "a time, such as 30min, not steps"
    hint = [f"did you mean {' or '.join(like)}?{f' {how}' if how else ''}"] if like else []
    sure = len(like) == 1 and how is None and (flags_of(path)[like[0]] > 0) == (value[:1] != "-") and is_sure
    return Advice(
        " ".join([*hint, *_homes(name, like)]), (like[0],) if sure else None, is_same=sure and is_same
    )


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
    kept = [option for option in options if name.strip("-") in option] if len(name) > SHORT else []
    return kept[:NAMED] or get_close_matches(name, options, n=NAMED, cutoff=0.75)


def _called(name: str, options: Sequence[str]) -> str | None:
    """Return which of the options others call so; None if it is none."""
    spelt = [option for option in options if _letters(option) == _letters(name)]
    field = meant(name, {option.strip("-").replace("-", "_") for option in options})
    return spelt[0] if spelt else None if field is None else f"--{field.replace('_', '-')}"


def _letters(option: str) -> str:
    """Return what an option is compared by: dashes and a plural make no difference."""
    return option.strip("-").replace("-", "").replace("_", "").lower().removesuffix("s")
