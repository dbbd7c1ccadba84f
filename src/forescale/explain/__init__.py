"""Any number of a projection as the tree of numbers it was made of."""

from forescale.explain.explain import Explainer, Quantity, explain, quantities, quantity_names

__all__ = ["Explainer", "Quantity", "explain", "quantities", "quantity_names"]
