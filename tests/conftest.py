"""What all tests share: property tests try the same examples each time, and never fail for being slow.

Of tests that run side by side, each process has one thread for arithmetic: torch starts one per core in each, and its
threads wait for cores in a loop, which takes as much processor time as all they do.

What collection makes stays to the end: modules of torch and twelve thousand tests, a second's work each time the
collector of garbage walks through them all. So it waits while they are made, and leaves them out from then on.

Questions of tests that name no framework have the defaults of none, as under `--framework none`; a test of the usual
frameworks of devices takes the fixture `usual_frameworks`.
"""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
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


@pytest.fixture(scope="session", autouse=True)
def neutral_defaults() -> Iterator[Callable[..., Any]]:
    """Leave the framework of a question that names none open; yields the function that chooses it otherwise."""
    from forescale.io import recipes

    usual = recipes.default_stack
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "default_stack", lambda *_: None)
        yield usual


@pytest.fixture
def usual_frameworks(neutral_defaults: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the usual framework of the devices train where a question names none; questions kept of others are dropped."""
    from forescale.io import question, recipes

    forget = question._of_any_batch.cache_clear  # type: ignore[attr-defined]
    monkeypatch.setattr(recipes, "default_stack", neutral_defaults)
    forget()
    yield
    forget()
