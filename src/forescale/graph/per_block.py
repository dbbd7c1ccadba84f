"""The blocks of a model, one thing for each: decoder layers by kind, both ends, multi-token prediction, a tower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.operator import Block
from forescale.graph.sharding import ShardingRules
from forescale.numeric import Numeric
from forescale.spec.model import Model, Vision
from forescale.struct import Struct

T = TypeVar("T")


U = TypeVar("U")


V = TypeVar("V")


class PerBlock(Struct, Generic[T], frozen=True, kw_only=True):
    """One thing per block of a model: decoder layers by kind, both ends, multi-token prediction, a vision tower."""

    layers: tuple[T, ...]
    embedding: T
    head: T
    mtp: T | None
    vision: tuple[tuple[int, T], ...] = ()
    """Of a vision tower, which stands on the first stage: its patch embedding, its layers by kind, and its projector,
    each with how often it occurs."""

    def map(self, of: Callable[[T], U]) -> PerBlock[U]:
        """Return `of` applied to every block."""
        return PerBlock(
            layers=tuple(of(item) for item in self.layers),
            embedding=of(self.embedding),
            head=of(self.head),
            mtp=None if self.mtp is None else of(self.mtp),
            vision=tuple((times, of(item)) for times, item in self.vision),
        )

    def zipped(self, other: PerBlock[U], of: Callable[[T, U], V]) -> PerBlock[V]:
        """Return `of` applied to every block of both."""
        return PerBlock(
            layers=tuple(map(of, self.layers, other.layers)),
            embedding=of(self.embedding, other.embedding),
            head=of(self.head, other.head),
            mtp=None if self.mtp is None or other.mtp is None else of(self.mtp, other.mtp),
            vision=tuple(
                (times, of(item, beside))
                for (times, item), (_, beside) in zip(self.vision, other.vision, strict=True)
            ),
        )

    def all(self) -> tuple[T, ...]:
        """Return the things of all blocks, layers first."""
        mtp = () if self.mtp is None else (self.mtp,)
        return (*self.layers, self.embedding, self.head, *mtp, *(item for _, item in self.vision))

    @property
    def vision_layers(self) -> tuple[T, ...]:
        """The things of a tower's layers, without its ends."""
        return tuple(item for _, item in self.vision[1:-1])

    def map_vision(self, layer: Callable[[T], U], end: Callable[[T], U]) -> tuple[tuple[int, U], ...]:
        """Return `layer` of a tower's layers and `end` of its ends, each with how often it occurs."""
        ends = (0, len(self.vision) - 1)
        return tuple(
            (times, end(item) if place in ends else layer(item))
            for place, (times, item) in enumerate(self.vision)
        )


def build_blocks(model: Model, sharding: ShardingRules) -> PerBlock[Block]:
    """Return the operator lists of every block of `model`."""
    if model.traces:
        from forescale.graph.traced import traced_blocks

        layers, embedding, head = traced_blocks(model, sharding)
        if sharding.choices.kernels.cross_entropy == "fused_linear" and model.vocab_size:
            head = head_block(model, sharding)  # no recording has that kernel
        return PerBlock(layers=layers, embedding=embedding, head=head, mtp=None)
    built = {kind: layer_block(model, kind, sharding) for kind in model.layer_kinds}
    head = head_block(model, sharding)
    return PerBlock(
        layers=tuple(built.values()),
        embedding=embedding_block(model, sharding),
        head=head,
        mtp=mtp_block(model, sharding, known=built, head=head) if model.num_mtp_layers else None,
        vision=_tower(model.vision, sharding) if model.vision else (),
    )


def _tower(vision: Vision, sharding: ShardingRules) -> tuple[tuple[int, Block], ...]:
    from forescale.graph.vision import vision_blocks

    encoder = vision.encoder
    times = (1, *(encoder.layers.count(kind) for kind in encoder.layer_kinds), 1)
    return tuple(zip(times, vision_blocks(vision, sharding), strict=True))


def counted_weight_part(model: Model, seq_len: int) -> float:
    """Return the fraction of a pass's memory that a schedule counts until its weight gradient: 32h / (34h + 5as).

    As the authors' scheduler does, whatever kernels keep (sail-sg/zero-bubble-pipeline-parallelism,
    pipeline_parallel/zerobubble/runtime.py; Qi et al. 2023, arXiv:2401.10241, section 2.1).
    """
    heads = max((attention.heads[0] for attention in model.attentions), default=0)
    return 32.0 * model.hidden_size / (34.0 * model.hidden_size + 5.0 * heads * seq_len)


class RecomputeSplit(Struct, Generic[T], frozen=True, kw_only=True):
    """One thing of a block where the recompute policy takes it, and where it does not."""

    replayed: T
    kept: T
    """The same thing as `replayed` where the policy takes all layers."""

    def map(self, of: Callable[[T], U]) -> RecomputeSplit[U]:
        """Return `of` applied to both."""
        replayed = of(self.replayed)
        return RecomputeSplit(
            replayed=replayed, kept=replayed if self.kept is self.replayed else of(self.kept)
        )


def message_bytes(model: Model, sharding: ShardingRules) -> Numeric:
    """Return the bytes of one micro-batch between pipeline stages, on one device."""
    from forescale.graph.traced import stream_bytes

    if model.traces:
        return stream_bytes(model, sharding)
    return sharding.tokens("residual") * model.hidden_size * sharding.element_bytes


def kept_message_bytes(model: Model, sharding: ShardingRules) -> Numeric:
    """Return the bytes of the message between stages that a device keeps, for stages that keep what they sent."""
    choices, whole = sharding.choices, message_bytes(model, sharding)
    return whole / sharding.degrees.tp if choices.kernels.keeps_output_shares and not choices.sp else whole
