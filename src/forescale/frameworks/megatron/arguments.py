"""Megatron-LM's command line: a shell script, one line, a list of words, or a table of flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import field
from msgspec.structs import replace

from forescale.errors import (
    MissingFact,
    ReaderError,
    UnknownKeyError,
    incomplete,
    not_found,
    wrong_format,
    wrong_type,
)
from forescale.frameworks.megatron.forks import (
    Effects,
    Fork,
    fork_of,
    idle_program,
    misspelt,
    not_modelled,
    translate,
)
from forescale.frameworks.reading import packaged
from forescale.frameworks.settings import MISSING, Settings
from forescale.frameworks.shell import HEADERS, WORLD, Devices, Use, devices_of, follow, is_unset, launch_of
from forescale.limits import whole_of
from forescale.struct import Struct
from forescale.units import counted

Pair: TypeAlias = tuple[str, object]
"""A flag and its values: a list of words, or what a table holds."""

_FLAG = re.compile(r"^--[A-Za-z]")
_HAS_FLAG = re.compile(r"(?:^|\s)--[A-Za-z]")


class CommandLine(Struct, frozen=True, kw_only=True):
    """A parsed command line."""

    settings: Settings
    unknown: tuple[str, ...]
    devices: Devices | None
    """Those that the launcher's options ask for, if they stand before the training script."""
    launched: bool = False
    """Whether a launcher starts it."""
    places: tuple[str, ...] = ()
    """The options that say so, each with its line."""
    fork: Fork | None = None
    """The fork whose flags it has."""
    warnings: tuple[str, ...] = ()
    """What flags of forks change that is not modelled."""
    unset: Mapping[str, Use] = field(default_factory=dict)
    """Variables that nothing sets, `1` for `$1`, and what the script does with them."""
    open_flags: tuple[MissingFact, ...] = ()
    """Variables of flags that nothing sets."""
    text: str = ""
    """The script."""
    config: str | None = None
    """Text of the configuration of DeepSpeed that it names."""
    table: str | None = None
    """Text of the file that --yaml-cfg names, which stands for all flags."""

    @property
    def num_devices(self) -> int | None:
        """Number of devices; None where the launcher does not say."""
        return None if self.devices is None else self.devices.count

    @property
    def framework(self) -> str:
        """Record of the framework; DeepSpeed's plain engine, which takes all stages of ZeRO, has its own."""
        if self.settings.flag("no_pipeline_parallel"):
            return "deepspeed-zero@fused"
        return "megatron-core" if self.fork is None else self.fork.framework


@cache
def known_flags() -> Mapping[str, tuple[str, str]]:
    """Return Megatron-LM's flags: the key each sets, and what it takes (a value, or sets true or false)."""
    return MappingProxyType(
        {flag: (key, kind) for flag, (key, kind) in packaged("megatron", "flags")["flags"].items()}
    )


@cache
def known_keys() -> frozenset[str]:
    """Return the keys that flags set."""
    return frozenset(key for key, _ in known_flags().values())


@cache
def yaml_keys() -> Mapping[str, str]:
    """Return what --yaml-cfg takes: each key that it has, with the key of a flag that means the same, or itself."""
    yaml = {name: key or name for name, key in packaged("megatron", "flags")["yaml"].items()}
    return MappingProxyType({key: key for key in known_keys()} | yaml)


def flag_of(key: str) -> tuple[str, str] | None:
    """Return the flag that sets a key, and what it takes as in `known_flags`; None if no flag does."""
    flag = _flag_of_key().get(key)
    return None if flag is None else (flag, known_flags()[flag][1])


@cache
def _program_flags() -> frozenset[str]:
    """Return flags that programs of Megatron-LM's repository add to its own."""
    return frozenset(packaged("megatron", "flags")["programs"])


@cache
def _flag_of_key() -> Mapping[str, str]:
    """Return the flag that sets each key; the shortest, where there are several."""
    flags = sorted(known_flags(), key=len, reverse=True)
    return MappingProxyType({known_flags()[flag][0]: flag for flag in flags})


