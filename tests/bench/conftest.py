"""Ranks of these tests, and of all that come after them, are copies of a process that has loaded what a bench needs."""

from __future__ import annotations

from multiprocessing import forkserver

import pytest
import torch

LOADED = [f"transformers.models.{name}.modeling_{name}" for name in ("llama", "mixtral", "deepseek_v3")]
"""What classes of transformers load when they are first asked for, in seconds."""


@pytest.fixture(scope="session", autouse=True)
def ready():
    if not torch.cuda.is_available():
        forkserver.set_forkserver_preload(["torch.distributed", "forescale.bench.measure", *LOADED])
        forkserver.ensure_running()
