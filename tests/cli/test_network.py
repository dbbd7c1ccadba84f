"""`forescale network` shows what collectives take."""

from __future__ import annotations

import json

import pytest

ASKED = ("network", "--cluster", "h100-sxm")


def test_a_table_per_group_and_the_algorithms_below(forescale):
    ran = forescale(*ASKED, "--devices", 64)
    assert ran.code == 0, ran.err
    assert "8 ranks, 8 a nvlink" in ran.out
    assert "64 ranks, 8 a nvlink" in ran.out
    assert "all_gather, reduce_scatter: ring LL, ring LL128 from 16 MiB, ring Simple from" in ran.out
    assert len(ran.out.splitlines()) <= 35


def test_the_document_has_what_the_table_shows(forescale):
    ran = forescale(*ASKED, "--ranks", "16", "--sizes", "64MiB", "--collectives", "all-reduce", "--json")
    document = json.loads(ran.out)
    (price,) = document["prices"]
    assert (document["num_devices"], price["kind"], price["num_bytes"]) == (16, "all_reduce", 2**26)
    shown = forescale(*ASKED, "--ranks", "16", "--sizes", "64MiB", "--collectives", "allreduce").out
    assert f"{1e6 * price['seconds']:.3f} µs" in shown
    assert f"{price['bus_bandwidth'] / 1e9:.3g}" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks", "8,x"), "wrong_type --ranks"),
        (("--ranks", "1024", "--devices", 64), "a group has 2 to 64 ranks"),
        (("--sizes", "3 parsecs"), "not_a_quantity byte"),
        (("--sizes", "0"), "out_of_range a size"),
        (("--sizes", ","), "out_of_range --sizes"),
        (("--collectives", "gossip"), "unknown_name collective in --collectives"),
        (("--devices", 8, "--nodes", 1), "conflicts --devices, --nodes"),
        (("--ranks", "16777216", "--stride", "16777216"), "out_of_range the number of devices"),
    ],
)
def test_what_cannot_be_is_one_sentence(forescale, words, said):
    ran = forescale(*ASKED, *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.refused
    assert forescale("network").err.startswith("error: --cluster is required")


def test_a_page_has_the_curves_and_their_numbers(forescale, tmp_path):
    page = tmp_path / "network.html"
    ran = forescale(*ASKED, "--devices", 16, "--sizes", "1MiB,64MiB", "--html", page)
    assert ran.code == 0, ran.err
    text = page.read_text(encoding="utf-8")
    assert text.count("data-spec=") == 4
    assert "Bus bandwidth among 16 ranks" in text
    assert "ring LL128" in text


def test_the_formula_of_a_published_analysis_next_to_ours(forescale):
    words = ("--devices", 32, "--ranks", "32", "--sizes", "1GiB", "--collectives", "all_gather", "--json")
    body = json.loads(
        forescale("network", "--cluster", "a100-nvs4", *words, "--preset", "subramanian2024").out
    )
    assert body["preset"] == "subramanian2024"
    assert body["prices"][0]["published_s"] == pytest.approx(0.014955, rel=1e-4)
    assert (
        "published_s"
        not in json.loads(forescale("network", "--cluster", "a100-nvs4", *words).out)["prices"][0]
    )
    refused = forescale("network", "--cluster", "a100-nvs4", *words, "--preset", "primus")
    assert (refused.code, refused.out) == (2, "")
    assert "preset primus does not support formula of collectives" in refused.err


def test_sizes_in_the_spelling_of_nccl_tests_are_binary(forescale):
    words = ("network", "--cluster", "h100-sxm", "--ranks", 8, "--collectives", "all_gather", "--sizes")
    one, other = (json.loads(forescale(*words, size, "--json").out)["prices"] for size in ("512M", "512MiB"))
    assert one == other and one[0]["num_bytes"] == 512 * 2**20


@pytest.mark.parametrize(("ranks", "used"), [(8, ""), (64, " (64 of 72 devices used)")])
def test_groups_that_leave_devices_of_a_rack_idle_say_so(forescale, ranks, used):
    words = ("--devices", 2048, "--ranks", ranks, "--sizes", "448MiB", "--collectives", "all_to_all")
    ran = forescale("network", "--cluster", "gb200-nvl72", *words)
    assert f"{ranks} ranks, {ranks} a nvlink{used}\n" in ran.out
