"""Which layers go on which stage: contiguous parts with the least longest stage, within memory.

Dynamic programming over cut points. The embedding, the head, multi-token-prediction modules and MoE layers
are layers with their own costs. Where a stage does not fit its memory, the layers that save most memory per
second of recomputed forward are recomputed until it does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forescale.errors import ScheduleError, out_of_memory, out_of_range
from forescale.numeric import Array
from forescale.struct import Struct
from forescale.units import counted


class Layer(Struct, frozen=True, kw_only=True):
    """One layer's costs for one micro-batch, in any units of time and memory."""

    forward: float
    input_grad: float
    weight_grad: float
    activation: float = 0.0
    """Kept from forward to backward."""
    recomputed_activation: float = 0.0
    """Kept if the layer is recomputed: its input."""
    state: float = 0.0
    """Parameters, gradients and optimizer states."""
    name: str = "layer"

    @property
    def time(self) -> float:
        """Time of a whole pass, without recompute."""
        return self.forward + self.input_grad + self.weight_grad


class Partition(Struct, frozen=True, kw_only=True):
    """Layers of each stage, and what follows."""

    bounds: tuple[int, ...]
    """First layer of each stage, and the number of layers; (num_stages + 1,)."""
    recomputed: tuple[tuple[int, ...], ...]
    """Recomputed layers of each stage."""
    stage_time: tuple[float, ...]
    """Time of one micro-batch on each stage, recompute included."""
    stage_memory: tuple[float, ...]

    @property
    def longest(self) -> float:
        """Time of the slowest stage: what bounds the pipeline's throughput."""
        return max(self.stage_time)


def partition_layers(
    layers: Sequence[Layer],
    num_stages: int,
    *,
    in_flight: Sequence[float],
    memory_limit: float = float("inf"),
    min_layers: int = 1,
) -> Partition:
    """Return the contiguous partition whose slowest stage is fastest, then whose times are most even.

    Parameters
    ----------
    layers
        In order, embedding and head included.
    num_stages
        Parts to make.
    in_flight
        Micro-batches each stage holds at once; (num_stages,).
    memory_limit
        Most that a stage may hold, states and activations.
    min_layers
        Least layers of a stage.

    Raises
    ------
    ScheduleError
        If there are too few layers, or none of the partitions fits the memory.
    """
    count = len(layers)
    if count < num_stages * min_layers:
        allowed = f"enough for {num_stages} stages with {min_layers} or more each"
        raise ScheduleError(out_of_range("the number of layers", count, allowed))
    cost = {item: _costs(layers, item, memory_limit) for item in set(in_flight)}
    best = np.full((num_stages + 1, count + 1, 2), np.inf)
    best[0, 0] = 0.0
    cut = np.zeros((num_stages + 1, count + 1), dtype=np.int64)
    at = np.arange(count + 1)
    room = at[None, :] - at[:, None] >= min_layers
    for stage in range(1, num_stages + 1):
        times = np.where(room, cost[in_flight[stage - 1]], np.inf)
        longest = np.maximum(best[stage - 1, :, :1], times)
        best[stage, :, 0] = longest.min(axis=0)
        uneven = best[stage - 1, :, 1:] + times**2
        uneven[longest > best[stage, :, 0]] = np.inf
        cut[stage] = uneven.argmin(axis=0)
        best[stage, :, 1] = uneven[cut[stage], at]
    if not np.isfinite(best[num_stages, count, 0]):
        what = f"{counted(count, 'layer')} over {counted(num_stages, 'stage')}"
        raise ScheduleError(
            out_of_memory(f"any partition of {what}", "more, even with all recomputed", memory_limit)
        )
    return _read_off(layers, cut, in_flight, memory_limit)


def _costs(layers: Sequence[Layer], value: float, limit: float) -> Array:
    """Return the time of every interval of layers [begin, end) on a stage, infinite where it cannot fit."""
    count = len(layers)
    time = np.concatenate(([0.0], np.cumsum([layer.time for layer in layers])))
    memory = np.concatenate(([0.0], np.cumsum([layer.state + value * layer.activation for layer in layers])))
    begin, end = np.meshgrid(np.arange(count + 1), np.arange(count + 1), indexing="ij")
    table = np.where(end >= begin, time[end] - time[begin], np.inf)
    kinds = list(dict.fromkeys(layers))
    kind = np.array([kinds.index(layer) for layer in layers])
    over = np.where(end > begin, memory[end] - memory[begin], 0.0) - limit * (1 + 1e-12)
    for index in sorted(range(len(kinds)), key=lambda index: _worth(kinds[index], value)):
        saving, before = _saving(kinds[index], value), np.concatenate(([0], np.cumsum(kind == index)))
        if saving <= 0 or not np.any(over > 0):
            break
        needed = np.ceil(np.maximum(over, 0.0) / saving)
        minimum = np.minimum(needed, before[end] - before[begin])
        over -= minimum * saving
        table += minimum * kinds[index].forward
    table[over > 0] = np.inf
    return np.asarray(table)


def _saving(layer: Layer, value: float) -> float:
    """Return the memory that recompute of a layer frees."""
    return value * (layer.activation - layer.recomputed_activation)


def _worth(layer: Layer, value: float) -> float:
    """Return the order of layers to recompute: most memory per second first."""
    return -_saving(layer, value) / max(layer.forward, 1e-300)


def _recompute(
    layers: Sequence[Layer], begin: int, end: int, value: float, limit: float
) -> tuple[int, ...] | None:
    """Return layers to recompute so that a stage fits, most memory per second first; None if it cannot."""
    mine = range(begin, end)
    used = sum(layers[i].state + value * layers[i].activation for i in mine)
    kinds = list(dict.fromkeys(layers))
    selected = []
    for i in sorted(mine, key=lambda i: (_worth(layers[i], value), kinds.index(layers[i]), i)):
        if used <= limit * (1 + 1e-12):
            break
        if (saving := _saving(layers[i], value)) > 0:
            selected.append(i)
            used -= saving
    return tuple(sorted(selected)) if used <= limit * (1 + 1e-12) else None


def _read_off(
    layers: Sequence[Layer], cut: np.ndarray, in_flight: Sequence[float], limit: float
) -> Partition:
    bounds = [len(layers)]
    for stage in range(len(in_flight), 0, -1):
        bounds.append(int(cut[stage, bounds[-1]]))
    bounds.reverse()
    recomputed, times, memory = [], [], []
    for stage, item in enumerate(in_flight):
        mine = range(bounds[stage], bounds[stage + 1])
        recompute = _recompute(layers, mine.start, mine.stop, item, limit) or ()
        recomputed.append(recompute)
        times.append(sum(layers[i].time + (layers[i].forward if i in recompute else 0.0) for i in mine))
        kept = [layers[i].recomputed_activation if i in recompute else layers[i].activation for i in mine]
        memory.append(sum(layers[i].state for i in mine) + item * sum(kept))
    return Partition(
        bounds=tuple(bounds),
        recomputed=tuple(recomputed),
        stage_time=tuple(times),
        stage_memory=tuple(memory),
    )
