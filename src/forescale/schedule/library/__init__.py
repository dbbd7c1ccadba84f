"""The library: one file per schedule, and the tuple that lists them."""

from __future__ import annotations

from dataclasses import replace

from forescale.errors import ScheduleError, UnknownNameError
from forescale.schedule.family import Family, Request
from forescale.schedule.library import (
    chimera,
    dualpipe,
    dualpipev,
    eager_1f1b,
    gis,
    gpipe,
    hanayo,
    interleaved,
    interleaved_lean,
    interleaved_zb,
    looped_bfs,
    one_f_one_b,
    pipeoffload,
    seq1f1b,
    v_limited,
    zb_auto,
    zb_h1,
    zb_h2,
    zbv,
)
from forescale.schedule.model import Schedule

FAMILIES: tuple[Family, ...] = (
    gpipe.FAMILY,
    one_f_one_b.FAMILY,
    eager_1f1b.FAMILY,
    seq1f1b.FAMILY,
    interleaved.FAMILY,
    interleaved_lean.FAMILY,
    looped_bfs.FAMILY,
    zb_h1.FAMILY,
    zb_h2.FAMILY,
    zb_auto.ZB_1P,
    zb_auto.ZB_2P,
    interleaved_zb.FAMILY,
    zbv.FAMILY,
    v_limited.V_HALF,
    v_limited.V_MIN,
    v_limited.V_ZB,
    dualpipe.FAMILY,
    dualpipev.FAMILY,
    chimera.FAMILY,
    hanayo.FAMILY,
    gis.FAMILY,
    pipeoffload.FAMILY,
)


def family(name: str) -> Family:
    """Return the family with a name or alias (letter case and _ for - do not matter).

    Raises
    ------
    UnknownNameError
        If there is none; the message names the nearest.
    """
    wanted = _plain(name)
    for each in FAMILIES:
        if wanted in {_plain(known) for known in (each.name, *each.aliases)}:
            return each
    kind, known = "schedule", [n for each in FAMILIES for n in (each.name, *each.aliases)]
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
    found = family(name)
    if vpp is None:
        if found.fixed_vpp is None:
            msg = f"{found.name} runs with any vpp from {found.vpp[0]}; say which (for example --vpp 2)"
            raise ScheduleError(msg)
        vpp = found.fixed_vpp
    return found.build(replace(request, vpp=vpp))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
