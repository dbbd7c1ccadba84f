"""A person's own training loop, whose text says batch, length, types and model."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from forescale.files import read_text
from forescale.frameworks.trainers.record import record_of
from forescale.frameworks.trainers.run import MICRO, STEPS

TRAINS: Final = re.compile(r"^\s*(?:from|import) (?:torch|lightning|pytorch_lightning)\b", re.MULTILINE)
"""What a loop imports."""
STEPS_BACK: Final = re.compile(r"\.backward\(")
"""What a loop calls."""
NAMES: Final[Mapping[str, str]] = {
    **{name: key for name, key in record_of("trainer").keys.items() if key in (MICRO, STEPS)},
    STEPS: STEPS,
    **dict.fromkeys(
        (
            "block_size",
            "max_seq_len",
            "max_seq_length",
            "seq_len",
            "seq_length",
            "sequence_length",
            "context_length",
        ),
        "max_length",
    ),
    **dict.fromkeys(("model_name", "model_id", "model_name_or_path"), "model_name_or_path"),
    "global_batch_size": "global_batch_size",
}
"""Keys by the names that programs have for them."""
ACCUMULATES: Final = re.compile(r"(?i)accum(?!ulate_fn)|(?:\b|_)acc_steps\b")
"""A text that adds up gradients, however it names how often."""


def adds_up(text: str, content: Mapping[str, Any], stepped: Collection[str]) -> bool:
    """Whether a loop may add up gradients over a number of steps that `content` does not have.

    Of one whose steps are followed, these tell what they have `stepped`.
    """
    keys = {record_of("trainer").keys.get(name, name) for name in content}
    counts = not stepped and MICRO in content and keys.isdisjoint((STEPS, "train_batch_size"))
    return counts and bool(ACCUMULATES.search(text))


def hold_loop(files: Sequence[Path]) -> bool:
    """Return whether the texts of files train with a loop of their own."""
    texts = list(map(read_text, files))
    return any(map(TRAINS.search, texts)) and any(map(STEPS_BACK.search, texts))


def weights_of(trees: Sequence[ast.Module]) -> dict[str, Any]:
    """Return the type of the weights of a program that loads none, which is PyTorch's own, by its key."""
    nodes = [node for tree in trees[:1] for node in ast.walk(tree)]
    loads = any(isinstance(node, ast.Attribute) and node.attr == "from_pretrained" for node in nodes)
    return {} if loads else {"dtype": "float32"}


def key_of(name: str) -> str:
    """Return the key of TrainingArguments that a name of a loop stands for; the name where it stands for none."""
    return record_of("trainer").keys.get(name, NAMES.get(name, name))


def table_constants(tables: Sequence[Mapping[str, Any]], *, is_alone: bool) -> dict[str, tuple[str, Any]]:
    """Return what the configurations of a loop set, with its name, by keys; None where entries of a key differ.

    An entry `batch_size` is that of a device where one process trains alone, and may be that of all devices else.
    """
    names = {**NAMES, **({"batch_size": MICRO} if is_alone else {})}
    found: dict[str, dict[Any, str]] = {}
    for name, value in (pair for table in tables for pair in _leaves(table)):
        key = names.get(name)
        if key is not None and value and type(value) is (str if key == "model_name_or_path" else int):
            found.setdefault(key_of(name) if key == "max_length" else key, {})[value] = (
                name if key == "max_length" else key
            )
    single = {key: next(iter(values.items())) for key, values in found.items() if len(values) == 1}
    return {key: single[key][::-1] if key in single else (key, None) for key in found}


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table, and of the tables in it."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield str(name), value


def names_in(trees: Iterable[ast.AST]) -> set[str]:
    """Return the names that programs use."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {str(getattr(node, "id", getattr(node, "attr", ""))) for node in nodes}
