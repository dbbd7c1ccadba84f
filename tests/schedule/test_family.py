"""What schedules hold: as their papers say it, and never less than a search takes for sure."""

import numpy as np
import pytest

from forescale.schedule import Request, families, family, peak_activations
from forescale.schedule.family import RankShape
from forescale.schedule.memory import live_passes

PP, COUNT = 4, 12
RANK = np.arange(PP)


@pytest.mark.parametrize(
    ("name", "more", "held"),
    [
        ("gpipe", {}, COUNT + 0 * RANK),
        ("1f1b", {}, PP - RANK),
        ("eager-1f1b", {}, 2 * (PP - RANK) - 1),
        ("interleaved-1f1b", {"vpp": 2}, PP + (PP - 1 - 2 * RANK) / 2),
        ("interleaved-1f1b", {"vpp": 2, "group_size": 6}, (6 + 2 * (PP - 1 - RANK) + 1) / 2),
        ("interleaved-zero-offset", {"vpp": 3}, PP - RANK / 3),
        ("looped-bfs", {"vpp": 2}, COUNT + 0 * RANK),
        ("seq1f1b", {"num_splits": 2}, (PP - RANK + 1) / 2),
        ("seq1f1b", {"num_splits": 3}, (PP - RANK + 2) / 3),
        ("zb-h1", {}, PP + 0 * RANK),
        ("zb-h2", {}, 2 * PP - 1 + 0 * RANK),
        ("interleaved-zb", {"vpp": 2}, PP + 0 * RANK),
        ("zbv", {"vpp": 2}, PP + 0 * RANK),
        ("gis", {"vpp": 2, "group_size": 3}, (3 + PP - RANK) / 2),
        ("dualpipe", {}, PP + 1 + 0 * RANK),
    ],
)
def test_most_that_ranks_hold_is_what_is_published(name, more, held):
    """The forms of the catalogue of schedules, rank by rank: warm-up passes of a chunk's share, and one more."""
    result = peak_activations(family(name).build(Request(pp=PP, num_microbatches=COUNT, **more)))
    np.testing.assert_allclose(result, held)


@pytest.mark.parametrize("each", families(), ids=lambda item: item.name)
def test_what_is_sure_to_be_held_and_to_wait_is_there_at_one_moment(each):
    for pp, count, vpp in ((1, 3, 2), (2, 5, 3), (3, 2, 2), (4, 6, 2), (4, 7, 2), (5, 8, 2), (4, 12, 2)):
        request = Request(pp=pp, num_microbatches=count, vpp=each.fixed_vpp or vpp)
        if each.violation(request):
            continue
        schedule = each.build(request)
        shape = RankShape(rank=np.arange(pp, dtype=float), pp=float(pp), num_microbatches=float(count))
        kept, late = (np.broadcast_to(np.asarray(of(shape)), (pp,)) for of in (each.held, each.waits))
        whole, waiting = live_passes(schedule)[0].sum(axis=3) / schedule.placement.vpp
        assert np.all(((whole >= kept - 1e-9) & (waiting >= late - 1e-9)).any(axis=0))
