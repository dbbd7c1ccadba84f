"""Memory of one rank over one step: every moment of its schedule, the peak located and taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forescale.errors import SpecError
from forescale.formula import value_of
from forescale.graph.layer import embedding_block, head_block, layer_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block
from forescale.graph.recompute import Kept, keep
from forescale.graph.stage import plan_stages
from forescale.memory.liveness import BlockMoments, block_moments
from forescale.memory.moments import Moment
from forescale.spec.model import Layer, Model
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import Workload

Task: TypeAlias = tuple[Literal["F", "B"], int]
"""Forward or backward of a micro-batch."""
Sizes: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBlock:
    """One block of a stage: what it keeps, and its moments."""

    name: str
    kept: Kept
    moments: BlockMoments

    @property
    def kept_bytes(self) -> float:
        """Bytes of one micro-batch."""
        return float(value_of(self.kept.num_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One operator of one micro-batch while it runs."""

    phase: str
    microbatch: int
    block: str
    operator: str
    num_bytes: float
    """Activations and gradients of activations on the rank; states and buffers are apart."""
    place: tuple[int, int]
    """Index of the task and of the block."""
    moment: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The instants of one step on one rank, in order."""

    blocks: tuple[StageBlock, ...]
    order: tuple[Task, ...]
    instants: tuple[Instant, ...]

    @property
    def peak(self) -> Instant:
        """The first instant at which most bytes exist."""
        return max(self.instants, key=lambda instant: instant.num_bytes)

    def tensors(self, instant: Instant) -> Sizes:
        """Return every tensor that exists at `instant`, with its bytes; they sum to the instant's.

        Names say micro-batch, block and tensor: "3/layer 5/ffn.up".
        """
        task, index = instant.place
        found: Sizes = {}
        for microbatch, block in self._held(task, index):
            for tensor in block.kept.tensors:
                found[f"{microbatch}/{block.name}/{tensor.name}"] = float(value_of(tensor.num_bytes))
        for name, size in instant.moment.tensors:
            found[f"{instant.microbatch}/{instant.block}/{name}"] = float(value_of(size))
        return {name: size for name, size in found.items() if size}

    def _held(self, task: int, index: int) -> Iterator[tuple[int, StageBlock]]:
        """Yield what other micro-batches keep, and this one's blocks before `index`."""
        done = self.order[:task]
        running = self.order[task][1]
        waiting = [microbatch for kind, microbatch in done if kind == "F" and ("B", microbatch) not in done]
        for microbatch in waiting:
            if microbatch != running:
                yield from ((microbatch, block) for block in self.blocks)
        yield from ((running, block) for block in self.blocks[:index])


def one_forward_one_backward(*, stage: int, pp: int, num_microbatches: int) -> tuple[Task, ...]:
    """Return the tasks of a rank under 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2)."""
    warm_up = min(pp - stage - 1, num_microbatches)
    order: list[Task] = [("F", index) for index in range(warm_up)]
    for index in range(num_microbatches):
        if warm_up + index < num_microbatches:
            order.append(("F", warm_up + index))
        order.append(("B", index))
    return tuple(order)


def stage_timeline(
    model: Model, strategy: Strategy, workload: Workload, *, stage: int, order: Sequence[Task] | None = None
) -> Timeline:
    """Return the memory timeline of one pipeline stage; `order` defaults to 1F1B.

    Raises
    ------
    SpecError
        If the stage does not exist, or ranks hold several chunks and no order is given.
    """
    if not 0 <= stage < strategy.pp:
        msg = f"stage {stage} does not exist: pp is {strategy.pp}, so stages are 0 to {strategy.pp - 1}"
        raise SpecError(msg)
    if strategy.vpp > 1:
        msg = f"a timeline is of one chunk per rank; vpp is {strategy.vpp}"
        raise SpecError(msg)
    blocks = stage_blocks(model, strategy, workload, stage=stage)
    if order is None:
        count = workload.global_batch_size // (strategy.dp * strategy.micro_batch_size)
        order = one_forward_one_backward(stage=stage, pp=strategy.pp, num_microbatches=count)
    return Timeline(blocks=blocks, order=tuple(order), instants=tuple(_instants(blocks, order)))


def stage_blocks(
    model: Model, strategy: Strategy, workload: Workload, *, stage: int
) -> tuple[StageBlock, ...]:
    """Return the blocks of a stage in order of forward."""
    degrees, choices = split_strategy(strategy)
    layout = Layout(
        degrees=degrees, choices=choices, precision=workload.precision, seq_len=float(workload.seq_len)
    )
    plan = plan_stages(model, pp=strategy.pp, stage_layers=strategy.stage_layers)
    before = int(plan.counts[:stage].sum())
    layers = model.layers[before : before + int(plan.counts[stage].sum())]
    limit = strategy.recompute.num_layers
    ends = Recompute()
    blocks: list[StageBlock] = []
    if stage == 0:
        blocks.append(_block("embedding", embedding_block(model, layout), ends))
    made: dict[tuple[Layer, bool], StageBlock] = {}
    for index, layer in enumerate(layers):
        again = limit is None or index < limit
        key = (layer, again)
        if key not in made:
            made[key] = _block("", layer_block(model, layer, layout), strategy.recompute if again else ends)
        shared = made[key]
        blocks.append(StageBlock(name=f"layer {before + index}", kept=shared.kept, moments=shared.moments))
    if stage == strategy.pp - 1:
        blocks.append(_block("head", head_block(model, layout), ends))
    return tuple(blocks)


def _block(name: str, block: Block, recompute: Recompute) -> StageBlock:
    kept = keep(block, recompute)
    return StageBlock(name=name, kept=kept, moments=block_moments(block, kept))


def _instants(blocks: tuple[StageBlock, ...], order: Sequence[Task]) -> Iterator[Instant]:
    whole = sum(block.kept_bytes for block in blocks)
    waiting = 0
    for task, (kind, microbatch) in enumerate(order):
        others = waiting if kind == "F" else waiting - 1
        places = range(len(blocks)) if kind == "F" else range(len(blocks) - 1, -1, -1)
        for index in places:
            block = blocks[index]
            held = others * whole + sum(earlier.kept_bytes for earlier in blocks[:index])
            for moment in block.moments.forward if kind == "F" else block.moments.backward:
                yield Instant(
                    phase=moment.phase,
                    microbatch=microbatch,
                    block=block.name,
                    operator=moment.name,
                    num_bytes=held + float(value_of(moment.num_bytes)),
                    place=(task, index),
                    moment=moment,
                )
        waiting += 1 if kind == "F" else -1
