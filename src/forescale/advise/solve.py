"""The largest value of a quantity, or the fewest devices, that passes a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, lcm, log2
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from forescale.advise.check import MOST_DEVICES, SCHEMA, Check, Finding
from forescale.errors import InfeasibleError, SpecError, missing, no_value_passes, required_with
from forescale.limits import EXTENT
from forescale.question import Question
from forescale.results import Result
from forescale.struct import Struct, attributes

Quantity: TypeAlias = Literal["micro_batch_size", "devices", "seq_len", "tokens"]
GRANULE = 128
"""Tokens that a solved sequence length is a multiple of, besides what tensor and context parallelism divide."""
MOST_TIMES = 16
"""Multiples of the devices that the peak rate requires up to which devices are tried."""
RANKS = 64
"""Ranks that share a sequence at most where numbers of devices are chosen by the batch."""
MORE_LAYOUTS = "another layout may pass: forescale search --device-counts 64,128,256 finds the best of each"
"""What to ask where no number of devices passes."""
MOST_TOKENS, THREE_DIGITS = 10**18, 1000
"""Tokens that no run has, and how many times smaller the next number of tokens is."""


class Solved(Result, Struct, frozen=True, kw_only=True):
    """The largest value of a quantity that passes; of devices the smallest."""

    quantity: Quantity
    value: int
    check: Check
    """Of that value."""
    next_value: int | None = None
    """The next value that was tried."""
    next_check: Check | None = None
    replayed: Solved | None = None
    """The same under full recompute; None where recompute is given, or nothing passes with it."""
    with_margin: Solved | None = None
    """The same where it has to fit at the upper end of its memory range; None where this one does, or nobody asked."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the value, and its figures."""
        return [{self.quantity: self.value, **self.check.rows()[0]}]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.check/1` document of the value that passes."""
        beyond = None if self.next_check is None else {"value": self.next_value, **self.next_check.to_json()}
        names = attributes(self, "quantity", "value")
        return {
            "schema": SCHEMA,
            "status": "passes",
            **names,
            "checks": [self.check.to_json()],
            "next": beyond,
            "with_full_recompute": None if self.replayed is None else self.replayed.to_json(),
            "with_margin": None if self.with_margin is None else self.with_margin.to_json(),
        }


def solve(
    question: Question,
    quantity: Quantity,
    checked: Callable[[Question], Check],
    *,
    batch_is_open: bool = False,
) -> Solved:
    """Return the largest micro-batch size, sequence length or number of tokens, or the fewest devices, that pass.

    The other degrees of the layout stay; data parallelism follows from the devices. The global batch stays too, unless
    it is open: then it follows from the micro-batch, without accumulation.

    Raises
    ------
    SpecError
        If no value passes.
    """
    if quantity == "seq_len":
        return _longest(question, checked)
    if quantity == "tokens":
        return _most_tokens(question, checked)
    if quantity == "micro_batch_size" and batch_is_open:
        return _largest_batch(question, checked)
    variants = _micro_batches(question) if quantity == "micro_batch_size" else _sizes(question)
    previous: tuple[int, Check] | None = None
    for value, variant in variants:
        tried = checked(variant)
        if tried.status == "passes" and not _is_over(question, tried):
            next_value, next_check = previous or (None, None)
            return Solved(
                quantity=quantity, value=value, check=tried, next_value=next_value, next_check=next_check
            )
        if tried.status in ("fails", "passes"):
            previous = value, tried
    raise _none(quantity, previous)


def solve_replayed(
    question: Question,
    quantity: Quantity,
    checked: Callable[[Question], Check],
    *,
    batch_is_open: bool = False,
) -> Solved:
    """Return what `solve` does and, where a question leaves recompute open and has none, the same under full recompute.

    Of a number of tokens only the first; where nothing passes without recompute, the second alone.

    Raises
    ------
    SpecError
        If no value passes.
    """
    layout = _layout(question)
    if quantity == "tokens" or layout.recompute.granularity != "none" or "recompute" not in question.assumed:
        return solve(question, quantity, checked, batch_is_open=batch_is_open)
    full = question.with_layout(replace(layout, recompute=replace(layout.recompute, granularity="full")))
    try:
        result = solve(question, quantity, checked, batch_is_open=batch_is_open)
    except SpecError:
        return solve(full, quantity, checked, batch_is_open=batch_is_open)
    try:
        replayed = solve(full, quantity, checked, batch_is_open=batch_is_open)
        return replace(result, replayed=replayed)
    except SpecError:
        return result


def longest(
    question: Question, least: Callable[[Question], Question], checked: Callable[[Question], Check]
) -> Solved:
    """Return the longest sequence that passes with the layout of least memory, for a question without a layout.

    The layout of least memory is that of twice the length that the first one reaches, if there is one; the first one
    is that of the length asked for, which need not fit.

    Parameters
    ----------
    least
        Returns a question with the layout of least memory; raises InfeasibleError where none fits.
    checked
        Returns the check of a question.
    """
    try:
        start = least(question)
    except InfeasibleError as error:
        if not isinstance(error.smallest, Question):
            raise
        start = error.smallest
    result = _longest(start, checked)
    work = replace(question.workload, seq_len=2 * result.value)
    try:
        other = _longest(least(replace(question, workload=work)), checked)
    except (SpecError, InfeasibleError):
        return result
    return max(result, other, key=lambda solved: solved.value)


def fewest(
    question: Question,
    best: Callable[[Question], Question],
    checked: Callable[[Question], Check],
    *,
    least: float = 1.0,
) -> Solved:
    """Return the fewest devices on which the best layout passes, for a question without a layout.

    Tried are 1, 2, 4, … devices, then whole nodes between the last two, as for a target of `search`.

    Parameters
    ----------
    best
        Returns a question with its best layout; raises InfeasibleError where none fits.
    checked
        Returns the check of a question.
    least
        Devices that the peak rate requires for the limits of time; fewer are not tried.

    Raises
    ------
    SpecError
        If none of these numbers passes.
    """
    previous: tuple[int, Check] | None = None
    devices = 1 << max(0, ceil(log2(least)))
    most = max(MOST_DEVICES, MOST_TIMES * devices)
    while devices <= most:
        try:
            tried = checked(best(replace(question, cluster=question.cluster.sized(devices))))
        except InfeasibleError as error:
            previous, devices = _too_few(question, devices, error, checked)
            continue
        except SpecError:  # a number of devices that the cluster or the batch does not suit
            devices *= 2
            continue
        if tried.status == "passes" and not _is_over(question, tried):
            return _fewer(question, previous, (devices, tried), lambda asked: checked(best(asked)))
        previous, devices = (devices, tried), 2 * devices
    raise _none("devices", previous)


def _fewer(
    question: Question,
    failed: tuple[int, Check] | None,
    passed: tuple[int, Check],
    answer: Callable[[Question], Check],
) -> Solved:
    """Return the fewest devices that pass, of whole nodes between a number that fails and one that passes."""
    from forescale.search.scan import with_between

    ends, node = () if failed is None else (failed[0], passed[0]), question.cluster.devices_per_node
    among = with_between(ends, node=node)[1:-1]
    for count in sorted(
        {*among, *_dividing(question.workload.global_batch_size, *ends, node=node)} if ends else among
    ):
        try:
            tried = answer(replace(question, cluster=question.cluster.sized(count)))
        except (
            SpecError,
            InfeasibleError,
        ):  # a number that the cluster, the batch or the memory does not suit
            continue
        if tried.status == "passes" and not _is_over(question, tried):
            passed = count, tried
            break
        failed = count, tried
    value, beyond = failed or (None, None)
    return Solved(quantity="devices", value=passed[0], check=passed[1], next_value=value, next_check=beyond)


def _dividing(batch: int, low: int, high: int, *, node: int) -> list[int]:
    """Return numbers of whole nodes between two that a batch divides into equal parts, with some ranks for each."""
    return [count for count in range((low // node + 1) * node, high, node) if (batch * RANKS) % count == 0]


def _too_few(
    question: Question, devices: int, error: InfeasibleError, checked: Callable[[Question], Check]
) -> tuple[tuple[int, Check], int]:
    """Return the largest number of devices that is too small, the check of the layout of least memory, and the next.

    Twice the devices need half the memory of each at best.
    """
    if not isinstance(error.smallest, Question):
        finding = Finding(code="memory", level="error", text=str(error))
        return (devices, Check(subject=question.model.name, status="fails", findings=(finding,))), 2 * devices
    least = checked(error.smallest)
    peak = 0.0 if least.projection is None else least.projection.memory.peak_bytes
    next_count = devices << max(1, int(log2(max(1.0, peak / question.memory_limit))))
    return (devices, least), next_count


def _is_over(question: Question, tried: Check) -> bool:
    """Return whether a layout fits only once the allocator has emptied its cache, which no search counts on."""
    return tried.projection is not None and tried.projection.memory.peak_bytes > question.memory_limit


def _none(quantity: str, tried: tuple[int, Check] | None) -> SpecError:
    reasons = "no value is legal" if tried is None else "; ".join(item.text for item in tried[1].findings)
    fixes = () if tried is None else (item.fix for item in tried[1].findings if item.fix)
    fix = MORE_LAYOUTS if quantity == "devices" else next(iter(fixes), "")
    return no_value_passes(quantity, None if tried is None else tried[0], reasons, fix)


def _layout(question: Question) -> Any:  # noqa: ANN401  (a layout: `check` is of one)
    if question.strategy is None:
        raise missing("a layout", "give its degrees, such as --tp 8 --pp 4")
    return question.strategy


def _micro_batches(question: Question) -> Iterator[tuple[int, Question]]:
    layout = _layout(question)
    batch = question.workload.global_batch_size // (layout.dp_replicate * layout.dp_shard)
    for size in range(batch, 0, -1):
        if batch % size == 0:
            yield size, question.with_layout(replace(layout, micro_batch_size=size))


def _sizes(question: Question) -> Iterator[tuple[int, Question]]:
    """Yield the question on more and more devices; whichever kind of data parallelism there is takes them."""
    layout = _layout(question)
    now = layout.dp_replicate * layout.dp_shard
    apart = question.cluster.num_devices // now
    name = "dp_shard" if layout.dp_shard > 1 or layout.dp_replicate == 1 else "dp_replicate"
    other = now // getattr(layout, name)
    rounds = question.workload.global_batch_size // layout.micro_batch_size
    for dp in range(1, min(MOST_DEVICES * now, rounds) + 1):
        if rounds % dp or dp % other:
            continue
        try:
            cluster = question.cluster.sized(dp * apart)
        except SpecError:
            continue
        resized = replace(layout, **{name: dp // other})
        yield dp * apart, replace(question.with_layout(resized), cluster=cluster)


def _longest(question: Question, checked: Callable[[Question], Check]) -> Solved:
    """Return the longest sequence that passes, a multiple of 128 tokens: memory and time grow with it."""
    tried: dict[int, Check] = {}
    layout = _layout(question)
    granule = lcm(GRANULE, 2 * layout.cp * layout.tp)

    def passes(blocks: int) -> bool:
        length = blocks * granule
        tried[length] = checked(replace(question, workload=replace(question.workload, seq_len=length)))
        return tried[length].status == "passes" and not _is_over(question, tried[length])

    first = max(1, question.workload.seq_len // granule)
    low, high = _largest(first, int(EXTENT.le or 0) // granule, passes)
    if not low:
        raise _none("seq_len", (granule, tried.get(granule) or checked(question)))
    value, beyond = low * granule, high * granule
    return Solved(
        quantity="seq_len", value=value, check=tried[value], next_value=beyond, next_check=tried.get(beyond)
    )


def _largest_batch(question: Question, checked: Callable[[Question], Check]) -> Solved:
    """Return the largest micro-batch that passes where every rank runs one, or one for each of its pipeline stages."""
    tried: dict[int, Check] = {}
    layout = _layout(question)
    ranks = layout.dp_replicate * layout.dp_shard * layout.pp

    def passes(size: int) -> bool:
        work = replace(question.workload, global_batch_size=size * ranks)
        sized = question.with_layout(replace(layout, micro_batch_size=size))
        tried[size] = checked(replace(sized, workload=work))
        return tried[size].status == "passes" and not _is_over(question, tried[size])

    low, high = _largest(1, int(EXTENT.le or 0) // ranks, passes)
    if not low:
        raise _none("micro_batch_size", (1, tried[1]))
    return Solved(
        quantity="micro_batch_size",
        value=low,
        check=tried[low],
        next_value=high,
        next_check=tried.get(high),
    )


def _largest(first: int, most: int, passes: Callable[[int], bool]) -> tuple[int, int]:
    """Return the largest number that passes, 0 where none does, and the next one that was tried."""
    low, high = 0, first
    while high <= most and passes(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low, high


def _most_tokens(question: Question, checked: Callable[[Question], Check]) -> Solved:
    """Return the most tokens of a run that passes its limits of time and cost, to three digits."""
    tried: dict[int, Check] = {}

    def passes(tokens: int) -> bool:
        tried[tokens] = checked(replace(question, workload=replace(question.workload, tokens=float(tokens))))
        return tried[tokens].status == "passes"

    low, high = 0, int(question.workload.tokens_per_step)
    while passes(high):
        low, high = high, 2 * high
        if high > MOST_TOKENS:
            raise required_with("--deadline or --max-cost", "--solve tokens")
    if not low:
        raise _none("tokens", (high, tried[high]))
    while high - low > low // THREE_DIGITS:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return Solved(quantity="tokens", value=low, check=tried[low], next_value=high, next_check=tried[high])
