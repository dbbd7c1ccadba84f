"""Moments of a step: which tensors exist, and the largest sum over them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from forescale.formula import Term, as_term, total, value_of
from forescale.numeric import Numeric, larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What exists while one operator runs."""

    name: str
    """The operator."""
    phase: str
    """forward, replay or backward."""
    tensors: Mapping[str, Numeric]
    """Bytes by name; gradients are marked ∂."""

    @property
    def num_bytes(self) -> Numeric:
        """Sum of the tensors."""
        return total(self.tensors, name=f"{self.phase} {self.name}", unit="byte")


def undominated(moments: Sequence[Moment]) -> list[Moment]:
    """Return the moments whose tensors are not all among those of another: only these can be the peak.

    Of moments with the same tensors the first is returned.
    """
    names = [moment.tensors.keys() for moment in moments]
    sizes = [-len(each) for each in names]
    largest: list[int] = []
    for index in sorted(range(len(names)), key=sizes.__getitem__):
        own = names[index]
        for other in largest:
            if own <= names[other]:
                break
        else:
            largest.append(index)
    return [moments[index] for index in sorted(largest)]


def peak_bytes(moments: Sequence[Moment]) -> Numeric:
    """Return the largest sum over the moments; recorded, of one candidate, it is that moment's sum."""
    sums = [moment.num_bytes for moment in undominated(moments)]
    if not sums:
        return 0.0
    result = functools.reduce(larger, map(value_of, sums))
    if Term not in map(type, sums):
        return cast("Numeric", result)
    if np.size(result) == 1:
        return max(sums, key=lambda item: float(np.max(value_of(item))))
    inputs = {f"{index}": as_term(item) for index, item in enumerate(sums)}
    return cast("Numeric", Term(result, name="peak", unit="byte", text="largest moment", inputs=inputs))
