"""Recompute and offload: operators replayed in backward, tensors no longer kept, tensors kept by the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from forescale.errors import listed, required_with
from forescale.formula import total
from forescale.graph.operator import NARROWEST_GRADIENT_BYTES, STASH, Block, Operator, Tensor
from forescale.graph.ops import AttentionCore, Collective, Gemm, GroupedGemm
from forescale.numeric import Numeric, maximum
from forescale.spec.layout import KeptName, OffloadName, Recompute, RematPolicy
from forescale.struct import Struct

Shares = Mapping[str, float]
QKV: Shares = {f"attention.{name}": 1.0 for name in ("query", "key", "value")}
CORE = "attention.core_output"
CONTEXT: Shares = {CORE: 1.0, "attention.softmax_statistics": 1.0}
OUT_PROJ: Shares = {"attention.result": 1.0}
MLP_IN: Shares = {"ffn.up": 1.0, "moe.up": 1.0, "shared.up": 1.0}
MLP_OUT: Shares = {"ffn.result": 1.0, "moe.output": 1.0, "shared.result": 1.0}
PER_OPERATOR: Shares = {
    "attention.query": 1.0,
    "attention.value": 1.0,
    **CONTEXT,
    "ffn.up": 0.5,
    "ffn.result": 1.0,
    "moe.up": 0.5,
    "moe.output": 1.0,
    "shared.up": 0.5,
    "shared.result": 1.0,
}
"""Every second product is kept in the order q, k, v, out, gate, up, down, and attention always: of the products
q, v, gate and down remain (torchtitan, distributed/activation_checkpoint.py). Compiled, what no gradient needs is
not kept all the same: the result of down is only added to the residual. Where cuDNN computes attention (SDPA on
Blackwell), torchtitan keeps its output since b39377f9f of 1 December 2025 only; before, products alone."""
COMPILED: Shares = {name: share for name, share in PER_OPERATOR.items() if name not in MLP_OUT}

POLICIES: Mapping[RematPolicy, Shares] = {
    "minimal": {**QKV, **OUT_PROJ, **MLP_IN, **MLP_OUT},
    "minimal_with_context": {**QKV, **CONTEXT, **OUT_PROJ, **MLP_IN, **MLP_OUT},
    "save_dot_with_context_except_mlp": {**QKV, **CONTEXT, **OUT_PROJ},
    "save_dot_except_mlpwi": {**QKV, **OUT_PROJ, **MLP_OUT},
    "save_dot_except_mlp": {**QKV, **OUT_PROJ},
    "save_qkv_proj": QKV,
    "save_out_proj": OUT_PROJ,
    "torch_per_op": PER_OPERATOR,
    "torch_per_op_compiled": COMPILED,
    "torch_per_mm_compiled": {name: share for name, share in COMPILED.items() if name not in CONTEXT},
    "custom": {},
}
"""Tensors and shares by policy; the JAX ones follow MaxText, layers/decoders.py get_remat_policy."""

NAMED: Mapping[KeptName, Shares] = {
    "query_proj": {"attention.query": 1.0},
    "key_proj": {"attention.key": 1.0},
    "value_proj": {"attention.value": 1.0},
    "context": CONTEXT,
    "out_proj": OUT_PROJ,
    "mlpwi": MLP_IN,
    "mlpwo": MLP_OUT,
}
"""Tensors by the names that MaxText's policy custom is told (configs/base.yml)."""


def shares_of(recompute: Recompute) -> Shares:
    """Return the tensors that a policy keeps, and how much of each."""
    if recompute.policy is None:
        raise required_with("a name", "recompute by policy", fix=f"give one of {listed(POLICIES)}")
    named = {tensor: share for name in recompute.kept for tensor, share in NAMED[name].items()}
    return {**POLICIES[recompute.policy], **named}


def _kept_of(block: Block, recompute: Recompute) -> Shares:
    """Return the tensors of a block that a policy keeps, and how much of each.

    PyTorch's policies keep what the attention kernel writes: where sequence shards are exchanged for head shards, that
    is the output before it is exchanged back.
    """
    shares, own = shares_of(recompute), f"{CORE}.exchanged"
    if not str(recompute.policy).startswith("torch_") or own not in block.tensors:
        return shares
    return {own if name == CORE else name: share for name, share in shares.items()}


NO_RECOMPUTE = Recompute()
OUTPUT_DISCARDED = frozenset({"layernorm", "moe_act", "mla_up_proj"})
"""Modules whose result is dropped too, though the next linear layer saved it (Megatron-LM's output-discarding
checkpoint, for which narrow layers save the original input and make their narrow copies again); core_attn, mlp,
moe and shared_experts are plain checkpoints whose output stays."""


