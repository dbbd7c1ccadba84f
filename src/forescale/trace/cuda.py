"""What a CUDA build of PyTorch runs where a CPU build runs something else.

Fake tensors belong to the CPU: `CudaRules` intercepts the calls whose operators differ, so that the recording shows
those of CUDA. The lists of autocast follow aten/src/ATen/autocast_mode.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

from forescale.trace.recorder import Recorder

FP32_NAMES = [
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow", "__pow__", "__rpow__", "layer_norm", "group_norm", "cosine_similarity",
    "softplus", "nll_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "binary_cross_entropy_with_logits", "logsumexp", "dist", "renorm", "norm",
]  # fmt: skip
"""Functions that CUDA's autocast runs in fp32 after casting their inputs."""
FP32_RESULT_NAMES = ("softmax", "log_softmax", "prod", "sum", "cumprod", "cumsum")
"""Functions that CUDA's autocast calls with dtype=torch.float32 unless the caller names a type."""


def _callables(names: tuple[str, ...] | list[str]) -> dict[Any, str]:
    spaces = (torch, F, Tensor, torch.special)
    return {
        function: name
        for name in names
        for space in spaces
        if (function := getattr(space, name, None)) is not None
    }


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention as one fused kernel per pass; its result is laid out as the query is.

    (aten/native/cudnn/MHA.cpp, alloc_with_matching_layout; aten/native/transformers/cuda/flash_attn, empty_like)
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        recorder: Recorder,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
    ) -> Tensor:
        with recorder.mute():
            shape = (*query.shape[:-1], value.shape[-1])
            strides: tuple[int, ...] = query.stride()
            order = sorted(range(4), key=strides.__getitem__, reverse=True)
            result = torch.empty_permuted(shape, order, dtype=query.dtype)
            statistics = query.new_empty(*query.shape[:-1], 1, dtype=torch.float32)
        for tensor in (result, statistics):
            recorder.storages.add(tensor)
        inputs = [query, key, value, *([] if mask is None else [mask])]
        recorder.append("attention", inputs, [result], (causal, mask is not None))
        ctx.save_for_backward(query, key, value, mask, result, statistics)
        ctx.recorder, ctx.causal = recorder, causal
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # noqa: ANN401
        query, key, value, mask, result, _ = ctx.saved_tensors
        recorder: Recorder = ctx.recorder
        with recorder.mute():
            outputs = [torch.empty_like(item) for item in (query, key, value)]
            work = query.new_empty(query.shape, dtype=torch.float32)
        for tensor in (*outputs, work):
            recorder.storages.add(tensor)
        inputs = [query, key, value, gradient, result, *([] if mask is None else [mask])]
        recorder.append("attention_backward", inputs, outputs, (ctx.causal, mask is not None))
        return None, *outputs, None, None


class _RmsNorm(torch.autograd.Function):
    """RMS norm as one fused kernel per pass."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, source: Tensor, weight: Tensor | None) -> Tensor:  # noqa: ANN401
        with recorder.mute():
            result = torch.empty_like(source)
            statistics = source.new_empty(source.shape[:-1], dtype=torch.float32)
        for tensor in (result, statistics):
            recorder.storages.add(tensor)
        recorder.append("_fused_rms_norm", [source, *([] if weight is None else [weight])], [result])
        ctx.save_for_backward(source, weight, statistics)
        ctx.recorder = recorder
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # noqa: ANN401
        source, weight, _ = ctx.saved_tensors
        recorder: Recorder = ctx.recorder
        with recorder.mute():
            outputs = [torch.empty_like(source), *([] if weight is None else [torch.empty_like(weight)])]
        for tensor in outputs:
            recorder.storages.add(tensor)
        recorder.append("_fused_rms_norm_backward", [gradient, source], outputs)
        return None, outputs[0], outputs[1] if weight is not None else None


class _GroupedProduct(torch.autograd.Function):
    """Products of groups of rows, each with its own matrix: one kernel in bf16, else one product per group."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, rows: Tensor, matrices: Tensor) -> Tensor:  # noqa: ANN401
        result = _made(recorder, rows, (rows.shape[0], matrices.shape[-1]))
        recorder.append("grouped_mm", [rows, matrices], [result])
        ctx.save_for_backward(rows, matrices)
        ctx.recorder = recorder
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # noqa: ANN401
        rows, matrices = ctx.saved_tensors
        recorder: Recorder = ctx.recorder
        of_rows = _made(recorder, rows, rows.shape)
        recorder.append("grouped_mm", [gradient, matrices.transpose(-2, -1)], [of_rows])
        flipped = matrices.stride(-2) == 1
        shape = matrices.transpose(-2, -1).shape if flipped else matrices.shape
        of_matrices = _made(recorder, matrices, shape)
        recorder.append("grouped_mm_weight", [rows, gradient], [of_matrices])
        return None, of_rows, of_matrices.transpose(-2, -1) if flipped else of_matrices


