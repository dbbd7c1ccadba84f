"""A limit on the work that one file may cause, shared by all parts of its evaluation."""

from __future__ import annotations

from typing import Final

from forescale.errors import too_large


class Budget:
    """Units of work that are left; nested evaluations spend from the budget of the one that starts them.

    Parameters
    ----------
    most
        Units at the start.
    unit
        What is counted, in the plural, for the message.
    """

    __slots__ = ("left", "most", "unit")

    def __init__(self, most: int, unit: str) -> None:
        self.most: Final = most
        self.unit: Final = unit
        self.left = most

    def spend(self, amount: int = 1) -> None:
        """Take `amount` units.

        Raises
        ------
        SpecError
            If fewer are left.
        """
        self.left -= amount
        if self.left < 0:
            raise too_large("it", "", f"{self.most:,} {self.unit} to evaluate", "simplify it")
