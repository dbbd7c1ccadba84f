"""What could not be said, and what it costs: each word alone, and all together."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model, vocabulary_of
from forescale.errors import SpecError
from forescale.export import export, place
from forescale.face import ask
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.spec.workload import Trainable


def test_words_that_only_count_together_are_listed_and_the_sum_is_not_claimed() -> None:
    """Stage 3 alone gathers again in backward; as torchtitan has it, with parameters kept, it costs no time."""
    question = ask(
        "llama-3.1-8b",
        "h100-sxm",
        devices=16,
        seq_len=4096,
        global_batch_size=64,
        framework="torchtitan",
        zero=1,
    )
    result = export(question)
    zero, reshard = result.unsaid
    assert (zero.word, zero.read, reshard.word, reshard.read) == (
        "strategy.zero",
        3,
        "strategy.reshard",
        "never",
    )
    assert zero.step_time_s is not None
    assert result.read_back.step_time_s - result.projection.step_time_s != zero.step_time_s
    assert reshard.step_time_s is None
    text = " ".join(result.texts[result.main].replace("\n# ", " ").split())
    assert "strategy.reshard default: runs with never; only together with the others" in text
    assert "All together, which is not their sum, as one changes what another costs" in text


def test_one_loss_is_the_sum() -> None:
    question = ask(
        "llama-3-8b",
        "h100-sxm",
        devices=8,
        seq_len=4096,
        global_batch_size=64,
        framework="nanotron",
        optimizer="lion",
    )
    result = export(question)
    (optimizer,) = result.unsaid
    assert optimizer.peak_bytes == result.read_back.memory.peak_bytes - result.projection.memory.peak_bytes
    assert "not their sum" not in result.texts[result.main]


@pytest.mark.parametrize("to", ["megatron", "torchtitan", "deepspeed", "nanotron", "maxtext"])
@pytest.mark.parametrize(("steps", "whole"), [(0.2, 1), (1000.4, 1000), (1000.6, 1001)])
def test_steps_of_a_run_are_the_nearest_whole_ones(to: str, steps: float, whole: int) -> None:
    item = 64 * 4096
    question = ask("llama-3.1-8b", "h100-sxm", devices=8, seq_len=4096, global_batch_size=64, framework=to)
    question = replace(question, workload=replace(question.workload, tokens=steps * item))
    assert export(question).read_back.workload.tokens == whole * item


@pytest.mark.parametrize("to", ["bridge", "primus", "torchtitan", "deepspeed", "nanotron"])
def test_variables_of_the_launch_are_said(to: str) -> None:
    """Set before the program, in the script for Slurm too, and with `env`, which `exec` takes."""
    question = ask(
        "llama-3.1-8b",
        "h100-sxm",
        devices=16,
        seq_len=4096,
        global_batch_size=64,
        framework=to,
        zero=1 if to != "torchtitan" else 3,
    )
    question = replace(question, strategy=replace(question.layout, allocator="expandable_segments"))
    result = export(question, slurm=True)
    assert result.launch.startswith("env ")
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in result.launch
    assert "exec env " in result.texts["slurm.sh"]
    assert "strategy.allocator" not in {item.word for item in result.unsaid}
    for name, text in result.texts.items():
        if name.endswith(".sh"):
            assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_model_without_text_is_refused() -> None:
    with raises(SpecError, "unsupported_by export | gpt3-1t"):
        export(
            ask("gpt3-1t", "h100-sxm", devices=64, seq_len=2048, global_batch_size=64, framework="megatron")
        )


@pytest.mark.parametrize("to", ["megatron", "bridge", "primus", "torchtitan", "nanotron", "maxtext"])
def test_remarks_that_quote_commands_do_not_change_what_a_file_is(to: str, tmp_path: Path) -> None:
    """The head holds a line with --micro-batch-size, which only Megatron-LM's files have otherwise."""
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=16, seq_len=4096, global_batch_size=64, micro_batch_size=2, tp=2,
        zero=1 if to == "nanotron" else 3, framework=to,
    )  # fmt: skip
    result = export(question)
    assert "--micro-batch-size 2" in result.texts[result.main]
    place(result, tmp_path / "out")
    file = tmp_path / "out" / result.main if (tmp_path / "out").is_dir() else tmp_path / "out"
    read = read_file(file, Options(num_devices=16, vocabulary_of=vocabulary_of, model_of=load_model))
    assert read.strategy is not None
    assert read.strategy.micro_batch_size == 2


