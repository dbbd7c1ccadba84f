"""What a search may choose, from names and words: `tp=8`, `zero=1,2`, `recompute=full`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from forescale.errors import SpecError, UnknownKeyError
from forescale.schedule import family
from forescale.search.space import NAMES, ORDERS, Space, default_recompute
from forescale.spec.model import Model


def held_space(space: Space, held: Mapping[str, Sequence[str]], model: Model, *, where: str) -> Space:
    """Return `space` with every dimension of `held` left to the values that its words mean.

    `where` says where they were written, for messages.

    Raises
    ------
    UnknownKeyError
        If there is no such dimension.
    SpecError
        If a word means no value of its dimension.
    """
    values: dict[str, Any] = {}
    for name, words in held.items():
        if name not in NAMES:
            raise UnknownKeyError(name, where, NAMES)
        values[name] = tuple(chain.from_iterable(_values(name, word, model, where) for word in words))
    return replace(space, **values)


def _values(name: str, text: str, model: Model, where: str) -> tuple[object, ...]:
    """Return what one value of a dimension means; `selective` is every such policy that a search tries."""
    words: dict[str, dict[str, tuple[object, ...]]] = {
        "sp": {"true": (True,), "false": (False,)},
        "cp_kind": {kind: (kind,) for kind in ("all_gather", "ring", "ulysses")},
        "recompute": {
            kind: tuple(policy for policy in default_recompute(model) if policy.granularity == kind)
            for kind in ("none", "selective", "full")
        },
        "axis_order": {"-".join(order): (order,) for order in ORDERS},
    }
    if name == "schedule":
        return (None,) if text == "default" else (family(text).name,)
    if name in words:
        if text not in words[name]:
            msg = f"{where} {name} takes {', '.join(words[name])}; got {text!r}"
            raise SpecError(msg)
        return words[name][text]
    least = 0 if name == "zero" else 1
    if not text.isdigit() or int(text) < least or (name == "zero" and int(text) > 3):
        allowed = "0, 1, 2 or 3" if name == "zero" else "a whole number of 1 or more"
        msg = f"{where} {name} takes {allowed}; got {text!r}"
        raise SpecError(msg)
    return (int(text),)
