"""The library: a file for those that are built alike, `published` lists them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forescale.errors import ScheduleError, UnknownNameError, missing
from forescale.schedule.family import Family, Request

if TYPE_CHECKING:
    from forescale.schedule.model import Schedule


def families() -> tuple[Family, ...]:
    """Return all families; their modules are loaded when one is first asked for."""
    from forescale.schedule.library.published import FAMILIES

    return FAMILIES


def family(name: str) -> Family:
    """Return the family with a name or alias (letter case, - and _ do not matter).

    Raises
    ------
    UnknownNameError
        If there is none; the message names the nearest.
    """
    plain = _plain(name)
    for item in families():
        if plain in {_plain(known) for known in (item.name, *item.aliases)}:
            return item
    kind, known = "schedule", [n for item in families() for n in (item.name, *item.aliases)]
    raise UnknownNameError(kind, name, known)


def cuts_sequences(name: str | None) -> bool:
    """Return whether the schedule of a name works on pieces of sequences."""
    return name is not None and family(name).splits_sequences


def splits_backward(name: str | None) -> bool:
    """Return whether the schedule of a name runs weight gradients apart from those of inputs."""
    return name is not None and family(name).splits_backward


def build_schedule(name: str, request: Request, *, vpp: int | None = None) -> Schedule:
    """Return the schedule of a family; `vpp` None is what the family fixes.

    Raises
    ------
    ScheduleError
        If the request cannot be met, or vpp is left out where the family does not fix it.
    """
    result = family(name)
    if vpp is None:
        if result.fixed_vpp is None:
            fix = f"{result.name} runs with any vpp from {result.vpp[0]}, for example --vpp 2"
            raise ScheduleError(missing("vpp", fix))
        vpp = result.fixed_vpp
    return result.build(replace(request, vpp=vpp))


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())
