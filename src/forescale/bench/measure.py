"""`measure`: a question cut to the devices at hand, run on ranks of this machine, and everything timed and weighed.

Ranks are processes of their own. The first writes each row to a file as soon as it has it, so that a bench that is
interrupted keeps what it has, and the caller sees how far it is.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace

from forescale.bench.blocks import STEP, Lap, gradients_apart, kept_bytes, parts_of, timed_step
from forescale.bench.groups import groups_of, neighbours
from forescale.bench.here import CPU, Here, find_here, state_of
from forescale.bench.huggingface import multiplies_narrow
from forescale.bench.kernels import (
    Watch,
    kernel_row,
    kernels_of,
    messages_of,
    repeated,
    timed_kernel,
    timed_message,
)
from forescale.bench.reduce import Reduced, reduce
from forescale.bench.suite import (
    Message,
    kernels_among,
    messages_among,
    propose,
    suite_kernels,
    suite_messages,
)
from forescale.bench.training import Training, adapter_of, as_run, check_states
from forescale.bench.weighing import weighed
from forescale.errors import SpecError
from forescale.graph.ops import Compute
from forescale.io.bench import BenchArtifact, Conditions, build_bench
from forescale.io.question import question_values
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.runtime import launch
from forescale.runtime.job import backend_for
from forescale.spec.strategy import Allocator
from forescale.struct import Struct

SHARES = {"steps": 0.45, "apart": 0.15, "kernels": 0.3, "collectives": 0.1}
"""Parts of the time that is to be spent."""
SUITE_SHARE = 0.7
"""Of a device's suite for kernels; the rest is for messages."""
POLL_S = 0.2


class Progress(Struct, frozen=True, kw_only=True):
    """How far a bench is."""

    what: str
    """What was measured last."""
    left_s: float
    """Of the time that is to be spent."""


