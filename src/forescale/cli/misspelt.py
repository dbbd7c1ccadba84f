"""Command lines with commands and options that do not exist: what they mean, or the error, with nothing else loaded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from forescale.cli.advice import (
    ASKING,
    FAILURES,
    LEAVE,
    MEASURED,
    NAMED,
    advised_of,
    flags_of,
    is_failure_time,
    is_figure,
    is_link,
    is_listed,
    is_several,
    of_value,
    options_of,
    rows_of,
    table,
    varied_as,
)
from forescale.cli.front import COMMANDS
from forescale.synonyms import (
    EXAMPLES,
    INFERENCE,
    command_called,
    is_hybrid,
    is_per_device,
    is_without_effect,
    left_out,
    meant,
    with_value,
)

USUAL = {"memory": "memory layout"}
"""Commands of groups that need not be named."""
REPLACED = ("--tokens", "--cluster", "--devices")
"""Options that a conversion changes: tokens of one epoch, a cluster with the number of its devices."""
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
    "--lora-rank 16 --frozen-dtype nf4 --recompute full": " (PEFT prepares such weights with recompute)",
    "--lora-rank 16 --frozen-dtype int8 --recompute full": " (PEFT prepares such weights with recompute)",
    "--set workload.reference=copy": " (a pair is two sequences of the batch)",
    "--set workload.reference=shared": " (the model without its adapters; a pair is two sequences of the batch)",
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


def examples_of(path: str) -> Sequence[tuple[str, str]]:
    """Return questions and the commands that answer them, as the help of a command shows them."""
    text = Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Sequence[tuple[str, str]]] = json.loads(text)
    return loaded.get(path, ())


def started(words: Sequence[str], lacked: Sequence[str] = ()) -> str:
    """Return an example of a command for an error; nothing where there is none.

    Without any words it is the first of the help; with words it is these, and one of the options `lacked` with its
    value of the help.
    """
    path, rest = command_in(words)
    shown = [shlex.split(command) for _, command in examples_of(path or "")]
    if not rest and shown:
        return f"For example: forescale {shlex.join(shown[0])} (more: forescale {path} --help)"
    pairs = (pair for command in shown for pair in pairwise(command) if pair[0] in lacked)
    pair = next(pairs, None)
    return "" if pair is None else f"For example: {shlex.join(('forescale', *words, *pair))}"


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
    unread = {name: text for name, text in correction.unknown.items() if name not in correction.read}
    unread = unread or {**correction.unknown}
    if len(unread) == 1:
        [(name, text)] = unread.items()
        is_known = name in flags_of(path)
        said = f"{name}: {text}" if is_known else f"No such option: {name}{text and f'; {text}'}"
    else:
        said = f"No such options: {_listed(unread)}"
    if (example := _example(path, words, correction)) is None:
        return f"{said} (see forescale {path} --help)"
    return f"{said}{'' if said[-1] == '?' else '.'} For example: {example}"


def _listed(texts: Mapping[str, str]) -> str:
    """Return the options, each with its explanation; options to leave out for the same reason share one explanation."""
    alike: dict[str, list[str]] = {}
    for name, text in texts.items():
        alike.setdefault(text if text.startswith(LEAVE) else f"{name} {text}", []).append(name)
    said = []
    for names in alike.values():
        text = texts[names[0]]
        text = text.replace(LEAVE, "leave them out", 1) if len(names) > 1 else text
        said.append(", ".join(names) + (text and f" ({text})"))
    return ", ".join(said)


def _example(path: str, words: Sequence[str], correction: Correction) -> str | None:
    """Return a command line that says the same, with this or another command; None where there is none."""
    if path in ("project", "run") and BUDGET in correction.unknown and "--tokens" not in words:
        words = [word.replace(BUDGET, MAX_COST, 1) for word in words]
        asked = _corrected("check", words)
        return shlex.join(["forescale", *(asked.words or ("check", *words)), *SOLVE_TOKENS])
    if correction.words is not None:
        flags = flags_of(path)
        return shlex.join(["forescale", *correction.words, *lacking(correction.words, flags)])
    words = _with_one_value(words) if path == "compare" else words
    several = any("," in word for word in words)  # machines or values, which few commands take
    usual = ["compare"] if several else _others(correction.unknown)
    if "--tokens" in words:
        usual.sort(key=lambda other: other != "run")
    others = ["diagnose"] if MEASURED in correction.unknown else usual
    has_model = "model" in _arguments(path)
    for other in [*_of_group(path, correction.unknown), *others]:
        if " " in path and not has_model and "model" in _arguments(other):
            continue
        there = _corrected(other, words)
        if other != path and there.words is not None and _knows(other, there.words):
            return shlex.join(["forescale", *there.words, *lacking(there.words, flags_of(other))])
    return None


def _with_one_value(words: Sequence[str]) -> list[str]:
    """Return words with the first value of each --vary as an option of its own, or as a --set of a key."""
    left, result = list(words), list[str]()
    while left:
        name, assigned, value = (word := left.pop(0)).partition("=")
        if name != "--vary" or not (assigned or left):
            result.append(word)
            continue
        key, _, values = (value if assigned else left.pop(0)).partition("=")
        first = values.partition(",")[0].strip()
        is_key = "." in key
        result += ["--set", f"{key}={first}"] if is_key else [f"--{key.strip('-').replace('_', '-')}", first]
    return result


def _rates(name: str, values: Mapping[str, str]) -> str | None:
    """Return the rates of a network that an option gives; None of an option that another command has."""
    from forescale.cli.conversions import network_rates

    is_ours = name != "--vary" and any(name in options_of(path) for path in ASKING)
    return None if is_ours else network_rates(name, values[name], values)


def _of_group(path: str, names: Collection[str]) -> list[str]:
    """Return the other commands of a group, such as `pipeline`, that have all of some options."""
    group, _, name = path.partition(" ")
    inside = [other for other in table()["commands"] if name and other.startswith(f"{group} ")]
    return [other for other in inside if {*names} <= {*options_of(other)}]


def _arguments(path: str) -> list[str]:
    """Return the arguments of a command, which have no name on the command line."""
    return [name for name, row in rows_of(table()["commands"].get(path, {})) if "on" not in row]


def _knows(path: str, words: Sequence[str]) -> bool:
    """Return whether a command has every option of some words, short ones included."""
    flags = flags_of(path)
    return all(word.partition("=")[0] in flags for word in words if word[:1] == "-" and not _is_number(word))


def _is_number(word: str) -> bool:
    return word[1:2].isdigit() or word in ("-", "--")


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
        unknown[name] = (advice := advised_of(name, path, value, words)).text
        if advice.words is None:
            open_names.add(name)
        elif advice.is_same:
            read[name] = " ".join(advice.words) or ("" if is_without_effect(name) else "the default")
        example += advice.words or ()
        has_value = advice.takes(value)
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


def _put(words: list[str], options: Sequence[tuple[str, str]]) -> None:
    """Add options with their values to the words of a command, in place of those of `REPLACED` that it has."""
    for option, text in options:
        if option in words[:-1] and option in REPLACED:
            del words[(place := words.index(option)) : place + 2]
        words += [option, text]


def _is_otherwise(name: str, path: str, value: str, flags: Mapping[str, int], *, assigned: bool) -> bool:
    """Return whether an option has values that others write, several of them, or none where it needs one."""
    lacks = flags[name] > 0 and not assigned and value[:2] in ("-", "--") and with_value(name) is not None
    if name == "--vary":
        return is_link(name, value) or varied_as(*value.partition("=")[::2]) not in (None, value)
    is_rate = name == FAILURES and is_failure_time(value)
    several = is_listed(name, path, value) or is_several(name, path, value)
    return lacks or is_rate or several or is_figure(name, path, value) or bool(of_value(name, value, flags))


def _pairs(replacements: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return the options of words such as --devices 8, with their values; the same pair once."""
    pairs = (pair for words in replacements for pair in zip(words[::2], words[1::2], strict=True))
    return [*dict.fromkeys(pairs)]


