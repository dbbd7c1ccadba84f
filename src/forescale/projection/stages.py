"""Stage plans as arrays over candidates, and sums of block quantities over what stands on each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from forescale.formula import Term
from forescale.graph.stage import StagePlan
from forescale.numeric import Array, Numeric
from forescale.projection.pieces import Parts

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Stage plans of all candidates: arrays (stages, candidates); unused rows have multiplicity 0."""

    counts: tuple[Array, ...]
    """Layers by kind."""
    first: Array
    last: Array
    index: Array
    multiplicity: Array

    @property
    def num_layers(self) -> Array:
        """Decoder layers on each stage."""
        return sum(self.counts[1:], start=self.counts[0])

    def recorded(self, layer_names: Sequence[str]) -> Stages:
        """Return the plans as terms, for an explanation; `layer_names` says what each kind of layer is."""
        named = zip(self.counts, layer_names, strict=True)
        return replace(
            self,
            counts=tuple(
                cast("Array", Term(count, name=f"{name} layers", unit="1")) for count, name in named
            ),
            first=cast("Array", Term(self.first, name="embedding here", unit="1")),
            last=cast("Array", Term(self.last, name="head here", unit="1")),
        )

    def picked(self, pick: Callable[[Numeric], Numeric]) -> Stages:
        """Return one stage of every candidate, (candidates,)."""
        return Stages(
            counts=tuple(cast("Array", pick(count)) for count in self.counts),
            **{
                name: cast("Array", pick(getattr(self, name)))
                for name in ("first", "last", "index", "multiplicity")
            },
        )

    def take(self, candidates: NDArray[np.int64]) -> Stages:
        """Return the plans of some candidates."""
        return Stages(
            counts=tuple(count[:, candidates] for count in self.counts),
            **{
                name: getattr(self, name)[:, candidates]
                for name in ("first", "last", "index", "multiplicity")
            },
        )


def stack_plans(plans: Sequence[StagePlan]) -> Stages:
    """Return one column per plan, padded with rows of multiplicity 0."""
    height = max(len(plan.index) for plan in plans)
    kinds = plans[0].counts.shape[1]

    def pad(values: Array) -> Array:
        return np.concatenate([values, np.zeros(height - len(values))])

    return Stages(
        counts=tuple(
            np.stack([pad(plan.counts[:, kind]) for plan in plans], axis=1) for kind in range(kinds)
        ),
        **{
            name: np.stack([pad(getattr(plan, name)) for plan in plans], axis=1)
            for name in ("first", "last", "index", "multiplicity")
        },
    )


def over_stages(stages: Stages, parts: Parts[T], of: Callable[[T], Numeric], *, num_mtp: int) -> Numeric:
    """Return Σ layers × quantity on every stage, ends and multi-token prediction included."""
    result: Numeric = stages.first * of(parts.embedding) + stages.last * of(parts.head)
    for count, part in zip(stages.counts, parts.layers, strict=True):
        result = result + count * of(part)
    if parts.mtp is not None:
        result = result + stages.last * float(num_mtp) * of(parts.mtp)
    return result
