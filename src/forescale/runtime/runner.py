"""Walks one rank's row of a schedule: each kind of action has its handler.

What runs is the lowered schedule, sends and receives included, in the order that the checker proved free of deadlock.
Seed 002 (Primus-pipeline), "runner"; notation of torch.distributed.pipelining.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from forescale.runtime.channels import Channels, Meta, RunError, Wait
from forescale.runtime.gradients import Put, WeightGradients, split
from forescale.runtime.pieces import Piece, running
from forescale.runtime.saved import Saved
from forescale.schedule import Action, Kind, LoweredSchedule, Schedule, check, lower
from forescale.schedule.actions import JOINED, unpack
from forescale.schedule.measured import Pass
from forescale.schedule.messages import Sends

Mark: TypeAlias = Any
"""A moment: seconds of the host, or an event of the device."""


class Moments:
    """Moments of one device: events where it works by itself, the host's seconds elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.by_device = device, device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has done all it was given."""
        if self.by_device:
            torch.cuda.synchronize()

    def mark(self) -> Mark:
        """Return the moment at which the device is done with what it was given so far."""
        if not self.by_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, begin: Mark, end: Mark) -> float:
        """Return the seconds between two moments that are over."""
        return 1e-3 * float(begin.elapsed_time(end)) if self.by_device else float(end - begin)


class Clock(Moments):
    """Moments of a step, told in seconds of the host once the step is over."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.begin()

    def begin(self) -> None:
        """Begin a step: moments of the device count from here."""
        self.wait()
        self.start_s = time.perf_counter()
        self._first = self.mark()

    def seconds(self, moment: Mark) -> float:
        """Return a moment in seconds of the host."""
        return self.start_s + self.between(self._first, moment) if self.by_device else float(moment)


Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Tie: TypeAlias = tuple[tuple[int, str], tuple[int, str]]
Key: TypeAlias = tuple[int, int]
"""Stage id and micro-batch (or piece of one)."""


@dataclass(slots=True)
class Held:
    """What one forward leaves for its backward."""

    x: Tensor
    y: Tensor
    piece: Piece
    saved: Saved | None


@dataclass(slots=True)
class State:
    """One step under way."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    held: dict[Key, Held] = field(default_factory=dict)
    pieces: dict[Key, Piece] = field(default_factory=dict)
    outputs: dict[Key, Tensor] = field(default_factory=dict)
    """Outputs of stages whose next stage is on this rank, or that wait to be sent."""
    gradients: dict[Key, Tensor] = field(default_factory=dict)
    arriving: dict[tuple[Kind, int, int], Wait] = field(default_factory=dict)
    waiting: dict[Key, list[Put]] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    ran: list[tuple[Action, Mark, Mark, Mark, float, int]] = field(default_factory=list)
    """Each action, when it was taken up, when its input was there, when it ended; what is held then."""
    live: float = 0.0
    begun: Mark = None
    """When the input of the pass under way was there."""


