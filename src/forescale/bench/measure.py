"""`measure`: a question scaled down to the available devices, run on local ranks, timed and weighed.

Ranks are processes of their own. The first writes each row to a file as soon as it has it, so that a bench that is
interrupted keeps what it has, and the caller sees how far it is.
"""

from __future__ import annotations

import json
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace

from forescale.bench.blocks import STEP, Lap, gradients_apart, kept_bytes, parts_of, timed_step
from forescale.bench.blocks import Part as BlockPart
from forescale.bench.groups import groups_of, neighbours
from forescale.bench.here import CPU, Here, find_here, state_of
from forescale.bench.kernels import (
    Watch,
    kernel_row,
    kernels_of,
    messages_of,
    timed_kernel,
    timed_message,
)
from forescale.bench.reduce import Reduced, reduce
from forescale.bench.repeat import MOST, Budget, agreed, repeated
from forescale.bench.suite import (
    Message,
    kernels_among,
    messages_among,
    propose,
    suite_kernels,
    suite_messages,
)
from forescale.bench.traced import check_code
from forescale.bench.training import Training, adapter_of, as_run, check_states
from forescale.bench.weighing import weighed
from forescale.errors import SpecError, not_enough_devices, unsupported_by
from forescale.graph.ops import Compute
from forescale.inputs import recorded_question
from forescale.io.bench import BenchArtifact, Conditions, build_bench, usable_rows
from forescale.io.question_values import question_values
from forescale.profiles import PROFILED_STEP, profile_rows, summarise
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.runtime import launch
from forescale.runtime.job import backend_for
from forescale.spec.layout import Allocator
from forescale.struct import Struct, attributes
from forescale.units import counted

SHARES = {"steps": 0.4, "profile": 0.05, "apart": 0.15, "kernels": 0.3, "collectives": 0.1}
"""Parts of the time that is to be spent."""
PROFILED = 8
"""Steps that are recorded: enough to tell a slower one from scatter (`diagnose.scatter`)."""
SUITE_SHARE = 0.7
"""Of a device's suite for kernels; the rest is for messages."""
POLL_S = 0.2


class Progress(Struct, frozen=True, kw_only=True):
    """How far a bench is."""

    what: str
    """What is being measured."""
    left_s: float
    """Of the time that is to be spent."""
    started: bool = True
    """Whether that time runs; before, ranks start, build the model and weigh it."""


