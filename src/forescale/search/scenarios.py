"""Choices that change the question itself, or what is not searched: precision, overlap, dispatcher and offload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from forescale.errors import SpecError
from forescale.search.landscape import Asked
from forescale.spec.space import SCENARIO_NAMES
from forescale.spec.strategy import Overlap


def scenarios(asked: Asked) -> tuple[Asked, ...]:
    """Return the questions of a search, one per combination of what its space leaves open, each once."""
    values = [getattr(asked.space, name) for name in SCENARIO_NAMES]
    found = [_scenario(asked, dict(zip(SCENARIO_NAMES, chosen, strict=True))) for chosen in product(*values)]
    return tuple(
        each
        for index, each in enumerate(found)
        if all(
            (each.workload, each.space.base) != (other.workload, other.space.base) for other in found[:index]
        )
    )


def single(asked: Asked, what: str) -> Asked:
    """Return the one question of a search.

    Raises
    ------
    SpecError
        If there are several; `what` cannot hold them.
    """
    found = scenarios(asked)
    if len(found) > 1:
        names = ", ".join(SCENARIO_NAMES)
        msg = f"{what} takes one value each of {names}; the space has {len(found)} combinations"
        raise SpecError(msg)
    return found[0]


def _scenario(asked: Asked, chosen: Mapping[str, Any]) -> Asked:
    """Return the question with one value of each choice; None is as the question says."""
    workload, base = asked.workload, asked.space.base
    if chosen["precision"] is not None:
        compute, recipe = chosen["precision"]
        workload = replace(workload, precision=replace(workload.precision, compute=compute, recipe=recipe))
    if (kinds := chosen["overlap"]) is not None:
        more = replace(base.overlap, **dict.fromkeys(kinds, True)) if kinds else _nothing()
        base = replace(base, overlap=more)
    if chosen["dispatcher"] is not None:
        base = replace(base, dispatcher=chosen["dispatcher"])
    shares = {"optimizer": chosen["optimizer_offload"], "activation_layers": chosen["activation_offload"]}
    held = {name: value for name, value in shares.items() if value is not None}
    base = replace(base, offload=replace(base.offload, **held))
    return replace(asked, workload=workload, space=replace(asked.space, base=base))


def _nothing() -> Overlap:
    return Overlap(**dict.fromkeys(Overlap.__dataclass_fields__, False))