def parse_arguments(
    arguments: str | Sequence[str] | Mapping[str, Any],
    *,
    where: str,
    variables: Mapping[str, str] | None = None,
    strict: bool = True,
    read_neighbour: Callable[[str], str | None] = lambda _: None,
    passed: Sequence[str] | None = None,
) -> CommandLine:
    """Return the settings that a command line makes; of a flag given twice the last counts.

    Parameters
    ----------
    arguments
        Shell text (a command, or a script), a list of words, or a table such as {"--num-layers": 12, "--bf16": True}.
    where
        Its origin, for messages.
    variables
        Values of shell variables, over what the text sets.
    strict
        Whether to refuse flags that neither Megatron-LM, its forks nor the program it starts has.
    read_neighbour
        The text of a script that the text runs, by its name; None where there is none.
    passed
        Arguments of the script, `$1` and so on; None if they are not known.
    """
    if isinstance(arguments, Mapping):
        run = _Run([(flag, value) for flag, value in arguments.items() if value is not None])
    elif isinstance(arguments, str):
        run = _chosen(arguments, variables or {}, where, read_neighbour, passed)
    else:
        run = _run_of(list(arguments))
    _refuse_idle(run, where)
    if not run.pairs:
        raise ReaderError(where, incomplete("Megatron-LM flags (words such as --num-layers)"))
    text = arguments if isinstance(arguments, str) else ""
    return _command_line(run, where, text, strict=strict, read_neighbour=read_neighbour)


ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables of PyTorch's allocator."""


class _Run(Struct, frozen=True):
    """One program's start."""

    pairs: Sequence[Pair]
    devices: Devices | None = None
    launched: bool = False
    """Whether a launcher starts it."""
    program: str | None = None
    words: Sequence[str] = ()
    """What stands after the program."""
    allocator: str | None = None
    """What the script tells PyTorch's allocator."""
    others: int = 0
    """Programs that the script starts with other flags of Megatron-LM."""
    unset: Mapping[str, Use] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the files that the script writes."""
    missing: tuple[str, ...] = ()
    """Scripts that it starts and that are not there."""


def _chosen(
    text: str,
    variables: Mapping[str, str],
    where: str,
    read_neighbour: Callable[[str], str | None],
    passed: Sequence[str] | None,
) -> _Run:
    """Return, of the programs that a script starts, the one with the most of Megatron's flags.

    A script that starts none, as those that only set variables for another, has the flags of its variables. Flags on
    lines of their own are one list.
    """
    script = follow(text, variables, where, read_neighbour, passed)
    hosts = cache(read_neighbour)
    lists = (names for names in script.commands if names[0].startswith("--") and _program(names) is None)
    bare = [word for names in lists for word in names]
    exports = _EXPORTS.search(text) is not None
    runs = [
        _run_of(command, hosts, world if exports else "")
        for command, world in zip(script.commands, (item[WORLD] for item in script.environments), strict=True)
        if _program(command) is not None
    ]
    runs.append(_run_of(bare, hosts))
    flagged = (words for words in script.variables.values() if any(map(_HAS_FLAG.search, words)))
    flags = [word for words in flagged for value in words if value.strip() for word in _parted(value)]
    if not any(map(_known, runs)):
        script.refuse_stopped(where)
    run = max((*runs, _run_of([])), key=_fullness)
    others = sum(_known(item) > 1 and item.pairs != run.pairs for item in runs)
    run = run if _known(run) > 1 or not _known(_run_of(flags)) else _run_of(flags)
    explicit = (" ".join(variable) for name, variable in script.variables.items() if name in ALLOCATOR)
    return replace(
        run,
        allocator=next(explicit, None),
        others=others,
        unset=script.unset,
        files=script.files,
        missing=tuple(script.missing),
    )


_EXPORTS: Final = re.compile(rf"^[ \t]*export[ \t][^#\n]*\b{WORLD}\b", re.MULTILINE)


def _fullness(run: _Run) -> tuple[int, ...]:
    """Return what says which of several runs has the most flags, of those Megatron-LM has first."""
    return (not _idle(run), _known(run), len(run.pairs)) if _known(run) else ()


def _idle(run: _Run) -> str | None:
    """Return what a program does instead of training; None if it may train."""
    return None if run.program is None else idle_program(run.program)


def _refuse_idle(run: _Run, where: str) -> None:
    """Refuse a script that trains nothing, or that only starts another one that is not there."""
    if what := _idle(run):
        allowed = "a script that trains"
        raise ReaderError(where, wrong_format(allowed, f"it starts {run.program}, which {what}"))
    if skips := next((flag for flag, _ in run.pairs if flag in SKIPS), None):
        raise ReaderError(where, wrong_format("a script that trains", f"{skips} leaves training out"))
    if not _known(run) and any(flag == "--config" for flag, _ in run.pairs):
        raise ReaderError(where, not_found("file of flags (--config)", "give its flags in the command"))
    if run.missing and not _known(run):
        names = ", ".join(dict.fromkeys(run.missing))
        raise ReaderError(where, not_found(f"script {names}", "copy it next to this file"))


SKIPS = ("--skip-train", "--no-train", "--eval-only")
"""Flags that leave out training."""


def _known(run: _Run) -> int:
    return sum(flag in known_flags() for flag, _ in run.pairs)


def _command_line(
    run: _Run, where: str, text: str, *, strict: bool, read_neighbour: Callable[[str], str | None]
) -> CommandLine:
    values, spelling = dict[str, Any](), dict(_flag_of_key())
    pairs, names = list[Pair](), list[str]()
    fork = fork_of(flag for flag, _ in run.pairs)
    for flag, words in run.pairs:
        if _is_open(flag, words):
            continue
        value = _set_words(words)
        if flag in known_flags() and not (fork is not None and fork.has(flag)):
            key, kind = known_flags()[flag]
            values[key] = _value(flag, kind, value, f"{where}{_line(text, flag)}")
            spelling[key] = flag
        elif flag in _program_flags():
            names.append(flag)
        else:
            pairs.append((flag, value))
    effects, made = translate(fork, pairs, values, where)
    _refuse_unknown(run, effects, where, text, strict=strict)
    if run.allocator is not None:
        values[ALLOCATOR[0]] = run.allocator
    settings = Settings(values, where, {**made, **spelling})
    for note in (*_run_notes(run, names), *effects.notes(fork)):
        settings.note(note)
    options = () if run.devices is None else run.devices.options
    config = next((value for flag, value in pairs if flag.replace("_", "-") == "--deepspeed-config"), None)
    name = str(config[0]) if isinstance(config, list) and config else None
    return CommandLine(
        settings=settings,
        unknown=tuple(dict.fromkeys(effects.unknown)),
        devices=run.devices,
        launched=run.launched,
        places=tuple(_placed(option, text) for option in options),
        fork=fork,
        warnings=tuple(effects.warnings()),
        unset=run.unset,
        open_flags=tuple(_open_flags(run.words, text)),
        text=text,
        config=None if name is None else run.files.get(name, read_neighbour(name)),
        table=None if (table := settings.text("yaml_cfg")) == "" else _table_of(table, where, read_neighbour),
    )


def _table_of(name: str, where: str, read_neighbour: Callable[[str], str | None]) -> str:
    """Return the text of --yaml-cfg, whose settings Megatron-LM takes in place of all flags."""
    if (text := read_neighbour(name)) is None:
        raise ReaderError(where, not_found(f"file {name} (--yaml-cfg)", "put it next to the script"))
    return text


def _run_notes(run: _Run, names: Sequence[str]) -> Iterator[str]:
    if run.others:
        starts = counted(run.others + 1, "run")
        yield f"the script starts {starts} with different flags; the fullest, of those the first, is read"
    if open_flags := [flag for flag, words in run.pairs if _is_open(flag, words)]:
        yield f"taken as not given, as a command sets them: {', '.join(open_flags)}"
    if names:
        yield f"of the program, not of the model or its layout: {', '.join(dict.fromkeys(names))}"


OPEN_FLAGS = re.compile(
    r"--\$\{(?P<flag>\w+)\}|\$\{(?!(?i:\w*(?:extra|custom|other|addition)))(?P<flags>\w*(?i:args?|opts?|options?|flags?))\}"
)
"""A variable of a flag, or of flags, that nothing sets, other than those of a user's own additions."""


