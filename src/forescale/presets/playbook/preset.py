"""The account of the Ultra-Scale Playbook: memory of a layout, and its ratios as notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.mesh import Group, groups, order_of
from forescale.files import packaged
from forescale.formula import as_term, formula, number_of
from forescale.graph.counts import count_parameters
from forescale.graph.sharding import split_layout
from forescale.numeric import Numeric
from forescale.presets.korthikanti2022 import drops_scores, gpt_note, heads_of, korthikanti_replayed_layer
from forescale.presets.preset import (
    Account,
    Preset,
    StageBytes,
    layers_of,
    memory_projection,
    microbatches_of,
    recorded,
    replayed_layers,
)
from forescale.projection.result import Communication, Projection
from forescale.question import Note, Question
from forescale.spec.attention import FullAttention
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.workload import STORAGE_BYTES, Precision, Workload, moment_bytes
from forescale.struct import Struct

PLAYBOOK = "Ultra-Scale Playbook (Hugging Face, 2025)"
BF16 = 2.0
"""Bytes of an element."""
BUCKET_BYTES = 25e6
"""Bytes of a bucket of gradients where a layout has no size: PyTorch's bucket_cap_mb, as the playbook quotes it."""
_RATIOS = f"{PLAYBOOK}, Formulas for compute / comms"
_STATES = f"{PLAYBOOK}, Weights/grads/optimizer states memory"
_ZERO = f"{PLAYBOOK}, ZeRO, Memory usage revisited"


@formula(unit="1", source=f"{_STATES}: parameters of a transformer")
def playbook_parameters(*, hidden_size: Numeric, vocab_size: Numeric, num_layers: Numeric) -> Numeric:
    """h·v + L·(12h² + 13h) + 2h: tied embeddings, no positions, two matrices of 4h, all heads keyed."""
    layer = 12.0 * hidden_size * hidden_size + 13.0 * hidden_size
    return hidden_size * vocab_size + num_layers * layer + 2.0 * hidden_size


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


@formula(
    unit="1",
    source=f"{PLAYBOOK}, Ring Attention: keys and values travel while one chunk's scores are computed",
)
def playbook_cp_ratio(
    *,
    cp: Numeric,
    peak: Numeric,
    hidden_size: Numeric,
    kv_width: Numeric,
    seq_len: Numeric,
    bandwidth: Numeric,
) -> Numeric:
    """CP·peak·kv_width / (4·seq·h·bandwidth), per element, nothing masked.

    The playbook describes the overlap and leaves the formula out: a step of the ring sends mbs·seq/CP tokens of
    `kv_width` elements, keys and values together, behind 4·mbs·(seq/CP)²·h FLOP of scores and their product.
    """
    return cp * peak * kv_width / (4.0 * seq_len * hidden_size * bandwidth)


@formula(unit="parameter", source=f"{_RATIOS}: transformer block, 16h² with a gate, else 12h²")
def playbook_block_parameters(*, hidden_size: Numeric, squares: Numeric) -> Numeric:
    """squares·h²: 4 of attention, 12 of a gated feed-forward, 8 without a gate."""
    return squares * hidden_size * hidden_size


@formula(unit="byte", source=f"{_RATIOS}: DDP, total_comms_in_rank_per_step")
def playbook_ddp_volume(
    *, block: Numeric, num_layers: Numeric, model_ranks: Numeric, element_bytes: Numeric
) -> Numeric:
    """Block·layers·bytes, over the ranks that split a block."""
    return block * num_layers * element_bytes / model_ranks


@formula(unit="byte", source=f"{_RATIOS}: FSDP, payload of a gather or a reduction of one block")
def playbook_fsdp_payload(
    *, block: Numeric, dp: Numeric, model_ranks: Numeric, element_bytes: Numeric
) -> Numeric:
    """Block·bytes/DP, over the ranks that split a block."""
    return block * element_bytes / (model_ranks * dp)


