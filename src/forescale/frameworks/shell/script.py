"""What a shell script does, as far as it can be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forescale.errors import ReaderError, SpecError
from forescale.wording import wrong_format


@dataclass(slots=True)
class Use:
    """What a script does with a variable that nothing sets."""

    names: list[str] = field(default_factory=list)
    """Variables that take its value."""
    choices: list[str] = field(default_factory=list)
    """Values that it is compared with."""


@dataclass(slots=True)
class Script:
    """What a script does, as far as it can be known."""

    commands: list[list[str]] = field(default_factory=list)
    """Words of each command in the order in which they run."""
    variables: dict[str, list[str]] = field(default_factory=dict)
    """Words of each variable that it sets, in the order in which they were first set."""
    files: dict[str, str] = field(default_factory=dict)
    """Text of each file that it writes."""
    unset: dict[str, Use] = field(default_factory=dict)
    """Variables that nothing sets, `1` for `$1`."""
    missing: list[str] = field(default_factory=list)
    """Names of the scripts that it starts and that are not there."""
    stopped: str = ""
    """The `exit` that ends it for certain with a status other than 0, and what it prints before."""

    environments: list[dict[str, str]] = field(default_factory=list)
    """Values of the variables that count devices, for each command."""

    def refuse_stopped(self, where: object) -> None:
        """Refuse a script that ends itself before it trains.

        Raises
        ------
        ReaderError
            If it does.
        """
        if self.stopped:
            fix = "give what its check needs with --var NAME=VALUE or --args"
            raise ReaderError(where, wrong_format("a script that trains", f"it stops at {self.stopped}", fix))


class Stop(Exception):  # noqa: N818  (no error)
    """An `exit`, or a `return`, that is reached for certain."""


def refuse_cut(names: Sequence[str], before: Sequence[str]) -> None:
    """Refuse options that start a command: a comment, or a blank after a backslash, ends the one before it."""
    options = [word for word in before if word.startswith("--")]
    if names[0].startswith("--") and options and not before[0].startswith("-"):
        fix = "move the comment, or remove the blank after the backslash, that ends the command before it"
        text = f"{names[0]} and the options after it do not reach the command that has {options[-1]}; {fix}"
        raise SpecError(text, code="wrong_format", key=names[0], fix=fix)
