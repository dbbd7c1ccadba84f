"""Variants as a grid: what may be crossed with a cell, by operator list, placement and recompute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forescale.search.cells import Cells, Mask
from forescale.search.space import Candidates, Rows, Variant
from forescale.search.tables import distinct, first_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantList:
    """Variants of one operator list and schedule."""

    variants: NDArray[np.int64]
    """(placings, recomputes) which variants."""
    first: Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Legality:
    """Which variants of which lists are layouts of their own on which cells: three conditions, each by itself."""

    lists: tuple[VariantList, ...]
    list_of: Rows
    """The list, placing and recompute of every variant."""
    placing_of: Rows
    recompute_of: Rows
    by_list: Mask
    """(lists, cells)"""
    by_placing: Mask
    """(placings, cells)"""
    by_recompute: Mask
    """(recomputes, cells)"""

    @classmethod
    def of(cls, cells: Cells) -> Legality:
        """Return what is legal on some cells."""
        variants = cells.whole.variants
        lists = variant_lists(variants)
        grid = np.zeros((3, len(variants)), dtype=np.int64)
        for index, each in enumerate(lists):
            grid[0, each.variants] = index
            grid[1, each.variants] = np.arange(each.variants.shape[0])[:, None]
            grid[2, each.variants] = np.arange(each.variants.shape[1])
        first = [variants[index] for index in lists[0].variants[:, 0]]
        known = tuple(each.placing for each in first)
        policies = [variants[index] for index in lists[0].variants[0]]
        placed, by_place = _rows(cells.whole, ("tp", "cp", "pp"))
        shaped, by_shape = _rows(cells.whole, ("pp", "vpp"))
        return cls(
            lists=lists,
            list_of=grid[0],
            placing_of=grid[1],
            recompute_of=grid[2],
            by_list=np.stack([cells.whole.allows_list(each.first) for each in lists]),
            by_placing=np.stack([placed.allows_placing(each, known) for each in first])[:, by_place],
            by_recompute=np.stack([shaped.allows_recompute(each) for each in policies])[:, by_shape],
        )

    @property
    def nodes(self) -> Mask:
        """(lists, cells) flags: where some variant of a list is legal."""
        some = self.by_placing.any(axis=0) & self.by_recompute.any(axis=0)
        return np.asarray(self.by_list & some)

    def num_layouts(self, cells: Cells) -> Rows:
        """Return the layouts of every cell under one list that it allows."""
        return np.asarray(cells.num_layouts * self.num_placings * self.by_recompute.sum(axis=0))

    @property
    def num_placings(self) -> Rows:
        """Placings of every cell."""
        return np.asarray(self.by_placing.sum(axis=0))


def variant_lists(variants: tuple[Variant, ...]) -> tuple[VariantList, ...]:
    """Return the variants by operator list and schedule, each crossed with all placings and recomputes."""
    found: dict[object, list[int]] = {}
    for index, each in enumerate(variants):
        found.setdefault((*each.choices.values(), each.schedule), []).append(index)
    num_placings = len({each.placing for each in variants})
    return tuple(
        VariantList(variants=np.array(indices).reshape(num_placings, -1), first=variants[indices[0]])
        for indices in found.values()
    )


def _rows(candidates: Candidates, names: tuple[str, ...]) -> tuple[Candidates, Rows]:
    """Return one candidate of each distinct row of some columns, and where each candidate's row stands."""
    where = distinct(candidates.columns, names).where
    first = first_rows(where)
    columns = {name: values[first] for name, values in candidates.columns.items()}
    return replace(candidates, columns=columns), where