@formula(unit="byte", source=f"{_RATIOS}: TP, payload: activations of a rank")
def playbook_tp_payload(
    *, seq_len: Numeric, batch: Numeric, hidden_size: Numeric, tp: Numeric, element_bytes: Numeric
) -> Numeric:
    """seq·mbs·h·bytes/TP; with TP 1, what a pipeline stage sends to the next."""
    return seq_len * batch * hidden_size * element_bytes / tp


@formula(unit="byte", source=f"{_RATIOS}: FSDP 3 a layer, TP 8 a layer, PP 4, in each of gas micro-batches")
def playbook_volume(
    *, payload: Numeric, messages: Numeric, layers: Numeric, num_microbatches: Numeric
) -> Numeric:
    """Messages·layers·micro-batches·payload of a rank and step."""
    return messages * layers * num_microbatches * payload


class Traffic(Struct, frozen=True, kw_only=True):
    """What one kind of parallelism sends, as terms of the playbook's formulas."""

    part: str
    """Part of the step that it is about, such as "tensor_comm"."""
    name: str
    """What is compared with what."""
    ratio: Numeric
    payload: Numeric | None = None
    """Bytes of one message of a rank; None where the playbook has no formula."""
    volume: Numeric | None = None
    """Bytes that a rank sends in a step."""

    @property
    def quantities(self) -> dict[str, Numeric]:
        """Terms by the names that `explain` takes."""
        values = {"ratio": self.ratio, "payload": self.payload, "volume": self.volume}
        return {f"{name}.{self.part}": value for name, value in values.items() if value is not None}

    @property
    def row(self) -> Communication:
        """Plain numbers."""
        sizes = (None if value is None else number_of(value) for value in (self.payload, self.volume))
        return Communication(self.part, self.name, number_of(self.ratio), *sizes)


class Ratio(Struct, frozen=True, kw_only=True):
    """One ratio of a layout."""

    part: str
    """Part of the step that it speaks of, such as "tensor_comm"."""
    name: str
    """What is compared with what."""
    value: float


def playbook_ratios(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, *, num_layers: int
) -> tuple[Ratio, ...]:
    """Return the ratios of a layout, `num_layers` on a stage; bandwidth in bf16 elements per second and rank.

    Collectives take the links of all ranks of a group that share a tier, so that groups of whole nodes use all ports
    of these; a message from one rank to the next takes those of one.
    """
    items = playbook_traffic(model, cluster, layout, workload, num_layers=num_layers)
    return tuple(Ratio(part=item.part, name=item.name, value=number_of(item.ratio)) for item in items)


def playbook_traffic(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, *, num_layers: int
) -> tuple[Traffic, ...]:
    """Return the ratios, messages and volumes of a layout, `num_layers` on a stage."""
    peak = cluster.device.matrix_flops.bf16 or cluster.device.matrix_flops.fp16
    if peak is None:
        return ()
    base = recorded(hidden_size=model.hidden_size)
    base["peak"] = as_term(peak, name="peak", unit="FLOP/s")
    placed = groups(split_layout(layout)[0], order_of(layout))
    result: list[Traffic] = []
    if layout.dp > 1:
        fast = ring_bandwidth(cluster, placed["dp"])
        result.append(_of_data(model, layout, workload, num_layers, base | _rate(fast)))
    if layout.tp > 1:
        fast = ring_bandwidth(cluster, placed["tp"])
        result.append(_of_tensors(layout, workload, num_layers, base | _rate(fast)))
    width = _kv_width(model)
    if layout.cp > 1 and width is not None:
        port = _port_bandwidth(cluster, layout.tp * layout.cp)
        numbers = recorded(cp=layout.cp, kv_width=width, seq_len=workload.seq_len) | _rate(port)
        ratio = playbook_cp_ratio(**base, **numbers)
        result.append(Traffic(part="context_comm", name="keys and values to a step of the ring", ratio=ratio))
    if layout.pp > 1:
        port = _port_bandwidth(cluster, layout.num_devices)
        result += _of_stages(layout, workload, num_layers, base | _rate(port))
    return tuple(result)


