"""Where nothing fits: the smallest changes by which something would, each found by a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.search.cells import enumerate_cells
from forescale.search.landscape import Asked, smallest
from forescale.search.relax import Relaxed, wider
from forescale.search.scenarios import scenarios
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.space import Space
from forescale.spec.strategy import ALL_LAYERS, Strategy
from forescale.spec.workload import Workload
from forescale.units import counted, format_bytes

DOUBLINGS = 8
"""Times that the number of devices is doubled, or a sequence halved, at most."""
SHORTEST = 512
"""Tokens below which a sequence is not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change, and what the smallest layout then needs."""

    constraint: str
    change: str
    peak_bytes: float
    fits: bool
    strategy: Strategy
    """The smallest layout."""


def remedies(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    space: Space | None = None,
    max_memory: float | None = None,
    fixed: Mapping[str, int | bool] | None = None,
    costs: Costs | None = None,
    safe: bool = False,
) -> tuple[Remedy, ...]:
    """Return changes one of which makes a layout fit, those that do first; arguments as for `search`.

    More memory, more devices, dimensions that are held, states and activations on the host, shorter sequences: the
    least of each by doubling. A change that does not suffice by itself is listed with what would still be needed.
    """
    asked = Asked(
        model=model,
        cluster=cluster,
        workload=workload,
        space=(space or Space()).fixed(fixed or {}),
        max_memory=max_memory,
        costs=costs or Costs(),
        safe=safe,
    )
    limit, found = asked.memory_limit, []
    if (least := _smallest(asked)) is not None:
        peak, strategy = least
        change = f"{format_bytes(peak - limit)} more per device"
        found.append(
            Remedy(constraint="memory", change=change, peak_bytes=peak, fits=True, strategy=strategy)
        )
    for each in wider(asked):
        found += _tried(each, limit)
    for series in (_on_host(asked), _more_devices(asked), _shorter(asked)):
        found += _first_that_fits(series, limit)
    return tuple(sorted(found, key=lambda one: not one.fits))


def _first_that_fits(series: Iterable[Relaxed], limit: float) -> list[Remedy]:
    """Return the first change of a series that suffices, or what the furthest comes to."""
    tried: list[Relaxed] = []
    for each in series:
        if found := _tried(each, limit, most=limit):
            return found
        tried.append(each)
    for each in reversed(tried):
        if found := _tried(each, limit):
            return found
    return []


def _tried(relaxed: Relaxed, limit: float, *, most: float = np.inf) -> list[Remedy]:
    """Return what a change comes to; nothing where it makes no legal layout, or none that needs at `most` as much."""
    try:
        found = _smallest(relaxed.asked, most)
    except SpecError:
        return []
    if found is None:
        return []
    peak, strategy = found
    return [
        Remedy(
            constraint=relaxed.constraint,
            change=relaxed.change,
            peak_bytes=peak,
            fits=peak <= limit,
            strategy=strategy,
        )
    ]


def _smallest(asked: Asked, most: float = np.inf) -> tuple[float, Strategy] | None:
    """Return the peak of the smallest layout of a question, and that layout; None if none is legal, or that small."""
    best: tuple[float, Strategy] | None = None
    for each in scenarios(asked):
        cells = enumerate_cells(each.model, each.cluster, each.workload, each.space.whole(each.model))
        run = smallest(each.question, cells, most)
        found = run.incumbents
        if len(found.peak) and (best is None or found.peak[0] < best[0]):
            layouts = replace(cells.whole, columns=found.rows)
            best = float(found.peak[0]), layouts.strategy(int(found.variant[0]), 0)
    return best


def _on_host(asked: Asked) -> Iterator[Relaxed]:
    """Move activations, optimizer states, and both, to the host's memory."""
    held = asked.space.base.offload
    states = {} if held.optimizer else {"optimizer_offload": (1.0,)}
    layers = {} if held.activation_layers else {"activation_offload": (ALL_LAYERS,)}
    names = {"optimizer_offload": "optimizer_offload 1", "activation_offload": "activation_offload all"}
    for changes in (layers, states, {**states, **layers} if states and layers else {}):
        if changes:
            change = " and ".join(names[name] for name in changes)
            space = replace(asked.space, **changes)
            yield Relaxed(constraint="offload", change=change, asked=replace(asked, space=space))


def _more_devices(asked: Asked) -> Iterator[Relaxed]:
    """Take more devices as far as the network goes: twice as many and so on, and half-way between."""
    devices = asked.cluster.num_devices
    for step in range(1, 2 * DOUBLINGS + 1):
        count, rest = divmod((2 + step % 2) * devices << (step // 2), 2)
        if rest:
            continue
        try:
            cluster = asked.cluster.sized(count)
        except SpecError:
            return
        change = f"{counted(cluster.num_devices, 'device')}"
        yield Relaxed(constraint="devices", change=change, asked=replace(asked, cluster=cluster))


def _shorter(asked: Asked) -> Iterator[Relaxed]:
    """Halve the sequence."""
    for power in range(1, DOUBLINGS + 1):
        length, rest = divmod(asked.workload.seq_len, 1 << power)
        if rest or length < SHORTEST:
            return
        work = replace(asked.workload, seq_len=length)
        yield Relaxed(constraint="seq_len", change=f"seq_len {length:,}", asked=replace(asked, workload=work))
