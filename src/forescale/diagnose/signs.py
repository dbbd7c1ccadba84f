"""Causes that a profile shows by itself: extra work, waiting, and work that takes longer than it should.

Each rule compares the recorded work of a step with the expected one. Rules about work count calls, FLOP and bytes,
which do not depend on how fast a machine is; only then is the same work compared by its time. What a cause is called
and what to do about it is data (catalogue/causes.json).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from statistics import fmean, median
from typing import Any

from forescale.diagnose.scatter import Samples, excess, usual
from forescale.diagnose.work import Work, total
from forescale.files import packaged
from forescale.profiles import RANK_PARTS, TraceSummary, part_of
from forescale.struct import Struct

SHOWN = 0.03
"""Share of the expected step that a cause must take to be named."""
CERTAIN = 0.2
"""Share of that from which on work that is not the expected one is named in a longer step: its times are uncertain."""
MORE = 1.02
"""Ratio from which on calls, FLOP or bytes are more than expected."""
LONGER = 1.07
"""Ratio from which on the same work takes longer than expected."""
SLOWER_LINK = 1.4
"""Ratio from which on the same messages take longer than expected."""
UNIFORM = 0.6
"""Share of a slow rank's computing in kernels that are slower by at least half as much as it: all slow down alike."""
ALIKE = 0.6
"""Share of operators that run more often by the same ratio if there are more micro-batches."""
MEMORY_BOUND = ("elementwise", "norm", "softmax", "copy", "optimizer")
NARROW = {"fp8", "mxfp8", "nvfp4", "tf32"}
"""Types of products that operators do not record."""
NAMED = {
    "statistics": r"aten::(linalg_vector_norm|norm|item|_local_scalar_dense|is(_nonzero|finite|nan|inf)|abs|all|any)$",
    "dropout": r"dropout|bernoulli|philox|aten::(rand|rand_like|uniform_)$",
    "casts": r"_to_copy|convert",
    "host_copies": r"aten::(clone|copy_)$|memcpy|catarray",
}
"""Causes of more operators, by the operators that only they run more often."""
INSIDE = {
    "casts": (r"_to_copy|convert", {"aten::copy_"}),
    "statistics": (r"aten::is(finite|inf)$", {"aten::eq", "aten::ne", "aten::mul"}),
}
"""Operators that run inside those of a cause, where it has some of a kind: `isfinite(x)` multiplies comparisons."""
COUNTED = {
    *NAMED,
    "extra_messages",
    "repeated_update",
    "reduce_per_micro_batch",
    "small_buckets",
    "unfused_kernels",
    "unfused_optimizer",
}
"""Causes that calls and bytes show, however steps scatter."""
RECORDED = {*COUNTED, "data_loading", "host_gaps"}
"""The same with what is recorded as a time of its own."""


class Sign(Struct, frozen=True, kw_only=True):
    """A cause that a profile shows, and what it takes."""

    name: str
    text: str
    seconds: float
    evidence: str
    remedy: str
    beyond: bool = True
    """Whether it takes more than steps and ranks scatter."""


def _sign(
    name: str, seconds: float, evidence: str, row: str = "", *, beyond: bool = True, **values: object
) -> Sign:
    text, remedy = packaged("causes")[row or name]
    text = text.format(**values)
    return Sign(name=name, text=text, seconds=seconds, evidence=evidence, remedy=remedy, beyond=beyond)