def _open_flags(words: Sequence[str], text: str) -> Iterator[MissingFact]:
    """Yield variables of flags that nothing sets; one that a branch not taken sets is empty."""
    for flag, word in zip(("", *words), words, strict=False):
        match = OPEN_FLAGS.fullmatch(word)
        name = match and (match["flag"] or match["flags"])
        if not name or known_flags().get(flag, ("", ""))[1] == "value" or re.search(rf"\b{name}\+?=", text):
            continue
        several = f"the flags of the variable {name}", f"--var {name}='FLAGS'", f"--var {name}="
        one = f"the flag --{word[2:]}", f"--var {name}=VALUE", f"--var {name}=bf16"
        yield MissingFact(*(one if word.startswith("--") else several))


def _is_open(flag: str, words: object) -> bool:
    """Return whether a flag that need not be given has what a command prints."""
    key = known_flags().get(flag, ("",))[0]
    printed = isinstance(words, list) and re.fullmatch(r"\$\([^(].*\)", " ".join(map(str, words)))
    return bool(printed and key) and key not in packaged("megatron", "forks")["asked"]


def _refuse_unknown(run: _Run, effects: Effects, where: str, text: str, *, strict: bool) -> None:
    """Refuse flags that are misspelt, and if `strict` all that are not known; the error names all of them."""
    for word, effect in packaged("megatron", "forks")["models"].items():
        if word in str(run.program):
            not_modelled(effects, effect, str(run.program), where)
    optimizers = [words for flag, words in run.pairs if flag == "--optimizer" and isinstance(words, list)]
    named = tuple(f"--{word}-" for words in optimizers for word in words)
    wrong = [
        flag
        for flag in dict.fromkeys(effects.unknown)
        if (strict and _of_megatron(run.program))
        or (misspelt(flag, known_flags()) and not flag.startswith(named))
    ]
    if wrong:
        error = UnknownKeyError(wrong[0], f"{where}{_line(text, wrong[0])}", known_flags())
        others = f"; not known either: {', '.join(wrong[1:])}" if wrong[1:] else ""
        raise error.worded(f"{error}{others}")


