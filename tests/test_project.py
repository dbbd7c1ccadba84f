from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

import forescale as fs
from forescale.catalogue.models import load_model
from forescale.cost.measured import Measurements
from forescale.cost.select import Costs
from forescale.cost.timings import MeasuredCollective
from forescale.errors import SpecError
from forescale.face import ask
from forescale.graph.layer import layer_block
from forescale.graph.ops import AttentionCore
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.project import project
from forescale.spec import Layout, Recompute, Workload
from forescale.spec.context import near_context
from forescale.spec.layout import Kernels, Routing
from forescale.spec.workload import Precision

LAYOUTS = [
    Layout(dp_shard=16),
    Layout(tp=4, pp=2, dp_shard=2, micro_batch_size=2),
    Layout(tp=2, sp=False, pp=4, vpp=2, dp_shard=2),
    Layout(cp=4, cp_kind="ring", dp_shard=4, zero=3),
    Layout(cp=2, cp_kind="ulysses", dp_replicate=2, dp_shard=4, zero=2),
    Layout(tp=2, cp=2, tp_kind="summa", pp=2, dp_shard=2, micro_batch_size=2),
    Layout(cp=4, cp_kind="hierarchical", cp_inner=2, dp_shard=4),
    Layout(cp=8, cp_kind="hierarchical", dp_shard=2),
]


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("model", [dense(), moe()], ids=lambda m: m.name)
def test_parts_of_a_step_and_of_memory_add_up(model, strategy):
    if model.is_moe and strategy.tp > 1:
        strategy = replace(strategy, sp=True, tp_kind="1d")
    result = project(model, cluster(16), strategy, workload())
    assert sum(result.time_s.values()) == pytest.approx(result.step_time_s, rel=1e-12)
    for stage in result.memory.stages:
        parts = (
            stage.weights_bytes
            + stage.gradients_bytes
            + stage.optimizer_bytes
            + stage.activations_bytes
            + stage.buffers_bytes
            + stage.overhead_bytes
        )
        assert parts == pytest.approx(stage.peak_bytes, rel=1e-12)
    assert result.memory.peak_bytes == max(stage.peak_bytes for stage in result.memory.stages)
    assert 0 < result.mfu <= result.hfu <= 1
    assert result.memory.peak_low_bytes < result.memory.peak_bytes < result.memory.peak_high_bytes
    assert result.step_time.low < result.step_time.expected < result.step_time.high
    assert sum(stage.num_layers for stage in result.memory.stages) == model.num_layers


@pytest.mark.parametrize(
    ("model", "strategy"), [(dense(), Layout(dp_shard=16)), (moe(), Layout(ep=4, dp_shard=16))]
)
def test_numbers_are_pythons(model, strategy):
    """They print as numbers, also in a list."""
    result = project(model, cluster(16), strategy, workload())
    assert not [item for item in _values(asdict(result)) if isinstance(item, np.generic)]


def _values(value):
    if isinstance(value, dict):
        value = tuple(value.values())
    return [leaf for item in value for leaf in _values(item)] if isinstance(value, (list, tuple)) else [value]


def test_model_flops_do_not_depend_on_the_layout():
    flops = {project(dense(), cluster(16), layout, workload()).model_flops_per_step for layout in LAYOUTS}
    assert len(flops) == 1


def test_equal_stages_have_the_textbook_bubble():
    model = replace(dense(8), vocab_size=128)
    result = project(model, cluster(4), Layout(pp=4, graphs="full"), workload(global_batch_size=16))
    slowest = max(stage.forward_s + stage.backward_s for stage in result.stage_times)
    assert result.time_s["bubble"] == pytest.approx(3 * slowest, rel=0.1)
    interleaved = project(
        model, cluster(4), Layout(pp=4, vpp=2, graphs="full"), workload(global_batch_size=16)
    )
    forward_s = max(stage.forward_s + stage.backward_s for stage in interleaved.stage_times)
    assert forward_s == pytest.approx(slowest, rel=1e-9)  # a graph of the whole step has no engine
    stepped = [
        project(model, cluster(4), Layout(pp=4, vpp=vpp), workload(global_batch_size=16)).stage_times
        for vpp in (1, 2)
    ]
    once, twice = (max(stage.forward_s + stage.backward_s for stage in stages) for stages in stepped)
    assert twice > once  # without one it steps twice as often
    assert interleaved.time_s["bubble"] == pytest.approx(3 * forward_s / 2, rel=0.1)


