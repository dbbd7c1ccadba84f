"""What a launch script leaves open: variables that nothing sets, and the vocabulary of its tokenizer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from forescale.errors import MissingError, MissingFact, batch_for
from forescale.frameworks.megatron.arguments import CommandLine
from forescale.frameworks.megatron.layout import fewest_replicas
from forescale.frameworks.megatron.model import VOCABULARY, stated_vocabulary
from forescale.frameworks.megatron.pipeline import layout_text
from forescale.frameworks.reading import Options, packaged
from forescale.frameworks.settings import Settings
from forescale.frameworks.shell import Use

DECIDING: Final[Mapping[str, str]] = packaged("megatron", "forks")["asked"]
"""Settings that a projection needs as numbers or words, with the value that an example gives."""
LAYOUT: Final = "pipeline_model_parallel_layout"
_VARIABLE: Final = re.compile(r"\$\{?(\w+)")
_ARITHMETIC: Final = re.compile(r"\b([A-Za-z_]\w*)\b")
_COUNTS: Final = re.compile(r"WORLD|GPU|DEVICE", re.IGNORECASE)
"""Names of variables that count devices."""
_OF_NODE: Final = re.compile(r"PER_|NPROC|NUM_?PROC", re.IGNORECASE)
"""Names of those that count the devices of a node."""
_REPLICAS: Final = re.compile(r"^DP$|^DP_|_DP$|DATA_?PARALLEL", re.IGNORECASE)
"""Names of variables that are the data parallel degree."""
_IDLE: Final = re.compile(r"convert|eval|test|infer|generat|process", re.IGNORECASE)
"""Choices of a script that start no training."""
PLAIN: Final[tuple[str, ...]] = ("bf16", "none")
"""Choices of an example: the usual type, and no recomputation, which contradicts no other option."""
CHOICES: Final = 6
"""Values of a variable that an error names."""


def ask(settings: Settings, line: CommandLine, options: Options) -> None:
    """Refuse a script that leaves open what a projection needs.

    Raises
    ------
    MissingError
        It names all variables and other facts, each with its use, and an example that works.
    """
    batch = str(batch_for(options.num_devices or line.num_devices))
    deciding = {**DECIDING, "global_batch_size": batch, LAYOUT: _even_stages(settings)}
    facts = open_facts(settings, line.unset, line.text, deciding)
    open_vocabulary = any(
        "${" in str(settings.raw(key)) for key in DECIDING if "vocab" in key or "tokenizer" in key
    )
    facts += line.open_flags
    if facts and not open_vocabulary and stated_vocabulary(settings, options) is None:
        facts.append(VOCABULARY)
    if facts:
        raise MissingError.of(settings.where, facts)


def open_facts(
    settings: Settings, unset: Mapping[str, Use], text: str, deciding: Mapping[str, str]
) -> list[MissingFact]:
    """Return the variables of a script that settings depend on and that nothing sets.

    Parameters
    ----------
    settings
        Settings with `${NAME}` where a variable has no value.
    unset
        Variables that nothing sets, and what the script does with them.
    text
        The script.
    deciding
        Keys of the settings that count, with the value that an example gives.
    """
    flags = dict(_open_flags(settings, deciding, text))
    positions = [name for name in (*flags, *unset) if name.isdigit()]
    asked = [name for name in positions if name in flags or unset[name].choices]
    several = {name: use.choices for name, use in unset.items() if len(set(use.choices)) > 1}
    choosing = {name: choices for name, choices in several.items() if not name.isdigit()}
    chosen = [name for name in flags if (asked or choosing) and re.search(rf"\b{name}=", text)]
    named = [name for name in flags if not name.isdigit() and name not in chosen]
    facts = [_variable(name, settings, flags[name], deciding) for name in named]
    if chosen and not asked:
        facts += [_choice(name, choices) for name, choices in choosing.items()]
    return [_positions(settings, unset, flags, deciding), *facts] if asked else facts


def _open_flags(settings: Settings, deciding: Mapping[str, str], text: str) -> Iterator[tuple[str, str]]:
    """Yield each variable that a setting which counts depends on, and the key of the setting, sums first."""
    for key in sorted(deciding, key=lambda key: not _is_sum(settings, key)):
        value = settings.raw(key)
        written = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        if not _is_sum(settings, key):
            yield from ((name, key) for name in _VARIABLE.findall(written))
            continue
        for name in _ARITHMETIC.findall(written):
            if not re.search(_KNOWN.format(name=name), text, re.MULTILINE):
                yield name, key


_KNOWN: Final = r"""^\s*(?:export )?{name}=["']?(?:\d+|\$\{{\w+:-\d+\}})["']?\s*(?:#.*)?$"""
"""A line of a script that sets a variable to a number, or has one for it by default."""


def _is_sum(settings: Settings, key: str) -> bool:
    return "$((" in str(settings.raw(key))


def _variable(name: str, settings: Settings, key: str, deciding: Mapping[str, str]) -> MissingFact:
    value = _summed(name, settings) if _is_sum(settings, key) else deciding[key]
    example = shlex.quote(f"{name}={value}")
    return MissingFact(
        f"the variable {name} of {settings.spell(key)}", f"--var {name}=VALUE", f"--var {example}"
    )


def _even_stages(settings: Settings) -> str:
    """Return a pipeline layout of equal stages, quoted as a script that expands it twice needs it."""
    layers, pp = (
        int(text) if (text := str(settings.raw(key))).isdecimal() else 1
        for key in ("num_layers", "pipeline_model_parallel_size")
    )
    bounds = [layers * at // max(pp, 1) for at in range(max(pp, 1) + 1)]
    sizes = tuple(end - start for start, end in pairwise(bounds))
    predicting = str(settings.raw("mtp_num_layers"))
    return f'"{layout_text(sizes, int(predicting) if predicting.isdecimal() else 0)}"'


def _summed(name: str, settings: Settings) -> int:
    """Return a value of a variable of a sum: devices, or data parallel, as the degrees of a script require."""

    def degree(key: str, usual: int = 1) -> int:
        text = str(settings.raw(key))
        return max(1, int(text)) if text.isdecimal() else usual

    tp, pp = degree("tensor_model_parallel_size"), degree("pipeline_model_parallel_size")
    inner = tp * degree("context_parallel_size")
    expert = degree("expert_model_parallel_size") * degree("expert_tensor_parallel_size", tp)
    routed = settings.raw("num_experts") is not None
    dp = fewest_replicas(inner, expert if routed else 1, degree("num_distributed_optimizer_instances"))
    if _REPLICAS.search(name):
        return dp
    if not _COUNTS.search(name):
        return 1
    least = 1 if _OF_NODE.search(name) else inner * pp * dp
    return -(-8 // least) * least


def _choice(name: str, choices: Iterable[str]) -> MissingFact:
    """Return the fact of a variable by which a script chooses."""
    options = list(dict.fromkeys(choices))
    what = " = ".join((f"the variable {name}", *_listed(options)))
    return MissingFact(what, f"--var {name}=VALUE", f"--var {name}={options[0]}")


def _positions(
    settings: Settings, unset: Mapping[str, Use], flags: Mapping[str, str], deciding: Mapping[str, str]
) -> MissingFact:
    """Return the fact of all positional variables of a script up to the last."""
    last = max(int(name) for name in (*unset, *flags) if name.isdigit())
    texts, examples = [], []
    for name in map(str, range(1, last + 1)):
        use, key = unset.get(name, Use()), flags.get(name)
        choices = [word for word in dict.fromkeys(use.choices) if not word.startswith("-")]
        parts = [*use.names[:1], *([settings.spell(key)] if key else []), *_listed(choices)]
        texts.append(" = ".join(filter(None, (f"${name}", ", ".join(parts)))))
        trains = ["true"] if "true" in choices else [word for word in choices if not _IDLE.search(word)]
        trains = [word for word in PLAIN if word in trains][:1] or trains
        usual = trains[0] if trains else "train" if choices else deciding.get(key or "", "1")
        examples.append(usual)
    example = f'--args "{" ".join(examples)}"'
    return MissingFact(f"the arguments of the script: {'; '.join(texts)}", '--args "…"', example)


def _listed(choices: Iterable[str]) -> list[str]:
    items = list(choices)
    more = f" or {len(items) - CHOICES} others" if len(items) > CHOICES else ""
    return [f"{' | '.join(items[:CHOICES])}{more}"] if items else []
