"""Mixtures of experts: router, dispatch, grouped products, combine. Input and output: residual layout."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from forescale.formula import formula
from forescale.graph.adapters import expert_adapters, parts_of
from forescale.graph.ffn import activation, kept_input, two_layers
from forescale.graph.modules import (
    FP8_ROW_BYTES,
    casts,
    elementwise,
    flat_gradient,
    linear,
    made_gradient,
    summing,
    widening,
)
from forescale.graph.operator import STASH, Builder, Names, Work
from forescale.graph.ops import Collective, CollectiveKind, Elementwise, GroupedGemm
from forescale.graph.sharding import Extent
from forescale.numeric import Numeric, ceil, maximum, minimum
from forescale.spec.dispatchers import DISPATCHERS
from forescale.spec.model import Model, MoeFfn


@formula(
    unit="token",
    source="Megatron-LM, moe_utils.py get_capacity: ⌈tokens · top_k / experts · capacity factor⌉",
)
def capacity_rows(*, rows: Numeric, num_experts: float, capacity_factor: float) -> Numeric:
    """Experts × ⌈rows / experts · capacity factor⌉: what all experts together take from one rank."""
    return num_experts * ceil(rows / num_experts * capacity_factor)


@formula(
    unit="1",
    source="definition: a token goes to top_k different experts, of which a rank holds experts / ep",
)
def possible_imbalance(*, imbalance: float, ep: Numeric, num_experts: float, top_k: float) -> Numeric:
    """min(imbalance, ep, experts / top_k): the most where every token chooses all it can on one rank."""
    return minimum(minimum(ep, num_experts / top_k), imbalance)


@formula(unit="token", source="definition: the fullest rank over the mean; a single rank receives the mean")
def imbalanced_rows(*, rows: Numeric, imbalance: Numeric, several: Numeric) -> Numeric:
    """Rows × (1 + (imbalance − 1) · 1 where there are several ranks)."""
    return rows * (1.0 + (imbalance - 1.0) * several)


@formula(unit="token", source="definition")
def fewer(*, rows: Numeric, most: Numeric) -> Numeric:
    """min(rows, most)."""
    return minimum(rows, most)


@formula(unit="token", source="definition: an exchange lasts until its fullest rank is done")
def more(*, sent: Numeric, received: Numeric) -> Numeric:
    """max(sent, received)."""
    return maximum(sent, received)


SENT_COUNT_BYTES = 8.0
"""Bytes of one count of tokens."""
ROUTING_MAP_BYTES = 1.0
"""Bytes of one entry of a routing map: whether a token goes to an expert (HybridEP, executor.cu:
allgather_routing_map)."""
ROW_MAP_BYTES = 4.0
"""Permutations keep one int32 index per moved row."""


def moe_ffn(b: Builder, model: Model, spec: MoeFfn, *, source: str, result: str) -> None:
    """Append router -> dispatch -> experts -> combine, and the shared expert beside them.

    Tokens stay in residual layout up to the dispatch, so with tp > 1 each rank routes its own part of the
    sequence. Without sequence parallelism, which Megatron-LM demands there, each sends its part of the tokens that
    all of them have, and they gather the results (DeepSpeed, moe/mappings.py: drop_tokens, gather_tokens).
    """
    b.part = "moe"
    with b.module("moe"):
        h = float(model.hidden_size)
        router(b, spec, hidden=h, source=source)
        if not spec.shared_ffn_hidden_size:
            _routed(b, spec, hidden=h, source=source, result=result)
            return
        both = tuple(b.tensor(name, b.tensors[result].elements) for name in ("moe.routed", "shared.result"))
        _routed(b, spec, hidden=h, source=source, result=both[0])
        _shared(b, model, spec, source=source, result=both[1])
        size = b.bytes_of(result)
        elementwise(
            b,
            "moe.add_shared",
            reads=both,
            writes=(result,),
            forward_bytes=3.0 * size,
            backward_bytes=0.0,
            shares_gradient=True,
        )


def _shared(b: Builder, model: Model, spec: MoeFfn, *, source: str, result: str) -> None:
    with b.module("shared_experts"):
        width = float(spec.shared_ffn_hidden_size)
        two_layers(
            b,
            "shared",
            model.hidden_size,
            width=width,
            gated=spec.gated,
            bias=False,
            source=source,
            result=result,
        )
        if spec.shared_gate:
            b.parameter("shared.gate.weight", ("hidden", float(model.hidden_size)), ("rank", 1.0))


def _routed(b: Builder, spec: MoeFfn, *, hidden: float, source: str, result: str) -> None:
    """Append the routed experts, between the projections to and from their own space if they have one."""
    if not spec.latent_size:
        _experts(b, spec, hidden=hidden, source=source, result=result)
        return
    local, latent = b.sharding.tokens("residual"), float(spec.latent_size)
    whole: Extent = ("hidden", hidden)
    narrow: Extent = ("rank", latent)
    down = b.tensor("moe.latent", local * latent)
    wide = "latent" in b.sharding.precision.high_precision_modules
    with b.widened(wide=wide):
        linear(b, "moe.latent_down", source=source, result=down, rows=local, inputs=whole, outputs=narrow)
        back = b.tensor("moe.latent_result", local * latent, b.sharding.linear_input_bytes)
    _experts(b, spec, hidden=latent, source=down, result=back)
    with b.widened(wide=wide):
        linear(b, "moe.latent_up", source=back, result=result, rows=local, inputs=narrow, outputs=whole)


def _own_tokens(b: Builder) -> Numeric:
    """Return the tokens that a rank sends to experts: its part of those that tensor-parallel ranks share."""
    shared = 1.0 if b.sharding.choices.sp else b.sharding.degrees.tp
    return b.sharding.tokens("residual") / shared


def _rows(b: Builder, spec: MoeFfn) -> tuple[Numeric, Numeric]:
    """Return the rows (copies of tokens) that a rank sends to experts, and that the fullest rank receives.

    Capacity cuts both; padded to it, both are the capacity whatever the routing.
    """
    routing = b.sharding.choices.routing
    rows = _own_tokens(b) * float(spec.top_k)
    uneven = possible_imbalance(
        imbalance=routing.imbalance,
        ep=b.sharding.degrees.ep,
        num_experts=float(spec.num_experts),
        top_k=float(spec.top_k),
    )
    received = imbalanced_rows(rows=rows, imbalance=uneven, several=b.sharding.more_than_one("ep"))
    if routing.capacity_factor is None:
        return rows, received
    most = capacity_rows(
        rows=rows, num_experts=float(spec.num_experts), capacity_factor=routing.capacity_factor
    )
    if routing.pad_to_capacity:
        return most, most
    return fewer(rows=rows, most=most), fewer(rows=received, most=most)


def _experts(b: Builder, spec: MoeFfn, *, hidden: float, source: str, result: str) -> None:
    """Append permutation, all-to-all over ep, gather over etp, grouped products, and the way back."""
    sharding = b.sharding
    sent, arrived = _rows(b, spec)
    received = arrived * sharding.degrees.etp
    _dispatch(b, spec, sent=sent, arrived=arrived, hidden=hidden, source=source)
    up_width, width = spec.ffn_hidden_size * (2.0 if spec.gated else 1.0), float(spec.ffn_hidden_size)
    up = b.tensor("moe.up", received * up_width / sharding.split("expert_ffn"))
    whole: Extent = ("hidden", hidden)
    wide: Extent = ("expert_ffn", up_width)
    _grouped(b, spec, "moe.up", source="moe.dispatched", result=up, rows=received, inputs=whole, outputs=wide)
    elements = received * width / sharding.split("expert_ffn")
    activated = b.tensor("moe.activated", elements, sharding.expert_input_bytes)
    _weighted_activation(b, spec, kept_input(b, up), activated)
    output = b.tensor("moe.output", received * hidden)
    inner: Extent = ("expert_ffn", width)
    _grouped(b, spec, "moe.down", source=activated, result=output, rows=received, inputs=inner, outputs=whole)
    if sharding.choices.kernels.paged_stash and not b.frozen:
        _stash(b, ("moe.dispatched", up, activated))
    if spec.bias:
        output = expert_bias(b, output, groups=spec.num_experts / sharding.split("experts"))
    both, either = _moves(b)
    row = hidden * sharding.element_bytes
    unsorted = b.tensor("moe.unsorted", received * hidden * either)
    called = _framework_sorts(b)
    _permute(b, "moe.unsort", output, unsorted, moved=2.0 * received * row * either, called=called)
    reduced = b.tensor("moe.reduced", arrived * hidden * both)
    _over_etp(b, "moe.combine_etp", unsorted, reduced, received * row, forward="reduce_scatter")
    once = DISPATCHERS[sharding.choices.dispatcher].sends_once  # combined on the way: a row per token returns
    returned = b.tensor("moe.returned", (_own_tokens(b) if once else sent) * hidden)
    moved = more(sent=sent, received=arrived) * hidden
    _travel(b, "moe.combine", elements=moved, source=reduced, result=returned, narrow="backward")
    local = result if sharding.choices.sp else b.tensor("moe.own", _own_tokens(b) * hidden)
    _permute(b, "moe.unpermute", returned, local, moved=2.0 * sent * row * _copied_here(b))
    if local != result:  # forward each rank gets the others' parts, backward the others' gradients
        shared = Collective(kind="all_gather", axis="tp", num_bytes=sharding.tokens("residual") * row)
        b.operator("moe.share", forward=(shared,), backward_input=(shared,), reads=(local,), writes=(result,))


def _stash(b: Builder, names: Names) -> None:
    """Append the copies of what experts keep to the pages of a buffer, and back: read and written once each way.

    Megatron-LM, moe/paged_stash.py: paged_stash_copy_kernel and paged_stash_pop_kernel, on a stream of their own.
    """
    copies = Elementwise(bytes_moved=2.0 * b.bytes_of(*names), own_stream=True, kernels=float(len(names)))
    b.operator(STASH, forward=(copies,), backward_input=(copies,))


WEIGHED_FORWARD = 12.0
"""Bytes per output in 16 bits where routing weights in fp32 are a kernel of their own (Megatron-LM, TEGroupedMLP):
product read and written in fp32 (2 + 4), narrowed (4 + 2)."""
WEIGHED_BACKWARD = 34.0
"""The same of its gradient: widened (2 + 4), times the weight (4 + 4) and narrowed (4 + 2), times the activation
(4 + 2 + 4), summed over rows (4)."""
WEIGHED_KERNELS = (2.0, 5.0)
"""Kernels, forward and backward."""


LIMITED = (4.0, 5.0)
"""Times that gate and value are read or written, forward and backward, where they are clamped before the kernel of the
activation: clamped each and joined (2 + 2); masked by what was clamped, which is kept, and joined (3 + 2) (Megatron-LM,
fused_bias_geglu.py: weighted_bias_quick_geglu_impl)."""
LIMITED_KERNELS = 3.0


def _limited(b: Builder, up: str) -> str:
    """Append the clamping of gate and value in kernels of their own; return the name of what they are then."""
    result, size = b.tensor("moe.limited", b.tensors[up].elements), b.bytes_of(up)
    forward, backward = (times * size for times in LIMITED)
    elementwise(
        b,
        "moe.limit",
        reads=(up,),
        writes=(result,),
        saves=(up,),
        forward_bytes=forward,
        backward_bytes=backward,
        kernels=LIMITED_KERNELS,
    )
    return result


def _weighted_activation(b: Builder, spec: MoeFfn, up: str, activated: str) -> None:
    """Append the activation and its product with the routing weights, in one kernel or in several.

    Eager frameworks take the weights in the type of activations, others as the router leaves them.
    """
    kernels = b.sharding.choices.kernels
    with b.module("moe_act"):
        if spec.limited and not kernels.limits_within:
            up = _limited(b, up)
        if _activates_within(b, spec):
            within_product(b, "moe.activation", up, activated)
            return
        if kernels.weighted_activation if spec.gated else kernels.weighted_ungated:
            activation(b, "moe.activation", up, activated, gated=spec.gated)
            return
        elements = b.tensors[activated].elements
        plain = b.tensor("moe.unweighted", elements)
        activation(b, "moe.activation", up, plain, gated=spec.gated)
        moved = [b.bytes_of(plain, activated)] * 2
        count: tuple[float, float] = (1.0, 1.0)
        wide: Names = ()
        if kernels.fused:
            moved = [WEIGHED_FORWARD * elements, WEIGHED_BACKWARD * elements]
            count, wide = WEIGHED_KERNELS, (b.tensor("moe.weighted", elements, 4.0),)
        forward, backward = (
            Elementwise(bytes_moved=size, family="cast", kernels=times)
            for size, times in zip(moved, count, strict=True)
        )
        b.operator(
            "moe.weigh",
            forward=(forward,),
            backward_input=(backward,),
            reads=(plain,),
            writes=(activated,),
            saves=(plain,),
            temporaries=wide,
            backward_temporaries=wide,
        )


def _activates_within(b: Builder, spec: MoeFfn) -> bool:
    """Return whether the first product computes the activation, weighted: a gated one, or squared ReLU."""
    return b.sharding.fuses_experts and (spec.gated or b.sharding.choices.kernels.weighted_ungated)


def within_product(b: Builder, name: str, up: str, activated: str) -> None:
    """Append an activation that the product before it computes, from what it keeps, and no kernel of its own."""
    b.operator(name, reads=(up,), writes=(activated,), saves=(up,))


def _dispatch(
    b: Builder, spec: MoeFfn, *, sent: Numeric, arrived: Numeric, hidden: float, source: str
) -> None:
    """Append the way from tokens to rows sorted by local expert."""
    sharding, row = b.sharding, hidden * b.sharding.element_bytes
    received = arrived * sharding.degrees.etp
    both, either = _moves(b)
    permuted = b.tensor("moe.permuted", sent * hidden * either * _copied_here(b))
    entries = _own_tokens(b) * spec.num_experts
    _permute(b, "moe.permute", source, permuted, moved=2.0 * sent * row * _copied_here(b), rows=entries)
    here = b.tensor("moe.arrived", arrived * hidden * both)
    moved = more(sent=sent, received=arrived) * hidden
    routing = _routing(b, spec)
    inside = DISPATCHERS[sharding.choices.dispatcher].shares_routing  # gathered by the call that dispatches
    if not inside:
        b.operator("moe.count", forward=(routing,))
    read = Elementwise(bytes_moved=routing.num_bytes, family="permute", called=False)
    work: dict[str, Any] = {"first": (routing, read) if inside else (), "reads_counts": _reads_counts(b)}
    _travel(b, "moe.dispatch", elements=moved, source=permuted, result=here, narrow="forward", **work)
    gathered = b.tensor("moe.gathered", received * hidden)
    _over_etp(b, "moe.dispatch_etp", here, gathered, received * row, forward="all_gather")
    dispatched = b.tensor("moe.dispatched", received * hidden, sharding.expert_input_bytes)
    called = _framework_sorts(b)
    _permute(b, "moe.sort", gathered, dispatched, moved=2.0 * received * row * either, called=called)


def _reads_counts(b: Builder) -> bool:
    """Say whether the host needs the tokens of each expert: it launches a product for each, and no capacity fixes them.

    Megatron-LM, experts.py: tokens_per_expert.tolist(), in forward; backward takes what forward read.
    """
    choices = b.sharding.choices
    return choices.kernels.expert_kernels != "one" and not choices.routing.pad_to_capacity


def _routing(b: Builder, spec: MoeFfn) -> Collective:
    """Return the exchange of how many tokens each rank sends to each expert (Megatron-LM: int64), or of the map."""
    entries = spec.num_experts * b.sharding.degrees.ep
    shared = DISPATCHERS[b.sharding.choices.dispatcher].shares_routing
    size = _own_tokens(b) * ROUTING_MAP_BYTES if shared else SENT_COUNT_BYTES
    return Collective(kind="all_gather", axis="ep", num_bytes=entries * size)


def _travel(
    b: Builder,
    name: str,
    *,
    elements: Numeric,
    source: str,
    result: str,
    narrow: Literal["forward", "backward"],
    first: Work = (),
    reads_counts: bool = False,
) -> None:
    """Append an all-to-all over ep, behind what comes `first`, and its mirror.

    One of both is in 8 bits where the routing says so.
    """
    wide = elements * b.sharding.element_bytes
    small = elements * FP8_ROW_BYTES if b.sharding.choices.routing.dispatch == "fp8" else wide
    there, back = (small, wide) if narrow == "forward" else (wide, small)
    b.operator(
        name,
        forward=(*first, Collective(kind="all_to_all", axis="ep", num_bytes=there)),
        backward_input=(Collective(kind="all_to_all", axis="ep", num_bytes=back),),
        reads=(source,),
        writes=(result,),
        reads_counts=reads_counts,
    )


def _moves(b: Builder) -> tuple[Numeric, Numeric]:
    """Return (1 or 0) whether rows move over both ep and etp, and over either; one rank copies nothing."""
    ep, etp = b.sharding.more_than_one("ep"), b.sharding.more_than_one("etp")
    return ep * etp, maximum(ep, etp)


def _copied_here(b: Builder) -> float:
    """Return 1 where rows are copied per expert before they travel and summed after; DeepEP does both on the way."""
    return 0.0 if DISPATCHERS[b.sharding.choices.dispatcher].sends_once else 1.0


def _framework_sorts(b: Builder) -> bool:
    """Say whether the framework sorts by expert: HybridEP's dispatch and combine do it in their one call.

    Megatron-LM, moe/fused_a2a.py: dispatch_with_permute and combine_with_unpermute.
    """
    return not DISPATCHERS[b.sharding.choices.dispatcher].sorts_by_expert


def _permute(
    b: Builder,
    name: str,
    source: str,
    result: str,
    *,
    moved: Numeric,
    rows: Numeric | None = None,
    called: bool = True,
) -> None:
    """Append a gather or scatter of rows in memory; the first one keeps the map of `rows` entries."""
    work = (Elementwise(bytes_moved=moved, family="permute", kernels=2.0, called=called),)
    saves = () if rows is None else (b.tensor(f"{name}.rows", rows, ROW_MAP_BYTES, differentiable=False),)
    b.operator(name, forward=work, backward_input=work, reads=(source,), writes=(result,), saves=saves)


def _over_etp(
    b: Builder, name: str, source: str, result: str, num_bytes: Numeric, *, forward: CollectiveKind
) -> None:
    """Append the expert-tensor-parallel gather (dispatch) or reduce-scatter (combine) and its mirror."""
    mirror: CollectiveKind = "reduce_scatter" if forward == "all_gather" else "all_gather"
    b.operator(
        name,
        forward=(Collective(kind=forward, axis="etp", num_bytes=num_bytes),),
        backward_input=(Collective(kind=mirror, axis="etp", num_bytes=num_bytes),),
        reads=(source,),
        writes=(result,),
    )


def _grouped(
    b: Builder,
    spec: MoeFfn,
    name: str,
    *,
    source: str,
    result: str,
    rows: Numeric,
    inputs: Extent,
    outputs: Extent,
) -> None:
    """Append the products of all local experts and declare their weights."""
    sharding = b.sharding
    k, n = inputs[1] / sharding.split(inputs[0]), outputs[1] / sharding.split(outputs[0])
    groups, kernels = spec.num_experts / sharding.split("experts"), sharding.choices.kernels
    together = kernels.expert_kernels == "one"
    calls = 1.0 if together else groups
    dtype, active, narrow = sharding.expert_type, spec.top_k / spec.num_experts, kernels.narrow_experts
    experts: Extent = ("experts", float(spec.num_experts))
    fused = 2 if spec.gated and name == "moe.up" else 1
    kept = 1 if kernels.joins_gate else fused
    values: dict[str, Any] = {"group": "expert", "active_fraction": active, "tensors": kept}
    b.parameter(f"{name}.weight", experts, inputs, outputs, **values, narrow=narrow, matrices=fused)
    if spec.bias:
        b.parameter(f"{name}.bias", experts, outputs, **values)
    product = partial(GroupedGemm, groups=groups, m=rows, dtype=dtype, together=together)
    beyond, summed = summing(sharding, groups * k * n, kernels=calls)
    of_weight = (
        product(n=n, k=k, contract="m", accumulate_bytes=beyond), *summed, *flat_gradient(b, groups * k * n)
    )  # fmt: skip
    alone = 1.0 if kernels.grouped_experts else 1.0 / (groups * kept)
    widened, wide = widening(b, name, groups * k * n, group="expert", kernels=calls, at_once=alone)
    of_input, of_gradient = _quantised(b, spec, name, (rows * k, rows * n), kernels=calls)
    made: Names = ()
    if not b.frozen and kernels.gradient_sum != "in_product":  # of all experts, or of one after another
        made = made_gradient(b, name, k * n * (groups if kernels.grouped_experts else 1.0))
    b.operator(
        name,
        forward=(*widened, *of_input, product(n=n, k=k)),
        backward_input=(*widened, *of_gradient, product(n=k, k=n)),
        backward_weight=() if b.frozen else of_weight,
        reads=(source,),
        writes=(result,),
        saves=() if b.frozen else (source,),
        temporaries=wide,
        backward_temporaries=(*wide, *made),
        frozen=b.frozen,
    )
    parts = parts_of(b, name, result, outputs, matrices=fused)
    expert_adapters(
        b, name, parts, source=source, rows=rows, inputs=inputs, num_experts=float(spec.num_experts)
    )


def _quantised(
    b: Builder, spec: MoeFfn, name: str, elements: tuple[Numeric, Numeric], *, kernels: Numeric
) -> tuple[tuple[Elementwise, ...], tuple[Elementwise, ...]]:
    """Return the quantisation of a product's input and of its result's gradient, where no kernel before makes it.

    Fused products quantise the activation that they compute, and the gradient of its input.
    """
    of_input, of_gradient = (
        casts(b.sharding, count, b.sharding.expert_type, kernels=kernels) for count in elements
    )
    if _activates_within(b, spec):
        return (() if name == "moe.down" else of_input), (() if name == "moe.up" else of_gradient)
    return of_input, of_gradient


FUSED_ROUTER = ((4.0, 6.0), (4.0, 6.0))
"""Times that a router's logits in fp32 are read or written, and kernels, forward and backward."""
UNFUSED_ROUTER = ((58.0, 30.0), (15.0, 15.0))
"""The same of PyTorch's operators (Megatron-LM, moe_utils.py: topk_routing_with_score_function,
compute_routing_scores_for_aux_loss): scores with bias (4), the map and the probabilities scattered into zeros (9),
scores of the loss with their map and sums (13), and two top-k, each of which reads 32-bit keys for every 2 of their
bits (16 times, PyTorch: SortingRadixSelect.cuh); backward gradients of both scores scattered into zeros, normalised and
added."""
WIDE_ROUTER_BYTES = 16.0
"""Bytes per input in 16 bits that gradients of a router in fp32 move beyond those in 16 bits (Megatron-LM,
moe_utils.py: RouterGatingLinearFunction): the input widened (2 + 4) and read so (2), its gradient written so (2) and
narrowed (4 + 2)."""
ROUTER_COUNT_BYTES = 4.0
"""Counts of tokens are summed in fp32 (Megatron-LM, transformer/moe/moe_utils.py)."""


