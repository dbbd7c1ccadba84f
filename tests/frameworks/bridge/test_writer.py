"""What is written for Megatron-Bridge round-trips exactly; recipes that cannot be are refused in a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.errors import raises, refusal
from tests.export.laws import check_writer
from tests.plans import plans

from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.export import export
from forescale.face import ask
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.reading import Options
from forescale.question import Question
from forescale.spec.workload import FrozenPart, Trainable

LOST = ("workload.precision.parameters",)
"""Parameters in fp8 need sharded states, in Megatron-LM too."""
AWARE = "use_precision_aware_optimizer"
SMALL = (
    "cfg.model = GPTModelProvider(num_layers=4, hidden_size=256, num_attention_heads=4, vocab_size=1000)"
    "; cfg.dataset.seq_length = 512; cfg.train.global_batch_size = 8; cfg.train.micro_batch_size = 1"
)


def test_plans_read_back_to_the_bit() -> None:
    written = check_writer(plans("bridge", 60), unsaid=LOST)
    assert sum(not result.unsaid for result in written) >= 50


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("cfg.model.num_layer = 4", UnknownKeyError, "unknown_key num_layer"),
        ("cfg.mdel.num_layers = 4", UnknownKeyError, "unknown_key mdel"),
        ("cfg.checkpoit.ckpt_format = 'torch'", UnknownKeyError, "unknown_key checkpoit"),
        ("cfg.optimizr = OptimizerConfig()", UnknownKeyError, "unknown_key optimizr"),
        (
            "plan.ddp.overlap_grad_reduce = True; plan.modle.bf16 = 1",
            UnknownKeyError,
            "unknown_key modle",
        ),
        (
            "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlp=True)",
            UnknownKeyError,
            "unknown_key tp_comm_overlp",
        ),
        ("cfg.model.num_layers = depth()", ReaderError, "wrong_type it"),
        (
            "cfg.dataset.sequence_length = 4096; cfg.model.seq_length = 8192",
            ReaderError,
            "line 2: model.seq_length 8192 and dataset.sequence_length 4096 must be the same",
        ),
        ("cfg.model.num_layers = = 4", ReaderError, "cannot_parse Python"),
        (
            f"{SMALL}; cfg.optimizer.exp_avg_dtype = torch.bfloat16; cfg.optimizer.{AWARE} = False",
            ReaderError,
            f"fp32 requires optimizer.{AWARE}",
        ),
    ],
)
def test_refusals(tmp_path: Path, line: str, kind: type[Exception], said: str) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(f"import megatron.bridge\n{line}\n")
    with pytest.raises(kind, match=r"recipe\.py") as refused:
        BridgeReader().read(path, Options())
    assert said in refusal(refused.value)


def test_types_that_need_what_the_recipe_below_may_set_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(f"import megatron.bridge\n{SMALL}; cfg.optimizer.exp_avg_dtype = torch.bfloat16\n")
    reading = BridgeReader().read(path, Options(num_devices=8))
    assert any(f"exp_avg_dtype is taken as fp32: {AWARE}" in note for note in reading.notes)
    assert reading.workload is not None and reading.workload.precision.moments == "fp32"


def test_what_overlaps_goes_over_the_other_sections(tmp_path: Path) -> None:
    sizes = ("num_layers=2, hidden_size=64, num_attention_heads=4, vocab_size=100, num_layers_in_first_pipeline_stage=None, "
             "tensor_model_parallel_size=2, sequence_parallel=True, tp_comm_overlap=False")  # fmt: skip
    overlap = "tp_comm_overlap=True, overlap_grad_reduce=None, bucket_size=3"
    path = tmp_path / "recipe.py"
    path.write_text(
        f"import megatron.bridge\ncfg.model = GPTModelProvider({sizes})\ncfg.train.micro_batch_size = 1\n"
        f"cfg.dataset.seq_length = 16\ncfg.ddp.overlap_grad_reduce = True\ncfg.comm_overlap = CommOverlapConfig({overlap})\n"
    )
    layout = BridgeReader().read(path, Options(num_devices=4)).strategy
    assert layout is not None
    assert (layout.overlap.tensor, layout.overlap.grad_reduce) == (True, True)


@pytest.mark.parametrize(
    ("model", "frozen", "layout"),
    [
        ("gemma-3-4b", (), {}),
        ("exaone-4.5-33b", (), {"tp": 8}),
        ("ministral-3-8b", ("vision",), {"tp": 2}),
        ("qwen2.5-vl-7b", ("vision",), {"tp": 2}),
        ("qwen3-vl-30b-a3b", ("vision", "projector"), {"ep": 8}),
        ("qwen3.5-27b", ("embedding", "attention", "ffn", "moe", "norm", "head", "vision"), {"tp": 4, "pp": 2}),
    ],
)  # fmt: skip
def test_a_model_with_a_tower_is_built_by_its_name(
    model: str, frozen: tuple[FrozenPart, ...], layout: dict[str, int]
) -> None:
    (result,) = check_writer([seeing(model, frozen, **layout)])
    text = result.texts["recipe.py"]
    assert f"cfg.model.freeze_vision_model = {'vision' in frozen}" in text
    assert f"cfg.model.freeze_language_model = {'head' in frozen}" in text
    assert "cfg.model.num_layers" not in text
    assert "--images 2 --image-size 448" in text
    assert result.read_back.vision == result.projection.vision


def test_a_tower_that_no_recipe_trains_is_refused() -> None:
    with raises(SpecError, "unsupported_by megatron-bridge | llava-1.5-7b"):
        export(seeing("llava-1.5-7b", ()))


def seeing(model: str, frozen: tuple[FrozenPart, ...], **layout: int) -> Question:
    images = {"count": 2, "size": 448}
    question = ask(model, "h100-sxm", devices=16, seq_len=8192, global_batch_size=64, framework="bridge", images=images, **layout)  # fmt: skip
    return replace(question, workload=replace(question.workload, trainable=Trainable(frozen=frozen)))
