"""Any number of a projection as the tree of numbers it was made of."""

from forescale.explain.explain import explain, quantity_names

__all__ = ["explain", "quantity_names"]
