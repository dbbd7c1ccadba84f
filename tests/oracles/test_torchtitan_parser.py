"""torchtitan's own configuration manager understands what we write as we meant it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from tests.frameworks.torchtitan.plans import titan_plans
from tests.oracles.parsers import asked_of, needs

from forescale.export import export
from forescale.frameworks.torchtitan.writer import NAMES, stage_layers
from forescale.question import Question
from forescale.spec import Recompute

PACKAGE = "torchtitan-0.3.0"
RECOMPUTE = (
    Recompute(),
    Recompute(granularity="full"),
    Recompute(granularity="policy", policy="torch_per_op_compiled"),
)


def understood(questions: list[Question], folder: Path) -> list[dict[str, Any]]:
    """What torchtitan makes of each folder, with the words of its launch."""
    requested = []
    for at, question in enumerate(questions):
        result = export(question)
        place = folder / str(at)
        for name, text in result.texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        parts = shlex.split(result.launch.partition("torchtitan.train")[2])
        world = question.cluster.num_devices
        requested.append({"folder": str(place), "arguments": parts, "world": world})
    return asked_of("torchtitan_parser.py", PACKAGE, requested)


def meant(question: Question) -> dict[str, Any]:
    """What torchtitan must understand of a plan, in its words."""
    layout, workload, model = question.layout, question.workload, question.model
    values: dict[str, Any] = {
        **{name: getattr(layout, name) for name in ("cp", "tp", "pp", "ep")},
        "dp_replicate": layout.dp_replicate if layout.zero else layout.dp,
        "dp_shard": layout.dp_shard if layout.zero else 1,
        "layers": list(stage_layers(question)),
        "reshard": layout.reshard,
        "local_batch_size": workload.global_batch_size // layout.dp
        if layout.pp > 1
        else layout.micro_batch_size,
        "global_batch_size": workload.global_batch_size,
        "seq_len": workload.seq_len,
        "dtype": "float32",
        "param": "bfloat16",
        "compile": True,
        "recompute": {"none": "none", "full": "full", "policy": "selective"}[layout.recompute.granularity],
        "dim": model.hidden_size,
        "vocab_size": model.vocab_size,
    }
    if layout.pp > 1:
        values["micro_batch_size"] = layout.micro_batch_size
        values["schedule"] = NAMES[layout.schedule or ("1f1b" if layout.vpp == 1 else "interleaved-1f1b")]
    return values | {"sp": layout.sp, "loss": "ChunkedLossWrapper"}


@needs(PACKAGE)
def test_plans_are_understood_as_they_were_meant(tmp_path: Path) -> None:
    drawn = titan_plans("torchtitan@0.3", 96, recompute=RECOMPUTE)
    request = [item for item in drawn if item.workload.precision.compute == "bf16"][:48]
    wrong = []
    for question, answer in zip(request, understood(request, tmp_path), strict=True):
        requested = meant(question)
        if "refused" in answer:
            wrong.append(f"{answer['refused']}: {question.layout}")
        elif differs := {
            name: (value, answer[name]) for name, value in requested.items() if answer[name] != value
        }:
            wrong.append(f"{differs}: {question.layout}")
    assert wrong == [], "\n".join(item[:420] for item in wrong[:6])
