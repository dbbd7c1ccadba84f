"""Modules that no library knows, as the examples have them: a trace, a projection and a search."""

import runpy
from pathlib import Path

import pytest
import torch

import forescale as fs

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"own_dit": {"depth": 3, "width": 64, "heads": 4}, "own_unet": {"widths": (8, 16, 32)}}


@pytest.mark.parametrize(("name", "pipeline"), [("own_dit", True), ("own_unet", False)])
def test_a_search_over_fsdp_and_pipeline(name, pipeline):
    with torch.device("meta"):
        module, inputs, loss = runpy.run_path(str(EXAMPLES / f"{name}.py"))["build"](**SMALL[name])
    model = fs.trace(module.bfloat16(), inputs, loss=loss, seq_len=32)
    run = {"devices": 4, "seq_len": 32, "global_batch_size": 16, "framework": "transformers"}
    projection = fs.project(model, "h200-sxm", zero=3, dp_shard=4, **run)
    assert projection.memory.peak_bytes > 0.0
    assert not any("neither its memory" in note.text for note in projection.notes)
    free = {**run, "framework": "none"}  # transformers runs no pipeline
    stages = {result.strategy.pp for result in fs.search(model, "h200-sxm", **free).best}
    assert (max(stages) > 1) == pipeline
