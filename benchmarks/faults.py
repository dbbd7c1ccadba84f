"""How often `diagnose` ranks the cause of a slow step first: faults seeded into real steps of two gloo ranks.

    unshare -n .venv/bin/python benchmarks/faults.py [--only NAME ...] [--clean 60] [--keep FOLDER] [--every-step]

Each run is a step of a small model on two CPU processes with one thread each, recorded by torch.profiler while one
fault of one size is at work. The expectation is a bench artifact of the same step without a fault, which takes turns
with the faulted one. `diagnose` gets the question, that artifact and the traces of both ranks. A fault that slows the
step by less than 5 % is listed and not counted. Runs without a fault are diagnosed alike.

The machine need not be idle: times at which the kernel gave a rank's core to another process are cut out of its
trace (context switches by perf_event_open), a step is recorded `REPEATS` times, and of every interval between the
beginnings and ends of operators the shortest is kept. So a fault, which is in every repetition, stays, and what other
processes took does not. With `--every-step` the repetitions stay as they are, and `diagnose` judges their scatter.
`slow_links` shapes the loopback interface of this process' own network namespace with tc,
which needs one (`unshare -n`, as root).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from forescale.bench.groups import groups_of
from forescale.bench.training import Training, as_run
from forescale.cost.timings import ProfiledOperator, StepTiming
from forescale.diagnose import diagnose, measured_of
from forescale.diagnose.work import transfers
from forescale.io.bench import BenchArtifact, Conditions, write_bench
from forescale.io.question import build_question
from forescale.io.question_values import question_values
from forescale.profiles import TraceSummary, profile_rows, summarise
from forescale.project import project
from forescale.question import Question
from forescale.runtime import launch
from forescale.spec import (
    Cluster,
    DenseFfn,
    Device,
    FullAttention,
    Layer,
    Layout,
    MatrixRates,
    Model,
    MoeFfn,
    Precision,
    Tier,
    Workload,
)

REPEATS = 8
"""Recorded repetitions of a step."""
LAYERS, WIDTH, VOCABULARY, TOKENS, SEQUENCES, MICRO_BATCHES = 2, 128, 512, 96, 2, 3
CALM = 3
"""Samples of a quiet machine after which a run begins."""
LEAST = 0.05
"""Share of a step below which a fault is not counted."""
ATTENTION = FullAttention(num_heads=4, num_kv_heads=4, head_dim=32)
FFNS = {
    "dense": DenseFfn(ffn_hidden_size=384),
    "moe": MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=192),
}


def question_of(kind: str) -> Question:
    """Return the step that is expected: two replicas, of experts two halves."""
    device = Device(
        name="cpu-core", vendor="cpu", architecture="x86", matrix_flops=MatrixRates(fp32=1e11), vector_flops=5e10,
        hbm_bytes=8e9, hbm_bandwidth=1e10, num_cores=1, clock_hz=2.5e9,
    )  # fmt: skip
    question = Question(
        model=Model(
            name=kind,
            hidden_size=WIDTH,
            layers=(Layer(attention=ATTENTION, ffn=FFNS[kind]),) * LAYERS,
            vocab_size=VOCABULARY,
        ),
        cluster=Cluster(
            name="this",
            device=device,
            num_devices=2,
            devices_per_node=2,
            tiers=(Tier(name="host", size=0, bandwidth=2e9, latency=5e-5),),
        ),
        workload=Workload(
            seq_len=TOKENS,
            global_batch_size=2 * SEQUENCES * MICRO_BATCHES,
            precision=Precision(compute="fp32", parameters="fp32", master="none", activations="fp32"),
        ),
        strategy=Layout(
            ep=2 if kind == "moe" else 1, dp_shard=2, zero=0, micro_batch_size=SEQUENCES
        ),
    )  # fmt: skip
    return as_run(question)


class Run:
    """One rank's model, and the places of a step at which a fault can be at work."""

    def __init__(self, question: Question) -> None:
        self.training = Training(question, torch.device("cpu"), groups_of(question))
        self.question, self.rank, self.stack = question, dist.get_rank(), ExitStack()
        parameters = self.training.update.updated
        self.training.update.optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        self.before: list[Callable[[], object]] = []
        """Called before each micro-batch."""
        self.after: list[Callable[[], object]] = []
        """Called after the last one."""
        self.competes = False
        """Whether another process that competes for the core is the fault."""
        self.around: list[Callable[[], AbstractContextManager[object]]] = []
        """Entered for each step."""

    @property
    def layers(self) -> Sequence[Any]:
        """Decoder layers of the model."""
        return list(self.training.blocks.layers)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All parameters."""
        return list(self.training.blocks.parameters())

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let what is around a step be at work."""
        with ExitStack() as stack:
            for context in self.around:
                stack.enter_context(context())
            yield

    def step(self) -> None:
        """Run a step."""

        def phase(name: str) -> None:
            for call in {"forward": self.before, "reduce": self.after}.get(name, ()):
                call()

        self.training.step(phase)


