"""What a launch script leaves open: variables that nothing sets, and the vocabulary of its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from forescale.errors import MissingError, MissingFact
from forescale.frameworks.megatron.arguments import CommandLine
from forescale.frameworks.megatron.model import VOCABULARY, stated_vocabulary
from forescale.frameworks.reading import Options, packaged
from forescale.frameworks.settings import Settings
from forescale.frameworks.shell import Use

DECIDING: Final[Mapping[str, str]] = packaged("megatron", "forks")["asked"]
"""Settings that a projection needs as numbers or words, with the value that an example gives."""
_VARIABLE: Final = re.compile(r"\$\{?(\w+)")
_ARITHMETIC: Final = re.compile(r"\b([A-Za-z_]\w*)\b")
CHOICES: Final = 6
"""Values of a variable that an error names."""


def ask(settings: Settings, line: CommandLine, options: Options) -> None:
    """Refuse a script that leaves open what a projection needs.

    Raises
    ------
    MissingError
        It names all variables and other facts, each with its use, and an example that works.
    """
    flags = dict(_open_flags(settings))
    positions = [name for name in (*flags, *line.unset) if name.isdigit()]
    deciding = [name for name in positions if name in flags or line.unset[name].choices]
    named = [name for name in flags if not name.isdigit() and not (deciding and _sets(line.text, name))]
    facts = [_variable(name, settings, flags[name]) for name in named]
    if deciding:
        facts.insert(0, _positions(settings, line, flags))
    open_vocabulary = any(
        "${" in str(settings.raw(key)) for key in DECIDING if "vocab" in key or "tokenizer" in key
    )
    if facts and not open_vocabulary and stated_vocabulary(settings, options) is None:
        facts.append(VOCABULARY)
    if facts:
        raise MissingError.of(settings.where, facts)


def _sets(text: str, name: str) -> bool:
    """Return whether a script sets a variable, in a branch that its arguments choose."""
    return re.search(rf"\b{name}=", text) is not None


def _open_flags(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each variable that a setting which counts depends on, and the key of the setting."""
    for key in DECIDING:
        value = settings.raw(key)
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name in _ARITHMETIC.findall(text) if "$((" in text else _VARIABLE.findall(text):
            yield name, key


def _variable(name: str, settings: Settings, key: str) -> MissingFact:
    return MissingFact(
        f"the variable {name} of {settings.spell(key)}",
        f"--var {name}=VALUE",
        f"--var {name}={DECIDING[key]}",
    )


def _positions(settings: Settings, line: CommandLine, flags: Mapping[str, str]) -> MissingFact:
    """Return the fact of all positional variables of a script up to the last."""
    unset = line.unset
    last = max(int(name) for name in (*unset, *flags) if name.isdigit())
    texts, examples = [], []
    for name in map(str, range(1, last + 1)):
        use, key = unset.get(name, Use()), flags.get(name)
        choices = list(dict.fromkeys(use.choices))
        parts = [*use.names[:1], *([settings.spell(key)] if key else []), *_listed(choices)]
        texts.append(" = ".join(filter(None, (f"${name}", ", ".join(parts)))))
        usual = "true" if "true" in choices else choices[0] if choices else DECIDING.get(key or "", "1")
        examples.append(usual)
    example = f'--args "{" ".join(examples)}"'
    return MissingFact(f"the arguments of the script: {'; '.join(texts)}", '--args "…"', example)


def _listed(choices: Iterable[str]) -> list[str]:
    items = list(choices)
    more = f" or {len(items) - CHOICES} others" if len(items) > CHOICES else ""
    return [f"{' | '.join(items[:CHOICES])}{more}"] if items else []
