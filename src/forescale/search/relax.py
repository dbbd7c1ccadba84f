"""Questions with one constraint relaxed: what the best layout would gain and, where nothing fits, what lets one fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.errors import SpecError
from forescale.question import Question, question_of
from forescale.search.evaluate import states_of
from forescale.search.layouts import candidates_of
from forescale.search.least import MARGIN
from forescale.search.scenarios import fastest, scenarios, smallest, step_of_all
from forescale.search.solve import Watch
from forescale.search.tree import enumerate_cells
from forescale.spec.cluster import Cluster
from forescale.spec.framework import searched
from forescale.spec.layout import ALL_LAYERS, Layout, Overlap, Recompute
from forescale.spec.model import Model
from forescale.spec.space import NAMES, Space
from forescale.spec.workload import Workload
from forescale.struct import Struct
from forescale.units import GIB, counted, format_bytes

MORE_MEMORY = (1.0 * GIB, 8.0 * GIB)
"""Bytes per device beyond the limit of memory under which a search says what the best layout would gain."""
TIMES_MEMORY = (1.5, 2.0)
"""Multiples of the limit, likewise."""
SPLIT_BACKWARD = ("zb-h1", "interleaved-zb", "zbv")
"""Schedules that fill bubbles with weight gradients: what a search does not try unless asked to."""
INTERLEAVED = "interleaving needs m % pp = 0"
"""The constraint of the closed form of interleaved 1F1B."""
UNEVEN = ("heads over tp", "key/value heads over tp", "feed-forward over tp")
"""Constraints that a tensor-parallel degree divides something."""
DOUBLINGS = 8
"""Times that the number of devices is doubled, or a sequence halved, at most."""
LEAST_SAVED = 1e-3
"""Share of the memory of the smallest layout that a change has to save to be listed."""
SHORTEST = 512
"""Tokens below which a sequence is not cut."""


def memory_limits(limit: float) -> tuple[float, ...]:
    """Return a limit of memory and the relaxed ones, ascending [byte]."""
    return tuple(
        sorted({limit, *(limit + more for more in MORE_MEMORY), *(limit * times for times in TIMES_MEMORY)})
    )


def more_memory(
    values: Sequence[float], limits: Sequence[float], *, every: bool = False
) -> tuple[Relaxation, ...]:
    """Return what more memory would buy, at the limits where the shortest step under each improves, or at every."""
    best = values[0]
    if best == float("inf"):
        return ()
    gains: list[Relaxation] = []
    for limit, step_time in zip(limits[1:], values[1:], strict=True):
        if every or step_time < (gains[-1].step_time_s if gains else best):
            change = f"{format_bytes(limit - limits[0])} more per device"
            gain = 1.0 - step_time / best
            gains.append(
                Relaxation(constraint="memory", change=change, step_time_s=float(step_time), gain=float(gain))
            )
    return tuple(gains)


class Relaxed(Struct, frozen=True):
    """A question with one constraint relaxed."""

    constraint: str
    change: str
    question: Question
    options: tuple[str, ...] = ()
    """Options of the command line that relax it, where some do."""

    @classmethod
    def in_space(cls, question: Question, constraint: str, change: str, **space: Any) -> Relaxed:  # noqa: ANN401
        """Return a question with other fields of its space."""
        return cls(constraint, change, question.with_space(**space))

    @classmethod
    def in_workload(
        cls,
        question: Question,
        constraint: str,
        change: str,
        options: tuple[str, ...] = (),
        **work: Any,  # noqa: ANN401
    ) -> Relaxed:
        """Return a question with other fields of its workload."""
        return cls(
            constraint, change, replace(question, workload=replace(question.workload, **work)), options
        )


def relaxations(
    question: Question, step_time: float, refused: dict[str, int], watch: Watch
) -> tuple[Relaxation, ...]:
    """Return what each relaxed question gains over the best step found [s], most first; 0 where nothing is.

    The step is of one site by itself, where sites train so. Those left when the search is stopped are not among them.
    """
    batch, result = question.workload.global_batch_size, []
    before = step_of_all(question, step_time)
    for entry in relaxed(question, refused):
        tokens = entry.question.workload.global_batch_size / batch
        try:
            best = fastest(entry.question, watch=watch, cutoff=step_time * tokens)
        except SpecError:
            continue
        if not best.done:
            break
        seconds = step_of_all(entry.question, min(best.step_time, step_time * tokens))
        result.append(
            Relaxation(
                constraint=entry.constraint,
                change=entry.change,
                step_time_s=seconds,
                gain=max(0.0, 1.0 - seconds / (before * tokens)),
                strategy=best.strategy,
            )
        )
    return tuple(sorted(result, key=lambda item: -item.gain))


def relaxed(question: Question, refused: dict[str, int]) -> Iterator[Relaxed]:
    """Yield the question with each of its constraints relaxed by itself."""
    yield from wider(question)
    yield from _uneven(question, refused)
    yield from _switched_on(question, refused)
    yield from _batches(question)
    yield from _network(question)
    yield from exchanged(question)


def wider(question: Question) -> Iterator[Relaxed]:
    """Free what is held in fewer values than a search tries anyway, and drop a framework's rules one by one."""
    usual, limits = Space(), _limits_of_framework(question)
    for name in NAMES:
        local, free = getattr(question.space, name), getattr(usual, name)
        if local == getattr(limits, name):
            continue
        idle = name in ("ep", "etp") and not question.model.is_moe
        if idle or local is None or (free is not None and set(free) <= set(local)):
            continue
        if free is None:
            yield Relaxed.in_space(question, name, f"{name} free", **{name: None})
            continue
        more = tuple(value for value in free if value not in local)
        change = f"{name} {', '.join(map(_word, more))} too"
        yield Relaxed.in_space(question, name, change, **{name: (*local, *more)})
    for rule in question.space.rules:
        left = tuple(item for item in question.space.rules if item != rule)
        yield Relaxed.in_space(question, rule.name, f"without {rule.name}", rules=left)


