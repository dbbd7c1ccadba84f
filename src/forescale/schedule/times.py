"""Durations that a schedule is timed with: per stage and kind, per link, per candidate; and by class."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from forescale.errors import ScheduleError, UnknownNameError, out_of_range, wrong_count
from forescale.files import packaged
from forescale.numeric import Array, Numeric
from forescale.records import record
from forescale.schedule.actions import Kind
from forescale.schedule.model import Schedule
from forescale.schedule.program import NUM_KINDS, Ints
from forescale.struct import Struct
from forescale.units import counted

FILE = "transports"


class Transport(Struct, frozen=True, kw_only=True):
    """Overheads of a transport and of the runner that uses it; milliseconds."""

    message: float = 0.0
    """From the end of a pass to the start of one on another rank that stood waiting for it."""
    host: float = 0.0
    """A rank's own time for each pass."""
    posted: float = 0.0
    """A rank's own time for each send or receive."""
    apart: float = 1.0
    """I and W over B."""
    jitter: float = 0.0
    """Standard deviation of a pass's duration over its mean."""
    source: str = ""

    def applied(self, times: StageTimes, links: LinkTimes) -> tuple[StageTimes, LinkTimes]:
        """Return durations in milliseconds with these overheads; messages that are given take what they are given."""
        latency = 0.0 if links.transfer else self.message
        return replace(times, host=self.host, apart=self.apart), replace(
            links, latency=latency, host=self.posted
        )


NO_TRANSPORT = Transport()


def transport(name: str) -> Transport:
    """Return the overheads of a transport by its name.

    Raises
    ------
    UnknownNameError
        If it was not measured.
    """
    known = packaged(FILE)
    if name not in known:
        raise UnknownNameError("transport", name, known)
    return record(Transport, known[name], name, FILE)


class StageTimes(Struct, frozen=True, kw_only=True, eq=False):
    """Seconds (or any unit) of one pass of one micro-batch through a stage.

    Each is a number, an array over stages (num_stages,), or over stages and candidates (num_stages, N).
    """

    forward: Numeric
    input_grad: Numeric
    weight_grad: Numeric
    recompute: Numeric = 0.0
    """Forward work repeated inside backward, before the input gradient."""
    offload: Numeric = 0.0
    """Copy of a stage's activations to the host."""
    reload: Numeric = 0.0
    overlap_saving: Numeric = 0.0
    """Part of the shorter of F and B that an overlapped F+B block hides; 0 runs them one after the other."""
    hidden: Numeric = 0.0
    """What a stage's F and B together are shorter in overlapped blocks; a block of two stages saves half of each."""
    split_shares: tuple[float, ...] | None = None
    """Part of a sequence's tokens in each piece; None is equal parts."""
    causal_forward: Numeric = 0.0
    """Part of `forward` spent on causal attention over all earlier tokens: between pieces it goes by the squares
    of where they end, all else by their tokens."""
    causal_backward: Numeric = 0.0
    """The same part of `input_grad` and `recompute`."""
    apart: Numeric = 1.0
    """I and W over B: what passes of their own cost beside one that computes both gradients."""
    host: Numeric = 0.0
    """What a rank spends on each pass beside computing, after it: the next pass waits for that, messages do not."""

    @property
    def by_candidate(self) -> bool:
        """Whether any duration differs by candidate."""
        passes = (self.forward, self.input_grad, self.weight_grad, self.recompute, self.offload, self.reload)
        others = (self.causal_forward, self.causal_backward, self.apart, self.host, self.hidden)
        return any(np.ndim(pass_) == 2 for pass_ in (*passes, *others))

    def table(self, num_stages: int) -> Array:
        """Return passes by kind: (6, num_stages, N), rows F B I W OFFLOAD RELOAD."""
        names = ("forward", "input_grad", "weight_grad", "recompute", "offload", "reload")
        forward, inputs, weights, recompute, offload, reload = (
            _column(getattr(self, name), num_stages, name, "stage") for name in names
        )
        backward = (inputs + weights) / _column(self.apart, num_stages, "apart", "stage") + recompute
        rows = (forward, backward, inputs + recompute, weights, offload, reload)
        table = np.stack(np.broadcast_arrays(*rows))
        if not np.all(table >= 0.0):
            raise ScheduleError(out_of_range("a duration", "a negative number", "0 or more"))
        return table

    def causal_table(self, num_stages: int) -> Array:
        """Return what of `table` goes to causal attention, in the same rows."""
        forward = _column(self.causal_forward, num_stages, "causal_forward", "stage")
        backward = _column(self.causal_backward, num_stages, "causal_backward", "stage")
        none = np.zeros_like(forward)
        return np.stack(np.broadcast_arrays(forward, backward, backward, none, none, none))


