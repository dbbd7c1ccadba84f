"""Clusters as a newcomer names and describes them on the command line."""

from __future__ import annotations

import json

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.units import format_seconds
from forescale.whole_run.prices import published_prices

ON = ["--seq-len", "2048", "--global-batch-size", "8", "--json"]
DEVICE = """
hbm_bytes = "96 GiB"
hbm_bandwidth = "3 TB/s"
[matrix_flops]
bf16 = "500 TFLOP/s"
"""


def notes(document):
    return {note["topic"]: note["text"] for note in document["notes"]}


def test_a_device_file_of_three_keys_is_a_cluster(tmp_path, forescale):
    file = tmp_path / "chip.toml"
    file.write_text(DEVICE, encoding="utf-8")
    names = ["--devices", "8", "--seq-len", "4096", "--global-batch-size", "64", "--json"]
    document = json.loads(forescale("project", "llama-3.1-8b", "--cluster", str(file), *names).out)
    assert 0 < document["mfu"] < 1
    for stated in (
        "8 devices per node", "pcie 32 GB/s", "ethernet 12.5 GB/s", "vector_flops 31.25 TFLOP/s", "num_cores 128",
    ):  # fmt: skip
        assert stated in notes(document)["hardware"]
    assert "priors" in notes(document)["calibration"]


@pytest.mark.parametrize(
    ("name", "full", "precision"),
    [
        ("4090", "rtx-4090", "bf16"), ("3090", "rtx-3090", "bf16"), ("5090", "rtx-5090", "bf16"),
        ("a10g", "a10g", "bf16"), ("t4", "t4", "fp16"), ("v100-pcie", "v100-pcie", "fp16"), ("h20", "h20", "bf16"),
        ("a6000", "rtx-a6000", "bf16"), ("rtx-pro-6000", "rtx-pro-6000", "bf16"),
    ],
)  # fmt: skip
def test_boards_stay_below_their_rate_of_fp32_accumulation(forescale, name, full, precision):
    parts = ["--cluster", name, "--devices", "1", "--framework", "transformers", "--precision", precision]
    document = json.loads(forescale("project", "llama-3.2-1b", *parts, *ON).out)
    device = load_cluster(full, 1).device
    rate = getattr(device.matrix_flops, precision)
    step = document["step_time_s"]
    assert document["mfu"] == pytest.approx(document["model_flops_per_step"] / step / rate)
    assert 0.1 < document["mfu"] < document["hfu"] < 0.9
    assert (full in notes(document).get("cluster", "")) == (name != full)
    if "calibration" in notes(document):
        assert document["step_time_high_s"] / step > 1.15


@pytest.mark.parametrize("name", ["3090", "a10", "a6000", "t4", "v100-pcie", "mi250x"])
def test_fp8_is_refused_on_boards_that_have_none(forescale, name):
    parts = ["--cluster", name, "--devices", "1", "--precision", "fp8"]
    ran = forescale("project", "llama-3.2-1b", *parts, *ON)
    assert (ran.code, ran.out) == (2, "")
    assert "fp8" in ran.err


def test_the_address_of_a_model_means_the_catalogue_s(forescale):
    address = "https://huggingface.co/meta-llama/Llama-3.2-1B"
    document = json.loads(forescale("project", address, "--cluster", "h100", "--devices", "8", *ON).out)
    assert document["model"] == "llama-3.2-1b"


def test_sizes_of_a_cluster_have_a_scaling_efficiency(forescale):
    ran = forescale("compare", "llama-3.1-8b", "--cluster", "h100", "--devices", "8,64", "--global-batch-size", 64, "--zero", 2, "--json")  # fmt: skip
    few, many = json.loads(ran.out)["machines"]
    assert few["scaling_efficiency"] == 1.0
    assert many["scaling_efficiency"] == pytest.approx(many["tokens_per_s"] / 8.0 / few["tokens_per_s"])
    assert 0.3 < many["scaling_efficiency"] < 1.0
    other = forescale("compare", "llama-3.1-8b", "--cluster", "h100,b200", "--devices", 8, "--global-batch-size", 64, "--zero", 2, "--json")  # fmt: skip
    assert [row["scaling_efficiency"] for row in json.loads(other.out)["machines"]] == [None, None]


