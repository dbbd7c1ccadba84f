"""Tokens of a sequence by what a program tokenises: the functions that map its data, and its data sets.

A length that a call of a tokeniser cuts off at counts, or the blocks that a function cuts tokens into, where all that
the program follows name one value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from forescale.frameworks.python.calls import Caller, method_of
from forescale.frameworks.python.module import Function, World
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped

MAPS: Final = re.compile(r".*\.(?:map|with_transform|set_transform)")
"""Methods of data that are given a function."""
TAKES: Final = re.compile(r"(?:\w+\.)*(?:\w*DataLoader|\w*Trainer)|.*\.fit")
"""Calls that are given a data set, or an object that makes one."""
MAKES: Final = ("__getitem__", "prepare_data", "setup", "train_dataloader")
"""Methods of these that a trainer calls."""
TOKENIZES: Final = re.compile(
    r"(?i)(?:\w+\.)*(?:\w*tokenizer|tok|\w*processor)(?:\.(?:encode|encode_plus|batch_encode_plus|__call__))?"
)
"""Calls of a tokeniser."""
LENGTH: Final = re.compile(
    r"max_(?:seq_?)?len(?:gth)?|model_max_length|block_size|context_len(?:gth)?|seq_?len(?:gth)?"
)
"""Names of the tokens of a sequence."""
BLOCKS: Final = re.compile(r"(?i)block_size|context_length|chunk_(?:size|length)")
"""Names of the tokens of a block that a function cuts texts into."""
CUTS: Final = re.compile(r"(?i)(?:self\.)?(?:max_(?:seq_|sequence_)?len(?:gth)?|cutoff_len(?:gth)?)")
"""Names of the tokens that a function cuts off at itself."""


def follow_data(call: Call, world: World) -> Iterator[tuple[str, int]]:
    """Follow the functions that a call maps data by, or the items of the data sets that it takes.

    Yields the lengths that these name, each with the argument that it is.
    """
    values = (*call.args, *call.fields.values())
    made = [value for value in values if isinstance(value, Call) and value.of is not None]
    names: tuple[str, ...]
    if MAPS.fullmatch(call.name):
        names, given = ("__call__",), call.fields.get("fn_kwargs")
    elif TAKES.fullmatch(call.name):
        names, given = MAKES, None
        values = ()
    else:
        return
    functions = [*values, *(method_of(world, value, name) for value in made for name in names)]
    fields = ((name, size) for value in made for name, size in value.fields.items())
    yield from (("max_length", size) for name, size in fields if LENGTH.fullmatch(name) and type(size) is int)
    words = given if isinstance(given, dict) else {}
    for function in functions:
        if not isinstance(function, Function):
            continue
        node = ast.copy_location(ast.Call(ast.Name("map", ast.Load()), [], []), function.node)
        caller = Caller(world.frame(function.module, {}, {}), node)
        args = [*function.args, Opaque("an example", caller.place)]
        with suppress(Stopped):
            caller.run(function, args, {**function.words, **words})
        yield from _named(function, world, {**function.words, **words})


def _named(function: Function, world: World, words: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the sizes of blocks, and the lengths of slices, that a function names."""
    inner = world.frame(function.module, {}, {**function.scope, **words})
    ends = [part.upper for part in ast.walk(function.node) if isinstance(part, ast.Slice)]
    sliced = {node.id for node in ends if isinstance(node, ast.Name)}
    for line in ast.walk(function.node):
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            inner.scope |= {at.id: line.value.value for at in line.targets if isinstance(at, ast.Name)}
    for node in (node for node in ast.walk(function.node) if isinstance(node, ast.Name)):
        kind = "block_size" if BLOCKS.fullmatch(node.id) else "max_length" if node.id in sliced else ""
        value = inner.value(ast.copy_location(ast.Name(node.id, ast.Load()), node)) if kind else 0
        if type(value) is int and value > 0 and (kind == "block_size" or CUTS.fullmatch(node.id)):
            yield kind, value


def tokenized(calls: Sequence[Call], named: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the length that a program tokenises its data to, as the argument that it is; nothing of several."""
    cuts = [call.fields.get("max_length", MISSING) for call in calls if TOKENIZES.fullmatch(call.name)]
    pairs = [*named, *(("max_length", cut) for cut in cuts if type(cut) is int)]
    for name in ("block_size", "max_length"):
        if found := {value for key, value in pairs if key == name}:
            return {name: found.pop()} if len(found) == 1 else {}
    return {}
