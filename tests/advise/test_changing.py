"""What makes a layout fit: exact, legal for its framework, and the cheapest single change first."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from tests.small import dense

from forescale.advise import fit
from forescale.advise.changes import changed, changes
from forescale.advise.changing import IN_EVERY_TRAINER, _pairs, _ranked, _tried
from forescale.catalogue.frameworks import load_framework
from forescale.export import is_writable
from forescale.face import ask
from forescale.project import project
from forescale.search.evaluate import score_layouts
from forescale.spec import Recompute
from forescale.units import GIB

LARGE = {
    "dense": ask("llama-3.1-8b", "h100-sxm", devices=16, tp=2, micro_batch_size=4, seq_len=8192, global_batch_size=64),
    "experts": ask("qwen3-30b-a3b", "h100-sxm", devices=16, ep=8, seq_len=4096, global_batch_size=64, micro_batch_size=2,
                   framework="megatron"),
    "by hand": ask("llama-3.1-8b", "h100-sxm", devices=8, pp=4, stage_layers=(7, 8, 8, 9), seq_len=8192,
                   global_batch_size=32, micro_batch_size=4),
    "zero 3": ask("llama-3.1-8b", "h100-sxm", devices=8, zero=3, micro_batch_size=4, seq_len=8192, global_batch_size=64,
                  framework="torchtitan",
                  recompute={"granularity": "policy", "policy": "torch_per_op_compiled"}),
}  # fmt: skip


def layouts_of(question):
    made = ((change, changed(question, (change,))) for change in changes(question))
    return {layout: item for item, layout in made if layout is not None}


@pytest.mark.parametrize("name", LARGE)
def test_layouts_are_scored_as_they_are_projected(name):
    question = LARGE[name]
    layouts = list(layouts_of(question))
    expected, upper = (score_layouts(replace(question, safe=safe), layouts) for safe in (False, True))
    projects = [project(question.with_layout(layout)) for layout in layouts]
    np.testing.assert_allclose(expected.step_time, [one.step_time_s for one in projects], rtol=1e-12)
    np.testing.assert_allclose(expected.peak, [one.memory.peak_bytes for one in projects], rtol=1e-12)
    np.testing.assert_allclose(upper.peak, [one.memory.peak_high_bytes for one in projects], rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-2-7b", {"framework": "fsdp", "zero": 3}),
        ("llama-2-7b", {"framework": "transformers", "zero": 3}),
        ("llama-3.1-8b", {"framework": "megatron", "tp": 2, "precision": {
            "compute": "fp8", "recipe": "delayed", "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1}}),
    ],
)  # fmt: skip
def test_layouts_with_recorded_blocks_or_layers_in_16_bits_are_ranked_as_they_are_projected(model, asked):
    question = ask(
        model, "h100-sxm", devices=4, seq_len=2048, micro_batch_size=1, global_batch_size=8, **asked
    )
    tried = _tried(question, [(change,) for change in changes(question)], bool)
    assert len(tried) > 5
    projects = [project(question.with_layout(item.layout)) for item in tried]
    np.testing.assert_allclose(
        [item.peak for item in tried], [one.memory.peak_bytes for one in projects], rtol=1e-9
    )
    np.testing.assert_allclose(
        [item.step_time for item in tried], [one.step_time_s for one in projects], rtol=1e-9
    )


def test_what_runs_out_of_memory_and_frees_next_to_nothing_is_not_listed():
    question = ask("llama-7b", "a100-sxm-80gb", devices=1, seq_len=512, micro_batch_size=4, global_batch_size=128,
                   framework="transformers")  # fmt: skip
    texts = {fix.text for fix in fit(question, pairs=False).fixes}
    micro = project(question.with_layout(replace(question.strategy, micro_batch_size=2)))
    assert project(question).memory.peak_bytes > micro.memory.peak_bytes
    assert "micro_batch_size 2" not in texts
    assert "allocator expandable_segments" not in texts


def test_where_a_layout_does_not_fit_changes_of_the_run_are_named_too():
    question = ask("llama-3-8b", "a100-sxm-80gb", devices=1, seq_len=128, micro_batch_size=1, global_batch_size=2,
                   zero=2, framework="deepspeed-zero")  # fmt: skip
    result = fit(question, pairs=False)
    assert result.first.changes[0].kind == "optimizer_offload"
    assert result.first.lost_s > 0.5 * result.now.step_time_s
    assert result.adapters.question.workload.trainable.lora_rank == 16
    assert result.larger.question.cluster.num_devices > 1


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        ({"devices": 1, "framework": "torchtune"}, ["--moment-dtype fp8", "--lora-rank 16", "--devices 2"]),
        ({"devices": 2, "framework": "torchtune"}, ["--moment-dtype fp8", "--devices 4", "--lora-rank 16"]),
    ],
)
def test_changes_of_the_run_come_before_pairs_and_what_fills_the_memory_first(asked, texts):
    """Moments fill it here; of the others, on one device what is trained comes before more devices."""
    question = ask("llama-3-8b", "a100-sxm-80gb", seq_len=2048, micro_batch_size=1, global_batch_size=4,
                   recompute="full", precision={"moments": "fp32"}, **asked)  # fmt: skip
    result = fit(replace(question, max_memory=60 * GIB / asked["devices"]))
    remedies = result.remedies
    runs = [place for place, fix in enumerate(remedies) if fix.changes[0].kind == "run"]
    assert [remedies[place].changes[0].text for place in runs] == texts
    assert {remedies[place].verdict for place in runs} == {"FITS"}
    before, after = remedies[: runs[-1]], remedies[runs[-1] + 1 :]
    assert all(
        fix.verdict != "OOM" and len(fix.changes) == 1 for fix in before if fix not in remedies[runs[0] :]
    )
    assert all(fix.verdict == "OOM" or len(fix.changes) == 2 for fix in after)
    assert [row["change"] for row in result.rows()] == [fix.text for fix in remedies]


def test_moments_of_8_bits_are_tried_where_the_framework_has_them():
    asked = {
        "devices": 1,
        "seq_len": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 2,
        "precision": "bf16",
    }
    result = fit(ask("qwen2.5-3b", "rtx-4090", framework="torchtune", recompute="full", **asked), pairs=False)
    assert result.first is None
    assert result.states.question.workload.precision.moments == "fp8"
    assert result.states.now.memory.peak_bytes < result.now.memory.peak_bytes
    assert result.to_json()["states"]["schema"] == "forescale.fit/1"
    assert fit(ask("qwen2.5-3b", "rtx-4090", framework="megatron", **asked), pairs=False).states is None


def test_the_length_at_which_a_layout_fits_is_the_first_half_that_does():
    question = LARGE["dense"]
    shorter = fit(question, pairs=False).shorter
    verdicts = {
        length: project(replace(question, workload=replace(question.workload, seq_len=length))).memory.verdict
        for length in (8192, 4096, 2048, 1024, 512, 256)
    }
    assert shorter == next(length for length, verdict in verdicts.items() if verdict == "FITS") < 8192
    assert (
        fit(replace(question, workload=replace(question.workload, seq_len=shorter)), pairs=False).shorter
        is None
    )


def test_a_shorter_sequence_is_a_row_before_adapters_where_nothing_cheap_fits():
    question = ask(
        "llama-3.1-8b", "rtx-4090", framework="unsloth", recompute="full", seq_len=65536, lora_rank=16,
        micro_batch_size=1, global_batch_size=1, zero=0,
    )  # fmt: skip
    result = fit(question, pairs=False)
    runs = [fix for fix in result.remedies if fix.changes[0].kind == "run"]
    assert runs[0].text == f"--seq-len {result.shorter}"
    assert (runs[0].verdict, runs[0].projection.workload.seq_len) == ("FITS", result.shorter)
    share = result.now.workload.seq_len / result.shorter
    assert (
        runs[0].lost_s == runs[0].projection.step_time_s * share - result.now.step_time_s
    )  # of as many tokens
    assert runs[0].freed_bytes == result.now.memory.peak_bytes - runs[0].projection.memory.peak_bytes > 0


@pytest.mark.parametrize("name", LARGE)
def test_no_single_change_that_fits_for_sure_is_cheaper_than_the_first(name):
    question = LARGE[name]
    result = fit(question)
    first = result.first
    assert first is not None
    assert project(question.with_layout(first.projection.strategy)).memory.verdict == "FITS"
    singles = [project(question.with_layout(layout)) for layout in layouts_of(question)]
    least = min((one.step_time_s for one in singles if one.memory.verdict == "FITS"), default=np.inf)
    assert first.projection.step_time_s <= least
    assert len(first.changes) == (1 if np.isfinite(least) else 2)


def test_after_the_first_singles_come_before_pairs_and_what_runs_out_of_memory_last_by_the_peak_that_is_left():
    result = fit(LARGE["dense"])
    grades = [
        (fix.verdict == "OOM", len(fix.changes), {"FITS": 0, "AT RISK": 1, "OOM": 2}[fix.verdict])
        for fix in result.fixes
    ]
    assert grades == sorted(grades)
    peaks = [fix.projection.memory.peak_bytes for fix in result.fixes if fix.verdict == "OOM"]
    assert len(peaks) > 1
    assert peaks == sorted(peaks)
    assert len({tuple(change.kind for change in fix.changes) for fix in result.fixes}) == len(result.fixes)
    fitting = [fix for fix in result.fixes[1:] if fix.verdict == "FITS" and len(fix.changes) == 1]
    kinds = [kind for fix in fitting for kind in fix.kinds]
    lead = [kind for kind in IN_EVERY_TRAINER[:1] if kind in kinds]  # which every trainer has
    assert kinds[: len(lead)] == lead
    fitting = fitting[len(lead) :]
    lost = [item.lost_s_per_gib for item in fitting if item.lost_s > 0.0]
    assert lost == sorted(lost)


def test_pairs_are_listed_where_they_beat_every_single_change():
    result = fit(LARGE["experts"])
    sure = [fix for fix in result.fixes if fix.verdict == "FITS"]
    singles = [item.projection.step_time_s for item in sure if len(item.changes) == 1]
    pairs = [item.projection.step_time_s for item in sure if len(item.changes) == 2]
    assert pairs
    assert max(pairs) < min(singles)


def test_a_layout_that_fits_is_made_faster():
    question = ask("llama-3.1-8b", "h100-sxm", devices=16, tp=4, seq_len=8192, global_batch_size=64)
    result = fit(question)
    assert result.verdict == "FITS"
    assert result.fixes
    steps = [fix.projection.step_time_s for fix in result.fixes]
    assert steps == sorted(steps)
    assert steps[-1] < result.now.step_time_s
    assert {fix.verdict for fix in result.fixes} == {"FITS"}


def test_only_what_the_framework_can_be_told_is_tried():
    question = LARGE["zero 3"]
    limits = load_framework("torchtitan").limits
    for change in changes(question):
        allowed = (
            *limits.values.get(change.kind, ()),
            *limits.others.get(change.kind, ()),
            *limits.reliefs.get(change.kind, ()),
        )
        if allowed and change.kind != "recompute":
            assert change.overrides.get(change.kind, allowed[0]) in allowed
    kinds = {change.kind for change in changes(question)}
    assert "optimizer_offload" not in kinds
    assert {change.overrides["recompute"].granularity for change in changes(question) if change.kind == "recompute"} <= {"none", "policy", "full"}  # fmt: skip


def test_states_go_to_the_host_where_the_framework_is_only_assumed():
    words = {"devices": 1, "seq_len": 2048, "global_batch_size": 8}
    assumed = fit(ask("llama-3.2-3b", "rtx-4090", **words))
    named = fit(ask("llama-3.2-3b", "rtx-4090", framework="transformers", **words))
    assert "optimizer_offload" in assumed.first.kinds and named.first is None
    rate = 8 * 2048 / assumed.first.projection.step_time_s
    assert assumed.rows()[0]["tokens_per_s"] == pytest.approx(rate)
    assert f"{rate:,.0f} tokens/s" in assumed.headline


def test_rules_of_the_framework_hold_unless_the_layout_breaks_them_already():
    megatron = load_framework("megatron")
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=16, pp=2, seq_len=4096, global_batch_size=64, framework="megatron"
    )
    layouts = layouts_of(question)
    assert all(layout.zero < 2 for layout in layouts if layout.pp > 1)
    sharded = replace(question, strategy=replace(question.layout, zero=2), framework=megatron)
    assert any(layout.zero == 2 and layout.pp > 1 for layout in layouts_of(sharded))
    graphs = replace(question, strategy=replace(question.layout, graphs="partial"))
    full = Recompute(granularity="full")
    assert full in {layout.recompute for layout in layouts}
    assert full not in {layout.recompute for layout in layouts_of(graphs) if layout.graphs == "partial"}


def test_experts_go_with_tp_where_the_framework_splits_them_so():
    parts = {"tp": 2, "zero": 3, "micro_batch_size": 1, "framework": "maxtext"}
    question = ask("mixtral-8x7b", "h100-sxm", devices=16, seq_len=4096, global_batch_size=64, **parts)
    degrees = {(layout.tp, layout.etp) for layout in layouts_of(question)}
    assert degrees >= {(2, 2), (4, 4), (1, 1)}
    assert all(tp == etp for tp, etp in degrees)


def test_the_same_devices_are_used():
    for question in LARGE.values():
        assert {layout.num_devices for layout in layouts_of(question)} == {question.cluster.num_devices}


def test_layers_dealt_by_hand_stay_until_stages_change():
    question = LARGE["by hand"]
    for layout in layouts_of(question):
        same = (layout.pp, layout.vpp) == (question.layout.pp, question.layout.vpp)
        assert (layout.stage_layers == question.layout.stage_layers) == same


def test_a_limit_is_what_must_be_fitted():
    question = replace(LARGE["dense"], max_memory=30 * GIB)
    result = fit(question)
    assert result.first.projection.memory.peak_high_bytes <= 30 * GIB


def test_what_cannot_be_written_for_the_framework_is_not_proposed():
    question = ask(dense(8), "h100-sxm", devices=4, zero=1, seq_len=2048, global_batch_size=32, micro_batch_size=4,
                   framework="deepspeed-zero")  # fmt: skip
    question = replace(question, max_memory=0.6 * project(question).memory.peak_bytes)
    every, written = fit(question, pairs=False), fit(question, pairs=False, accepts=is_writable)
    assert any(fix.projection.strategy.pp > 1 for fix in every.fixes)
    assert written.fixes
    assert all(is_writable(question.with_layout(fix.projection.strategy)) for fix in written.fixes)
    assert not any(fix.projection.strategy.pp > 1 for fix in written.fixes)


def test_a_layout_that_cannot_be_written_itself_refuses_nothing():
    question = ask(dense(8), "h100-sxm", devices=4, pp=2, zero=1, seq_len=2048, global_batch_size=32,
                   framework="deepspeed-zero")  # fmt: skip
    assert not is_writable(question)
    assert fit(question, pairs=False, accepts=is_writable).num_tried == fit(question, pairs=False).num_tried


def test_every_number_of_chunks_that_frees_memory_is_listed():
    """Megatron-Bridge #3107: 10 chunks instead of 5 free memory at hardly a cost; fewer free more and cost time."""
    question = ask("llama-3-70b", "h100-sxm", devices=32, tp=4, pp=4, vpp=5, zero=1, seq_len=4096,
                   global_batch_size=32, precision={"compute": "fp8", "recipe": "current"},
                   framework="megatron-bridge", max_memory=68 * GIB)  # fmt: skip
    fixes = {fix.text: fix for fix in fit(question, pairs=False).fixes}
    assert {"vpp 10", "vpp 20", "vpp 1"} <= fixes.keys()
    assert fixes["vpp 10"].freed_bytes > 0.0
    assert fixes["vpp 10"].lost_s <= 5e-3 * fixes["vpp 10"].projection.step_time_s
    assert fixes["vpp 1"].freed_bytes > fixes["vpp 10"].freed_bytes