class Kept(Struct, frozen=True, kw_only=True):
    """What one block keeps per micro-batch, and which operators run forward a second time."""

    tensors: tuple[Tensor, ...]
    dropped: tuple[Tensor, ...]
    """Tensors that backward needs and a replay makes again."""
    replays: tuple[tuple[Operator, ...], ...]
    """Groups of operators that are replayed together, in forward order."""

    @property
    def replayed(self) -> tuple[Operator, ...]:
        """All operators that run a second time."""
        return tuple(operator for group in self.replays for operator in group)

    @property
    def num_bytes(self) -> Numeric:
        """Bytes kept per micro-batch."""
        return total(
            {tensor.name: tensor.num_bytes for tensor in self.tensors}, name="kept_bytes", unit="byte"
        )


def keep(block: Block, recompute: Recompute) -> Kept:
    """Apply a recompute policy to a block.

    `full` keeps the block's input and replays all of it. `selective` replays the operators of the named
    modules: what only they save is dropped, what they read from outside is kept. `policy` keeps the input and
    named results, and replays what the rest is made of.
    """
    everything = _saved(block.operators)
    if recompute.granularity == "none" or not everything:  # nothing to keep: no backward comes here
        return _kept(block, everything, everything, ())
    if recompute.granularity == "full" and block.recorded:
        again = tuple(operator for operator in block.operators if operator.replayed)
        return _kept(block, everything, (block.input_name,), (again,))
    if recompute.granularity == "full" and recompute.stops_early:
        return _by_shares(block, everything, {})
    if recompute.granularity == "full":
        return _kept(block, everything, (block.input_name,), (block.operators,))
    if recompute.granularity == "policy":
        return _by_shares(block, everything, _kept_of(block, recompute))
    modules = frozenset(recompute.modules)
    replayed = tuple(operator for operator in block.operators if modules.intersection(operator.modules))
    others = tuple(operator for operator in block.operators if not modules.intersection(operator.modules))
    read = fed(replayed)
    discarded = {
        name
        for operator in replayed
        if modules & OUTPUT_DISCARDED & set(operator.modules)
        for name in operator.writes
    } - set(read)
    discarded |= {tensor.name for tensor in block.tensors.values() if tensor.copy_of in discarded}
    kept = tuple(dict.fromkeys(name for name in (*_saved(others), *read) if name not in discarded))
    return _kept(block, everything, kept, _groups(replayed, modules))


def awaited(block: Block) -> tuple[tuple[str, Numeric], ...]:
    """Return what weight gradients that are passes of their own wait with, by name [byte].

    Inputs of products with trained weights, and gradients of their results; all else goes with the input gradient (Qi
    et al. 2023, arXiv:2401.10241, section 2.1: 32 of 34 + 5as/h bytes). Where ranks scatter what they sum, the gradient
    is that of the whole, and at one rank that of the result. Gradients wait in the type in which inputs are kept (the
    8-bit one of Transformer Engine's WeightGradStore).
    """
    waiting: dict[str, Numeric] = {}
    scattered = {
        read: written
        for operator in block.operators
        if any(isinstance(item, Collective) and item.kind == "reduce_scatter" for item in operator.forward)
        for read, written in zip(operator.reads, operator.writes, strict=False)
    }
    for operator in block.operators:
        if any(isinstance(item, Gemm | GroupedGemm) for item in operator.backward_weight):
            waiting |= {name: block.tensors[name].num_bytes for name in operator.saves}
            sizes = [block.tensors[name].element_bytes for name in operator.saves]
            part = min((1.0, *(size / NARROWEST_GRADIENT_BYTES for size in sizes)))
            for name in operator.writes:
                result = block.tensors[scattered.get(name, name)]
                size = maximum(block.tensors[name].gradient_bytes, result.gradient_bytes)
                waiting[f"∂{name}"] = part * size
    return tuple(waiting.items())


def _by_shares(block: Block, everything: tuple[str, ...], listed: Mapping[str, float]) -> Kept:
    """Keep the input and what is listed, and replay what the rest is made of."""
    shares = {block.input_name: 1.0} | {
        name: share for name, share in listed.items() if name in block.tensors
    }
    whole = frozenset(name for name, share in shares.items() if share == 1.0)
    replayed = needed(block, whole)
    kept = tuple(
        replace(block.tensors[name], elements=block.tensors[name].elements * share)
        for name, share in shares.items()
    )
    dropped = tuple(block.tensors[name] for name in everything if name not in whole)
    group = tuple(operator for operator in block.operators if operator.name in replayed)
    return Kept(tensors=kept, dropped=dropped, replays=(group,) if group else ())


def needed(block: Block, names: frozenset[str]) -> frozenset[str]:
    """Return the names of the operators that make what backward needs, given the tensors that are `names`."""
    missing = [name for name in _saved(block.operators) if name not in names]
    result: set[str] = set()
    seen = set(names)
    while missing:
        name = missing.pop()
        if name in seen:
            continue
        seen.add(name)
        for operator in makers(block, name):
            result.add(operator.name)
            missing += operator.reads
    return frozenset(result)


