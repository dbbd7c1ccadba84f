"""Facts that the files of trainers may leave open, each with the flag that gives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import MissingFact, ReaderError
from forescale.frameworks.megatron.model import MICRO_BATCH
from forescale.frameworks.reading import ParsedFile

IMAGES: Final = MissingFact(
    "images of a sequence",
    "--images N (0 is text alone), with --image-size PIXELS",
    "--images 0",
    "workload.images.count",
)
BATCH: Final = MissingFact(
    "the global batch size",
    "--global-batch-size N",
    "--global-batch-size 64",
    "workload.global_batch_size",
)
CONFIGURATION: Final = MissingFact(
    "DeepSpeed's configuration", "--config FILE.json", "--config ds_config.json"
)


def decided_by(program: str, devices: int | None) -> list[MissingFact]:
    """Return the batches of a program of a person's own, with an example that gives each of the devices a sequence."""
    return [fact._replace(reason=f"{program} decides it") for fact in (MICRO_BATCH, BATCH.batch_for(devices))]


def without_facts(parsed: ParsedFile, facts: Sequence[MissingFact]) -> ParsedFile:
    """Return what a file says without the fields of facts that it leaves open, which are missing then."""
    fields = {fact.part.rpartition(".")[2] for fact in facts}
    return replace(
        parsed,
        layout_fields={name: value for name, value in parsed.layout_fields.items() if name not in fields},
        workload_fields={name: value for name, value in parsed.workload_fields.items() if name not in fields},
        missing=(*parsed.missing, *facts),
    )


def of_one_process(parsed: ParsedFile, place: Path, given: int | None, why: str) -> ParsedFile:
    """Return what a file says whose one process deals layers to its devices, of which one works at a time.

    `why` tells how; "" where it does not.

    Raises
    ------
    ReaderError
        If it is `given` several devices.
    """
    if not why:
        return parsed
    if given is not None and given > 1:
        fix = "--devices 1, or one process for each device (torchrun, accelerate launch)"
        raise ReaderError(place, wording.wrong_format("data parallelism", f"{why}; {fix}"))
    reason = f"{why}; 1 is projected"
    facts = (
        fact._replace(example="--devices 1", reason=reason) if fact.part == "devices" else fact
        for fact in parsed.missing
    )
    return replace(parsed, missing=tuple(facts))
