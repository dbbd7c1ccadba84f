"""Step time from what a row published: seconds, tokens/s, TFLOP/s or MFU by its own FLOP convention.

These FLOP counts invert other people's arithmetic; the projection's own counts come from its operator graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from forescale.spec import Cluster, Layout, Model, Workload
from forescale.spec.attention import Attention
from forescale.spec.model import DenseFfn, Ffn, Layer
from forescale.spec.workload import MATRIX_RATE
from forescale.struct import Struct
from forescale.units import TB

StepSource: TypeAlias = Literal["step time", "tokens/s", "TFLOP/s", "MFU", "none"]


class Speed(Struct, frozen=True, kw_only=True):
    """The speed of a run as it was published; each figure is of one device but the step time."""

    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tflops: float | None = None
    """10¹² FLOP/s."""
    mfu_percent: float | None = None
    convention: Mapping[str, Any] = {}
    """What the FLOPs of `tflops` and `mfu_percent` count: see `published_flops`."""
    peak_tflops: float | None = None
    """The peak that `mfu_percent` is a percentage of; None is the device's own."""

    def step_time(
        self, model: Model, cluster: Cluster, layout: Layout, workload: Workload
    ) -> tuple[float | None, StepSource]:
        """Return the measured seconds per step and the published figure that they follow from.

        The first available figure is used: step time, tokens/s, TFLOP/s, MFU. A rate becomes a time with the
        batch of the run and, for FLOP rates, the FLOPs that the convention counts.
        """
        if self.step_time_s:
            return self.step_time_s, "step time"
        per_device = workload.tokens_per_step / layout.num_devices
        if self.tokens_per_s:
            return per_device / self.tokens_per_s, "tokens/s"
        flops = published_flops(model, workload.seq_len, layout, self.convention)
        if self.tflops:
            return per_device * flops / (self.tflops * TB), "TFLOP/s"
        if self.mfu_percent:
            peak = self._peak(cluster, workload)
            return (per_device * flops / (self.mfu_percent / 100 * peak), "MFU") if peak else (None, "none")
        return None, "none"

    def _peak(self, cluster: Cluster, workload: Workload) -> float | None:
        if self.peak_tflops is not None:
            return self.peak_tflops * TB
        rate: float | None = getattr(cluster.device.matrix_flops, MATRIX_RATE[workload.precision.compute])
        return rate


def published_flops(model: Model, seq_len: int, layout: Layout, convention: Mapping[str, Any]) -> float:
    """Return the FLOPs of one token, forward and backward, as `convention` counts them.

    Source: Narayanan et al. 2021 (arXiv:2104.04473), section 5.1, generalised to grouped heads, gated and
    routed feed-forward and latent attention: two FLOPs per weight and token, three times for forward and
    backward, four with full recompute; attention over the whole square unless the convention halves it; and
    logits; each multi-token-prediction layer with its projection of 2h to h and its logits.
    """
    if convention.get("formula") == "parameters":
        passes = 4.0 if convention.get("recompute") else 3.0
        return passes * 2.0 * 12.0 * model.num_layers * model.hidden_size**2
    halved = convention.get("attention") == "half"
    forward = sum(layer_flops(layer, model.hidden_size, seq_len, halved=halved) for layer in model.layers)
    logits = 2.0 * model.hidden_size * model.vocab_size
    if model.num_mtp_layers:
        ahead = model.mtp_layer or model.layers[-1]
        extra = layer_flops(ahead, model.hidden_size, seq_len, halved=halved)
        forward += model.num_mtp_layers * (extra + 4.0 * model.hidden_size**2 + logits)
    passes = 4.0 if convention.get("recompute") and layout.recompute.granularity == "full" else 3.0
    return passes * forward + 3.0 * logits


def layer_flops(layer: Layer, hidden: int, seq_len: int, *, halved: bool) -> float:
    """Return the forward FLOPs of one token in `layer`."""
    attention = (
        0.0 if layer.attention is None else _attention_flops(layer.attention, hidden, seq_len, halved=halved)
    )
    return attention + (0.0 if layer.ffn is None else _ffn_flops(layer.ffn, hidden))


def _attention_flops(attention: Attention, hidden: int, seq_len: int, *, halved: bool) -> float:
    keys, widths = attention.core_extents(seq_len)
    scores = attention.num_heads * widths * keys
    return 2.0 * attention.matrix_elements(hidden) + 2.0 * scores * (0.5 if halved else 1.0)


def _ffn_flops(ffn: Ffn, hidden: int) -> float:
    matrices = 3 if ffn.gated else 2
    if isinstance(ffn, DenseFfn):
        return 2.0 * hidden * ffn.ffn_hidden_size * matrices
    space = ffn.latent_size or hidden
    experts = 2.0 * space * ffn.top_k * ffn.ffn_hidden_size * matrices
    shared = 2.0 * hidden * ffn.shared_ffn_hidden_size * matrices
    return experts + shared + 2.0 * hidden * (ffn.num_experts + 2 * ffn.latent_size)
