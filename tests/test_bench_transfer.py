"""Every layout restored from what was measured of a few blocks, by one definition however it is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.bounded import every_bound
from tests.errors import raises
from tests.explained import check_explanation
from tests.small import cluster, dense, device, moe, workload

from forescale.bench_transfer import Bench, anchored
from forescale.cost.select import Costs
from forescale.cost.timings import BlockTiming, StepTiming
from forescale.errors import SpecError
from forescale.explain import explain
from forescale.io.bench import merged, read_bench, write_bench
from forescale.io.question import build_question
from forescale.memory.anchored import LayerMeasurement, RankPeak
from forescale.project import project
from forescale.question import Question
from forescale.search import search
from forescale.search.evaluate import score_layouts
from forescale.spec import Layout, Space

GIB = 2.0**30
PARTS = ("forward", "input_gradient", "weight_gradient")


def asked(model, devices=2, *, batch=8, **layout) -> Question:
    local = {"dp_shard": devices // (layout.get("tp", 1) * layout.get("pp", 1))} | layout
    return Question(
        model=model,
        cluster=cluster(devices),
        workload=workload(global_batch_size=batch),
        strategy=Layout(**local),
    )


def timings(*kinds: str, slow: float = 1.0) -> tuple[BlockTiming, ...]:
    return tuple(
        BlockTiming(kind=kind, part=part, seconds=slow * seconds)
        for kind, whole in zip(kinds, (4e-3, 2e-3, 1e-3, 3e-3), strict=False)
        for part, seconds in zip((*PARTS, "update"), (whole, 1.2 * whole, 0.9 * whole, whole), strict=True)
    )


DENSE = Bench(
    question=asked(dense(2), tp=2),
    source="dense.json",
    blocks=timings("attention+dense", "head", "embedding"),
    steps=(StepTiming(seconds=0.3, num_microbatches=8),),
)
MOE = Bench(
    question=asked(moe(2), 2, ep=2),
    source="moe.json",
    blocks=timings("mla+moe", "mla+dense", "head", slow=0.1),
    ranks=(RankPeak(peak_allocated_bytes=6 * GIB, peak_reserved_bytes=7 * GIB),),
    layers=(LayerMeasurement(kind="mla+moe", activation_bytes=0.4 * GIB),),
)
BENCHES = pytest.mark.parametrize("bench", [DENSE, MOE], ids=["dense", "moe"])


def target(bench: Bench, devices=8, **layout) -> Question:
    model = {DENSE: dense(8), MOE: moe(8)}[bench]
    return anchored(asked(model, devices, batch=32, **layout), [bench])


def rows(question: Question) -> dict[tuple[str, str], object]:
    costs = project(question).costs
    return {(row.block, row.part): row for row in costs.restored}


@BENCHES
def test_a_run_restored_to_itself_is_what_was_measured(bench):
    result = rows(anchored(bench.question, [bench]))
    assert {row.kind for row in result.values() if row.part} == {"measured"}
    for timing in bench.blocks:
        key = {"forward": "forward", "input_gradient": "backward_input", "weight_gradient": "backward_weight"}
        if timing.part in key and (row := result.get((timing.kind, key[timing.part]))):
            assert row.seconds <= timing.seconds * (1 + 1e-9)


def test_blocks_without_messages_take_exactly_what_they_took():
    bench = replace(DENSE, question=asked(dense(2), 1), steps=())
    stage = project(anchored(bench.question, [bench])).stage_times[0]
    of = {(block.kind, block.part): block.seconds for block in bench.blocks}
    forward = 2 * of["attention+dense", "forward"] + of["head", "forward"] + of["embedding", "forward"]
    assert stage.forward_s == pytest.approx(forward)


def test_both_gradients_take_what_backward_took():
    whole = BlockTiming(kind="attention+dense", part="backward", seconds=7e-3)
    bench = replace(DENSE, question=asked(dense(2), 1), steps=(), blocks=(*timings("attention+dense"), whole))
    result = rows(anchored(bench.question, [bench]))
    inner, weight = (result["attention+dense", f"backward_{part}"].seconds for part in ("input", "weight"))
    assert inner + weight == pytest.approx(7e-3)
    assert inner / weight == pytest.approx(1.2 / 0.9)


def test_a_whole_step_is_restored_to_itself():
    assert project(anchored(DENSE.question, [DENSE])).step_time_s == pytest.approx(0.3, rel=1e-9)
    more = replace(DENSE.question, workload=workload(global_batch_size=16))
    without = project(anchored(more, [replace(DENSE, steps=())])).step_time_s
    assert project(anchored(more, [DENSE])).step_time_s / without == pytest.approx(
        0.3 / project(anchored(DENSE.question, [replace(DENSE, steps=())])).step_time_s
    )


def test_compute_elsewhere_is_measured_times_the_ratio_of_the_models():
    alone = project(asked(dense(8), 8, batch=32, tp=4)).costs
    assert alone.restored == ()
    for row in rows(target(DENSE, tp=4)).values():
        assert row.seconds == pytest.approx(row.measured_s * row.ratio)
        if row.block == "attention+dense":
            assert (row.kind, row.rule) == ("restored", "model")
            assert 0.5 < row.ratio < 1.0


def test_primus_restores_in_proportion_to_tensor_parallelism():
    question = replace(asked(dense(8), 8, batch=32, tp=4), costs=Costs(rule="primus"))
    result = rows(anchored(question, [DENSE]))
    assert [row.ratio for (_, part), row in result.items() if part] == pytest.approx([0.5] * 8)
    experts = replace(asked(moe(8), 8, batch=32, tp=2, ep=4), costs=Costs(rule="primus"))
    assert 0.5 < rows(anchored(experts, [MOE]))["mla+moe", "forward"].ratio < 1.0
    itself = anchored(replace(DENSE.question, costs=Costs(rule="primus")), [DENSE])
    assert project(itself).step_time_s == pytest.approx(0.3, rel=1e-9)


def test_what_was_not_measured_is_modelled():
    bench = replace(DENSE, blocks=timings("attention+dense"), steps=())
    question = anchored(asked(dense(8), 8, batch=32), [bench])
    result = project(question)
    assert ("embedding", "forward") not in rows(question)
    assert 0.0 < result.costs.time_sources["restored"] < 1.0
    (text,) = (note.text for note in result.notes if note.topic == "measured")
    assert "restored from measured blocks" in text
    assert "by the roofline model: head" in text


def test_losses_of_the_host_count_once():
    bench = replace(DENSE, question=asked(dense(2), 1), steps=())
    slow = replace(bench, blocks=timings("attention+dense", "head", "embedding", slow=10.0))
    one, other = (project(anchored(asked(dense(8), 1), [item])).time_s["overhead"] for item in (bench, slow))
    assert one == other == 0.0
    assert project(asked(dense(8), 1)).time_s["overhead"] > 0.0


@BENCHES
def test_one_layout_is_what_it_is_among_many(bench):
    question = target(bench, tp=2, zero=1)
    layouts = [
        replace(question.layout, tp=tp, pp=pp, dp_shard=8 // tp // pp, micro_batch_size=size)
        for tp in (1, 2, 4) for pp in (1, 2) for size in (1, 2)
    ]  # fmt: skip
    many = score_layouts(question, layouts)
    projects = [project(question.with_layout(layout)) for layout in layouts]
    assert many.step_time.tolist() == [one.step_time_s for one in projects]
    assert many.peak.tolist() == [one.memory.peak_bytes for one in projects]


@BENCHES
@pytest.mark.parametrize("slow", [0.2, 5.0])
def test_bounds_stay_below_what_they_bound(bench, slow):
    steps = tuple(replace(step, seconds=slow * step.seconds) for step in bench.steps)
    space = Space(cp=(1,), vpp=(1,), cp_kind=("ring",), micro_batch_size=(1, 2))
    question = replace(target(bench), strategy=None, space=space)
    question = anchored(replace(question, costs=question.costs.simulated), [replace(bench, steps=steps)])
    for name, ratios in every_bound(question, space).ratios().items():
        finite = ratios[np.isfinite(ratios)]
        assert finite.size
        assert finite.max() <= 1.0, name


def test_a_search_ranks_what_is_restored_and_within_what_was_measured():
    question = replace(target(DENSE), strategy=None)
    question = anchored(replace(question, costs=question.costs.simulated), [DENSE])
    assert question.space.cp == (1,)
    best = search(question, top=1).best[0]
    assert best.step_time_s == project(question.with_layout(best.strategy)).step_time_s
    assert best.costs.restored


def test_an_explanation_says_what_was_measured_and_where():
    question = target(DENSE, devices=1)
    root = explain(question, "step_time")
    assert root.value == project(question).step_time_s
    assert check_explanation(root) > 100
    assert "dense.json" in root.sources
    assert any(node.text.startswith("Modelled here") for node in root.walk())


def test_the_last_of_several_runs_counts():
    slow = replace(DENSE, source="slow.json", blocks=timings("attention+dense", slow=2.0), steps=())
    question = asked(dense(8), 8, batch=32, tp=2)
    once, twice = (rows(anchored(question, benches)) for benches in ([DENSE], [DENSE, slow]))
    assert twice["attention+dense", "forward"].source == "slow.json"
    assert twice["attention+dense", "forward"].seconds > once["attention+dense", "forward"].seconds
    assert twice["head", "forward"] == once["head", "forward"]


@pytest.mark.parametrize(
    ("question", "bench", "text"),
    [
        (asked(dense(8), 8, cp=4), DENSE, "other_run dense.json"),
        (
            replace(asked(dense(8), 8), strategy=None, space=Space(cp=(2, 4))),
            DENSE,
            "other_run dense.json",
        ),
        (
            asked(dense(8), 8),
            replace(DENSE, blocks=timings("mla")),
            "unknown_name kind of layer of small-dense",
        ),
        (
            asked(dense(8), 8),
            replace(DENSE, blocks=timings("attention+dense", slow=1e-3)),
            "implausible forward of attention+dense",
        ),
    ],
)
def test_what_cannot_be_restored_is_refused(question, bench, text):
    with raises(SpecError, text):
        anchored(question, [bench])


def test_memory_and_its_upper_end_are_ranked_alike():
    question = replace(target(MOE), strategy=None, safe=True, space=Space(cp=(1,)))
    question = replace(question, cluster=replace(question.cluster, device=device(hbm_gb=20.0)))
    best = search(question, top=1).best[0]
    assert best.memory.peak_high_bytes <= 20e9
    above = best.memory.peak_high_bytes - best.memory.peak_bytes
    fullest = max(best.memory.stages, key=lambda stage: stage.peak_bytes)
    assert above == pytest.approx(0.05 * fullest.fragmentation_bytes)


def test_a_real_run_restored_to_itself():
    file = Path(__file__).parent / "data" / "bench" / "cpu-dense.json"
    artifact = read_bench(file)
    question = build_question({**artifact.config, "cost": {"benchmarks": [str(file)]}}, where="test")
    result = project(question)
    (step,), (rank,) = artifact.steps, artifact.ranks
    assert result.step_time_s == pytest.approx(step.seconds, rel=0.01)
    assert result.memory.peak_bytes == pytest.approx(rank.peak_device_bytes, rel=0.01)
    forward = next(row for row in artifact.blocks if (row.kind, row.part) == ("attention+dense", "forward"))
    assert rows(question)["attention+dense", "forward"].seconds == pytest.approx(forward.seconds)
    deeper = replace(question, model=replace(question.model, layers=question.model.layers * 2))
    assert 1.5 < project(deeper).step_time_s / result.step_time_s < 2.0


def test_several_files_of_one_run_are_read_as_the_one_they_merge_into(tmp_path):
    artifact = read_bench(Path(__file__).parent / "data" / "bench" / "cpu-dense.json")
    slow = replace(
        artifact, blocks=tuple(replace(row, seconds=1.4 * row.seconds, p90_s=None) for row in artifact.blocks)
    )
    names = [str(tmp_path / name) for name in ("fast.json", "slow.json", "both.json")]
    for name, item in zip(names, (artifact, slow, merged({"fast": artifact, "slow": slow})), strict=True):
        write_bench(item, name)
    config = {**artifact.config, "strategy": {**artifact.config["strategy"], "micro_batch_size": 1}}
    several, one, alone = (
        project(build_question({**config, "cost": {"benchmarks": files}}, where="test"))
        for files in (names[:2], names[2:], names[:1])
    )
    assert several.step_time_s == one.step_time_s
    assert several.memory == one.memory
    assert rows_of(several)["attention+dense", "forward"] == pytest.approx(
        1.2 * rows_of(alone)["attention+dense", "forward"]
    )


def rows_of(result):
    return {(row.block, row.part): row.seconds for row in result.costs.restored}
