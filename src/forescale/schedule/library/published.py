"""All families, in the order in which they are listed."""

from __future__ import annotations

from forescale.schedule.family import Family
from forescale.schedule.library import bidirectional, breadth_first, depth_first, hanayo, v_limited, zb_auto

FAMILIES: tuple[Family, ...] = (
    breadth_first.GPIPE,
    depth_first.ONE_F_ONE_B,
    depth_first.EAGER,
    depth_first.SEQ1F1B,
    depth_first.INTERLEAVED_1F1B,
    depth_first.LEAN,
    breadth_first.LOOPED_BFS,
    depth_first.ZB_H1,
    depth_first.ZB_H2,
    zb_auto.ZB_1P,
    zb_auto.ZB_2P,
    zb_auto.ZB_UNLIMITED,
    depth_first.INTERLEAVED_ZB,
    v_limited.ZBV,
    v_limited.V_HALF,
    v_limited.V_MIN,
    v_limited.V_ZB,
    bidirectional.DUALPIPE,
    bidirectional.DUALPIPE_V,
    bidirectional.CHIMERA,
    hanayo.FAMILY,
    depth_first.GIS,
    depth_first.PIPEOFFLOAD,
)
