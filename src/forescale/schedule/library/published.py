"""All families, in the order in which they are listed."""

from __future__ import annotations

from forescale.schedule.family import Family
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