class LinkTimes(Struct, frozen=True, kw_only=True, eq=False):
    """Seconds of one message between neighbouring stages: latency, then transfer at the link's bandwidth.

    Each is a number, an array over boundaries (num_stages - 1,), boundary s being between stages s and
    s + 1, or over boundaries and candidates (num_stages - 1, N). The gradient going back costs as much as the
    activation going forward unless `backward_transfer` says otherwise.
    """

    latency: Numeric = 0.0
    transfer: Numeric = 0.0
    backward_transfer: Numeric | None = None
    host: Numeric = 0.0
    """What each of the two ranks spends on a message beside computing, after the pass that gives or takes it."""

    @property
    def by_candidate(self) -> bool:
        """Whether any message differs by candidate."""
        value = (self.latency, self.transfer, self.backward_transfer, self.host)
        return any(np.ndim(item) == 2 for item in value if item is not None)

    def tables(self, num_stages: int) -> tuple[Array, Array]:
        """Return latency and transfer by direction and sending stage: each (2, num_stages, N)."""
        back = self.transfer if self.backward_transfer is None else self.backward_transfer
        return (
            _directed(self.latency, self.latency, num_stages, "latency"),
            _directed(self.transfer, back, num_stages, "transfer"),
        )


FREE = LinkTimes()


def from_share(
    *,
    vpp: float,
    forward: Numeric = 1.0,
    input_grad: Numeric = 1.0,
    weight_grad: Numeric = 1.0,
    recompute: Numeric = 0.0,
    overlap_saving: Numeric = 0.0,
) -> StageTimes:
    """Return stage times from those of one micro-batch through a device's full share: a chunk takes 1/vpp."""
    return StageTimes(
        forward=forward / vpp,
        input_grad=input_grad / vpp,
        weight_grad=weight_grad / vpp,
        recompute=recompute / vpp,
        overlap_saving=overlap_saving,
    )


