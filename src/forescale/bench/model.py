"""What a bench asks of whoever's classes: a language model as blocks that can be run one by one.

An adapter is a file beside this one: a subclass of `Blocks`, and an `Adapter` that says what it runs.
"""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from forescale.bench.groups import Group
from forescale.question import Question
from forescale.spec.layout import Layout
from forescale.struct import Struct

SEED = 1
IGNORED = -100
"""Target of a token that has no next one (PyTorch's cross_entropy)."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Blocks(nn.Module):
    """One rank's part of a causal language model: embedding, layers, norm and head."""

    embedding: Any
    layers: Any
    norm: Any
    lm_head: Any
    kinds: tuple[str, ...]
    """Of each layer."""
    group: Group = None
    """Of tensor parallelism."""
    runs_ends: bool = True
    """Whether embedding and head can be run by themselves."""

    @property
    def separable(self) -> list[nn.Module]:
        """Modules whose weight gradients can be left for later."""
        return [*self.layers, self.norm, self.lm_head, *([self.embedding] * (self.group is None))]

    def start_of(self, index: int, tokens: Tensor) -> Tensor:  # noqa: ARG002
        """Return what a layer reads, apart from the graph; `learn` must have seen a batch of this shape."""
        with torch.no_grad():
            hidden = self.embed(tokens)
        return hidden.requires_grad_()

    def embed(self, tokens: Tensor) -> Tensor:
        """Return hidden states of tokens."""
        tensor: Tensor = self.embedding(tokens)
        return tensor

    @abstractmethod
    def run_layer(self, index: int, x: Tensor) -> Tensor:
        """Return what one layer makes of hidden states; `learn` must have seen a batch of this shape."""

    @abstractmethod
    def loss_of(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of the last layer's hidden states: norm, output layer and cross entropy.

        It is this rank's part of the mean over the micro-batch, which the parts of context-parallel ranks add up to.
        """

    def learn(self, tokens: Tensor) -> None:
        """Note what the model hands to each layer beside hidden states."""

    @contextmanager
    def learning(self, note: Callable[[int, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
        """Tell of every layer that runs meanwhile: its index, and the values that it is called with."""
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, values, named, at=index: note(at, values, named), with_kwargs=True
            )
            for index, layer in enumerate(self.layers)
        ]
        with torch.no_grad(), released(hooks):
            yield

    def forward(self, tokens: Tensor) -> Tensor:
        """Return this rank's part of the mean loss of a micro-batch, (sequences, tokens)."""
        x = self.embed(tokens)
        for index in range(len(self.layers)):
            x = self.run_layer(index, x)
        return self.loss_of(x, tokens)

    @contextmanager
    def passing(self, note: Callable[[tuple[str, str]], None]) -> Iterator[None]:
        """Tell of every block that ends meanwhile because hidden states, or their gradients, pass on to the next."""
        kinds = ("embedding", *self.kinds, "head")

        def passed(place: int, x: Tensor) -> None:
            if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  (a replay inside backward)
                return
            note((kinds[place], "forward"))
            if x.requires_grad:
                x.register_hook(lambda _: note((kinds[place + 1], "backward")))  # type: ignore[no-untyped-call]

        with released(self.hooked(passed)):
            yield

    def hooked(self, passed: Callable[[int, Tensor], None]) -> list[Any]:
        """Return hooks that tell of hidden states before each layer and behind the last, by their place."""
        return [
            module.register_forward_pre_hook(lambda _, value, at=place: passed(at, value[0]))
            for place, module in enumerate((*self.layers, self.norm))
        ]


@contextmanager
def released(hooks: Iterable[Any]) -> Iterator[None]:
    """Remove hooks of modules at the end."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def untrained_types(question: Question) -> dict[str, bool]:
    """Return what of the types of a question modules do not do that run in the type of their weights, and whether.

    Shards of weights (stage 3) are gathered in the type of activations; an fp8 product narrows what it is given.
    """
    layout, types = question.layout, question.workload.precision
    shards = layout.zero == 3 and layout.dp * layout.cp > 1
    runs = types.activations if shards else types.parameters
    where = f"where weights {'are gathered' if shards else 'lie'} in {runs}: give precision"
    return {
        f"hold weights in {types.parameters}": types.parameters not in TYPES,
        f'multiply in {types.compute} {where}.parameters = "{types.compute}"': types.compute
        not in (runs, "fp8"),
        f'keep activations in {types.activations} {where}.activations = "{runs}"': types.activations != runs,
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Keep from the terminal what libraries say of themselves while their classes are looked into."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


class Adapter(Struct, frozen=True, kw_only=True):
    """Somebody's classes, as a bench runs them."""

    frameworks: tuple[str, ...]
    """Whose models they are, as `--framework` names them."""
    package: str
    check: Callable[[Question], None]
    """Raises `SpecError` with what these classes do not do, unless they can run a layout."""
    as_run: Callable[[Question], Layout]
    """The layout of a question with the kernels that these classes train with, whatever it asks for."""
    build: Callable[..., Blocks]
    """One rank's part of the model of a question that `check` lets pass, with random weights."""

    @property
    def release(self) -> str | None:
        """Of the package that is installed; None if none is."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None
