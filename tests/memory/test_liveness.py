"""Moments of a hand-made block, every sum computed by hand."""

from __future__ import annotations

import pytest

from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block, Builder
from forescale.graph.recompute import keep
from forescale.memory.liveness import block_moments
from forescale.memory.moments import Moment, peak_bytes, undominated
from forescale.spec import Recompute, Strategy
from forescale.spec.workload import Precision


@pytest.fixture
def block() -> Block:
    """input (10 elements) -> wide (40, its maker keeps input) -> squeezed (10, its maker keeps wide); bf16."""
    degrees, choices = split_strategy(Strategy())
    b = Builder(layout=Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name, elements in (("input", 10.0), ("wide", 40.0), ("squeezed", 10.0), ("scratch", 3.0)):
        b.tensor(name, elements)
    b.operator("widen", reads=("input",), writes=("wide",), saves=("input",))
    with b.module("mlp"):
        b.operator(
            "squeeze",
            reads=("wide",),
            writes=("squeezed",),
            saves=("wide",),
            backward_temporaries=("scratch",),
        )
    return b.block("test", "input")


def at(moments: tuple[Moment, ...], name: str, phase: str) -> float:
    return next(float(moment.num_bytes) for moment in moments if (moment.name, moment.phase) == (name, phase))


def test_without_recompute(block: Block) -> None:
    kept = keep(block, Recompute())
    assert kept.num_bytes == 2 * (10 + 40)
    moments = block_moments(block, kept)
    assert at(moments.forward, "widen", "forward") == 2 * (10 + 40)
    assert at(moments.forward, "squeeze", "forward") == 2 * (10 + 40 + 10)
    # squeeze: input, wide, its two gradients, scratch; widen: input and two gradients, wide is gone
    assert at(moments.backward, "squeeze", "backward") == 2 * (10 + 40 + 10 + 40 + 3)
    assert at(moments.backward, "widen", "backward") == 2 * (10 + 40 + 10)
    assert moments.backward_bytes == 2 * 103


def test_full_recompute_makes_everything_again(block: Block) -> None:
    kept = keep(block, Recompute(granularity="full"))
    assert kept.num_bytes == 2 * 10
    moments = block_moments(block, kept)
    # the last operator's replay: input, both results, and the gradient that waits
    assert at(moments.backward, "squeeze", "replay") == 2 * (10 + 10 + 40 + 10)
    # and backward as without recompute, beside the replayed result that its checkpoint holds
    assert moments.backward_bytes == 2 * (103 + 10)


def test_temporaries_live_through_one_operator(block: Block) -> None:
    moments = block_moments(block, keep(block, Recompute()))
    assert "scratch" in moments.backward[0].tensors
    assert "scratch" not in moments.backward[1].tensors


def test_an_addition_shares_its_gradient() -> None:
    degrees, choices = split_strategy(Strategy())
    b = Builder(layout=Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name in ("input", "branch", "sum"):
        b.tensor(name, 10.0)
    b.operator("branch", reads=("input",), writes=("branch",), saves=("input",))
    b.operator("add", reads=("input", "branch"), writes=("sum",), shares_gradient=True)
    plain = b.block("residual", "input")
    backward = block_moments(plain, keep(plain, Recompute())).backward
    assert at(backward, "add", "backward") == 2 * (10 + 10)
    # the branch's part is added to the gradient that came past it
    assert at(backward, "branch", "backward") == 2 * (10 + 10 + 10)


def test_only_moments_that_can_be_the_peak_are_summed() -> None:
    small = Moment(name="a", phase="forward", tensors={"x": 1.0})
    large = Moment(name="b", phase="forward", tensors={"x": 1.0, "y": 2.0})
    other = Moment(name="c", phase="backward", tensors={"z": 9.0})
    assert undominated((small, large, other, large)) == [large, other]
    assert peak_bytes((small, large, other)) == 9.0
