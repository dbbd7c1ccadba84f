"""The command line that asks a question again: no more words than change it, and none too few."""

import shlex

import pytest

from forescale import ask
from forescale.cost.run_calibration import FRAMEWORK
from forescale.io.line import project_line

ONE = {"cluster": "h100-sxm", "devices": 64, "seq_len": 8192, "global_batch_size": 64}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"cp_kind": "ring"}, False),
        ({"cp_kind": "ring", "cp": 2}, True),
        ({"reshard": "never", "zero": 1}, False),
        ({"reshard": "never", "zero": 3}, True),
        ({"sp": False}, False),
        ({"sp": False, "tp": 2}, True),
    ],
)
def test_what_no_formula_reads_is_not_said(words, said):
    line = project_line(ask("llama-3.1-8b", **ONE, **words))
    assert (next(iter(words)).replace("_", "-") in line.replace("_", "-")) == said


def test_a_model_without_its_tower_is_named_with_no_images():
    question = ask("llama-4-scout", **ONE, images={"count": 0}, ep=16, tp=2)
    parts = shlex.split(project_line(question))
    assert parts[0] == "llama-4-scout"
    assert "workload.images.count=0" in parts
    seeing = ask("llama-4-scout", **ONE, ep=16, tp=2)
    assert "images" not in project_line(seeing)


@pytest.mark.parametrize("framework", ["torchtitan", "transformers"])
@pytest.mark.parametrize("granularity", ["none", "full"])
def test_recompute_is_said_where_the_framework_has_another_default(framework, granularity):
    recompute = {"granularity": granularity}
    question = ask("llama-3.1-8b", **ONE, zero=3, framework=framework, recompute=recompute)
    assert question.strategy.recompute.granularity == granularity
    words = shlex.split(project_line(question))
    given = "strategy.recompute.granularity=none" in words
    assert given == (granularity == "none" and framework == "torchtitan")


@pytest.mark.usefixtures("usual_frameworks")
def test_the_stage_that_decides_the_usual_framework_is_said():
    question = ask("llama-3.1-8b", **ONE, zero=3)
    assert FRAMEWORK in question.assumed
    assert question.framework.name == "torchtitan"
    assert "--zero 3" in project_line(question)
