"""One optimizer step of a training loop of a program's own: how many micro-batches it adds up, and their sizes.

A step is what runs between two calls of an optimizer: each `backward` counts as often as the loops turn that are around
it and not around the optimizer; a condition on a remainder (`turn % n == 0`) makes n turns of one step.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import prod
from typing import Any, Final, TypeVar

from forescale.frameworks.python.builtin import listed
from forescale.frameworks.python.calls import Caller, method_of
from forescale.frameworks.python.module import Function, World
from forescale.frameworks.python.tensors import stream, tensor
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped, Stream, Tensor
from forescale.frameworks.reading import packaged
from forescale.frameworks.trainers.loop import key_of
from forescale.frameworks.trainers.run import MICRO, STEPS

_Value = TypeVar("_Value")
BACK: Final = re.compile(r".*\.backward$", re.DOTALL)
"""Calls that make gradients."""
STEP: Final = re.compile(
    r"(?:.*\.)?(?:\w*opt(?!ions?\b)\w*|\w*scaler|\w*engine)(?:\[[^]]*\])?\.step", re.DOTALL
)
"""Calls of an optimizer."""
PASSES: Final = re.compile(
    r"(?i)(?:\w+\.)*\w*(?:model|gpt|llm|llama|transformer|net|network|ddp|engine|decoder|lm|student)\w*"
    r"(?:\.module|\.forward|\.forward_backward)*"
)
"""Calls that run a model."""
OTHERS: Final = re.compile(
    r"(?i)loss|criterion|metric|eval|valid|save|load|print|log|token|sampl|generat|optim|config"
)
"""Calls that do not."""
LOADER: Final = re.compile(r"(?:\w+\.)*(?:Stateful)?DataLoader")
"""Classes that load batches of a data set."""
MODULES: Final = frozenset(("Module", "PreTrainedModel", "LightningModule"))
"""Classes of models."""
DEEPEST: Final = 6
"""Calls inside each other that a loss is looked for in."""
COUNTS: Final = re.compile(r"(?i)accum|step|iter|sync|micro|batch|%")
"""A condition that may count micro-batches."""


class Steps:
    """The steps of a program that is followed."""

    def __init__(self) -> None:
        self.batch: Tensor | None = None
        """What the model was last given."""
        self.around: list[ast.stmt] = []
        """The loops around the lines that gave it that."""
        self.added: list[tuple[str, tuple[Any, ...], Opaque | None, tuple[Any, ...]]] = []
        """The places of `backward` since the last step, with the loops, the condition and the branches around each."""
        self.counts: set[int | None] = set()
        """Micro-batches of each step; None where that is not known."""
        self.batches: list[Tensor] = []
        """What the model was given before each `backward`."""
        self.optimizers: set[str] = set()
        """Classes of the optimizers that end steps."""
        self.is_counted = False
        """Whether loops or conditions count the micro-batches of a step."""
        self.is_dealt = False
        """Whether accelerate counts the micro-batches of a step (`accumulate`), or DeepSpeed does."""

    def see(self, call: Call, owner: object, world: World) -> None:
        """Take a call into account, of a method of `owner`."""
        last = call.name.rpartition(".")[2]
        self.is_dealt |= last == "accumulate" or call.name == "deepspeed.initialize"
        if BACK.fullmatch(call.name):
            self.added.append((call.place, tuple(world.loops), world.doubt, tuple(world.branches)))
            around = [line for line, _ in world.loops]
            batch = self.batch if self.around == around[: len(self.around)] else None
            self.batches += [found] if (found := _inside(owner) or batch) is not None else []
        elif STEP.fullmatch(call.name):
            ends = next(iter(call.args), owner) if "scaler" in call.name else owner
            self.optimizers |= {optimizer_of(ends)} if isinstance(ends, Call) and ends.known else set()
            self.counts |= {self._count(tuple(world.loops), world.doubt)} if self.added else set()
            self.added = []
        elif _runs(call, owner) and (batch := _given(call)) is not None:
            self.batch, self.around = batch, [line for line, _ in world.loops]

    def _count(self, loops: tuple[Any, ...], doubt: Opaque | None) -> int | None:
        """Return the micro-batches of a step that an optimizer ends inside `loops`; None where that is not known."""
        counts = Counter[str]()
        met = {node for *_, branches in self.added for node, is_met in branches if is_met}
        for place, around, _, branches in self.added:
            if any(node in met for node, is_met in branches if not is_met):
                continue  # of a condition whose other branch does so too
            turns = [turns for line, turns in around if line not in [line for line, _ in loops]]
            self.is_counted |= bool(turns)
            if None in turns:
                return None
            counts[place] += prod(turns)
        same = doubt is not None and all(
            other is not None and other.place == doubt.place for _, _, other, _ in self.added
        )
        if doubt is not None and doubt.every:
            self.is_counted = True
            return doubt.every * max(counts.values())
        if doubt is not None and not same and COUNTS.search(doubt.text):
            return None
        several = len(counts) > 1 and set(counts.values()) == {1}
        return None if several else sum(counts.values())

    @property
    def is_open(self) -> bool:
        """Whether the micro-batches of a step are counted, and not known."""
        return not self.is_dealt and None in self.counts

    @property
    def content(self) -> dict[str, Any]:
        """What the steps say by the keys of TrainingArguments: micro-batch, length and accumulation."""
        result = dict[str, Any]()
        for key, at in ((MICRO, 0), ("block_size", 1)):
            sizes = {batch.sizes[at] if at < len(batch.sizes) else None for batch in self.batches}
            if len(sizes) == 1 and (size := sizes.pop()):
                result[key] = size
        if self.is_counted and not self.is_dealt and None not in self.counts:
            result[STEPS] = max(map(int, filter(None, self.counts)))
        kinds = sorted(self.optimizers)
        return result | ({"optim": "muon" if "muon" in kinds else " and ".join(kinds)} if kinds else {})


def optimizer_of(made: Call) -> str:
    """Return the optimizer that a call makes by its name in `optimizers.json`; its class where it has none.

    A class of a program's own that has the name of torch's may do otherwise.
    """
    name = made.name.rpartition(".")[2]
    plain = re.sub(r"^(?:fused|cpu|deepspeedcpu)(?=adam)", "", name.lower())
    known = {key.replace("_", ""): key for key in packaged("trainers", "optimizers")["names"]}
    key = known.get(plain, name)
    return f"{name} of its own" if made.of is not None and key.startswith("adam") else key


def decided(names: Iterable[str]) -> set[str]:
    """Return the keys that steps decide which say these, the batch of all ranks with that of one."""
    keys = set(map(key_of, names))
    wholes = {"batch_size": MICRO in keys, "train_batch_size": {MICRO, STEPS} <= keys}
    return keys | {name for name, is_decided in wholes.items() if is_decided}


def without(content: Mapping[str, _Value], steps: Iterable[str]) -> dict[str, _Value]:
    """Return arguments without those that steps decide."""
    left_out = decided(steps)
    return {name: value for name, value in content.items() if key_of(name) not in left_out}


def loader_of(call: Call, world: World) -> Any:  # noqa: ANN401
    """Return the batches of a loader of torch's, with the length of its data set's items; MISSING of other calls."""
    if not LOADER.fullmatch(call.name):
        return MISSING
    named = dict(zip(("dataset", "batch_size"), call.args, strict=False)) | call.fields
    data, sampler = named.get("dataset"), named.get("batch_sampler")
    item = _item(data, world)
    if named.get("batch_size", 1) is None and sampler is None:
        size = (
            data.fields.get("batch_size") if isinstance(data, Call) else None
        )  # it makes the batches itself
        sizes = item.sizes if item is not None else (size if type(size) is int else None,)
        return stream(tensor(sizes, call.place, is_batch=True), call.place)
    size = named.get("batch_size", 1)
    if isinstance(sampler, Call):
        size = sampler.fields.get("batch_size", next(iter(sampler.args[1:2]), None))
    sizes = (size if type(size) is int else None, *(item.sizes if item is not None else ()))
    return stream(tensor(sizes, call.place, is_batch=True), call.place)


def _item(data: object, world: World) -> Tensor | None:
    """Return the first tensor of an item of a data set whose class can be read."""
    names = ("__getitem__", "__iter__") if isinstance(data, Call) and data.of is not None else ()
    for name in names:
        function = method_of(world, data, name)  # type: ignore[arg-type]
        if not isinstance(function, Function):
            continue
        node = ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [], []), function.node)
        caller = Caller(world.frame(function.module, {}, {}), node)
        at = [Opaque("a place", caller.place)] if name == "__getitem__" else []
        with suppress(Stopped):
            made = caller.run(function, [*function.args, *at], {})
            made = made.item if isinstance(made, Stream) else made
            inside = listed(list(made.values()) if isinstance(made, dict) else made) or [made]
            return next((value for value in inside if isinstance(value, Tensor)), None)
    return None


def _runs(call: Call, owner: object) -> bool:
    """Whether a call runs a model: by its name, or as an object of a class of torch's modules."""
    is_module = (
        isinstance(owner, Call) and MODULES.isdisjoint(owner.kinds) is False and call.name.isidentifier()
    )
    return is_module or (PASSES.fullmatch(call.name) is not None and not OTHERS.search(call.name))


def _inside(value: object, left: int = DEEPEST) -> Tensor | None:
    """Return the tensor that a loss was made of, as far as calls show it: what the first call inside it was given."""
    values = (*value.args, *value.fields.values()) if isinstance(value, Call) and left else ()
    made = (
        found for item in values if isinstance(item, Call) and (found := _inside(item, left - 1)) is not None
    )
    given = _given(value) if isinstance(value, Call) and _runs(value, None) else None
    return next(made, given)


def _given(call: Call) -> Tensor | None:
    """Return the first tensor that a call is given."""
    values = (*call.args, *call.fields.values())
    return next((value for value in values if isinstance(value, Tensor)), None)
