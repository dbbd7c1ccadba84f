"""Blocks of many layouts: those that share their operators, degrees and places are built, and priced, once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np

from forescale.graph.operator import Block
from forescale.graph.per_block import PerBlock, RecomputeSplit, build_blocks
from forescale.graph.sharding import OF_BLOCKS, Degrees, ShardingRules, StructuralOptions
from forescale.memory.liveness import BlockBytes
from forescale.memory.parameters import BlockParameters, holdings
from forescale.numeric import joined
from forescale.question import Question
from forescale.schedule import cuts_sequences, splits_backward
from forescale.search.layouts import Columns, Rows, as_degrees, distinct, first_rows
from forescale.search.ranks import Ranks
from forescale.spec.layout import Recompute
from forescale.time.blocks import BlockCosts, KeptBytes, PricedModel
from forescale.time.price import PricedBlock, price_blocks


def blocks_of(question: Question, degrees: Degrees, choices: StructuralOptions) -> PerBlock[Block]:
    """Return the operator lists for all candidates of `degrees`."""
    return build_blocks(question.model, ShardingRules.from_workload(question.workload, degrees, choices))


class PricedOnce:
    """The blocks of pairs that share operators, whatever is hidden behind what: each is built, and priced, once."""

    def __init__(
        self, question: Question, columns: Columns, choices: StructuralOptions, ranks: Ranks, rows: Rows
    ) -> None:
        self._question, self._choices, self._ranks = question, choices, ranks
        self._columns = {name: values[rows] for name, values in columns.items()}
        self._models: dict[tuple[object, ...], PricedModel] = {}
        self.kept_bytes = KeptBytes()
        """What they keep under recompute policies."""

    @cached_property
    def where(self) -> Rows:
        """Which of the distinct blocks each pair has."""
        keys = self._ranks.keys(self._question.model)
        return distinct({**self._columns, **keys}, (*OF_BLOCKS, *keys)).where

    @cached_property
    def _first(self) -> Rows:
        """A pair that has each of the distinct blocks."""
        return first_rows(self.where)

    def again(self, other: PricedOnce) -> PricedOnce | None:
        """Return these blocks for the pairs of another with the same operators; None if it has others."""
        first, model = self._first, self._question.model
        keys, more = self._ranks.keys(model), other._ranks.keys_like(self._ranks, model)
        if more is None:
            return None
        both = {
            name: np.concatenate([values[first], new])
            for name, values, new in (
                *((name, self._columns[name], other._columns[name]) for name in OF_BLOCKS),
                *((name, keys[name], more[name]) for name in keys),
            )
        }
        which = distinct(both, tuple(both)).where
        place = np.full(int(which.max()) + 1, -1, dtype=np.int64)
        place[which[: len(first)]] = np.arange(len(first))
        where = place[which[len(first) :]]
        if where.min(initial=0) < 0:
            return None
        result = copy(self)
        result.where = where
        return result

    @cached_property
    def _degrees(self) -> Degrees:
        return as_degrees({name: values[self._first] for name, values in self._columns.items()})

    @cached_property
    def built(self) -> PerBlock[Block]:
        """The operators of the distinct blocks."""
        return blocks_of(self._question, self._degrees, self._choices)

    @cached_property
    def block_parameters(self) -> PerBlock[BlockParameters]:
        """Their parameters."""
        return holdings(self.built)

    @cached_property
    def _priced(self) -> PerBlock[PricedBlock]:
        pricing = self._ranks.pricing(self._question, self._degrees, self._choices, self._first)
        return price_blocks(self.built, pricing)

    def model(self, choices: StructuralOptions) -> PricedModel:
        """Return them with their prices, for all choices that hide alike and cut passes alike."""
        schedule = choices.schedule
        cuts = splits_backward(schedule), cuts_sequences(schedule), choices.deferred_head_gradients
        key = (choices.overlap, *cuts)
        if key not in self._models:
            self._models[key] = PricedModel(
                block_parameters=self.block_parameters,
                priced=self._priced,
                choices=choices,
                kept_bytes=self.kept_bytes,
            )
        return self._models[key]

    def __len__(self) -> int:
        """Return the number of distinct blocks."""
        return len(self._first)

    def costs(self, choices: StructuralOptions, policies: Sequence[Recompute]) -> BlockCosts:
        """Return what they cost under recompute policies, one after the other."""
        model = self.model(choices)
        return joined([model.under(policy) for policy in policies], len(self))

    def bytes(
        self, choices: StructuralOptions, policies: Sequence[Recompute]
    ) -> PerBlock[RecomputeSplit[BlockBytes]]:
        """Return their bytes alone under recompute policies, one after the other: nothing is priced."""
        several = [self.kept_bytes.under(self.built, policy, choices) for policy in policies]
        return joined(several, len(self))


class KnownBlocks:
    """The last blocks of a question, by operators and by what is known of places: what has been priced is not again."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[tuple[StructuralOptions, type], PricedOnce] = {}

    def priced(
        self, question: Question, columns: Columns, choices: StructuralOptions, ranks: Ranks, rows: Rows
    ) -> PricedOnce:
        """Return the blocks of some pairs, known ones if all are among them."""
        blocks, key = PricedOnce(question, columns, choices, ranks, rows), (choices, type(ranks))
        known = self._known.get(key)
        again = None if known is None else known.again(blocks)
        if again is None:
            self._known[key] = again = blocks
        return again
