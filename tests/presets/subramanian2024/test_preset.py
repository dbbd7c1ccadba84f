from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tests.errors import raises
from tests.small import asked

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.explain import explain
from forescale.presets import preset_of, project_as, scores_of
from forescale.presets.subramanian2024 import search_subramanian2024
from forescale.presets.subramanian2024.preset import Found, _columns
from forescale.question import PresetOptions, Question
from forescale.spec import Layout, Recompute, Workload

DATA = Path(__file__).parents[2] / "data" / "subramanian2024" / "best.csv"
MODELS = {"gpt3_1T": "gpt3-1t", "vit_era5": "vit-era5"}
ORDERS = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
ROWS = [
    row
    for row in csv.DictReader(DATA.read_text(encoding="utf-8").splitlines())
    if row["strategy"] == "1d" or (row["strategy"] == "2d-seqp" and row["n2_tp2"] != "1")
]
"""Those that the preset takes for the strategy under which they were published."""


def question(row, order):
    model = load_model(MODELS[row["model"]])
    cluster = load_cluster(f"{row['gpu'].lower()}-nvs{row['nvs']}", int(row["n_gpus"]))
    layout = Layout(
        tp=int(row["n1_tp1"]),
        cp=int(row["n2_tp2"]),
        pp=int(row["pp"]),
        dp_shard=int(row["dp"]),
        zero=1,
        micro_batch_size=int(row["micro_batch"]),
        axis_order=order,
    )
    return model, cluster, layout, Workload(seq_len=model.max_seq_len, global_batch_size=4096, tokens=1e12)


def published_order(row):
    """The axis order whose placement is the published one, if one is."""
    names = [int(row[key] or 1) for key in ("nvs_n1", "nvs_n2", "nvs_dp", "nvs_pp")]
    for order in ORDERS:
        _, cluster, layout, workload = question(row, order)
        placed = _columns(cluster, layout, workload)
        if [int(placed[f"near_{name}"][0]) for name in ("tp1", "tp2", "dp", "pp")] == names:
            return order
    return None


PLACED = [(row, order) for row in ROWS if (order := published_order(row)) is not None]


def test_most_published_placements_follow_from_an_axis_order():
    assert len(PLACED) > 0.6 * len(ROWS)


@pytest.mark.parametrize(
    ("row", "order"),
    PLACED,
    ids=lambda item: item if isinstance(item, tuple) else "-".join(list(item.values())[:5]),
)
def test_a_layout_costs_what_its_search_says(row, order):
    one = project_as(asked(*question(row, order), preset="subramanian2024"))
    assert one.step_time_s == pytest.approx(float(row["iter_time_s"]), rel=1e-9)
    assert one.memory.peak_bytes == pytest.approx(float(row["mem_gb"]) * 1e9, rel=1e-9)
    assert one.memory.verdict == "AT RISK"  # embedding, head, loss and buffers are left out
    assert sum(one.time_s.values()) == pytest.approx(one.step_time_s, rel=1e-9)
    for part, column in (("bubble", "t_bubble"), ("data_comm", "t_dp_comm"), ("pipeline_comm", "t_pp_comm")):
        assert one.time_s[part] == pytest.approx(float(row[column]), rel=1e-9, abs=1e-12)
    tensor = one.time_s["tensor_comm"] + one.time_s["context_comm"]
    assert tensor == pytest.approx(float(row["t_tp_comm"]), rel=1e-9, abs=1e-12)
    assert one.hardware_flops_per_step == pytest.approx(
        float(row["flops_per_gpu_tflop"]) * 1e12 * int(row["n_gpus"]), rel=1e-9
    )
    assert 0.0 < one.mfu_full_attention < 1.0
    assert one.tokens_per_s_per_device == pytest.approx(float(row["tokens_per_s_per_gpu"]), rel=1e-9)


