"""Run one forward and backward of a module on fake tensors and return what was recorded."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map

from forescale.errors import ForescaleError, not_traceable
from forescale.trace.cuda import CudaRules
from forescale.trace.external import external_kernels
from forescale.trace.recorder import Event, Extents, Recorder, Segment, current_recorder
from forescale.trace.structure import Blocks, Order

Inputs: TypeAlias = Mapping[str, Any]
Loss: TypeAlias = Callable[[Any], Tensor]


@dataclass(slots=True)
class Recording:
    """Operators of one forward and backward at one micro-batch size and sequence length."""

    micro_batch_size: int
    seq_len: int
    events: list[Event]
    segments: list[Segment]
    order: Order
    first_use: dict[str, int]
    """Segment in whose forward each parameter is first read."""


def fake(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Replace the parameters and buffers of a module by fake tensors on the CPU, ties kept."""
    known: dict[int, Tensor] = {}
    with mode:
        for child in module.modules():
            for name, parameter in child._parameters.items():  # noqa: SLF001
                if parameter is not None:
                    if id(parameter) not in known:
                        empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                        known[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                    child._parameters[name] = known[id(parameter)]  # type: ignore[assignment] # noqa: SLF001
            for name, buffer in child._buffers.items():  # noqa: SLF001
                if buffer is not None:
                    known.setdefault(id(buffer), torch.empty(buffer.shape, dtype=buffer.dtype))
                    child._buffers[name] = known[id(buffer)]  # noqa: SLF001
    return module


def record(
    module: nn.Module,
    inputs: Callable[[], Inputs | tuple[Any, ...]],
    *,
    mode: FakeTensorMode,
    size: tuple[int, int],
    autocast: torch.dtype | None = None,
    loss: Loss | None = None,
    whole: bool = False,
    extents: Extents = tuple,
    external: bool = True,
) -> Recording:
    """Record a forward and backward of a module of fake parameters.

    Parameters
    ----------
    inputs
        Returns what the module is called with.
    size
        Micro-batch size and sequence length.
    autocast
        Type of `torch.autocast`; None trains in the type of the parameters.
    loss
        Returns the scalar to differentiate; by default the `loss` of the result, the result itself, or the sum of its
        tensors.
    whole
        Whether every block is run, and not only the first of each kind.
    extents
        Returns the extents of a shape.
    external
        Whether kernels of other libraries run where transformers uses them if they are installed.

    Raises
    ------
    ForescaleError
        If the module needs the values of tensors, or fails; the message names module and line.
    """
    with mode, _no_values():
        recorder = Recorder(module, extents)
        blocks = Blocks(module, recorder, whole=whole)
        hooks = _hooks(module, recorder)
        try:
            value = _in_type_of(module, inputs())
            recorder.values.set_inputs([item for item in tree_leaves(value) if isinstance(item, Tensor)])
            kernels = external_kernels(module, recorder) if external else contextlib.nullcontext()
            with kernels, recorder, CudaRules(recorder), blocks.patched() as order:
                with (
                    torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None),
                    torch.autograd.graph.saved_tensors_hooks(recorder.saved, lambda tensor: tensor),
                ):
                    result = module(**value) if isinstance(value, Mapping) else module(*value)
                    scalar = loss(result) if loss is not None else loss_of(result)
                del result
                recorder.finish()
                scalar.backward()  # type: ignore[no-untyped-call]
        except ForescaleError:
            raise
        except Exception as error:
            raise _located(error, recorder) from error
        finally:
            for hook in hooks:
                hook.remove()
            for parameter in module.parameters():
                parameter.grad = None
    return Recording(
        micro_batch_size=size[0],
        seq_len=size[1],
        events=recorder.events,
        segments=recorder.segments,
        order=order,
        first_use=recorder.first_use,
    )


def _in_type_of(module: nn.Module, inputs: Any) -> Any:  # noqa: ANN401
    """Return inputs whose floating-point tensors have the type of the first parameter, as users cast them."""
    kind = next((item.dtype for item in module.parameters() if item.is_floating_point()), torch.float32)
    is_float = lambda item: isinstance(item, Tensor) and item.is_floating_point()  # noqa: E731
    return tree_map(lambda item: item.to(kind) if is_float(item) else item, inputs)  # type: ignore[no-untyped-call]


