"""All families, in the order in which they are listed."""

from __future__ import annotations

from forescale.schedule.family import Family
from forescale.schedule.library import (
    breadth_first,
    chimera,
    depth_first,
    dualpipe,
    hanayo,
    pipeoffload,
    seq1f1b,
    v_limited,
    zb_auto,
    zbv,
)

FAMILIES: tuple[Family, ...] = (
    breadth_first.GPIPE,
    depth_first.ONE_F_ONE_B,
    depth_first.EAGER,
    seq1f1b.FAMILY,
    depth_first.INTERLEAVED_1F1B,
    depth_first.LEAN,
    breadth_first.LOOPED_BFS,
    depth_first.ZB_H1,
    depth_first.ZB_H2,
    zb_auto.ZB_1P,
    zb_auto.ZB_2P,
    zb_auto.ZB_UNLIMITED,
    depth_first.INTERLEAVED_ZB,
    zbv.FAMILY,
    v_limited.V_HALF,
    v_limited.V_MIN,
    v_limited.V_ZB,
    dualpipe.DUALPIPE,
    dualpipe.DUALPIPE_V,
    chimera.FAMILY,
    hanayo.FAMILY,
    depth_first.GIS,
    pipeoffload.FAMILY,
)
