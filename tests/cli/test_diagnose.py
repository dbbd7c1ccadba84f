from __future__ import annotations

import json

import pytest

QUESTION = [
    "llama-3.1-8b",
    "--cluster",
    "h100-sxm",
    "--devices",
    "8",
    "--seq-len",
    "8192",
    "--global-batch-size",
    "64",
    "--zero",
    "3",
]


def document(forescale, *measured):
    ran = forescale(
        "diagnose", *QUESTION, *[item for one in measured for item in ("--measured", one)], "--json"
    )
    return json.loads(ran.out)


def test_a_figure_a_log_and_both(forescale, tmp_path):
    path = tmp_path / "train.log"
    lines = [
        f"step: {n}  loss: 7.1  memory: 79.00GiB(99%)  tps: 5,000  tflops: 250  mfu: 25%"
        for n in range(1, 20)
    ]
    path.write_text("\n".join(lines))
    seconds = 64 * 8192 / 8 / 5000
    for measured in (
        (f"step={seconds}s",),
        ("tokens_per_s_per_device=5000",),
        (path,),
        (path, f"step={seconds}s"),
    ):
        body = document(forescale, *measured)
        assert (body["verdict"], body["measured_s"]) == ("slower", pytest.approx(seconds))
        assert body["causes"][0]["explained"] > 0.8
    assert any("memory: 79.0 GiB" in remark for remark in document(forescale, path)["remarks"])


def test_what_was_expected_has_no_cause(forescale):
    body = document(forescale, "step=7s")
    assert (body["verdict"], body["causes"]) == ("as expected", [])


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        ((), "missing --measured"),
        (("steps=3s",), "not_one_of --measured"),
        (("step=0s",), "wrong_type --measured step"),
        (("memory=70GiB",), "missing the time of a step"),
        (("no.log",), "not_found"),
    ],
)
def test_bad_input(forescale, measured, error):
    flags = [item for one in measured for item in ("--measured", one)]
    ran = forescale("diagnose", *QUESTION, *flags)
    assert (ran.code, ran.refused.startswith(error)) == (2, True), ran.refused