def _column(value: Numeric, count: int, name: str, per: str) -> Array:
    """Return a value of each stage or boundary; (count, N)."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        return np.full((count, 1), float(array))
    if array.shape[0] != count:
        other = counted(count, per)
        values, fix = counted(len(array), "value"), f"give one value, or one per {per}"
        raise ScheduleError(wrong_count(name, values, "the schedule", other, fix))
    return array if array.ndim == 2 else array[:, None]


def _directed(forward: Numeric, backward: Numeric, num_stages: int, name: str) -> Array:
    down, up = (_column(item, num_stages - 1, name, "boundary") for item in (forward, backward))
    table = np.zeros((2, num_stages, max(down.shape[1], up.shape[1])))
    table[0, :-1], table[1, 1:] = down, up
    return table


class Durations(Struct, frozen=True, kw_only=True, eq=False):
    """Stage and link times laid out by the classes of one compiled schedule."""

    nodes: Array
    """(num_classes + 1,) of one candidate or (num_classes + 1, N); the last is zero."""
    delays: Array
    """(num_delays + 1,) or (num_delays + 1, N), or of one column for all candidates; the last is zero."""
    host: Array | None = None
    """What ranks spend beside computing after each node, in the rows of `nodes`; None of nothing."""

    @property
    def spent(self) -> Array:
        """What ranks spend on each node in all."""
        return self.nodes if self.host is None else self.nodes + self.host

    def some(self, candidates: slice) -> Durations:
        """Return the durations of some candidates."""
        local = (
            item if item is None or item.shape[1] == 1 else item[:, candidates]
            for item in (self.delays, self.host)
        )
        delays, host = local
        assert delays is not None
        return Durations(nodes=self.nodes[:, candidates], delays=delays, host=host)


def lay_out(
    schedule: Schedule,
    times: StageTimes,
    links: LinkTimes,
    *,
    blocks: Ints,
    passing: bool,
    early: bool = False,
) -> Durations:
    """Return durations by class: single actions (split, kind, stage), blocks, messages, and a final zero.

    `blocks` are pairs of classes that run as one (num_blocks, 2), of which only the backward is a node of the
    block's class where messages leave `early`; `passing` messages delay nothing but their receiver, so that their
    transfer is part of the delay.
    """
    stages, replicas = schedule.num_stages, schedule.placement.num_replicas
    shares = _shares(times, schedule.num_splits)
    passes = _spread(times.table(stages), shares, replicas)
    if schedule.num_splits > 1:
        squares = np.diff(np.cumsum(shares) ** 2, prepend=0.0)
        passes = passes + _spread(times.causal_table(stages), squares - shares, replicas)
    latency, transfer = links.tables(stages)
    sent = _spread(transfer, shares, replicas)
    late = _spread(latency, np.ones_like(shares), replicas)
    forward, backward = passes[blocks[:, 0]], passes[blocks[:, 1]]
    joined = forward + backward - times.overlap_saving * np.minimum(forward, backward)
    if np.any(times.hidden):
        hidden = _spread(_hidden(times, stages), shares, replicas)
        joined = joined - 0.5 * (hidden[blocks[:, 0]] + hidden[blocks[:, 1]])
    if early:
        joined = joined - forward
    delay = late + sent if passing else late
    host = _host(schedule, times, links)
    if host is not None:
        delay = delay - host.reshape(schedule.num_splits, NUM_KINDS, -1)[:, [Kind.F, Kind.I]].reshape(
            len(delay), -1
        )
        both = host[blocks[:, 1]] + (0.0 if early else host[blocks[:, 0]])
        host = np.concatenate((host, both, np.zeros((len(sent) + 1, host.shape[1]))))
    width = max(part.shape[1] for part in (passes, sent, delay))
    wide = (np.broadcast_to(part, (len(part), width)) for part in (passes, joined, sent))
    nodes = np.concatenate((*wide, np.zeros((1, width))))
    delays = np.concatenate((delay, np.zeros((1, delay.shape[1]))))
    if times.by_candidate or links.by_candidate:
        return Durations(nodes=nodes, delays=delays, host=host)
    return Durations(nodes=nodes[:, 0], delays=delays[:, 0], host=None if host is None else host[:, 0])


def _hidden(times: StageTimes, num_stages: int) -> Array:
    """Return what passes of a stage hide in overlapped blocks, by kind as `StageTimes.table`."""
    column = _column(times.hidden, num_stages, "hidden", "stage")
    return np.broadcast_to(column, (NUM_KINDS, *column.shape))


def _host(schedule: Schedule, times: StageTimes, links: LinkTimes) -> Array | None:
    """Return what ranks spend beside computing after each class of action, as rows of passes; None of nothing."""
    if not (np.any(times.host) or np.any(links.host)):
        return None
    stages = schedule.num_stages
    column = _column(times.host, stages, "host", "stage")
    posted = _column(links.host, stages - 1, "host", "boundary")
    home = np.array(schedule.placement.rank_of_stage).reshape(-1, stages)
    crossed = np.zeros((len(home), stages + 1, posted.shape[1]))
    crossed[:, 1:-1] = (home[:, 1:] != home[:, :-1])[..., None] * posted
    passing = column + crossed[:, :-1] + crossed[:, 1:]
    table = np.zeros((schedule.num_splits, NUM_KINDS, *passing.shape))
    table[:, [Kind.F, Kind.B, Kind.I]], table[:, Kind.W] = passing, column
    return table.reshape(-1, passing.shape[2])


def _shares(times: StageTimes, num_splits: int) -> Array:
    if times.split_shares is None:
        return np.full(num_splits, 1.0 / num_splits)
    if len(times.split_shares) != num_splits:
        allowed = f"{counted(num_splits, 'part')}, one per sequence piece"
        raise ScheduleError(wrong_count("split_shares", len(times.split_shares), "the schedule", allowed))
    return np.array(times.split_shares)


def _spread(table: Array, shares: Array, replicas: int) -> Array:
    """Return (rows, stages, N) as flat classes (splits * rows * stages * replicas, N)."""
    spread = np.tile(table, (1, replicas, 1)) * shares.reshape(-1, 1, 1, 1)
    return spread.reshape(-1, table.shape[2])