def test_a_smaller_micro_batch_alone_is_listed():
    """NeMo Automodel #2673: under pipeline stages and FSDP the micro-batch alone is made smaller."""
    question = ask("llama-3.3-70b", "h100-sxm", devices=32, pp=8, zero=3, micro_batch_size=4, seq_len=1024,
                   global_batch_size=128, framework="torch-fsdp")  # fmt: skip
    fixes = {fix.text: fix for fix in fit(question, pairs=False).fixes}
    sizes = {text for text in fixes if text.startswith("micro_batch_size")}
    assert "micro_batch_size 2" in sizes or "micro_batch_size 1" in sizes
    assert all(fixes[text].freed_bytes > 0.0 for text in sizes)


def test_chunks_that_need_another_micro_batch_are_tried_with_it():
    question = ask(
        dense(8), "h100-sxm", devices=2, pp=2, micro_batch_size=4, seq_len=2048, global_batch_size=4
    )
    alone = {
        item.made[0].text for item in _tried(question, [(change,) for change in changes(question)], bool)
    }
    assert "vpp 2" not in alone
    pairs = _pairs(changes(question), _tried(question, [(change,) for change in changes(question)], bool))
    assert {"vpp 2", "micro_batch_size 2"} in [{item.text for item in pair} for pair in pairs]


