"""Exported files read back by themselves, with the options that their head names, to what the export says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.errors import raises

from forescale.cli.app import run
from forescale.errors import ReaderError, SpecError
from forescale.export import Export, export, place
from forescale.face import ask
from forescale.frameworks.readers import training_file
from forescale.frameworks.writers import WRITERS
from forescale.spec.layout import Recompute

ON = {"devices": 8, "seq_len": 2048, "global_batch_size": 32}
FRAMEWORKS = [name for writer in WRITERS for name in writer.frameworks]
QUESTIONS = (
    ("llama-3.2-1b", {"zero": 1, "recompute": "none"}),
    ("qwen3-0.6b", {"zero": 3, "recompute": "full"}),
    ("gemma-2-2b", {"tp": 2}),
    ("gemma-3-4b", {"tp": 2}),
    ("qwen3-30b-a3b", {"ep": 4}),
)
LARGEST = 1e-12
"""Relative difference of figures."""


def written(model: str, layout: dict, framework: str) -> Export | str:
    """An export, or why there is none."""
    try:
        return export(ask(model, "h100-sxm", **ON, **layout, framework=framework))
    except SpecError as error:
        return str(error)


def alone(result: Export, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    """What the command line projects the files alone to do."""
    place(result, folder)
    file = folder / result.main if folder.is_dir() else folder
    options = ["project", str(file), "--cluster", "h100-sxm", "--devices", "8", *result.options, "--json"]
    code = run(options)
    readouterr = capsys.readouterr()
    assert code == 0, readouterr.err
    return json.loads(readouterr.out)


def figures(document: dict) -> tuple[float, ...]:
    memory = document["memory"]
    return (document["step_time_s"], *(stage["peak_bytes"] for stage in memory["stages"]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_files_alone_are_projected_as_the_export_says(framework, tmp_path, capsys):
    done = 0
    for index, (model, layout) in enumerate(QUESTIONS):
        result = written(model, layout, framework)
        if isinstance(result, str):
            assert framework.partition("@")[0] in result.lower().replace(" ", "-"), result
            continue
        (tmp_path / str(index)).mkdir()
        read = figures(alone(result, tmp_path / str(index) / "out", capsys))
        peak_byteses = (
            result.read_back.step_time_s,
            *(stage.peak_bytes for stage in result.read_back.memory.stages),
        )
        assert read == pytest.approx(peak_byteses, rel=LARGEST), (model, layout)
        if not result.unsaid:
            projection = result.projection
            assert peak_byteses == (
                projection.step_time_s,
                *(stage.peak_bytes for stage in projection.memory.stages),
            )
        done += 1
    assert done, "at least one of the questions is written"


def test_a_folder_with_training_arguments_is_read_as_such(tmp_path, capsys):
    result = written("llama-3.2-1b", {"zero": 3, "recompute": "full"}, "deepspeed-zero")
    assert isinstance(result, Export)
    place(result, tmp_path / "out")
    assert run(["project", str(tmp_path / "out"), "--cluster", "h100-sxm", "--devices", "8", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["strategy"]["zero"], read["strategy"]["recompute"]["granularity"]) == (3, "full")
    assert read["step_time_s"] == result.projection.step_time_s
    (tmp_path / "out" / "other.yaml").write_text("output_dir: x\nper_device_train_batch_size: 1\n")
    with raises(ReaderError, "choose_one configurations of training"):
        training_file(tmp_path / "out")


def test_the_head_begins_with_the_figures_of_what_is_written():
    result = written("llama-3.2-1b", {"recompute": "none"}, "maxtext")
    assert isinstance(result, Export)
    lines = result.texts[result.main].splitlines()
    projected = next(line for line in lines if line.startswith("# projected:"))
    question = next(line for line in lines if line.startswith("# as asked:"))
    assert f"step {result.read_back.step_time_s:.3f} s" in projected
    assert f"step {result.projection.step_time_s:.3f} s" in question


def test_what_a_framework_cannot_replay_is_refused_to_it():
    question = ask("llama-3.2-1b", "h100-sxm", **ON, framework="maxtext")
    assert (question.layout.recompute.granularity, question.violation(question.layout)) == ("full", "")
    none = replace(question.layout, recompute=Recompute())
    assert question.violation(none).startswith("maxtext cannot run this: recompute none (it takes ")
