"""Sizes that remember which polynomial of a model's dimensions they are.

A model of distinctive dimensions is recorded once: every extent of a tensor is looked up among the products and sums of
these dimensions, and what is computed from extents carries its polynomial along.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

Monomial: TypeAlias = tuple[tuple[str, int], ...]
"""Symbols with their exponents, sorted."""
Polynomial: TypeAlias = dict[Monomial, Fraction | int]


class Size(int):
    """A whole number with the polynomial that gives it."""

    polynomial: Polynomial

    def __new__(cls, value: int, polynomial: Polynomial) -> Size:
        """Return a number with its polynomial."""
        result = super().__new__(cls, value)
        result.polynomial = polynomial
        return result

    def __add__(self, other: Any) -> Any:  # noqa: ANN401
        """Return the sum."""
        if not isinstance(other, int):
            return NotImplemented
        return Size(int(self) + int(other), _sum(self.polynomial, polynomial_of(other)))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:  # noqa: ANN401
        """Return the difference."""
        return self + (other * -1) if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: Any) -> Any:  # noqa: ANN401
        """Return the difference from a plain number."""
        return (self * -1) + other

    def __mul__(self, other: Any) -> Any:  # noqa: ANN401
        """Return the product."""
        if not isinstance(other, int):
            return NotImplemented
        return Size(int(self) * int(other), _product(self.polynomial, polynomial_of(other)))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:  # noqa: ANN401
        """Return the quotient by what divides exactly and is one product; else a plain number."""
        divisor = polynomial_of(other)
        if int(self) % int(other) or len(divisor) != 1:
            return int(self) // int(other)
        ((monomial, factor),) = divisor.items()
        inverse: Polynomial = {tuple((name, -power) for name, power in monomial): Fraction(1) / factor}
        return Size(int(self) // int(other), _product(self.polynomial, inverse))

    def __rfloordiv__(self, other: Any) -> Any:  # noqa: ANN401
        """Return the quotient of a plain number."""
        return Size(int(other), polynomial_of(other)) // self

    def __hash__(self) -> int:
        """Hash as the number."""
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        """Compare as the number."""
        return int.__eq__(self, other) is True


def polynomial_of(value: int) -> Polynomial:
    """Return the polynomial of a number; of a plain one, itself."""
    if isinstance(value, Size):
        return value.polynomial
    return {(): int(value)} if value else {}


def symbol(name: str, value: int) -> Size:
    """Return a dimension."""
    return Size(value, {((name, 1),): 1})


def _sum(one: Polynomial, other: Polynomial) -> Polynomial:
    result = dict(one)
    for monomial, factor in other.items():
        value = result.get(monomial, 0) + factor
        if value:
            result[monomial] = value
        else:
            del result[monomial]
    return result


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (left, of_left), (right, of_right) in itertools.product(one.items(), other.items()):
        powers = dict(left)
        for name, power in right:
            powers[name] = powers.get(name, 0) + power
        monomial = tuple(sorted((name, power) for name, power in powers.items() if power))
        value = result.get(monomial, 0) + of_left * of_right
        result[monomial] = value.numerator if value.denominator == 1 else value
    return {monomial: factor for monomial, factor in result.items() if factor}


def text_of(value: int) -> str:
    """Return the polynomial of a number as text, such as "2*b*h*s + 4*h"."""
    terms = []
    for monomial, factor in sorted(polynomial_of(value).items()):
        factors = [name if power == 1 else f"{name}^{power}" for name, power in monomial]
        if factor != 1 or not factors:
            factors.insert(0, str(factor))
        terms.append("*".join(factors))
    return "+".join(terms) or "0"


class Dictionary:
    """The extents that a model of some dimensions can have."""

    def __init__(
        self, dimensions: Mapping[str, int], derived: Iterable[Size] = (), *, smallest: int = 5
    ) -> None:
        symbols = [symbol(name, value) for name, value in dimensions.items()]
        base = [*symbols, *derived]
        self.smallest = smallest
        self.unknown: dict[int, int] = {}
        self._known: dict[int, Size] = {}
        for count in (1, 2, 3):
            for group in itertools.combinations_with_replacement(base, count):
                product = group[0]
                for item in group[1:]:
                    product = product * item
                for size in (product, product * 2, *([product // 2] if product % 2 == 0 else [])):
                    self._known.setdefault(int(size), size)
                if count < 3:
                    for size in (product * 3, product * 4):
                        self._known.setdefault(int(size), size)

    def extents(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape whose extents carry their polynomials."""
        return tuple(map(self.extent, shape))

    def extent(self, value: int) -> int:
        """Return an extent with its polynomial; small and unknown numbers as they are."""
        if isinstance(value, Size) or value < self.smallest:
            return value
        known = self._known.get(value)
        if known is None:
            self.unknown[value] = self.unknown.get(value, 0) + 1
            return value
        return known