def test_adapters_with_weights_of_16_bits_are_tried_with_4():
    asked = {"devices": 1, "seq_len": 4096, "global_batch_size": 16, "framework": "transformers"}
    result = fit(ask("qwen3-14b", "rtx-4090", lora_rank=8, **asked))
    assert result.first is None
    workload = result.adapters.question.workload
    assert (workload.trainable.lora_rank, workload.precision.frozen) == (8, "nf4_double")


@pytest.mark.parametrize(("model", "frozen"), [("qwen3-8b", None), ("qwen3-14b", "nf4_double")])
def test_where_no_layout_trains_all_weights_adapters_are_tried(model, frozen):
    question = ask(model, "rtx-4090", devices=1, seq_len=4096, global_batch_size=16, framework="transformers")
    result = fit(question)
    assert result.first is None
    assert result.adapters.question.workload.trainable.lora_rank == 16
    assert result.adapters.question.workload.precision.frozen == frozen
    assert result.adapters.first.verdict == "FITS"
    assert result.to_json()["adapters"]["fixes"][0]["verdict"] == "FITS"


@pytest.mark.parametrize(
    ("asked", "num_devices", "degrees"),
    [
        ({"global_batch_size": 8, "framework": "transformers"}, 2, {"dp": 2, "pp": 1}),
        ({"global_batch_size": 1, "framework": "transformers"}, 2, {"dp": 1, "pp": 1, "tp": 2}),
        ({"global_batch_size": 1, "framework": "torchtitan"}, 2, {"dp": 1, "pp": 2, "tp": 1}),
    ],
)
def test_where_no_change_fits_the_fewest_doublings_of_devices_that_do_are_named(asked, num_devices, degrees):
    question = ask("llama-2-7b", "a100-sxm-80gb", devices=1, seq_len=512, micro_batch_size=1, **asked)
    result = fit(question, pairs=False)
    assert result.first is None
    larger = result.larger
    assert larger.question.cluster.num_devices == num_devices
    assert {name: getattr(larger.question.strategy, name) for name in degrees} == degrees
    assert larger.fits
    assert larger.larger is None
    assert result.to_json()["larger"]["now"]["cluster"]["num_devices"] == num_devices


