"""Activation memory by Korthikanti et al. 2022: sbh(34 + 5as/h) with its tensor, sequence and selective variants."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.errors import SpecError
from forescale.formula import formula
from forescale.graph.counts import count_parameters
from forescale.graph.stages import layers_per_stage
from forescale.memory.in_flight import in_flight
from forescale.numeric import Numeric
from forescale.presets.preset import Account, StageBytes, memory_projection
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.spec.model import DenseFfn, FullAttention, Layer, Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload

PAPER = "Korthikanti et al. 2022, arXiv:2205.05198"


@formula(unit="byte", source=f"{PAPER}, equations 1, 2 and 4, Table 2")
def korthikanti_layer(
    *,
    seq_len: Numeric,
    micro_batch_size: Numeric,
    hidden_size: Numeric,
    num_heads: Numeric,
    tp: Numeric,
    sequence_ranks: Numeric,
    scores: Numeric,
) -> Numeric:
    """sbh·(10/q + 24/t + scores·5as/(ht)): q is t with sequence parallelism and 1 without.

    `scores` is 0 with selective recompute. At t = 1 this is sbh(34 + 5as/h).
    """
    unsplit = 10.0 / sequence_ranks + 24.0 / tp
    attention = 5.0 * num_heads * seq_len / (hidden_size * tp)
    return seq_len * micro_batch_size * hidden_size * (unsplit + scores * attention)


@formula(unit="byte", source=f"{PAPER}, Table 2, full activation recomputation")
def korthikanti_replayed_layer(
    *, seq_len: Numeric, micro_batch_size: Numeric, hidden_size: Numeric, sequence_ranks: Numeric
) -> Numeric:
    """2·sbh/q: the layer's input."""
    return 2.0 * seq_len * micro_batch_size * hidden_size / sequence_ranks


@formula(unit="1", source=f"{PAPER}, section 4.2.3: memory of the interleaved schedule on the first stage")
def korthikanti_interleaving(*, pp: Numeric, vpp: Numeric) -> Numeric:
    """1 + (p − 1)/(p·m) with m chunks per rank, 1 without interleaving."""
    return 1.0 + (pp - 1.0) / (pp * vpp) if vpp > 1 else 1.0


@formula(unit="byte", source=f"{PAPER}, equation 5: the first stage keeps L/p layers of p micro-batches")
def korthikanti_first_stage(*, layer: Numeric, num_layers: Numeric, interleaving: Numeric) -> Numeric:
    """Layer·L·interleaving: the first stage's activations do not depend on p."""
    return layer * num_layers * interleaving


@formula(unit="byte", source=f"{PAPER}, section 4.3: dropout mask of the embeddings")
def korthikanti_embedding(
    *,
    seq_len: Numeric,
    micro_batch_size: Numeric,
    hidden_size: Numeric,
    sequence_ranks: Numeric,
    in_flight: Numeric,
) -> Numeric:
    """sbh·p/q: one byte per element and micro-batch in flight."""
    return seq_len * micro_batch_size * hidden_size * in_flight / sequence_ranks


@formula(unit="byte", source=f"{PAPER}, section 4.3: output layer-norm, output layer, cross-entropy")
def korthikanti_output(
    *,
    seq_len: Numeric,
    micro_batch_size: Numeric,
    hidden_size: Numeric,
    vocab_size: Numeric,
    tp: Numeric,
    sequence_ranks: Numeric,
) -> Numeric:
    """4·sbh/q + 4·sbv/t: two inputs in 16 bits and logits in fp32; 4·sbh/t·(1 + v/h) with q = t."""
    tokens = seq_len * micro_batch_size
    return 4.0 * tokens * hidden_size / sequence_ranks + 4.0 * tokens * vocab_size / tp


@formula(unit="1", source=f"{PAPER}, section 5: share of activations that selective recompute saves")
def korthikanti_selective_saving(*, seq_len: Numeric, hidden_size: Numeric, num_heads: Numeric) -> Numeric:
    """(5as/h) / (34 + 5as/h): 70 % of GPT-3, 65 % of MT-NLG."""
    scores = 5.0 * num_heads * seq_len / hidden_size
    return scores / (34.0 + scores)


@formula(unit="1", source=f"{PAPER}, equations 7 and 8: hardware over model FLOPs")
def korthikanti_selective_overhead(
    *, seq_len: Numeric, hidden_size: Numeric, num_layers: Numeric, vocab_size: Numeric
) -> Numeric:
    """(1 + s/3h + v/12hL) / (1 + s/6h + v/12hL) − 1, near s/6h: what selective recompute adds."""
    head = vocab_size / (12.0 * hidden_size * num_layers)
    ratio = seq_len / (6.0 * hidden_size)
    return (1.0 + 2.0 * ratio + head) / (1.0 + ratio + head) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one micro-batch by the paper's formulas."""

    kept_layer: float
    replayed_layer: float
    embedding: float
    output: float


