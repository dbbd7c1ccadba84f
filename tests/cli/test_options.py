"""Words of other programs, and lengths as they are spoken of."""

from __future__ import annotations

import json

import pytest
from tests.cli.questions import DENSE

BATCH = ("--global-batch-size", 64)


def projected(forescale, *words):
    ran = forescale("project", "llama-3.1-8b", *words, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8192), ("128K", 131_072), ("1M", 1_048_576)]
)
def test_lengths_in_k_are_of_1024(forescale, text, tokens):
    result = projected(forescale, "--cluster", "h100-sxm", "--devices", 16, *BATCH, "--seq-len", text)
    assert result["workload"]["seq_len"] == tokens


@pytest.mark.parametrize("text", ["8kk", "k", "1.5k", "eight", ""])
def test_what_is_no_length_is_one_sentence(forescale, text):
    ran = forescale(
        "project", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", 16, *BATCH, "--seq-len", text
    )
    assert (ran.code, ran.out) == (2, "")
    assert "--seq-len" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_primus_options_mean_what_ours_do(forescale):
    machine = ("--cluster", "mi300x", "--seq-len", 4096, *BATCH)
    ours = projected(forescale, *machine, "--nodes", 2)
    theirs = projected(forescale, *machine, "--target-nodes", 2, "--profiling-mode", "simulate")
    assert theirs == ours


def test_a_measurement_is_needed_where_one_is_asked_for(forescale):
    alone = forescale("project", *DENSE, "--profiling-mode", "benchmark")
    assert (alone.code, alone.out) == (2, "")
    assert (alone.error.code, alone.error.key) == ("required_with", "a measurement (--load-benchmark FILE)")
    assert "--mode benchmark" in alone.err
