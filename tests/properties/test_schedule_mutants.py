"""A schedule with one action dropped, doubled, swapped or misplaced is refused; reordering that keeps all
waits is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.schedule import Kind, Request, check, families, family, lower
from forescale.schedule.actions import JOINED, KIND_BITS, MICROBATCH_SHIFT, STAGE_SHIFT
from forescale.schedule.checker import SEMANTICS

MUTATIONS = ("drop", "double", "swap", "wrong rank", "bad stage", "bad micro-batch", "wrong kind")


@st.composite
def schedules(draw):
    result = family(draw(st.sampled_from([f.name for f in families()])))
    pp = draw(st.integers(2, 5))
    if result.name in {"dualpipe", "chimera"}:
        pp = 4
    vpp = result.fixed_vpp or 2
    m = draw(st.integers(2 * pp, 2 * pp + 4))
    if result.name in {"dualpipe", "chimera"}:
        m += m % 2
    return result.build(Request(pp=pp, num_microbatches=m, vpp=vpp))


def mutated(schedule, mutation, random):
    rows = [list(order) for order in schedule.orders]
    plain = [
        (r, i)
        for r, row in enumerate(rows)
        for i, code in enumerate(row)
        if code & KIND_BITS <= Kind.W and not code & JOINED and not (i and row[i - 1] & JOINED)
    ]
    rank, at = plain[random.integers(len(plain))]
    code = rows[rank][at]
    if mutation == "drop":
        del rows[rank][at]
    elif mutation == "double":
        rows[rank].insert(int(random.integers(len(rows[rank]) + 1)) if at % 2 else at, code)
    elif mutation == "swap":
        pairs = [
            (rank, early, late)
            for rank, row in enumerate(rows)
            for early, a in enumerate(row)
            for late, b in enumerate(row)
            if a >> STAGE_SHIFT == b >> STAGE_SHIFT and early < late
            and a & (KIND_BITS | JOINED) == Kind.F and b & (KIND_BITS | JOINED) in {Kind.B, Kind.I}
            and not (late and row[late - 1] & JOINED)
        ]  # fmt: skip
        if not pairs:
            return None
        rank, early, late = pairs[random.integers(len(pairs))]
        rows[rank][early], rows[rank][late] = rows[rank][late], rows[rank][early]
    elif mutation == "wrong rank":
        del rows[rank][at]
        other = (rank + 1) % len(rows)
        rows[other].insert(int(random.integers(len(rows[other]) + 1)), code)
    elif mutation == "bad stage":
        rows[rank][at] = code + (len(schedule.placement.rank_of_stage) << STAGE_SHIFT)
    elif mutation == "bad micro-batch":
        rows[rank][at] = code + (schedule.num_units << MICROBATCH_SHIFT)
    else:
        kind = code & KIND_BITS
        rows[rank][at] = (
            code - kind + {Kind.F: Kind.B, Kind.B: Kind.W, Kind.I: Kind.W, Kind.W: Kind.I}[Kind(kind)]
        )
    return replace(schedule, orders=tuple(tuple(row) for row in rows))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutants_are_refused(mutation):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(schedule=schedules(), seed=st.integers(0, 2**20))
    def run(schedule, seed):
        mutant = mutated(schedule, mutation, np.random.default_rng(seed))
        if mutant is None:
            return
        report = check(mutant)
        assert not report.valid
        assert all(violation.message for violation in report.violations)

    run()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(schedule=schedules(), seed=st.integers(0, 2**20))
def test_random_linear_extensions_are_valid(schedule, seed):
    """Any order of each rank that comes from one global order of all waits runs under every semantics."""
    if any(code & JOINED for row in schedule.orders for code in row):
        return
    random = np.random.default_rng(seed)
    home, stages = schedule.placement.rank_of_stage, schedule.num_stages
    codes = [code for row in schedule.orders for code in row]
    waiting = set(codes)
    done: set[tuple[int, int]] = set()
    rows = [[] for _ in range(schedule.num_ranks)]

    def ready(code):
        kind, rest = code & KIND_BITS, code >> STAGE_SHIFT
        stage, unit = rest & 0x7FFF, code >> MICROBATCH_SHIFT
        place, piece = stage % stages, unit % schedule.num_splits
        if kind == Kind.F:
            before = [(Kind.F, stage - 1, unit)] if place else []
            before += [(Kind.F, stage, unit - 1)] if piece else []
        elif kind in (Kind.B, Kind.I):
            before = [(Kind.F, stage, unit)] + ([(Kind.I, stage + 1, unit)] if place < stages - 1 else [])
            before += [(Kind.I, stage, unit + 1)] if piece < schedule.num_splits - 1 else []
            before += [(Kind.RELOAD, stage, unit)] if (Kind.RELOAD, stage, unit) in copies else []
        else:
            needed = {Kind.W: Kind.I, Kind.OFFLOAD: Kind.F, Kind.RELOAD: Kind.OFFLOAD}[Kind(kind)]
            before = [(needed, stage, unit)]
        return all(item in done for item in before)

    def name(code):
        kind = code & KIND_BITS
        kind = Kind.I if kind == Kind.B else Kind(kind)
        return kind, code >> STAGE_SHIFT & 0x7FFF, code >> MICROBATCH_SHIFT

    copies = {name(code) for code in codes if code & KIND_BITS == Kind.RELOAD}
    while waiting:
        batch = [code for code in waiting if ready(code)]
        random.shuffle(batch)
        for code in batch[: max(1, len(batch) // 2)]:
            rows[home[code >> STAGE_SHIFT & 0x7FFF]].append(code)
            done.add(name(code))
            waiting.remove(code)
    report = check(replace(schedule, orders=tuple(tuple(row) for row in rows)))
    assert report.valid, report.violations[0].message
    assert report.deadlock_free == SEMANTICS


def test_swapped_messages_are_refused():
    schedule = family("1f1b").build(Request(pp=2, num_microbatches=4))
    lowered = lower(schedule)
    row = list(lowered.orders[1])
    receives = [i for i, code in enumerate(row) if code & KIND_BITS == Kind.RECV_F]
    row[receives[0]], row[receives[1]] = row[receives[1]], row[receives[0]]
    report = check(schedule, lowered=replace(lowered, orders=(lowered.orders[0], tuple(row))))
    assert [v.rule for v in report.violations] == ["fifo"]