def _made(recorder: Recorder, like: Tensor, shape: Any) -> Tensor:  # noqa: ANN401
    """Return an empty tensor whose memory is counted, though no kernel fills it."""
    with recorder.mute():
        result = like.new_empty(shape)
    recorder.storages.add(result)
    return result


class CudaRules(TorchFunctionMode):
    """Replace calls whose operators on CUDA differ from those on the CPU."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._fp32 = _callables(list(FP32_NAMES))
        self._fp32_result = _callables(list(FP32_RESULT_NAMES))
        self._rules: Mapping[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._attention,
            F.dropout: self._dropout,
            F.rms_norm: self._rms_norm,
            torch.rms_norm: self._rms_norm,
            torch._grouped_mm: self._grouped_product,  # noqa: SLF001
            F.one_hot: self._one_hot,
            Tensor.tolist: self._tolist,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run one call as CUDA would."""
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is not None:
            return rule(*args, **kwargs)
        if torch.is_autocast_enabled("cpu"):
            if func in self._fp32:
                args = tuple(map(_in_fp32, args))
                kwargs = {name: _in_fp32(item) for name, item in kwargs.items()}
            elif func in self._fp32_result and kwargs.get("dtype") is None:
                first = args[0] if args else kwargs.get("input")
                if isinstance(first, Tensor) and first.dtype in (torch.bfloat16, torch.float16):
                    kwargs = {**kwargs, "dtype": torch.float32}
            with torch.autocast("cpu", enabled=True, dtype=torch.get_autocast_dtype("cpu")):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(  # noqa: PLR0917  (arguments of torch.nn.functional.scaled_dot_product_attention)
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Run scaled dot-product attention in one fused kernel; autocast casts its inputs.

        Heads of keys that queries share need `enable_gqa` and a 16-bit type; it is two products otherwise
        (aten/native/transformers/sdp_utils_cpp.h, check_batch_size_and_num_heads_dense).
        """
        if torch.is_autocast_enabled("cpu"):
            kind = torch.get_autocast_dtype("cpu")
            query, key, value = (item.to(kind) for item in (query, key, value))
            if attn_mask is not None and attn_mask.dtype != torch.bool:
                attn_mask = attn_mask.to(kind)
        if query.dim() == 3:
            return self._attention(query[None], key[None], value[None], attn_mask, is_causal=is_causal)[0]
        if query.shape[:-2] != key.shape[:-2] and not (enable_gqa and query.dtype.itemsize == 2):
            with torch.autocast("cpu", enabled=False):
                parts = torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )
            return parts[0]  # type: ignore[no-any-return]
        lead = query.shape[:-3]
        if len(lead) > 1:
            query, key, value = (item.reshape(-1, *item.shape[-3:]) for item in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
        result: Tensor = _Attention.apply(self.recorder, query, key, value, attn_mask, is_causal)  # type: ignore[no-untyped-call]
        return result.reshape(*lead, *result.shape[-3:]) if len(lead) > 1 else result

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002, ARG002
        """Run dropout in one kernel, which writes a mask."""
        if not training or p == 0.0:
            return input
        return torch.native_dropout(input, p, training)[0]

    def _rms_norm(
        self,
        source: Tensor,
        _normalized_shape: Any,  # noqa: ANN401
        weight: Tensor | None = None,
        eps: float | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Run an RMS norm in one kernel."""
        result: Tensor = _RmsNorm.apply(self.recorder, source, weight)  # type: ignore[no-untyped-call]
        return result

    def _grouped_product(
        self,
        rows: Tensor,
        matrices: Tensor,
        offs: Tensor | None = None,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Run a grouped product of rows by a matrix for each group."""
        if rows.dim() != 2 or matrices.dim() != 3:
            return torch._grouped_mm(rows, matrices, offs=offs, bias=bias, out_dtype=out_dtype)  # noqa: SLF001
        result: Tensor = _GroupedProduct.apply(self.recorder, rows, matrices)  # type: ignore[no-untyped-call]
        return result

    def _one_hot(self, tensor: Tensor, num_classes: int = -1) -> Tensor:
        """Run one_hot and note the share of its ones."""
        result = F.one_hot(tensor, num_classes)
        self.recorder.values.set_mask(result, 1.0 / result.shape[-1])
        return result

    def _tolist(self, tensor: Tensor) -> Any:  # noqa: ANN401
        """Return the counts of balanced routing; the host waits for them."""
        parts = self.recorder.values.parts(tensor)
        if parts is None:
            return tensor.tolist()
        self.recorder.append("_local_scalar_dense", [tensor], [])
        return parts


def _in_fp32(item: Any) -> Any:  # noqa: ANN401
    """Return a 16-bit tensor in fp32, anything else as it is."""
    if isinstance(item, Tensor) and item.dtype in (torch.bfloat16, torch.float16):
        return item.float()
    return item