def router(b: Builder, spec: MoeFfn, *, hidden: float, source: str) -> None:
    """Append the router's product (fp32 logits over all experts), scores and top-k, and what its loss counts."""
    local, experts = b.sharding.tokens("residual"), float(spec.num_experts)
    logits = b.tensor("moe.logits", local * experts, 4.0)
    probabilities = b.tensor("moe.probabilities", local * experts, 4.0)
    linear(
        b,
        "moe.router",
        source=source,
        result=logits,
        rows=local,
        inputs=("hidden", hidden),
        outputs=("rank", experts),
        bias=spec.router_bias,
        narrow=False,
    )
    if b.sharding.choices.kernels.wide_router:
        copies = Elementwise(bytes_moved=WIDE_ROUTER_BYTES * local * hidden, family="cast", kernels=2.0)
        b.operator("moe.router.wide", backward_input=(copies,), reads=(logits,))
    if spec.score_bias:
        b.parameter("moe.score_bias", ("rank", experts))
    fused, size = b.sharding.choices.kernels.fused_router, b.bytes_of(logits)
    forward, backward = (
        Elementwise(bytes_moved=passes * size, kernels=kernels)
        for passes, kernels in (FUSED_ROUTER if fused else UNFUSED_ROUTER)
    )
    b.operator(
        "moe.top_k",
        forward=(forward,),
        backward_input=(backward,),
        reads=(logits,),
        writes=(probabilities,),
        saves=(probabilities,),
    )
    if b.sharding.choices.routing.balance == "aux_loss":
        _counts(b, spec, source=probabilities)


