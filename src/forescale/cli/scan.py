"""Questions of `forescale search` beyond one ranking: the Pareto front, numbers of devices, global batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, log2
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forescale import wording
from forescale.cli.declare import Bounded, Group, Rare, option
from forescale.cli.options import Asked, memory_limit, positive, price_of
from forescale.cli.output import command_line
from forescale.cli.reproduce import TYPED
from forescale.errors import MissingError, SpecError
from forescale.limits import COUNT, DEVICES, JOBS, PRICE, TIME, whole_of, within

if TYPE_CHECKING:
    from forescale.question import Question
    from forescale.search import ParetoResult, ScanResult, Target
    from forescale.whole_run.plans import Plans

RANGE = re.compile(r"(\d{1,9})-(\d{1,9}):(\d{1,9})")
SCANNED = 1_000
"""Numbers of devices or batches that one command goes through."""
_scan = partial(option, panel="Fronts, targets and batches")
_planned, _limited = (partial(option, panel=Rare(name)) for name in ("Whole run", "This machine"))


class ScanOptions(Group, frozen=True, kw_only=True):
    """What is asked instead of one ranking."""

    pareto: bool = _scan("Pareto front of step time and peak memory.", default=False)
    device_counts: str | None = _scan("The best layout on each number of devices.", "N,N|A-B:STEP")
    target_days: float | None = _scan(
        "Fewest of --devices for --tokens in DAYS.",
        "DAYS",
        check=Bounded(TIME, whole=False),
    )
    target_step_time: str | None = _scan("Fewest of --devices with a step this short.", "TIME")
    batches: str | None = _scan("The best layout at each global batch size.", "N,N")
    price_per_device_hour: float | None = _planned(
        "Price for cost, in any currency.",
        "PRICE",
        flag="--price-per-device-hour --price",
        check=Bounded(PRICE, whole=False),
        parse=partial(price_of, flag="--price-per-device-hour", unit="h"),
    )

    jobs: int | None = _limited("Processes, else one per core.", check=Bounded(JOBS))
    max_host_memory: str | None = _limited("Memory to search in, such as 4GiB.", "SIZE")
    deadline: str | None = _planned(
        "The cheapest run on up to --devices that ends within this, such as 90d.", "TIME"
    )
    budget: str | None = _planned(
        "The soonest run that costs at most this, such as 10M; device-hours without a price.", "AMOUNT"
    )

    @property
    def host_limit(self) -> float | None:
        """Memory of this machine that searches may take [byte]."""
        return memory_limit(self.max_host_memory, "--max-host-memory")

    @property
    def of_run(self) -> bool:
        """Whether a whole run is planned."""
        return self.deadline is not None or self.budget is not None

    @property
    def wanted(self) -> bool:
        """Whether anything but a ranking is asked."""
        return self.pareto or self.has_target or self.of_run or bool(self.device_counts or self.batches)

    @property
    def has_target(self) -> bool:
        """Whether a target is given."""
        return self.target_days is not None or self.target_step_time is not None


def complete_question(scan: ScanOptions, question: Asked) -> Asked:
    """Return the options with the devices and the batch that lists of them stand for, refusing contradictions."""
    _refuse_combinations(scan)
    cluster, run = question.cluster, question.run
    if scan.device_counts is not None:
        if cluster.devices is not None or cluster.nodes is not None:
            raise wording.no_effect(["--devices", "--nodes"], "--device-counts gives the numbers of devices")
        cluster = replace(cluster, devices=max(_counts("--device-counts", scan.device_counts)))
    if scan.batches is not None:
        if run.global_batch_size is not None:
            raise wording.conflicts(["--batches", "--global-batch-size"])
        run = replace(run, global_batch_size=max(_counts("--batches", scan.batches)))
    return replace(question, cluster=cluster, run=run)


CAPPED = ("target_days", "target_step_time", "deadline", "budget")
"""Options that choose a number of devices up to a largest one."""


ROOM = 8
"""How many times the devices that the peak rate requires are tried at most, where no number is given."""


def largest_for(scan: ScanOptions, error: MissingError, read: Callable[[int], Question]) -> Question:
    """Return the question on the most devices that are worth trying for a target; `read` reads it on some nodes.

    Raises
    ------
    SpecError
        If more than the number of devices is missing, or no target says how many they may be.
    """
    from forescale.question import Note
    from forescale.search.scan import least_step

    target = _target(scan) or _deadline(scan)
    if target is None or not all(item.startswith("--devices") for item in error.missing):
        raise needing_most(error, scan) from error
    one = read(1)
    fewest = least_step(one) * one.cluster.num_devices / target.limit(one.workload)
    nodes = 1 << max(0, ceil(log2(ROOM * fewest / one.cluster.devices_per_node)))
    question = read(min(nodes, int(DEVICES.le or nodes) // one.cluster.devices_per_node))
    text = (
        f"up to {question.cluster.num_devices:,} devices are tried, at least {ROOM} times what the peak rate "
        f"requires; --devices changes it"
    )
    others = (note for note in question.notes if note.topic != "devices")
    return replace(question, notes=(Note(topic="devices", text=text), *others))


def needing_most(error: MissingError, scan: ScanOptions) -> SpecError:
    """Return the error where the largest number of devices is missing, with what it is for; else as it is."""
    named = [f"--{name.replace('_', '-')}" for name in CAPPED if getattr(scan, name) is not None]
    if not named or not any(item.startswith("--devices") for item in error.missing):
        return error
    others = [item for item in error.missing if not item.startswith("--devices")]
    also = f"; {', '.join(others)} are required too" if others else ""
    words = TYPED.get()
    example = "" if others or not words else f". For example: {command_line((*words, '--devices', '1024'))}"
    return MissingError(
        error.missing,
        f"{named[0]} requires the largest number of devices to try: give --devices N or --nodes N, or the numbers "
        f"themselves with --device-counts N,N{also}{example}",
    )


def _refuse_combinations(scan: ScanOptions) -> None:
    if scan.max_host_memory is not None and (scan.pareto or scan.of_run):
        reason = "it applies to rankings, targets, --device-counts and --batches"
        raise wording.no_effect(["--max-host-memory"], reason)
    if scan.of_run and (scan.pareto or scan.has_target or scan.batches is not None):
        key = ["--deadline", "--budget", "--pareto", "--batches"]
        raise wording.conflicts(key, reason="targets of ideal time as well", fix="ask one at a time")
    if scan.pareto and scan.has_target:
        raise wording.conflicts(["--pareto", "a target"], fix="ask one at a time")
    if scan.batches is not None and (scan.pareto or scan.has_target or scan.device_counts is not None):
        key = ["--batches", "--pareto", "--device-counts"]
        raise wording.conflicts(key, reason="targets as well", fix="ask one at a time")
    if scan.price_per_device_hour is not None and scan.pareto:
        other = "--price-per-device-hour"
        raise wording.required_with("a ranking, a target, --device-counts or --batches", other)


def front(question: Question, scan: ScanOptions) -> ParetoResult:
    """Return the Pareto front, over devices too where several numbers of them are given."""
    from forescale.search import pareto_search

    counts = scan.device_counts
    return pareto_search(
        question, device_counts=None if counts is None else _counts("--device-counts", counts)
    )


def scanned(question: Question, scan: ScanOptions) -> ScanResult:
    """Return the best layout of each number of devices or batch."""
    from forescale.search import Terms, fewest_devices, scan_batches, scan_devices

    target = _target(scan)
    terms = Terms(
        target=target,
        price_per_device_hour=scan.price_per_device_hour,
        jobs=scan.jobs,
        max_host_memory=scan.host_limit,
    )
    if target is not None:
        target.limit(question.workload)
    if scan.batches is not None:
        return scan_batches(question, _counts("--batches", scan.batches), terms=terms)
    if scan.device_counts is not None:
        return scan_devices(question, _counts("--device-counts", scan.device_counts), terms=terms)
    assert target is not None
    return fewest_devices(question, target, terms=terms)


def planned(question: Question, scan: ScanOptions) -> Plans:
    """Return the plan of a run within a deadline or a budget."""
    from forescale.search.scan import usual_counts
    from forescale.whole_run.plans import Limits, hourly_price, plan_run

    named, price = scan.device_counts, hourly_price(question.cluster, scan.price_per_device_hour)
    counts = usual_counts(question.cluster)[1] if named is None else _counts("--device-counts", named)
    limits = Limits(
        deadline=positive("--deadline", scan.deadline, span_of),
        budget=amount("--budget", scan.budget),
    )
    return plan_run(question, counts, limits, price=price)


def span_of(text: str) -> float:
    """Return a time in days; its unit is asked for, as seconds are hardly meant."""
    from forescale.units import in_days

    if whole_of(text) is not None:
        raise wording.not_a_quantity("time", text, f"write {text}d, or h or min")
    return in_days(text)


def amount(name: str, text: str | None) -> float | None:
    """Return an amount of money such as 10M, which must be greater than 0."""
    from forescale.units import parse

    return positive(name, text, lambda text: parse(text, "money"))


def _deadline(scan: ScanOptions) -> Target | None:
    """Return the deadline of a run as a target: failures only take further time."""
    from forescale.search.scan import Target

    days = positive("--deadline", scan.deadline, span_of)
    return None if days is None else Target(days=days)


def _target(scan: ScanOptions) -> Target | None:
    """Return the target given, in SI units."""
    from forescale.search import Target
    from forescale.units import parse

    if not scan.has_target:
        return None
    step = positive("--target-step-time", scan.target_step_time, lambda text: parse(text, "second"))
    return Target(step_time_s=step, days=scan.target_days)


def _counts(option: str, text: str) -> list[int]:
    """Return a list of whole numbers, ascending and each once; 256-8192:8 is a range by eights."""
    spread = RANGE.fullmatch(text.replace(" ", ""))
    parts: Sequence[int | None] = [whole_of(part) for part in text.split(",")]
    if spread is not None:
        first, last, step = (int(part) for part in spread.groups())
        parts = range(first, last + 1, max(step, 1))[: SCANNED + 1]
    counts = sorted({part for part in parts if part})
    if None in parts or 0 in parts or not 0 < len(counts) <= SCANNED:
        allowed = f"at most {SCANNED} whole numbers of 1 or more, such as 64,128,256 or 256-8192:8"
        raise wording.out_of_range(option, text, allowed)
    return [
        within(count, COUNT if option == "--batches" else DEVICES, option, whole=True) for count in counts
    ]
