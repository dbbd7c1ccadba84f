"""Give modules the local shapes of a tensor-parallel rank, and record the messages between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from forescale.errors import not_a_factor, not_one_of
from forescale.graph.parallel import SPLIT_DIMENSION, Plan
from forescale.trace.recorder import current_recorder

TRACED_DEGREES: Final = (2, 4, 8)
"""Degrees that are recorded next to 1, those of them that divide all split dimensions."""
LAYERS: Final = tuple(style for style in SPLIT_DIMENSION if style.startswith(("col", "row", "embedding")))
"""Styles of linear layers and embeddings, which can be traced."""


SPLIT: Final = (nn.Linear, nn.Embedding)


def ranks_of(module: nn.Module, plan: Plan) -> tuple[int, ...]:
    """Return the degrees of tensor parallelism that divide the layers that a plan splits.

    Raises
    ------
    ForescaleError
        If a pattern of the plan fits no linear layer, or its style cannot be traced.
    """
    layers = {path: child for path, child in module.named_modules() if isinstance(child, SPLIT)}
    for pattern, style in plan.styles.items():
        if style not in LAYERS:
            raise not_one_of(f"the style of {pattern}", style, LAYERS)
        if not any(path == pattern or path.endswith(f".{pattern}") for path in layers):
            raise not_one_of("tp_plan", pattern, sorted({path.rpartition(".")[2] for path in layers}))
    sizes = [_split_size(child, style) for path, child in layers.items() if (style := plan.style_at(path))]
    known = tuple(degree for degree in TRACED_DEGREES if all(size % degree == 0 for size in sizes))
    if not known:
        raise not_a_factor("tp 2", 2, min(sizes), "the layers that tp_plan splits")
    return known


def _split_size(layer: nn.Module, style: str) -> int:
    return int(layer.get_parameter("weight").shape[SPLIT_DIMENSION[style]])


@contextmanager
def local(module: nn.Module, plan: Plan, tp: int, mode: FakeTensorMode) -> Iterator[None]:
    """Let the layers that a plan splits have the weights of one of `tp` ranks within the body."""
    layers = [
        (child, style)
        for path, child in module.named_modules()
        if isinstance(child, SPLIT) and (style := plan.style_at(path))
    ]
    parts: dict[int, nn.Parameter] = {}
    before = [dict(layer._parameters) for layer, _ in layers]  # noqa: SLF001
    for layer, style in layers:
        for name, parameter in layer.named_parameters(recurse=False):
            if name == "weight" or style.startswith("col"):
                dimension = SPLIT_DIMENSION[style] if parameter.dim() > 1 else 0
                if id(parameter) not in parts:
                    shape = list(parameter.shape)
                    shape[dimension] //= tp
                    with mode:
                        part = torch.empty(shape, dtype=parameter.dtype)
                    parts[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
                layer._parameters[name] = parts[id(parameter)]  # noqa: SLF001
        layer.forward = _forward(layer.forward, style, tp)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        for (layer, _), parameters in zip(layers, before, strict=True):
            layer._parameters.update(parameters)  # noqa: SLF001
            del layer.__dict__["forward"]


def _forward(forward: Callable[[Tensor], Tensor], style: str, tp: int) -> Callable[[Tensor], Tensor]:
    """Return the forward of a split layer with what its ranks send (transformers, distributed/tensor_parallel.py)."""

    def run(source: Tensor) -> Tensor:
        if style == "rowwise_split_input":
            source = _Message.apply(source, source.shape[-1] // tp, None, "tp_all_gather")  # type: ignore[no-untyped-call]
        elif style.startswith("col"):
            source = _Message.apply(source, source.shape[-1], None, "tp_all_reduce")  # type: ignore[no-untyped-call]
        result = forward(source)
        if style == "colwise":
            return result
        kind = "tp_all_gather" if style == "colwise_gather_output" else "tp_all_reduce"
        width = result.shape[-1] * (tp if kind == "tp_all_gather" else 1)
        gathered: Tensor = _Message.apply(result, width, kind, None)  # type: ignore[no-untyped-call]
        return gathered

    return run


class _Message(torch.autograd.Function):
    """A tensor of another width, with a message in forward or in backward."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, width: int, ahead: str | None, behind: str | None) -> Tensor:  # noqa: ANN401
        ctx.behind, ctx.shape = behind, source.shape
        return _sent(source, (*source.shape[:-1], width), ahead)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # noqa: ANN401
        return _sent(gradient, ctx.shape, ctx.behind), None, None, None


def _sent(source: Tensor, shape: Any, kind: str | None) -> Tensor:  # noqa: ANN401
    """Return a tensor of some shape, a new one where it is gathered, and record the message."""
    recorder = current_recorder()
    assert recorder is not None
    with recorder.mute():
        grows = kind == "tp_all_gather"
        result = source.new_empty(shape) if grows else source.as_strided(shape, source.stride())
    if grows:
        recorder.storages.add(result)
    if kind is not None:
        recorder.append(kind, [result], [result])
    return result
