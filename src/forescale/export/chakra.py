"""Chakra execution traces of a projected step (MLCommons, schema/protobuf/et_def.proto), one per rank.

A rank's nodes are the operators of its layers, pass by pass in the order of the pipeline schedule, with their messages,
sends and receives; then data-parallel messages and the update. What a backward replays is one node per layer.
Attributes are those that ASTRA-sim reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from forescale.atomic_write import replacing
from forescale.errors import out_of_range, unsupported_by
from forescale.formula import number_of
from forescale.graph.ops import Collective
from forescale.graph.per_block import message_bytes
from forescale.graph.stages import virtual_stages
from forescale.inputs import Prepared, prepare
from forescale.memory.timeline import schedule_of
from forescale.project import project
from forescale.projection.components import CollectiveTime
from forescale.question import Question
from forescale.report.components import collectives_of
from forescale.schedule.actions import Action, Kind, unpack
from forescale.schedule.messages import lower
from forescale.time.blocks import BlockSeconds
from forescale.time.price import PricedBlock

VERSION = "0.0.4"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Numbers of the schema's NodeType."""
KINDS = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}
"""Numbers of the schema's CollectiveCommType."""
PASSES: Mapping[Kind, tuple[str, ...]] = {
    Kind.F: ("forward",),
    Kind.B: ("backward_input", "backward_weight"),
    Kind.I: ("backward_input",),
    Kind.W: ("backward_weight",),
}


def write_chakra(question: Question, folder: Path, ranks: Sequence[int]) -> list[Path]:
    """Write `rank.NUMBER.et` for each rank, and return the files.

    Raises
    ------
    SpecError
        If a rank is not one of the layout's, or ranks are placed tier by tier.
    """
    for value, name in ((question.layout.placement, "placement"), (question.model.vision, "a vision tower")):
        if value is not None:
            raise unsupported_by("a Chakra trace", name)
    for rank in ranks:
        if not 0 <= rank < question.cluster.num_devices:
            raise out_of_range("--ranks", rank, f"0 to {question.cluster.num_devices - 1}")
    step = _Step(question)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"rank.{rank}.et" for rank in ranks]
    for rank, path in zip(ranks, files, strict=True):
        with replacing(path) as place:
            place.write_bytes(b"".join(_framed(message) for message in step.messages(rank)))
    return files


class _Step:
    """The step of a question, from which the nodes of every rank follow."""

    def __init__(self, question: Question) -> None:
        self.prepared: Prepared = prepare(question)
        self.layout, self.model = question.layout, question.model
        self.projection = project(question)
        schedule = schedule_of(question.layout, self.projection.num_microbatches)
        placement = schedule.placement
        self.rank_of_stage = placement.rank_of_stage[: placement.num_stages]
        self.plan = virtual_stages(
            question.model,
            self.rank_of_stage,
            stage_layers=question.layout.stage_layers,
            recompute=question.layout.recompute,
        )
        self.orders = lower(schedule).orders
        self.data = [item for item in collectives_of(question) if item.part == "data_comm"]
        setting = self.prepared.setting
        sharding = setting.sharding(self.prepared.inputs.degrees)
        self.message_bytes = round(number_of(message_bytes(setting.model, sharding)))
        axes = question.layout.axis_order
        degrees = {"tp": question.layout.tp, "cp": question.layout.cp, "dp": question.layout.dp}
        self.stride = prod(degrees[axis] for axis in axes[: axes.index("pp")])

    def messages(self, rank: int) -> Iterator[bytes]:
        """Yield the metadata and the nodes of a rank as protobuf messages."""
        yield _field(1, VERSION)
        stage = rank // self.stride % self.layout.pp
        nodes = _Nodes()
        for action in map(unpack, self.orders[stage]):
            yield from self._action(nodes, action, rank - stage * self.stride)
        for item in self.data:
            if not item.name.startswith("layer "):
                yield nodes.collective(item.name, item.name.split()[-1], item.num_bytes, item.seconds, "dp")
        yield nodes.add("optimizer", COMPUTE, self.projection.time_s.get("optimizer", 0.0), num_ops=0)

    def _action(self, nodes: _Nodes, action: Action, first: int) -> Iterator[bytes]:
        kind, stage, batch = action.kind, action.stage, action.microbatch
        if kind in PASSES:
            yield from self._pass(nodes, action)
        elif kind in (Kind.SEND_F, Kind.SEND_B, Kind.RECV_F, Kind.RECV_B):
            forward, sends = kind in (Kind.SEND_F, Kind.RECV_F), kind in (Kind.SEND_F, Kind.SEND_B)
            other = stage + (1 if forward == sends else -1)
            tag = (min(stage, other) * self.projection.num_microbatches + batch) * 2 + (not forward)
            ends = [first + self.rank_of_stage[place] * self.stride for place in (stage, other)]
            source, target = ends if sends else reversed(ends)
            values = {
                "comm_src": source,
                "comm_dst": target,
                "comm_size": self.message_bytes,
                "comm_tag": tag,
            }
            yield nodes.add(str(action), SEND if sends else RECEIVE, 0.0, **values)

    def _pass(self, nodes: _Nodes, action: Action) -> Iterator[bytes]:
        """Yield the operators of a stage's blocks, what is replayed before a backward, and launches that none hides."""
        forward, weights = action.kind is Kind.F, action.kind is Kind.W
        sent = [item for item in self.data if item.name.startswith("layer ")]
        blocks = list(self._blocks(action.stage))
        for block, seconds in blocks if forward else reversed(blocks):
            parts = seconds.forward_parts if forward else seconds.backward_parts
            for name in () if weights else ("recompute", "overhead"):
                if took := number_of(parts.get(name, 0.0)):
                    label = f"{action} {block.block.name} {'launches' if name == 'overhead' else name}"
                    yield nodes.add(label, COMPUTE, took, num_ops=0)
            yield from _block(nodes, block, PASSES[action.kind], action)
            if block in self.prepared.priced.priced.layers:
                yield from _sharded(nodes, sent, forward=forward)

    def _blocks(self, stage: int) -> Iterator[tuple[PricedBlock, BlockSeconds]]:
        """Yield the blocks of a stage in the order of the model, one after the other."""
        priced, seconds = self.prepared.priced.priced, self.prepared.inputs.seconds
        if stage == 0:
            yield priced.embedding, seconds.embedding.kept
        counts, again = self.plan.counts[stage], self.plan.replayed[stage]
        for block, split, count, replayed in zip(priced.layers, seconds.layers, counts, again, strict=True):
            for place in range(int(count)):
                yield block, split.replayed if place < replayed else split.kept
        if stage == len(self.plan.counts) - 1:
            yield priced.head, seconds.head.kept
            for _ in range(self.model.num_mtp_layers if priced.mtp is not None else 0):
                assert priced.mtp is not None
                assert seconds.mtp is not None
                yield priced.mtp, seconds.mtp.replayed


