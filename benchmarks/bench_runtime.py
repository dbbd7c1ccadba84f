"""How well a schedule's simulation meets its run: every family on stages that only take time, by hand.

    .venv/bin/python benchmarks/bench_runtime.py [RANKS] [--unequal]

Prints measured and simulated makespan of each, and the mean of |error|; docs/runtime.md quotes it.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch

from forescale.runtime.channels import Channels
from forescale.runtime.launch import launch
from forescale.runtime.step import PipelineStep
from forescale.runtime.toy import SleepingStage
from forescale.schedule import Request, build_schedule, families
from forescale.schedule.measured import together, typical

STEPS = 5
FULL = 0.030


def schedules(pp):
    for each in families():
        count = 2 * pp if each.name in ("dualpipe", "dualpipev", "chimera", "zbv") else pp + 2 + pp % 2
        request = Request(pp=pp, num_microbatches=count, num_splits=2)
        if not each.refusal(request):
            yield build_schedule(each.name, request, vpp=each.fixed_vpp or 2)


def seconds_of(schedule, unequal):
    """Return forward, input and weight gradient of each stage."""
    share = FULL * schedule.share
    factors = 1.0 + (
        0.5 * np.sin(np.arange(schedule.num_stages)) if unequal else np.zeros(schedule.num_stages)
    )
    return [tuple(share * factor * part for part in (1.0, 1.1, 0.9)) for factor in factors]


def work(_rank, pp, unequal):
    channels, found = Channels([range(pp)], torch.device("cpu")), []
    for schedule in schedules(pp):
        seconds = seconds_of(schedule, unequal)
        stage = partial(lambda seconds, index: SleepingStage(seconds[index]), seconds)
        step = PipelineStep(schedule, stage, lambda y, _: y.sum(), channels=channels)
        batch = torch.ones(schedule.num_microbatches, 2 * schedule.num_splits)
        steps = []
        for index in range(STEPS + 1):
            step(batch, batch)
            if index:
                steps.append((step.passes, step.start_s))
        found.append(steps)
    return found


def main():
    pp, unequal = int(next((word for word in sys.argv[1:] if word.isdigit()), "4")), "--unequal" in sys.argv
    by_rank, errors = launch(work, pp, pp, unequal), []
    for place, schedule in enumerate(schedules(pp)):
        steps = [
            together(schedule, [r[place][i][0] for r in by_rank], [r[place][i][1] for r in by_rank])
            for i in range(STEPS)
        ]
        step = typical(steps)
        measured, simulated = 1e3 * step.makespan_s, step.simulated().makespan
        errors.append(simulated / measured - 1.0)
        print(
            f"{schedule.name:26s} measured {measured:8.1f} ms  simulated {simulated:8.1f} ms  {errors[-1]:+.1%}"
        )
    print(f"mean |error| {np.mean(np.abs(errors)):.2%}, worst {max(errors, key=abs):+.1%}")


if __name__ == "__main__":
    main()