def test_later_stages_hold_fewer_micro_batches():
    row, order = next((row, order) for row, order in PLACED if int(row["pp"]) > 4)
    stages = project_as(asked(*question(row, order), preset="subramanian2024")).memory.stages
    activations = [stage.activations_bytes for stage in stages]
    assert activations == sorted(activations, reverse=True)
    assert activations[-1] < activations[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"zero": 3}, "unsupported_by preset subramanian2024"),
        ({"tp": 2, "sp": False}, "unsupported_by preset subramanian2024"),
        ({"recompute": Recompute(granularity="full")}, "unsupported_by preset subramanian2024"),
        ({"pp": 2, "vpp": 2}, "unsupported_by preset subramanian2024"),
    ],
)
def test_what_the_paper_does_not_know_is_refused(changes, says):
    degrees = {"tp": 1, "pp": 1, "zero": 1} | changes
    layout = Layout(**degrees, dp_shard=8 // (degrees["tp"] * degrees["pp"]))
    with raises(SpecError, says):
        project_as(
            asked(
                load_model("gpt3-1t"),
                load_cluster("b200-nvs8", 8),
                layout,
                Workload(seq_len=2048, global_batch_size=64),
                preset="subramanian2024",
            )
        )


STUDY = Question(
    model=load_model("gpt3-1t"),
    cluster=load_cluster("b200-nvs8", 256),
    workload=Workload(seq_len=2048, global_batch_size=4096, tokens=1e12),
    preset="subramanian2024",
)


@pytest.mark.parametrize("kind", ["1d", "2d", "summa"])
def test_every_layout_of_the_search_projects_to_its_score(kind):
    question = replace(STUDY, preset_options=PresetOptions(tensor_parallel=kind))
    scores, native = (
        scores_of(question),
        search_subramanian2024(
            question.model, question.cluster, tensor_parallel=kind, global_batch_size=4096, tokens=1e12
        ),
    )
    assert scores.num_legal == native.num_candidates
    assert len(scores.step_time) == native.num_feasible
    fastest = np.argsort(scores.step_time, kind="stable")[:3].tolist()
    for index, ranked in zip(fastest, native.best[:3], strict=True):
        result = scores.project(index)
        assert result.step_time_s == pytest.approx(ranked.step_time_s, rel=1e-12)
        assert result.step_time_s == pytest.approx(float(scores.step_time[index]), rel=1e-12)
        assert result.memory.peak_bytes == pytest.approx(float(scores.peak[index]), rel=1e-12)
        assert result.training_days == pytest.approx(ranked.training_days, rel=1e-12)
        assert project_as(question.with_layout(result.strategy)) == result


def test_dimensions_that_are_held():
    held = ("placement_tp1=4", "panels=8", "tp2=1")
    question = replace(STUDY, preset_options=PresetOptions(tensor_parallel="summa", fix=held))
    found = Found.from_question(question, preset_of(question))
    assert set(found.candidates["near_tp1"].tolist()) == {4}
    assert set(found.candidates["panels"].tolist()) == {8}
    assert set(found.candidates["tp2"].tolist()) == {1}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("1d", {"cp": 2}), ("summa", {}), ("2d", {"tp_kind": "summa", "cp": 2}), ("1d", {"tp_kind": "summa"})],
)
def test_a_kind_that_the_layout_is_not_is_refused(kind, layout):
    options = PresetOptions(tensor_parallel=kind)
    layout = Layout(tp=4, pp=16, dp_shard=4 // layout.get("cp", 1), zero=1, cp_kind="all_gather", **layout)
    with pytest.raises(SpecError, match=f"tensor_parallel {kind} does not go with"):
        preset_of(replace(STUDY, preset_options=options)).project(STUDY.with_layout(layout))


def test_table_1():
    layout = Layout(tp=8, pp=16, dp_shard=2, zero=1)
    rows = preset_of(STUDY).operations(STUDY.with_layout(layout))
    assert [row.name for row in rows[:3]] == ["query, key, value", "fused attention", "projection"]
    forward = {row.name: row for row in rows if row.direction == "forward"}
    ble = 2 * 1 * 2048 * 25600
    assert {name: (row.collective, row.volume_bytes) for name, row in forward.items() if row.collective} == {
        "projection": ("reduce_scatter over tp1", ble),
        "attention norm": ("all_gather over tp1", ble),
        "second linear": ("reduce_scatter over tp1", ble),
        "ffn norm": ("all_gather over tp1", ble),
    }
    tensors = {tensor.name: (tensor.shape, tensor.size) for tensor in forward["query, key, value"].tensors}
    assert tensors["Q, K, V"] == (("b", "h/nt", "l", "eh"), (1, 20, 2048, 160))
    assert forward["projection"].flops == 2048 * 25600 * (2 * 3200 - 1)
    assert forward["projection"].num_bytes == 2 * (2048 * 3200 + 2048 * 25600 + 3200 * 25600)


@pytest.mark.parametrize("kind", ["1d", "summa"])
def test_volumes_of_tables_2_and_a2(kind):
    layout = Layout(tp=8, cp=4, pp=8, zero=1, tp_kind=kind, cp_kind="all_gather")
    rows = {
        row.name: row
        for row in preset_of(STUDY).operations(STUDY.with_layout(layout))
        if row.direction == "forward"
    }
    keys = 2 * 2 * 2048 * 25600 / 8
    assert (rows["fused attention"].collective, rows["fused attention"].volume_bytes) == (
        "all_gather over tp2",
        keys,
    )
    if kind == "1d":
        assert rows["projection"].volume_bytes == 2 * 2048 / 4 * 25600
        assert rows["ffn norm"].tensors[0].size == (1, 64, 25600)
    else:
        first = 2 * (2048 * 25600 / 4 + 25600 * 25600 / 8)
        assert rows["projection"].collective == "broadcast over tp1, broadcast over tp2"
        assert rows["projection"].volume_bytes == first
        assert rows["first linear"].volume_bytes == 2 * (2048 * 25600 / 4 + 25600 * 102400 / 8)


def test_memory_is_a_tree_of_named_operations():
    layout = Layout(tp=8, pp=16, dp_shard=2, zero=1)
    node = explain(STUDY.with_layout(layout), "memory.activations")
    assert node.value == project_as(STUDY.with_layout(layout)).memory.stages[0].activations_bytes
    nodes = {label: item for branch in node.walk() for label, item in branch.inputs}
    assert nodes["microbatches"].value == 16
    assert nodes["query, key, value"].value == 2 * 2048 * 25600
    assert "section III-A" in nodes["query, key, value"].source
    assert "tokens" in {item.name for item in node.walk()}


def test_the_seconds_of_a_collective_are_those_of_the_paper():
    cluster = load_cluster("a100-nvs4", 32)
    seconds = preset_of(STUDY).collective(
        cluster, kind="all_gather", num_bytes=2.0**30, num_ranks=32, near=4.0
    )
    share = 31 / 32 * 2**30 / (4 * 0.7 * 25e9)
    assert seconds == pytest.approx(share + 7 * 5e-6 + 24 * 2.5e-6, rel=1e-9)
    assert (
        preset_of(STUDY).collective(cluster, kind="all_to_all", num_bytes=1.0, num_ranks=8, near=4.0) is None
    )
