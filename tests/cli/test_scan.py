from __future__ import annotations

import csv
import json

import pytest
from tests.cli.questions import DENSE, MACHINE, RUN, SEARCH

from forescale.cli.render.search import spread

HELD = ("--fix", "micro_batch_size=1", "--fix", "cp=1", "--fix", "vpp=1", "--fix", "zero=1")
MODEL = "llama-3.1-8b"
SIZES = (MODEL, "--cluster", "h100-sxm", *RUN, *HELD)


def document(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_the_front_is_shown_on_one_screen_and_whole_in_json(forescale):
    ran = forescale("search", *SEARCH, "--pareto")
    assert ran.code == 0, ran.err
    for text in ("on the front of step time, peak memory", "more between those shown", "dominant"):  # fmt: skip
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 25
    front = document(forescale("search", *SEARCH, "--pareto", "--json"))["front"]
    assert len(front) > 5
    times = [one["step_time_s"] for one in front]
    peaks = [one["memory"]["peak_bytes"] for one in front]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)
    best = document(forescale("search", *SEARCH, "--top", 1, "--json"))["best"]
    assert front[0]["strategy"] == best[0]["strategy"]


def test_layouts_shown_are_spread_over_the_front():
    assert spread(3, 10) == [0, 1, 2]
    assert spread(100, 4) == [0, 33, 66, 99]
    assert spread(100, 1) == [0]


def test_devices_join_the_front_where_counts_are_given(forescale):
    body = document(forescale("search", *SIZES, "--device-counts", "8,16", "--pareto", "--json"))
    assert body["objectives"] == ["step_time", "peak_memory", "devices"]
    assert {one["cluster"]["num_devices"] for one in body["front"]} == {8, 16}
    assert "devices" in forescale("search", *SIZES, "--device-counts", "8,16", "--pareto").out


def test_a_target_finds_the_fewest_devices(forescale):
    target = ("--tokens", "1T", "--target-days", 400, "--price-per-device-hour", 2)
    ran = forescale("search", *DENSE, *HELD, *target)
    assert ran.code == 0, ran.err
    for text in (
        "▶",
        "the fewest of the",
        "days",
        "cost",
        "at 2 per device-hour for 1 T tokens",
        "upper bound",
    ):
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 25
    body = document(forescale("search", *DENSE, *HELD, *target, "--json"))
    met = [point for point in body["points"] if point["meets_target"]]
    assert body["chosen"] == met[0]["num_devices"]
    assert met[0]["training_days"] <= 400
    assert all(point["training_days"] > 400 for point in body["points"] if point["best"] and point not in met)
    selected = met[0]
    assert selected["cost"] == pytest.approx(2 * 24 * selected["training_days"] * selected["num_devices"])
    assert selected["best"]["cluster"]["num_devices"] == selected["num_devices"]


def test_a_target_that_nothing_reaches_is_an_answer(forescale):
    ran = forescale("search", *DENSE, *HELD, "--target-step-time", "800 ms")
    assert ran.code == 0, ran.err
    assert "tried, reaches a step of 800.000 ms" in ran.out
    assert "peak rate" in " ".join(ran.out.split())
    body = document(forescale("search", *DENSE, *HELD, "--target-step-time", "800 ms", "--json"))
    assert body["chosen"] is None


def test_counts_are_searched_one_by_one(forescale):
    body = document(forescale("search", *SIZES, "--device-counts", "16,8", "--json"))
    assert [point["num_devices"] for point in body["points"]] == [8, 16]
    assert body["varied"] == "num_devices"
    alone = document(forescale("search", *SIZES, "--devices", 8, "--top", 1, "--json"))
    assert {**body["points"][0]["best"], "variants": 0} == alone["best"][0]


def test_batches_are_searched_one_by_one(forescale):
    question = ("search", MODEL, *MACHINE, "--seq-len", 4096, "--batches", "128,32,64", *HELD)
    body = document(forescale(*question, "--json"))
    assert [point["global_batch_size"] for point in body["points"]] == [32, 64, 128]
    rates = [point["tokens_per_s_per_device"] for point in body["points"]]
    assert body["chosen"] == body["points"][rates.index(max(rates))]["global_batch_size"]
    ran = forescale(*question)
    assert ran.code == 0, ran.err
    for text in ("batch", "a global batch of 128 sequences", "16 × h100-sxm"):
        assert text in ran.out


def test_points_and_fronts_go_to_csv(forescale, tmp_path):
    path = tmp_path / "points.csv"
    ran = forescale("search", *SIZES, "--device-counts", "2,8,16", "--fix", "recompute=none", "--csv", path)
    assert ran.code == 0, ran.err
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["num_devices"] for row in rows] == ["2", "8", "16"]
    assert (rows[0]["tp"], rows[0]["step_time_s"]) == ("", "")
    assert "fits" in rows[0]["problem"]
    assert float(rows[2]["step_time_s"]) < float(rows[1]["step_time_s"])
    assert forescale("search", *SEARCH, "--pareto", "--csv", path).code == 0
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["rank"] for row in rows] == [str(place + 1) for place in range(len(rows))]
    assert {row["num_devices"] for row in rows} == {"16"}


def test_what_a_reader_said_is_told(forescale, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --swiglu "
        "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 "
        "--micro-batch-size 2 --global-batch-size 64 --bf16 --lr 1e-4",
        encoding="utf-8",
    )
    question = ("search", script, "--cluster", "h100-sxm", "--device-counts", "4,8", *HELD)
    for more in ((), ("--pareto",)):
        assert "--lr" in forescale(*question, *more, "--verbose").out


def test_a_target_without_devices_tries_as_many_as_the_peak_rate_may_need(forescale):
    words = (
        "llama-3.2-1b --cluster h100-sxm --seq-len 2048 --global-batch-size 64 --target-step-time 1s --json"
    )
    ran = forescale("search", *words.split())
    document = json.loads(ran.out)
    counts = [point["num_devices"] for point in document["points"]]
    assert max(counts) == 16
    assert document["chosen"] in counts
    assert "up to 16 devices are tried" in forescale("search", *words.replace(" --json", "").split()).out


def test_a_deadline_without_devices_does_so_too(forescale):
    words = "llama-3.2-1b --cluster h100-sxm --seq-len 2048 --global-batch-size 64 --tokens 20B --deadline 3d --json"
    document = json.loads(forescale("search", *words.split()).out)
    alike = json.loads(forescale("search", *words.split(), "--devices", 8).out)
    assert document["num_tried"] == alike["num_tried"]
    assert document["front"][document["chosen"]]["days"] == alike["front"][alike["chosen"]]["days"] < 3


def test_a_target_without_devices_and_batch_names_both(forescale):
    ran = forescale("search", *["llama-3.2-1b", "--cluster", "h100-sxm", "--target-step-time", "1s"])
    assert ran.code == 2
    assert "--global-batch-size" in ran.err
    assert "--devices" in ran.err
