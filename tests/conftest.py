"""What all tests share: property tests try the same examples each time, and never fail for being slow.

Of tests that run side by side, each process has one thread for arithmetic: torch starts one per core in each, and its
threads wait for cores in a loop, which takes as much processor time as all they do.

What collection makes stays to the end: modules of torch and twelve thousand tests, a second's work each time the
collector of garbage walks through them all. So it waits while they are made, and leaves them out from then on.
"""

import gc
import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("random", parent=settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
