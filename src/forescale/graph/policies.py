"""Rematerialisation policies: which results a layer keeps, and how much of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from forescale.spec.strategy import KeptName, Recompute, RematPolicy

Shares = Mapping[str, float]
QKV: Shares = {f"attention.{name}": 1.0 for name in ("query", "key", "value")}
CONTEXT: Shares = {"attention.core_output": 1.0, "attention.softmax_statistics": 1.0}
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
not kept all the same: the result of down is only added to the residual."""

POLICIES: Mapping[RematPolicy, Shares] = MappingProxyType(
    {
        "minimal": {**QKV, **OUT_PROJ, **MLP_IN, **MLP_OUT},
        "minimal_with_context": {**QKV, **CONTEXT, **OUT_PROJ, **MLP_IN, **MLP_OUT},
        "save_dot_with_context_except_mlp": {**QKV, **CONTEXT, **OUT_PROJ},
        "save_dot_except_mlpwi": {**QKV, **OUT_PROJ, **MLP_OUT},
        "save_dot_except_mlp": {**QKV, **OUT_PROJ},
        "save_qkv_proj": QKV,
        "save_out_proj": OUT_PROJ,
        "torch_per_op": PER_OPERATOR,
        "torch_per_op_compiled": {name: share for name, share in PER_OPERATOR.items() if name not in MLP_OUT},
        "custom": {},
    }
)
"""Tensors and shares by policy; the JAX ones follow MaxText, layers/decoders.py get_remat_policy."""

NAMED: Mapping[KeptName, Shares] = MappingProxyType(
    {
        "query_proj": {"attention.query": 1.0},
        "key_proj": {"attention.key": 1.0},
        "value_proj": {"attention.value": 1.0},
        "context": CONTEXT,
        "out_proj": OUT_PROJ,
        "mlpwi": MLP_IN,
        "mlpwo": MLP_OUT,
    }
)
"""Tensors by the names that MaxText's policy custom is told (configs/base.yml)."""


def shares_of(recompute: Recompute, policy: RematPolicy) -> Shares:
    """Return the tensors that a policy keeps, and how much of each."""
    named = {tensor: share for name in recompute.kept for tensor, share in NAMED[name].items()}
    return {**POLICIES[policy], **named}