def test_full_recompute_keeps_less_and_takes_longer():
    plain = project(dense(), cluster(8), Layout(dp_shard=8, micro_batch_size=4), workload())
    full = Layout(dp_shard=8, micro_batch_size=4, recompute=Recompute(granularity="full"))
    replayed = project(dense(), cluster(8), full, workload())
    half = replace(full, recompute=Recompute(granularity="full", num_layers=4))
    between = project(dense(), cluster(8), half, workload())
    assert plain.step_time_s < between.step_time_s < replayed.step_time_s
    peaks = [result.memory.stages[0].activations_bytes for result in (plain, between, replayed)]
    assert peaks[0] > peaks[1] > peaks[2]
    weights = 8 * (1024 * (16 + 2 * 4) * 64 + 1024 * 1024 + 3 * 1024 * 4096) + 1024 * 32000
    masked, full = (
        2 * weights + 8 * 4 * 16 * 64 * keys for keys in (2049 / 2, 2048)
    )  # of a token, 1 to 2,048 keys
    assert plain.model_flops_per_step == 3 * 64 * 2048 * masked
    assert plain.mfu_full_attention / plain.mfu == pytest.approx(full / masked)
    assert replayed.hfu > plain.hfu * plain.step_time_s / replayed.step_time_s


def test_stages_of_zero_shard_what_they_say():
    by_stage = [
        project(dense(), cluster(8), Layout(dp_shard=8, zero=zero), workload()).memory.stages[0]
        for zero in range(4)
    ]
    full, first, second, third = by_stage
    assert first.optimizer_bytes == pytest.approx(full.optimizer_bytes / 8)
    assert first.gradients_bytes == full.gradients_bytes
    assert second.gradients_bytes == pytest.approx(full.gradients_bytes / 8)
    assert second.weights_bytes == full.weights_bytes
    assert third.weights_bytes == pytest.approx(full.weights_bytes / 8)
    assert third.buffers_bytes > 0


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Layout(tp=3), "illegal_layout"),
        (Layout(pp=16), "illegal_layout layers over pp × vpp"),
        (Layout(dp_shard=2), "illegal_layout devices"),
        (Layout(ep=2, dp_shard=16), "illegal_layout ep without experts"),
        (
            Layout(pp=4, vpp=2, dp_shard=4, micro_batch_size=16),
            "illegal_layout interleaving needs m % pp = 0",
        ),
        (Layout(dp_shard=16, micro_batch_size=3), "illegal_layout global batch"),
    ],
)
def test_an_illegal_layout_is_refused_in_words(strategy, words):
    with raises(SpecError, words):
        project(dense(), cluster(16), strategy, workload())


def test_training_days_follow_from_tokens():
    work = Workload(seq_len=2048, global_batch_size=64, tokens=1e12)
    result = project(dense(), cluster(8), Layout(dp_shard=8), work)
    steps = 1e12 / (2048 * 64)
    assert result.training_days == pytest.approx(steps * result.step_time_s / 86400)


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_the_simulated_schedule_agrees_with_its_closed_form(name, vpp):
    """Same bubble where stages are nearly equal, same memory, though one is simulated action by action."""
    layout, model = Layout(pp=4, vpp=vpp, graphs="full"), replace(dense(), vocab_size=128)
    closed = project(model, cluster(4), layout, workload(global_batch_size=16))
    simulated = project(model, cluster(4), replace(layout, schedule=name), workload(global_batch_size=16))
    assert simulated.time_s["bubble"] == pytest.approx(closed.time_s["bubble"], rel=0.1)
    for one, other in zip(simulated.memory.stages, closed.memory.stages, strict=True):
        assert one.activations_bytes == pytest.approx(other.activations_bytes, rel=1e-9)
    assert sum(simulated.time_s.values()) == pytest.approx(simulated.step_time_s, rel=1e-12)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zbv", "seq1f1b"])
