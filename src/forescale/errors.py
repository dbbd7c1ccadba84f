"""Errors that people see.

ForescaleError
├── SpecError            a model, cluster, strategy or workload that cannot be
│   ├── UnknownNameError a name that is in no catalogue, with the nearest ones
│   ├── AmbiguousNameError a short name that can mean several entries of a catalogue
│   ├── UnknownKeyError  a key that a file or an override may not have
│   ├── MissingError     parts of a question that are not given
│   └── ScheduleError    a pipeline schedule that cannot be built, read or run
├── ReaderError          a file that cannot be read: which, where, why
├── InfeasibleError      no layout satisfies the constraints; carries the table of those that failed
└── PhysicsError         a result that breaks a physical law: a defect of ours, never hidden
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from forescale.synonyms import EXAMPLES, meant
from forescale.violation import ForescaleError, Location, SpecError
from forescale.wording import *  # noqa: F403  (all codes)
from forescale.wording import ambiguous, did_you_mean, extra_missing, listed, unknown_key, unknown_name

__all__ = ("ForescaleError", "Location", "SpecError")
SHORTEST_PART = 4
"""Letters and digits of the first part of a name that another name has to have for it to be named."""
MISSPELT = 0.8
"""How alike a key is to a missing one where it is meant to be that: all but a letter of six."""


class UnknownNameError(SpecError):
    """A name that is in no catalogue."""

    def __init__(self, kind: str, name: str, known: Iterable[str], fix: str = "") -> None:
        """`fix` is what else can be given than one of the known."""
        there = tuple(known)
        self.kind, self.name, self.suggestions = kind, name, nearest(name, there)
        violation = unknown_name(kind, name, there, did_you_mean(self.suggestions), fix)
        super().__init__(violation, nearest=self.suggestions)


class AmbiguousNameError(SpecError):
    """A short name that can mean several entries of a catalogue."""

    def __init__(self, kind: str, name: str, candidates: Iterable[str]) -> None:
        self.kind, self.name, self.suggestions = kind, name, tuple(candidates)
        super().__init__(ambiguous(kind, name, self.suggestions), nearest=self.suggestions)


class UnknownKeyError(SpecError):
    """A key that is not allowed where it stands."""

    def __init__(self, key: str, where: str, known: Iterable[str], home: str = "") -> None:
        """`home` is the table that has such a key, where that is another one."""
        allowed, key = tuple(known), str(key)  # of tables in Python, any value
        self.where, self.suggestions = where, nearest(key, allowed)
        fix = did_you_mean(self.suggestions) or (f"{home} has it" if home else "")
        super().__init__(unknown_key(key, where, allowed, fix))

    @classmethod
    def of(
        cls, keys: Sequence[str], where: str, known: Iterable[str], homes: Mapping[str, str], fix: str = ""
    ) -> UnknownKeyError:
        """Return the error of one key or several; `homes` are the tables that have them, where those are others."""
        allowed = tuple(known)
        error = cls(keys[0], where, allowed, homes.get(keys[0], ""))
        if fix:
            SpecError.__init__(error, unknown_key(keys if len(keys) > 1 else keys[0], where, allowed, fix))
        elif len(keys) > 1:
            likes = [f"{listed(like)} for {key}" for key in keys if (like := nearest(key, allowed))]
            violation = unknown_key(keys, where, allowed, did_you_mean([", ".join(likes)] if likes else ()))
            SpecError.__init__(error, violation)
        return error


def batch_for(devices: object) -> int:
    """Return a global batch as an example, of at least 64 sequences and as many for each of the devices."""
    usual = int(EXAMPLES["global_batch_size"])
    return -(-usual // devices) * devices if isinstance(devices, int) and devices else usual


class MissingFact(NamedTuple):
    """A fact that a file leaves open, and the option that gives it."""

    what: str
    """The fact, such as "the number of devices"."""
    flag: str
    """The option that gives it, such as "--devices N"."""
    example: str
    """The option with a value that would work, such as "--devices 8"."""
    part: str = ""
    """Key of the question that the option sets, such as "workload.seq_len"; empty of shell variables."""
    reason: str = ""
    """Why the file does not hold it."""

    def batch_for(self, devices: object) -> MissingFact:
        """Return this fact of a batch, with an example that gives each of the devices a sequence."""
        return self._replace(example=f"--global-batch-size {batch_for(devices)}")


class MissingError(SpecError):
    """Parts of a question that are not given.

    Attributes
    ----------
    missing
        Options, or the names of the parts.
    facts
        What a file leaves open, if that is why.
    """

    def __init__(self, missing: Sequence[str], text: str, facts: Sequence[MissingFact] = ()) -> None:
        super().__init__(text, code="missing", key=", ".join(missing))
        self.missing, self.facts = tuple(missing), tuple(facts)

    @classmethod
    def of(cls, where: object, facts: Sequence[MissingFact], command: str = "") -> MissingError:
        """Return the error of all facts that a file (`where`) leaves open, with an example that continues `command`."""
        unique = list({fact.flag: fact for fact in facts}.values())
        texts = [f"{fact.what} ({f'{fact.reason}; ' if fact.reason else ''}{fact.flag})" for fact in unique]
        fix = " ".join([command, *(fact.example for fact in unique)]).strip()
        named = "1 fact is" if len(unique) == 1 else f"{len(unique)} facts are"
        text = f"{where}: {named} missing: {'; '.join(texts)}. For example: {fix}"
        error = cls([fact.flag.partition(" ")[0] for fact in unique], text, unique)
        error.fix, error.location = fix, Location.of(where)
        return error


class ScheduleError(SpecError):
    """A pipeline schedule that cannot be built, read or run."""


class ReaderError(ForescaleError):
    """A file that cannot be read as what it should be.

    `words` are the model and the options of the command line that ask the same, if the file says that much.
    """

    words: tuple[str, ...] = ()

    def __init__(self, path: object, violation: str | ForescaleError) -> None:
        super().__init__(violation)
        self.path, self.problem = path, violation
        self.location = Location.of(path, self.location)
        self.args = (f"{path}: {violation}",)


@contextmanager
def needing(
    extra: str, user: str, package: str = "", fix: str = "", *, only: Collection[str] = ()
) -> Iterator[None]:
    """Name the extra to install where a package that `user` imports is missing; of `only` some packages, if given."""
    try:
        yield
    except ImportError as error:
        if only and error.name not in only:
            raise
        raise extra_missing(user, package or str(error.name), extra, fix) from error


class InfeasibleError(ForescaleError):
    """No layout satisfies the constraints.

    `rows` holds (constraint, number of layouts it refused); `remedies` (what to change, to what, what then);
    `smallest` the question of the layout with the smallest peak where layouts are legal and none fits, and
    `smallest_bytes` that peak [byte]; `options` those of the command line with which one fits.
    """

    def __init__(
        self,
        message: str | ForescaleError,
        rows: Sequence[tuple[str, int]] = (),
        remedies: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = self.code or "no_layout"
        self.rows, self.remedies = tuple(rows), tuple(remedies)
        self.smallest: object = None
        self.smallest_bytes = 0.0
        self.options: tuple[str, ...] = ()


class PhysicsError(ForescaleError):
    """A result breaks a physical law (a rate above its peak, a sum that does not add up)."""


def refuse_misspelt(names: Collection[str], known: Iterable[str], where: str) -> None:
    """Refuse a key that is nearly one that is missing, of files that may have others beside what is known.

    Raises
    ------
    UnknownKeyError
        It names the missing one.
    """
    all_known = set(known)
    absent = sorted(all_known.difference(names))
    for key in names:
        if key not in all_known and _close(key, absent, 1, MISSPELT):
            raise UnknownKeyError(key, where, absent)


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Return up to `count` known names most like `name`, best first; before them what one begins with the other.

    Where others call one of the known so, it is that alone; where none is like it, those whose first part is in it,
    such as h100-sxm for azure-ndh100v5.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    if same := meant(name, by_lower):
        return (by_lower[same],)
    lowered = name.lower().rpartition("/")[2]
    if len(by_lower) <= count and all(lowered in item for item in by_lower):
        return tuple(by_lower.values())  # in the order in which they are given
    begun = sorted((item for item in by_lower if lowered and item.startswith(f"{lowered}-")), key=len)
    close = _close(lowered, list(by_lower), count, 0.5)
    for stem in sorted((item for item in by_lower if item and lowered.startswith(f"{item}-")), key=len)[-1:]:
        begun += [*(item for item in close if item.startswith(f"{stem}-")), stem]
    inside = [candidate for candidate in by_lower if lowered and lowered in candidate]
    parts, within = _named_in(lowered, by_lower)
    ordered = dict.fromkeys([*begun, *parts, *close, *sorted(inside, key=len)]) or dict.fromkeys(within)
    return tuple(by_lower[candidate] for candidate in list(ordered)[:count])


def _named_in(name: str, known: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the known names whose first part, of letters and digits, is a part of a name, and those it is within."""
    first = {candidate: candidate.partition("-")[0] for candidate in sorted(known, key=len)}
    mixed = {item: part for item, part in first.items() if part.isalnum() and not part.isalpha()}
    parts = name.split("-")[1:]  # names that begin alike are known already
    within = [item for item, part in mixed.items() if len(part) >= SHORTEST_PART and part in name]
    return [item for item, part in mixed.items() if part in parts], within


def _close(word: str, known: Sequence[str], count: int, cutoff: float) -> list[str]:
    """Return the known words that are most like one; what compares them is loaded only for errors."""
    from difflib import get_close_matches

    return get_close_matches(word, known, count, cutoff)
