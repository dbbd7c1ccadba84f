"""Feed-forward blocks: dense and mixture of experts. Input and output: residual layout."""

from __future__ import annotations

from forescale.graph.modules import GRADIENT_BYTES, elementwise, exchange, gather_sequence, linear, scatter_sequence
from forescale.graph.operator import Builder
from forescale.graph.ops import Collective, Elementwise, GroupedGemm
from forescale.numeric import Numeric
from forescale.spec.model import DenseFfn, Model, MoeFfn


def dense_ffn(b: Builder, model: Model, spec: DenseFfn, *, source: str, result: str) -> None:
    """Append gather -> up (and gate) -> activation -> down -> scatter."""
    b.part, outer, b.modules = "ffn", b.modules, (*b.modules, "mlp")
    h = float(model.hidden_size)
    gather_sequence(b, "ffn.gather", source=source, width=h, feeds="ffn.up")
    two_layer_ffn(b, "ffn", hidden=h, width=float(spec.ffn_hidden_size), gated=spec.gated, bias=spec.bias, source=source, result=result)
    scatter_sequence(b, "ffn.scatter", source=result, width=h)
    b.modules = outer


def two_layer_ffn(
    b: Builder, prefix: str, *, hidden: float, width: float, gated: bool, bias: bool, source: str, result: str
) -> None:
    """Append the products and activation of a feed-forward on gathered tokens."""
    lay = b.layout
    tokens = lay.tokens("sequence")
    up_width = width * (2.0 if gated else 1.0)
    up = b.tensor(f"{prefix}.up", tokens * up_width / lay.split("ffn"))
    linear(b, f"{prefix}.up", source=source, result=up, rows=tokens, inputs=("hidden", hidden), outputs=("ffn", up_width), bias=bias)
    activated = b.tensor(f"{prefix}.activated", tokens * width / lay.split("ffn"), lay.linear_input_bytes)
    _activation(b, f"{prefix}.activation", up, activated)
    linear(b, f"{prefix}.down", source=activated, result=result, rows=tokens, inputs=("ffn", width), outputs=("hidden", hidden), bias=bias)


def _activation(b: Builder, name: str, up: str, activated: str) -> None:
    """Append the fused activation: reads what the first product wrote, writes the second's input."""
    read, write = b.bytes_of(up), b.bytes_of(activated)
    elementwise(b, name, reads=(up,), writes=(activated,), saves=(up,), forward_bytes=read + write, backward_bytes=2.0 * read + write)


def moe_ffn(b: Builder, model: Model, spec: MoeFfn, *, source: str, result: str) -> None:
    """Append router -> dispatch -> experts -> combine, and the shared expert beside them.

    Tokens stay in residual layout up to the dispatch, so with tp > 1 each rank routes its own part of the
    sequence (Megatron demands sequence parallelism there).
    """
    b.part, outer, b.modules = "moe", b.modules, (*b.modules, "moe")
    h = float(model.hidden_size)
    _router(b, spec, hidden=h, source=source)
    _experts(b, spec, hidden=h, source=source, result=result)
    if spec.shared_ffn_hidden_size:
        inner, b.modules = b.modules, (*b.modules, "shared_experts")
        gather_sequence(b, "shared.gather", source=source, width=h, feeds="shared.up")
        two_layer_ffn(b, "shared", hidden=h, width=float(spec.shared_ffn_hidden_size), gated=spec.gated, bias=False,
                      source=source, result=result)
        scatter_sequence(b, "shared.scatter", source=result, width=h)
        if spec.shared_gate:
            b.parameter("shared.gate.weight", ("hidden", h), ("rank", 1.0))
        b.modules = inner
    b.modules = outer


def _router(b: Builder, spec: MoeFfn, *, hidden: float, source: str) -> None:
    """Append the router's product (fp32 logits over all experts), scores and top-k."""
    local, experts = b.layout.tokens("residual"), float(spec.num_experts)
    logits = b.tensor("moe.logits", local * experts, 4.0)
    b.tensor("moe.probabilities", local * experts, 4.0)
    linear(b, "moe.router", source=source, result=logits, rows=local, inputs=("hidden", hidden), outputs=("rank", experts),
           bias=spec.router_bias)
    if spec.score_bias:
        b.parameter("moe.score_bias", ("rank", experts))
    size = b.bytes_of(logits)
    elementwise(b, "moe.top_k", reads=(logits,), writes=("moe.probabilities",), saves=("moe.probabilities",),
                forward_bytes=4.0 * size, backward_bytes=4.0 * size, kernels=6.0)