@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "moe"])
def test_one_stage_runs_no_schedule(model, name):
    """There is nothing to split or to fill: gradients of weights still hide the messages of tensor parallelism."""
    layout, work = Layout(tp=4, dp_shard=2, graphs="full"), workload(global_batch_size=16)
    alone, named = (
        project(model, cluster(8), item, work) for item in (layout, replace(layout, schedule=name))
    )
    assert named.time_s == alone.time_s
    assert named.memory == alone.memory
    assert [note.text for note in named.notes if note not in alone.notes] == [
        f"pp is 1, so there is no pipeline: schedule {name} changes nothing"
    ]


def test_a_named_schedule_takes_explicit_layers():
    """One layer fewer at both ends, as Zero Bubble's runs have it, is what each rank then spends and holds."""
    model, work = dense(14), workload(global_batch_size=16)

    def run(**layout):
        return project(model, cluster(4), Layout(pp=4, graphs="full", **layout), work)

    even = run(schedule="zb-h1", stage_layers=(4, 4, 3, 3))
    fewer = run(schedule="zb-h1", stage_layers=(3, 4, 4, 3))
    assert [time.forward_s for time in even.stage_times] != [time.forward_s for time in fewer.stage_times]
    assert run(schedule="zb-h1").step_time_s == even.step_time_s  # that is how they are spread by default
    closed = run(stage_layers=(3, 4, 4, 3))
    simulated = run(schedule="1f1b", stage_layers=(3, 4, 4, 3))
    for one, other in zip(simulated.stage_times, closed.stage_times, strict=True):
        assert one.forward_s == pytest.approx(other.forward_s, rel=1e-12)
    assert [s.weights_bytes for s in simulated.memory.stages] == [
        s.weights_bytes for s in closed.memory.stages
    ]
    ends = run(schedule="zbv", vpp=2, stage_layers=(1, 2, 2, 2, 2, 2, 2, 1))
    middle = run(schedule="zbv", vpp=2, stage_layers=(2, 2, 2, 1, 1, 2, 2, 2))
    assert ends.step_time_s < middle.step_time_s  # embedding and head stand on rank 0
    assert ends.memory.stages[0].weights_bytes < middle.memory.stages[0].weights_bytes


def test_pieces_of_sequences_fill_the_pipeline_sooner():
    def run(name, pieces):
        layout = Layout(pp=4, schedule=name, sequence_pieces=pieces, graphs="full")
        return project(dense(), cluster(4), layout, workload(global_batch_size=16))

    whole, one, two, four = (
        run(*item) for item in (("1f1b", 2), ("seq1f1b", 1), ("seq1f1b", 2), ("seq1f1b", 4))
    )
    assert one.step_time_s == whole.step_time_s
    assert one.memory.peak_bytes == whole.memory.peak_bytes
    # bubble (p-1)(tf + tb)/k of equal pieces, a little less as the first has the least attention
    assert 0.85 * whole.time_s["bubble"] / 2 <= two.time_s["bubble"] <= whole.time_s["bubble"] / 2
    assert four.time_s["bubble"] < two.time_s["bubble"] < whole.time_s["bubble"]
    first = [item.memory.stages[0].activations_bytes for item in (whole, two, four)]
    assert first == sorted(first, reverse=True)