class Comparison:
    """The work of a step, recorded on each rank, next to the expected work.

    Parameters
    ----------
    expected, measured
        Work of the mean rank.
    traces
        One per rank.
    step_s
        Of the expected step.
    waiting_s
        In which the device is expected to wait, where the expected work does not say it.
    tokens
        Sequences of a micro-batch and tokens of a sequence.
    recomputes, routed
        Whether activations are recomputed in full, and whether there are experts.
    """

    def __init__(
        self,
        expected: Work,
        measured: Work,
        traces: Sequence[TraceSummary],
        *,
        step_s: float,
        waiting_s: float = 0.0,
        tokens: tuple[int, int] | None = None,
        recomputes: bool = False,
        routed: bool = False,
    ) -> None:
        self.expected, self.measured, self.traces, self.step_s = expected, measured, traces, step_s
        self.waiting_s = {"pauses": waiting_s, "gaps": waiting_s} | dict(expected.waiting_s)
        self.tokens, self.recomputes, self.routed = tokens, recomputes, routed

    @property
    def has_operators(self) -> bool:
        """Whether the expected operators are known one by one."""
        return bool(self.expected.operators)

    def _sums(self, names: Iterable[str], place: int) -> tuple[float, float]:
        pairs, chosen = (self.measured.operators, self.expected.operators), list(names)
        one, other = (sum(work.get(name, (0.0, 0.0))[place] for name in chosen) for work in pairs)
        return one, other

    def calls(self, names: Iterable[str]) -> tuple[float, float]:
        """Return the calls of operators, measured and expected."""
        return self._sums(names, 0)

    def extra_s(self, names: Iterable[str]) -> float:
        """Return the seconds by which operators take longer than expected."""
        one, other = self._sums(names, 1)
        return one - other

    def slower(self, names: Iterable[str]) -> float:
        """Return measured over expected seconds of operators."""
        one, other = self._sums(names, 1)
        return one / max(other, 1e-12)

    @property
    def longer_s(self) -> float:
        """Seconds by which the usual step is longer than the expected one."""
        expected = list(map(usual, self.expected.ranks.get("rank_step", ()))) or [self.step_s]
        return fmean(usual(_samples(trace, "step", trace.step_s)) for trace in self.traces) - max(expected)

    @property
    def mean_longer_s(self) -> float:
        """Seconds by which the recorded steps are longer than the expected one, on the mean of steps and ranks."""
        return fmean(trace.step_s for trace in self.traces) - self.step_s

    def waits(self, name: str, over: Callable[[Iterable[float]], float]) -> tuple[Samples, Samples]:
        """Return the seconds of pauses or gaps in each step, over ranks: measured and expected."""
        measured = [
            _samples(
                trace, name, trace.pauses_s if name == "pauses" else max(0.0, trace.idle_s - trace.pauses_s)
            )
            for trace in self.traces
        ]
        expected = self.expected.ranks.get(RANK_PARTS[name]) or [(self.waiting_s[name],)]
        return _over_ranks(measured, over), _over_ranks(expected, over)

    @cached_property
    def repeats(self) -> float:
        """How many times as often as expected most operators of a micro-batch run; 1 if there is no common ratio."""
        known = self.expected.operators
        ratios = [
            calls / known[name][0]
            for name, (calls, _) in self.measured.operators.items()
            if name in known and not name.startswith("optimizer: ")
        ]
        common = median(ratios) if ratios else 1.0
        return (
            common
            if sum(abs(ratio / common - 1.0) < 0.02 for ratio in ratios) >= ALIKE * len(ratios)
            else 1.0
        )

    @cached_property
    def extra_flops(self) -> float:
        """Measured FLOP of products over the expected ones; 1 if either is not known."""
        there, here = self.expected.total_flops, self.measured.total_flops
        return here / there if there and here else 1.0

    def work_s(self, ratio: float) -> float:
        """Return the seconds of work that exceeds the expected one by a ratio, where operators do not say it."""
        if self.has_operators:
            return self.extra_s({**self.measured.operators, **self.expected.operators})
        return fmean(trace.computing_s for trace in self.traces) * (1.0 - 1.0 / ratio)


Rule = Callable[[Comparison], Iterator[Sign]]


def signs_of(case: Comparison) -> list[Sign]:
    """Return the causes that a profile shows, the one that takes most first.

    Work that is not the expected one comes before waiting and messages, and what follows from it is not named. Where
    the step is not longer than expected, nothing else is; where it is longer by no more than steps scatter, nothing but
    what its calls, bytes and pauses show (`RECORDED`). What the scatter of the recorded steps and ranks explains comes
    last, and is no cause (`Sign.beyond`). Other work than expected in a longer step is certain, the seconds that it
    takes are not: a share of what other causes need is enough (`CERTAIN`).
    """
    least = SHOWN * case.step_s
    longer, at_all = case.longer_s > least, max(case.longer_s, case.mean_longer_s) > least
    structural = [
        sign
        for rule in STRUCTURAL
        for sign in rule(case)
        if abs(sign.seconds) > least or (at_all and sign.seconds > CERTAIN * least)
    ]
    rules = () if not at_all else OTHERS if structural else (*OTHERS, *OPERATORS)
    others = [sign for rule in rules for sign in rule(case) if longer or sign.name in RECORDED]
    others = [sign for sign in others if sign.seconds > least * (CERTAIN if sign.name in COUNTED else 1.0)]
    return [*structural[:1], *sorted(others, key=lambda sign: (not sign.beyond, -sign.seconds))]


