"""torchtitan's own configuration manager understands what we write as we meant it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.frameworks.torchtitan.plans import titan_plans
from tests.oracles.parsers import asked_of, needs

from forescale.export import export
from forescale.frameworks.torchtitan.writer import NAMES, stage_layers
from forescale.question import Question
from forescale.spec import Recompute

PACKAGES = {"0.2": "torchtitan-0.2.2", "0.3": "torchtitan-0.3.0"}
RECOMPUTE = (
    Recompute(),
    Recompute(granularity="full"),
    Recompute(granularity="policy", policy="torch_per_op_compiled"),
)


def understood(asked: list[Question], release: str, folder: Path) -> list[dict[str, Any]]:
    """What torchtitan makes of each folder, with the words of its launch."""
    wanted = []
    for at, question in enumerate(asked):
        result = export(question)
        place = folder / str(at)
        for name, text in result.texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        words = shlex.split(result.launch.partition("torchtitan.train")[2])
        world = question.cluster.num_devices
        wanted.append({"folder": str(place), "arguments": words, "world": world, "release": release})
    return asked_of("torchtitan_parser.py", PACKAGES[release], wanted)


def meant(question: Question, release: str) -> dict[str, Any]:
    """What torchtitan must understand of a plan, in its words."""
    strategy, workload, model = question.layout, question.workload, question.model
    found: dict[str, Any] = {
        **{name: getattr(strategy, name) for name in ("cp", "tp", "pp", "ep")},
        "dp_replicate": strategy.dp_replicate if strategy.zero else strategy.dp,
        "dp_shard": strategy.dp_shard if strategy.zero else 1,
        "layers": list(stage_layers(question)),
        "reshard": strategy.reshard,
        "local_batch_size": workload.global_batch_size // strategy.dp
        if strategy.pp > 1
        else strategy.micro_batch_size,
        "global_batch_size": workload.global_batch_size,
        "seq_len": workload.seq_len,
        "dtype": "float32",
        "param": "bfloat16",
        "compile": True,
        "recompute": {"none": "none", "full": "full", "policy": "selective"}[strategy.recompute.granularity],
        "dim": model.hidden_size,
        "vocab_size": model.vocab_size,
    }
    if strategy.pp > 1:
        found["micro_batch_size"] = strategy.micro_batch_size
        found["schedule"] = NAMES[strategy.schedule or ("1f1b" if strategy.vpp == 1 else "interleaved-1f1b")]
    if release == "0.2" and model.is_moe and strategy.ep > 1:
        found["etp"] = strategy.etp
    if release == "0.3":
        found |= {"sp": strategy.sp, "loss": "ChunkedLossWrapper"}
    return found


@pytest.mark.parametrize(
    "release", [pytest.param(each, marks=needs(name)) for each, name in PACKAGES.items()]
)
def test_plans_are_understood_as_they_were_meant(release: str, tmp_path: Path) -> None:
    drawn = titan_plans(f"torchtitan@{release}", 96, recompute=RECOMPUTE)
    asked = [each for each in drawn if release == "0.2" or each.workload.precision.compute == "bf16"][:48]
    wrong = []
    for question, answer in zip(asked, understood(asked, release, tmp_path), strict=True):
        wanted = meant(question, release)
        if "refused" in answer:
            wrong.append(f"{answer['refused']}: {question.layout}")
        elif differs := {
            name: (value, answer[name]) for name, value in wanted.items() if answer[name] != value
        }:
            wrong.append(f"{differs}: {question.layout}")
    assert wrong == [], "\n".join(each[:420] for each in wrong[:6])