def makers(block: Block, name: str) -> tuple[Operator, ...]:
    """Return the operators that write a tensor, or where none does, the one that keeps it as its own."""
    writers = tuple(operator for operator in block.operators if name in operator.writes)
    return writers or tuple(operator for operator in block.operators if name in operator.saves)[:1]


def _kept(
    block: Block,
    everything: tuple[str, ...],
    kept: tuple[str, ...],
    replays: tuple[tuple[Operator, ...], ...],
) -> Kept:
    return Kept(
        tensors=tuple(block.tensors[name] for name in kept),
        dropped=tuple(block.tensors[name] for name in everything if name not in kept),
        replays=replays,
    )


def _groups(replayed: tuple[Operator, ...], names: frozenset[str]) -> tuple[tuple[Operator, ...], ...]:
    """Group replayed operators by their outermost wanted module; each norm stands alone."""
    groups: dict[str, list[Operator]] = {}
    for operator in replayed:
        module = next(name for name in operator.modules if name in names)
        groups.setdefault(operator.name if module == "layernorm" else module, []).append(operator)
    return tuple(tuple(group) for group in groups.values())


def fed(operators: tuple[Operator, ...]) -> tuple[str, ...]:
    """Return the tensors that operators read before any of them wrote it."""
    made: set[str] = set()
    read: dict[str, None] = {}
    for operator in operators:
        read.update(dict.fromkeys(name for name in operator.reads if name not in made))
        made.update(operator.writes)
    return tuple(read)


def _saved(operators: tuple[Operator, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for operator in operators for name in operator.saves))


ATTENTION = (
    "Megatron-LM, core/transformer: attention.py, multi_latent_attention.py, moe/experts.py off_interface"
)


def _before_core(operator: Operator) -> bool:
    return (
        operator.part == "attention"
        and "core_attn" not in operator.modules
        and operator.name not in ("attention.norm", "attention.output", "attention.add")
    )


MODULES: Mapping[OffloadName, Callable[[Operator], bool]] = {
    "attn_norm": lambda operator: operator.name == "attention.norm",
    "qkv_linear": _before_core,
    "core_attn": lambda operator: "core_attn" in operator.modules,
    "attn_proj": lambda operator: operator.name == "attention.output",
    "mlp_norm": lambda operator: operator.name == "ffn.norm",
    "expert_fc1": lambda operator: operator.name == "moe.up",
    "moe_act": lambda operator: "moe_act" in operator.modules,
}
"""Operators of Megatron-LM's offload modules: everything that they save goes, unless an operator elsewhere saves it
too. Its gated delta nets, and other linear attention, have none of attention's."""
INSIDE_ATTENTION = frozenset({"qkv_linear", "core_attn", "attn_proj"})


def offloaded_bytes(block: Block, kept: Kept, names: tuple[OffloadName, ...]) -> Numeric:
    """Return the bytes of what a block keeps that go to the host, per micro-batch."""
    if not names:
        return 0.0
    gone = _named(block, names) | _saved_inside(block, names)
    sizes = {tensor.name: tensor.num_bytes for tensor in kept.tensors if tensor.name in gone}
    return total(sizes, name="offloaded_bytes", unit="byte") if sizes else 0.0


def stashed_bytes(block: Block, kept: Kept) -> Numeric:
    """Return the bytes of what the fused products of a block's routed experts keep, per micro-batch."""
    if all(operator.name != STASH for operator in block.operators):
        return 0.0
    names = {name for operator in block.operators if _in_experts(operator) for name in operator.saves}
    sizes = {tensor.name: tensor.num_bytes for tensor in kept.tensors if tensor.name in names}
    return total(sizes, name="stashed_bytes", unit="byte") if sizes else 0.0


def _in_experts(operator: Operator) -> bool:
    return operator.name in ("moe.up", "moe.down") or "moe_act" in operator.modules


def _named(block: Block, names: tuple[OffloadName, ...]) -> set[str]:
    tensors = {tensor for name in names if name in NAMED for tensor in NAMED[cast("KeptName", name)]}
    return tensors | ({block.input_name} if "decoder_layer_input" in names else set())


def _saved_inside(block: Block, names: tuple[OffloadName, ...]) -> set[str]:
    """Return the tensors that operators of the named modules save, and no other operator does."""
    work = (item for operator in block.operators for item in operator.forward)
    recurrent = any(isinstance(item, AttentionCore) and item.chunked for item in work)
    rules = [
        MODULES[name] for name in names if name in MODULES and not (recurrent and name in INSIDE_ATTENTION)
    ]
    inside: set[str] = set()
    outside: set[str] = set()
    for operator in block.operators:
        (inside if any(rule(operator) for rule in rules) else outside).update(operator.saves)
    return inside - outside
