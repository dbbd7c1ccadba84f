"""Which layers stand on which pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from forescale.errors import SpecError
from forescale.numeric import Array
from forescale.spec.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Layers per pipeline rank, by kind. Rows are ranks (or, compressed, groups of equal ranks)."""

    counts: Array
    """(stages, kinds) decoder layers of each kind of `Model.layer_kinds`."""
    first: Array
    """(stages,) 1 where the embedding is."""
    last: Array
    """(stages,) 1 where final norm, head, loss and multi-token prediction are."""
    index: Array
    """(stages,) the rank; of a group of equal ranks the lowest, which holds most in flight."""
    multiplicity: Array
    """(stages,) how many ranks the row stands for."""

    def compressed(self) -> StagePlan:
        """Return one row per distinct rank: times add up, memory is largest at the lowest rank."""
        rows = np.column_stack([self.counts, self.first, self.last])
        _, where, times = np.unique(rows, axis=0, return_index=True, return_counts=True)
        order = np.argsort(where)
        keep = where[order]
        return StagePlan(
            counts=self.counts[keep],
            first=self.first[keep],
            last=self.last[keep],
            index=self.index[keep],
            multiplicity=times[order].astype(float),
        )


def layers_per_stage(num_layers: int, pp: int, vpp: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return, per rank, the layers of its chunks: pp·vpp virtual stages in order, remainder on the first.

    61 layers on pp=4 give 16, 15, 15, 15 (Primus projection documentation, Tips). With chunks that lack one or
    two layers to be even, the last and then the first go short, as embedding and head weigh about a layer each
    (Megatron-LM --account-for-loss-in-pipeline-split, --account-for-embedding-in-pipeline-split; 126 layers on
    16 x 8 chunks of Llama 3.1 405B).
    """
    chunks = layers_per_chunk(num_layers, pp * vpp, spare_ends=vpp > 1)
    return tuple(tuple(layer for chunk in chunks[rank::pp] for layer in chunk) for rank in range(pp))


def layers_per_chunk(num_layers: int, num_chunks: int, *, spare_ends: bool) -> tuple[tuple[int, ...], ...]:
    """Return the layers of every virtual stage, in the order of the model."""
    base, extra = divmod(num_layers, num_chunks)
    short = -num_layers % num_chunks
    if spare_ends and 0 < short <= 2:
        last = num_chunks - 1
        sizes = [base + 1 - (chunk == last) - (short == 2 and chunk == 0) for chunk in range(num_chunks)]
    else:
        sizes = [base + (chunk < extra) for chunk in range(num_chunks)]
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return tuple(tuple(range(low, high)) for low, high in pairwise(starts))


def chunk_plans(model: Model, num_chunks: int, *, spare_ends: bool) -> StagePlan:
    """Return the plan of the virtual stages themselves, one row each."""
    return _plan(model.layers, layers_per_chunk(model.num_layers, num_chunks, spare_ends=spare_ends))


def plan_placed(model: Model, rank_of_stage: Sequence[int], num_replicas: int = 1) -> StagePlan:
    """Return the plan of ranks that hold the virtual stages a placement gives them (V: both ends on rank 0).

    With replicas, ranks hold the stages of each (DualPipe: stage r of one and p−1−r of the other).
    """
    ranks = np.arange(max(rank_of_stage) + 1)
    num_stages = len(rank_of_stage) // num_replicas
    chunks = chunk_plans(model, num_stages, spare_ends=num_stages > len(ranks))
    holds = (np.asarray(rank_of_stage)[None, :] == ranks[:, None]).astype(float)
    holds = holds.reshape(len(ranks), num_replicas, num_stages).sum(axis=1)
    return StagePlan(
        counts=holds @ chunks.counts,
        first=holds @ chunks.first,
        last=holds @ chunks.last,
        index=ranks.astype(float),
        multiplicity=np.ones(len(ranks)),
    )


def plan_stages(
    model: Model, *, pp: int, vpp: int = 1, stage_layers: Sequence[int] | None = None
) -> StagePlan:
    """Return the full stage plan of a model.

    Raises
    ------
    SpecError
        If explicit `stage_layers` do not name one count per rank or do not add up to the model's layers.
    """
    if stage_layers is None:
        return _even_plan(model.layers, pp, vpp)
    if len(stage_layers) != pp or sum(stage_layers) != model.num_layers:
        msg = (
            f"stage_layers {tuple(stage_layers)} must be {pp} counts that add up to the "
            f"{model.num_layers} layers of {model.name}; "
            f"they are {len(stage_layers)} and add up to {sum(stage_layers)}"
        )
        raise SpecError(msg)
    bounds = np.concatenate([[0], np.cumsum(stage_layers)])
    return _plan(model.layers, tuple(tuple(range(bounds[rank], bounds[rank + 1])) for rank in range(pp)))


@cache
def _even_plan(layers: tuple[object, ...], pp: int, vpp: int) -> StagePlan:
    return _plan(layers, layers_per_stage(len(layers), pp, vpp))


def _plan(layers: tuple[object, ...], assignment: tuple[tuple[int, ...], ...]) -> StagePlan:
    kinds = tuple(dict.fromkeys(layers))
    of_layer = np.array([kinds.index(layer) for layer in layers])
    counts = np.array(
        [
            np.bincount(of_layer[list(chunk)], minlength=len(kinds)) if chunk else np.zeros(len(kinds))
            for chunk in assignment
        ]
    )
    ranks = np.arange(len(assignment), dtype=float)
    return StagePlan(
        counts=counts.astype(float),
        first=(ranks == 0).astype(float),
        last=(ranks == ranks[-1]).astype(float),
        index=ranks,
        multiplicity=np.ones_like(ranks),
    )
