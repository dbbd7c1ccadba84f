"""Stage plans as arrays over candidates, and sums of block quantities over what stands on each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from forescale.formula import Term, formula, value_of
from forescale.graph.parts import ByPolicy, Parts
from forescale.graph.stage import StagePlan, replayed_mtp
from forescale.numeric import Array, Numeric, Select, mapped, taking
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute

T = TypeVar("T")
BY_KIND = ("counts", "replayed", "heads")
"""Fields of `Stages` that have one array per kind of layer."""
OF_STAGE = ("first", "last", "index", "multiplicity")
"""Its other fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Stage plans of all candidates: arrays (stages, candidates); unused rows have multiplicity 0."""

    counts: tuple[Array, ...]
    """Layers by kind."""
    first: Array
    last: Array
    index: Array
    multiplicity: Array
    replayed: tuple[Array, ...]
    """Layers by kind that the recompute policy takes."""
    heads: tuple[Array, ...]
    """Of those, layers whose input is kept."""
    moments: tuple[Stages, ...] = ()
    """As in `StagePlan`, of as many moments as any candidate has; of those that have none, their layers."""

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

    def picked(self, pick: Select) -> Stages:
        """Return one stage of every candidate, (candidates,)."""
        return mapped(self, pick)

    def take(self, candidates: NDArray[np.int64]) -> Stages:
        """Return the plans of some candidates."""
        return mapped(self, taking(candidates))


def stack_plans(plans: Sequence[StagePlan]) -> Stages:
    """Return one column per plan, padded with rows of multiplicity 0."""
    height = max(len(plan.index) for plan in plans)
    kinds = range(plans[0].counts.shape[1])

    def stack(of: Callable[[StagePlan], Array]) -> Array:
        columns = [of(plan) for plan in plans]
        if len(columns) == 1:
            return columns[0][:, None]
        return np.stack(
            [np.concatenate([values, np.zeros(height - len(values))]) for values in columns], axis=1
        )

    fields: dict[str, Any] = {name: stack(attrgetter(name)) for name in OF_STAGE}
    for name in BY_KIND:
        fields[name] = tuple(stack(lambda plan, n=name, k=kind: getattr(plan, n)[:, k]) for kind in kinds)  # type: ignore[misc]
    most = max(len(plan.moments) for plan in plans)
    moments = tuple(stack_plans([_moment(plan, at) for plan in plans]) for at in range(most))
    return Stages(**fields, moments=moments)


def _moment(plan: StagePlan, at: int) -> StagePlan:
    """Return a moment, the last again where there are fewer, or the plan where there are none."""
    return replace(plan, moments=()) if not plan.moments else plan.moments[min(at, len(plan.moments) - 1)]


def over_stages(stages: Stages, parts: Parts[T], of: Callable[[T], Numeric], *, num_mtp: int) -> Numeric:
    """Return Σ layers × quantity on every stage, ends and multi-token prediction included."""
    result: Numeric = stages.first * of(parts.embedding) + stages.last * of(parts.head)
    for count, part in zip(stages.counts, parts.layers, strict=True):
        result = result + count * of(part)
    if parts.mtp is not None:
        result = result + stages.last * float(num_mtp) * of(parts.mtp)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSums:
    """Sums over what stands on stages: layers that the recompute policy takes, the others, both ends."""

    model: Model
    recompute: Recompute
    stages: Stages
    copies: int = 1
    """Copies of the parameters on a rank: of several a micro-batch meets one, on average."""

    def on(self, stages: Stages, *, copies: int = 1) -> StageSums:
        """Return the same sums over other stages."""
        return replace(self, stages=stages, copies=copies)

    def total(self, blocks: Parts[ByPolicy[T]], of: Callable[[T], Numeric]) -> Numeric:
        """Return Σ layers × quantity of a layer, ends included: what one micro-batch meets."""
        return self._of_one(self.over(blocks.map(lambda each: each.map(of)), self.stages.replayed))

    def kept(self, blocks: Parts[ByPolicy[T]], of: Callable[[T], Numeric]) -> Numeric:
        """Return what one micro-batch keeps: of a unit that is replayed together, one layer's input."""
        return self._of_one(self.over(blocks.map(lambda each: each.map(of)), self.stages.heads))

    def _of_one(self, summed: Numeric) -> Numeric:
        return summed if self.copies == 1 else summed / float(self.copies)

    def over(self, blocks: Parts[ByPolicy[Numeric]], taken: tuple[Array, ...]) -> Numeric:
        """Sum a quantity over layers that the policy takes, which count as often as `taken` says, and the others."""
        stages, num_mtp = self.stages, self.model.num_mtp_layers
        if self.recompute.takes_all:
            return over_stages(stages, blocks, attrgetter("taken"), num_mtp=num_mtp)
        ends = replace(stages, counts=tuple(0.0 * count for count in stages.counts))
        replayed = replayed_mtp(self.model, self.recompute)
        result = over_stages(ends, blocks, attrgetter("taken"), num_mtp=replayed)
        if blocks.mtp is not None:
            result = result + stages.last * float(num_mtp - replayed) * blocks.mtp.left
        for kind, layer in enumerate(blocks.layers):
            result = result + taken[kind] * layer.taken
            result = result + (stages.counts[kind] - stages.replayed[kind]) * layer.left
        return result


@formula(unit="s", source="every stage is crossed once while the pipeline fills and drains")
def sum_over_stages(*, values: Numeric, multiplicity: Numeric) -> Numeric:
    """Σ multiplicity · values, each rounded to the largest / 2⁴⁰: then no grouping of equal stages changes it."""
    largest = np.max(np.where(np.asarray(multiplicity) > 0.0, values, 0.0), axis=0)
    grid = largest * 2.0**12
    rounded = (values + grid) - grid
    summed: Numeric = np.add.reduce(np.asarray(rounded * multiplicity), axis=0)
    return summed


class Picker:
    """Takes the numbers of one stage per candidate."""

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self._columns = np.arange(len(rows))

    @classmethod
    def slowest(cls, stage_time: Numeric, stages: Stages) -> Picker:
        """Return the picker of the stage that sets the pace."""
        return cls(np.argmax(np.where(stages.multiplicity > 0, value_of(stage_time), -np.inf), axis=0))

    def __call__(self, values: Numeric) -> Numeric:
        """Return the value of the chosen stage."""
        shape = np.shape(value_of(values))
        if len(shape) < 2:
            return values
        columns = 0 * self._columns if shape[1] == 1 else self._columns  # one may stand for all
        picked: Numeric = values[self._rows, columns]  # type: ignore[index]
        return picked

    def maximum(self, values: Numeric, stages: Stages) -> Numeric:
        """Return the largest value over the stages that exist."""
        return Picker.slowest(values, stages)(values)