def test_sizes_of_a_cluster_show_the_share_of_communication_and_bubble(forescale):
    words = ("llama-3.1-8b", "--cluster", "h100", "--devices", "8,64", "--global-batch-size", 64, "--pp", 2)
    rows = json.loads(forescale("compare", *words, "--json").out)["machines"]
    for row in rows:
        parts, step = row["projection"]["time_s"], row["step_time_s"]
        messages = sum(parts[name] for name in parts if name.endswith("_comm") and name != "host_comm")
        assert row["communication_share"] == pytest.approx(messages / step)
        assert row["bubble_share"] == pytest.approx(parts["bubble"] / step)
        assert row["bubble_share"] > 0.0
    shown = forescale("compare", *words).out
    assert f"{100.0 * rows[1]['communication_share']:.1f} %" in shown
    assert f"{100.0 * rows[1]['bubble_share']:.1f} %" in shown
    assert "scaling" in shown and "no room" not in shown


def test_values_say_which_parts_of_the_step_differ(forescale):
    words = ("llama-3.1-8b", "--cluster", "h100", "--devices", 64, "--global-batch-size", 64, "--vary")
    many = forescale("compare", *words, "zero=1,3")
    first, second = json.loads(forescale("compare", *words, "zero=1,3", "--json").out)["machines"]
    apart = second["projection"]["time_s"]["data_comm"] - first["projection"]["time_s"]["data_comm"]
    assert "difference: zero 3 against zero 1: step " in many.out
    assert f"data_comm {'+' if apart > 0 else '−'}{format_seconds(abs(apart))}" in many.out
    assert "difference" not in forescale("compare", *words, "micro-batch-size=1,2,4,8,16").out


def test_list_prices_have_their_sources_and_are_of_the_machine_as_it_is_sold(forescale):
    words = (
        "compare",
        "llama-3.1-8b",
        "--cluster",
        "h200",
        "--devices",
        8,
        "--global-batch-size",
        64,
        "--vary",
    )
    listed = forescale(*words, "zero=1,2")
    figures = published_prices().device_hour["h200-sxm"]
    assert f"h200-sxm {published_prices().listed('h200-sxm')}" in " ".join(listed.out.split())
    assert all(f"{item.value:g}" in listed.out and item.date in listed.out for item in figures)
    rows = json.loads(forescale(*words, "hbm_bytes=x1,x2", "--json").out)["machines"]
    assert [row["cost_per_million_tokens"] for row in rows] == [None, None]
    priced = json.loads(forescale(*words, "hbm_bytes=x1,x2", "--price", 3, "--json").out)["machines"]
    assert all(row["cost_per_million_tokens"] > 0.0 for row in priced)


def test_a_cluster_file_over_a_base_is_called_by_its_own_name(forescale, tmp_path):
    """The note states the links in force, not those of the base."""
    file = tmp_path / "mine.toml"
    file.write_text('base = "h200"\nnetwork = "100 Gbit/s"\n')
    run = ("--seq-len", 4096, "--global-batch-size", 64)
    answer = json.loads(
        forescale("project", "llama-3.1-8b", "--cluster", file, "--devices", 16, *run, "--json").out
    )
    assert (answer["cluster"]["name"], answer["cluster"]["device"]) == ("mine", "h200-sxm")
    (note,) = [note["text"] for note in answer["notes"] if note["topic"] == "cluster"]
    assert "mine, over the base h200-sxm" in note
    assert "infiniband 12.5 GB/s" in note
    network = " ".join(forescale("network", "--cluster", file, "--devices", 16).out.split())
    assert "infiniband 12.5 GB/s" in network
    assert "infiniband 50 GB/s" not in network
    file.write_text('base = "h200"\nname = "slow"\nnetwork = "100 Gbit/s"\n')
    answer = json.loads(
        forescale("project", "llama-3.1-8b", "--cluster", file, "--devices", 16, *run, "--json").out
    )
    assert answer["cluster"]["name"] == "slow"