def _rate(bandwidth: float) -> dict[str, Any]:
    """Return a bandwidth in bf16 elements."""
    return {"bandwidth": as_term(bandwidth, name="bandwidth", unit="element/s")}


def _activation_bytes(layout: Layout, workload: Workload, hidden_size: Numeric, tp: int) -> Numeric:
    """Return the bytes of what a rank sends of a layer's activations."""
    sizes = recorded(seq_len=workload.seq_len, batch=layout.micro_batch_size, tp=tp, element_bytes=BF16)
    return playbook_tp_payload(hidden_size=hidden_size, **sizes)


def _of_tensors(layout: Layout, workload: Workload, num_layers: int, base: dict[str, Numeric]) -> Traffic:
    """Return what tensor parallelism sends of one layer before, or after, each of its products."""
    payload = _activation_bytes(layout, workload, base["hidden_size"], layout.tp)
    counts = recorded(messages=8, layers=num_layers, num_microbatches=microbatches_of(layout, workload))
    return Traffic(
        part="tensor_comm",
        name="gather to feed-forward",
        ratio=playbook_tp_ratio(**recorded(tp=layout.tp), **base),
        payload=payload,
        volume=playbook_volume(payload=payload, **counts),
    )


def _of_stages(
    layout: Layout, workload: Workload, num_layers: int, base: dict[str, Numeric]
) -> tuple[Traffic, Traffic]:
    """Return what a pipeline stage sends to the next, and the bubble."""
    payload = _activation_bytes(layout, workload, base["hidden_size"], 1)
    count = recorded(num_microbatches=microbatches_of(layout, workload))
    sent = Traffic(
        part="pipeline_comm",
        name="send to the next stage's forward",
        ratio=playbook_pp_ratio(**recorded(num_layers=num_layers), **base),
        payload=payload,
        volume=playbook_volume(payload=payload, **recorded(messages=4, layers=1), **count),
    )
    share = playbook_bubble_ratio(**recorded(pp=layout.pp, vpp=layout.vpp), **count)
    return sent, Traffic(part="bubble", name="bubble to ideal time", ratio=share)


def _of_data(
    model: Model, layout: Layout, workload: Workload, num_layers: int, base: dict[str, Numeric]
) -> Traffic:
    """Return what data parallelism sends, and the pass that hides it."""
    rates = {name: base[name] for name in ("peak", "bandwidth")} | recorded(dp=layout.dp)
    tokens, count = float(layout.micro_batch_size * workload.seq_len), microbatches_of(layout, workload)
    block = block_parameters(model, base["hidden_size"])
    if layout.zero == 3:
        sizes = recorded(dp=layout.dp, model_ranks=layout.tp, element_bytes=STORAGE_BYTES["fp32"])
        payload = playbook_fsdp_payload(block=block, **sizes)
        counts = recorded(messages=3, layers=num_layers, num_microbatches=count)
        return Traffic(
            part="data_comm",
            name="ZeRO-3 gather to forward",
            ratio=playbook_fsdp_ratio(**recorded(tokens=tokens * layout.dp), **rates),
            payload=payload,
            volume=playbook_volume(payload=payload, **counts),
        )
    size = layout.kernels.bucket_elements * BF16 or BUCKET_BYTES
    bucket: Any = as_term(size, name="bucket", unit="byte")
    sizes = recorded(num_layers=num_layers, model_ranks=layout.tp, element_bytes=BF16)
    return Traffic(
        part="data_comm",
        name="gradient all-reduce to backward",
        ratio=playbook_ddp_ratio(**recorded(tokens=tokens * count), **rates),
        payload=bucket,
        volume=playbook_ddp_volume(block=block, **sizes),
    )