def _hooks(module: nn.Module, recorder: Recorder) -> list[Any]:
    """Register what names modules and gradients."""
    hooks: list[Any] = []
    for name, child in module.named_modules():
        hooks.append(child.register_forward_pre_hook(lambda _m, _a, path=name: recorder.path.append(path)))
        hooks.append(child.register_forward_hook(lambda _m, _a, _o: _pop(recorder), always_call=True))
    for name, parameter in module.named_parameters():
        recorder.name(name, parameter)
        if parameter.requires_grad:
            hooks.append(
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda item, path=name: recorder.gradient(path, item)
                )
            )
    return hooks


def _pop(recorder: Recorder) -> None:
    if recorder.path:
        recorder.path.pop()


def loss_of(result: Any) -> Tensor:  # noqa: ANN401
    """Return the loss that a module returns, or the sum of its differentiable tensors."""
    loss = getattr(result, "loss", None)
    if isinstance(loss, Tensor) and loss.requires_grad:
        return loss
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        returned: Tensor = result["loss"]
        return returned
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not tensors:
        raise not_traceable("the module", "it returns no tensor that depends on a trained parameter")
    if tensors[0].dim() == 0:
        return tensors[0]
    total = tensors[0].float().sum()
    for tensor in tensors[1:]:
        total = total + tensor.float().sum()
    return total


@contextlib.contextmanager
def _no_values() -> Iterator[None]:
    """Answer the questions about values that transformers asks of its inputs as an unpadded batch answers them."""
    with contextlib.ExitStack() as stack:
        if (
            "transformers.modeling_utils" not in sys.modules
        ):  # no module of transformers was built: nobody asks
            yield
            return
        import transformers.masking_utils
        import transformers.modeling_utils
        import transformers.utils.import_utils

        masks, models = transformers.masking_utils, transformers.modeling_utils
        padding = "warn_if_padding_and_no_attention_mask"
        answers: list[tuple[Any, str, Any]] = [
            (masks, "find_packed_sequence_indices", _not_packed),
            (masks, "fast_all", _all_true),
            (models.PreTrainedModel, padding, lambda *_args, **_kwargs: None),
            *((space, name, _never) for space in (transformers.utils.import_utils, masks)
              for name in ("is_fake_tensor", "is_tracing")),
        ]  # fmt: skip
        if skips := getattr(masks, SKIPS, None):
            answers.append((masks, SKIPS, partial(_without_padding, skips)))
        for space, name, answer in answers:
            if hasattr(space, name):
                stack.enter_context(patch.object(space, name, answer))
        yield


SKIPS = "_ignore_bidirectional_mask_sdpa"


@contextlib.contextmanager
def known_objects() -> Iterator[None]:
    """Let collections of garbage within the body look at its own objects only, which is fast."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _never(*_args: Any, **_kwargs: Any) -> bool:  # noqa: ANN401
    return False


def _not_packed(position_ids: Tensor) -> None:
    """Run the operators that find the sequences of a packed batch, and return that there is one."""
    difference = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1)
    mask = (difference != 1).cumsum(-1)
    _synchronise((mask[:, -1] == 0).all())


def _all_true(mask: Tensor) -> bool:
    """Run the operators that look for padding, and return that there is none."""
    _synchronise(mask.sum() == mask.numel())
    return True


def _without_padding(skips: Callable[..., Any], mask: Tensor | None, *sizes: Any) -> Any:  # noqa: ANN401
    """Run the operators that look for padding, and return whether encoders without it need a mask."""
    if mask is not None:
        _synchronise(mask.all())
    return skips(None, *sizes)


def _synchronise(value: Tensor) -> None:
    """Record that the host waits for a value."""
    if (recorder := current_recorder()) is not None:
        recorder.append("_local_scalar_dense", [value], [])


VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)


def _located(error: Exception, recorder: Recorder) -> ForescaleError:
    """Return an error that names the module and the line of the user's code where it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    local = [
        frame
        for frame in frames
        if "/torch/" not in frame.filename and "forescale/trace" not in frame.filename
    ]
    frame = local[-1] if local else frames[-1]
    where = f"{frame.filename}, line {frame.lineno}"
    module = recorder.path[-1] if recorder.path else ""
    inside = f" in module {module}" if module else ""
    if isinstance(error, VALUE_ERRORS):
        operator = str(getattr(error, "func", error)).removesuffix(".default")
        return ForescaleError(
            f"{where}: the code needs the values that {operator} returns{inside} ({frame.line}); a trace has "
            "shapes only"
        )
    text = str(error).strip().splitlines()
    return ForescaleError(
        f"{where}: {type(error).__name__}: {text[0] if text else ''}{inside} ({frame.line})"
    )