def _limits_of_framework(question: Question) -> Space:
    """Return what a search may choose by default under the question's framework."""
    space = Space(base=question.space.base)
    return space if question.framework is None else searched(question.framework, space, limited=False)


def _without_framework(question: Question) -> Iterator[Relaxed]:
    """Leave out the limits of the framework, and operators that were recorded of its code."""
    if question.framework is None:
        return
    limits, usual = _limits_of_framework(question), Space()
    free = {
        name: getattr(usual, name)
        for name in NAMES
        if getattr(question.space, name) == getattr(limits, name) != getattr(usual, name)
    }
    rules = tuple(rule for rule in question.space.rules if rule not in limits.rules)
    allowed = question.with_space(**free, rules=rules)
    change = f"--framework none, without the limits of {question.framework.name}"
    yield Relaxed("framework", change, replace(allowed, framework=None))


def _uneven(question: Question, refused: dict[str, int]) -> Iterator[Relaxed]:
    """Let tensor parallelism cut what it does not divide, as if parts of heads cost their share."""
    names = [name for name in UNEVEN if refused.get(name)]
    if names:
        change = "tp that need not divide heads and widths, ideally"
        yield Relaxed.in_space(question, " and ".join(names), change, waived=UNEVEN)


def _switched_on(question: Question, refused: dict[str, int]) -> Iterator[Relaxed]:
    """Allow what a search does not try unless asked to."""
    space, base = question.space, question.space.base
    if space.schedule == (None,):
        change, schedules = f"schedule {', '.join(SPLIT_BACKWARD)} too", (None, *SPLIT_BACKWARD)
        yield Relaxed.in_space(question, "schedule", change, schedule=schedules)
    if space.schedule == (None,) and refused.get(INTERLEAVED):
        change = "schedule interleaved-1f1b too: any number of micro-batches"
        yield Relaxed.in_space(question, INTERLEAVED, change, schedule=(None, "interleaved-1f1b"))
    if "ulysses" not in space.cp_kind:
        kinds = (*space.cp_kind, "ulysses")
        yield Relaxed.in_space(question, "cp_kind", "cp_kind ulysses too", cp_kind=kinds)
    for name in Overlap.__dataclass_fields__:
        idle = name in ("expert", "shared_experts") and not question.model.is_moe
        if not idle and not getattr(base.overlap, name):
            yield Relaxed.in_space(question, "overlap", f"overlap {name} too", overlap=((name,),))
    if base.offload.optimizer == 0.0 and space.optimizer_offload == (None,):
        change, shares = "optimizer_offload 1 too", (None, 1.0)
        yield Relaxed.in_space(question, "optimizer_offload", change, optimizer_offload=shares)


