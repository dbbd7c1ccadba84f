"""Any number of a projection as the tree of numbers it was made of."""

from forescale.explain.explain import Explainer, explain, quantity_names

__all__ = ["Explainer", "explain", "quantity_names"]
