"""How well a schedule's simulation meets its run, what the optimiser gains for real, and that long runs hold no more.

    .venv/bin/python benchmarks/bench_runtime.py families [--ranks 4] [--unequal]
    .venv/bin/python benchmarks/bench_runtime.py gpt
    .venv/bin/python benchmarks/bench_runtime.py optimised
    .venv/bin/python benchmarks/bench_runtime.py long

By hand, on a machine that does nothing else; docs/runtime.md quotes what they print. `transport` prints what
`catalogue/transports.json` keeps.
"""

from __future__ import annotations

import argparse
import resource
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from forescale.runtime import PipelineStep, launch
from forescale.runtime.channels import Channels
from forescale.runtime.job import TIED, VOCABULARY, SleepingStage, toy_loss, toy_stage
from forescale.schedule import Request, build_schedule, families, simulate
from forescale.schedule.measured import stage_times_for, together, typical
from forescale.schedule.model import loop
from forescale.schedule.optimise import optimise
from forescale.schedule.optimise.local_search import measured_problem

STEPS = 7
FULL = 0.030


def library(pp):
    for family in families():
        count = 2 * pp if family.name in ("dualpipe", "dualpipev", "chimera", "zbv") else pp + 2 + pp % 2
        request = Request(pp=pp, num_microbatches=count, num_splits=2)
        if not family.request_violation(request):
            yield build_schedule(family.name, request, vpp=family.fixed_vpp or 2)


def share_of(schedule, unequal):
    """Return forward, input and weight gradient of each stage."""
    wave = 0.5 * np.sin(np.arange(schedule.num_stages)) if unequal else np.zeros(schedule.num_stages)
    return [
        tuple(FULL * schedule.share * (1.0 + factor) * part for part in (1.0, 1.1, 0.9)) for factor in wave
    ]


def sleeping(_rank, jobs):
    """Run each schedule on stages that only take time; return every step's passes and start."""
    channels, result = Channels([range(jobs[0][0].num_ranks)], torch.device("cpu")), []
    for schedule, seconds in jobs:
        step = PipelineStep(
            schedule,
            lambda stage, local=seconds: SleepingStage(local[stage]),
            lambda y, _: y.sum(),
            channels=channels,
        )
        batch = torch.ones(schedule.num_microbatches, 2 * schedule.num_splits)
        result.append(timed(step, batch, batch))
    return result


def training(_rank, schedules, width, tokens):
    """Run each schedule on a small GPT."""
    channels, result = Channels([range(schedules[0].num_ranks)], torch.device("cpu")), []
    for schedule in schedules:
        make = partial(
            toy_stage, num_stages=schedule.num_stages, width=width, num_heads=4, dtype=torch.float32
        )
        step = PipelineStep(schedule, make, toy_loss, tied=TIED, channels=channels)
        made = torch.Generator().manual_seed(1)
        shape = (schedule.num_microbatches * 2, tokens)
        result.append(timed(step, *(torch.randint(0, VOCABULARY, shape, generator=made) for _ in range(2))))
    return result


def timed(step, inputs, targets):
    steps = []
    for index in range(STEPS + 2):
        step(inputs, targets)
        for parameter in step.parameters():
            parameter.grad = None
        if index > 1:
            steps.append((step.passes, step.start_s))
    return steps


def measured(schedules, by_rank):
    """Return the step of median makespan of each schedule."""
    for place, schedule in enumerate(schedules):
        rows = [[rank[place][index] for rank in by_rank] for index in range(STEPS)]
        yield typical([together(schedule, *zip(*row, strict=True)) for row in rows])


def compare(schedules, by_rank):
    errors = []
    for step in measured(schedules, by_rank):
        simulated, local = step.simulated(), 1e3 * step.makespan_s
        errors.append(simulated.makespan / local - 1.0)
        idle = f"idle {step.idle_share:6.1%}, {simulated.bubble_rate_makespan:6.1%}"
        text = f"{local:8.1f} ms, simulated {simulated.makespan:8.1f} ms ({errors[-1]:+.1%})"
        print(f"{step.schedule.name:26s} {text}; {idle}")
    print(f"mean |error| {np.mean(np.abs(errors)):.2%}, worst {max(errors, key=abs):+.1%}")


def run_families(ranks, unequal):
    schedules = list(library(ranks))
    compare(
        schedules,
        launch(sleeping, ranks, [(schedule, share_of(schedule, unequal)) for schedule in schedules]),
    )


