"""The calibration of a device in one sitting: kernels of every family by extent, and messages by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

from msgspec.structs import replace

from forescale.cost.measured import extents_of, family_of
from forescale.cost.mesh import ranks_per_node
from forescale.cost.model import Provenance
from forescale.cost.roofline import peak_rate
from forescale.formula import number_of
from forescale.graph.ops import (
    AttentionCore,
    Collective,
    CollectiveKind,
    Compute,
    Elementwise,
    Gemm,
    GroupedGemm,
    Primitive,
)
from forescale.graph.per_block import message_bytes
from forescale.inputs import Prepared, prepare
from forescale.io.bench import TrafficFamily
from forescale.question import Question
from forescale.spec import Device
from forescale.struct import Struct
from forescale.time.price import all_origins

LONGEST_S = 0.05
"""What one kernel takes at most at the device's peak rates."""
SHARE = 1.0 / 64.0
"""Of a device's memory, what one message or pass moves at most."""
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NARROW, HEADS, HEAD_DIM = 512, 8, 128
GROUPS = (4, 8)
LENGTHS, BATCHES = (64, 128, 256, 512, 1024, 2048, 4096, 8192), (1, 2, 4)
PASSES: tuple[TrafficFamily, ...] = (
    "elementwise", "norm", "softmax", "permute", "embedding", "loss", "cast", "optimizer",
)  # fmt: skip
COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p",
)  # fmt: skip
STEP = 4


def suite_kernels(device: Device, dtype: str) -> list[Compute]:
    """Return kernels of a type that a device runs within a moment at its peak, shortest first.

    Products are square, or short in one extent; experts take half as many rows each.
    """
    rate = peak_rate(device, dtype)
    longest = LONGEST_S * rate
    products = [op for op in _products(dtype) if float(op.flops) <= longest]
    passes = [
        Elementwise(bytes_moved=float(size), family=family)
        for family in PASSES
        for size in sizes(device)
        if size <= LONGEST_S * device.hbm_bandwidth
    ]
    return [*sorted(products, key=lambda op: float(op.flops)), *passes]


def _products(dtype: str) -> Iterator[Gemm | GroupedGemm | AttentionCore]:
    for width in map(float, WIDTHS):
        yield Gemm(m=width, n=width, k=width, dtype=dtype)
        for short in ("m", "n", "k"):
            if width > NARROW:
                extents = {"m": width, "n": width, "k": width, short: float(NARROW)}
                yield Gemm(m=extents["m"], n=extents["n"], k=extents["k"], dtype=dtype)
        for groups in map(float, GROUPS):
            rows = groups * width / 2.0
            yield GroupedGemm(groups=groups, m=rows, n=width, k=width, dtype=dtype)
            yield GroupedGemm(groups=groups, m=rows, n=width, k=width, dtype=dtype, contract="m")
    for length, batch, backward in product(map(float, LENGTHS), map(float, BATCHES), (False, True)):
        yield AttentionCore(
            batch=batch, heads=float(HEADS), kv_heads=float(HEADS), q_len=length, kv_len=length,
            pairs=length * (length + 1.0) / 2.0, qk_dim=float(HEAD_DIM), v_dim=float(HEAD_DIM),
            causal=True, backward=backward, dtype=dtype,
        )  # fmt: skip


def suite_messages(device: Device, num_ranks: int) -> list[Message]:
    """Return every collective among so many ranks by size, smallest first; point to point is between two."""
    return [
        (kind, float(size), 2 if kind == "p2p" else num_ranks)
        for size in sizes(device)
        for kind in COLLECTIVES
    ]


def sizes(device: Device) -> list[int]:
    """Return bytes from 16 KiB up, each four times the one before."""
    result = [1 << 14]
    while result[-1] * STEP <= SHARE * device.hbm_bytes:
        result.append(result[-1] * STEP)
    return result


SAMPLES = 12
"""Times that what is timed runs, until its median stands still."""
MOST = 12
"""Proposals at most."""
Key: TypeAlias = tuple[object, ...]
Message: TypeAlias = tuple[str, float, int]
"""Kind and bytes of a message, and how many ranks exchange it."""