def test_attention_that_is_not_causal_has_no_pieces():
    model = dense()
    kind = model.layers[0]
    both = replace(model, layers=(replace(kind, attention=replace(kind.attention, causal=False)),) * 8)
    with raises(SpecError, "illegal_layout pieces of causal sequences"):
        project(both, cluster(4), Layout(pp=4, schedule="seq1f1b"), workload(global_batch_size=16))


def test_schedules_trade_bubble_for_memory():
    def run(name, vpp=1):
        return project(
            dense(), cluster(4), Layout(pp=4, vpp=vpp, schedule=name), workload(global_batch_size=16)
        )

    plain, filled, wave, lean = run("1f1b"), run("zb-h1"), run("zbv", 2), run("v-min", 2)
    assert wave.time_s["bubble"] < filled.time_s["bubble"] < plain.time_s["bubble"]
    assert lean.memory.peak_bytes < wave.memory.peak_bytes
    assert wave.memory.stages[0].weights_bytes > plain.memory.stages[0].weights_bytes  # both ends on rank 0


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Layout(pp=4, schedule="zbw"), "unknown_name schedule"),
        (Layout(dp_shard=4, schedule="zbw"), "unknown_name schedule"),
        (Layout(pp=4, vpp=1, schedule="zbv"), "illegal_layout schedule"),
        (Layout(pp=4, schedule="seq1f1b", sequence_pieces=3), "illegal_layout pieces of sequences"),
        (Layout(pp=4, schedule="zb-h1", stage_layers=(2, 2, 2, 1)), "add up to 7"),
        (Layout(pp=4, vpp=2, schedule="zbv", stage_layers=(4, 4)), "4 counts, or 8"),
    ],
)
def test_a_schedule_that_cannot_be_projected_is_refused_in_words(strategy, words):
    with raises(SpecError, words):
        project(dense(), cluster(4), strategy, workload(global_batch_size=16))


def test_two_copies_of_the_parameters_cost_their_states_not_their_work():
    def run(name):
        return project(dense(), cluster(4), Layout(pp=4, schedule=name), workload(global_batch_size=16))

    plain, double = run("zb-h1"), run("dualpipe")
    weights_byteses = [
        sum(stage.weights_bytes for stage in result.memory.stages) for result in (plain, double)
    ]
    assert weights_byteses[1] == pytest.approx(2 * weights_byteses[0])
    work = [sum(result.time_s[part] for part in ("attention", "ffn", "norm")) for result in (plain, double)]
    assert work[1] == pytest.approx(work[0])
    assert double.time_s["data_comm"] > 0.0


def test_exchanging_inside_a_node_and_passing_between_nodes_beats_either_alone():
    work = replace(workload(), seq_len=65536, global_batch_size=16)

    def context(kind, inner=8):
        layout = Layout(cp=16, cp_kind=kind, cp_inner=inner)
        return project(dense(), cluster(16), layout, work).time_s["context_comm"]

    assert context("hierarchical") < context("ulysses")
    assert context("hierarchical") < context("all_gather")


