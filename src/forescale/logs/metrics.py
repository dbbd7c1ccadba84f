"""Steps that a run writes for Weights & Biases or TensorBoard, in the order in which they were logged.

The files are only read, with the packages of the extra `watch`. A metric that a framework logs as the time of a step
counts (`SECONDS`); without one, the time between two steps does.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from forescale.errors import ReaderError, extra_missing, not_found
from forescale.logs.formats import StepRecord

SECONDS = (
    "iteration-time", "perf/step_time_seconds", "time_metrics/end_to_end(s)", "train_step_timing in s", "step_time",
    "iter_time",
)  # fmt: skip
"""Metrics of Megatron, MaxText, torchtitan, NeMo and others that are the seconds of a step."""
STEPS = ("train/global_step", "trainer/global_step", "global_step", "_step")
"""Keys of a history of Weights & Biases that are the step, the first that is there."""
BLOCK, HEAD = 32_768, 7
"""Bytes of a block, and of what precedes its records, in a file of Weights & Biases."""
FIRST, LAST = (1, 2), (1, 4)
"""Types of the first and the last part of a record."""
Point = tuple[int, float, Mapping[str, float]]
"""Step, time [s], and metrics."""
Poll = Callable[[], Iterator[Point]]
"""Yields what was logged since the last call."""


def records_of(points: Iterator[Point]) -> Iterator[StepRecord]:
    """Yield what the points say of steps."""
    start: float | None = None
    last = -1
    timed = False
    for step, time, metrics in points:
        seconds = next((metrics[name] for name in SECONDS if name in metrics), None)
        timed = timed or seconds is not None
        start = time if start is None else start
        if seconds is not None:
            yield StepRecord(step=step, seconds=seconds)
        elif not timed and step != last:
            yield StepRecord(step=step, elapsed_s=time - start)
        last = step


def _package(name: str, key: str, package: str) -> Any:  # noqa: ANN401 (a module)
    try:
        return import_module(name)
    except ImportError:
        raise extra_missing(key, package, "watch") from None


def tensorboard_poll(folder: Path) -> Poll:
    """Return what reads the scalars of a folder of TensorBoard.

    Raises
    ------
    ReaderError
        If it has no file of events.
    SpecError
        If the package is not installed.
    """
    loading = _package(
        "tensorboard.backend.event_processing.event_file_loader", "--tensorboard", "tensorboard"
    )
    arrays = _package("tensorboard.util.tensor_util", "--tensorboard", "tensorboard")
    if not [*folder.rglob("*tfevents*")]:
        raise ReaderError(folder, not_found("file of TensorBoard", "its names have tfevents in them"))
    loaders: dict[Path, Any] = {}

    def poll() -> Iterator[Point]:
        for path in sorted(folder.rglob("*tfevents*")):
            if path not in loaders:
                loaders[path] = loading.EventFileLoader(str(path))
            for event in loaders[path].Load():
                for value in event.summary.value:
                    array = arrays.make_ndarray(value.tensor)
                    if array.ndim == 0 and array.dtype.kind in "fiu":
                        yield event.step, event.wall_time, {value.tag: float(array)}

    return poll


def wandb_poll(folder: Path) -> Poll:
    """Return what reads the history of the newest run of Weights & Biases in a folder.

    Raises
    ------
    ReaderError
        If it has no run.
    SpecError
        If the package is not installed.
    """
    messages = _package("wandb.proto.wandb_internal_pb2", "--wandb-dir", "wandb")
    runs = sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise ReaderError(folder, not_found("run of Weights & Biases", "its file is run-…/run-ID.wandb"))
    damaged = import_module("google.protobuf.message").DecodeError
    place = HEAD

    def poll() -> Iterator[Point]:
        nonlocal place
        with runs[-1].open("rb") as file:
            file.seek(place)
            content = file.read()
        for record, end in _records(content, place):
            place = end
            try:
                message = messages.Record.FromString(record)
                point = _point(message.history.item)
            except (damaged, ValueError):  # what follows may be readable
                continue
            if message.WhichOneof("record_type") == "history" and point is not None:
                yield point

    return poll


def _point(items: Any) -> Point | None:  # noqa: ANN401 (protobuf's items of a history)
    """Return the point that a row of a history is; None if it has no step."""
    values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
    metrics = {key: value for key, value in values.items() if isinstance(value, int | float)}
    step = next((metrics[key] for key in STEPS if key in metrics), None)
    if step is None or not math.isfinite(step):
        return None
    return int(step), float(metrics.get("_timestamp", metrics.get("_runtime", 0.0))), metrics


def _records(content: bytes, origin: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records of a log in LevelDB's format from `origin` on, with the place behind each."""
    parts, place = b"", origin
    while place + HEAD <= origin + len(content):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, place - origin + 4)
        place += HEAD + length
        if place > origin + len(content) or kind == 0:
            return
        part = content[place - origin - length : place - origin]
        parts = part if kind in FIRST else parts + part
        if kind in LAST:
            yield parts, place
