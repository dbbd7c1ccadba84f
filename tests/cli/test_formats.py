"""`forescale formats FILE`: what a file is, of logs and profiler traces as well."""

import pytest
from tests.errors import raises

from forescale.cli.recognise import _explained
from forescale.errors import ReaderError

TRACE = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}'
LOG = "iteration 10/ 100 | elapsed time per iteration (ms): 1234.5 | global batch size: 64 |\n"
RECIPE = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\n"


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [("rank0.json", TRACE, "profile"), ("out.txt", LOG, "megatron"), ("a.yaml", RECIPE, "llamafactory")],
)
def test_a_file_is_recognised(tmp_path, name, text, form):
    (tmp_path / name).write_text(text)
    rows = {row["fact"]: row["value"] for row in _explained(tmp_path / name)}
    assert rows["format"] == form


def test_what_is_no_database_is_not_taken_for_a_log(tmp_path):
    (tmp_path / "run.sqlite").write_text("no database")
    with raises(ReaderError, "wrong_format an SQLite database"):
        _explained(tmp_path / "run.sqlite")


def test_a_script_that_only_starts_another_is_what_that_one_is(tmp_path):
    (tmp_path / "run.sh").write_text("bash train.sh\n")
    flags = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100"
    (tmp_path / "train.sh").write_text(f"torchrun pretrain_gpt.py {flags} --micro-batch-size 1\n")
    rows = {row["fact"]: row["value"] for row in _explained(tmp_path / "run.sh")}
    assert (rows["format"], "pretrain_gpt.py" in rows["because of"]) == ("megatron", True)
