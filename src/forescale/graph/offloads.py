"""Which of the tensors that a block keeps go to the host, by module or by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

from forescale.formula import total
from forescale.graph.operator import Block, Operator
from forescale.graph.policies import NAMED
from forescale.graph.recompute import Kept
from forescale.numeric import Numeric
from forescale.spec.strategy import KeptName, OffloadName

ATTENTION = (
    "Megatron-LM, core/transformer: attention.py, multi_latent_attention.py, moe/experts.py off_interface"
)


def _before_core(operator: Operator) -> bool:
    return (
        operator.part == "attention"
        and "core_attn" not in operator.modules
        and operator.name not in ("attention.norm", "attention.output", "attention.add")
    )


MODULES: Mapping[OffloadName, Callable[[Operator], bool]] = MappingProxyType(
    {
        "attn_norm": lambda operator: operator.name == "attention.norm",
        "qkv_linear": _before_core,
        "core_attn": lambda operator: "core_attn" in operator.modules,
        "attn_proj": lambda operator: operator.name == "attention.output",
        "mlp_norm": lambda operator: operator.name == "ffn.norm",
        "expert_fc1": lambda operator: operator.name == "moe.up",
        "moe_act": lambda operator: "moe_act" in operator.modules,
    }
)
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


def _named(block: Block, names: tuple[OffloadName, ...]) -> set[str]:
    tensors = {tensor for name in names if name in NAMED for tensor in NAMED[cast("KeptName", name)]}
    return tensors | ({block.input_name} if "decoder_layer_input" in names else set())


def _saved_inside(block: Block, names: tuple[OffloadName, ...]) -> set[str]:
    """Return the tensors that operators of the named modules save, and no other operator does."""
    linear = any(operator.name == "attention.convolution" for operator in block.operators)
    rules = [MODULES[name] for name in names if name in MODULES and not (linear and name in INSIDE_ATTENTION)]
    inside: set[str] = set()
    outside: set[str] = set()
    for operator in block.operators:
        (inside if any(rule(operator) for rule in rules) else outside).update(operator.saves)
    return inside - outside