def _uneven(case: Comparison) -> Iterator[Sign]:
    """Compare the FLOP of products of the ranks."""
    flops = [sum(trace.shapes.flops.values()) for trace in case.traces]
    if not all(flops) or max(flops) <= MORE * min(flops):
        return
    computing = [trace.computing_s for trace in case.traces]
    usual = case.expected.computing_s if case.has_operators else fmean(computing)
    evidence = f"{max(flops):.4g} FLOP of products on one rank, {min(flops):.4g} on another"
    name = "expert_imbalance" if case.routed else "uneven_load"
    yield _sign(name, max(computing) - min(usual, *computing), evidence, ratio=max(flops) / fmean(flops))


def _micro_batches(case: Comparison) -> Iterator[Sign]:
    """Compare how often the operators of a micro-batch run."""
    ratio = case.repeats
    if max(ratio, 1.0 / ratio) > MORE:
        smaller = case.measured.total_flops > 0.0 and abs(case.extra_flops - 1.0) < 0.5 * abs(ratio - 1.0)
        evidence = f"most operators run {ratio:.2f} × as often, FLOP of products {case.extra_flops:.2f} ×"
        name, seconds = "small_micro_batches", case.work_s(ratio)
        if not smaller:  # waiting between kernels is repeated with them
            name = "more_micro_batches"
            seconds = max(seconds, min(case.longer_s, (ratio - 1.0) * case.step_s))
        yield _sign(name, seconds, evidence, ratio=ratio)


def _sequences(case: Comparison) -> Iterator[Sign]:
    """Compare the shapes of attention."""
    shapes = [item for trace in case.traces for item in trace.shapes.sequences.items()]
    if case.tokens is None or not shapes:
        return
    total = sum(calls for _, calls in shapes)
    size, length = (sum(shape[place] * calls for shape, calls in shapes) / total for place in (0, 1))
    sequences, tokens = case.tokens
    evidence = f"attention runs over {size:g} × {length:g} tokens, {sequences} × {tokens} expected"
    if length > MORE * tokens:
        yield _sign("padding", case.work_s(length / tokens), evidence, size=length, expected=tokens)
    elif size > MORE * sequences:
        seconds = case.work_s(size / sequences)
        yield _sign("large_micro_batches", seconds, evidence, size=size, expected=sequences)


def _attention(case: Comparison) -> Iterator[Sign]:
    """Compare the calls of fused attention: with the expected ones, and forward with backward."""
    here, there = case.measured.attention, case.expected.attention
    forward, backward = here.get("forward", 0.0), here.get("backward", 0.0)
    expected = there.get("forward", 0.0) * case.repeats
    softmax = [name for name in case.measured.in_parts("softmax") if "log" not in name.lower()]
    evidence = (
        f"attention runs {forward:g} times forward and {backward:g} times backward, {expected:g} expected"
    )
    if forward < expected / MORE and case.calls(softmax)[0]:
        yield _sign("unfused_attention", case.work_s(MORE), evidence, share=1.0 - forward / expected)
    elif backward and forward > MORE * backward and not case.recomputes:
        share = min(1.0, forward / backward - 1.0)
        yield _sign("recompute", case.work_s(1.0 + share / 3.0), evidence, share=share)
    elif backward and case.recomputes and forward < MORE * backward:
        yield _sign("no_recompute", case.work_s(0.75), evidence)


def _types(case: Comparison) -> Iterator[Sign]:
    """Compare the types of products."""
    here, there = case.measured.flops, case.expected.flops
    if not here or not there or set(there) & NARROW:
        return
    shares = {kind: value / case.measured.total_flops for kind, value in here.items()}
    surplus = {
        kind: share - there.get(kind, 0.0) / case.expected.total_flops for kind, share in shares.items()
    }
    kind = max(surplus, key=lambda name: surplus[name])
    if surplus[kind] > MORE - 1.0:
        evidence = ", ".join(f"{name}: {share:.0%} of FLOP" for name, share in shares.items())
        values: dict[str, Any] = {"share": shares[kind], "kind": kind, "expected": " and ".join(there)}
        yield _sign(f"{kind}_products", case.work_s(1.5), evidence, "wrong_products", **values)


def _samples(trace: TraceSummary, name: str, mean: float) -> Samples:
    return trace.samples.get(name) or (mean,)


