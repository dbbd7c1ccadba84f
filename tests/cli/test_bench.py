"""`forescale bench` where it measures nothing: files merged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forescale.cli.app import run
from forescale.io.bench import merged, read_bench, write_bench

ARTIFACT = Path(__file__).parents[1] / "data" / "bench" / "cpu-dense.json"


@pytest.fixture
def files(tmp_path):
    artifact = read_bench(ARTIFACT)
    result = {"a": artifact, "b": replace(artifact, kernels=artifact.kernels[:1], steps=())}
    for name, item in result.items():
        write_bench(item, tmp_path / f"{name}.json")
    return [str(tmp_path / f"{name}.json") for name in result]


def test_several_files_are_merged_into_one(files, tmp_path, capsys):
    target = tmp_path / "both.json"
    assert run(["bench", "--merge", files[0], "--merge", files[1], "--save", str(target)]) == 0
    assert f"wrote {target}" in capsys.readouterr().out.replace("\n", "")
    assert read_bench(target) == merged({name: read_bench(name) for name in files})


def test_files_that_contradict_each_other_are_not_merged(files, tmp_path, capsys):
    other = replace(read_bench(files[1]), config={**read_bench(files[1]).config, "devices": 2})
    write_bench(other, files[1])
    assert run(["bench", "--merge", files[0], "--merge", files[1], "--save", str(tmp_path / "c.json")]) != 0
    assert "differ in their devices" in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


def test_what_was_merged_can_be_printed_as_json(files, capsys):
    assert run(["bench", "--merge", files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "forescale.bench/1"


@pytest.mark.parametrize(
    ("words", "key", "job"),
    [
        (("--merge", "a.json", "--seconds", "3"), "--seconds", "--merge"),
        (("llama-3.1-8b", "--merge", "a.json"), "MODEL, its options", "--merge"),
        (("--check", "a.json", "--save", "b.json"), "--save", "--check"),
        (("--suite", "memory", "--seconds", "3"), "--seconds", "--suite memory"),
    ],
)
def test_what_a_job_does_not_read_is_refused(words, key, job, forescale):
    ran = forescale("bench", *words)
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error.code, ran.error.key) == ("no_effect", key)
    assert f"no effect: {job} " in ran.err


def test_a_check_without_its_file_is_refused_before_it_starts(capsys, tmp_path):
    names = (
        "llama-3.1-8b",
        "--cluster",
        "h100-sxm",
        "--devices",
        "8",
        "--seq-len",
        "4096",
        "--global-batch-size",
        "64",
    )
    assert run(["bench", *names, "--check", str(tmp_path / "none.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("none.json: there is no such file")


def test_what_to_time_next_is_shown_without_torch(capsys):
    example = Path(__file__).parents[2] / "examples" / "bench.json"
    question = (
        "bench", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "64", "--seq-len", "4096", "--global-batch-size",
        "256", "--tp", "2", "--pp", "2", "--next", str(example),
    )  # fmt: skip
    assert run([*question]) == 0
    shown = capsys.readouterr().out
    assert "attention backward" in shown
    assert run([*question, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "forescale.bench_next/1"
    stakes = [item["at_stake"] for item in document["proposed"]]
    assert stakes == sorted(stakes, reverse=True)
    assert {"what", "share", "low", "high", "num_ranks", "operator"} <= set(document["proposed"][0])


def test_two_jobs_at_once_are_refused(files, forescale):
    ran = forescale("bench", "--merge", files[0], "--suite", "device")
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error.code, ran.error.key, ran.error.fix) == (
        "conflicts", "--suite, --merge", "ask for one at a time"
    )  # fmt: skip