@pytest.mark.parametrize(
    ("seq_len", "batch", "kind", "place"),
    [(16384, 2, "--seq-len 8192", 2), (1024, 1, "--moment-dtype fp8", 2)],
)
def test_what_acts_on_the_largest_part_of_the_memory_is_among_the_first_three(seq_len, batch, kind, place):
    question = ask("qwen2.5-7b", "a100-sxm-80gb" if batch == 2 else "a10", devices=8, seq_len=seq_len,
                   micro_batch_size=batch, global_batch_size=16, zero=3, recompute="full",
                   framework="transformers")  # fmt: skip
    result = fit(question, pairs=False)
    texts = [fix.changes[0].text for fix in result.remedies]
    assert result.verdict != "FITS"
    assert texts.index(kind) == place, texts


def test_a_micro_batch_that_fits_is_next_to_what_loses_least():
    question = ask("llama-3.1-8b", "a100-sxm-80gb", devices=8, seq_len=4096, micro_batch_size=4, global_batch_size=64,
                   zero=3, recompute="none", framework="torchtune")  # fmt: skip
    sure = [
        fix for fix in fit(question, pairs=False).fixes if fix.verdict == "FITS" and len(fix.changes) == 1
    ]
    first, *others, slowest = sorted(sure, key=lambda fix: fix.projection.step_time_s)
    (change,) = slowest.changes
    renamed = replace(slowest, changes=(dataclasses.replace(change, kind="micro_batch_size"),))
    others = [fix for fix in (first, *others) if fix.kinds != ("micro_batch_size",)]
    ranked = _ranked([*others, renamed])
    assert len(others) > 1
    assert ranked.index(renamed) == 1


