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
    layout, workload = question.layout, question.workload
    return {
        "dp": layout.dp,
        "train_batch_size": workload.global_batch_size,
        "micro": layout.micro_batch_size,
        "steps": workload.global_batch_size // (layout.dp * layout.micro_batch_size),
        "zero": layout.zero,
        "overlap": layout.overlap.grad_reduce,
        "bf16": workload.precision.activations == "bf16",
        "gradients": workload.precision.gradients,
        "offload": "cpu" if layout.offload.optimizer else None,
        "tp": layout.tp if layout.tp > 1 else 0,
        "ep": layout.ep,
    }


@needs(PACKAGE)
def test_plans_are_understood_as_they_were_meant() -> None:
    pipeline = without_pipeline(48, offload=(Offload(), Offload(optimizer=1.0)))
    requested = []
    for question in pipeline:
        layout = question.layout
        config = json.loads(export(question).texts["ds_config.json"])
        requested.append({"config": config, "world": layout.num_devices, "inner": layout.tp * layout.cp})
    wrong = []
    for question, answer in zip(pipeline, asked_of("deepspeed_parser.py", PACKAGE, requested), strict=True):
        if "refused" in answer:
            wrong.append(f"{answer['refused']}: {question.layout}")
            continue
        differs = {
            name: (value, answer[name]) for name, value in meant(question).items() if answer[name] != value
        }
        wrong += [f"{differs}: {question.layout}"] if differs else []
    assert wrong == [], "\n".join(item[:420] for item in wrong[:6])