def _experts(b: Builder, spec: MoeFfn, *, hidden: float, source: str, result: str) -> None:
    """Append permutation, all-to-all over ep, gather over etp, grouped products, and the way back."""
    lay = b.layout
    rows = lay.tokens("residual") * float(spec.top_k)
    size = rows * hidden * lay.element_bytes
    _permute(b, "moe.permute", reads=source, moved=2.0 * size)

    exchange(b, "moe.dispatch", axis="ep", forward=size, backward=size, tensor=source)
    _gather_over_etp(b, "moe.dispatch_etp", size * lay.degrees.etp, forward="all_gather")
    received = rows * lay.degrees.etp
    local_experts = spec.num_experts / lay.split("experts")
    dispatched = b.tensor("moe.dispatched", received * hidden, lay.linear_input_bytes)
    _permute(b, "moe.sort", reads=source, moved=2.0 * size * lay.degrees.etp, writes=dispatched)
    width, up_width = float(spec.ffn_hidden_size), spec.ffn_hidden_size * (2.0 if spec.gated else 1.0)
    up = b.tensor("moe.up", received * up_width / lay.split("expert_ffn"))
    _grouped_linear(b, spec, "moe.up", source=dispatched, result=up, rows=received, groups=local_experts, inputs=("hidden", hidden),
                    outputs=("expert_ffn", up_width))
    activated = b.tensor("moe.activated", received * width / lay.split("expert_ffn"), lay.linear_input_bytes)
    outer, b.modules = b.modules, (*b.modules, "moe_act")
    _activation(b, "moe.activation", up, activated)
    b.modules = outer
    _grouped_linear(b, spec, "moe.down", source=activated, result=result, rows=received, groups=local_experts,
                    inputs=("expert_ffn", width), outputs=("hidden", hidden))
    _permute(b, "moe.unsort", reads=result, moved=2.0 * size * lay.degrees.etp)
    _gather_over_etp(b, "moe.combine_etp", size * lay.degrees.etp, forward="reduce_scatter")
    exchange(b, "moe.combine", axis="ep", forward=size, backward=size, tensor=result)
    _permute(b, "moe.unpermute", reads=result, moved=2.0 * size)


def _permute(b: Builder, name: str, *, reads: str, moved: Numeric, writes: str | None = None) -> None:
    """Append a gather or scatter of rows in memory."""
    work = (Elementwise(bytes_moved=moved, family="permute", kernels=2.0),)
    b.operator(name, forward=work, backward_input=work, reads=(reads,), writes=(writes or reads,))


def _gather_over_etp(b: Builder, name: str, size: Numeric, *, forward: str) -> None:
    """Append the expert-tensor-parallel gather (dispatch) or reduce-scatter (combine) and its mirror."""
    mirror = "reduce_scatter" if forward == "all_gather" else "all_gather"
    b.operator(
        name,
        forward=(Collective(kind=forward, axis="etp", num_bytes=size),),  # type: ignore[arg-type]
        backward_input=(Collective(kind=mirror, axis="etp", num_bytes=size),),  # type: ignore[arg-type]
    )


def _grouped_linear(
    b: Builder, spec: MoeFfn, name: str, *, source: str, result: str, rows: Numeric, groups: Numeric,
    inputs: tuple[str, float], outputs: tuple[str, float],
) -> None:
    """Append the products of all local experts and declare their weights."""
    lay = b.layout
    k = inputs[1] / lay.split(inputs[0])  # type: ignore[arg-type]
    n = outputs[1] / lay.split(outputs[0])  # type: ignore[arg-type]
    dtype, active = lay.precision.compute, spec.top_k / spec.num_experts
    experts = ("experts", float(spec.num_experts))
    b.parameter(f"{name}.weight", experts, inputs, outputs, group="expert", active_fraction=active)  # type: ignore[arg-type]
    if spec.bias:
        b.parameter(f"{name}.bias", experts, outputs, group="expert", active_fraction=active)  # type: ignore[arg-type]
    accumulate = GRADIENT_BYTES[lay.precision.gradients]
    b.operator(
        name,
        forward=(GroupedGemm(groups=groups, m=rows, n=n, k=k, dtype=dtype),),
        backward_input=(GroupedGemm(groups=groups, m=rows, n=k, k=n, dtype=dtype),),
        backward_weight=(GroupedGemm(groups=groups, m=rows, n=n, k=k, dtype=dtype, contract="m", accumulate_bytes=accumulate),),
        reads=(source,),
        writes=(result,),
        saves=(source,),
    )
