"""Primitives that differ in extents alone are priced as one, equal ones once, each with the bits of its own price."""

from __future__ import annotations

from dataclasses import replace as with_fields
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from tests.small import asked, cluster, dense, workload

from forescale.cost.calibration import RunFactors
from forescale.cost.mesh import order_of
from forescale.formula import Term
from forescale.graph.ops import AttentionCore, Collective, Elementwise, Gemm, GroupedGemm
from forescale.graph.sharding import Degrees, split_layout
from forescale.inputs import pricing_of
from forescale.numeric import column
from forescale.spec import Layout
from forescale.time import stacked
from forescale.time.price import Pricing
from forescale.time.stacked import Known, alike

LAYOUT = Layout(tp=2, dp_shard=4)
TP = np.array([1.0, 2.0, 4.0, 8.0])
COUNT = len(TP)


def values(*numbers):
    return np.array(numbers, dtype=float)


def work():
    """Return kernels and messages, some alike and some equal."""
    rows = 8192.0 / TP
    gemm = Gemm(m=rows, n=4096.0, k=1024.0)
    return [
        gemm,
        Gemm(m=8192.0, n=1024.0, k=values(512, 256, 128, 64)),
        Gemm(m=8192.0 / TP, n=4096.0, k=1024.0),
        replace(gemm, dtype="fp8"),
        GroupedGemm(groups=8.0 / TP, m=rows, n=512.0, k=1024.0),
        AttentionCore(
            batch=1.0,
            heads=16.0 / TP,
            kv_heads=4.0,
            q_len=4096.0,
            kv_len=4096.0,
            pairs=2048.0 * 4096.0,
            qk_dim=64.0,
            v_dim=64.0,
        ),
        Elementwise(bytes_moved=1e7 / TP),
        Elementwise(bytes_moved=2e7 / TP, kernels=values(1, 2, 3, 4)),
        Elementwise(bytes_moved=1e7 / TP, family="norm"),
        Elementwise(bytes_moved=1e6),
        Collective(kind="all_gather", axis="tp", num_bytes=1e8 / TP),
        Collective(kind="all_gather", axis="tp", num_bytes=values(0, 1, 1e3, 1e9)),
        Collective(kind="reduce_scatter", axis="tp", num_bytes=1e8 / TP),
        Collective(kind="all_gather", axis="tp", num_bytes=1e8 / TP),
    ]


class Asked:
    """A compute model that counts what it is asked."""

    def __init__(self, model):
        self.model, self.count = model, 0

    def seconds(self, op):
        self.count += 1
        return self.model.seconds(op)


def pricing(known=None):
    degrees, choices = split_layout(LAYOUT)
    fields = {name: np.full(COUNT, getattr(degrees, name)) for name in Degrees.__dataclass_fields__}
    many = Degrees(**(fields | {"tp": TP, "dp_shard": 8.0 / TP}))
    question = asked(dense(), cluster(8), LAYOUT, workload())
    base = pricing_of(question, many, choices, order_of(LAYOUT), run=RunFactors())
    models = replace(base.models, compute=Asked(base.models.compute))
    return Pricing(models=models, groups=base.groups, known=known)


@pytest.mark.parametrize("most", [1, 2 * COUNT, 32768])
def test_each_has_the_bits_of_its_own_price(monkeypatch, most):
    monkeypatch.setattr(stacked, "MOST_NUMBERS", most)
    together, ops = pricing(), work()
    together.prepare(ops)
    for op in ops:
        alone = np.broadcast_to(pricing().seconds(op), COUNT)
        assert alone.max() > 0.0
        np.testing.assert_array_equal(np.broadcast_to(together.seconds(op), COUNT), alone)


def test_those_that_are_alike_are_one_question_and_equal_ones_none():
    together = pricing()
    together.prepare(work())
    assert (
        together.models.compute.count == 7
    )  # products of two types, experts, attention, elementwise, norms, a number
    for op in work():
        together.seconds(op)
    assert together.models.compute.count > 7  # others that are equal were not prepared


def test_what_others_have_priced_is_not_asked_again_but_of_another_model():
    known, ops = Known(), work()[:9]
    first = pricing(known)
    first.prepare(ops)
    second = with_fields(first)
    second.prepare(work()[:9])
    assert first.models.compute.count == 6
    third = pricing(known)
    third.prepare(work()[:9])
    assert third.models.compute.count == 6


def test_only_arrays_over_candidates_are_stacked():
    recorded = Term(np.array([1.0]), name="tp", unit="1")
    others = [
        Elementwise(bytes_moved=1e6),
        Elementwise(bytes_moved=recorded),
        Elementwise(bytes_moved=column([1.0, 2.0])),
        Elementwise(bytes_moved=np.ones((2, COUNT))),
        Elementwise(bytes_moved=np.ones(COUNT), kernels=np.ones(1 + COUNT)),
    ]
    assert alike(others) == {}
    first, second = (Elementwise(bytes_moved=np.ones(size)) for size in (COUNT, 1 + COUNT))
    assert len(alike([first, second, first])) == 2


def test_a_model_that_is_gone_leaves_its_number_to_no_other():
    known = Known()
    numbers = {known.number(SimpleNamespace()) for _ in range(50)}
    assert len(numbers) == 50
