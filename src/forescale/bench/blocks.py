"""Blocks of a model timed one by one: forward, both gradients together and apart, update; and what they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forescale.bench.huggingface import Blocks
from forescale.bench.timing import Watch, repeated
from forescale.bench.training import Training, Update
from forescale.question import Question
from forescale.runtime.gradients import WeightGradients, split
from forescale.runtime.saved import Saved

CHAINS = (1, 4)
"""Equal layers run after each other with activations resident: a layer by itself is faster than one among others."""


@dataclass(slots=True)
class Part:
    """One block: how it runs, and its parameters."""

    kind: str
    modules: tuple[nn.Module, ...]
    """A layer; both ends are modules too."""
    run: Callable[[Tensor, int], Tensor]
    """From hidden states (or tokens) through so many of it."""
    start: Tensor
    chains: tuple[int, ...] = (1,)

    def parameters(self) -> list[nn.Parameter]:
        """Return its parameters."""
        return [parameter for module in self.modules for parameter in module.parameters()]


def parts_of(training: Training) -> Iterator[Part]:
    """Yield every kind of layer once, and both ends."""
    blocks, tokens = training.blocks, training.tokens
    blocks.learn(tokens)
    with torch.no_grad():
        hidden = blocks.embed(tokens)
    for kind in dict.fromkeys(blocks.kinds):
        alike = [index for index, name in enumerate(blocks.kinds) if name == kind]
        yield Part(
            kind,
            (blocks.layers[alike[0]],),
            partial(_through, blocks, alike),
            hidden.requires_grad_(),
            CHAINS,
        )
    yield Part("embedding", (blocks.embedding,), lambda given, _: blocks.embed(given), tokens)
    yield Part(
        "head",
        (blocks.norm, blocks.lm_head),
        lambda given, _: blocks.loss_of(given, tokens),
        hidden.requires_grad_(),
    )


def _through(blocks: Blocks, alike: list[int], x: Tensor, count: int) -> Tensor:
    """Run `count` layers of a kind, the ones that there are in turn."""
    for place in range(count):
        x = blocks.run_layer(alike[place % len(alike)], x)
    return x


def kept_bytes(part: Part, training: Training) -> float:
    """Return what one block keeps from forward to backward: of a layer what a second one adds."""

    def saved(count: int) -> int:
        noted = Saved(training.blocks.parameters())
        with noted.noting():
            end = part.run(part.start, count)
        found = noted.num_bytes
        del end
        return found

    return float(saved(2) - saved(1) if len(part.chains) > 1 else saved(1))


def whole_rows(part: Part, watch: Watch, *, budget_s: float) -> list[dict[str, Any]]:
    """Return rows of `blocks` for forward, and for backward as autograd runs it."""
    return _rows(part, repeated(partial(_whole, part, watch), budget_s=budget_s))


def apart_rows(part: Part, watch: Watch, store: WeightGradients, *, budget_s: float) -> list[dict[str, Any]]:
    """Return rows of `blocks` for both gradients apart; the block leaves its weight gradients in `store`."""
    return _rows(part, repeated(partial(_apart, part, watch, store), budget_s=budget_s))


def update_rows(part: Part, watch: Watch, question: Question, *, budget_s: float) -> list[dict[str, Any]]:
    """Return the row of `blocks` for the update of one block's parameters."""
    update = Update(part.parameters(), question)
    found = repeated(lambda: {"update": watch.seconds(update)}, budget_s=budget_s)
    return _rows(part, found)


def turn_over(training: Training) -> WeightGradients:
    """Let all blocks leave their weight gradients where they wait, from now on."""
    store, blocks = WeightGradients(), training.blocks
    for module in (*blocks.layers, blocks.norm, blocks.lm_head):
        split(module, store)
    if blocks.group is None:
        split(blocks.embedding, store)
    return store


ALONE = " alone"


def _rows(part: Part, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows; of a chain beside what a further block takes what one takes by itself."""
    rows = []
    for name in (name for name in found if not name.endswith(ALONE)):
        alone = found.get(name + ALONE)
        row = {"kind": part.kind, "part": name, **found[name]}
        rows.append(row if alone is None else {**row, "alone_s": alone["seconds"]})
    return rows


def _sampled(part: Part, once: Callable[[int], dict[str, float]]) -> dict[str, float]:
    """Return one sample of a block: of a chain what each further block takes, and one by itself."""
    first = once(part.chains[0])
    if len(part.chains) == 1:
        return first
    few, many = part.chains
    longer = once(many)
    slopes = {name: max((longer[name] - first[name]) / (many - few), 1e-9) for name in first}
    return slopes | {name + ALONE: seconds for name, seconds in first.items()}


def _whole(part: Part, watch: Watch) -> dict[str, float]:
    def once(count: int) -> dict[str, float]:
        end: list[Tensor] = []
        forward = watch.seconds(lambda: end.append(part.run(part.start, count)))
        gradient = torch.ones_like(end[0])
        backward = watch.seconds(lambda: torch.autograd.backward(end[0], gradient))
        part.start.grad = None
        return {"forward": forward, "backward": backward}

    return _sampled(part, once)


def _apart(part: Part, watch: Watch, store: WeightGradients) -> dict[str, float]:
    def once(count: int) -> dict[str, float]:
        end = part.run(part.start, count)
        gradient = torch.ones_like(end)
        store.open()
        of_input = watch.seconds(lambda: torch.autograd.backward(end, gradient))
        waiting = store.take()
        of_weights = watch.seconds(lambda: store.finish(waiting))
        part.start.grad = None
        return {"input_gradient": of_input, "weight_gradient": of_weights}

    return _sampled(part, once)