Patch = Callable[[Run, float], None]


class Stalls(torch.utils.data.Dataset[int]):
    """A data set that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, _: int) -> int:
        time.sleep(self.seconds)
        return 0


def data_loader(run: Run, seconds: float, ranks: Sequence[int] = (0, 1)) -> None:
    items = iter(torch.utils.data.DataLoader(Stalls(seconds if run.rank in ranks else 0.0)))
    run.before.append(lambda: next(items))


def sleeps(run: Run, seconds: float, ranks: Sequence[int] = (0, 1)) -> None:
    if run.rank in ranks:
        run.before.append(lambda: time.sleep(seconds))


def collects(run: Run, size: float) -> None:
    rubbish = [[index] for index in range(int(size))]
    run.before.append(lambda: (len(rubbish), gc.collect()))


def saves(run: Run, times: float) -> None:
    folder = run.stack.enter_context(tempfile.TemporaryDirectory())
    state = [parameter.detach().numpy() for parameter in run.parameters]

    def save() -> None:
        for _ in range(int(times)):
            with open(f"{folder}/state", "wb") as file:  # noqa: PTH123
                file.writelines(item.tobytes() for item in state)
                os.fsync(file.fileno())

    run.after.append(save)


def reduces(run: Run, times: float) -> None:
    left = [0]

    def reduce() -> None:
        left[0] = (left[0] + 1) % MICRO_BATCHES
        if 0 < left[0] <= times:
            run.training.update.reduce()

    run.before.append(reduce)


def buckets(run: Run, count: float) -> None:
    for bucket in run.training.update.buckets:
        pieces = bucket.flat.chunk(int(count))
        bucket.reduce = lambda pieces=pieces: [dist.all_reduce(piece) for piece in pieces]


def more_reductions(run: Run, share: float) -> None:
    tensor = torch.zeros(int(share * sum(bucket.flat.numel() for bucket in run.training.update.buckets)))
    run.after.append(lambda: dist.all_reduce(tensor))


def broadcasts(run: Run, times: float) -> None:
    tensor = torch.cat([parameter.detach().flatten() for parameter in run.parameters])
    run.before.append(lambda: [dist.broadcast(tensor, 0) for _ in range(int(times))])


def unfused_attention(run: Run, share: float) -> None:
    from transformers import AttentionInterface

    calls = [0]

    def eager(_: Any, q: Any, k: Any, v: Any, __: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] % 6 >= 6 * share:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2), None
        scores = q @ k.transpose(-1, -2) * more["scaling"]
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return (scores @ v).transpose(1, 2).contiguous(), scores

    AttentionInterface.register("eager_here", eager)
    for layer in run.layers:
        config = type(layer.self_attn.config).from_dict(layer.self_attn.config.to_dict())
        config._attn_implementation = "eager_here"
        layer.self_attn.config = config


def _share_of(layers: Sequence[Any], share: float) -> Sequence[Any]:
    return layers[: max(1, round(share * len(layers)))]


def wrapped(layer: Any, around: Callable[..., Any]) -> None:
    """Let something else call a layer."""
    forward = layer.forward
    layer.forward = lambda *args, **more: around(forward, *args, **more)


def in_type(run: Run, share: float, dtype: torch.dtype) -> None:
    modules = [
        module for layer in run.layers for module in layer.modules() if isinstance(module, torch.nn.Linear)
    ]
    for module in _share_of(modules, share):
        module.forward = lambda x, module=module: functional.linear(x.to(dtype), module.weight.to(dtype)).to(
            x.dtype
        )


def recomputes(run: Run, share: float) -> None:
    calls = [0]

    def around(forward: Any, *args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] % 6 < 6 * share:
            return checkpoint(forward, *args, use_reentrant=False, **more)
        return forward(*args, **more)

    for layer in run.layers:
        wrapped(layer, around)


def skew(run: Run, share: float) -> None:
    experts = FFNS["moe"].num_experts // 2

    def choose(_: object, value: tuple[Any, ...]) -> tuple[Any, ...]:
        chosen = value[1].clone()
        flat = chosen.view(-1)
        flat[: int(share * flat.numel())] %= experts
        return (value[0], chosen, *value[2:])

    for layer in run.layers:
        layer.mlp.experts.register_forward_pre_hook(choose)


def longer(run: Run, factor: float) -> None:
    tokens = run.training.tokens
    run.training.tokens = tokens.repeat(1, 3)[:, : int(factor * tokens.shape[1])]


def larger(run: Run, size: float, ranks: Sequence[int] = (0, 1)) -> None:
    if run.rank in ranks:
        run.training.tokens = run.training.tokens.repeat(4, 1)[: int(size)]


def micro_batches(run: Run, count: float) -> None:
    run.training.num_microbatches = int(count)


def smaller(run: Run, share: float) -> None:
    """Run a share of the micro-batches as two halves."""
    training, whole = run.training, run.training.tokens
    training.num_microbatches = MICRO_BATCHES + round(share * MICRO_BATCHES)
    place = [0]

    def choose() -> None:
        half = place[0] < 2 * round(share * MICRO_BATCHES)
        training.tokens = whole[:1] if half else whole
        place[0] = (place[0] + 1) % training.num_microbatches

    run.before.append(choose)


def updates(run: Run, times: float) -> None:
    run.after.append(lambda: [run.training.update.optimizer.step() for _ in range(int(times))])


def plain_optimizer(run: Run, pieces: float) -> None:
    update = run.training.update
    parts = []
    for parameter in update.updated:
        for data, gradient in zip(
            parameter.data.flatten().chunk(int(pieces)),
            parameter.grad.flatten().chunk(int(pieces)),
            strict=True,
        ):
            part = torch.nn.Parameter(data)
            part.grad = gradient
            parts.append(part)
    update.optimizer = torch.optim.AdamW(parts, lr=1e-4, fused=False, foreach=False)


def copies(run: Run, times: float) -> None:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        for _ in range(int(times)):
            tensor = tensor.clone()
        return tensor

    run.around.append(lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))


def statistics(run: Run, times: float) -> None:
    def read() -> None:
        for _ in range(int(times)):
            for parameter in run.parameters:
                parameter.detach().norm().item()

    run.before.append(read)


def checks(run: Run, times: float) -> None:
    def read() -> None:
        for _ in range(int(times)):
            for parameter in run.parameters:
                bool(torch.isfinite(parameter.grad).all())

    run.before.append(read)


def drops(run: Run, times: float) -> None:
    def dropped(_: object, __: object, y: Any) -> Any:
        x = y[0] if isinstance(y, tuple) else y
        for _ in range(int(times)):
            x = functional.dropout(x, 0.01)
        return (x, *y[1:]) if isinstance(y, tuple) else x

    for layer in run.layers:
        layer.self_attn.o_proj.register_forward_hook(dropped)
        layer.mlp.register_forward_hook(dropped)


def casts(run: Run, times: float) -> None:
    def cast() -> None:
        for _ in range(int(times)):
            for parameter in run.parameters:
                parameter.detach().to(torch.bfloat16)

    run.before.append(cast)


def eager_norms(run: Run, times: float) -> None:
    def normed(_: object, __: object, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(times)):
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * 1.0 + 0.0
        return x

    for module in run.training.blocks.modules():
        if "RMSNorm" in type(module).__name__:
            module.register_forward_hook(normed)


def heads(run: Run, times: float) -> None:
    def again(module: Any, inputs: tuple[Any, ...], _: torch.Tensor) -> None:
        for _ in range(int(times)):
            functional.linear(inputs[0].detach(), module.weight.detach())

    run.training.blocks.lm_head.register_forward_hook(again)


def spins(run: Run, seconds: float) -> None:
    def spin(*_: object) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    for module in run.training.blocks.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(spin)


PERIOD_S = 4e-4
"""How long a competing process works at a time."""


def competes(run: Run, ratio: float, ranks: Sequence[int] = (0, 1)) -> None:
    """Let another process take time of this rank's core in short slices, as a throttled clock would."""
    run.competes = True
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[run.rank % len(cores)]})
    run.stack.callback(os.sched_setaffinity, 0, cores)
    if run.rank not in ranks:
        return

    @contextmanager
    def working() -> Iterator[None]:
        os.kill(process.pid, signal.SIGCONT)
        yield
        os.kill(process.pid, signal.SIGSTOP)

    code = (
        f"import time, os\nos.sched_setaffinity(0, {{{cores[run.rank % len(cores)]}}})\n"
        f"while os.getppid() == {os.getpid()}:\n t = time.perf_counter() + {PERIOD_S}\n"
        f" while time.perf_counter() < t: pass\n time.sleep({PERIOD_S / ratio})"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    run.stack.callback(process.wait)
    run.stack.callback(process.kill)
    run.around.append(working)
    time.sleep(0.3)


def shaped(run: Run, megabits: float) -> None:
    """Limit the loopback interface of this network namespace to a rate."""
    command = ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{megabits:g}mbit")

    @contextmanager
    def limited() -> Iterator[None]:
        subprocess.run([*command, "burst", "256kb", "latency", "400ms"], check=True)
        yield
        subprocess.run(("tc", "qdisc", "del", "dev", "lo", "root"), check=True)

    if run.rank == 0:
        run.around.append(limited)


FAULTS: dict[str, tuple[str, Patch, tuple[float, ...]]] = {
    "data_loader": ("data_loading", data_loader, (0.0012, 0.0036, 0.012)),
    "data_loader_of_one_rank": (
        "data_loading",
        lambda run, x: data_loader(run, x, (1,)),
        (0.0012, 0.0036, 0.012),
    ),
    "host_sleeps": ("host_gaps", sleeps, (0.0012, 0.0036, 0.012)),
    "host_sleeps_of_one_rank": ("host_gaps", lambda run, x: sleeps(run, x, (1,)), (0.0012, 0.0036, 0.012)),
    "garbage_collection": ("host_gaps", collects, (1e3, 1e5, 4e5)),
    "saving": ("host_gaps", saves, (1, 3, 10)),
    "missing_no_sync": ("reduce_per_micro_batch", reduces, (1, 2, 3)),
    "small_buckets": ("small_buckets", buckets, (20, 60, 200)),
    "extra_all_reduce": ("extra_messages", more_reductions, (3, 8, 25)),
    "broadcast_of_buffers": ("extra_messages", broadcasts, (1, 3, 10)),
    "unfused_attention": ("unfused_attention", unfused_attention, (0.34, 0.67, 1)),
    "fp64_products": ("fp64_products", lambda run, x: in_type(run, x, torch.float64), (0.15, 0.5, 1)),
    "bf16_products": ("bf16_products", lambda run, x: in_type(run, x, torch.bfloat16), (0.15, 0.5, 1)),
    "checkpointing": ("recompute", recomputes, (0.34, 0.67, 1)),
    "expert_imbalance": ("expert_imbalance", skew, (0.2, 0.5, 1)),
    "padding": ("padding", longer, (1.125, 1.375, 2)),
    "large_micro_batches": ("large_micro_batches", larger, (3, 4, 6)),
    "uneven_load": ("uneven_load", lambda run, x: larger(run, x, (1,)), (3, 4, 6)),
    "more_micro_batches": ("more_micro_batches", micro_batches, (4, 5, 6)),
    "small_micro_batches": ("small_micro_batches", smaller, (0.34, 0.67, 1)),
    "repeated_update": ("repeated_update", updates, (10, 30, 100)),
    "plain_optimizer": ("unfused_optimizer", plain_optimizer, (1, 3, 8)),
    "offload_copies": ("host_copies", copies, (1, 4, 12)),
    "logging_of_norms": ("statistics", statistics, (3, 10, 30)),
    "checks_of_gradients": ("statistics", checks, (3, 10, 30)),
    "dropout": ("dropout", drops, (1, 3, 10)),
    "casts_of_weights": ("casts", casts, (4, 12, 40)),
    "eager_norms": ("unfused_kernels", eager_norms, (1, 3, 8)),
    "extra_head": ("extra_products", heads, (3, 10, 30)),
    "slow_host": ("host_bound", spins, (8e-5, 2.4e-4, 8e-4)),
    "slow_rank": ("slow_rank", lambda run, x: competes(run, x, (1,)), (0.15, 0.4, 1)),
    "throttled_clock": ("slow_clock", competes, (0.15, 0.4, 1)),
    "slow_links": ("slow_links", shaped, (2500, 1000, 300)),
}
"""Faults: the cause that `diagnose` has to name, what is done to a run, and three sizes."""


Event = dict[str, Any]


def waited_s() -> float:
    """Return the seconds in which this thread could have run and another had its core."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def wait_for_quiet(seconds: float = 30.0) -> None:
    """Wait until little else runs on this machine, at most so long."""
    end, calm = time.monotonic() + seconds, 0
    cores = len(os.sched_getaffinity(0))
    while time.monotonic() < end and calm < CALM:
        running = next(
            line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("procs_running")
        )
        calm = calm + 1 if int(running.split()[1]) <= cores else 0
        time.sleep(0.1)


def agreed(value: bool) -> bool:
    """Return whether all ranks say so."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return all(values)


def record(
    _rank: int,
    kind: str,
    items: Sequence[tuple[str, float, str]],
    seconds: float,
    most: float,
    every_step: bool,
) -> None:
    """Record steps on one rank, with and without a fault in turn: of each item (fault, size, folder) two traces.

    What was disturbed by other processes is recorded once more at the end, as long as the time lasts.
    """
    torch.set_num_threads(1)
    question, left, end = question_of(kind), deque(items), time.monotonic() + seconds
    clean = Run(question)
    while left and agreed(time.monotonic() < end):
        name, size, folder = left.popleft()
        if most < 1.0:
            wait_for_quiet()
        before, start = waited_s(), time.monotonic()
        run = Run(question)
        with run.stack:
            if name:
                FAULTS[name][1](run, size)
            recordings = recorded({"clean": clean, "faulted": run})
        disturbed = (waited_s() - before) / (time.monotonic() - start)
        if not agreed(disturbed <= most):
            left.append((name, size, folder))
            continue
        for label, steps in recordings.items():
            place = Path(folder) / label
            place.mkdir(parents=True, exist_ok=True)
            events = in_sequence(steps) if every_step else composed(steps)
            events = [{key: value for key, value in item.items() if key != "at"} for item in events]
            (place / f"rank{run.rank}.json").write_text(json.dumps({"traceEvents": events}))


def recorded(runs: dict[str, Run]) -> dict[str, list[list[Event]]]:
    """Return the events of every repetition of the steps of several runs, which take turns."""
    result: dict[str, list[list[Event]]] = {label: [] for label in runs}
    switches, begun = Switches(), {}
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiler:
        for number in range(-1, REPEATS):
            for label, run in runs.items():
                with run.at_work():
                    dist.barrier()
                    begun[f"{STEP}{label}#{number}"] = time.monotonic_ns() / 1e3
                    with torch.profiler.record_function(f"{STEP}{label}#{number}"):
                        run.step()
            switches.read()
    items = [item for item in profiler.profiler.kineto_results.events() if "barrier" not in item.name()]
    base = min(item.start_ns() for item in items)
    spans = [event_of(item, base) for item in items]
    steps = [item for item in spans if item["name"].startswith(STEP)]
    shift = min(step["ts"] - begun[step["name"]] for step in steps)
    if not any(run.competes for run in runs.values()):
        compress(spans, steps[0]["tid"], switches.taken, shift)
    for step in steps:
        label, _, number = step["name"].removeprefix(STEP).partition("#")
        if int(number) >= 0:
            begin, end = step["ts"], step["ts"] + step["dur"]
            inside = [
                item for item in spans if begin <= item["ts"] < end and not item["name"].startswith(STEP)
            ]
            result[label].append([step, *inside])
    return result


def compress(spans: Sequence[Event], main: int, taken: Sequence[tuple[float, float]], shift: float) -> None:
    """Cut the times in which another process had the core of the main thread out of all events.

    Messages, which other threads send, keep their lengths.
    """
    begins = np.array([begin + shift for begin, _ in taken])
    lengths = np.array([end - begin for begin, end in taken])
    before = np.r_[0.0, np.cumsum(lengths)]

    def moved(moments: Any) -> Any:
        place = np.searchsorted(begins, moments, side="right")
        inside = np.where(place > 0, np.minimum(moments - begins[place - 1], lengths[place - 1]), 0.0)
        return moments - before[np.maximum(place - 1, 0)] - inside

    starts = np.array([item["ts"] for item in spans])
    ends = starts + np.array([item["dur"] for item in spans])
    if len(taken):
        for item, start, end in zip(spans, moved(starts), moved(ends), strict=True):
            item["ts"] = float(start)
            if item["tid"] == main:
                item["dur"] = float(end - start)


class Switches:
    """Times in which the kernel gave the core of this thread to another process [µs of the monotonic clock]."""

    PAGES, PAGE = 256, 4096
    CALL = 298
    """perf_event_open of x86-64."""

    def __init__(self) -> None:
        attributes = bytearray(136)
        struct.pack_into("IIQ", attributes, 0, 1, 136, 9)  # software, its size, dummy
        struct.pack_into("Q", attributes, 24, 1 << 1 | 1 << 2)  # thread and time
        struct.pack_into(
            "Q", attributes, 40, 1 << 5 | 1 << 6 | 1 << 18 | 1 << 25 | 1 << 26
        )  # context switches
        struct.pack_into("i", attributes, 92, 1)  # monotonic clock
        content = (ctypes.c_char * 136).from_buffer(attributes)
        self.file = ctypes.CDLL(None).syscall(self.CALL, content, 0, -1, -1, 0)
        self.map = mmap.mmap(self.file, (1 + self.PAGES) * self.PAGE)
        self.taken: list[tuple[float, float]] = []
        self._out: float | None = None

    def read(self) -> None:
        """Take in what was recorded since."""
        head, tail = (struct.unpack_from("Q", self.map, place)[0] for place in (1024, 1032))
        data = self.map[self.PAGE :]
        size = len(data)
        while tail < head:
            kind, misc, length = struct.unpack("IHH", (data[tail % size : tail % size + 8] + data[:8])[:8])
            record = (data[tail % size : tail % size + 64] + data[:64])[:length]
            if kind == 14:
                now = struct.unpack_from("Q", record, 16)[0] / 1e3
                if misc & 1 << 13:
                    self._out = now if misc & 1 << 14 else None
                elif self._out is not None:
                    self.taken.append((self._out, now))
                    self._out = None
            tail += length
        struct.pack_into("Q", self.map, 1032, head)


STEP = "step of "
SHAPED = ("aten::mm", "aten::bmm", "aten::addmm", "aten::_grouped_mm", "aten::_scaled_dot", "gloo:")


def event_of(item: Any, base: int) -> Event:
    """Return an event as a chrome trace has it, and its nanoseconds `at` since a moment.

    Microseconds since 1970 are no more exact than 0.25 µs as floats: operators would no longer nest as they did.
    """
    name = item.name()
    host = not name.startswith(("gloo:", STEP, "Optimizer.step", "enumerate(DataLoader)"))
    args = {"Input Dims": item.shapes(), "Input type": item.dtypes()} if name.startswith(SHAPED) else {}
    start = item.start_ns() - base
    return {
        "ph": "X", "cat": "cpu_op" if host else "user_annotation", "name": name, "pid": 0,
        "tid": item.start_thread_id(), "ts": start / 1e3, "dur": item.duration_ns() / 1e3, "args": args,
        "at": (start, start + item.duration_ns()),
    }  # fmt: skip


def in_sequence(steps: Sequence[list[Event]]) -> list[Event]:
    """Return all repetitions of a step, one after the other."""
    now, result = 0.0, []
    for number, (step, *inside) in enumerate(steps):
        shift = now - step["ts"]
        main = {**step, "name": f"ProfilerStep#{number}", "cat": "user_annotation"}
        result += [{**item, "ts": item["ts"] + shift} for item in (main, *inside)]
        now += step["dur"]
    return result


def composed(steps: Sequence[list[Event]]) -> list[Event]:
    """Return one step in which every interval is the shortest of all repetitions of the step."""
    main = steps[0][0]["tid"]
    ordered = [
        (
            step["ts"],
            step["ts"] + step["dur"],
            _nested([item for item in inside if item["tid"] == main]),
            [item for item in inside if item["tid"] != main],
        )
        for step, *inside in steps
    ]
    usual = Counter(_signature(item) for item in ordered).most_common(1)[0][0]
    return _shortest([item for item in ordered if _signature(item) == usual], main)


def _nested(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda item: (item["at"][0], -item["at"][1]))


def _signature(item: tuple[float, float, list[Event], list[Event]]) -> tuple[Any, ...]:
    _, _, own, others = item
    return tuple(event["name"] for event in own), tuple(sorted(event["name"] for event in others))


def _boundaries(own: Sequence[Event]) -> list[tuple[int, bool]]:
    """Return the beginnings (True) and ends of nested events in order, by place."""
    result: list[tuple[int, bool]] = []
    stack: list[tuple[int, int]] = []
    for place, event in enumerate(own):
        begin, end = event["at"]
        while stack and stack[-1][0] <= begin:
            result.append((stack.pop()[1], False))
        result.append((place, True))
        stack.append((min(end, stack[-1][0]) if stack else end, place))
    return [*result, *((place, False) for _, place in reversed(stack))]


def _times(own: Sequence[Event], order: Sequence[tuple[int, bool]]) -> list[float]:
    times, last = [], float("-inf")
    for place, begins in order:
        event = own[place]
        last = max(last, event["ts"] if begins else event["ts"] + event["dur"])
        times.append(last)
    return times


def _shortest(alike: Sequence[tuple[float, float, list[Event], list[Event]]], main: int) -> list[Event]:
    order = _boundaries(alike[0][2])
    moments = []
    for begin, end, own, _ in alike:
        times = _times(own, order) if _boundaries(own) == order else None
        if times is not None:
            moments.append([begin, *times, max(end, times[-1])])
    deltas = [min(pair) for pair in zip(*([b - a for a, b in pairwise(m)] for m in moments), strict=True)]
    now, placed = 0.0, []
    for delta in deltas:
        now += delta
        placed.append(now)
    starts: dict[int, float] = {}
    result: list[Event] = [_span("ProfilerStep#0", "user_annotation", main, 0.0, placed[-1])]
    for (place, begins), moment in zip(order, placed, strict=False):
        if begins:
            starts[place] = moment
        else:
            result.append({**alike[0][2][place], "ts": starts[place], "dur": moment - starts[place]})
    return [*result, *_beside(alike, moments, placed)]


def _beside(
    alike: Sequence[Any], moments: Sequence[Sequence[float]], placed: Sequence[float]
) -> Iterator[Event]:
    """Yield what other threads did: messages, each after what the main thread did last before it."""
    ordered = [sorted(item[3], key=lambda event: event["ts"]) for item in alike]
    for several in zip(*ordered, strict=True):
        place = sum(moment <= several[0]["ts"] for moment in moments[0][1:]) - 1
        length = min(event["dur"] for event in several)
        yield {**several[0], "ts": placed[max(place, 0)], "dur": length}


def _span(name: str, cat: str, tid: int, start: float, length: float) -> Event:
    return {"ph": "X", "name": name, "cat": cat, "pid": 0, "tid": tid, "ts": start, "dur": length, "args": {}}


def artifact_of(question: Question, folder: Path) -> BenchArtifact:
    """Return the bench artifact of clean steps: operators of the slower rank, and what steps and ranks scatter."""
    summaries = [summarise(folder / f"rank{rank}.json") for rank in range(2)]
    slower = max(summaries, key=lambda item: item.computing_s)
    return BenchArtifact(
        config=json.loads(json.dumps(question_values(question))),
        conditions=Conditions(device="cpu-core", num_devices=2, backend="gloo", threads=1),
        steps=(StepTiming(num_microbatches=MICRO_BATCHES, seconds=slower.step_s),),
        profile=tuple(rows_of(slower, summaries)),
    )


def rows_of(summary: TraceSummary, ranks: Sequence[TraceSummary]) -> Iterator[ProfiledOperator]:
    """Yield the operators of a rank, and messages with the seconds that they take without waiting."""
    sent = transfers(ranks)
    for row in profile_rows(summary, [rank.samples for rank in ranks]):
        if row.part not in sent:
            yield row
    for part, samples in sent.items():
        calls = sum(row.calls for row in summary.kernels if row.part == part)
        yield ProfiledOperator(
            name=f"gloo:{part}", part=part, calls=calls, seconds=fmean(samples), samples=samples
        )
    for (part, size), calls in summary.shapes.messages.items():
        yield ProfiledOperator(name="message", part=part, calls=calls, seconds=0.0, num_bytes=size)


def whole(folder: Path) -> bool:
    """Return whether all traces of a run are there."""
    return all(
        (folder / label / f"rank{rank}.json").exists() for label in ("clean", "faulted") for rank in range(2)
    )


def answer(question: Question, folder: Path) -> tuple[float, list[Any]]:
    """Return how much longer than expected the step takes, and the causes that are named."""
    artifact = folder / "bench.json"
    write_bench(artifact_of(question, folder / "clean"), artifact)
    values = {**question_values(question), "cost": {"benchmarks": [str(artifact)]}}
    asked = build_question(values, where="faults")
    result = diagnose(asked, measured_of([str(folder / "faulted")], project(asked)), project)
    return result.measured_s / result.projection.step_time_s - 1.0, list(result.explanations)


def plan(only: Sequence[str], clean: int) -> dict[str, list[tuple[str, float, str]]]:
    """Return the runs of each model: faulted and clean ones in turn, after the clean runs of the bench."""
    faults = [(name, size) for name in only for size in FAULTS[name][2]]
    result: dict[str, list[tuple[str, float, str]]] = {}
    for kind in FFNS:
        own = [item for item in faults if (item[0] == "expert_imbalance") == (kind == "moe")]
        if not own:
            continue
        every = max(1, round(clean / max(1, len(faults))))
        items = []
        for name, size in own:
            items.append((name, size, f"{kind}/{name}-{size:g}"))
            items += [("", 0.0, f"{kind}/clean-{name}-{size:g}-{number}") for number in range(every)]
        random.Random(1).shuffle(items)
        result[kind] = items
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=FAULTS, nargs="+", default=list(FAULTS))
    parser.add_argument("--clean", type=int, default=60, help="runs without a fault")
    parser.add_argument("--keep", type=Path, help="folder of the traces; those that are there are kept")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no run begins")
    parser.add_argument(
        "--disturbed", type=float, default=0.25, help="share of the time that others may have the cores"
    )
    parser.add_argument(
        "--every-step", action="store_true", help="keep all repetitions of a step, with their scatter"
    )
    parser.add_argument("--reuse", action="store_true", help="diagnose the traces that --keep has")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp())
    if shutil.which("tc"):
        subprocess.run(("ip", "link", "set", "lo", "up"), check=False)
    start, rows = time.monotonic(), []
    for kind, items in plan(args.only, args.clean).items():
        question, placed = question_of(kind), [(name, size, str(folder / path)) for name, size, path in items]
        if not args.reuse:
            launch(
                record,
                2,
                kind,
                [item for item in placed if not whole(Path(item[2]))],
                60.0 * args.minutes * (0.95 if kind == "dense" else 0.05),
                args.disturbed,
                args.every_step,
            )
        rows += [
            (name, size, *answer(question, Path(path))) for name, size, path in placed if whole(Path(path))
        ]
    report(rows)
    print(f"{time.monotonic() - start:.0f} s")
    return 0


def report(rows: Sequence[tuple[str, float, float, list[Any]]]) -> None:
    """Print each run with what is named, and the rates of the bar."""
    first = third = counted = clean = alleged = 0
    for name, size, slower, causes in rows:
        names = [item.name for item in causes]
        if not name:
            clean, alleged = clean + 1, alleged + bool(names)
        elif slower >= LEAST or (FAULTS[name][0] in names[:1]):
            counted += slower >= LEAST
            first += slower >= LEAST and FAULTS[name][0] in names[:1]
            third += slower >= LEAST and FAULTS[name][0] in names[:3]
        note = "" if name and FAULTS[name][0] in names[:1] else "  <" if name or names else ""
        print(f"{name or 'clean':24} {size:<8g} {slower:+7.1%}  {', '.join(names[:4])}{note}")
    print(
        f"first {first} of {counted}, in the first three {third} of {counted}; "
        f"alleged in {alleged} of {clean} clean runs"
    )


if __name__ == "__main__":
    sys.exit(main())