def _batches(question: Question) -> Iterator[Relaxed]:
    """Take twice the batch, and the next one that more data-parallel degrees divide; gains are per token."""
    batch, devices = question.workload.global_batch_size, question.cluster.num_devices
    power = devices & -devices
    even = -(-batch // power) * power
    for other in dict.fromkeys((even, 2 * batch)):
        if other != batch:
            change = f"{counted(other, 'sequence')}, per token"
            yield Relaxed.in_workload(question, "global_batch_size", change, global_batch_size=other)


def _network(question: Question) -> Iterator[Relaxed]:
    """Double the bandwidth of each tier that is in use, and the devices that inner ones join."""
    cluster, inside = question.cluster, 1
    for index, tier in enumerate(cluster.tiers):
        outermost = index == len(cluster.tiers) - 1
        if inside >= cluster.num_devices:
            return
        link = None if tier.link_bandwidth is None else 2.0 * tier.link_bandwidth
        faster = replace(tier, bandwidth=2.0 * tier.bandwidth, link_bandwidth=link)
        change = f"twice the bandwidth of {tier.name}"
        yield Relaxed("network", change, _with_tier(question, index, faster))
        whole_site = not outermost and cluster.tiers[index + 1].wide_area
        if not outermost and not whole_site and 0 < tier.size < cluster.num_devices:
            larger = replace(tier, size=2 * tier.size)
            outer = cluster.tiers[index + 1].size
            if not outer or larger.size <= outer:
                change = f"{counted(larger.size, 'device')} in {tier.name}"
                yield Relaxed("network", change, _with_tier(question, index, larger))
        inside = tier.size or cluster.num_devices


def exchanged(question: Question) -> Iterator[Relaxed]:
    """Let sites that train by themselves exchange half as often, later, in fewer bits."""
    outer = question.workload.outer
    if outer is None:
        return
    late, few = max(1, outer.overlap), min(4.0, outer.bits)
    for change, other in (
        (f"every {2 * outer.every} steps", replace(outer, every=2 * outer.every)),
        (f"overlap {late}", replace(outer, overlap=late)),
        (f"bits {few:g}", replace(outer, bits=few)),
    ):
        if other != outer:
            yield Relaxed.in_workload(question, "outer", change, outer=other)


def _with_tier(question: Question, index: int, tier: Any) -> Question:  # noqa: ANN401 (a Tier)
    tiers = question.cluster.tiers
    changed = (*tiers[:index], tier, *tiers[index + 1 :])
    return replace(question, cluster=replace(question.cluster, tiers=changed))


def _word(value: object) -> str:
    if isinstance(value, Recompute):
        return str(value.policy or " ".join(value.modules) or value.granularity)
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return "1f1b" if value is None else str(value).lower()


class Remedy(Struct, frozen=True, kw_only=True):
    """One change, and what the smallest layout then needs."""

    constraint: str
    change: str
    peak_bytes: float
    fits: bool
    strategy: Layout
    """The smallest layout."""
    options: tuple[str, ...] = ()
    """Options of the command line that make the change, where some do."""


def remedies(
    question: Question | Model,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    *,
    known: tuple[float, Layout] | None = None,
    **parts: Any,  # noqa: ANN401 (fields of a question)
) -> tuple[Remedy, ...]:
    """Return changes one of which makes a layout fit, those that do first; it takes a question or parts of one.

    More memory, more devices, dimensions that are held, states and activations on the host, shorter sequences: the
    least of each by doubling. A change that does not suffice by itself, but needs less, is listed with what would still
    be needed. A search that found nothing knows the peak of the smallest layout, and that layout (`known`).
    """
    question = question_of(question, cluster, workload, **parts)
    limit, result, most = question.memory_limit, [], np.inf
    if (least := known or _smallest(question)) is not None:
        peak, layout = least
        most = peak * (1.0 - LEAST_SAVED)
        change = f"{format_bytes(peak - limit)} more per device"
        result.append(Remedy(constraint="memory", change=change, peak_bytes=peak, fits=True, strategy=layout))
    freed = [one for item in _without_framework(question) for one in _tried(item, limit, most=most)]
    rules = {rule.name for rule in _limits_of_framework(question).rules} if not freed else set()
    for item in wider(question):  # one rule of a framework saves nothing where all of them do not
        result += [] if item.constraint in rules else _tried(item, limit, most=most)
    result += freed
    for series in (_on_host(question), _more_devices(question), _shorter(question)):
        result += _first_that_fits(series, limit, most)
    return tuple(sorted(result, key=lambda one: not one.fits))


def _first_that_fits(series: Iterable[Relaxed], limit: float, most: float) -> list[Remedy]:
    """Return the first change of a series that suffices, or what the furthest comes to, if that is at most `most`."""
    tried: list[Relaxed] = []
    for item in series:
        if result := _tried(item, limit, most=limit):
            return result
        tried.append(item)
    for entry in reversed(tried):
        with suppress(SpecError):
            return _remedy(entry, limit, most)
    return []


def _tried(relaxed: Relaxed, limit: float, *, most: float = np.inf) -> list[Remedy]:
    """Return what a change comes to; nothing where it makes no legal layout, or none that needs at `most` as much."""
    try:
        return _remedy(relaxed, limit, most)
    except SpecError:
        return []


def _remedy(relaxed: Relaxed, limit: float, most: float) -> list[Remedy]:
    """Return what `_tried` does.

    Raises
    ------
    SpecError
        If there is no such question.
    """
    if (result := _smallest(relaxed.question, most)) is None:
        return []
    peak, layout = result
    return [
        Remedy(
            constraint=relaxed.constraint,
            change=relaxed.change,
            peak_bytes=peak,
            fits=peak <= limit,
            strategy=layout,
            options=relaxed.options,
        )
    ]


def _smallest(question: Question, most: float = np.inf) -> tuple[float, Layout] | None:
    """Return the peak of the smallest layout of a question, and that layout; None if none is legal, or that small.

    It is of one site by itself, where sites train so.
    """
    best: tuple[float, Layout] | None = None
    for scenario in scenarios(question.site):
        if most < np.inf and least_states(scenario) * MARGIN > most:
            continue
        cells = enumerate_cells(
            scenario.model, scenario.cluster, scenario.workload, scenario.space.whole(scenario.model)
        )
        result = smallest(scenario, cells, most)
        if (peak := result.incumbent.least) < (np.inf if best is None else best[0]):
            best = peak, result.layout(0)
    return best


def _on_host(question: Question) -> Iterator[Relaxed]:
    """Move activations, optimizer states, and both, to the host's memory."""
    offload = question.space.base.offload
    states = {} if offload.optimizer else {"optimizer_offload": (1.0,)}
    layers = {} if offload.activation_layers else {"activation_offload": (ALL_LAYERS,)}
    named = {"optimizer_offload": "optimizer 1", "activation_offload": "activations all"}
    for changes in (layers, states, {**states, **layers} if states and layers else {}):
        if changes:
            words = [named[name].split() for name in changes]
            change = f"{' and '.join(what for what, _ in words)} on the host"
            options = tuple(chain.from_iterable((f"--offload-{what}", much) for what, much in words))
            moved = question.with_space(**changes)
            yield Relaxed("offload", change, moved, options)


def _more_devices(question: Question) -> Iterator[Relaxed]:
    """Take more devices as far as the network goes: twice as many and so on, and half-way between."""
    devices = question.cluster.num_devices
    for step in range(1, 2 * DOUBLINGS + 1):
        count, rest = divmod((2 + step % 2) * devices << (step // 2), 2)
        if rest:
            continue
        try:
            cluster = question.cluster.sized(count)
        except SpecError:
            return
        change, options = counted(cluster.num_devices, "device"), ("--devices", str(cluster.num_devices))
        more = replace(question, cluster=cluster)
        yield Relaxed("devices", change, more, options)


def _shorter(question: Question) -> Iterator[Relaxed]:
    """Halve the sequence."""
    for power in range(1, DOUBLINGS + 1):
        length, rest = divmod(question.workload.seq_len, 1 << power)
        if rest or length < SHORTEST:
            return
        change, options = f"seq_len {length:,}", ("--seq-len", str(length))
        yield Relaxed.in_workload(question, "seq_len", change, options, seq_len=length)


class Relaxation(Struct, frozen=True, kw_only=True):
    """What the best layout would gain if one limit were lifted."""

    constraint: str
    change: str
    step_time_s: float
    gain: float
    """Fraction of the time per token saved."""
    strategy: Layout | None = None
    """The layout that gains it, where it was looked for."""


def least_states(question: Question) -> float:
    """Return the bytes of states that every layout of a question exceeds: each held once, spread over all devices."""
    base, row = question.space.base, np.zeros(1, dtype=np.int64)
    spread = replace(base, zero=3, dp_shard=question.cluster.num_devices)
    return float(states_of(question, *candidates_of(question, [spread], base), row)[0])
