from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.errors import raises
from tests.small import asked

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.presets import project_as
from forescale.presets.subramanian2024.preset import _columns
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
