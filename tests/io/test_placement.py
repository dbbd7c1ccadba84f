from __future__ import annotations

import pytest

from forescale.errors import SpecError
from forescale.io.placement import placement_of
from forescale.spec import Share, Strategy


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("tp=4,dp=2", (Share(tp=4, dp=2),)), ("tp=8/pp = 4, dp=2", (Share(tp=8), Share(dp=2, pp=4)))],
)
def test_tiers_and_axes(text, meaning):
    assert placement_of(text, where="--placement") == meaning
    written = Strategy(placement=meaning).rank_order
    assert placement_of(written, where="--placement") == meaning


@pytest.mark.parametrize("text", ["", "tp", "tp=0", "tp=2,tp=4", "ep=8", "tp=4;dp=2", "tp=4//dp=2"])
def test_anything_else_is_refused(text):
    with pytest.raises(SpecError, match=r"--placement takes ranks of tp, cp, dp, pp .*got"):
        placement_of(text, where="--placement")