def _over_ranks(ranks: Sequence[Samples], over: Callable[[Iterable[float]], float]) -> Samples:
    """Return one figure of all ranks in each step; of the usual steps where not all ranks have as many."""
    even = len({len(times) for times in ranks}) == 1
    return tuple(map(over, zip(*ranks, strict=True))) if even else (over(map(usual, ranks)),)


def _lag(ranks: Sequence[Samples]) -> tuple[int, Samples, float]:
    """Return the slowest rank, its times over those of the others in each step, and the usual time of these."""
    usually = list(map(usual, ranks))
    slowest = usually.index(max(usually))
    others = [times for rank, times in enumerate(ranks) if rank != slowest]
    if len({len(times) for times in ranks}) > 1:
        ranks, others = [(value,) for value in usually], [(usual(times),) for times in others]
    typical = tuple(map(median, zip(*others, strict=True)))
    lag = tuple(a / max(b, 1e-12) for a, b in zip(ranks[slowest], typical, strict=True))
    return slowest, lag, usual(typical)


def _slow_rank(case: Comparison) -> Iterator[Sign]:
    """Compare how long the ranks compute: one is slower than the others in most steps, and in all its kernels."""
    if len(case.traces) < 2 or any(_uneven(case)):
        return
    slowest, lag, others = _lag([_samples(trace, "computing", trace.computing_s) for trace in case.traces])
    expected = case.expected.ranks.get("rank_computing", ())
    should = _lag(expected)[1] if len(expected) > 1 else (1.0,)
    ratio = usual(lag)
    if ratio <= LONGER:
        return
    evidence = (
        f"{ratio * others:.4g} s of computing, {others:.4g} s on the others: {ratio:.2f} × in three of four steps, "
        f"{usual(should):.2f} × expected"
    )
    yield _sign(
        "slow_rank",
        (ratio - usual(should)) * others,
        evidence,
        beyond=excess(lag, should) > 0.0 and _is_uniform(case.traces, slowest, ratio),
        path=case.traces[slowest].path,
        ratio=ratio,
    )


def _is_uniform(traces: Sequence[TraceSummary], slowest: int, ratio: float) -> bool:
    """Say whether most kernels of a rank are slower than on the others, as a slow clock or link makes them."""
    times = [{row.name: usual(row.samples or (row.seconds,)) for row in trace.kernels} for trace in traces]
    own = times.pop(slowest)
    typical = {name: median(one.get(name, 0.0) for one in times) for name in own if not part_of(name)[1]}
    slow = sum(typical[name] for name in typical if own[name] > 0.5 * (1.0 + ratio) * typical[name])
    return slow >= UNIFORM * sum(typical.values())


def _waiting(case: Comparison) -> Iterator[Sign]:
    """Compare waiting for data, pauses of the host, and gaps between launches."""
    data = max(min(trace.data_s, trace.idle_s) for trace in case.traces)
    yield _sign("data_loading", data, f"{data:.4g} s in the data loader")
    pauses, should = case.waits("pauses", max)
    pauses = tuple(time - min(data, time) for time in pauses)
    yield _waits("host_gaps", "pauses", pauses, should, max(trace.pauses for trace in case.traces))
    launches = median(trace.launches for trace in case.traces)
    more = max(1.0, launches / case.expected.launches) if case.expected.launches else 1.0
    gaps, should = case.waits("gaps", min)
    yield _waits("host_bound", "gaps", gaps, tuple(time * more for time in should), launches)


def _waits(name: str, kind: str, waits: Samples, expected: Samples, count: float) -> Sign:
    length = {"pauses": "gaps of a millisecond or more", "gaps": "short gaps"}[kind]
    evidence = f"{usual(waits):.4g} s in {length}, {usual(expected):.4g} expected"
    beyond = excess(waits, expected) > 0.0
    return _sign(name, usual(waits) - usual(expected), evidence, beyond=beyond, count=count)