class Runner:
    """Runs steps of one schedule on one rank.

    Parameters
    ----------
    schedule
        What runs; refused with the circle if it deadlocks.
    stages
        This rank's modules by stage id; ids of a second replica follow those of the first.
    loss
        Of the last stage's output and a micro-batch's target: a mean over its elements.
    sends
        Whether an overlapped block sends its forward's output before its backward runs ("early") or after.
    count_bytes
        Whether the bytes that forwards save are counted, which costs a little time.
    """

    def __init__(
        self,
        schedule: Schedule | LoweredSchedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        channels: Channels,
        *,
        store: WeightGradients | None = None,
        tied: Sequence[Tie] = (),
        sends: Sends = "early",
        count_bytes: bool = False,
    ) -> None:
        self.lowered = lowered(schedule)
        self.schedule = self.lowered.schedule
        self.channels, self.stages, self.loss, self.tied, self.sends = channels, stages, loss, tied, sends
        self.order = self.lowered.orders[channels.rank]
        self.place = self.schedule.placement.rank_of_stage
        self.num_stages = self.schedule.num_stages
        self.share = self.schedule.share
        self.clock = Clock(channels.device)
        self._late_check = channels.device.type == "cuda"
        """Whether losses are looked at once a step: each look makes the host wait for the device."""
        self.count_bytes = count_bytes or any(unpack(code).kind is Kind.OFFLOAD for code in self.order)
        self.store = store or WeightGradients()
        self._check_stages()
        for module in stages.values():
            split(module, self.store)
        self.metas: dict[int, Meta] = {}
        """Shape and type of what each stage gives to the next."""
        self._handlers: Mapping[Kind, Callable[[Action, State], None]] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradient,
            Kind.SEND_F: self._send_forward,
            Kind.SEND_B: self._send_backward,
            Kind.RECV_F: self._receive_forward,
            Kind.RECV_B: self._receive_backward,
            Kind.OFFLOAD: self._offload,
            Kind.RELOAD: self._reload,
        }
        channels.connect(self._pairs(), map(frozenset, self._sharing()))

    def step(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> tuple[Tensor | None, list[Pass]]:
        """Run one step and return the mean loss (on ranks that compute losses) and every pass.

        Gradients are those of the mean over micro-batches; they add to what parameters have.

        Parameters
        ----------
        inputs, targets
            One per micro-batch, or per piece of one; used where the first and the last stage are.
        """
        state = State(inputs=inputs, targets=targets)
        codes = list(self.order)
        done: set[int] = set()
        for place, code in enumerate(codes):
            if place in done:
                continue
            self._run(unpack(code), state)
            if code & JOINED and self.sends == "early":
                done |= self._send_early(codes, place, state)
        self.channels.settle()
        self._sum_copies()
        total = torch.stack(state.losses).sum() if state.losses else None
        self.clock.wait()
        if total is not None and self._late_check:
            self._check_loss("the last forward", total)
        return total, [self._pass(*item) for item in state.ran]

    def ready(self, inputs: Sequence[Tensor]) -> None:
        """Learn what stages hand on, before the first step."""
        if not self.metas:
            self._learn_shapes(inputs)

    def _pass(self, action: Action, taken: Mark, begun: Mark, ended: Mark, live: float, value: int) -> Pass:
        start, end = self.clock.seconds(begun), self.clock.seconds(ended)
        return Pass(action, start, end, start - self.clock.seconds(taken), live, value)

    def _run(self, action: Action, state: State) -> None:
        handler = self._handlers.get(action.kind)
        if handler is None:
            return
        taken = state.begun = self.clock.mark()
        try:
            handler(action, state)
        except Exception as error:
            if isinstance(error, RunError):
                raise
            raise RunError(f"rank {self.channels.rank}, {action}: {type(error).__name__}: {error}") from error
        ended = self.clock.mark()
        num_bytes = (
            sum(item.saved.num_bytes for item in state.held.values() if item.saved) if self.count_bytes else 0
        )
        state.ran.append((action, taken, state.begun, ended, state.live, num_bytes))

    def _forward(self, action: Action, state: State) -> None:
        stage, unit = key = action.stage, action.microbatch
        x = self._input(action, state)
        state.begun = self.clock.mark()
        piece = state.pieces[key] = Piece(earlier=self._earlier(stage, unit, state))
        saved = Saved(self.stages[stage].parameters()) if self.count_bytes else None
        with running(piece), saved.noting() if saved else nullcontext():
            y = self.stages[stage](x)
            if self._is_last(stage):
                y = self.loss(y, state.targets[unit]) / self.schedule.num_units
        if self._is_last(stage):
            if not self._late_check:
                self._check_loss(action, y)
            state.losses.append(y.detach())
        else:
            self._check_shape(stage, action, y)
            state.outputs[key] = y.detach()
        state.held[key] = Held(x=x, y=y, piece=piece, saved=saved)
        state.live += self.share

    def _check_loss(self, where: object, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise RunError(f"rank {self.channels.rank}, {where}: the loss is {float(loss)}")

    def _input(self, action: Action, state: State) -> Tensor:
        stage, unit = action.stage, action.microbatch
        if stage % self.num_stages == 0:
            return state.inputs[unit]
        if self.place[stage - 1] == self.channels.rank:
            x = state.outputs.pop((stage - 1, unit))
        else:
            x = state.arriving.pop((Kind.RECV_F, stage, unit))()
        return x.requires_grad_(x.is_floating_point())

    def _backward(self, action: Action, state: State) -> None:
        """Run input and weight gradients in one."""
        self._gradients(action, state)
        self._release(action, state)

    def _input_gradient(self, action: Action, state: State) -> None:
        self.store.open()
        try:
            self._gradients(action, state)
        finally:
            puts = self.store.take()
        module = self.stages[action.stage]
        builder = getattr(module, "dw_builder", None)
        if builder is not None:
            puts.append(builder())
        kept = state.held[action.stage, action.microbatch]
        kept.x = kept.y = torch.empty(0)
        state.waiting[action.stage, action.microbatch] = puts

    def _weight_gradient(self, action: Action, state: State) -> None:
        self.store.finish(state.waiting.pop((action.stage, action.microbatch)))
        self._release(action, state)

    def _gradients(self, action: Action, state: State) -> None:
        stage, unit = action.stage, action.microbatch
        kept = state.held[stage, unit]
        roots, grads = kept.piece.roots()
        arrived = self._arrived(action, state)
        state.begun = self.clock.mark()
        torch.autograd.backward([kept.y, *roots], [arrived, *grads])
        kept.piece.left.clear()
        self.store.collect(self.stages[stage].parameters())
        if stage % self.num_stages:
            assert kept.x.grad is not None
            state.gradients[stage, unit] = kept.x.grad

    def _arrived(self, action: Action, state: State) -> Tensor | None:
        """Return the gradient of a stage's output; None of a loss."""
        stage, unit = action.stage, action.microbatch
        if self._is_last(stage):
            return None
        if self.place[stage + 1] == self.channels.rank:
            return state.gradients.pop((stage + 1, unit))
        return state.arriving.pop((Kind.RECV_B, stage, unit))()

    def _release(self, action: Action, state: State) -> None:
        del state.held[action.stage, action.microbatch]
        state.live -= self.share

    def _send_forward(self, action: Action, state: State) -> None:
        y = state.outputs.pop((action.stage, action.microbatch))
        self.channels.send(y, to=self.place[action.stage + 1], backward=False)

    def _send_backward(self, action: Action, state: State) -> None:
        gradient = state.gradients.pop((action.stage, action.microbatch))
        self.channels.send(gradient, to=self.place[action.stage - 1], backward=True)

    def _receive_forward(self, action: Action, state: State) -> None:
        meta, source = self.metas[(action.stage - 1) % self.num_stages], self.place[action.stage - 1]
        wait = self.channels.receive(meta, source=source, backward=False)
        state.arriving[Kind.RECV_F, action.stage, action.microbatch] = wait

    def _receive_backward(self, action: Action, state: State) -> None:
        meta, source = self.metas[action.stage % self.num_stages], self.place[action.stage + 1]
        wait = self.channels.receive(meta, source=source, backward=True)
        state.arriving[Kind.RECV_B, action.stage, action.microbatch] = wait

    def _offload(self, action: Action, state: State) -> None:
        saved = state.held[action.stage, action.microbatch].saved
        assert saved is not None
        saved.offload()
        state.live -= self.share

    def _reload(self, action: Action, state: State) -> None:
        saved = state.held[action.stage, action.microbatch].saved
        assert saved is not None
        saved.reload()
        state.live += self.share

    def _send_early(self, codes: Sequence[int], place: int, state: State) -> set[int]:
        """Send a block's forward output before its backward runs; return which action that was."""
        first = unpack(codes[place])
        for later in range(place + 2, len(codes)):
            action = unpack(codes[later])
            if (action.kind, action.stage, action.microbatch) == (Kind.SEND_F, first.stage, first.microbatch):
                if any(unpack(code).kind is Kind.SEND_F for code in codes[place + 2 : later]):
                    return set()  # another message of the channel may come first
                self._run(action, state)
                return {later}
        return set()

    def _earlier(self, stage: int, unit: int, state: State) -> tuple[Piece, ...]:
        first = unit - unit % self.schedule.num_splits
        return tuple(state.pieces[stage, index] for index in range(first, unit))

    def _is_last(self, stage: int) -> bool:
        return stage % self.num_stages == self.num_stages - 1

    def _check_stages(self) -> None:
        requested = sorted(s for s, rank in enumerate(self.place) if rank == self.channels.rank)
        if sorted(self.stages) != requested:
            msg = f"rank {self.channels.rank} runs stages {requested}; it was given modules of {sorted(self.stages)}"
            raise RunError(msg)
        for stage, module in self.stages.items():
            if not any(parameter.requires_grad for parameter in module.parameters()) and stage == 0:
                msg = "stage 0 has no parameter that takes a gradient: nothing would run backward through it"
                raise RunError(msg)

    def _pairs(self) -> list[tuple[int, int]]:
        """Return ordered pairs of ranks between which messages go."""
        pairs = set()
        for stage in range(len(self.place) - 1):
            if not self._is_last(stage) and self.place[stage] != self.place[stage + 1]:
                pairs |= {
                    (self.place[stage], self.place[stage + 1]),
                    (self.place[stage + 1], self.place[stage]),
                }
        return sorted(pairs)

    def _sharing(self) -> Iterator[set[int]]:
        """Yield the sets of ranks that hold copies of parameters: of replicas, and tied."""
        bases = range(0, len(self.place), self.num_stages)
        for stage in range(self.num_stages):
            yield {self.place[base + stage] for base in bases}
        for (first, _), (second, _) in self.tied:
            yield from ({self.place[base + first], self.place[base + second]} for base in bases)

    def _learn_shapes(self, inputs: Sequence[Tensor]) -> None:
        """Run every stage once without gradients, on zeros beyond the first, to learn what stages hand on."""
        for stage in range(self.num_stages - 1):
            owner, meta = self.place[stage], None
            if owner == self.channels.rank:
                x = inputs[0] if stage == 0 else _zeros(self.metas[stage - 1])
                with torch.no_grad(), torch.random.fork_rng():
                    y = self.stages[stage](x.to(self.channels.device))
                meta = (tuple(y.shape), y.dtype)
            self.metas[stage] = self.channels.share(meta, owner=owner)

    def _check_shape(self, stage: int, action: Action, y: Tensor) -> None:
        shape, dtype = self.metas[stage % self.num_stages]
        if (tuple(y.shape), y.dtype) != (shape, dtype):
            raise RunError(
                f"rank {self.channels.rank}, {action}: stage {stage} gave {tuple(y.shape)} of {y.dtype}; "
                f"the first micro-batch gave {shape} of {dtype}, and all must be alike"
            )

    def _sum_copies(self) -> None:
        """Add up gradients of parameters that exist more than once: in replicas, and tied between stages."""
        copies = self.schedule.placement.num_replicas
        if copies > 1:
            for stage in range(self.num_stages):
                ids = range(stage, len(self.place), self.num_stages)
                names = self.channels.share(self._names(stage), owner=self.place[stage])
                for name in names:
                    self._sum([(item, name) for item in ids])
        for first, second in self.tied:
            for base in range(0, len(self.place), self.num_stages):
                self._sum([(base + first[0], first[1]), (base + second[0], second[1])])

    def _names(self, stage: int) -> list[str] | None:
        module = self.stages.get(stage)
        return None if module is None else [name for name, _ in module.named_parameters()]

    def _sum(self, places: Sequence[tuple[int, str]]) -> None:
        """Add up one gradient over the stages that hold a copy of its parameter."""
        mine = [self.stages[stage].get_parameter(name) for stage, name in places if stage in self.stages]
        mine = list({id(parameter): parameter for parameter in mine}.values())
        ranks = [self.place[stage] for stage, _ in places]
        if not mine:
            return
        total = torch.zeros_like(self.store.of(mine[0]))
        for parameter in mine:
            total += self.store.of(parameter)
        self.channels.sum(total, ranks)
        for parameter in mine:
            self.store.of(parameter).copy_(total)


def lowered(schedule: Schedule | LoweredSchedule) -> LoweredSchedule:
    """Return what runs of a schedule: its own sends and receives, or those that follow from its order.

    Raises
    ------
    RunError
        If it cannot run; the message names the first rule it breaks, a deadlock with its circle.
    """
    value = schedule if isinstance(schedule, LoweredSchedule) else None
    plan = schedule.schedule if isinstance(schedule, LoweredSchedule) else schedule
    report = check(plan, lowered=value)
    runs = "eager" in report.deadlock_free  # the channels are this: no send waits for its receive
    broken = [violation for violation in report.violations if violation.rule != "deadlock" or not runs]
    if broken:
        raise RunError(f"{plan.name} cannot run: {broken[0].message.removeprefix(f'{plan.name}: ')}")
    return value or lower(plan)


def _zeros(meta: Meta) -> Tensor:
    shape, dtype = meta
    return torch.zeros(shape, dtype=dtype)
