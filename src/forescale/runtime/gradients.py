"""Input and weight gradients apart: a backward pass leaves its weight gradients in a store, and W takes them out.

`split` turns the linear, embedding and norm layers of a module over; `linear`, `grouped_linear` and `embedding` serve
modules that multiply by their parameters themselves. Whatever is not turned over computes both gradients in I.
Under FSDP2 a forward multiplies by gathered parameters; W reduces their gradients to the shards, because FSDP2 itself
does so only at the end of a backward pass.
Zero bubble: Qi et al. 2023, arXiv:2401.10241.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

Put: TypeAlias = Callable[[], None]
_STORE = "_forescale_weight_gradients"
_SHARD = "_forescale_shard"


class WeightGradients:
    """Weight gradients of one rank that wait for their W; between `open` and `take` they are put off."""

    def __init__(self, *, in_fp32: bool = False, main: str = "main_grad") -> None:
        """Accumulate gradients in `parameter.grad`, or `in_fp32` in the attribute `main` of a parameter."""
        self.in_fp32, self.main = in_fp32, main
        self._waiting: list[Put] | None = None
        self._late = False

    def open(self) -> None:
        """Put off what comes from now on."""
        self._waiting = []

    def take(self) -> list[Put]:
        """Return what was put off, in the order of the backward pass, and put nothing off any more."""
        waiting, self._waiting = self._waiting or [], None
        return waiting

    def put(self, compute: Put) -> None:
        """Put a weight gradient off, or compute it at once."""
        if self._waiting is None:
            compute()
        else:
            self._waiting.append(compute)

    def finish(self, puts: Iterable[Put]) -> None:
        """Compute what was put off: a W."""
        self._late = True
        with torch.no_grad():
            for compute in puts:
                compute()
        self._late = False

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add a gradient to what a parameter has."""
        name, shard = self.main if self.in_fp32 else "grad", getattr(parameter, _SHARD, None)
        if shard is not None and self._late:
            parameter, gradient = shard, _reduced(gradient, shard)
        elif shard is not None:
            name = "grad"  # FSDP2 reduces it when this backward pass ends
        have = getattr(parameter, name, None)
        with torch.no_grad():
            if have is not None:
                have.add_(gradient)
            else:
                setattr(parameter, name, gradient.float() if name == self.main else gradient)

    def of(self, parameter: Tensor) -> Tensor:
        """Return what has been added to a parameter's gradient, zeros where nothing was."""
        name = self.main if self.in_fp32 else "grad"
        if getattr(parameter, name, None) is None:
            dtype = torch.float32 if self.in_fp32 else parameter.dtype
            setattr(parameter, name, torch.zeros_like(parameter, dtype=dtype))
        tensor: Tensor = getattr(parameter, name)
        return tensor

    def collect(self, parameters: Iterable[Tensor]) -> None:
        """Move what autograd itself added to `.grad` to where gradients accumulate."""
        if self.in_fp32:
            for parameter in parameters:
                if parameter.grad is not None:
                    self.add(parameter, parameter.grad)
                    parameter.grad = None


def split(module: nn.Module, store: WeightGradients) -> None:
    """Let the layers of `module` leave their weight gradients in `store`."""
    for parameter in module.parameters():
        setattr(parameter, _STORE, store)
    for layer in module.modules():
        turned = next((make for kind, make in _LAYERS if isinstance(layer, kind)), None)
        if turned is None and type(layer).__name__.endswith("RMSNorm"):  # those of Hugging Face's models
            turned = _other_norm
        if turned is not None:
            layer.forward = partial(turned, layer, type(layer).forward)
        if isinstance(layer, FSDPModule):
            layer.register_forward_pre_hook(partial(_turn_gathered, store, dict(layer.named_parameters())))


def _turn_gathered(
    store: WeightGradients, shards: dict[str, nn.Parameter], layer: nn.Module, _: object
) -> None:
    """Let gathered parameters leave their gradients in `store` too; those that tp cuts as well stay FSDP2's."""
    for name, shard in shards.items():
        gathered = layer.get_parameter(name)
        if not isinstance(gathered, DTensor):
            setattr(gathered, _STORE, store)
            setattr(gathered, _SHARD, shard)


def _reduced(gradient: Tensor, shard: DTensor) -> DTensor:
    """Return a shard's part of the mean of a gradient over the ranks of its mesh."""
    mesh = shard.device_mesh
    local = DTensor.from_local(
        gradient.to(shard.dtype) / mesh.size(), mesh, [Partial()] * mesh.ndim, run_check=False
    )
    return local.redistribute(mesh, shard.placements)


def store_of(parameter: Tensor) -> WeightGradients | None:
    """Return where `split` lets a parameter's gradients wait; None where it was not turned over."""
    weight_gradients: WeightGradients | None = getattr(parameter, _STORE, None)
    return weight_gradients


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias, shapes (…, k) and (n, k), as `torch.nn.functional.linear`."""
    store = store_of(weight)
    if store is None:
        return functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias, store)  # type: ignore[no-any-return, no-untyped-call]


def grouped_linear(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    """Return the products of consecutive groups of rows with their own matrices.

    Parameters
    ----------
    x
        Rows by group, (sum of counts, k).
    weight
        One matrix per group, (groups, k, n).
    counts
        Rows of each group.
    """
    store = store_of(weight)
    if store is None:
        return _grouped(x, weight, counts)
    return _GroupedLinear.apply(x, weight, counts, store)  # type: ignore[no-any-return, no-untyped-call]


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of `weight`, (vocabulary, n), that `tokens` name."""
    store = store_of(weight)
    if store is None:
        return functional.embedding(tokens, weight)
    return _Embedding.apply(tokens, weight, store)  # type: ignore[no-any-return, no-untyped-call]


