"""Feed-forward blocks. Input and output: residual layout."""

from __future__ import annotations

from forescale.graph.modules import FP8_ROW_BYTES, elementwise, gather_sequence, linear, linear_out
from forescale.graph.operator import Builder, Names
from forescale.graph.sharding import Extent
from forescale.spec.model import DenseFfn, Model


def dense_ffn(b: Builder, model: Model, spec: DenseFfn, *, source: str, result: str) -> None:
    """Append gather -> up (and gate) -> activation -> down -> scatter."""
    b.part = "ffn"
    with b.module("mlp"):
        width = float(spec.ffn_hidden_size)
        two_layers(
            b,
            "ffn",
            model.hidden_size,
            width=width,
            gated=spec.gated,
            bias=spec.bias,
            source=source,
            result=result,
        )


def two_layers(
    b: Builder, prefix: str, hidden: float, *, width: float, gated: bool, bias: bool, source: str, result: str
) -> None:
    """Append a whole feed-forward, from residual layout to residual layout."""
    sharding, h = b.sharding, float(hidden)
    tokens, matrices = sharding.tokens("sequence"), 2 if gated else 1
    up_width = width * matrices
    gathered = gather_sequence(b, f"{prefix}.gather", source=source, width=h, feeds=f"{prefix}.up")
    up = b.tensor(f"{prefix}.up", tokens * up_width / sharding.split("ffn"))
    whole: Extent = ("hidden", h)
    linear(
        b,
        f"{prefix}.up",
        source=gathered,
        result=up,
        rows=tokens,
        inputs=whole,
        outputs=("ffn", up_width),
        bias=bias,
        saved=source,
        matrices=matrices,
    )
    activated = b.tensor(
        f"{prefix}.activated", tokens * width / sharding.split("ffn"), sharding.linear_input_bytes
    )
    activation(b, f"{prefix}.activation", kept_input(b, up), activated, gated=gated)
    inner: Extent = ("ffn", width)
    down, scatter = f"{prefix}.down", f"{prefix}.scatter"
    linear_out(b, down, scatter, source=activated, result=result, inputs=inner, width=h, bias=bias)


def kept_input(b: Builder, up: str) -> str:
    """Append the cast of an activation's input to 8 bits where it is kept so; return the name of what is kept."""
    if not b.sharding.narrows_activation_inputs:
        return up
    kept = b.tensor(f"{up}.narrow", b.tensors[up].elements, FP8_ROW_BYTES)
    elementwise(
        b,
        f"{up}.cast",
        reads=(up,),
        writes=(kept,),
        forward_bytes=b.bytes_of(up, kept),
        backward_bytes=0.0,
        shares_gradient=True,
    )
    return kept


def activation(b: Builder, name: str, up: str, activated: str, *, gated: bool) -> None:
    """Append the fused activation: reads what the first product wrote, writes the second's input."""
    read, write = b.bytes_of(up), b.bytes_of(activated)
    moved = read + write
    saves: Names = (up,)
    kernels = b.sharding.choices.kernels
    if gated and not (
        kernels.fused and kernels.fused_activations
    ):  # silu and the product each keep their inputs
        saves = (up, b.tensor(f"{name}.gate", b.tensors[activated].elements))
    elementwise(
        b,
        name,
        reads=(up,),
        writes=(activated,),
        saves=saves,
        forward_bytes=moved,
        backward_bytes=read + moved,
    )
