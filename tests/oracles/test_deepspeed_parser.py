"""DeepSpeed's own configuration class understands what we write as we meant it."""

from __future__ import annotations

import json
from typing import Any

from tests.frameworks.deepspeed.test_writer import without_pipeline
from tests.oracles.parsers import asked_of, needs

from forescale.export import export
from forescale.question import Question
from forescale.spec.layout import Offload

PACKAGE = "deepspeed-0.19.8"


def meant(question: Question) -> dict[str, Any]:
    """What DeepSpeed must understand of a plan, in its words."""
    strategy, workload = question.layout, question.workload
    return {
        "dp": strategy.dp,
        "train_batch_size": workload.global_batch_size,
        "micro": strategy.micro_batch_size,
        "steps": workload.global_batch_size // (strategy.dp * strategy.micro_batch_size),
        "zero": strategy.zero,
        "overlap": strategy.overlap.grad_reduce,
        "bf16": workload.precision.activations == "bf16",
        "gradients": workload.precision.gradients,
        "offload": "cpu" if strategy.offload.optimizer else None,
        "tp": strategy.tp if strategy.tp > 1 else 0,
        "ep": strategy.ep,
    }


@needs(PACKAGE)
def test_plans_are_understood_as_they_were_meant() -> None:
    asked = without_pipeline(48, offload=(Offload(), Offload(optimizer=1.0)))
    wanted = []
    for question in asked:
        strategy = question.layout
        config = json.loads(export(question).texts["ds_config.json"])
        wanted.append({"config": config, "world": strategy.num_devices, "inner": strategy.tp * strategy.cp})
    wrong = []
    for question, answer in zip(asked, asked_of("deepspeed_parser.py", PACKAGE, wanted), strict=True):
        if "refused" in answer:
            wrong.append(f"{answer['refused']}: {question.layout}")
            continue
        differs = {
            name: (value, answer[name]) for name, value in meant(question).items() if answer[name] != value
        }
        wrong += [f"{differs}: {question.layout}"] if differs else []
    assert wrong == [], "\n".join(each[:420] for each in wrong[:6])
