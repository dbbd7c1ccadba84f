"""Six schedules at p = 4, m = 8 as text, looked at against the papers' figures and kept from then on."""

from pathlib import Path

import pytest

from forescale.schedule import Request, build_schedule, simulate
from forescale.schedule.draw import to_terminal

GOLDEN = Path(__file__).parents[1] / "golden/pipeline_pictures.txt"
NAMES = ("1f1b", "interleaved-1f1b", "zb-h1", "zbv", "v-half", "dualpipev")


def picture(name):
    vpp = 2 if name == "interleaved-1f1b" else None
    return to_terminal(
        simulate(build_schedule(name, Request(pp=4, num_microbatches=8), vpp=vpp)).timeline, width=140
    )


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_pictures_are_as_they_were(index):
    kept = GOLDEN.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    assert picture(NAMES[index]) == kept[index]
