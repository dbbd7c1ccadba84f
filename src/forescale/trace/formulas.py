"""Exact formulas of the micro-batch size and the sequence length, from recordings at several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache, lru_cache
from math import lcm
from typing import TypeAlias

from forescale.spec.trace import BASIS, Formula

Sizes: TypeAlias = tuple[tuple[int, int], ...]
"""Micro-batch size and sequence length of each recording."""
NUM_FITTED = len(BASIS)
"""Recordings that determine a formula; all further ones check it."""


@lru_cache(maxsize=2**16)
def fitted(values: tuple[int, ...], sizes: Sizes) -> Formula | None:
    """Return the formula with these values at these sizes; None if there is none.

    The first six sizes determine it, or the first two if all have one sequence length. It must hold exactly at all
    others.
    """
    formula = _determined(values, sizes)
    exact = all(_value(formula, size) == value for size, value in zip(sizes, values, strict=True))
    return formula if exact else None


def fitted_on_ranks(values: Sequence[int], sizes: Sizes, ranks: Sequence[int]) -> Formula | None:
    """Return the formula with these values at these sizes and degrees of tensor parallelism; None if there is none.

    The sizes at degree 1 determine it together with as many at degree 2, and it must hold exactly at all others.
    """
    first = tuple(value for value, tp in zip(values, ranks, strict=True) if tp == 1)
    alone = fitted(first, sizes[: len(first)])
    if alone is None or len(set(ranks)) == 1:
        return alone
    start = ranks.index(2)
    half = _determined(values[start:], sizes[start:])
    one, two = (_fractions(item) for item in (alone, half))
    split = [2 * (a - b) for a, b in zip(one, two, strict=True)]
    whole = [a - b for a, b in zip(one, split, strict=True)]
    exact = all(
        sum((a + b / tp) * batch**p * length**q for a, b, (p, q) in zip(whole, split, BASIS, strict=True))
        == value
        for value, (batch, length), tp in zip(values, sizes, ranks, strict=True)
    )
    divisor = lcm(*(item.denominator for item in (*whole, *split)))
    parts = [tuple(int(item * divisor) for item in part) for part in (whole, split)]
    shared = parts[1] if any(parts[1]) else ()
    return Formula(coefficients=parts[0], divisor=divisor, split=shared) if exact else None


def _fractions(formula: Formula) -> list[Fraction]:
    return [Fraction(item, formula.divisor) for item in formula.coefficients]


def _determined(values: Sequence[int], sizes: Sizes) -> Formula:
    """Return the formula that the first six values determine, or two of one sequence length."""
    if len({length for _, length in sizes}) == 1:
        coefficients = _line(values, sizes)
    else:
        coefficients = [
            sum((weight * value for weight, value in zip(row, values, strict=False) if weight), Fraction(0))
            for row in _inverse(sizes[:NUM_FITTED])
        ]
    divisor = lcm(*(coefficient.denominator for coefficient in coefficients))
    return Formula(
        coefficients=tuple(int(coefficient * divisor) for coefficient in coefficients), divisor=divisor
    )


def _line(values: Sequence[int], sizes: Sizes) -> list[Fraction]:
    """Return the coefficients of the line through two values, in micro-batch size."""
    (first, _), (second, _) = sizes[:2]
    slope = Fraction(values[1] - values[0], second - first)
    terms = {(0, 0): values[0] - slope * first, (1, 0): slope}
    return [terms.get(term, Fraction(0)) for term in BASIS]


def _value(formula: Formula, size: tuple[int, int]) -> Fraction:
    batch, length = size
    total = sum(
        coefficient * batch**of_batch * length**of_length
        for coefficient, (of_batch, of_length) in zip(formula.coefficients, BASIS, strict=True)
    )
    return Fraction(total, formula.divisor)


@cache
def _inverse(sizes: Sizes) -> tuple[tuple[Fraction, ...], ...]:
    """Return the matrix that turns values at sizes into coefficients (Gauss-Jordan elimination)."""
    count = len(BASIS)
    rows = [
        [Fraction(batch**p * length**q) for p, q in BASIS] + [Fraction(int(i == j)) for j in range(count)]
        for i, (batch, length) in enumerate(sizes)
    ]
    for column in range(count):
        pivot = next(row for row in range(column, count) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = rows[column][column]
        rows[column] = [item / scale for item in rows[column]]
        for row in range(count):
            if row != column and rows[row][column]:
                factor = rows[row][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return tuple(tuple(row[count:]) for row in rows)