def test_adapters_beside_narrow_weights_that_cannot_be_said_are_named():
    """Neither goes alone: the type is of weights that are frozen."""
    trainable = Trainable(lora_rank=16)
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=8, seq_len=4096, global_batch_size=32, framework="megatron-core"
    )
    precision = replace(question.workload.precision, frozen="nf4")
    question = replace(
        question, workload=replace(question.workload, trainable=trainable, precision=precision)
    )
    assert {"workload.trainable", "workload.precision.frozen"} == {
        item.word for item in export(question).unsaid
    }


def test_what_is_trained_otherwise_is_listed_though_no_figure_follows() -> None:
    """nanotron has no scaling of Llama 3.1; the word is whole, and named once."""
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=8, seq_len=4096, global_batch_size=64, framework="nanotron"
    )
    result = export(question)
    (rope,) = result.unsaid
    assert (rope.word, rope.step_time_s, rope.peak_bytes) == ("model.layers.attention.rope", 0.0, 0.0)
    text = " ".join(result.texts[result.main].replace("#", "").split())
    explicit = "scaling llama3, factor 8.0, original_seq_len 8192: runs with base 500000.0; changes neither"
    assert f"model.layers.attention.rope base 500000.0, {explicit}" in text
    assert result.read_back.step_time_s == result.projection.step_time_s


@pytest.mark.parametrize(
    ("model", "to", "word"),
    [
        ("pythia-1.4b", "megatron-core", "layers.parallel"),
        ("mistral-7b", "torchtitan", "layers.attention.window"),
    ],
)
def test_another_model_is_named_though_no_figure_follows_from_it(model: str, to: str, word: str) -> None:
    question = ask(model, "h100-sxm", devices=8, seq_len=1024, global_batch_size=8, zero=3, framework=to)
    result = export(question)
    (unsaid,) = (item for item in result.unsaid if item.word == f"model.{word}")
    assert (unsaid.step_time_s, unsaid.peak_bytes) == (0.0, 0.0)
    assert "changes neither" in result.texts[result.main]


@pytest.mark.parametrize("to", ["maxtext", "megatron-core", "torchtitan"])
def test_an_illegal_layout_is_refused_as_one_before_anything_is_written(to: str) -> None:
    question = ask("qwen2.5-0.5b", "h100-sxm", devices=256, seq_len=4096, global_batch_size=64, framework=to)
    with raises(SpecError, "illegal_layout global batch"):
        export(question)


def test_the_line_that_reads_a_file_says_what_it_is_not_taken_for_by_itself() -> None:
    """NeMo's recipes are Megatron-Bridge's, as which they are read; towers of the two are cut otherwise."""
    parts = {"devices": 64, "seq_len": 4096, "global_batch_size": 256, "tp": 4}
    for to, message in (("nemo", "--framework nemo@25.08"), ("megatron-bridge", "")):
        result = export(ask("ministral-3-3b", "h100-sxm", framework=to, **parts))
        (line,) = (line for line in result.texts[result.main].splitlines() if "this file:" in line)
        assert line.partition("--devices 64 ")[2] == f"{message} --images 1".strip()


def test_a_tower_that_cannot_be_written_is_called_one() -> None:
    question = ask(
        "kimi-vl-a3b", "h100-sxm", devices=16, seq_len=4096, global_batch_size=64, framework="primus"
    )
    with raises(SpecError, "unsupported_by primus | kimi-vl-a3b"):
        export(question)


SAME_RUN = ("megatron-core", "megatron-bridge", "nemo", "primus")
"""Frameworks whose files say the same of a run on Megatron-Core."""


@pytest.mark.parametrize("source", SAME_RUN)
@pytest.mark.parametrize("to", SAME_RUN)
def test_a_converted_run_is_the_same_run(source: str, to: str) -> None:
    """Defaults of the other framework (capacity of experts, types of gradients) do not replace those of the run."""
    question = ask(
        "qwen3-235b-a22b", "h200-sxm", devices=512, seq_len=4096, global_batch_size=2048, tp=4, ep=8, pp=8,
        framework=source,
    )  # fmt: skip
    result = export(question, to)
    given, written = question.layout, result.question.layout
    kept = ("routing", "recompute", "overlap", "stage_layers", "dispatcher", "graphs", "schedule", "zero")
    assert [getattr(written, name) for name in kept] == [getattr(given, name) for name in kept]
    assert result.question.workload == question.workload
    assert result.unsaid == ()
    assert result.read_back.memory.peak_bytes == result.projection.memory.peak_bytes
    assert result.read_back.step_time_s == result.projection.step_time_s


def test_point_to_point_overlap_is_written_as_it_is_without_virtual_stages() -> None:
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=16, seq_len=4096, global_batch_size=64, pp=2, framework="nemo"
    )
    result = export(question)
    assert "cfg.model.overlap_p2p_comm = False" in result.texts[result.main]
