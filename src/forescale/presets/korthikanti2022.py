"""Activation memory by Korthikanti et al. 2022: sbh(34 + 5as/h) with its tensor, sequence and selective variants."""

from __future__ import annotations

from collections.abc import Sequence

from forescale.errors import unsupported_by
from forescale.formula import formula
from forescale.graph.counts import count_parameters
from forescale.memory.in_flight import in_flight
from forescale.numeric import Numeric
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
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.spec.attention import FullAttention
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Layer, Model
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


def drops_scores(layout: Layout) -> bool:
    """Whether attention's scores are made again: selective recompute of the core."""
    return layout.recompute.granularity == "selective" and "core_attn" in layout.recompute.modules


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
        raise unsupported_by(
            f"preset {preset}", f"{model.name}: it describes layers of one softmax attention each"
        )
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


class Korthikanti2022(Preset, frozen=True, kw_only=True):
    """Activations of GPT models as in Reducing Activation Recomputation in Large Transformer Models."""

    name: str = "korthikanti2022"
    source: str = PAPER

    def project(self, question: Question) -> Projection:
        """Project activation memory; the paper has no formula of states."""
        model, _, layout, workload = question.parts
        return memory_projection(self.account(model, layout, workload), question, preset=self.name)

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage."""
        return self.account(question.model, question.layout, question.workload).stages

    def account(self, model: Model, layout: Layout, workload: Workload) -> Account:
        """Return bytes by stage.

        Raises
        ------
        SpecError
            If the sequence is split over context ranks, which the paper does not know.
        """
        if layout.cp > 1:
            raise unsupported_by(f"preset {self.name}", f"context parallelism (cp {layout.cp})", "use cp 1")
        total = count_parameters(model).total
        stages = tuple(
            StageBytes(
                num_layers=count,
                parameters=total / (layout.tp * layout.pp),
                activations=self._stage(model, layout, workload, rank, count),
            )
            for rank, count in enumerate(layers_of(model, layout))
        )
        return Account(
            stages=stages,
            total_parameters=total,
            complete=False,
            notes=(_STATES, *gpt_note(model), *_flash(layout)),
        )

    def _stage(self, model: Model, layout: Layout, workload: Workload, rank: int, count: int) -> Numeric:
        """Return what a stage of `count` layers keeps of all micro-batches in flight."""
        tokens = recorded(
            seq_len=workload.seq_len,
            micro_batch_size=layout.micro_batch_size,
            hidden_size=model.hidden_size,
            sequence_ranks=layout.tp if layout.sp else 1,
        )
        microbatches, replayed = microbatches_of(layout, workload), replayed_layers(layout, count)
        tp = recorded(tp=layout.tp)
        kept = korthikanti_layer(
            **recorded(
                num_heads=heads_of(model, preset=self.name), scores=0.0 if drops_scores(layout) else 1.0
            ),
            **tp,
            **tokens,
        )
        layers = recorded(replayed=replayed, kept=count - replayed)
        one = layers["replayed"] * korthikanti_replayed_layer(**tokens) + layers["kept"] * kept
        flight = recorded(stage=rank, pp=layout.pp, vpp=layout.vpp, num_microbatches=microbatches)
        value: Numeric = one * in_flight(**flight)
        if rank == 0:
            value = value + korthikanti_embedding(
                **recorded(in_flight=min(layout.pp, microbatches)), **tokens
            )
        if rank == layout.pp - 1:
            value = value + korthikanti_output(**recorded(vocab_size=model.vocab_size), **tp, **tokens)
        return value


_STATES = Note(
    topic="memory", text="the paper counts activations only: weights, gradients and optimizer are zero"
)


def _flash(layout: Layout) -> tuple[Note, ...]:
    if not layout.flash_attention or drops_scores(layout):
        return ()
    text = (
        "the paper's attention keeps its scores (5as/h); flash attention keeps what selective recompute does"
    )
    return (Note(topic="attention", text=text),)


KORTHIKANTI_2022 = Korthikanti2022()
