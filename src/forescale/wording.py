"""The wording of errors: one function for each code, which takes the fields and returns the error.

Each sentence says what is wrong, with the value, then what is allowed, then the fix, a clause without a full stop:

    raise not_divisible("global_batch_size", 63, 4, "dp × micro_batch_size")
    raise ReaderError(path, cannot_parse("TOML", "…"))
    raise out_of_range("seq_len", 0, "1 or more").at("plan.toml")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeAlias

from forescale.patterns import pattern
from forescale.violation import Location, SpecError

P = ParamSpec("P")
LISTED = 24
"""Allowed keys or names that a message lists."""
LONGEST_VALUE = 60
"""Characters of a value that a message shows."""
FIELDS = ("key", "value", "allowed", "fix")
_PLACE = pattern(
    r"(?:the key )?(?:'(?P<quoted>[^']*)'|(?P<name>.*?))(?: \([^()]*?\bline (?P<line>\d+)\))?$", re.DOTALL
)
"""A key as a sentence writes it, perhaps in quotes and with its line."""
Names: TypeAlias = str | Sequence[str]
"""One name, or several."""


CODES: dict[str, Callable[..., SpecError]] = {}
"""The function of each code."""


def _code(wording: Callable[P, str]) -> Callable[P, SpecError]:
    """Register a function that returns a sentence; what it is called with are the fields of the error."""
    parameters, code = signature(wording), wording.__name__

    @wraps(wording)
    def error(*args: P.args, **named: P.kwargs) -> SpecError:
        bound = parameters.bind(*args, **named)
        bound.apply_defaults()
        fields = {name: bound.arguments[name] for name in FIELDS if name in bound.arguments}
        fields["value"] = None if fields.get("value") is ... else fields.get("value")
        keys = [_PLACE.match(name) for name in _names(fields.get("key", ""))]
        fields["key"] = ", ".join(key["quoted"] or key["name"] or "" for key in keys if key)
        lines = [int(key["line"]) for key in keys if key and key["line"]]
        location = Location("", lines[0]) if lines else None
        return SpecError(wording(*args, **named), code=code, location=location, **fields)

    CODES[code] = error
    return error


def shown(value: object, most: int = LONGEST_VALUE) -> str:
    """Return `value` as a message shows it: as Python writes it, cut where it is long."""
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"a number of more than {most} digits"
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def listed(values: Iterable[object], last: str = "or") -> str:
    """Return values as a list: "a, b or c"; at most `LISTED`."""
    texts = list(map(str, values))
    if len(texts) > LISTED:
        return f"{', '.join(texts[:LISTED])} and {len(texts) - LISTED} more"
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def whole_from(least: int) -> str:
    """Return the description of whole numbers from `least` on."""
    return f"a whole number of {least} or more"


def did_you_mean(suggestions: Iterable[object]) -> str:
    """Return the question for the nearest names; empty without one."""
    return f"did you mean {text}?" if (text := listed(suggestions)) else ""


def _names(key: object) -> tuple[str, ...]:
    return tuple(map(str, key)) if isinstance(key, list | tuple) else (str(key),)


def _fixed(text: str, fix: str) -> str:
    return f"{text}; {fix}" if fix else text


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _must_be(key: str, value: object, allowed: str, fix: str) -> str:
    return _fixed(f"{key} must be {allowed}{'' if value is ... else f', got {shown(value)}'}", fix)


@_code
def wrong_type(key: str, value: object, allowed: str, fix: str = "") -> str:
    """Describe a value of another type: `allowed` is "a number", "true or false", "a table"."""
    return _must_be(key, value, allowed, fix)


@_code
def out_of_range(key: str, value: object, allowed: str, fix: str = "") -> str:
    """Describe a number outside its interval: `allowed` is "0 or more", "greater than 0", "from 1 to 8"."""
    return _must_be(key, value, allowed, fix)


@_code
def not_a_quantity(key: str, value: str, fix: str) -> str:
    """Describe a text that is not a number with a unit of the dimension `key`."""
    return _fixed(f"{shown(value)} is not a quantity in {key}", fix)


@_code
def not_one_of(key: str, value: object, allowed: Iterable[object], fix: str = "") -> str:
    """Describe a value that is none of those allowed."""
    return _must_be(key, value, allowed if isinstance(allowed, str) else listed(allowed), fix)


@_code
def not_divisible(key: str, value: object, allowed: object, terms: str = "", fix: str = "") -> str:
    """Describe a number that must be a multiple of `allowed`, which is the product of `terms`."""
    if not fix and isinstance(value, int) and isinstance(allowed, int):
        lower = value // allowed * allowed
        fix = f"try {listed(number for number in (lower, lower + allowed) if number > 0)}"
    return _fixed(f"{key} {value} must be a multiple of {terms}{' = ' if terms else ''}{allowed}", fix)


@_code
def not_a_factor(key: str, value: object, allowed: object, terms: str = "", fix: str = "") -> str:
    """Describe a number that must divide `allowed`, which is the quantity `terms`."""
    return _fixed(f"{key} {value} must divide {terms}{' = ' if terms else ''}{allowed}", fix)


@_code
def unknown_key(key: Names, where: str, allowed: Sequence[str], fix: str = "") -> str:
    """Describe keys that are not allowed where they are written; `fix` names the nearest."""
    names = [repr(name) for name in ((key,) if isinstance(key, str) else key)]
    keys = f"unknown key{'s' if len(names) > 1 else ''} {listed(names, 'and')}"
    return _fixed(f"{keys} in {where}", fix or _takes(allowed, "allowed are"))


@_code
def unknown_name(key: str, value: str, allowed: Sequence[str], hint: str = "", fix: str = "") -> str:
    """Describe a name that no entry has; `hint` names the nearest, `fix` what to give instead of a name."""
    hint = hint or ("" if fix else _takes(allowed, "there are"))
    text = _fixed(f"unknown {key} {value!r}", hint)
    return f"{text} Otherwise {fix}" if hint and fix else _fixed(text, fix)


def _takes(known: Sequence[str], verb: str) -> str:
    return f"{verb} {listed(known, 'and')}" if known else ""


@_code
def ambiguous(key: str, value: object, allowed: Sequence[str]) -> str:
    """Describe a short name that several entries have."""
    return f"{key} {value!r} is ambiguous; give one of the full names: {listed(allowed)}"


@_code
def missing(key: Names, fix: str = "") -> str:
    """Describe required keys that are absent."""
    return _fixed(f"{listed(_names(key), 'and')} {_is(_names(key))} required", fix)


@_code
def no_value(key: str, fix: str = "give it a value, or leave it out") -> str:
    """Describe a key or an option that is written without a value."""
    return _fixed(f"{key} has no value", fix)


@_code
def required_with(key: Names, other: str, value: object = None, fix: str = "") -> str:
    """Describe something (`other`) that requires another key, which is not set or has the wrong `value`."""
    actual = "" if value is None else f", got {value}"
    return _fixed(f"{other} requires {listed(_names(key), 'and')}{actual}", fix)


@_code
def conflicts(key: Names, other: str = "", reason: str = "", fix: str = "") -> str:
    """Describe keys that contradict each other, or set the same thing."""
    names = (*_names(key), *((other,) if other else ()))
    because = f" ({reason})" if reason else ""
    return _fixed(
        f"{listed(names, 'and')} exclude each other{because}",
        fix or f"give {'one' if len(names) > 1 else 'none'} of them",
    )


@_code
def differs(key: str, value: object, other: str, allowed: object, fix: str = "") -> str:
    """Describe a value that differs from another one (`other`, which is `allowed`) that it must equal."""
    return _fixed(f"{key} is {value}, but {other} is {allowed}", fix)


@_code
def given_twice(key: Names, value: object = None, other: object = None, fix: str = "give it once") -> str:
    """Describe a key, a column or an item that is there twice, perhaps with two values."""
    values = "" if value is None else f", as {shown(value)} and {shown(other)}"
    return _fixed(f"{listed(_names(key), 'and')} {_is(_names(key))} given twice{values}", fix)


@_code
def no_effect(key: Names, reason: str, fix: str = "") -> str:
    """Describe options that change nothing; `reason` is a clause that says why."""
    names = _names(key)
    return _fixed(
        f"{listed(names, 'and')} {'has' if len(names) == 1 else 'have'} no effect: {reason}",
        fix or (f"leave {'it' if len(names) == 1 else 'them'} out"),
    )


@_code
def unsupported_by(key: str, value: object, fix: str = "") -> str:
    """Describe something (`value`) that a framework, a preset or a format (`key`) has no setting for."""
    return _fixed(f"{key} does not support {value}", fix)


@_code
def not_expressed(key: str, value: object, fix: str = "") -> str:
    """Describe a setting of a framework that Forescale does not model."""
    return _fixed(f"{key} {value} is not supported" if value else f"{key} is not supported", fix)


@_code
def wrong_count(key: str, value: object, other: str, allowed: object, fix: str = "") -> str:
    """Describe a list or sum of `value` where `other` is of `allowed`."""
    return _fixed(f"{key} has {value}, but {other} has {allowed}", fix)


@_code
def too_large(key: str, value: object, allowed: object, fix: str = "") -> str:
    """Describe something larger than a limit."""
    return _fixed(
        f"{key} has {value}; the limit is {allowed}" if value else f"{key} exceeds the limit of {allowed}",
        fix,
    )


@_code
def not_found(key: str = "file", fix: str = "") -> str:
    """Describe a file or a folder that is not there."""
    return _fixed(f"there is no such {key}", fix)


@_code
def cannot_read(value: object, fix: str = "") -> str:
    """Describe a file that the system does not let us read, or that is not text."""
    return _fixed(f"it cannot be read as text ({value})", fix)


@_code
def cannot_download(value: object, fix: str = "") -> str:
    """Describe an address that the network does not give."""
    return _fixed(f"it cannot be downloaded ({value})", fix)


@_code
def cannot_parse(key: str, value: object = "", fix: str = "") -> str:
    """Describe a text that is not valid in the syntax `key`; `value` says where and why."""
    return _fixed(f"it is not valid {key}{f': {value}' if value else ''}", fix)


@_code
def cannot_write(key: object, value: object, fix: str = "") -> str:
    """Describe a file or folder that cannot be written."""
    return _fixed(f"cannot write {key}: {value}", fix)


@_code
def file_exists(key: object, fix: str = "") -> str:
    """Describe a file that would be overwritten."""
    return _fixed(f"{key} exists", fix)


@_code
def wrong_suffix(key: str, value: object, allowed: Iterable[str], fix: str = "") -> str:
    """Describe a file name whose suffix names no format."""
    return _fixed(f"{key} must end in {listed(allowed)}, got {value}", fix)


@_code
def wrong_format(allowed: str, value: str = "", fix: str = "") -> str:
    """Describe a file that is not what it should be (`allowed`, with its article); `value` says why."""
    return _fixed(f"it is not {allowed}{f': {value}' if value else ''}", fix)


@_code
def incomplete(key: Names, other: str = "it", fix: str = "") -> str:
    """Describe a file, table or object (`other`) without a part that it needs."""
    return _fixed(f"{other} has no {listed(_names(key))}", fix)


@_code
def newer_version(key: str, value: object, allowed: object, fix: str = "update Forescale") -> str:
    """Describe a file of a later version than this one reads."""
    return _fixed(f"{key} is {value}; this version reads {allowed}", fix)


@_code
def corrupted(key: object, value: object, fix: str = "") -> str:
    """Describe a file whose content contradicts itself."""
    return _fixed(f"{key} is corrupted: {value}", fix)


@_code
def empty(key: str = "it", fix: str = "") -> str:
    """Describe a file, list or table without content."""
    return _fixed(f"{key} is empty", fix)


@_code
def circular(key: str, value: object) -> str:
    """Describe files that include each other."""
    return f"its chain of {key} is circular: {value}"


@_code
def extra_missing(key: str, value: str, allowed: str, fix: str = "") -> str:
    """Describe a package (`value`) that `key` needs and that the extra `allowed` installs."""
    return _fixed(f"{key} needs {value}; install it with: pip install 'forescale[{allowed}]'", fix)


@_code
def not_measured(key: str, value: object, fix: str = "") -> str:
    """Describe a measurement file (`key`) that lacks measurements of `value`."""
    return _fixed(f"{key} has no measurements of {value}", fix)


@_code
def other_run(key: str, value: object, allowed: object, fix: str = "") -> str:
    """Describe a measurement (`key`) of `value`, where the question is about `allowed`."""
    return _fixed(f"{key} was measured on {value}; the question is about {allowed}", fix)


@_code
def not_enough_devices(key: str, value: object, allowed: object, fix: str = "") -> str:
    """Describe more devices than there are."""
    return _fixed(f"{key} needs {value} devices; {allowed} are available", fix)


@_code
def out_of_memory(key: str, value: object, allowed: object, fix: str = "") -> str:
    """Describe something that needs more memory than there is."""
    return _fixed(f"{key} needs {value}, but {allowed} are available", fix)


@_code
def no_layout(key: str, fix: str = "") -> str:
    """Describe a search without a result; `key` names what no layout satisfies."""
    return _fixed(f"no layout {key}", fix)


@_code
def timed_out(key: str, allowed: object, fix: str = "") -> str:
    """Describe a task that takes longer than its limit."""
    return _fixed(f"{key} takes longer than {allowed}", fix)


@_code
def needs_running(key: str, value: object, fix: str = "") -> str:
    """Describe a part (`key`) of a configuration in code that is known only when the code runs."""
    return _fixed(f"{key} depends on {value}, which is known only when the configuration runs", fix)


@_code
def choose_one(key: str, allowed: object, fix: str) -> str:
    """Describe a file with several answers; `fix` says how to choose one."""
    return f"it holds several {key}: {allowed}; give {fix}"


@_code
def unset_variable(key: str, value: object, fix: str) -> str:
    """Describe a variable (`value`) that nothing sets."""
    return f"{key} is {value}, which nothing sets; give {fix}"


@_code
def unknown_format(allowed: Names, fix: str = "") -> str:
    """Describe a file in none of the formats that can be read."""
    return _fixed("its format is not known", fix or f"formats that can be read: {allowed}")


@_code
def too_deep(allowed: int = 0) -> str:
    """Describe a file whose tables, lists or commands are nested too deeply."""
    return f"it is nested more than {allowed} levels deep" if allowed else "it is nested too deeply"


@_code
def removed(key: str, fix: str) -> str:
    """Describe a setting that this version of a framework no longer has."""
    return _fixed(f"{key} is no longer supported", fix)


@_code
def exactly_one(key: Names, both: object, fix: str) -> str:
    """Describe alternatives of which none, or more than one (`both`), is given."""
    return _fixed(f"{listed(_names(key), 'and')} {'exclude each other' if both else 'are missing'}", fix)


@_code
def cannot_finish(key: str, value: str, fix: str) -> str:
    """Describe a run that makes no progress."""
    return _fixed(f"{key} never ends: {value}", fix)


@_code
def implausible(key: str, value: object, allowed: object, fix: str = "") -> str:
    """Describe a measurement that contradicts the physics of the question."""
    return _fixed(f"{key} took {value}, less than {allowed}", fix)


@_code
def not_traceable(key: str, value: str, fix: str = "") -> str:
    """Describe a module or a block (`key`) that cannot be traced; `value` says why."""
    return _fixed(f"{key} cannot be traced: {value}", fix)


@_code
def deadlock(key: str, value: str) -> str:
    """Describe a schedule whose actions can never start."""
    return f"{key} deadlocks: {value}"


@_code
def cannot_listen(key: str, value: object, fix: str) -> str:
    """Describe an address that the server cannot open."""
    return _fixed(f"cannot listen on {key}: {value}", fix)


@_code
def no_records(allowed: str) -> str:
    """Describe a log without a line about a step in any format that is read."""
    return f"no line says how long a step takes in a known format ({allowed})"


@_code
def no_value_passes(key: str, value: object, allowed: str, fix: str = "") -> str:
    """Describe a quantity (`key`) of which no value passes; the last that was tried, and why it fails."""
    tried = "" if value is None else f" ({shown(value)} was the last that was tried)"
    return _fixed(f"no {key} passes{tried}: {allowed}", fix)


@_code
def illegal_layout(key: Names, value: Sequence[str]) -> str:  # noqa: ARG001  (a field)
    """Describe a layout that violates constraints (`key`), with the sentence of each."""
    return "; ".join(value)