def _sharded(nodes: _Nodes, sent: Sequence[CollectiveTime], *, forward: bool) -> Iterator[bytes]:
    for item in sent:
        if ("before forward" in item.name) == forward:
            kind = "all_gather" if "all_gather" in item.name else "reduce_scatter"
            yield nodes.collective(item.name, kind, item.num_bytes, item.seconds, "dp")


def _block(nodes: _Nodes, block: PricedBlock, passes: Sequence[str], action: Action) -> Iterator[bytes]:
    """Yield the nodes of some passes: for each operator its kernels together, and every message."""
    operators = list(block.operators.values())
    for operator in operators if passes == ("forward",) else reversed(operators):
        for name in passes:
            seconds = flops = moved = 0.0
            label = f"{action} {block.block.name} {operator.operator.name} {name}"
            for local, (primitive, took) in zip(operator.passes, operator.primitives, strict=True):
                if local != name:
                    continue
                if isinstance(primitive, Collective):
                    size = number_of(primitive.num_bytes)
                    yield nodes.collective(label, primitive.kind, size, number_of(took), primitive.axis)
                    continue
                seconds += number_of(took)
                flops += number_of(getattr(primitive, "flops", 0.0))
                moved += number_of(getattr(primitive, "bytes_moved", 0.0))
            if seconds:
                yield nodes.add(label, COMPUTE, seconds, num_ops=round(flops), tensor_size=round(moved))


class _Nodes:
    """Nodes of one rank: each depends on the one before it, sends on nothing that follows, and passes on receives."""

    def __init__(self) -> None:
        self.count = 0
        self.before: list[int] = []
        """Nodes that the next one waits for."""

    def add(self, name: str, kind: int, seconds: float, **values: int | str) -> bytes:
        """Return the next node as a protobuf message."""
        number, self.count = self.count, self.count + 1
        waits = [] if kind == RECEIVE else self.before
        if kind == RECEIVE:
            self.before = [*self.before, number]
        elif kind != SEND:
            self.before = [number]
        values = {"is_cpu_op": False, **values}
        fields: list[tuple[int, int | str | bytes]] = [(1, number), (2, name), (3, kind)]
        if waits:
            fields.append((5, b"".join(map(_varint, waits))))
        fields.append((7, round(seconds * 1e6)))
        fields += [(10, _attribute(key, value)) for key, value in values.items()]
        return b"".join(_field(place, value) for place, value in fields)

    def collective(self, name: str, kind: str, num_bytes: float, seconds: float, axis: str) -> bytes:
        """Return the next node, a collective."""
        if kind not in KINDS:
            raise unsupported_by("a Chakra trace", f"{kind} messages over {axis}")
        return self.add(
            name, COLLECTIVE, seconds, comm_type=KINDS[kind], comm_size=round(num_bytes), pg_name=axis
        )


def _attribute(name: str, value: int | str | bool) -> bytes:
    number = 27 if isinstance(value, bool) else 29 if isinstance(value, str) else 9
    return _field(1, name) + _field(number, value)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _framed(value.encode() if isinstance(value, str) else value)


def _framed(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*result, value))
