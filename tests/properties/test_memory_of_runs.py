"""Laws that the memory of any layout obeys: shards sum to the whole, recompute and offload never keep more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explained import check_explanation, each_once
from tests.small import asked, cluster, dense, moe

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.explain import Explainer, explain
from forescale.graph.counts import count_parameters
from forescale.graph.per_block import build_blocks
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.states import optimizer_element_bytes
from forescale.memory.timeline import block_loads, schedule_of, stage_loads, total_bytes
from forescale.project import project
from forescale.spec import Layout, Recompute, Workload
from forescale.spec.layout import Offload
from forescale.spec.workload import STORAGE_BYTES, Precision

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
    layout = Layout(
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
    kept = sum(stage.weights_bytes for stage in stages) * alone.dp_shard
    assert kept == pytest.approx(2.0 * count_parameters(model).total, rel=1e-9)


@st.composite
def sharded(draw):
    """Return a model without padding, and a layout that cuts it every way: tp, etp, ep, dp_shard, pp, vpp."""
    experts = draw(st.booleans())
    tp, etp, shard, cp = (draw(st.sampled_from((1, 2))) * draw(st.sampled_from((1, 2))) for _ in range(4))
    pp = draw(power)
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if (tp * cp * shard) % (n * etp) == 0] or [0]))
    etp, ep = (etp, ep) if experts and ep else (1, 1)
    model = replace(
        moe() if experts else dense(),
        vocab_size=2**15,
        tied_embeddings=draw(st.booleans()),
        num_mtp_layers=draw(st.sampled_from((0, 1, 2))) if experts else 0,
    )
    vpp = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    return model, Layout(tp=tp, etp=etp, ep=ep, dp_shard=shard, cp=cp, pp=pp, vpp=vpp, sp=tp > 1)


LOW_RANK = ("router", "down", "norm", "positions", "bias")
"""Words in the names of what tensor parallelism copies instead of cutting."""


def once_over_tp(model, layout):
    """Return elements of the non-expert and expert parameters, those that every tp rank copies counted tp times."""
    degrees, choices = split_layout(layout)
    blocks = build_blocks(
        model, ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0)
    )
    kinds = zip(model.layer_kinds, blocks.layers, strict=True)
    counts = {block.name: model.layers.count(kind) for kind, block in kinds}
    counts |= {"embedding": 1 + int(layout.pp > 1 and model.num_mtp_layers > 0), "mtp": model.num_mtp_layers}
    elements = {"dense": 0.0, "expert": 0.0}
    for block in blocks.all():
        for parameter in block.parameters:
            times = counts.get(block.name, 1)
            if parameter.name == "head.logits.weight" and model.tied_embeddings and layout.pp == 1:
                times = 0
            if (
                layout.tp > 1
                and parameter.group == "dense"
                and parameter.local_elements == parameter.elements
            ):
                assert any(word in parameter.name for word in LOW_RANK), parameter.name
                times *= layout.tp
            elements[parameter.group] += times * parameter.elements
    return elements


@settings(max_examples=30, deadline=None)
@given(sharded(), st.sampled_from((("weights", 3), ("gradients", 2), ("gradients", 3), ("optimizer", 1))))
def test_shards_of_all_ranks_are_the_whole(question, case):
    """Over tp, etp, ep, dp_shard, cp and pp alike: nothing lost, nothing twice but what is said to be copied.

    With multi-token prediction the last stage has an embedding of its own, as it has a head's where both are tied.
    """
    (model, layout), (name, zero) = question, case
    work = Workload(seq_len=1024, global_batch_size=32 * layout.dp)
    stages = project(model, cluster(layout.num_devices), replace(layout, zero=zero), work).memory.stages
    elements, precision = once_over_tp(model, layout), work.precision
    size = {
        "weights": STORAGE_BYTES[precision.parameters],
        "gradients": STORAGE_BYTES[precision.gradients],
        "optimizer": optimizer_element_bytes(precision),
    }[name]
    kept = sum(getattr(stage, f"{name}_bytes") for stage in stages) * layout.tp * layout.cp * layout.dp_shard
    assert kept == pytest.approx(size * sum(elements.values()), rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_mtp", [0, 1, 2])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_hold_the_model_and_its_copies(pp, num_mtp, tied):
    """Beyond the model: multi-token-prediction layers, their embedding on another stage, a tied matrix twice."""
    model = replace(moe(), num_mtp_layers=num_mtp, tied_embeddings=tied)
    counts, matrix = count_parameters(model), model.vocab_size * model.hidden_size
    stages = run(model, Layout(pp=pp, zero=0), 512).memory.stages
    copies = (pp > 1) * (int(num_mtp > 0) + int(tied))
    assert sum(stage.weights_bytes for stage in stages) == 2.0 * (counts.total + counts.mtp + copies * matrix)


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


@pytest.mark.parametrize("policy", RECOMPUTES)
@FEW
@given(layouts(), st.sampled_from((1, 2)))
def test_recompute_never_keeps_more_on_any_stage(policy, question, vpp):
    model, layout, seq_len = question
    work = Workload(seq_len=seq_len, global_batch_size=32)
    layout = replace(layout, vpp=vpp if layout.pp > 1 else 1)
    placement = schedule_of(layout, 32).placement
    plain, less = (
        stage_loads(model, replace(layout, recompute=recompute), work, placement)
        for recompute in (Recompute(), policy)
    )
    for before, after in zip(plain, less, strict=True):
        assert total_bytes(after.kept) <= total_bytes(before.kept) * (1 + 1e-12)
        assert after.between == before.between


EXPLAINED = (
    (dense(), Layout(tp=2, sp=False, pp=4, vpp=2, dp_shard=2)),
    (dense(), Layout(cp=4, cp_kind="ring", dp_shard=4, zero=3)),
    (dense(), Layout(pp=2, dp_replicate=2, dp_shard=2, zero=2, recompute=RECOMPUTES[3])),
    (dense(), Layout(tp=2, pp=4, schedule="zb_h1", recompute=RECOMPUTES[1])),
    (dense(), Layout(pp=2, dp_shard=4, zero=3, reshard="never")),
    (moe(), Layout(tp=2, ep=4, pp=2, dp_shard=4)),
    (moe(), Layout(tp=2, ep=2, etp=2, pp=2, vpp=2, dp_shard=2, zero=3, recompute=RECOMPUTES[2])),
    (moe(), Layout(pp=2, vpp=2, schedule="dualpipev", ep=2, dp_shard=2, recompute=RECOMPUTES[0])),
    (moe(), Layout(dp_shard=8, ep=4, offload=Offload(activation_layers=3, optimizer=0.5))),
    (load_model("mixtral-8x7b"), Layout(tp=2, ep=8, pp=4, dp_shard=4)),
    (load_model("deepseek-v3"), Layout(tp=2, ep=8, pp=4, dp_shard=4, recompute=RECOMPUTES[4])),
    (load_model("qwen3-next-80b-a3b"), Layout(tp=2, ep=8, pp=2, dp_shard=8, zero=1)),
    (load_model("nemotron-h-56b"), Layout(tp=4, pp=2, dp_shard=2, recompute=RECOMPUTES[0])),
)


@pytest.mark.parametrize(("model", "layout"), EXPLAINED)
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_every_part_of_every_stage_is_what_its_tensors_make(model, layout, micro_batches):
    """Sums are those of their parts, products of their factors, formulas of their inputs, down to the leaves."""
    batch = micro_batches * layout.dp * (2 * layout.pp if layout.pp > 1 else 1)
    work = Workload(seq_len=1024, global_batch_size=batch)
    machine = cluster(layout.num_devices)
    stages = project(model, machine, layout, work).memory.stages
    explained = Explainer.from_question(asked(model, machine, layout, work))
    for index, stage in enumerate(stages):
        for part in PARTS:
            node = explained.node(f"memory.{part}", stage=index)
            assert node.value == pytest.approx(getattr(stage, f"{part}_bytes"), rel=1e-15)
            assert check_explanation(node) or not node.value
        peak = explained.node("memory.peak", stage=index)
        assert check_explanation(peak) > 50
        assert {label for label, _ in peak.inputs} <= {f"{part}_bytes" for part in PARTS}


@pytest.mark.parametrize(("model", "layout"), [case for case in EXPLAINED if case[1].schedule is None])
def test_the_tensors_of_an_explanation_are_those_that_live_there(model, layout):
    """Named leaves of what a layer keeps are the tensors that the timeline moves, with the same bytes."""
    work = Workload(seq_len=1024, global_batch_size=4 * layout.dp * layout.pp)
    loads = block_loads(model, layout, work)
    kept = [{item.name: item.num_bytes for item in load.kept if item.num_bytes} for load in loads.layers]
    explained = Explainer.from_question(asked(model, cluster(layout.num_devices), layout, work))
    result = 0
    for node in each_once(explained.node("memory.activations", stage=0)):
        if node.name == "kept_bytes" and {label for label, _ in node.inputs} in map(set, kept):
            parts = {label: pytest.approx(part.value, rel=1e-15) for label, part in node.inputs}
            assert parts in kept
            result += 1
    assert result


@FEW
@given(layouts(), st.sampled_from(PARTS))
def test_every_part_is_what_its_explanation_says(question, part):
    model, layout, seq_len = question
    work = Workload(seq_len=seq_len, global_batch_size=32)
    node = explain(asked(model, cluster(layout.num_devices), layout, work), f"memory.{part}")
    stages = project(model, cluster(layout.num_devices), layout, work).memory.stages
    fullest = max(stages, key=lambda stage: stage.peak_bytes)
    assert float(np.asarray(node.value)) == pytest.approx(getattr(fullest, f"{part}_bytes"), rel=1e-15)


@FEW
@given(
    model=st.sampled_from((dense(16), moe(16))),
    tp=st.sampled_from((1, 2)),
    pp=st.sampled_from((1, 2, 4)),
    shard=st.sampled_from((2, 4, 16)),
    reshard=st.sampled_from(("default", "always", "never")),
)
def test_no_stage_of_zero_raises_memory_but_by_the_shards_beside_gathered_weights(
    model, tp, pp, shard, reshard
):
    layouts = [Layout(tp=tp, pp=pp, dp_shard=shard, zero=zero, reshard=reshard) for zero in (1, 2, 3)]
    stages = [run(model, layout, 1024, batch=64).memory.stages for layout in layouts]
    whole = reshard == "never" or (reshard == "default" and pp > 1)
    for first, second, third in zip(*stages, strict=True):
        assert second.allocated_bytes <= first.allocated_bytes * (1.0 + 1e-12)
        beside = third.weights_bytes if whole else 0.0
        assert third.allocated_bytes <= (second.allocated_bytes + beside) * (1.0 + 1e-12)
