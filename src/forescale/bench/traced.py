"""A traced module as blocks: what is measured is what was traced, built from its configuration or its function."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import checkpoint

from forescale.bench.groups import Groups
from forescale.bench.model import SEED, TYPES, Adapter, Blocks
from forescale.catalogue.frameworks import load_framework
from forescale.errors import SpecError, missing, unsupported_by
from forescale.graph.layer import block_name
from forescale.graph.traced import trace_of
from forescale.question import Question
from forescale.spec.layout import Layout
from forescale.spec.model import Model

FRAMEWORK = "transformers"


def check(question: Question) -> None:
    """Raise unless a traced module can run the layout of a question on one rank."""
    layout, types = question.layout, question.workload.precision
    reasons = {
        f"split blocks (tp {layout.tp}, ep {layout.ep}, cp {layout.cp}): measure with --devices-here 1": max(
            layout.tp, layout.ep, layout.cp
        )
        > 1,
        f"shard weights (zero {layout.zero}): ask with --zero 1": layout.zero == 3,
        f"recompute parts of a block ({layout.recompute.granularity})": layout.recompute.granularity
        not in ("none", "full"),
        f"multiply in {types.compute}": types.compute not in TYPES,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise SpecError(f"a traced module does not {reason}")


def check_code(model: Model, code: str) -> None:
    """Raise if nothing builds a traced model: neither a function nor its configuration."""
    if model.traces and not (code or model.config):
        fix = "give FILE.py:FUNCTION as MODEL, or a config.json of transformers"
        raise missing(f"the code of {model.name}", fix)


def as_run(question: Question) -> Layout:
    """Return a layout with the kernels of eager PyTorch."""
    return replace(question.layout, kernels=load_framework(FRAMEWORK).kernels)


class _Skipped(nn.Module):
    """Stands for a block that is left out: returns what the last block returned that ran."""

    def __init__(self, last: list[Any]) -> None:
        super().__init__()
        self.last = last

    def forward(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        """Return the result of the last block."""
        return self.last[0]


class TracedBlocks(Blocks):
    """A module whose blocks were traced, with as many of each kind as the model of a question has.

    Parameters
    ----------
    question
        With one layout, which `check` lets pass.
    code
        The function that builds the module, `FILE.py:FUNCTION`; by default it is built from its configuration.
    """

    runs_ends = False

    def __init__(self, question: Question, _: Groups, code: str = "") -> None:
        super().__init__()
        check(question)
        torch.manual_seed(SEED)
        types = question.workload.precision
        self.source = _source(question, code)
        self.model: nn.Module = self.source.module
        self._last: list[Any] = [None]
        self.layers = [*self._kept(question)]
        self.kinds = tuple(block_name(layer) for layer in question.model.layers)
        self.autocast = TYPES[types.activations] if types.activations != types.parameters else None
        for layer in self.layers:
            if question.layout.recompute.granularity == "full":
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
            layer.register_forward_hook(lambda _m, _a, result: self._last.__setitem__(0, result))
        self._calls: dict[int, Any] = {}
        self._inputs: dict[tuple[int, ...], Any] = {}

    def _kept(self, question: Question) -> Iterator[nn.Module]:
        """Yield the blocks that a question has, and put stand-ins in the place of the others."""
        from forescale.trace.structure import find_blocks

        model = question.model
        blocks = find_blocks(self.model)
        names = trace_of(model, question.workload.precision).layers
        if len(names) != len(blocks):
            reason = f"{len(names)} recorded blocks and {len(blocks)} repeated modules: operators run between blocks"
            raise unsupported_by("a benchmark of a traced module", f"{model.name} ({reason})")
        left = Counter(block_name(layer) for layer in model.layers)
        for (path, block), name in zip(blocks.items(), names, strict=True):
            if left[name]:
                left[name] -= 1
                yield block
            else:
                parent, _, index = path.rpartition(".")
                setattr(self.model.get_submodule(parent), index, _Skipped(self._last))

    @property
    def separable(self) -> list[nn.Module]:
        """Modules whose weight gradients can be left for later."""
        return [*self.layers]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of a micro-batch; inputs that are not tokens are random numbers, or zeros."""
        from forescale.trace.session import loss_of

        with self._cast(tokens):
            result, loss = self._result(tokens), self.source.loss or loss_of
            scalar: Tensor = loss(result)
        return scalar

    def _result(self, tokens: Tensor) -> Any:  # noqa: ANN401
        """Return what the module makes of tokens."""
        shape = tuple(tokens.shape)
        if shape not in self._inputs:
            self._inputs[shape] = self._filled(self.source.inputs(*shape), tokens)
        call = self._inputs[shape]
        return self.model(**call) if isinstance(call, dict) else self.model(*call)

    def _cast(self, tensor: Tensor) -> AbstractContextManager[Any]:
        return torch.autocast(tensor.device.type, self.autocast) if self.autocast else nullcontext()

    def _filled(self, inputs: Any, tokens: Tensor) -> Any:  # noqa: ANN401
        kind = next(self.model.parameters()).dtype

        def fill(item: Any) -> Any:  # noqa: ANN401
            if not isinstance(item, Tensor):
                return item
            if item.is_floating_point():
                return torch.randn(item.shape, dtype=kind, device=tokens.device)
            if item.dtype == torch.bool:
                return torch.ones(item.shape, dtype=torch.bool, device=tokens.device)
            return tokens if item.shape == tokens.shape else torch.zeros_like(item, device=tokens.device)

        return tree_map(fill, inputs)

    def learn(self, tokens: Tensor) -> None:
        """Note what each block is called with."""
        with self.learning(lambda at, *call: self._calls.__setitem__(at, call)), self._cast(tokens):
            self._result(tokens)

    def start_of(self, index: int, _: Tensor) -> Tensor:
        """Return the stream that a block reads."""
        leaves = tree_leaves(self._calls[index])
        return leaves[_stream(leaves)].detach().clone().requires_grad_()  # type: ignore[no-any-return]

    def run_layer(self, index: int, x: Tensor) -> Tensor:
        """Return the stream behind a block."""
        leaves, tree = tree_flatten(self._calls[index])
        leaves[_stream(leaves)] = x
        args, named = tree_unflatten(leaves, tree)
        with self._cast(x):
            results = tree_leaves(self.layers[index](*args, **named))
        result: Tensor = results[_stream(results)]
        return result

    def hooked(self, passed: Callable[[int, Tensor], None]) -> list[Any]:
        """Return hooks that tell of the stream before each block and behind the last, by their place."""

        def told(place: int, items: Any) -> None:  # noqa: ANN401
            leaves = tree_leaves(items)
            passed(place, leaves[_stream(leaves)])

        hooks: list[Any] = [
            layer.register_forward_pre_hook(
                lambda _, args, named, at=place: told(at, (args, named)), with_kwargs=True
            )
            for place, layer in enumerate(self.layers)
        ]
        last = self.layers[-1]
        return [*hooks, last.register_forward_hook(lambda _m, _a, result: told(len(self.layers), result))]


def _stream(leaves: Sequence[Any]) -> int:
    """Return the place of the stream among what a block reads or returns: its first floating-point tensor."""
    return next(
        index for index, item in enumerate(leaves) if isinstance(item, Tensor) and item.is_floating_point()
    )


def _source(question: Question, code: str) -> Any:  # noqa: ANN401
    """Return the module of a question with random weights on the current device, and what it is called with."""
    from forescale.trace.sources import source_of, source_of_config

    model, parameters = question.model, question.workload.precision.parameters
    device = str(torch.get_default_device())
    check_code(model, code)
    if code:
        return source_of(code, parameters=parameters, device=device)
    return source_of_config(json.loads(model.config), parameters=parameters, device=device)


ADAPTER = Adapter(frameworks=(), package="torch", check=check, as_run=as_run, build=TracedBlocks)