def block_parameters(model: Model, hidden_size: Numeric) -> Numeric:
    """Return the parameters of a block: 16h² where feed-forwards have a gate."""
    gated = any(getattr(kind.ffn, "gated", False) for kind in model.layer_kinds)
    return playbook_block_parameters(hidden_size=hidden_size, **recorded(squares=16 if gated else 12))


def ring_bandwidth(cluster: Cluster, group: Group) -> float:
    """Return bf16 elements per second and rank that rings of a group carry, on the tier that is slowest for them."""
    legs = AlphaBeta.from_cluster(cluster).route(group).legs
    return float(1.0 / max(leg.load / leg.bandwidth for leg in legs)) / BF16


def _port_bandwidth(cluster: Cluster, span: int) -> float:
    """Return bf16 elements per second of one device in the innermost tier that holds `span` devices."""
    tier = next((tier for tier in cluster.tiers if not tier.size or tier.size >= span), cluster.tiers[-1])
    return tier.bandwidth / BF16


def _kv_width(model: Model) -> float | None:
    """Return elements of keys and values per token, None unless all layers have the same plain attention."""
    kinds = {kind.attention for kind in model.layer_kinds}
    attention = kinds.pop() if len(kinds) == 1 else None
    if not isinstance(attention, FullAttention):
        return None
    return 2.0 * attention.num_kv_heads * attention.head_dim


class BytesPerParameter(Struct, frozen=True, kw_only=True):
    """What one parameter takes, as the playbook sums it up."""

    weights: float
    gradients: float
    accumulated: float
    """A second copy of the gradients, in fp32."""
    optimizer: float
    """Master weights and two moments."""

    @property
    def total(self) -> float:
        """Sum."""
        return self.weights + self.gradients + self.accumulated + self.optimizer


def bytes_per_parameter(precision: Precision) -> BytesPerParameter:
    """Return the bytes of each state by its data type.

    fp32 training takes 4 + 4 + 8: the weights are their own master copy. Mixed precision takes the weights, gradients,
    master weights and moments in their types, in bf16 2 + 2 + (4 + 8); fp32 gradients are a second copy, 4 more, in
    addition to those in the type of the weights. The FP8 recipes follow from their types (table "FP8 pretraining").
    """
    moments = moment_bytes(precision)
    gradients = STORAGE_BYTES[precision.gradients]
    if _is_full(precision):
        return BytesPerParameter(weights=4.0, gradients=gradients, accumulated=0.0, optimizer=moments)
    weights, twice = STORAGE_BYTES[precision.parameters], precision.gradients == "fp32"
    master = 0.0 if precision.master == "none" else STORAGE_BYTES[precision.master]
    return BytesPerParameter(
        weights=weights,
        gradients=weights if twice else gradients,
        accumulated=gradients if twice else 0.0,
        optimizer=master + moments,
    )


RECIPES: Mapping[str, Precision] = {
    name: Precision(**types) for name, types in packaged("states")["types"].items()
}
"""Data types of the playbook's memory tables."""


def _is_full(precision: Precision) -> bool:
    """Whether weights are fp32: products in fp32 or TF32 read fp32 weights, whatever `parameters` says."""
    return precision.parameters == "fp32" or precision.compute in ("fp32", "tf32")