def run_gpt():
    schedules = list(library(2))
    compare(schedules, launch(training, 2, schedules, 256, 64))


def run_optimised():
    """Measure 1F1B and ZB-H1 on unequal stages, optimise for what was measured, and run what was found."""
    ranks, count = 4, 8
    seconds = [(0.020, 0.024, 0.012), (0.030, 0.030, 0.030), (0.016, 0.030, 0.010), (0.026, 0.020, 0.034)]
    known = [build_schedule(name, Request(pp=ranks, num_microbatches=count)) for name in ("1f1b", "zb-h1")]
    before = dict(
        zip(
            ("1f1b", "zb-h1"),
            measured(known, launch(sleeping, ranks, [(item, seconds) for item in known])),
            strict=True,
        )
    )
    schedule = optimise(measured_problem(before["zb-h1"], loop(ranks), count), time_limit_s=30.0).schedule
    tables = [*known, replace(schedule, name="optimised")]
    after = list(measured(tables, launch(sleeping, ranks, [(table, seconds) for table in tables])))
    times, links = stage_times_for(before["zb-h1"], schedule)
    projected = simulate(schedule, times, links).makespan
    for step in after:
        name = step.schedule.name
        makespan = simulate(step.schedule, *stage_times_for(before["zb-h1"], step.schedule)).makespan
        explicit, real = 1.0 - projected / makespan, 1.0 - after[-1].makespan_s / step.makespan_s
        gain = f"the optimised one is {real:6.1%} shorter, projected {explicit:6.1%}"
        print(f"{name:10s} {1e3 * step.makespan_s:8.1f} ms; {gain}")


def long(_rank, schedule, steps):
    make = partial(toy_stage, num_stages=schedule.num_stages)
    step = PipelineStep(schedule, make, toy_loss, tied=TIED)
    batch = torch.zeros((schedule.num_microbatches * 2, 16), dtype=torch.int64)
    seen = []
    for index in range(steps):
        step(batch, batch)
        for parameter in step.parameters():
            parameter.grad = None
        if index in (steps // 10, steps - 1):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((len(list(Path("/proc/self/fd").iterdir())), pages * resource.getpagesize()))
    return seen


def run_long():
    for name in ("zb-h1", "zbv", "pipeoffload"):
        vpp = 2 if name == "pipeoffload" else None
        schedule = build_schedule(name, Request(pp=2, num_microbatches=4), vpp=vpp)
        for rank, (early, late) in enumerate(launch(long, 2, schedule, 1000)):
            text = f"{early[1] / 2**20:.1f} MiB after 100 steps, {late[1] / 2**20:.1f} after 1,000"
            print(f"{name:12s} rank {rank}: {early[0]} and {late[0]} handles; {text}")


def run_transport():
    """Print what gloo and the runner take beside computing."""
    schedules = [build_schedule(name, Request(pp=2, num_microbatches=8)) for name in ("1f1b", "zb-h1")]
    seconds = [(0.02, 0.02, 0.02)] * 2
    slept = list(measured(schedules, launch(sleeping, 2, [(schedule, seconds) for schedule in schedules])))
    trained = list(measured(schedules, launch(training, 2, schedules, 256, 64)))
    for step in slept:
        links, host = step.links, float(np.mean(step.times.host))
        message = float(np.median(np.concatenate((links.transfer, links.backward_transfer))))
        print(f"{step.schedule.name}: message {message:.3f}, posted {links.host:.3f}, host {host:.3f} ms")
    whole, apart = (step.times for step in trained)
    print("I + W over B:", np.round((apart.input_grad + apart.weight_grad) / whole.input_grad, 3))
    for step in trained:
        aligned, spread = step.aligned, []
        for place in {(stage, kind) for stage in range(2) for kind in range(4)}:
            mine = (aligned.flat.stage == place[0]) & (aligned.flat.kind == place[1])
            local = (aligned.end - aligned.start)[mine]
            spread += [local.std() / local.mean()] if local.size else []
        print(f"{step.schedule.name}: jitter {np.median(spread):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("families", "gpt", "optimised", "long", "transport"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--unequal", action="store_true")
    args = parser.parse_args()
    if args.what == "families":
        run_families(args.ranks, args.unequal)
    else:
        {"gpt": run_gpt, "optimised": run_optimised, "long": run_long, "transport": run_transport}[
            args.what
        ]()


if __name__ == "__main__":
    main()