def _messages(case: Comparison) -> Iterator[Sign]:
    """Compare messages by collective: their sizes and number, then their time."""
    if not case.has_operators:
        return
    for part in dict.fromkeys([*case.measured.transfers, *case.expected.transfers]):
        sizes, known = (
            {size: calls for (kind, size), calls in work.messages.items() if kind == part}
            for work in (case.measured, case.expected)
        )
        sent, expected = (sum(size * calls for size, calls in one.items()) for one in (sizes, known))
        repeated = sum(calls * size for size, calls in sizes.items() if size in known)
        (calls, took), (number, should) = (
            work.transfers.get(part, (0.0, 0.0)) for work in (case.measured, case.expected)
        )
        evidence = (
            f"{calls:g} × {part} of {sent / 1e6:.4g} MB, {number:g} of {expected / 1e6:.4g} MB expected"
        )
        if sent > MORE * expected and repeated > MORE * expected:
            name, ratio = "reduce_per_micro_batch", sent / expected
        elif sent > MORE * expected or not number or (not sent and calls > MORE * number):
            name, ratio = "extra_messages", 1.0
        elif calls > 1.5 * number:
            name, ratio = "small_buckets", calls / number
        elif took > SLOWER_LINK * should:
            name, ratio = "slow_links", took / max(should, 1e-12)
        else:
            continue
        beyond = (
            name != "slow_links" or excess(case.measured.samples[part], case.expected.samples[part]) > 0.0
        )
        yield _sign(name, took - should, evidence, beyond=beyond, ratio=ratio, part=part.replace("_", "-"))


def _optimizer(case: Comparison) -> Iterator[Sign]:
    """Compare the operators of the update."""
    names = case.measured.in_parts("optimizer")
    calls, number = case.calls(names)
    updates = median(trace.updates for trace in case.traces)
    if case.has_operators and calls > MORE * number:
        evidence = f"{calls:g} operators of the optimizer, {number:g} expected; it runs {updates:g} times"
        name = "repeated_update" if updates > 1.5 else "unfused_optimizer"
        yield _sign(name, case.extra_s(names), evidence, count=updates)


def _extra_operators(case: Comparison) -> Iterator[Sign]:
    """Compare the calls of all operators but products and the optimizer's."""
    known = case.expected.operators
    left = {
        name
        for name, (calls, _) in case.measured.operators.items()
        if calls > MORE * known.get(name, (0.0, 0.0))[0] and not name.startswith("optimizer")
    }
    if not known or case.extra_flops > MORE or not left:
        return
    seconds, groups = case.extra_s(left), {}
    for cause, pattern in NAMED.items():
        groups[cause] = {name for name in left if re.search(pattern, name)}
        kind, inside = INSIDE.get(cause, ("", set[str]()))
        if any(re.search(kind, name) for name in groups[cause]):
            groups[cause] |= left & inside
        left -= groups[cause]
    groups["unfused_kernels"] = left
    cause = max(groups, key=lambda name: case.extra_s(groups[name]))
    shown = sorted(groups[cause], key=lambda name: -case.extra_s([name]))[:3]
    counts = {name: case.calls([name]) for name in shown}
    evidence = "; ".join(f"{name} {one:g} times, {other:g} expected" for name, (one, other) in counts.items())
    yield _sign(cause, seconds, evidence)


def _products(case: Comparison) -> Iterator[Sign]:
    """Compare the FLOP of products, where nothing else explains more of them."""
    if case.extra_flops > MORE and case.has_operators:
        names = case.measured.in_parts("gemm", "grouped_gemm")
        evidence = f"{case.measured.total_flops:.4g} FLOP, {case.expected.total_flops:.4g} expected"
        yield _sign("extra_products", case.extra_s(names), evidence, ratio=case.extra_flops)


def _slower(case: Comparison) -> Iterator[Sign]:
    """Compare the time of operators that run as often as expected, on the fastest rank."""
    known = case.expected.operators
    same = {
        name
        for name, (calls, _) in case.measured.operators.items()
        if name in known and abs(calls - known[name][0]) <= 0.02 * calls
    }
    if not same:
        return
    expected = total(case.expected.samples[name] for name in same)
    ranks = [
        total(row.samples or (row.seconds,) for row in trace.kernels if row.name in same)
        for trace in case.traces
    ]
    fastest = min(ranks, key=usual)
    least, should = usual(fastest), usual(expected)
    if least <= LONGER * should:
        return
    bound = same & set(case.measured.in_parts(*MEMORY_BOUND))
    products, others = case.slower(same - bound), case.slower(bound)
    evidence = f"products and attention take {products:.2f} ×, memory-bound operators {others:.2f} × as long"
    name, ratio = ("slow_memory", others) if products < LONGER < others else ("slow_clock", least / should)
    yield _sign(name, least - should, evidence, beyond=excess(fastest, expected) > 0.0, ratio=ratio)


STRUCTURAL: tuple[Rule, ...] = (_uneven, _micro_batches, _sequences, _attention, _types)
OTHERS: tuple[Rule, ...] = (_slow_rank, _waiting, _messages)
OPERATORS: tuple[Rule, ...] = (_optimizer, _extra_operators, _products, _slower)
