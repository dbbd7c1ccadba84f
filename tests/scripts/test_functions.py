"""`python scripts/functions.py`: what functions return, in which unit, and who calls them."""

import random

from scripts.functions import functions


def test_ten_functions_drawn_at_random_state_what_they_return_and_have_a_caller():
    known = {f"{one.module}.{one.name}": one for one in functions()}
    for one in random.Random(36).sample(list(known.values()), 10):
        assert one.summary
        assert one.callers
    peak = known["memory.liveness.largest"]
    assert (peak.unit, peak.returns) == ("byte", "Numeric")
    assert "graph.modules.linear_out" in known["graph.modules.scatter_sequence"].callers
