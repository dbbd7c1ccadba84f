"""Our reader understands launch files as Accelerate's own classes do, and refuses what they refuse."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from tests.oracles.parsers import asked_of, needs

from forescale.errors import ForescaleError
from forescale.frameworks.deepspeed.trainer import SHARDING, AccelerateReader
from forescale.frameworks.reading import Options
from forescale.spec import Layout

PACKAGE = "accelerate-1.15.0"
DEGREES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


def drawn(pick: random.Random) -> dict[str, Any]:
    """A launch file: FSDP 1 by the name or number of its strategy, or FSDP 2 with degrees; some that cannot run."""
    content: dict[str, Any] = {
        "distributed_type": "FSDP",
        "mixed_precision": pick.choice(("no", "bf16", "fp16")),
    }
    values: dict[str, Any] = {
        "fsdp_offload_params": pick.choice((True, False)),
        "fsdp_activation_checkpointing": pick.choice((True, False)),
    }
    if pick.random() < 0.3:
        named = pick.choice(list(SHARDING))
        values["fsdp_sharding_strategy"] = pick.choice((named, list(SHARDING).index(named) + 1))
        return {
            **content,
            "num_machines": 2,
            "num_processes": 16,
            "fsdp_config": {"fsdp_version": 1, **values},
        }
    degrees = {name: pick.choice((1, 1, 2, 4)) for name in DEGREES}
    total = 1
    for degree in degrees.values():
        total *= degree
    content["num_processes"] = total if pick.random() < 0.8 else 2 * total
    content["num_machines"] = 1
    content["fsdp_config"] = {
        "fsdp_version": 2, "fsdp_reshard_after_forward": pick.choice((True, False)), **values,
    }  # fmt: skip
    content["parallelism_config"] = {
        f"parallelism_config_{name}_size": size for name, size in degrees.items()
    }
    if pick.random() < 0.1:
        content["fsdp_configuration"] = {}
    return content


def ours(text: str, path: Path) -> Layout | str:
    """What our reader makes of a file, or why it refuses it."""
    path.write_text(text)
    try:
        result = AccelerateReader().read(path, Options()).strategy
    except ForescaleError as error:
        return str(error)
    assert result is not None
    return result


def differs(layout: Layout, answer: dict[str, Any]) -> list[str]:
    """Where a layout is not what Accelerate understood."""
    pairs: dict[str, tuple[object, object]] = {
        "devices": (layout.num_devices, answer["devices"]),
        "recompute": (layout.recompute.granularity == "full", answer["recompute"]),
        "offload": (layout.offload.parameters, "True" in answer["offload"]),
    }
    if answer["version"] == 2:
        pairs |= {
            name: (getattr(layout, name), answer[name]) for name in ("tp", "cp", "dp_replicate", "dp_shard")
        }
        pairs["reshard"] = (layout.zero == 3, answer["reshard"])
    else:
        pairs["sharding"] = (layout.zero, SHARDING[answer["sharding"].lstrip("_")][0])
    return [f"{name}: {one} and {other}" for name, (one, other) in pairs.items() if one != other]


@needs(PACKAGE)
def test_launch_files_are_understood_as_accelerate_does(tmp_path: Path) -> None:
    pick = random.Random(15)
    texts = [yaml.safe_dump(drawn(pick)) for _ in range(120)]
    wrong = []
    answers = asked_of("accelerate_parser.py", PACKAGE, texts)
    for text, answer in zip(texts, answers, strict=True):
        result = ours(text, tmp_path / "launch.yaml")
        if isinstance(result, str) or "refused" in answer:
            same = isinstance(result, str) and "refused" in answer
            wrong += [] if same else [f"{result!s:.200} / {answer}: {text}"]
        else:
            wrong += [f"{differ}: {text}" for differ in differs(result, answer)]
    assert wrong == [], "\n".join(wrong[:6])
    assert sum("refused" not in answer for answer in answers) >= 40
    assert sum("refused" in answer for answer in answers) >= 10
