"""Train a small GPT on four pipeline ranks of this machine with any schedule: `python examples/train_pipeline.py zbv`.

Needs torch (`pip install 'forescale[bench]'`). Losses are those of one process.
"""

from __future__ import annotations

import sys

import torch

from forescale.runtime import PipelineStep, launch
from forescale.runtime.job import TIED, VOCABULARY, toy_loss, toy_stage
from forescale.schedule import Request, build_schedule, family

RANKS, MICROBATCHES, SEQUENCES, TOKENS = 4, 8, 2, 16


def batches(count: int) -> list[torch.Tensor]:
    """Return sequences in which each token follows from the one before."""
    made = torch.Generator().manual_seed(0)
    first = torch.randint(0, VOCABULARY, (count, MICROBATCHES * SEQUENCES, 1), generator=made)
    return list((first + 7 * torch.arange(TOKENS + 1)) % VOCABULARY)


def train(_rank: int, name: str, steps: int) -> list[float]:
    """Train this rank's stages; return the loss of every step."""
    schedule = build_schedule(
        name, Request(pp=RANKS, num_microbatches=MICROBATCHES), vpp=family(name).fixed_vpp or 2
    )
    step = PipelineStep(schedule, lambda stage: toy_stage(stage, schedule.num_stages), toy_loss, tied=TIED)
    optimizer = torch.optim.AdamW(step.parameters(), lr=3e-3)
    losses = []
    for batch in batches(steps):
        losses.append(float(step(batch[:, :-1], batch[:, 1:])))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def main() -> None:
    """Train and print some of the losses."""
    name = sys.argv[1] if len(sys.argv) > 1 else "zb-h1"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    losses = launch(train, RANKS, name, steps)[0]
    for index in sorted({*range(0, steps, max(1, steps // 10)), steps - 1}):
        sys.stdout.write(f"step {index:4d}  loss {losses[index]:.6f}\n")


if __name__ == "__main__":
    main()