def _of_megatron(program: str | None) -> bool:
    """Whether a program takes the flags of Megatron-LM and no others."""
    return program is None or program.rsplit("/", 1)[-1].startswith(
        ("pretrain_gpt", "pretrain_hybrid", "pretrain_mamba")
    )


@lru_cache(maxsize=512)  # a flag may be there ten thousand times
def _line(text: str, flag: str) -> str:
    """Return where a flag stands in a script, for messages."""
    lines = text.splitlines()
    plain = (line if line.startswith(HEADERS) else line.split("#")[0] for line in lines)
    result = next((at for at, line in enumerate(plain, 1) if flag in line), None)
    return "" if result is None or len(lines) == 1 else f", line {result}"


def _placed(option: str, text: str) -> str:
    """Return an option of a launcher with its line."""
    line = _line(text, option.split(maxsplit=1)[0]).removeprefix(", ")
    return f"{option} ({line})" if line else option


def _set_words(value: object) -> object:
    """Return the words of a value without those of variables that nothing sets, unless they are all there is."""
    if isinstance(value, list) and len(value) > 1 and "$((" not in value:
        return [word for word in value if not is_unset(str(word))] or value[:1]
    return value


def _value(flag: str, kind: str, value: object, where: str) -> object:
    if kind == "value":
        if value == [] or value is True:
            return MISSING
        return value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(value, list):
        value = [word for word in value if not is_unset(str(word))]
    if value not in ([], True, False):
        raise ReaderError(where, wrong_type(flag, value, "no value"))
    return (kind == "true") is (value is not False)


def _program(names: Sequence[str]) -> int | None:
    """Return the place of the Python program among the words of a command; launchers are none.

    An unset variable is the program if the next word is a flag and the previous one is not.
    """
    for at, word in enumerate(names):
        module = at > 0 and names[at - 1] == "-m" and not word.startswith("torch.distributed")
        if module or word.endswith(".py"):
            return at
    if not launch_of(names).kinds:
        return None
    inside = zip(names, names[1:], names[2:], strict=False)
    return next(
        (
            at
            for at, (before, word, after) in enumerate(inside, 1)
            if is_unset(word) and after.startswith("--") and not before.startswith("-")
        ),
        None,
    )


def _run_of(
    names: Sequence[str], read_neighbour: Callable[[str], str | None] = lambda _: None, world: str = ""
) -> _Run:
    """Split the words of one command; those before the program are the launcher's.

    Without a launcher the processes are those of WORLD_SIZE, `world`.
    """
    at = _program(names)
    start = -1 if at is None else at
    launch = launch_of(names[: max(start, 0)])
    devices = devices_of(launch, read_neighbour) if start > 0 else None
    if devices is None and not launch.kinds and (count := whole_of(world)):
        devices = Devices(count, (f"{WORLD} {count}",))
    words = names[start + 1 :]
    return _Run(_pairs(words), devices, bool(launch.kinds), None if at is None else names[at], words)


def _pairs(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    pairs: list[tuple[str, list[str]]] = []
    for word in (part for name in names for part in (_parted(name) if name.startswith("--") else [name])):
        flag, equals, inline = word.partition("=")
        if _FLAG.match(word):
            pairs.append((flag, [inline] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
    if any("-" in flag[2:] for flag, _ in pairs if flag in known_flags()):
        return pairs
    dashed = {flag: f"--{flag[2:].replace('_', '-')}" for flag, _ in pairs}
    return [
        (dashed[flag] if dashed[flag] in known_flags() else flag, names) for flag, names in pairs
    ]  # Megatron-LLM spells all flags with underscores


def _parted(word: str) -> list[str]:
    """Return the words of `--flag value` written as one; quotes inside hold together."""
    flag = word.split(maxsplit=1)[0]
    if flag == word or "=" in flag:
        return [word]
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()