class Playbook(Preset, frozen=True, kw_only=True):
    """Memory of a layout as the Ultra-Scale Playbook counts it."""

    name: str = "playbook"
    source: str = PLAYBOOK

    def project(self, question: Question) -> Projection:
        """Project memory, and what each kind of parallelism sends against the compute that hides it."""
        projection = memory_projection(self.account(question), question, preset=self.name)
        return replace(projection, communication=tuple(item.row for item in self._traffic(question)))

    def quantities(self, question: Question) -> Mapping[str, Numeric]:
        """Return ratios, messages and volumes, and the parameters of a block."""
        result: dict[str, Numeric] = {}
        for item in self._traffic(question):
            result |= item.quantities
        hidden = recorded(hidden_size=question.model.hidden_size)["hidden_size"]
        return result | {"params.block": block_parameters(question.model, hidden)}

    def _traffic(self, question: Question) -> tuple[Traffic, ...]:
        model, cluster, layout, workload = question.parts
        least = min(layers_of(model, layout))
        return playbook_traffic(model, cluster, layout, workload, num_layers=least)

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage."""
        return self.account(question).stages

    def account(self, question: Question) -> Account:
        """Return bytes by stage: N / (tp·pp) parameters each, sharded by ZeRO, and activations."""
        model, _, layout, workload = question.parts
        sizes = recorded(
            hidden_size=model.hidden_size, vocab_size=model.vocab_size, num_layers=model.num_layers
        )
        whole, split = playbook_parameters(**sizes), recorded(tp=layout.tp, pp=layout.pp)
        total, layers = number_of(whole), layers_of(model, layout)
        local = whole / (split["tp"] * split["pp"])
        states = zero_states(local, bytes_per_parameter(workload.precision), layout)
        stages = tuple(
            StageBytes(
                num_layers=count,
                parameters=local,
                **states,
                activations=_activations(model, layout, workload, count, self.name),
            )
            for count in layers
        )
        return Account(
            stages=stages,
            total_parameters=total,
            complete=False,
            notes=(
                _parameter_note(model, total),
                _LEFT_OUT,
                *gpt_note(model),
            ),
        )


def zero_states(parameters: Numeric, item: BytesPerParameter, layout: Layout) -> dict[str, Numeric]:
    """Return bytes of weights, gradients and optimizer under ZeRO: stage 1 shards the last, 2 two, 3 all."""
    groups = {
        "weights": (item.weights, 3),
        "gradients": (item.gradients + item.accumulated, 2),
        "optimizer": (item.optimizer, 1),
    }
    return {
        name: playbook_zero_bytes(
            parameters=parameters,
            **recorded(
                whole=0.0 if layout.zero >= stage else size,
                sharded=size if layout.zero >= stage else 0.0,
                shards=layout.dp_shard,
            ),
        )
        for name, (size, stage) in groups.items()
    }


def _activations(model: Model, layout: Layout, workload: Workload, count: int, preset: str) -> Numeric:
    """Return bytes of a stage: its layers, for p micro-batches, over the ranks that split the sequence or heads."""
    replayed = replayed_layers(layout, count)
    size = recorded(seq_len=workload.seq_len, hidden_size=model.hidden_size)
    batch = recorded(batch=layout.micro_batch_size)
    plain = layout.flash_attention or drops_scores(layout)
    more = recorded(
        in_flight=min(layout.pp, microbatches_of(layout, workload)),
        ranks=layout.tp * layout.cp,
        replayed=replayed,
        sequence_ranks=1,
    )
    kept = playbook_activation_bytes(
        **recorded(
            num_layers=count - replayed,
            num_heads=heads_of(model, preset=preset),
            scores=0.0 if plain else 1.0,
        ),
        **batch,
        **size,
    )
    inputs = korthikanti_replayed_layer(
        micro_batch_size=batch["batch"], sequence_ranks=more["sequence_ranks"], **size
    )
    value: Numeric = (kept + more["replayed"] * inputs) * more["in_flight"] / more["ranks"]
    return value


_LEFT_OUT = Note(
    topic="memory",
    text="the playbook leaves out the CUDA context, temporary buffers, logits and fragmentation: a layout that fits by "
    "its count is at risk",
)


def _parameter_note(model: Model, total: float) -> Note:
    counted = count_parameters(model).total
    text = (
        f"h·v + L·(12h² + 13h) + 2h gives {total:,.0f} parameters; {model.name} has {counted:,} "
        f"({counted / total - 1.0:+.1%}): the formula ties embeddings and has no experts, gates or grouped heads"
    )
    return Note(topic="parameters", text=text)


PLAYBOOK_2025 = Playbook()
