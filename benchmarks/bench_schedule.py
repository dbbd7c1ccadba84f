"""How fast schedules are built, checked, compiled and timed again: `pytest benchmarks/bench_schedule.py`.

Limits are those promised in docs/schedules.md; the best of many rounds is compared, so that a busy machine
does not fail them. torch.distributed.pipelining, where it is installed, builds and lowers the same schedule in
the same run.
"""

import time

import numpy as np
import pytest

from forescale.schedule import LinkTimes, Request, StageTimes, check, compile_schedule, family
from forescale.schedule.model import wave
from forescale.schedule.optimise import Problem, optimise

UNIT = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0)


def ready(name, pp, m, vpp):
    schedule = family(name).build(Request(pp=pp, num_microbatches=m, vpp=vpp))
    compiled = compile_schedule(schedule)
    result = check(schedule, program=compiled.program)
    assert result.valid, (name, result.violations[0].message)
    return compiled


@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zb", "zbv"])
def test_build_check_compile(benchmark, name):
    benchmark.pedantic(ready, args=(name, 64, 512, 2), rounds=3)
    assert benchmark.stats.stats.min <= 1.5


@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zb", "zbv"])
def test_time_a_large_schedule_again(benchmark, name, delay):
    compiled = ready(name, 64, 512, 2)
    laid = compiled.durations(UNIT, LinkTimes(latency=delay))
    benchmark(compiled.time, laid)
    assert benchmark.stats.stats.min <= 5e-3


@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "vpp"), [("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 2), ("interleaved-zb", 2), ("zbv", 2)]
)
def test_time_a_small_schedule_again(benchmark, name, vpp, delay):
    compiled = ready(name, 8, 64, vpp)
    laid = compiled.durations(UNIT, LinkTimes(latency=delay))
    benchmark(compiled.time, laid)
    assert benchmark.stats.stats.min <= (60e-6 if delay else 50e-6)


@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_time_many_durations(benchmark, name, delay):
    compiled = ready(name, 16, 128, 1)
    random = np.random.default_rng(0)
    f, b, w = (random.uniform(0.5, 2.0, (16, 2000)) for _ in range(3))
    times, links = StageTimes(forward=f, input_grad=b, weight_grad=w), LinkTimes(latency=delay)
    benchmark.pedantic(compiled.time, args=(times, links), rounds=5)
    assert benchmark.stats.stats.min / 2000 <= 60e-6


@pytest.mark.parametrize(("name", "pp", "m"), [("v-half", 8, 64), ("v-half", 16, 256), ("zb-2p", 16, 256)])
def test_build_by_search(benchmark, name, pp, m):
    item = family(name)
    request = Request(pp=pp, num_microbatches=m, vpp=item.fixed_vpp)
    benchmark.pedantic(item.build, args=(request,), rounds=3)


@pytest.mark.parametrize("limit", [2.0, 3.0, 4.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prove_a_v_placement_with_unequal_stages(benchmark, seed, limit):
    """Limits in micro-batches of a device's full share; all that a rank may ever hold is 8."""
    pytest.importorskip("ortools")
    random = np.random.default_rng(seed)
    f, b, w = (random.integers(*item, 8).astype(float) for item in ((50, 80), (60, 100), (30, 60)))
    problem = Problem(
        placement=wave(4, 2), num_microbatches=8, forward=f, input_grad=b, weight_grad=w,
        comm=np.full(7, 5.0), saved=np.full(8, 0.5), memory_limit=limit,
    )  # fmt: skip
    pedantic = benchmark.pedantic(optimise, args=(problem,), rounds=1)
    assert pedantic.proven
    assert pedantic.makespan <= pedantic.library_makespan


def torch_interleaved(pp, m, vpp):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    import torch
    from torch.distributed.pipelining.stage import _PipelineStageBase

    class Stage(_PipelineStageBase):
        def __init__(self, index):
            self.num_stages, self.group_size, self.group_rank, self.stage_index = pp * vpp, pp, 0, index
            self.group, self.device = None, torch.device("cpu")
            self.has_backward, self.submod = True, torch.nn.Identity()

        def _create_grad_recv_info(self, *_):
            return None

        _prepare_forward_infra = _prepare_backward_infra = _create_grad_recv_info

    stages = [Stage(chunk * pp) for chunk in range(vpp)]
    return schedules.ScheduleInterleaved1F1B(stages, m, loss_fn=lambda *_: None)


@pytest.mark.parametrize(("pp", "m"), [(8, 64), (16, 256)])
def test_ratio_to_torch(benchmark, pp, m):
    """torch lays out and lowers the table; we lay out, check under three semantics and compile it."""
    began = time.perf_counter()
    torch_interleaved(pp, m, 2)
    theirs = time.perf_counter() - began
    benchmark.pedantic(ready, args=("interleaved-1f1b", pp, m, 2), rounds=5)
    benchmark.extra_info["torch_s"] = theirs
    assert benchmark.stats.stats.min < theirs