def measure(
    question: Question,
    *,
    devices: int | None = None,
    busy: int | None = None,
    seconds: float = 60.0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> BenchArtifact:
    """Return what was measured of a question on this machine.

    Parameters
    ----------
    devices
        How many of the machine's devices; all of them by default.
    busy
        Devices at work meanwhile, with copies of what is measured: neighbours share memory and power. By default as
        many of `devices` as the question has.
    seconds
        To be spent on repeating; building the model comes on top.
    tell
        Called with each thing that has been measured.

    Raises
    ------
    SpecError
        If the question is about other devices, its cut does not fit, or nothing here can run it.
    RunError
        If a rank fails, ranks disagree or a loss is no number.
    """
    here = find_here()
    here.check(question)
    devices = devices or here.num_devices
    busy = busy or min(devices, question.cluster.num_devices)
    if max(devices, busy) > here.num_devices:
        raise SpecError(f"{max(devices, busy)} devices were asked for; this machine has {here.num_devices}")
    cut = reduce(question, devices)
    cut = replace(cut, question=as_run(cut.question))
    copies = max(1, busy // cut.question.cluster.num_devices)
    adapter_of(cut.question).check(cut.question)
    check_states(cut.question)
    layout = cut.question.layout
    if layout.zero >= 2 and layout.dp * layout.cp > 1:
        raise SpecError(
            f"a block is not timed apart from what it gathers and scatters (zero {layout.zero} over "
            f"{layout.dp * layout.cp} ranks): ask with --zero 1, or run the layout whole with --check"
        )
    before = state_of(here)
    rows, interrupted = _spooled(partial(_run, question, cut, copies, here, devices, seconds), tell)
    conditions = _conditions(question, cut.question.cluster.num_devices, here, before.clock_mhz)
    conditions = replace(conditions, num_copies=copies, interrupted=interrupted)
    return artifact_of(question, cut, rows, conditions)


def measure_suite(
    question: Question,
    *,
    devices: int | None = None,
    seconds: float = 60.0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> BenchArtifact:
    """Return kernels of every family by extent, in the type of a question, and messages by size among the devices here.

    That is what `calibrate` fits a device and its network to. Parameters and errors are those of `measure`.
    """
    devices = devices or find_here().num_devices
    device = question.cluster.device
    kernels = suite_kernels(device, question.workload.precision.compute)
    return _listed(question, kernels, suite_messages(device, devices) if devices > 1 else [], seconds, tell)


def measure_next(
    question: Question,
    *,
    devices: int | None = None,
    seconds: float = 60.0,
    tell: Callable[[Progress], None] = lambda _: None,
) -> BenchArtifact:
    """Return what `propose` names, timed. Parameters and errors are those of `measure`."""
    devices = devices or find_here().num_devices
    found = propose(question, devices=devices, seconds=seconds)
    return _listed(question, kernels_among(found), messages_among(found, devices), seconds, tell)


def _listed(
    question: Question,
    kernels: Sequence[Compute],
    messages: Sequence[Message],
    seconds: float,
    tell: Callable[[Progress], None],
) -> BenchArtifact:
    """Return kernels and messages timed on the question's device."""
    here = find_here()
    here.check(question)
    devices = max((ranks for *_, ranks in messages), default=1)
    if devices > here.num_devices:
        raise SpecError(f"{devices} devices were asked for; this machine has {here.num_devices}")
    before = state_of(here)
    part = SUITE_SHARE * seconds if devices > 1 else seconds

    def run(spool: str) -> None:
        launch(_time_kernels, 1, kernels, here.kind, part, spool, backend=_backend(1))
        exchange(messages, devices, here.kind, seconds - part, spool)

    rows, interrupted = _spooled(run, tell)
    conditions = _conditions(question, devices, here, before.clock_mhz)
    found = build_bench(rows, where="kernels and messages")
    return replace(found, conditions=replace(conditions, interrupted=interrupted))


def _spooled(
    run: Callable[[str], None], tell: Callable[[Progress], None]
) -> tuple[dict[str, list[Any]], bool]:
    """Return the rows that `run` wrote to the file it is given, and whether it was interrupted after the first."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "rows"
        spool.touch()
        interrupted = False
        with _telling(spool, tell):
            try:
                run(str(spool))
            except KeyboardInterrupt:
                interrupted = True
        rows = _rows(spool)
    if interrupted and not rows:
        raise KeyboardInterrupt
    return rows, interrupted


class Checked(Struct, frozen=True, kw_only=True):
    """A step that was projected, and what it really takes."""

    projected_s: float
    measured_s: float
    projected_bytes: float
    measured_bytes: float
    """Of the fullest rank, with all that its allocator holds and what lies outside."""
    projected_allocated_bytes: float
    measured_allocated_bytes: float
    """Of the same, what tensors take."""


def check_projection(question: Question, *, seconds: float = 30.0) -> Checked:
    """Run a whole layout on this machine and set what it takes beside its projection, which its costs price.

    Kernels are those of the classes that run.

    Raises
    ------
    SpecError
        If the question is about other devices, or its layout is not one that a bench runs uncut.
    RunError
        As `measure` does.
    """
    here = find_here()
    here.check(question)
    ranks, layout = question.layout.num_devices, question.layout
    if layout.pp > 1 or ranks > here.num_devices:
        raise SpecError(
            f"a check runs layouts without stages on at most {here.num_devices} devices here; this one has pp "
            f"{layout.pp} on {ranks}"
        )
    adapter_of(question).check(question)
    check_states(question)
    result = project(as_run(question))
    found = launch(_whole, ranks, question, here.kind, seconds, backend=_backend(ranks))
    return Checked(
        projected_s=result.step_time_s,
        measured_s=max(took for took, _ in found),
        projected_bytes=result.memory.peak_bytes,
        measured_bytes=max(peaks["device"] for _, peaks in found),
        projected_allocated_bytes=_allocated(result, question),
        measured_allocated_bytes=max(peaks["allocated"] for _, peaks in found),
    )


def _allocated(result: Projection, question: Question) -> float:
    """Return what tensors take of the fullest rank, with what a bench had of them beyond formulas."""
    anchor = question.costs.anchor
    beyond = 0.0 if anchor is None or anchor.residual is None else anchor.residual.live_tensor_excess_bytes
    return beyond + max(stage.allocated_bytes for stage in result.memory.stages)


def _whole(_rank: int, question: Question, kind: str, seconds: float) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step and the peaks of one rank."""
    device = _device(kind, question.layout.allocator)
    training, _, peaks = weighed(partial(Training, question, device, groups_of(question)), device)
    return _step(training, Watch(device), seconds)["seconds"], peaks


def _run(
    question: Question, cut: Reduced, copies: int, here: Here, devices: int, seconds: float, spool: str
) -> None:
    ranks = copies * cut.question.cluster.num_devices
    launch(_work, ranks, cut.question, question, here.kind, seconds, spool, backend=_backend(ranks))
    wanted = {*messages_of(question, devices), *messages_of(cut.question, devices)}
    exchange(sorted(wanted), devices, here.kind, SHARES["collectives"] * seconds, spool)


def exchange(wanted: Sequence[Message], devices: int, kind: str, seconds: float, spool: str) -> None:
    """Time messages among devices of one kind into the file `spool`."""
    if devices > 1 and wanted:
        launch(_exchange, devices, wanted, kind, seconds, spool, backend=_backend(devices))


def _backend(ranks: int) -> str:
    """Return what ranks send over; one alone sends nothing, and gives up no memory of its device for it."""
    return backend_for(ranks) if ranks > 1 else "gloo"


def _device(kind: str, allocator: Allocator = "segments") -> torch.device:
    """Return the device of this rank, with an allocator that takes memory as asked."""
    if kind == CPU:
        return torch.device(CPU)
    device = torch.device("cuda", dist.get_node_local_rank(dist.get_rank()))
    torch.cuda.set_device(device)
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{allocator == 'expandable_segments'}")  # noqa: SLF001
    return device


class Spool:
    """Rows that the first rank writes as it finds them."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.end, self.seconds = Path(path), time.monotonic() + seconds, seconds

    def put(self, key: str, rows: Sequence[Mapping[str, Any]], what: str) -> None:
        """Append rows of one section of the artifact."""
        if dist.get_rank():
            return
        line = {"key": key, "rows": list(rows), "what": what, "left": max(0.0, self.end - time.monotonic())}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _work(_rank: int, cut: Question, asked: Question, kind: str, seconds: float, path: str) -> None:
    """Measure everything but messages on one rank."""
    device, spool = _device(kind, cut.layout.allocator), Spool(path, seconds)
    groups, watch = groups_of(cut), Watch(device)
    training, phases, peaks = weighed(partial(Training, cut, device, groups), device)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (phases, peaks))
    own = found[: cut.cluster.num_devices]
    spool.put("ranks", [rank_row(rank, *each) for rank, each in enumerate(own)], "memory of a step")

    laps = repeated(partial(timed_step, training, watch), budget_s=SHARES["steps"] * seconds)
    training.check(training.step())
    spool.put("steps", [{"num_microbatches": training.num_microbatches, **laps.pop(STEP)}], "step")
    spool.put("blocks", _block_rows(laps), "blocks of a step")

    parts = list(parts_of(training))
    for part in parts:
        spool.put(
            "layers",
            [{"kind": part.kind, "activation_bytes": kept_bytes(part, training)}],
            f"{part.kind} kept",
        )
    if not multiplies_narrow(cut):  # torchao's layers leave no gradient of theirs for later
        apart = repeated(gradients_apart(training, parts, watch), budget_s=SHARES["apart"] * seconds)
        spool.put("blocks", _block_rows(apart), "gradients apart")
    del training, parts
    ops = kernels_of(cut)
    ops += [
        op for op in kernels_of(asked) if op not in ops
    ]  # one is divided by the other where a block is restored
    _kernels(ops, watch, spool, SHARES["kernels"] * seconds)


def _time_kernels(_rank: int, ops: Sequence[Compute], kind: str, seconds: float, path: str) -> None:
    _kernels(ops, Watch(_device(kind)), Spool(path, seconds), seconds)


def _step(training: Training, watch: Watch, budget_s: float) -> dict[str, Any]:
    return repeated(lambda: {"step": watch.seconds(training.step)}, budget_s=budget_s)["step"]


def rank_row(rank: int, phases: Mapping[str, float], peaks: Mapping[str, float]) -> dict[str, Any]:
    """Return the row of `ranks` for one rank's peaks, by phase and of the whole step."""
    return {
        "rank": rank,
        **{f"peak_{name}_bytes": value for name, value in peaks.items()},
        "phases": [{"phase": name, "peak_allocated_bytes": value} for name, value in phases.items()],
    }


def _block_rows(found: Mapping[Lap, Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages = ("reduce", "share")
    return [
        {"kind": kind, "part": part, **each} for (kind, part), each in found.items() if part not in messages
    ]


def _kernels(ops: Sequence[Compute], watch: Watch, spool: Spool, budget_s: float) -> None:
    """Time kernels, each with an equal share of what time is left."""
    end = time.monotonic() + budget_s
    for place, op in enumerate(ops):
        share = max(0.0, end - time.monotonic()) / (len(ops) - place)
        found = timed_kernel(op, watch, budget_s=share)
        if found is not None:
            row = kernel_row(op, found)
            spool.put("kernels", [row], f"{row['op']} {place + 1} of {len(ops)}")


def _exchange(_rank: int, wanted: Sequence[Message], kind: str, budget_s: float, path: str) -> None:
    """Time messages on one rank: as many groups of the ranks that a message takes as there is room for send at once."""
    warnings.simplefilter("ignore", FutureWarning)  # of names that torch before 2.13 has no others for
    watch, spool = Watch(_device(kind)), Spool(path, budget_s)
    groups = {ranks: neighbours(ranks) for ranks in sorted({ranks for *_, ranks in wanted})}
    for name, num_bytes, ranks in wanted:
        found = timed_message(name, num_bytes, groups[ranks], watch, budget_s=budget_s / len(wanted))
        row = {"kind": name, "num_bytes": num_bytes, "num_ranks": ranks, "ranks_per_node": ranks, **found}
        spool.put("collectives", [row], f"{name} of {num_bytes:,.0f} bytes among {ranks}")


@contextmanager
def _telling(spool: Path, tell: Callable[[Progress], None]) -> Iterator[None]:
    """Tell of every new line of the spool meanwhile."""
    over = threading.Event()

    def watch() -> None:
        told = 0
        while not over.wait(POLL_S):
            lines = spool.read_text(encoding="utf-8").splitlines()
            for line in lines[told:]:
                with suppress(json.JSONDecodeError):
                    found = json.loads(line)
                    tell(Progress(what=found["what"], left_s=found["left"]))
            told = len(lines)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _rows(spool: Path) -> dict[str, list[Any]]:
    """Return the rows of each section; a line that was cut off is left out."""
    found: dict[str, list[Any]] = {}
    for line in spool.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            entry = json.loads(line)
            found.setdefault(entry["key"], []).extend(entry["rows"])
    return found


def conditions_of(question: Question, ranks: int) -> Conditions:
    """Return when, with what and for which device something is found."""
    adapter = adapter_of(question)
    return Conditions(
        date=date.today().isoformat(),
        device=question.cluster.device.name,
        software=f"torch {torch.__version__}, {adapter.package} {adapter.release}",
        num_devices=ranks,
    )


def _conditions(question: Question, ranks: int, here: Here, clock_mhz: float | None) -> Conditions:
    after = state_of(here)
    clocks = tuple(clock for clock in (clock_mhz, after.clock_mhz) if clock is not None)
    return replace(
        conditions_of(question, ranks),
        backend=_backend(ranks),
        threads=1 if here.kind == CPU else None,
        clocks_mhz=clocks,
        power_cap_w=after.power_cap_w,
        throttled=(after.throttled,) if after.throttled else (),
    )


def artifact_of(
    question: Question, cut: Reduced, rows: Mapping[str, Any], conditions: Conditions
) -> BenchArtifact:
    """Return the rows as an artifact, checked as if they came from a file."""
    values = json.loads(json.dumps(question_values(cut.question)))
    found = build_bench({"config": values, **rows}, where="the bench")
    asked = json.loads(json.dumps(question_values(question))) if cut.question != question else None
    return replace(found, asked=asked, given_up=cut.given_up, conditions=conditions)
