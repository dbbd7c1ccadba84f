"""What every cost model must keep to: physics, and one definition for one candidate and for many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from forescale.cost.mesh import Group
from forescale.cost.model import CollectiveModel, ComputeModel
from forescale.graph.ops import AttentionCore, Compute, Elementwise, Gemm, GroupedGemm
from forescale.numeric import Array

SIZES = np.array([256.0, 1000.0, 4096.0, 12288.0])


def check_compute_model(model: ComputeModel) -> None:
    """Assert that a compute model prices every operator.

    Durations are positive and finite, do not shrink when the operator becomes eight times as large, and a
    candidate alone gets bit for bit what it gets among others.
    """
    for op, larger in _operators():
        together = np.asarray(model.seconds(op))
        assert together.shape == SIZES.shape, f"{op}: one duration per candidate"
        assert np.all(np.isfinite(together)), f"{op}: durations are finite"
        assert np.all(together > 0.0), f"{op}: durations are positive"
        assert np.all(np.asarray(model.seconds(larger)) >= together), f"{op}: more work takes no less time"
        for index in range(SIZES.size):
            alone = np.asarray(model.seconds(_candidate(op, index)))
            assert alone.item() == together[index], (
                f"{op}: candidate {index} alone differs from itself among all"
            )
        provenance = model.provenance(op)
        assert provenance.source, f"{op}: says where its durations come from"
        assert 0.0 < provenance.low <= provenance.high, f"{op}: spread is an interval"


def check_collective_model(model: CollectiveModel) -> None:
    """Assert that a model of communication prices messages.

    One rank and no bytes cost nothing, more bytes never cost less, a candidate alone equals itself among others.
    """
    ranks = np.array([1.0, 2.0, 4.0, 8.0])
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        group = Group(size=ranks, stride=1.0)
        together = np.asarray(model.seconds(kind=kind, num_bytes=1e8, group=group))
        assert together[0] == 0.0, f"{kind}: one rank has nobody to talk to"
        assert np.all(together[1:] > 0.0), f"{kind}: messages take time"
        assert np.all(np.isfinite(together)), f"{kind}: durations are finite"
        more = np.asarray(model.seconds(kind=kind, num_bytes=8e8, group=group))
        assert np.all(more >= together), f"{kind}: more bytes take no less time"
        for index in range(ranks.size):
            single = Group(size=ranks[index : index + 1], stride=1.0)
            alone = np.asarray(model.seconds(kind=kind, num_bytes=1e8, group=single))
            assert alone.item() == together[index], (
                f"{kind}: {ranks[index]:g} ranks alone differ from among all"
            )
        nothing = np.asarray(model.seconds(kind=kind, num_bytes=0.0, group=group))
        assert np.all(nothing == 0.0), f"{kind}: nothing to send costs nothing"


def _operators() -> Iterator[tuple[Compute, Compute]]:
    """Yield operators over four candidates, each with a larger one of its kind."""
    gemm = Gemm(m=SIZES, n=4096.0, k=8192.0)
    grouped = GroupedGemm(groups=8.0, m=SIZES, n=2048.0, k=4096.0)
    core = AttentionCore(
        batch=1.0,
        heads=16.0,
        kv_heads=4.0,
        q_len=SIZES,
        kv_len=SIZES,
        pairs=SIZES * SIZES / 2.0,
        qk_dim=128.0,
        v_dim=128.0,
    )
    traffic = Elementwise(bytes_moved=SIZES * 1e4)
    yield gemm, replace(gemm, m=SIZES * 8.0)
    yield grouped, replace(grouped, m=SIZES * 8.0)
    yield replace(grouped, contract="m"), replace(grouped, contract="m", m=SIZES * 8.0)
    yield core, replace(core, batch=8.0)
    yield replace(core, backward=True), replace(core, backward=True, batch=8.0)
    yield replace(core, flash=False), replace(core, flash=False, batch=8.0)
    yield traffic, replace(traffic, bytes_moved=SIZES * 8e4)


def _candidate(op: Compute, index: int) -> Compute:
    def one(value: Any) -> Any:
        single: Array = value[index : index + 1] if isinstance(value, np.ndarray) else value
        return single

    changed: dict[str, Any] = {item.name: one(getattr(op, item.name)) for item in fields(op)}
    return replace(op, **changed)
