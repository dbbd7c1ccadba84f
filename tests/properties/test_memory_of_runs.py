"""Laws that the memory of any layout obeys: shards sum to the whole, recompute and offload never keep more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small import cluster, dense, moe

from forescale.errors import SpecError
from forescale.explain import explain
from forescale.graph.parameters import count_parameters
from forescale.project import project
from forescale.projection.loads import block_loads, total_bytes
from forescale.spec import Recompute, Strategy, Workload
from forescale.spec.strategy import Offload

FEW = settings(max_examples=8, deadline=None)
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
RECOMPUTES = (
    Recompute(granularity="selective", modules=("layernorm",)),
    Recompute(granularity="selective", modules=("core_attn", "mlp")),
    Recompute(granularity="full"),
    Recompute(granularity="full", num_layers=1),
    Recompute(granularity="policy", policy="minimal"),
)
power = st.sampled_from((1, 2, 4))


zeros = st.sampled_from((0, 1, 2, 3))


@st.composite
def layouts(draw, zero=zeros):
    """Return a small model, a legal layout of it, and sequences for it."""
    experts = draw(st.booleans())
    tp, pp, shard, replicate = (
        draw(power),
        draw(st.sampled_from((1, 2))),
        draw(power),
        draw(st.sampled_from((1, 2))),
    )
    ep = draw(st.sampled_from([size for size in (1, 2, 4) if (tp * shard) % size == 0])) if experts else 1
    layout = Strategy(
        tp=tp, pp=pp, dp_shard=shard, dp_replicate=replicate, ep=ep, zero=draw(zero),
        micro_batch_size=draw(st.sampled_from((1, 2))), recompute=draw(st.sampled_from((Recompute(), *RECOMPUTES))),
    )  # fmt: skip
    return (
        replace(moe(), num_mtp_layers=0) if experts else dense(),
        layout,
        draw(st.sampled_from((512, 1024))),
    )


def run(model, layout, seq_len, batch=32):
    return project(
        model, cluster(layout.num_devices), layout, Workload(seq_len=seq_len, global_batch_size=batch)
    )


@FEW
@given(layouts())
def test_parts_sum_to_the_peak_and_states_never_exceed_it(question):
    for stage in run(*question).memory.stages:
        assert sum(getattr(stage, f"{name}_bytes") for name in PARTS) == pytest.approx(
            stage.peak_bytes, rel=1e-12
        )
        assert stage.peak_bytes >= stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        assert stage.allocated_bytes <= stage.reserved_bytes <= stage.peak_bytes


@FEW
@given(layouts(zero=st.just(3)))
def test_shards_of_all_devices_sum_to_the_parameters(question):
    """Two bytes each in bf16: what is replicated is what norms, routers and low ranks copy over tp."""
    model, layout, seq_len = question
    alone = replace(layout, tp=1, sp=False, ep=min(layout.ep, layout.dp_shard))
    stages = run(model, alone, seq_len).memory.stages
    held = sum(stage.weights_bytes for stage in stages) * alone.dp_shard
    assert held == pytest.approx(2.0 * count_parameters(model).total, rel=1e-9)


@FEW
@given(layouts(), st.sampled_from((("weights", 3), ("gradients", 2), ("optimizer", 1))))
def test_sharding_states_divides_them_and_loses_none(question, case):
    model, layout, seq_len = question
    (name, stage_of), part = case, f"{case[0]}_bytes"
    layout = replace(layout, ep=1)
    whole = run(model, replace(layout, zero=stage_of - 1), seq_len).memory.stages
    shards = run(model, replace(layout, zero=stage_of), seq_len).memory.stages
    for one, other in zip(whole, shards, strict=True):
        dense_part = getattr(other, part) * layout.dp_shard
        if model.is_moe:  # experts are sharded over tp x dp_shard
            assert getattr(one, part) / (layout.tp * layout.dp_shard) <= getattr(other, part) * (1 + 1e-12)
            assert dense_part <= getattr(one, part) * (1 + 1e-12)
        else:
            assert dense_part == pytest.approx(getattr(one, part), rel=1e-12), name


@FEW
@given(layouts(), st.sampled_from(RECOMPUTES))
def test_recompute_never_keeps_more(question, policy):
    model, layout, seq_len = question
    work = Workload(seq_len=seq_len, global_batch_size=32)
    plain = block_loads(model, replace(layout, recompute=Recompute()), work).layers
    less = block_loads(model, replace(layout, recompute=policy), work).layers
    for before, after in zip(plain, less, strict=True):
        assert total_bytes(after.kept) <= total_bytes(before.kept) * (1 + 1e-12)


@FEW
@given(layouts(), st.integers(1, 9), st.sampled_from((0.25, 1.0)))
def test_offload_moves_bytes_and_makes_none(question, layers, share):
    model, layout, seq_len = question
    plain = run(model, layout, seq_len)
    moved = run(model, replace(layout, offload=Offload(activation_layers=layers, optimizer=share)), seq_len)
    for before, after in zip(plain.memory.stages, moved.memory.stages, strict=True):
        assert after.optimizer_bytes == pytest.approx((1 - share) * before.optimizer_bytes)
        assert after.activations_bytes <= before.activations_bytes * (1 + 1e-12)
        assert after.host_bytes > 0.0
    assert moved.step_time_s >= plain.step_time_s


@FEW
@given(layouts())
def test_longer_sequences_and_larger_micro_batches_never_need_less(question):
    model, layout, seq_len = question
    peak = run(model, layout, seq_len).memory.peak_bytes
    assert run(model, layout, 2 * seq_len).memory.peak_bytes >= peak
    wider = replace(layout, micro_batch_size=2 * layout.micro_batch_size)
    try:
        more = run(model, wider, seq_len, batch=64).memory.peak_bytes
    except SpecError:
        return
    assert more >= run(model, layout, seq_len, batch=32).memory.peak_bytes


@FEW
@given(layouts(), st.sampled_from(PARTS))
def test_every_part_is_what_its_explanation_says(question, part):
    model, layout, seq_len = question
    work = Workload(seq_len=seq_len, global_batch_size=32)
    node = explain(model, cluster(layout.num_devices), layout, work, f"memory.{part}")
    stages = project(model, cluster(layout.num_devices), layout, work).memory.stages
    fullest = max(stages, key=lambda stage: stage.peak_bytes)
    assert float(np.asarray(node.value)) == pytest.approx(getattr(fullest, f"{part}_bytes"), rel=1e-15)