def test_a_layout_that_fits_needs_no_change_of_the_run():
    result = fit(ask("llama-3.2-1b", "h100-sxm", devices=1, seq_len=1024, global_batch_size=8), pairs=False)
    assert (result.verdict, result.larger, result.adapters, result.states, result.shorter) == (
        "FITS", None, None, None, None,
    )  # fmt: skip


def test_more_than_16_times_the_devices_are_not_proposed():
    whole = ask(
        "llama-3.1-405b", "a100-sxm-40gb", devices=1, seq_len=512, global_batch_size=16, framework="none"
    )
    assert fit(whole, pairs=False).larger is None


@pytest.mark.parametrize(("framework", "writes"), [("nemo-rl", True), ("verl", True), ("trl", False)])
def test_trainers_whose_configurations_are_not_written_take_tensor_parallelism(framework, writes):
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=8, seq_len=512, global_batch_size=8, tp=4, framework=framework
    )
    assert is_writable(question) == writes


def test_recompute_is_behind_a_smaller_micro_batch_where_every_trainer_has_it():
    result = fit(LARGE["dense"])
    ours, theirs = _ranked(result.fixes), _ranked(result.fixes, IN_EVERY_TRAINER)
    assert {id(fix) for fix in ours} == {id(fix) for fix in theirs}
    places = [[fix.kinds for fix in ranked if fix.verdict == "FITS"] for ranked in (ours, theirs)]
    assert all(("recompute",) in kinds for kinds in places)
    mine, other = (kinds.index(("recompute",)) for kinds in places)
    assert other <= mine
    assert other <= 2