def _counts(b: Builder, spec: MoeFfn, *, source: str) -> None:
    """Append the sum of each expert's tokens over the ranks that share a sequence; gradients need no sum."""
    several = b.sharding.more_than_one("tp") + b.sharding.more_than_one("cp")
    num_bytes = minimum(several, 1.0) * float(spec.num_experts) * ROUTER_COUNT_BYTES
    counts = Collective(kind="all_reduce", axis="tp_cp", num_bytes=num_bytes)
    b.operator("moe.balance", forward=(counts,), reads=(source,))


EAGER_FORWARD = 28.0
"""Bytes per output in 16 bits where the host goes from expert to expert (Megatron-LM, TEGroupedMLP._apply_bias), in
fp32 as the weights are: bias · weight written (4), added (2 + 4 read, 4 written), joined (4 + 4), narrowed (4 + 2)."""
EAGER_BACKWARD = 40.0
"""The same of its gradient: widened (2 + 4), narrowed (4 + 2) and joined (2 + 2); times the weight (4 + 4) and summed
over rows (4), times the bias (4 + 4) and summed over columns (4)."""
EAGER_KERNELS = (2.0, 6.0)
"""Kernels per expert, forward and backward."""
TOGETHER_BYTES = 4.0
"""Bytes per output in 16 bits where one kernel adds the biases of all experts: read and written."""


def expert_bias(b: Builder, source: str, *, groups: Numeric) -> str:
    """Append the addition of every expert's bias to its rows; return the sum's name."""
    elements, together = b.tensors[source].elements, b.sharding.choices.kernels.expert_kernels == "one"
    result = b.tensor("moe.biased", elements)
    if together:
        work = Elementwise(bytes_moved=TOGETHER_BYTES * elements)
        b.operator("moe.bias", forward=(work,), backward_input=(work,), reads=(source,), writes=(result,))
        return result
    # The sums of all experts in fp32, and they once more joined.
    sums = (b.tensor("moe.bias.sums", elements, 4.0), b.tensor("moe.bias.joined", elements, 4.0))
    forward, backward = EAGER_KERNELS
    b.operator(
        "moe.bias",
        forward=(Elementwise(bytes_moved=EAGER_FORWARD * elements, family="cast", kernels=forward * groups),),
        backward_input=(
            Elementwise(bytes_moved=EAGER_BACKWARD * elements, family="cast", kernels=backward * groups),
        ),
        reads=(source,),
        writes=(result,),
        temporaries=sums,
        backward_temporaries=sums,
    )
    return result
