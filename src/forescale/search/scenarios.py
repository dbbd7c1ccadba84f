"""Choices that change the question itself, or what is not searched: precision, overlap and offload."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from forescale.errors import SpecError
from forescale.search.landscape import Asked
from forescale.spec.strategy import Overlap


def scenarios(asked: Asked) -> tuple[Asked, ...]:
    """Return the questions of a search, one per combination of what its space leaves open, each once."""
    space = asked.space
    found = [
        _scenario(asked, *chosen)
        for chosen in product(space.precision, space.overlap, space.optimizer_offload)
    ]
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
        msg = f"{what} takes one precision, overlap and optimizer_offload; the space has {len(found)} combinations"
        raise SpecError(msg)
    return found[0]


def _scenario(
    asked: Asked,
    precision: tuple[str, str] | None,
    overlap: tuple[str, ...] | None,
    optimizer_offload: float | None,
) -> Asked:
    workload, base = asked.workload, asked.space.base
    if precision is not None:
        compute, recipe = precision
        numbers = replace(workload.precision, compute=compute, recipe=recipe)  # type: ignore[arg-type]
        workload = replace(workload, precision=numbers)
    if overlap is not None:
        kinds = dict.fromkeys(overlap, True)
        base = replace(base, overlap=replace(base.overlap, **kinds) if overlap else _nothing())
    if optimizer_offload is not None:
        base = replace(base, offload=replace(base.offload, optimizer=optimizer_offload))
    return replace(asked, workload=workload, space=replace(asked.space, base=base))


def _nothing() -> Overlap:
    return Overlap(**dict.fromkeys(Overlap.__dataclass_fields__, False))