class Proposed(Struct, frozen=True, kw_only=True):
    """A kernel or message to time."""

    operator: str
    """The first operator that it is part of."""
    primitive: Primitive
    num_ranks: int
    """Devices that it takes: of a message those of its communicator."""
    ranks_per_node: int
    seconds: float
    """What is thought that it takes once."""
    share: float
    """Of the seconds of all kernels and messages of one micro-batch, before anything overlaps."""
    provenance: Provenance

    @property
    def at_stake(self) -> float:
        """Its share times half the interval that its truth lies in, 8 times of 10."""
        return self.share * (self.provenance.high - self.provenance.low) / 2.0


def propose(question: Question, *, devices: int, seconds: float) -> tuple[Proposed, ...]:
    """Return what is most at stake, first; of what `devices` can time as much as these seconds are enough for.

    Messages among more devices are named too. What was timed by itself is not.

    Raises
    ------
    SpecError
        If the question has no layout, or an illegal one.
    """
    proposeds: dict[Key, Proposed] = {}
    prepared = prepare(question)
    for item in _all(prepared):
        known = proposeds.get(key := _key(item))
        proposeds[key] = item if known is None else replace(known, share=known.share + item.share)
    whole = sum(item.share for item in proposeds.values())
    selected = []
    for entry in sorted(proposeds.values(), key=lambda one: -one.at_stake):
        here = entry.num_ranks <= devices
        if _is_timed(entry, prepared) or (here and SAMPLES * entry.seconds > seconds):
            continue
        seconds -= SAMPLES * entry.seconds if here else 0.0
        selected.append(replace(entry, share=entry.share / whole))
    return tuple(selected[:MOST])


def _all(prepared: Prepared) -> Iterator[Proposed]:
    """Yield every kernel and message of one micro-batch that takes any time, with its seconds as its share."""
    question, pricing = prepared.question, prepared.inputs.pricing
    for origin, spent in all_origins(
        prepared.priced.priced, prepared.plan, num_mtp=question.model.num_mtp_layers
    ):
        if spent:
            yield _one(
                origin.operator, origin.primitive, float(origin.seconds), spent, origin.provenance, prepared
            )
    if question.layout.pp > 1:
        size = message_bytes(question.model, prepared.setting.sharding(prepared.inputs.degrees))
        hop = Collective(kind="p2p", axis="pp", num_bytes=size)
        took = number_of(pricing.seconds(hop))
        spent = 2.0 * (question.layout.pp - 1) * took
        yield _one("between stages", hop, took, spent, pricing.provenance(hop), prepared)


def _one(
    operator: str,
    primitive: Primitive,
    seconds: float,
    spent: float,
    provenance: Provenance,
    prepared: Prepared,
) -> Proposed:
    ranks, near = 1, 1
    if isinstance(primitive, Collective):
        group = prepared.inputs.pricing.groups[primitive.axis]
        near = round(number_of(ranks_per_node(group, prepared.question.cluster)))
        ranks = round(number_of(group.num_ranks))
        if primitive.kind == "p2p":
            ranks, near = 2, min(near, 2)
    return Proposed(
        operator=operator,
        primitive=primitive,
        num_ranks=ranks,
        ranks_per_node=near,
        seconds=seconds,
        share=spent,
        provenance=provenance,
    )


def _key(proposed: Proposed) -> Key:
    if isinstance(proposed.primitive, Collective):
        return (
            proposed.primitive.kind,
            proposed.primitive.num_bytes,
            proposed.num_ranks,
            proposed.ranks_per_node,
        )
    return family_of(proposed.primitive), extents_of(proposed.primitive)[0]


def _is_timed(proposed: Proposed, prepared: Prepared) -> bool:
    """Whether it was timed by itself, or in a block that is the very one that was measured."""
    alone = prepared.inputs.pricing.provenance(proposed.primitive)
    return "measured" in (proposed.provenance.kind, alone.kind) or alone.kind == "interpolated"


def kernels_among(proposed: Sequence[Proposed]) -> list[Compute]:
    """Return the kernels of proposals."""
    return [item.primitive for item in proposed if not isinstance(item.primitive, Collective)]


def messages_among(proposed: Sequence[Proposed], devices: int) -> list[Message]:
    """Return the messages that so many devices can send."""
    return [
        (item.primitive.kind, number_of(item.primitive.num_bytes), item.num_ranks)
        for item in proposed
        if isinstance(item.primitive, Collective) and item.num_ranks <= devices
    ]
