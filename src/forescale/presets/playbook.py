"""Memory and ratios of the Ultra-Scale Playbook: bytes per parameter, ZeRO, activations, communication to compute."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.formula import formula
from forescale.graph.parameters import count_parameters
from forescale.graph.stage import layers_per_stage
from forescale.numeric import Numeric
from forescale.presets.korthikanti2022 import (
    gpt_note,
    heads_of,
    korthikanti_replayed_layer,
)
from forescale.presets.preset import Account, StageBytes, memory_projection
from forescale.projection.result import Note, Projection
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import STORAGE_BYTES, Precision, Workload

PLAYBOOK = "Ultra-Scale Playbook (Hugging Face, 2025)"
_STATES = f"{PLAYBOOK}, Weights/grads/optimizer states memory"
_ZERO = f"{PLAYBOOK}, ZeRO, Memory usage revisited"
_RATIOS = f"{PLAYBOOK}, Formulas for compute / comms"


@formula(unit="1", source=f"{_STATES}: parameters of a transformer")
def playbook_parameters(*, hidden_size: Numeric, vocab_size: Numeric, num_layers: Numeric) -> Numeric:
    """h·v + L·(12h² + 13h) + 2h: tied embeddings, no positions, two matrices of 4h, all heads keyed."""
    layer = 12.0 * hidden_size * hidden_size + 13.0 * hidden_size
    return hidden_size * vocab_size + num_layers * layer + 2.0 * hidden_size


@formula(unit="byte", source=f"{_STATES}: m_params, m_grad, m_params_fp32, m_opt")
def playbook_state_bytes(*, parameters: Numeric, bytes_per_parameter: Numeric) -> Numeric:
    """N·bytes: 16 in fp32, or in bf16 with an fp32 copy of the weights; 20 with fp32 gradients beside."""
    return parameters * bytes_per_parameter


@formula(unit="byte", source=f"{_ZERO}: 2Ψ + 2Ψ + kΨ/N, 2Ψ + (2 + k)Ψ/N, (2 + 2 + k)Ψ/N")
def playbook_zero_bytes(*, parameters: Numeric, whole: Numeric, sharded: Numeric, shards: Numeric) -> Numeric:
    """Ψ·(whole + sharded / N): bytes per parameter that a stage keeps whole, and those that it shards."""
    return parameters * (whole + sharded / shards)


@formula(unit="byte", source=f"{PLAYBOOK}, Activations memory: m_act")
def playbook_activation_bytes(
    *,
    num_layers: Numeric,
    seq_len: Numeric,
    batch: Numeric,
    hidden_size: Numeric,
    num_heads: Numeric,
    scores: Numeric,
) -> Numeric:
    """L·seq·bs·h·(34 + 5·n_heads·seq/h); `scores` is 0 with selective recompute or flash attention."""
    attention = 5.0 * num_heads * seq_len / hidden_size
    return num_layers * seq_len * batch * hidden_size * (34.0 + scores * attention)


@formula(unit="1", source=f"{_RATIOS}: DDP, as derived there from its buckets")
def playbook_ddp_ratio(*, dp: Numeric, peak: Numeric, tokens: Numeric, bandwidth: Numeric) -> Numeric:
    """(DP − 1)·peak / (2·tokens·bandwidth·DP), per element.

    The last line there multiplies by num_params; the line above it shows that they cancel.
    """
    return (dp - 1.0) * peak / (2.0 * tokens * bandwidth * dp)


@formula(unit="1", source=f"{PLAYBOOK}, ZeRO-3; {_RATIOS}: FSDP")
def playbook_fsdp_ratio(*, dp: Numeric, peak: Numeric, tokens: Numeric, bandwidth: Numeric) -> Numeric:
    """(DP − 1)·peak / (2·seq·mbs·bandwidth), per element.

    It divides the forward's FLOPs by DP, so tokens there are those of all replicas; with tokens of one the
    ratio is DP times smaller.
    """
    return (dp - 1.0) * peak / (2.0 * tokens * bandwidth)


@formula(unit="1", source=f"{_RATIOS}: TP")
def playbook_tp_ratio(*, tp: Numeric, peak: Numeric, hidden_size: Numeric, bandwidth: Numeric) -> Numeric:
    """(TP − 1)·peak / (24·h·bandwidth), per element: one gather beside the next feed-forward."""
    return (tp - 1.0) * peak / (24.0 * hidden_size * bandwidth)


@formula(unit="1", source=f"{_RATIOS}: PP")
def playbook_pp_ratio(
    *, num_layers: Numeric, peak: Numeric, hidden_size: Numeric, bandwidth: Numeric
) -> Numeric:
    """Peak / (32·h·layers of the next stage·bandwidth), per element."""
    return peak / (32.0 * hidden_size * num_layers * bandwidth)


@formula(unit="1", source=f"{PLAYBOOK}, pipeline: r_bubble of AFAB and 1F1B, interleaved")
def playbook_bubble_ratio(*, pp: Numeric, vpp: Numeric, num_microbatches: Numeric) -> Numeric:
    """(p − 1) / (v·m)."""
    return (pp - 1.0) / (vpp * num_microbatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParameter:
    """What one parameter takes, as the playbook sums it up."""

    weights: float
    gradients: float
    accumulated: float
    """A second copy of the gradients, in fp32."""
    optimizer: float
    """fp32 weights and moments."""

    @property
    def total(self) -> float:
        """Sum."""
        return self.weights + self.gradients + self.accumulated + self.optimizer


def bytes_per_parameter(precision: Precision) -> BytesPerParameter:
    """Return 4 + 4 + 8 in full precision, 2 + 2 + 12 mixed, and 4 more with fp32 gradients."""
    weights = STORAGE_BYTES[precision.parameters]
    mixed = precision.parameters != "fp32"
    return BytesPerParameter(
        weights=weights,
        gradients=weights,
        accumulated=4.0 if mixed and precision.gradients == "fp32" else 0.0,
        optimizer=12.0 if mixed else 8.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """Memory of a layout as the Ultra-Scale Playbook counts it."""

    name: str = "playbook"
    source: str = PLAYBOOK

    def project(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Projection:
        """Project memory; notes hold the playbook's ratios of communication to compute."""
        return memory_projection(
            self.account(model, cluster, strategy, workload),
            preset=self.name,
            model=model,
            cluster=cluster,
            strategy=strategy,
            workload=workload,
        )

    def account(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage: N / (tp·pp) parameters each, sharded by ZeRO, and activations."""
        total = float(
            playbook_parameters(
                hidden_size=float(model.hidden_size),
                vocab_size=float(model.vocab_size),
                num_layers=float(model.num_layers),
            )
        )
        layers = strategy.stage_layers or tuple(
            len(rank) for rank in layers_per_stage(model.num_layers, strategy.pp, strategy.vpp)
        )
        own = total / (strategy.tp * strategy.pp)
        states = zero_states(own, bytes_per_parameter(workload.precision), strategy)
        stages = tuple(
            StageBytes(
                num_layers=count,
                parameters=own,
                **states,
                activations=_activations(model, strategy, workload, count, self.name),
            )
            for count in layers
        )
        return Account(
            stages=stages,
            total_parameters=total,
            notes=(
                _parameter_note(model, total),
                *gpt_note(model),
                *_ratios(model, cluster, strategy, workload, min(layers)),
            ),
        )


def zero_states(parameters: float, each: BytesPerParameter, strategy: Strategy) -> dict[str, float]:
    """Return bytes of weights, gradients and optimizer under ZeRO: stage 1 shards the last, 2 two, 3 all."""
    shards = float(strategy.dp_shard)
    groups = {
        "weights": (each.weights, 3),
        "gradients": (each.gradients + each.accumulated, 2),
        "optimizer": (each.optimizer, 1),
    }
    return {
        name: float(
            playbook_zero_bytes(
                parameters=parameters,
                whole=0.0 if strategy.zero >= stage else size,
                sharded=size if strategy.zero >= stage else 0.0,
                shards=shards,
            )
        )
        for name, (size, stage) in groups.items()
    }


def _activations(model: Model, strategy: Strategy, workload: Workload, count: int, preset: str) -> float:
    """Return bytes of a stage: its layers, for p micro-batches, over the ranks that split the sequence or heads."""
    num_microbatches = workload.global_batch_size / (strategy.dp * strategy.micro_batch_size)
    held = min(float(strategy.pp), num_microbatches)
    split = float(strategy.tp * strategy.cp)
    recompute = strategy.recompute
    selective = recompute.granularity == "selective" and "core_attn" in recompute.modules
    replayed = 0
    if recompute.granularity == "full":
        replayed = count if recompute.num_layers is None else min(recompute.num_layers * strategy.vpp, count)
    size = {
        "seq_len": float(workload.seq_len),
        "hidden_size": float(model.hidden_size),
    }
    batch = float(strategy.micro_batch_size)
    kept = playbook_activation_bytes(
        num_layers=float(count - replayed),
        batch=batch,
        num_heads=float(heads_of(model, preset=preset)),
        scores=0.0 if selective or strategy.flash_attention else 1.0,
        **size,
    )
    inputs = korthikanti_replayed_layer(micro_batch_size=batch, sequence_ranks=1.0, **size)
    return float(kept + replayed * inputs) * held / split


def _parameter_note(model: Model, total: float) -> Note:
    counted = count_parameters(model).total
    text = (
        f"h·v + L·(12h² + 13h) + 2h gives {total:,.0f} parameters; {model.name} has {counted:,} "
        f"({counted / total - 1.0:+.1%}): the formula ties embeddings and has no experts, gates or grouped heads"
    )
    return Note(topic="parameters", text=text)


def _ratios(
    model: Model, cluster: Cluster, strategy: Strategy, workload: Workload, num_layers: int
) -> tuple[Note, ...]:
    """Return the playbook's ratios as notes, with bandwidth in bf16 elements per second."""
    peak = cluster.device.matrix_flops.bf16 or cluster.device.matrix_flops.fp16
    if peak is None:
        return ()
    fast, slow = (tier.bandwidth / 2.0 for tier in (cluster.tiers[0], cluster.tiers[-1]))
    hidden = float(model.hidden_size)
    tokens = float(strategy.micro_batch_size * workload.seq_len)
    found: list[tuple[str, str, Numeric]] = []
    data = {"dp": float(strategy.dp), "peak": peak, "bandwidth": slow}
    if strategy.dp > 1 and strategy.zero == 3:
        every = tokens * strategy.dp
        found.append(("data_comm", "ZeRO-3 gather to forward", playbook_fsdp_ratio(tokens=every, **data)))
    elif strategy.dp > 1:
        steps = workload.global_batch_size / (strategy.dp * strategy.micro_batch_size)
        ratio = playbook_ddp_ratio(tokens=tokens * steps, **data)
        found.append(("data_comm", "gradient all-reduce to backward", ratio))
    if strategy.tp > 1:
        ratio = playbook_tp_ratio(tp=float(strategy.tp), peak=peak, hidden_size=hidden, bandwidth=fast)
        found.append(("tensor_comm", "gather to feed-forward", ratio))
    if strategy.pp > 1:
        ratio = playbook_pp_ratio(num_layers=float(num_layers), peak=peak, hidden_size=hidden, bandwidth=slow)
        found.append(("pipeline_comm", "send to the next stage's forward", ratio))
        share = playbook_bubble_ratio(
            pp=float(strategy.pp),
            vpp=float(strategy.vpp),
            num_microbatches=workload.global_batch_size / (strategy.dp * strategy.micro_batch_size),
        )
        found.append(("bubble", "bubble to ideal time", share))
    return tuple(Note(topic=topic, text=f"{text}: ratio {float(value):.3g}") for topic, text, value in found)


PLAYBOOK_2025 = Playbook()
