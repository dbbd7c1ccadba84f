"""Properties of the compute cost models: a candidate alone, more work, and the peaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.catalogue.clusters import load_device
from forescale.cost.calibration import load_calibration
from forescale.cost.roofline import Roofline, peak_rate
from forescale.cost.tile import TileModel
from forescale.graph.ops import AttentionCore, Elementwise, Gemm, GroupedGemm

DEVICES = ("a100-sxm-80gb", "h100-sxm", "b200", "mi300x", "tpu-v5p", "v100-sxm2-32gb")
MODELS = [
    kind(device=device, calibration=load_calibration(device))
    for device in map(load_device, DEVICES)
    for kind in (Roofline, TileModel)
]
EXTENT = st.floats(1.0, 2e5)
SMALL = st.floats(1.0, 512.0)


def types(model):
    return ("bf16" if model.device.matrix_flops.bf16 else "fp16",) + (
        ("fp8",) if model.device.matrix_flops.fp8 else ()
    )


@st.composite
def operators(draw, size=1):
    """An operator with `size` candidates, and its model."""
    model = draw(st.sampled_from(MODELS))

    def array(layout):
        return np.array(draw(st.lists(layout, min_size=size, max_size=size)))

    dtype = draw(st.sampled_from(types(model)))
    kind = draw(st.sampled_from(["gemm", "grouped", "attention", "memory"]))
    if kind == "gemm":
        return model, Gemm(m=array(EXTENT), n=array(EXTENT), k=array(EXTENT), batch=array(SMALL), dtype=dtype)
    if kind == "grouped":
        contract, accumulate = draw(st.sampled_from(["k", "m"])), draw(st.sampled_from([0.0, 8.0]))
        return model, GroupedGemm(
            groups=array(SMALL), m=array(EXTENT), n=array(EXTENT), k=array(EXTENT), dtype=dtype,
            contract=contract, accumulate_bytes=accumulate,
        )  # fmt: skip
    if kind == "attention":
        length = array(EXTENT)
        return model, AttentionCore(
            batch=array(SMALL), heads=array(SMALL), kv_heads=array(SMALL), q_len=length, kv_len=length,
            pairs=length * length / 2, qk_dim=array(SMALL), v_dim=array(SMALL), backward=draw(st.booleans()),
            flash=draw(st.booleans()), dtype=types(model)[0])  # fmt: skip
    return model, Elementwise(
        bytes_moved=array(EXTENT) * 1e6, family=draw(st.sampled_from(["norm", "cast", "optimizer"]))
    )


def extents(op):
    return [name for name in op.__dataclass_fields__ if isinstance(getattr(op, name), np.ndarray)]


def at(op, index):
    """Candidate `index` of `op`, as Python floats."""
    return replace(op, **{name: float(getattr(op, name)[index]) for name in extents(op)})


@given(operators(size=9))
@settings(max_examples=150, deadline=None)
def test_a_candidate_alone_costs_bit_for_bit_what_it_costs_in_a_batch(drawn):
    model, op = drawn
    together = model.seconds(op)
    for index in range(9):
        assert float(model.seconds(at(op, index))) == together[index]


@given(operators(), st.data())
@settings(max_examples=200, deadline=None)
def test_more_work_never_costs_less(drawn, data):
    model, op = drawn
    names = [name for name in extents(op) if name not in {"q_len", "pairs", "kv_heads", "groups"}]
    name = data.draw(st.sampled_from(names))
    factor = data.draw(st.floats(1.0, 8.0))
    larger = replace(op, **{name: getattr(op, name) * factor})
    assert model.seconds(larger) >= model.seconds(op) * (1 - 1e-9)


@given(operators())
@settings(max_examples=200, deadline=None)
def test_no_rate_above_the_peak(drawn):
    model, op = drawn
    seconds = model.seconds(op)
    assert np.all(np.isfinite(seconds))
    assert np.all(seconds > 0.0)
    if isinstance(op, Elementwise):
        assert np.all(op.bytes_moved / seconds < model.device.hbm_bandwidth)
    else:
        assert np.all(op.flops / seconds < peak_rate(model.device, op.dtype))


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1001])
def test_long_batches_agree_with_scalars(count):
    """Vector units work in strides; every remainder must round alike."""
    rng = np.random.default_rng(count)
    m, n, k = (np.ceil(rng.uniform(1, 30000, count)) for _ in range(3))
    for model in MODELS[:4]:
        together = model.seconds(Gemm(m=m, n=n, k=k))
        alone = [
            float(model.seconds(Gemm(m=float(a), n=float(b), k=float(c))))
            for a, b, c in zip(m, n, k, strict=True)
        ]
        assert alone == list(together)