def _without_replicas(names: Collection[str], values: Mapping[str, str], words: Sequence[str]) -> set[str]:
    """Return the options for hybrid sharding where words do not give the replicas."""
    is_given = any("dp-replicate" in word for word in words)
    return set() if is_given else {name for name in names if is_hybrid(name) or is_hybrid(values[name])}


def _has_file(words: Sequence[str]) -> bool:
    """Return whether words of a command name a file of a run, which may say what they leave open."""
    given = {word.partition("=")[0] for word in words}
    return bool(given & {"--plan", "--config", "--preset"}) or any(
        "." in Path(word).name and Path(word).exists() for word in words
    )


def _converted(
    path: str, values: Mapping[str, str], names: Collection[str]
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Return our options for those of other units, and whether they say exactly the same."""
    from forescale.cli.conversions import (
        accumulated,
        all_devices,
        counted_devices,
        failure_rate,
        halves,
        replicas,
        trained_tokens,
        wide_area_link,
    )

    options, result = options_of(path), dict[str, tuple[tuple[str, ...], bool]]()
    batches = (accumulated(name, values) for name in names)
    known = {**values, **dict(_pairs([batch[0] for batch in batches if batch is not None]))}
    if "--tokens" in options and (counted := trained_tokens(known)) and counted[0] & {*names}:
        is_whole = len(counted[1]) == len(("--tokens", "1"))
        result |= dict.fromkeys(sorted(counted[0] & {*names}), (counted[1], is_whole))
    written = counted_devices(values) if {"--cluster", "--devices"} <= {*options} else None
    if written is not None:
        result[written[0]] = (written[1], True)
    for name in names:
        if path == "sites" and (link := wide_area_link(name, values[name])) is not None:
            result[name] = (("--sites", link), False)
        elif "--devices" in options and (devices := all_devices(name, values[name], values)) is not None:
            result[name] = (devices, True)
        elif "--input-grad" in options and (passes := halves(name, values[name])) is not None:
            result[name] = (passes, True)
        elif "--micro-batch-size" in options and (batch := accumulated(name, values)) is not None:
            result[name] = batch
        elif "--dp-replicate" in options and (count := replicas(name, values)) is not None:
            result[name] = (("--dp-replicate", count), False)
        elif "--failures" in options and meant(name, {"failures", "cluster"}) == "failures":
            rate = failure_rate(values[name], values)
            result |= {name: (("--failures", rate), False)} if rate else {}
        elif tier := _rates(name, values):
            several = "--vary" in options and "," in tier
            result[name] = (("--vary" if several else "--set", tier), name == "--vary")
    return result


def lacking(words: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Return what a question of a model by name needs and words do not give: no file says it."""
    given = {word.partition("=")[0] for word in words}
    if (
        _has_file(words[1:])
        or "--" in words
        or "--global-batch-size" in given
        or "--global-batch-size" not in flags
    ):
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