def _grouped(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    rows = x.split(counts)  # type: ignore[no-untyped-call]
    return torch.cat([part @ weight[index] for index, part in enumerate(rows)])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, store: WeightGradients) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x)
        # Not saved: under checkpointing a saved weight comes back as another tensor, whose gradient is nobody's.
        ctx.weight, ctx.bias, ctx.store = weight, bias, store
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,), weight, bias, store = ctx.saved_tensors, ctx.weight, ctx.bias, ctx.store

        def compute() -> None:
            rows = grad.flatten(0, -2)
            if weight.requires_grad:
                store.add(weight, rows.T @ x.flatten(0, -2))
            if bias is not None and bias.requires_grad:
                store.add(bias, rows.sum(0))

        store.put(compute)
        return grad @ weight if ctx.needs_input_grad[0] else None, None, None, None


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: list[int], store: WeightGradients) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x)
        ctx.weight, ctx.counts, ctx.store = weight, counts, store
        return _grouped(x, weight, counts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,), weight, counts, store = ctx.saved_tensors, ctx.weight, ctx.counts, ctx.store

        def compute() -> None:
            parts = zip(x.split(counts), grad.split(counts), strict=True)  # type: ignore[no-untyped-call]
            store.add(weight, torch.stack([rows.T @ below for rows, below in parts]))

        if weight.requires_grad:
            store.put(compute)
        return _grouped(grad, weight.transpose(1, 2), counts), None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, store: WeightGradients) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(tokens)
        ctx.weight, ctx.store = weight, store
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:  # noqa: ANN401
        (tokens,), weight, store = ctx.saved_tensors, ctx.weight, ctx.store

        def compute() -> None:
            embedding_dense_backward = torch.ops.aten.embedding_dense_backward(
                grad, tokens, weight.shape[0], -1, False
            )
            store.add(weight, embedding_dense_backward)

        if weight.requires_grad:
            store.put(compute)
        return None, None, None


class _Norm(torch.autograd.Function):
    """An operator whose forward is cheap enough to run again for each of its gradients."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        run: Callable[..., Tensor],
        store: WeightGradients,
        *own: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.run, ctx.store, ctx.own = run, store, own
        with torch.no_grad():
            return run(x, *own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,), run, local, store = ctx.saved_tensors, ctx.run, ctx.own, ctx.store
        kept = [parameter.detach().clone() for parameter in local]  # FSDP2 has let go of them when W comes

        def compute() -> None:
            leaves = [item.requires_grad_() for item in kept]
            with torch.enable_grad():
                result = torch.autograd.grad(run(x.detach(), *leaves), leaves, grad)
            for parameter, gradient in zip(local, result, strict=True):
                if parameter.requires_grad:
                    store.add(parameter, gradient)

        passed = None
        if ctx.needs_input_grad[0]:
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                (passed,) = torch.autograd.grad(run(leaf, *kept), leaf, grad)
        store.put(compute)
        return passed, None, None, *(None for _ in local)


def _linear_layer(layer: nn.Linear, _: object, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _embedding_layer(layer: nn.Embedding, plain: Callable[..., Tensor], tokens: Tensor) -> Tensor:
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
        return plain(layer, tokens)  # rare, and torch's own way
    return embedding(tokens, layer.weight)


def _layer_norm(layer: nn.LayerNorm, plain: Callable[..., Tensor], x: Tensor) -> Tensor:
    def run(tensor: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.layer_norm(tensor, layer.normalized_shape, weight, bias, layer.eps)

    return _with_own(layer, run, plain, x)


def _rms_norm(layer: nn.RMSNorm, plain: Callable[..., Tensor], x: Tensor) -> Tensor:
    def run(tensor: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(tensor, layer.normalized_shape, weight, layer.eps)

    return _with_own(layer, run, plain, x)


def _other_norm(layer: nn.Module, plain: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Run a norm whatever it computes with its parameters."""
    names = [f"layer.{name}" for name, _ in layer.named_parameters(recurse=False)]
    called = _Called(layer, plain)

    def run(tensor: Tensor, *own: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(called, dict(zip(names, own, strict=True)), (tensor,))
        return result

    return _with_own(layer, run, plain, x)


def _with_own(
    layer: nn.Module, run: Callable[..., Tensor], plain: Callable[..., Tensor], x: Tensor
) -> Tensor:
    parameters = list(layer.parameters(recurse=False))
    store = store_of(parameters[0]) if parameters else None
    if store is None:
        return plain(layer, x)
    return _Norm.apply(x, run, store, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class _Called(nn.Module):
    """A layer's own forward, whatever stands in its place now."""

    def __init__(self, layer: nn.Module, plain: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.plain = layer, plain

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        return self.plain(self.layer, x)


_LAYERS: tuple[tuple[type[nn.Module], Callable[..., Tensor]], ...] = (
    (nn.Linear, _linear_layer),
    (nn.Embedding, _embedding_layer),
    (nn.LayerNorm, _layer_norm),
    (nn.RMSNorm, _rms_norm),
)
"""Layers that are turned over, and how each is run then."""