def test_heads_are_exchanged_among_those_that_share_a_node_unless_said():
    work = replace(workload(), seq_len=65536, global_batch_size=16)
    for tp, inner in ((1, 8), (2, 4), (4, 2)):
        layout = Layout(tp=tp, cp=16 // tp, cp_kind="hierarchical")
        local = project(dense(), cluster(16), layout, work)
        assert local.strategy.cp_inner == inner
        message = project(dense(), cluster(16), replace(layout, cp_inner=inner), work)
        assert local.step_time_s == message.step_time_s
    assert near_context(cp=12.0, tp=1.0, domain=8.0) == 6.0
    assert near_context(cp=np.array([2.0, 32.0]), tp=np.array([8.0, 4.0]), domain=72.0).tolist() == [
        2.0,
        16.0,
    ]


def test_whole_runs_of_a_causal_sequence_wait_for_the_last():
    work = replace(workload(), seq_len=65536, global_batch_size=16)
    for kind, ranks in (("ring", 8.0), ("all_gather", 8.0), ("hierarchical", 2.0), ("ulysses", 1.0)):
        zigzag = Layout(cp=8, cp_kind=kind, cp_inner=4, dp_shard=2)
        runs = replace(zigzag, cp_balanced=False)
        mean, last = (core_of(layout, work) for layout in (zigzag, runs))
        assert last.pairs / mean.pairs == pytest.approx(2.0 - 1.0 / ranks, rel=1e-4)
        assert last.flops == pytest.approx(mean.flops)
        times = [project(dense(), cluster(16), layout, work) for layout in (zigzag, runs)]
        assert (times[1].step_time_s > times[0].step_time_s) == (ranks > 1.0)
        assert times[1].hfu < times[0].hfu or ranks == 1.0


def core_of(strategy, work):
    degrees, choices = split_layout(strategy)
    layout = ShardingRules(
        degrees=degrees, choices=choices, precision=work.precision, seq_len=float(work.seq_len)
    )
    operators = layer_block(dense(), dense().layer_kinds[0], layout).operators
    return next(
        item for operator in operators for item in operator.forward if isinstance(item, AttentionCore)
    )


def test_groups_of_context_parallel_ranks_are_whole():
    with raises(SpecError, "illegal_layout heads over tp × cp, cp_inner divides cp"):
        project(
            dense(), cluster(16), Layout(cp=4, cp_kind="hierarchical", cp_inner=3, dp_shard=4), workload()
        )
    project(dense(), cluster(16), Layout(cp=4, cp_inner=3, dp_shard=4), workload())


def test_weights_gathered_one_by_one_take_the_room_of_the_largest():
    """Two copies in 2 bytes and its gradient, which is reduced as it is: of one weight; or at the loss both ends and a layer."""
    model, layout = dense(), Layout(dp_shard=8, zero=3)
    weights = replace(layout, kernels=Kernels(gathers_each_weight=True, gradient_sum="after_product"))
    blocks = replace(layout, kernels=Kernels(gradient_sum="after_product"))
    by_weight, by_block = (
        project(model, cluster(8), item, workload()).memory.stages[0].buffers_bytes
        for item in (weights, blocks)
    )
    vocabulary = 32000 * 1024
    layer = 1024 * (16 + 2 * 4) * 64 + 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    standing = by_weight - vocabulary * (2 + 2)
    assert by_block == standing + 2 * (2 * vocabulary + 1024) + 2 * layer


def test_a_raised_clock_raises_the_peak_that_nothing_exceeds():
    device = cluster(8).device
    fast = Costs(compute="tile", clock_hz=6.0 * device.clock_hz)
    model = replace(dense(), hidden_size=16384)
    layout = Layout(dp_shard=8, micro_batch_size=4)
    quick = project(model, cluster(8, hbm_gb=8000.0), layout, workload(), costs=fast)
    plain = project(model, cluster(8, hbm_gb=8000.0), layout, workload(), costs=Costs(compute="tile"))
    assert plain.mfu < 1.0 < quick.mfu <= 6.0


def test_routing_of_a_model_without_experts_is_said_to_change_nothing():
    layout = Layout(dp_shard=16)
    uneven = replace(layout, routing=Routing(imbalance=2.0))
    plain, noted = (project(dense(), cluster(16), item, workload()) for item in (layout, uneven))
    assert plain.step_time_s == noted.step_time_s
    assert [note.topic for note in plain.notes if note.topic == "experts"] == []
    assert "no experts" in next(note.text for note in noted.notes if note.topic == "experts")


def test_block_scales_need_a_device_that_has_them():
    narrow = replace(workload(), precision=Precision(compute="mxfp8"))
    with raises(SpecError, "unsupported_by device test-device"):
        project(dense(), cluster(16), Layout(dp_shard=16), narrow)


@pytest.mark.parametrize(("compute", "recipe"), [("fp8", "mxfp8"), ("mxfp8", "delayed")])
def test_recipes_of_another_type_are_refused(compute, recipe):
    with pytest.raises(SpecError, match="compute type"):
        Precision(compute=compute, recipe=recipe)


def test_an_imbalance_that_cannot_be_is_the_largest_that_can():
    layout = Layout(ep=8, dp_shard=16)
    most, beyond = (
        project(moe(), cluster(16), replace(layout, routing=Routing(imbalance=item)), workload())
        for item in (4.0, 9.0)
    )
    assert most.step_time_s == beyond.step_time_s
    assert [note.topic for note in most.notes if note.topic == "experts"] == []
    assert "4 was used" in next(note.text for note in beyond.notes if note.topic == "experts")


def test_timed_messages_say_what_they_cover_and_what_not():
    rows = (
        MeasuredCollective(kind="reduce_scatter", num_bytes=1e6, num_ranks=16, ranks_per_node=8, seconds=1.0),
        MeasuredCollective(
            kind="reduce_scatter", num_bytes=1e12, num_ranks=16, ranks_per_node=8, seconds=1.0
        ),
    )
    costs = Costs(measurements=Measurements(source="log.txt", collectives=rows))
    two, four = (
        next(
            note.text
            for note in project(dense(), cluster(n), Layout(dp_shard=n), workload(), costs=costs).notes
            if note.topic == "measured"
        )
        for n in (16, 32)
    )
    assert "looked up: reduce_scatter over dp_cp;" in two
    assert "looked up: nothing of this layout" in four


def test_ranks_above_the_key_value_heads_are_noted_with_what_they_copy():
    """Llama-3-8B has 8 key/value heads of 128: with tp 16, 2 · 4096 · 128 / 2 parameters more per layer and device."""
    model = load_model("llama-3-8b")
    texts = {
        tp: [
            note.text
            for note in project(model, cluster(16), Layout(tp=tp, dp_shard=16 // tp), workload()).notes
            if note.topic == "attention"
        ]
        for tp in (8, 16)
    }
    assert texts[8] == []
    assert len(texts[16]) == 1 and "524,288 parameters" in texts[16][0]


@pytest.mark.parametrize(
    ("flash", "modules", "count"), [(True, "core_attn", 1), (True, "mlp", 0), (False, "core_attn", 0)]
)
def test_selective_recompute_under_flash_attention_is_noted(flash, modules, count):
    layout = Layout(recompute=Recompute(granularity="selective", modules=(modules,)), flash_attention=flash)
    notes = project(dense(), cluster(1), layout, workload()).notes
    assert len([note for note in notes if note.topic == "recompute"]) == count


def test_a_step_that_waits_for_the_host_says_so():
    small = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50304, "block_size": 1024}
    asked = {"cluster": "a100-sxm-80gb", "devices": 8, "global_batch_size": 512, "framework": "megatron-core"}
    topics = {note.topic for note in fs.project(small, **asked).notes}
    assert "host" in topics
    filled = fs.project(small, **asked, micro_batch_size=32)
    assert filled.time_s["overhead"] < 0.3 * filled.step_time_s
    assert "host" not in {note.topic for note in filled.notes}


@pytest.mark.usefixtures("usual_frameworks")
def test_the_framework_whose_defaults_apply_is_in_the_result():
    words = {"devices": 8, "seq_len": 2048, "global_batch_size": 64}
    assumed, named = (
        project(ask("llama-3.1-8b", "h100-sxm", **words, **more))
        for more in ({}, {"framework": "torchtitan"})
    )
    assert (assumed.framework_assumed, named.framework_assumed) == (True, False)
    assert (
        assumed.framework is not None and named.framework == named.to_json()["framework"] == "torchtitan@0.3"
    )
    assert project(ask("llama-3.1-8b", "h100-sxm", framework="none", **words)).framework is None
