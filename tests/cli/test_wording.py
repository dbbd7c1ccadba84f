"""One of a thing is not several: what commands print at the smallest sizes."""

from __future__ import annotations

import re

import pytest

RUN = ("--seq-len", 1024, "--global-batch-size", 1)
ONE = ("llama-3.2-1b", "--cluster", "h100-sxm", "--devices", 1, *RUN)
HELD = ("--fix", "cp=1", "--fix", "micro_batch_size=1")
SEVERAL = re.compile(r"(?<![\d.,×-])\b1 (?:[a-z-]+ )?[a-z-]+(?<![sui])s\b")


def question(*more):
    return ("search", *ONE, *HELD, *more)


@pytest.mark.parametrize(
    "command",
    [
        ("project", *ONE, "--recompute", "full", "--recompute-layers", 1),
        ("project", *ONE, "--recompute-layer-ids", 0, "--offload-activations", 1),
        ("memory", *ONE, "--timeline"),
        ("advise", *ONE),
        question("--top", 1),
        question("--batches", "1"),
        question("--tokens", "1B", "--target-days", 1000),
        question("--tokens", "1T", "--target-days", 1),
        question("--fix", "tp=2"),
        ("report", *ONE, *HELD, "--top", 1, "--details", 1, "--worst", 1),
        ("pipeline", "simulate", "-s", "1f1b", "--pp", 1, "-m", 1),
        ("pipeline", "draw", "-s", "1f1b", "--pp", 1, "-m", 1),
        ("pipeline", "simulate", "-s", "dualpipe", "--pp", 1, "-m", 1),
        ("pipeline", "optimise", "--pp", 1, "-m", 1, "--stage-forward", "1,2"),
    ],
    ids=lambda command: " ".join(map(str, command))[:60],
)
def test_no_plural_follows_a_one(forescale, command):
    ran = forescale(*command)
    assert SEVERAL.findall(" ".join((ran.out + ran.err).split())) == []
