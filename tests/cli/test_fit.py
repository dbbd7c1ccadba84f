from __future__ import annotations

import json

import pytest

CASE = ("llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "16", "--seq-len", "8192", "--global-batch-size", "64")  # fmt: skip
LARGE = ("--tp", "2", "--micro-batch-size", "4")


def test_a_table_and_a_sentence(forescale):
    ran = forescale("fit", *CASE, *LARGE)
    assert ran.code == 0, ran.err
    for text in ("OOM", "lost per GiB", "FITS", "it fits with margin", "legal layouts evaluated"):
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 20
    first = json.loads(forescale("fit", *CASE, *LARGE, "--json").out)["fixes"][0]
    assert ran.out.count(f"{first['tokens_per_s']:,.0f}") == 2  # in the table and in the sentence


def test_the_document_says_what_each_change_sets(forescale):
    body = json.loads(forescale("fit", *CASE, *LARGE, "--json").out)
    assert body["schema"] == "forescale.fit/1"
    assert body["verdict"] == body["now"]["memory"]["verdict"] == "OOM"
    first = body["fixes"][0]
    assert first["verdict"] == "FITS"
    (parts,) = first["sets"]
    for name, value in parts.items():
        assert first["projection"]["strategy"][name] == value
        assert body["now"]["strategy"][name] != value


def test_a_limit_may_be_below_the_device(forescale):
    fitting = json.loads(forescale("fit", *CASE, "--tp", "4", "--json").out)
    limited = json.loads(forescale("fit", *CASE, "--tp", "4", "--max-memory", "20GiB", "--json").out)
    assert fitting["verdict"] == "FITS"
    assert limited["verdict"] == "OOM"
    assert limited["limit_bytes"] == 20 * 2**30
    assert limited["fixes"][0]["peak_high_bytes"] <= 20 * 2**30


def test_what_is_kept_is_not_changed(forescale):
    body = json.loads(forescale("fit", *CASE, *LARGE, "--keep", "micro_batch_size", "--keep", "tp", "--no-pairs", "--json").out)  # fmt: skip
    assert body["fixes"]
    for fix in body["fixes"]:
        assert len(fix["sets"]) == 1
        layout = fix["projection"]["strategy"]
        assert (layout["micro_batch_size"], layout["tp"]) == (4, 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--keep", "tpp"), "unknown_name change"),
        (("--preset", "playbook"), "unsupported_by fit"),
        (("--max-memory", "-1GiB"), "out_of_range --max-memory"),
        (("--tp", "3"), "not_divisible the number of devices"),
        (("--top", "0"), "out_of_range --top"),
    ],
)
def test_bad_input_is_one_sentence(forescale, options, text):
    ran = forescale("fit", *CASE, *options)
    assert ran.code == 2
    assert text in ran.refused
    assert len(ran.err.strip().splitlines()) == 1
