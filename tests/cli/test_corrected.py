"""The command that the error of a value suggests."""

from __future__ import annotations

import pytest

from forescale.cli.corrected import COUNT, corrected
from forescale.errors import (
    SpecError,
    UnknownNameError,
    no_effect,
    not_divisible,
    not_one_of,
    out_of_range,
    wrong_suffix,
)
from forescale.violation import ForescaleError

ONE = SpecError(not_divisible("global_batch_size", 7, 4, "dp 4 × micro_batch_size 1"), nearest=(8, 4))
MULTIPLE = SpecError("two rules; of another", causes=(SpecError("no field"), ONE))
SUFFIX = wrong_suffix("--plot", "p.png", (".html", ".svg"))
COMPILED = not_one_of("--vary compile", "on", ("none", "default"))
NAME = UnknownNameError("cluster", "h100-sxn", ("h100-sxm", "b200"))


@pytest.mark.parametrize(
    ("error", "typed", "suggested"),
    [
        (
            no_effect(["--devices", "--nodes"], "counts are given"),
            "search m --devices 8 --device-counts 8,16",
            "search m --device-counts 8,16",
        ),
        (
            no_effect(["--devices", "--nodes"], "counts are given"),
            "search m --device-counts 8,16 --nodes=2",
            "search m --device-counts 8,16",
        ),
        (no_effect("memory.peak", "a table is shown"), "explain m memory.peak --table", "explain m --table"),
        (
            MULTIPLE,
            "project m --devices 4 --global-batch-size 7",
            "project m --devices 4 --global-batch-size 8",
        ),
        (
            MULTIPLE,
            "project m --global-batch-size=7 --seq-len 7",
            "project m --global-batch-size=8 --seq-len 7",
        ),
        (MULTIPLE, "project plan.toml", ""),  # the file has it
        (
            not_divisible("global_batch_size", 7, 4),
            "project m --global-batch-size 7",
            "",
        ),  # its text is not read
        (SUFFIX, "memory compare m --plot p.png", "memory compare m --plot p.svg"),
        (COMPILED, "compare m --vary compile=on,none", "compare m --vary compile=default,none"),
        (COMPILED, "compare on --vary compile=on,none", ""),  # two places
        (NAME, "project m --cluster h100-sxn", "project m --cluster h100-sxm"),
        (NAME, "compare m --cluster b200,h100-sxn", "compare m --cluster b200,h100-sxm"),
        (out_of_range("tp", 0, "1 or more"), "project m --tp 0", ""),
    ],
)
def test_the_nearest_value_is_in_the_command(error: ForescaleError, typed: str, suggested: str) -> None:
    expected = f"For example: forescale {suggested}" if suggested else ""
    assert corrected(error, typed.split()) == expected


def test_the_suggested_command_runs(forescale) -> None:  # type: ignore[no-untyped-def]
    words = ["fit", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "2", "--global-batch-size", "1"]
    refused = forescale(*words)
    assert refused.code == 2
    example = refused.err.strip().partition("For example: forescale ")[2].split()
    assert example == [*words[:-1], "2"]
    assert forescale(*example).code == 0


def test_a_layout_that_breaks_rules_is_corrected_in_one_place(forescale) -> None:  # type: ignore[no-untyped-def]
    words = ["project", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "64", "--pp", "64"]
    refused = forescale(*words, "--global-batch-size", "64")
    assert refused.error.causes[0].nearest == (32,)
    assert refused.err.strip().endswith("--devices 64 --pp 32 --global-batch-size 64")


def test_a_picture_gets_a_suffix_that_is_written(forescale, tmp_path) -> None:  # type: ignore[no-untyped-def]
    words = ("pipeline", "draw", "1f1b", "--pp", "2", "-m", "2", "-o")
    refused = forescale(*words, tmp_path / "p.png")
    assert refused.err.strip().endswith(f"-o {tmp_path / 'p.svg'}")


def test_a_batch_in_tokens_is_counted_in_sequences(forescale) -> None:  # type: ignore[no-untyped-def]
    words = ("project", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "8")
    for length, batch in ((("--seq-len", "8k"), "256"), ((), "512")):
        refused = forescale(*words, *length, "--global-batch-size", "2M")
        assert refused.code == 2
        assert refused.err.strip().endswith(f"--global-batch-size {batch}")


def test_what_is_missing_is_added(forescale) -> None:  # type: ignore[no-untyped-def]
    words = (
        "project",
        "qwen2.5-vl-7b",
        "--cluster",
        "h100-sxm",
        "--devices",
        "8",
        "--global-batch-size",
        "8",
    )
    refused = forescale(*words)
    assert refused.error.nearest == (448,) or refused.error.causes[0].nearest == (448,)
    assert refused.err.strip().endswith("--image-size 448")
    assert forescale(*words, "--image-size", "448").code == 0


def test_devices_that_degrees_do_not_divide_are_fewer_in_the_command():
    error = SpecError(not_divisible(COUNT, 16384, 96, "tp 8 × pp 12"))
    words = ["run", "m", "--devices", "16384", "--tp", "8", "--pp", "12"]
    assert corrected(error, words) == "For example: forescale run m --devices 16320 --tp 8 --pp 12"


def test_a_file_that_is_not_read_is_replaced_by_the_options_that_ask_the_same(forescale, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "train.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\nsteps = 100\n'
        "[parallelism]\ntensor_parallel_degree = 2\npipeline_parallel_degree = 2\n"
    )
    wanted = ["--framework", "torchtitan@0.2-eager", "--tp", "2", "--pp", "2", "--micro-batch-size", "1"]
    for line in (
        ["project", f"{file}", "--cluster", "h100"],
        ["project", "llama-3.1-8b", "--config", f"{file}", "--cluster", "h100", "--devices", "16"],
        ["run", f"--plan={file}", "--cluster", "h100"],
        ["memory", "layout", f"{file}", "--cluster", "h100", "--tp", "4"],
    ):
        refused = forescale(*line)
        assert refused.error.code == "removed"
        example = refused.err.strip().partition("For example: forescale ")[2].split()
        assert "llama-3.1-8b" in example and not any(file.name in word for word in example)
        assert {*wanted} - {"2"} <= {*example}
        assert example.count("--tp") == 1 and ("--tp 4" in " ".join(example)) == ("4" in line)
        assert forescale(*example).code == 0, example