def activations(model: Model, strategy: Strategy, workload: Workload, num_heads: int) -> Activations:
    """Return what one micro-batch keeps on one device, per layer and at both ends."""
    split = float(strategy.tp if strategy.sp else 1)
    tokens = {
        "seq_len": float(workload.seq_len),
        "micro_batch_size": float(strategy.micro_batch_size),
        "hidden_size": float(model.hidden_size),
        "sequence_ranks": split,
    }
    recompute = strategy.recompute
    selective = recompute.granularity == "selective" and "core_attn" in recompute.modules
    return Activations(
        kept_layer=float(
            korthikanti_layer(
                num_heads=float(num_heads),
                tp=float(strategy.tp),
                scores=0.0 if selective else 1.0,
                **tokens,
            )
        ),
        replayed_layer=float(korthikanti_replayed_layer(**tokens)),
        embedding=float(korthikanti_embedding(in_flight=1.0, **tokens)),
        output=float(korthikanti_output(vocab_size=float(model.vocab_size), tp=float(strategy.tp), **tokens)),
    )


def heads_of(model: Model, *, preset: str) -> int:
    """Return the query heads of the model's layers.

    Raises
    ------
    SpecError
        If a layer has no softmax attention.
    """
    heads = {
        kind.attention.num_heads for kind in model.layer_kinds if isinstance(kind.attention, FullAttention)
    }
    if len(heads) != 1 or not all(isinstance(kind.attention, FullAttention) for kind in model.layer_kinds):
        msg = f"preset {preset} describes layers of one softmax attention each; {model.name} has others"
        raise SpecError(msg)
    return heads.pop()


def resembles_gpt(layer: Layer, hidden_size: int) -> bool:
    """Whether the layer is the one that was counted: all heads keyed, feed-forward of two 4·h matrices."""
    match layer:
        case Layer(
            attention=FullAttention(num_heads=heads, num_kv_heads=kv, head_dim=dim),
            ffn=DenseFfn(gated=False, ffn_hidden_size=width),
        ):
            return heads == kv and heads * dim == hidden_size and width == 4 * hidden_size
        case _:
            return False


def gpt_note(model: Model) -> tuple[Note, ...]:
    """Return a note where the formula counts a layer that the model does not have."""
    if all(resembles_gpt(kind, model.hidden_size) for kind in model.layer_kinds):
        return ()
    text = (
        f"34 + 5as/h counts a GPT layer (all heads keyed, two matrices of 4·h, dropout); layers of {model.name} "
        "keep something else"
    )
    return (Note(topic="activations", text=text),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Korthikanti2022:
    """Activations of GPT models as in Reducing Activation Recomputation in Large Transformer Models."""

    name: str = "korthikanti2022"
    source: str = PAPER

    def project(self, question: Question) -> Projection:
        """Project activation memory; the paper has no formula of states."""
        model, _, strategy, workload = question.parts
        return memory_projection(self.account(model, strategy, workload), question, preset=self.name)

    def account(self, model: Model, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage.

        Raises
        ------
        SpecError
            If the sequence is split over context ranks, which the paper does not know.
        """
        if strategy.cp > 1:
            msg = f"preset {self.name} has no context parallelism; cp is {strategy.cp}, use cp 1"
            raise SpecError(msg)
        one = activations(model, strategy, workload, heads_of(model, preset=self.name))
        layers = strategy.rank_layers or tuple(
            len(rank) for rank in layers_per_stage(model.num_layers, strategy.pp, strategy.vpp)
        )
        total = count_parameters(model).total
        stages = tuple(
            StageBytes(
                num_layers=count,
                parameters=total / (strategy.tp * strategy.pp),
                activations=_stage(one, strategy, workload, rank, count),
            )
            for rank, count in enumerate(layers)
        )
        return Account(
            stages=stages,
            total_parameters=total,
            complete=False,
            notes=(_STATES, *gpt_note(model), *_flash(strategy)),
        )


_STATES = Note(
    topic="memory", text="the paper counts activations only: weights, gradients and optimizer are zero"
)


def _flash(strategy: Strategy) -> tuple[Note, ...]:
    selective = strategy.recompute.granularity == "selective" and "core_attn" in strategy.recompute.modules
    if not strategy.flash_attention or selective:
        return ()
    text = (
        "the paper's attention keeps its scores (5as/h); flash attention keeps what selective recompute does"
    )
    return (Note(topic="attention", text=text),)


def _stage(one: Activations, strategy: Strategy, workload: Workload, rank: int, count: int) -> float:
    num_microbatches = workload.global_batch_size / (strategy.dp * strategy.micro_batch_size)
    held = float(
        in_flight(
            stage=float(rank),
            pp=float(strategy.pp),
            vpp=float(strategy.vpp),
            num_microbatches=num_microbatches,
        )
    )
    limit = strategy.recompute.num_layers
    replayed = 0
    if strategy.recompute.granularity == "full":
        replayed = count if limit is None else min(limit * strategy.vpp, count)
    layers = replayed * one.replayed_layer + (count - replayed) * one.kept_layer
    first = one.embedding * min(float(strategy.pp), num_microbatches) if rank == 0 else 0.0
    last = one.output if rank == strategy.pp - 1 else 0.0
    return layers * held + first + last


KORTHIKANTI_2022 = Korthikanti2022()