def measure(
    question: Question,
    *,
    devices: int | None = None,
    busy: int | None = None,
    seconds: float = 60.0,
    repeats: int = MOST,
    code: str = "",
    tell: Callable[[Progress], None] = lambda _: None,
) -> BenchArtifact:
    """Return what was measured of a question on this machine.

    What fails after something was measured ends it: the artifact then has what was measured before, and says in its
    conditions what failed.

    Parameters
    ----------
    devices
        How many of the machine's devices; all of them by default.
    busy
        Devices at work meanwhile, with copies of what is measured: neighbours share memory and power. By default as
        many of `devices` as the question has.
    seconds
        To be spent on measuring; starting the ranks, building the model and weighing its memory come on top.
    repeats
        Samples at most of each thing that is timed.
    code
        The function that builds a traced model, `FILE.py:FUNCTION`.
    tell
        Called with each thing that is about to be measured.

    Raises
    ------
    SpecError
        If the question is about other devices, its cut does not fit, or nothing here can run it.
    RunError
        If a rank fails, ranks disagree or a loss is not a number before anything was measured.
    """
    here = find_here()
    here.check(question)
    devices = devices or here.num_devices
    busy = busy or min(devices, question.cluster.num_devices)
    if max(devices, busy) > here.num_devices:
        raise not_enough_devices("the benchmark", max(devices, busy), here.num_devices)
    check_code(question.model, code)
    if question.model.traces:
        question = recorded_question(question)
    cut = reduce(question, devices)
    cut = replace(cut, question=as_run(cut.question))
    copies = max(1, busy // cut.question.cluster.num_devices)
    adapter_of(cut.question).check(cut.question)
    check_states(cut.question)
    layout = cut.question.layout
    if layout.zero >= 2 and layout.dp * layout.cp > 1:
        fix = "ask with --zero 1, or run the layout whole with --check"
        key = "timing of a block by itself"
        raise unsupported_by(key, f"zero {layout.zero} over {layout.dp * layout.cp} ranks", fix)
    before = state_of(here)
    effort = Effort(seconds=seconds, repeats=repeats, code=code)
    rows, ended = _spooled(partial(_run, question, cut, copies, here, devices, effort), effort, tell)
    conditions = _conditions(question, cut.question.cluster.num_devices, here, before.clock_mhz)
    return artifact_of(question, cut, rows, replace(conditions, num_copies=copies, **ended))


class Effort(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    seconds: float
    repeats: int = MOST
    """Samples at most of each thing that is timed."""
    code: str = ""
    """Function that builds a traced model."""

    def budget(self, share: float = 1.0) -> Budget:
        """Return a share of the time, from now on."""
        return Budget(share * self.seconds, repeats=self.repeats)


def measure_suite(
    question: Question,
    *,
    devices: int | None = None,
    seconds: float = 60.0,
    repeats: int = MOST,
    tell: Callable[[Progress], None] = lambda _: None,
) -> BenchArtifact:
    """Return kernels of every family by extent, in the type of a question, and messages by size among the devices here.

    That is what `calibrate` fits a device and its network to. Parameters and errors are those of `measure`.
    """
    devices = devices or find_here().num_devices
    device = question.cluster.device
    kernels = suite_kernels(device, question.workload.precision.compute)
    return _listed(
        question,
        kernels,
        suite_messages(device, devices) if devices > 1 else [],
        Effort(seconds=seconds, repeats=repeats),
        tell,
    )


def measure_next(
    question: Question,
    *,
    devices: int | None = None,
    seconds: float = 60.0,
    repeats: int = MOST,
    tell: Callable[[Progress], None] = lambda _: None,
) -> BenchArtifact:
    """Return what `propose` names, timed. Parameters and errors are those of `measure`."""
    devices = devices or find_here().num_devices
    result = propose(question, devices=devices, seconds=seconds)
    return _listed(
        question,
        kernels_among(result),
        messages_among(result, devices),
        Effort(seconds=seconds, repeats=repeats),
        tell,
    )


def _listed(
    question: Question,
    kernels: Sequence[Compute],
    messages: Sequence[Message],
    effort: Effort,
    tell: Callable[[Progress], None],
) -> BenchArtifact:
    """Return kernels and messages timed on the question's device."""
    here = find_here()
    here.check(question)
    devices = max((ranks for *_, ranks in messages), default=1)
    if devices > here.num_devices:
        raise not_enough_devices("the benchmark", devices, here.num_devices)
    before = state_of(here)
    part = SUITE_SHARE if devices > 1 else 1.0

    def run(spool: str) -> None:
        launch(_time_kernels, 1, kernels, here.kind, effort, part, spool, backend=_backend(1))
        exchange(messages, devices, here.kind, effort, 1.0 - part, spool)

    rows, ended = _spooled(run, effort, tell)
    conditions = _conditions(question, devices, here, before.clock_mhz)
    bench = build_bench(rows, where="kernels and messages")
    return replace(bench, conditions=replace(conditions, **ended))


def _spooled(
    run: Callable[[str], None], effort: Effort, tell: Callable[[Progress], None]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the rows that `run` wrote to the file it is given, and as conditions how it ended.

    What fails before the first row is raised.
    """
    tell(Progress(what="start-up", left_s=effort.seconds, started=False))
    ended: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "rows"
        spool.touch()
        fault: BaseException | None = None
        with _telling(spool, tell):
            try:
                run(str(spool))
            except KeyboardInterrupt as error:
                fault, ended["interrupted"] = error, True
            except Exception as error:
                fault = error
        entries = list(_entries(spool))
    rows, unusable = usable_rows(_rows(entries))
    if fault is not None and not rows:
        raise fault
    begun = next((entry["begin"] for entry in reversed(entries) if "begin" in entry), "start-up")
    if fault is not None and "interrupted" not in ended:
        ended["failed"] = f"{begun}: {fault}"
    skipped = [entry["skipped"] for entry in entries if "skipped" in entry]
    return rows, {**ended, "left_out": (*skipped, *unusable)}


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


def check_projection(question: Question, *, seconds: float = 30.0, code: str = "") -> Checked:
    """Run a whole layout on this machine and set what it takes beside its projection, which its costs price.

    Kernels are those of the classes that run; `code` is the function that builds a traced model.

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
    check_code(question.model, code)
    adapter_of(question).check(question)
    check_states(question)
    result = project(as_run(question))
    measured = launch(_whole, ranks, question, here.kind, seconds, code, backend=_backend(ranks))
    return Checked(
        projected_s=result.step_time_s,
        measured_s=max(took for took, _ in measured),
        projected_bytes=result.memory.peak_bytes,
        measured_bytes=max(peaks["device"] for _, peaks in measured),
        projected_allocated_bytes=_allocated(result, question),
        measured_allocated_bytes=max(peaks["allocated"] for _, peaks in measured),
    )


def _allocated(result: Projection, question: Question) -> float:
    """Return what tensors take of the fullest rank, with what a bench had of them beyond formulas."""
    anchor = question.costs.anchor
    beyond = 0.0 if anchor is None or anchor.residual is None else anchor.residual.live_tensor_excess_bytes
    return beyond + max(stage.allocated_bytes for stage in result.memory.stages)


def _whole(
    _rank: int, question: Question, kind: str, seconds: float, code: str
) -> tuple[float, dict[str, float]]:
    """Return the seconds of a step and the peaks of one rank."""
    device = _device(kind, question.layout.allocator)
    training, _, peaks = weighed(partial(Training, question, device, groups_of(question), code), device)
    watch = Watch(device)
    steps = repeated(lambda: {STEP: watch.seconds(training.step)}, Budget(seconds), warmed=True)
    return steps[STEP]["seconds"], peaks


def _run(
    question: Question, cut: Reduced, copies: int, here: Here, devices: int, effort: Effort, spool: str
) -> None:
    ranks = copies * cut.question.cluster.num_devices
    messages = {*messages_of(question, devices), *messages_of(cut.question, devices)}
    kernels = 1.0 - (SHARES["collectives"] if devices > 1 and messages else 0.0)
    launch(_work, ranks, cut.question, question, here.kind, effort, kernels, spool, backend=_backend(ranks))
    exchange(sorted(messages), devices, here.kind, effort, SHARES["collectives"], spool)


def exchange(
    messages: Sequence[Message], devices: int, kind: str, effort: Effort, share: float, spool: str
) -> None:
    """Time messages among devices of one kind into the file `spool`."""
    if devices > 1 and messages:
        launch(_exchange, devices, messages, kind, effort, share, spool, backend=_backend(devices))


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
    """What the first rank finds, in a file that outlives it: rows, what is under way, and what was left out."""

    def __init__(self, path: str, budget: Budget | None = None) -> None:
        self.path, self.budget = Path(path), budget

    def start(self, budget: Budget) -> None:
        """Count what is left from now on."""
        self.budget = budget

    def begin(self, what: str) -> None:
        """Note what is measured next."""
        left = None if self.budget is None else max(0.0, self.budget.left)
        self._note({"begin": what, "left": left})

    def put(self, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows of one section of the artifact."""
        self._note({"key": key, "rows": list(rows)})

    def skip(self, what: str) -> None:
        """Note what there was no time for."""
        self._note({"skipped": what})

    def _note(self, entry: Mapping[str, Any]) -> None:
        if dist.get_rank():
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _work(
    _rank: int, cut: Question, question: Question, kind: str, effort: Effort, end: float, path: str
) -> None:
    """Measure a cut question on one rank: memory, then steps, blocks and kernels until a share of the time is over."""
    warnings.simplefilter("ignore", FutureWarning)  # of names that torch before 2.13 has no others for
    device, spool = _device(kind, cut.layout.allocator), Spool(path)
    groups, watch = groups_of(cut), Watch(device)
    spool.begin("the first steps of the model")
    training, phases, peaks = weighed(partial(Training, cut, device, groups, effort.code), device)
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, (phases, peaks))
    local = values[: cut.cluster.num_devices]
    spool.put("ranks", [rank_row(rank, *item) for rank, item in enumerate(local)])
    parts = list(parts_of(training))
    for part in parts:
        spool.begin(f"what {part.kind} keeps")
        spool.put("layers", [{"kind": part.kind, "activation_bytes": kept_bytes(part, training)}])
    budget = effort.budget()
    spool.start(budget)
    _time_blocks(training, parts, watch, spool, budget)
    del training, parts
    ops = kernels_of(cut)
    ops += [
        op for op in kernels_of(question) if op not in ops
    ]  # one is divided by the other where a block is restored
    _kernels(ops, watch, spool, budget.until(end))


def _time_blocks(
    training: Training, parts: list[BlockPart], watch: Watch, spool: Spool, budget: Budget
) -> None:
    """Time steps, what blocks take inside them, and gradients apart."""
    spool.begin("step")
    laps = repeated(partial(timed_step, training, watch), budget.until(SHARES["steps"]), warmed=True)
    training.check(training.step())
    step = laps.pop(STEP)
    spool.put("steps", [{"num_microbatches": training.num_microbatches, **step}])
    spool.put("blocks", _block_rows(laps))
    until = SHARES["steps"] + SHARES["profile"]
    spool.put("profile", _profile(training, watch, budget.until(until).left / step["seconds"]))
    if not training.splits_gradients:
        return
    if budget.is_spent():
        spool.skip("gradients apart")
        return
    sample = gradients_apart(
        training, parts, watch, tell=lambda kind: spool.begin(f"gradients apart of {kind}")
    )
    spool.put("blocks", _block_rows(repeated(sample, budget.until(until + SHARES["apart"]))))


def _profile(training: Training, watch: Watch, most: float) -> list[dict[str, Any]]:
    """Return the operators of a step, as torch.profiler records them, and how much steps and ranks scatter."""
    steps = agreed(max(1, min(PROFILED, int(most))))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with torch.profiler.profile(record_shapes=True) as profiler:
            for number in range(steps):
                with torch.profiler.record_function(f"{PROFILED_STEP}{number}"):
                    training.step()
                    watch.wait()
        profiler.export_chrome_trace(str(file))
        summary = summarise(file)
    samples: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(samples, summary.samples)
    return [attributes(row, *row.__struct_fields__) for row in profile_rows(summary, samples)]


def _time_kernels(
    _rank: int, ops: Sequence[Compute], kind: str, effort: Effort, share: float, path: str
) -> None:
    budget = effort.budget(share)
    _kernels(ops, Watch(_device(kind)), Spool(path, budget), budget)


def rank_row(rank: int, phases: Mapping[str, float], peaks: Mapping[str, float]) -> dict[str, Any]:
    """Return the row of `ranks` for one rank's peaks, by phase and of the whole step."""
    return {
        "rank": rank,
        **{f"peak_{name}_bytes": value for name, value in peaks.items()},
        "phases": [{"phase": name, "peak_allocated_bytes": value} for name, value in phases.items()],
    }


def _block_rows(values: Mapping[Lap, Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages = ("reduce", "share")
    return [
        {"kind": kind, "part": part, **item} for (kind, part), item in values.items() if part not in messages
    ]


def _kernels(ops: Sequence[Compute], watch: Watch, spool: Spool, budget: Budget) -> None:
    """Time kernels, each with an equal share of what time is left, until none is."""
    for place, op in enumerate(ops):
        if budget.is_spent():
            spool.skip(f"{len(ops) - place} of {counted(len(ops), 'kernel')}")
            return
        spool.begin(f"{kernel_row(op, {})['op']} {place + 1} of {len(ops)}")
        result = timed_kernel(op, watch, budget.shared(len(ops) - place))
        if result is not None:
            spool.put("kernels", [kernel_row(op, result)])


def _exchange(
    _rank: int, messages: Sequence[Message], kind: str, effort: Effort, share: float, path: str
) -> None:
    """Time messages on one rank: as many groups of the ranks that a message takes as there is room for send at once."""
    warnings.simplefilter("ignore", FutureWarning)  # of names that torch before 2.13 has no others for
    watch = Watch(_device(kind))
    groups = {ranks: neighbours(ranks) for ranks in sorted({ranks for *_, ranks in messages})}
    budget = effort.budget(share)
    spool = Spool(path, budget)
    for place, (name, num_bytes, ranks) in enumerate(messages):
        if budget.is_spent():
            spool.skip(f"{len(messages) - place} of {counted(len(messages), 'message')}")
            return
        spool.begin(f"{name} of {num_bytes:,.0f} bytes among {ranks}")
        result = timed_message(name, num_bytes, groups[ranks], watch, budget.shared(len(messages) - place))
        row = {"kind": name, "num_bytes": num_bytes, "num_ranks": ranks, "ranks_per_node": ranks, **result}
        spool.put("collectives", [row])


@contextmanager
def _telling(spool: Path, tell: Callable[[Progress], None]) -> Iterator[None]:
    """Tell meanwhile of everything that begins, by the spool."""
    over = threading.Event()

    def watch() -> None:
        explicit = 0
        while not over.wait(POLL_S):
            begun = [entry for entry in _entries(spool) if "begin" in entry]
            for entry in begun[explicit:]:
                left = entry["left"]
                tell(Progress(what=entry["begin"], left_s=left or 0.0, started=left is not None))
            explicit = len(begun)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _entries(spool: Path) -> Iterator[dict[str, Any]]:
    """Yield what a spool has; a line that was cut off is left out."""
    for line in spool.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def _rows(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the rows of each section."""
    values: dict[str, list[Any]] = {}
    for entry in entries:
        if "key" in entry:
            values.setdefault(entry["key"], []).extend(entry["rows"])
    return values


def conditions_of(question: Question, ranks: int) -> Conditions:
    """Return when, with what and for which device something is found."""
    adapter = adapter_of(question)
    return Conditions(
        date=date.today().isoformat(),
        device=question.cluster.device.name,
        software=", ".join(
            dict.fromkeys((f"torch {torch.__version__}", f"{adapter.package} {adapter.release}"))
        ),
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
    bench = build_bench({"config": values, **rows}, where="the bench")
    request = json.loads(json.dumps(question_values(question))) if cut.question != question else None
    return replace(bench, asked=request, given_up=cut.given_up, conditions=conditions)
