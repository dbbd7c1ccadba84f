"""Memory over one step, rank by rank: what the schedule holds when, where it peaks, and what lives there.

Activations follow the schedule's own memory curve. An action works beside what is held: forward and backward
of a chunk add the fullest moment of one of its blocks. Everything else stands throughout, but for the update,
which comes when activations are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.errors import unsupported_by
from forescale.formula import number_of
from forescale.graph.layer import block_name
from forescale.graph.operator import Block
from forescale.graph.per_block import PerBlock, build_blocks, kept_message_bytes
from forescale.graph.recompute import NO_RECOMPUTE, awaited, keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.graph.stages import replayed_mtp, virtual_stages
from forescale.memory.inputs import EvalContext, MemoryInputs
from forescale.memory.liveness import BlockMoments, Moment, block_moments
from forescale.memory.peak import message_buffers, pool_bytes, working_bytes
from forescale.numeric import Array
from forescale.projection.result import Projection
from forescale.results import Result
from forescale.schedule import Kind, Simulation, StageTimes, build_schedule, simulate
from forescale.schedule.actions import BACKWARD, unpack
from forescale.schedule.family import Request
from forescale.schedule.memory import ActivationSizes
from forescale.schedule.model import Placement, Schedule
from forescale.schedule.program import Flat
from forescale.spec.groups import group_of
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import Model
from forescale.spec.workload import STORAGE_BYTES, Workload, num_microbatches
from forescale.struct import Struct, attributes
from forescale.units import GIB, format_bytes, format_seconds
from forescale.view.axes import SERIES, value_axis
from forescale.view.bars import Bar, BarChart
from forescale.view.lines import Dot, Line, LineChart
from forescale.view.page import Chart


class Sized(Struct, frozen=True, kw_only=True):
    """Named bytes: one tensor, or equal ones of several layers together."""

    owner: str
    """Block that it belongs to: a kind of layer, embedding, head."""
    name: str
    num_bytes: float


class Load(Struct, frozen=True, kw_only=True):
    """Tensors that one micro-batch keeps, and those of its fullest moments."""

    kept: tuple[Sized, ...]
    """From its forward until its backward."""
    awaited: tuple[Sized, ...]
    """From its input gradient until its weight gradient, if these are separate passes."""
    forward: tuple[Sized, ...]
    """At the fullest moment of its forward: everything of a block; of a stage everything that is not kept."""
    backward: tuple[Sized, ...]
    """The same of its backward."""
    afterwards: tuple[Sized, ...] = ()
    """For a moment when its backward is over: what metrics take of the logits."""


class BlockLoad(Load, frozen=True, kw_only=True):
    """Load of one block."""

    name: str


class StageLoad(Load, frozen=True, kw_only=True):
    """Load of one stage (a chunk of a rank's layers)."""

    stage: int
    rank: int
    between: tuple[Sized, ...] = ()
    """Kept in addition from the end of forward until backward begins: the head's, on the last stage."""


def total_bytes(tensors: Iterable[Sized]) -> float:
    """Return the sum of the sizes of tensors in bytes."""
    return sum(tensor.num_bytes for tensor in tensors)


def block_loads(model: Model, layout: Layout, workload: Workload) -> PerBlock[BlockLoad]:
    """Return the load of every kind of layer, of both ends and of multi-token prediction."""
    degrees, choices = split_layout(layout)
    blocks = build_blocks(model, ShardingRules.from_workload(workload, degrees, choices))
    return PerBlock(
        layers=tuple(
            _block_load(block_name(kind), block, layout.recompute)
            for kind, block in zip(model.layer_kinds, blocks.layers, strict=True)
        ),
        embedding=_block_load("embedding", blocks.embedding, NO_RECOMPUTE),
        head=_block_load("head", blocks.head, NO_RECOMPUTE),
        mtp=None if blocks.mtp is None else _block_load("mtp", blocks.mtp, layout.recompute),
        vision=blocks.map_vision(
            lambda block: _block_load(block.name, block, layout.recompute.of_towers),
            lambda block: _block_load(block.name, block, NO_RECOMPUTE),
        ),
    )


def stage_loads(
    model: Model, layout: Layout, workload: Workload, placement: Placement
) -> tuple[StageLoad, ...]:
    """Return the loads of all stages in the order of the model, replica after replica."""
    plain = block_loads(model, replace(layout, recompute=NO_RECOMPUTE), workload)
    blocks = _in_units(block_loads(model, layout, workload), plain, layout.recompute.unit)
    of_stage, stage_layers = placement.rank_of_stage[: placement.num_stages], layout.stage_layers
    plan = virtual_stages(model, of_stage, stage_layers=stage_layers, recompute=layout.recompute)
    taken, heads, others = (
        rows * placement.num_replicas for rows in (plan.replayed, plan.heads, plan.others)
    )
    loads = []
    for stage, rank in enumerate(placement.rank_of_stage):
        present = (
            *zip(blocks.layers, heads[stage], taken[stage], strict=True),
            *zip(plain.layers, others[stage], others[stage], strict=True),
        )
        first = stage % placement.num_stages == 0
        if first:
            present += tuple((block, float(times), float(times)) for times, block in blocks.vision)
        kept = _together((tensor, inputs) for block, inputs, _ in present for tensor in block.kept)
        late = _together((tensor, count) for block, _, count in present for tensor in block.awaited)
        works = [block for block, _, count in present if count]
        kept += blocks.embedding.kept if first else ()
        if head := [blocks.head] if (stage + 1) % placement.num_stages == 0 else []:
            kept += _kept_of_mtp(model, layout.recompute, blocks, plain)
            late += _awaited_at_the_end(model, blocks)
        elif layout.kernels.keeps_stage_outputs:
            kept.append(_stage_output(model, layout, workload))
        loads.append(
            StageLoad(
                stage=stage,
                rank=rank,
                kept=tuple(kept),
                awaited=tuple(late),
                forward=_fullest("forward", works, head),
                backward=_fullest("backward", works, head, _crossing(works, layout, workload)),
                between=blocks.head.kept if head else (),
                afterwards=blocks.head.afterwards if head else (),
            )
        )
    return tuple(loads)


def _stage_output(model: Model, layout: Layout, workload: Workload) -> Sized:
    kept = kept_message_bytes(model, ShardingRules.from_workload(workload, *split_layout(layout)))
    return Sized(owner="pipeline", name="stage output", num_bytes=float(kept))


def _block_load(name: str, block: Block, policy: Recompute) -> BlockLoad:
    kept = keep(block, policy)
    moments: BlockMoments = block_moments(block, kept)
    ends = [tensor for operator in block.operators for tensor in (*operator.held, *operator.afterwards)]
    return BlockLoad(
        name=name,
        kept=_sized(name, [(tensor.name, tensor.num_bytes) for tensor in kept.tensors]),
        awaited=_sized(name, awaited(block)),
        forward=_fullest_moment(name, moments.forward),
        backward=_fullest_moment(name, moments.backward),
        afterwards=_sized(name, [(end, block.tensors[end].num_bytes) for end in ends]),
    )


def _sized(owner: str, tensors: Iterable[tuple[str, object]]) -> tuple[Sized, ...]:
    return tuple(
        Sized(owner=owner, name=name, num_bytes=number_of(size)) for name, size in dict(tensors).items()
    )


def _fullest_moment(owner: str, moments: Sequence[Moment]) -> tuple[Sized, ...]:
    return max((_sized(owner, moment.tensors.items()) for moment in moments), key=total_bytes, default=())


def _kept_of_mtp(
    model: Model, policy: Recompute, blocks: PerBlock[BlockLoad], plain: PerBlock[BlockLoad]
) -> list[Sized]:
    """Return what the multi-token-prediction layers keep, those under the policy and the others."""
    if blocks.mtp is None or plain.mtp is None:
        return []
    count = replayed_mtp(model, policy)
    left = float(model.num_mtp_layers - count)
    return [*_times(blocks.mtp.kept, float(count)), *_times(plain.mtp.kept, left)]


def _awaited_at_the_end(model: Model, blocks: PerBlock[BlockLoad]) -> list[Sized]:
    """Return what the weight gradients of the head and of multi-token prediction wait with."""
    of_mtp = () if blocks.mtp is None else blocks.mtp.awaited
    return [*blocks.head.awaited, *_times(of_mtp, float(model.num_mtp_layers))]


def _times(tensors: Iterable[Sized], count: float) -> list[Sized]:
    """Return the tensors of `count` equal layers together."""
    return [replace(tensor, num_bytes=count * tensor.num_bytes) for tensor in tensors if count]


def _in_units(blocks: PerBlock[BlockLoad], plain: PerBlock[BlockLoad], unit: int) -> PerBlock[BlockLoad]:
    """Add to the backward of each layer what the other layers of its unit keep, which are replayed with it."""
    if unit == 1:
        return blocks
    layers = []
    for block, other in zip(blocks.layers, plain.layers, strict=True):
        beside = [replace(tensor, name=f"{tensor.name} of the unit") for tensor in other.kept]
        layers.append(replace(block, backward=(*block.backward, *_times(beside, float(unit - 1)))))
    return replace(blocks, layers=tuple(layers))


def _beyond(moment: tuple[Sized, ...], block: BlockLoad) -> tuple[Sized, ...]:
    """Return a moment without what the block keeps anyway; kept tensors that are gone by then count below zero."""
    kept = {tensor.name: tensor.num_bytes for tensor in block.kept}
    rest = [replace(tensor, num_bytes=tensor.num_bytes - kept.pop(tensor.name, 0.0)) for tensor in moment]
    gone = sum(kept.values())
    freed = [Sized(owner=block.name, name="kept tensors freed by then", num_bytes=-gone)] if gone else []
    return tuple(tensor for tensor in (*rest, *freed) if tensor.num_bytes)


def _crossing(works: Sequence[BlockLoad], layout: Layout, workload: Workload) -> tuple[Sized, ...]:
    """Return what a block's forward of the next micro-batch takes beside the backward that it crosses, if it does."""
    batch, size = workload.global_batch_size, layout.micro_batch_size
    several = num_microbatches(global_batch_size=batch, dp=layout.dp, micro_batch_size=size) > 1
    choices = split_layout(layout)[1]
    if not several or not choices.crosses or choices.schedule is not None:
        return ()
    return max((work.forward for work in works), key=total_bytes, default=())


def _fullest(
    name: str, works: Sequence[BlockLoad], head: Sequence[BlockLoad], beside: tuple[Sized, ...] = ()
) -> tuple[Sized, ...]:
    """Return the largest working set of a pass: one block is replayed, or one head runs, at a time."""
    alone = [getattr(item, name) for item in head]
    tensors = [tensor for item in head for tensor in item.afterwards if tensor in item.kept]
    beyond = [(*_beyond(getattr(work, name), work), *tensors, *beside) for work in works]
    return max([*beyond, *alone, ()], key=total_bytes)


SCHEMA = "forescale.memory_timeline/1"
DRAWN = 400
"""Points of a rank's memory that a picture has."""
CURVES = ("allocated_bytes=allocated", "first_step_bytes=first_step")
UPDATE = "update"
"""Name of the moment at which the optimizer runs."""
STATES = ("weights", "gradients", "optimizer")


class Standing(Struct, frozen=True, kw_only=True):
    """What one rank holds besides activations [byte]."""

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    """Throughout forward and backward, a second pool of captured graphs and messages between stages included."""
    lasting: float
    """Of these, what stays through the update."""
    update: float
    """During the update, instead of activations and buffers."""
    graphs: float
    """Of that, what captured graphs do not hand over: their second pool, or all activations where all is captured."""
    moments: float = 0.0
    """Of the optimizer's states, those that its first update creates."""

    @property
    def states(self) -> float:
        """Return the bytes of weights, gradients and optimizer states on a rank."""
        return self.weights + self.gradients + self.optimizer


class PeakMoment(Struct, frozen=True, kw_only=True):
    """Where a rank's memory peaks."""

    rank: int
    stage: int | None
    """Virtual stage; None in the update."""
    action: str
    """In torch's notation, such as 3B0: backward of micro-batch 0 on stage 3; or the update."""
    time_s: float
    allocated_bytes: float
    in_flight: int
    """Chunk passes whose activations are held."""
    tensors: tuple[Sized, ...]
    """What lives there, largest first; the sizes add up to the allocated bytes."""

    @property
    def kinds(self) -> dict[str, float]:
        """Return the bytes allocated at the peak by kind: weights, gradients, optimizer, buffers and activations."""
        sizes: dict[str, float] = {}
        for tensor in self.tensors:
            kind = {"states": tensor.name, "buffers": "buffers"}.get(tensor.owner, "activations")
            sizes[kind] = sizes.get(kind, 0.0) + tensor.num_bytes / GIB
        return sizes


class RankTimeline(Struct, frozen=True, kw_only=True, eq=False):
    """Memory of one rank: from each time on, that many bytes of activations."""

    rank: int
    time_s: Array
    activations: Array
    """(points,) bytes held and at work."""
    update: Array
    """(points,) bytes of the update beyond the buffers, zero until it runs."""
    standing: Standing
    peak: PeakMoment

    @property
    def allocated(self) -> Array:
        """(points,) bytes of everything."""
        everything: Array = self.activations + self.update + self.standing.states + self.standing.buffers
        return everything

    @property
    def first_step(self) -> Array:
        """(points,) bytes of everything in the first step of a run: its update creates the moments."""
        created = np.where(np.arange(len(self.time_s)) < len(self.time_s) - 2, self.standing.moments, 0.0)
        without: Array = self.allocated - created
        return without

    def outline(self, *, first: bool = False) -> tuple[Dot, ...]:
        """Return GiB over seconds for a picture: of stretches of equally many points the largest."""
        kept, count = (self.first_step if first else self.allocated) / GIB, len(self.time_s)
        starts = np.unique(np.linspace(0, count, min(count, DRAWN) + 1).astype(int)[:-1])
        tops = np.maximum.reduceat(kept, starts)
        return tuple(Dot(x=float(x), y=float(y)) for x, y in zip(self.time_s[starts], tops, strict=True))


class MemoryTimeline(Result, Struct, frozen=True, kw_only=True, eq=False):
    """One step of all pipeline ranks."""

    projection: Projection
    simulation: Simulation
    loads: tuple[StageLoad, ...]
    ranks: tuple[RankTimeline, ...]
    step_time_s: float
    """Compute of the pipeline, then the update; data-parallel communication is left out."""

    def essentials(self) -> dict[str, Any]:
        """Return the schedule, the step and the peak."""
        return {"schedule": self.schedule, "step_time_s": self.step_time_s, "peak": self.peak}

    @property
    def schedule(self) -> Schedule:
        """The schedule that the ranks follow."""
        return self.simulation.schedule

    @property
    def peak(self) -> PeakMoment:
        """The peak of the fullest rank."""
        return max((rank.peak for rank in self.ranks), key=lambda peak: peak.allocated_bytes)

    @property
    def headline(self) -> str:
        """The question, the fullest stage by part against the capacity, and when and where memory peaks."""
        one, peak, size = self.projection, self.peak, format_bytes(self.peak.allocated_bytes)
        moment = f"on rank {peak.rank} in {peak.action} at {format_seconds(peak.time_s)}"
        return f"{one.subject}: {one.memory}; {self.schedule.name} allocates at most {size}, {moment}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per rank: when it peaks, and with what."""
        names = ("rank", "stage", "action", "time_s", "allocated_bytes", "in_flight")
        return [{name: getattr(rank.peak, name) for name in names} for rank in self.ranks]

    def pictures(self) -> Sequence[Chart]:
        """Return memory over the step, and what lives on every rank where it peaks."""
        shown = self.ranks if len(self.ranks) <= len(SERIES) else (self.ranks[0], self.ranks[-1])
        lines = tuple(
            Line(name=f"rank {rank.rank}", dots=rank.outline(), colour=place, marked=False)
            for place, rank in enumerate(shown)
        )
        dots, name = shown[0].outline(first=True), f"rank {shown[0].rank}, first step"
        lines = (*lines, replace(lines[0], name=name, dots=dots, colour=len(lines)))
        heights = [dot.y for line in lines for dot in line.dots]
        peaks = tuple(Bar(label=f"rank {rank.rank}", values=rank.peak.kinds) for rank in self.ranks)
        return (
            LineChart(
                title="Memory over a step",
                note=self.schedule.name,
                x=value_axis("seconds", [0.0, self.step_time_s], log=False, zero=True),
                y=value_axis("GiB", heights, log=False, zero=True),
                lines=lines,
            ),
            BarChart(title="Memory where it peaks", note=self.schedule.name, axis="", unit="GiB", bars=peaks),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.memory_timeline/1` document."""
        return {
            "schema": SCHEMA,
            **attributes(self.schedule, "schedule=name", "num_microbatches"),
            **attributes(self, "step_time_s", "peak"),
            "ranks": [attributes(rank, "rank", "peak", "time_s", *CURVES) for rank in self.ranks],
        }


def schedule_of(layout: Layout, num_microbatches: int, weight_part: float = 1.0) -> Schedule:
    """Return the schedule that a layout runs: the one it names, else 1F1B, interleaved where vpp > 1."""
    pp, vpp = layout.pp, layout.vpp
    name = (layout.schedule if pp > 1 else None) or ("interleaved-1f1b" if vpp > 1 else "1f1b")
    parts: dict[str, Any] = {"num_splits": layout.sequence_pieces, "group_size": group_of(layout)}
    request = Request(pp=pp, vpp=vpp, num_microbatches=num_microbatches, weight_part=weight_part, **parts)
    return build_schedule(name, request, vpp=vpp)


def build_timeline(
    result: Projection, schedule: Schedule, loads: Sequence[StageLoad], standing: Sequence[Standing]
) -> MemoryTimeline:
    """Return memory over one step of a projected layout.

    Ranks follow the schedule with the projected times of their stages; `loads` are of virtual stages, `standing` of
    ranks.
    """
    if result.strategy.offload.activations:
        fix = "leave activations out of offload"
        raise unsupported_by("a memory timeline", "activations on the host", fix)
    if split_layout(result.strategy)[1].deferred_head_gradients:
        raise unsupported_by("a memory timeline", "kernels.deferred_head_gradients", "set it to 0")
    simulation = _simulated(result, schedule, loads)
    curves = _Curves(simulation, loads)
    update_s = result.time_s.get("optimizer", 0.0)
    return MemoryTimeline(
        projection=result,
        simulation=simulation,
        loads=tuple(loads),
        ranks=tuple(_rank(curves, rank, standing[rank], update_s) for rank in range(schedule.num_ranks)),
        step_time_s=simulation.makespan + update_s,
    )


def standing_of_ranks(result: Projection, setting: EvalContext, inputs: MemoryInputs) -> tuple[Standing, ...]:
    """Return what every rank of a projected layout holds besides activations."""
    stages, states = result.memory.stages, inputs.states
    standing = states.buffers + message_buffers(setting, inputs) + working_bytes(setting, inputs).gathered
    kept = (standing, states.lasting, states.update, pool_bytes(setting, inputs), states.updated)
    rows = np.hstack([np.broadcast_to(np.asarray(item), (len(stages), 1)) for item in kept]).tolist()
    whole, master = setting.choices.graphs == "full", setting.workload.precision.master
    master_bytes = 0.0 if master == "none" else STORAGE_BYTES[master]
    return tuple(
        Standing(
            weights=stage.weights_bytes,
            gradients=stage.gradients_bytes,
            optimizer=stage.optimizer_bytes,
            buffers=local + second,
            lasting=stays,
            update=max(local, stays + copies) + (stage.activations_bytes if whole else second),
            graphs=stage.activations_bytes if whole else second,
            moments=max(stage.optimizer_bytes - master_bytes * updated, 0.0),
        )
        for stage, (local, stays, copies, second, updated) in zip(stages, rows, strict=True)
    )


def _simulated(result: Projection, schedule: Schedule, loads: Sequence[StageLoad]) -> Simulation:
    if schedule.num_splits > 1:
        raise unsupported_by("a memory timeline", f"{schedule.name}, which cuts sequences into pieces")
    vpp = schedule.placement.vpp
    ranks = list(schedule.placement.rank_of_stage[: schedule.num_stages])
    forward, backward = (
        np.array([getattr(time, name) for time in result.stage_times])[ranks] / vpp
        for name in ("forward_s", "backward_s")
    )
    times = StageTimes(forward=forward, input_grad=backward / 2.0, weight_grad=backward / 2.0)
    saved, left = (
        np.array([total_bytes(getattr(load, name)) for load in loads[: schedule.num_stages]])
        for name in ("kept", "awaited")
    )
    sizes = ActivationSizes(saved=saved, weight_part=left / np.maximum(saved, 1.0))
    return simulate(schedule, times, sizes=sizes)


class _Curves:
    """Bytes of activations while each action runs, and after it; arrays over all actions."""

    def __init__(self, simulation: Simulation, loads: Sequence[StageLoad]) -> None:
        self.simulation, self.loads = simulation, loads
        self.flat: Flat = simulation.compiled.program.flat
        flat, kind, stage = self.flat, self.flat.kind, self.flat.stage
        saved = simulation.memory
        before = np.concatenate(([0.0], saved[:-1]))
        work = {
            name: np.array([total_bytes(getattr(load, name)) for load in loads])
            for name in ("forward", "backward", "between", "afterwards")
        }
        forward, backward = kind == Kind.F, np.isin(kind, BACKWARD)
        step = np.where(forward, 1.0, np.where(backward, -1.0, 0.0)) * work["between"][stage]
        total = np.cumsum(step)
        between = total - np.repeat(np.concatenate(([0.0], total))[flat.bounds[:-1]], np.diff(flat.bounds))
        others = np.where(forward, between - step, between)
        self.after: Array = saved + between
        active = np.where(forward, saved + work["forward"][stage], np.maximum(before, saved))
        in_backward, ended = before + work["backward"][stage], saved + work["afterwards"][stage]
        self.at_end = backward & (ended > in_backward)
        """Whether a backward is fullest when it ends: with what its weight gradient waits with, and metrics."""
        self.during: Array = np.where(backward, np.maximum(in_backward, ended), active) + others

    def live(self, action: int) -> tuple[list[int], list[int]]:
        """Return, per stage, the passes of its rank that hold all while an action runs, and those that wait for W."""
        low = int(self.flat.bounds[int(self.flat.rank[action])])

        def count(end: int, *kinds: Kind) -> NDArray[np.int64]:
            result = self.flat.stage[low:end][np.isin(self.flat.kind[low:end], kinds)]
            return np.bincount(result, minlength=len(self.loads))

        end = action + int(self.at_end[action])
        whole = count(action + 1, Kind.F, Kind.RELOAD) - count(end, Kind.B, Kind.I, Kind.OFFLOAD)
        return whole.tolist(), (count(end, Kind.I) - count(action, Kind.W)).tolist()

    def waiting(self, action: int) -> int:
        """Return the other passes of the last stage that are between forward and backward."""
        low = int(self.flat.bounds[int(self.flat.rank[action])])
        ends = np.array([bool(load.between) for load in self.loads])
        kinds = self.flat.kind[low : action + 1][ends[self.flat.stage[low : action + 1]]]
        count = int(np.sum(kinds == Kind.F) - np.sum(np.isin(kinds, BACKWARD)))
        return count - int(self.flat.kind[action] == Kind.F and ends[self.flat.stage[action]])


def _rank(curves: _Curves, rank: int, standing: Standing, update_s: float) -> RankTimeline:
    """Return one rank's curve and peak."""
    flat, simulation = curves.flat, curves.simulation
    low, high = int(flat.bounds[rank]), int(flat.bounds[rank + 1])
    begin, end = simulation.start[low:high], simulation.end[low:high]
    during, after = curves.during[low:high], curves.after[low:high]
    makespan = simulation.makespan
    times = np.concatenate(([0.0], np.stack([begin, end], axis=1).ravel(), [makespan, makespan + update_s]))
    concatenate = np.concatenate(([0.0], np.stack([during, after], axis=1).ravel(), [0.0, 0.0]))
    beyond = max(0.0, standing.update - standing.buffers)
    update = np.zeros_like(times)
    update[-2] = beyond
    fullest = low + int(np.argmax(during))
    acts = float(during.max(initial=0.0)) >= beyond
    peak = _peak_of_action(curves, fullest, standing) if acts else _peak_of_update(rank, makespan, standing)
    return RankTimeline(
        rank=rank,
        time_s=np.maximum.accumulate(times),
        activations=concatenate,
        update=update,
        standing=standing,
        peak=peak,
    )


def _peak_of_action(curves: _Curves, action: int, standing: Standing) -> PeakMoment:
    flat, loads = curves.flat, curves.loads
    (live, waiting), stage = curves.live(action), int(flat.stage[action])
    kind = int(flat.kind[action])
    work = loads[stage].forward if kind == Kind.F else ()
    if kind in BACKWARD:
        work = loads[stage].afterwards if curves.at_end[action] else loads[stage].backward
    tensors = [(tensor, count) for load, count in zip(loads, live, strict=True) for tensor in load.kept]
    tensors += [(item, count) for load, count in zip(loads, waiting, strict=True) for item in load.awaited]
    tensors += [(tensor, curves.waiting(action)) for tensor in loads[-1].between]
    tensors += [(tensor, 1) for tensor in (*work, *_states(standing, standing.buffers))]
    return PeakMoment(
        rank=int(flat.rank[action]),
        stage=stage,
        action=str(unpack(int(flat.code[action]))),
        time_s=float(curves.simulation.start[action]),
        allocated_bytes=float(curves.during[action]) + standing.states + standing.buffers,
        in_flight=sum(live) + sum(waiting),
        tensors=_largest_first(tensors),
    )


def _peak_of_update(rank: int, when: float, standing: Standing) -> PeakMoment:
    copied = standing.update - standing.graphs - standing.lasting
    copies = Sized(owner="states", name="fp32 gradients of the update", num_bytes=copied)
    graphs = Sized(owner="buffers", name="memory of captured graphs", num_bytes=standing.graphs)
    live = (*_states(standing, standing.lasting), copies, graphs)
    return PeakMoment(
        rank=rank, stage=None, action=UPDATE, time_s=when, allocated_bytes=standing.states + standing.update,
        in_flight=0, tensors=_largest_first([(item, 1) for item in live]),
    )  # fmt: skip


def _states(standing: Standing, buffers: float) -> list[Sized]:
    sizeds = [Sized(owner="states", name=name, num_bytes=getattr(standing, name)) for name in STATES]
    return [*sizeds, Sized(owner="buffers", name="buffers and workspaces", num_bytes=buffers)]


def _together(tensors: Iterable[tuple[Sized, float]]) -> list[Sized]:
    """Return so many of each tensor, those of one owner and name as one."""
    sizes: dict[tuple[str, str], float] = {}
    for tensor, count in tensors:
        key = (tensor.owner, tensor.name)
        sizes[key] = sizes.get(key, 0.0) + count * tensor.num_bytes
    return [Sized(owner=owner, name=name, num_bytes=size) for (owner, name), size in sizes.items() if size]


def _largest_first(tensors: Iterable[tuple[Sized, float]]) -> tuple[Sized, ...]:
    return tuple(sorted(_together(tensors), key=lambda tensor: -tensor.num_bytes))
