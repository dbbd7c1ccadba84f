"""The communication of Primus's performance projection: gradient all-reduce and expert all-to-all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.primus.collectives import Network
from forescale.presets.primus.components import DOCUMENT
from forescale.question import Note
from forescale.spec.model import DenseFfn, Model, MoeFfn
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload

AllReduce = Callable[[float, int, Network], float]
"""Seconds of an all-reduce of so many bytes among so many ranks."""
_GRADIENT_BYTES = 4.0
_TWO_NODE_SHARE = 0.5
_EXAMPLE = f"{DOCUMENT}, Example Output and Example Calculation"


@formula(unit="1", source=f"{_EXAMPLE}: gradient_allreduce message")
def primus_gradient_parameters(
    *, num_layers: Numeric, width: Numeric, hidden_size: Numeric, model_ranks: Numeric
) -> Numeric:
    """Layers·width·H over tp·pp (and ep for experts): 4·H per attention, 3·FFN per feed-forward.

    Grouped queries, routers, norms and the vocabulary are left out, so attention counts too much.
    """
    return num_layers * width * hidden_size / model_ranks


@formula(unit="s", source=f"{_EXAMPLE}: expert all-reduce, 483.2 ms across 2 nodes")
def primus_expert_all_reduce(*, num_bytes: Numeric, replicas: Numeric, bandwidth: Numeric) -> Numeric:
    """2·bytes·min((r − 1)/r, 1/2) / one NIC: the share is held at that of two nodes.

    A ring over r nodes moves (r − 1)/r per pass: beyond two nodes the formula is up to 2 times too fast.
    """
    return 2.0 * num_bytes * min((replicas - 1.0) / replicas, _TWO_NODE_SHARE) / bandwidth


@formula(unit="byte", source=f"{DOCUMENT}, Expert Parallelism: All-to-All Message Size")
def primus_dispatch_bytes(*, tokens: Numeric, hidden_size: Numeric, top_k: Numeric) -> Numeric:
    """tokens·H·top_k·2 (bf16)."""
    return tokens * hidden_size * top_k * 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraffic:
    """One step's gradient all-reduce on a rank."""

    expert_bytes: float
    other_bytes: float
    expert_s: float
    other_s: float
    expert_replicas: float


def gradient_traffic(
    model: Model, strategy: Strategy, network: Network, all_reduce: AllReduce
) -> GradientTraffic:
    """Return bytes and seconds of the gradient all-reduce, in fp32, as Primus approximates parameters."""
    ranks, hidden = float(strategy.tp * strategy.pp), float(model.hidden_size)
    expert = other = 0.0
    for layer in model.layers:
        width = 4.0 * hidden
        if isinstance(layer.ffn, MoeFfn):
            expert += float(
                primus_gradient_parameters(
                    num_layers=1.0,
                    width=3.0 * layer.ffn.ffn_hidden_size * layer.ffn.num_experts,
                    hidden_size=hidden,
                    model_ranks=ranks * strategy.ep,
                )
            )
        elif isinstance(layer.ffn, DenseFfn):
            width += 3.0 * layer.ffn.ffn_hidden_size
        other += float(
            primus_gradient_parameters(num_layers=1.0, width=width, hidden_size=hidden, model_ranks=ranks)
        )
    replicas = float(max(strategy.dp // strategy.ep, 1))
    apart = strategy.ep > 1 and expert > 0.0 and replicas > 1
    expert_bytes, other_bytes = expert * _GRADIENT_BYTES, other * _GRADIENT_BYTES
    if not apart:
        expert_bytes, other_bytes = 0.0, other_bytes + expert_bytes
    expert_s = primus_expert_all_reduce(
        num_bytes=expert_bytes, replicas=replicas, bandwidth=network.pod_bandwidth
    )
    other_s = all_reduce(other_bytes, strategy.dp, network)
    return GradientTraffic(
        expert_bytes=expert_bytes,
        other_bytes=other_bytes,
        expert_s=float(expert_s),
        other_s=other_s,
        expert_replicas=replicas,
    )


def communication_notes(
    model: Model, strategy: Strategy, workload: Workload, network: Network | None, all_reduce: AllReduce
) -> tuple[Note, ...]:
    """Return what Primus says of communication on this layout, and where that is wrong."""
    notes = []
    if network is not None and strategy.dp > 1:
        notes.append(
            Note(
                topic="data_comm",
                text=_reduction_text(gradient_traffic(model, strategy, network, all_reduce)),
            )
        )
    if model.moe is not None and strategy.ep > 1:
        tokens = strategy.micro_batch_size * workload.seq_len / strategy.tp
        size = float(
            primus_dispatch_bytes(
                tokens=tokens, hidden_size=float(model.hidden_size), top_k=float(model.moe.top_k)
            )
        )
        notes.append(
            Note(
                topic="expert_comm",
                text=f"its all-to-all message is {size / 2**20:.2f} MB per layer; the time it prints is measured on "
                "one node, not computed",
            )
        )
    return tuple(notes)


def _reduction_text(traffic: GradientTraffic) -> str:
    together = (traffic.expert_s + traffic.other_s) * 1e3
    how = "4·H² per attention, no vocabulary"
    if traffic.expert_bytes == 0.0:
        return f"its gradient all-reduce takes {together:.1f} ms ({how}; experts, if any, as if all replicas held them)"
    return (
        f"its gradient all-reduce takes {together:.1f} ms: experts {traffic.expert_s * 1e3:.1f} ms over "
        f"{traffic.expert_replicas:.0f} replicas, their share held at that of two nodes (too fast beyond), the rest "
        f"{traffic.other_s * 1e3:.1f} ms ({how})"
    )
