"""Measured steps: dumps of real runs as `pp_rank_<rank>.json`, one file per pipeline rank.

Each file maps an iteration to its total time in milliseconds, its peak memory in GiB, and the start and end
of each forward and backward pass in the order they ran; `config.json` beside them says pp, vp and the number
of micro-batches. The format is that of the Primus-pipeline documentation's visualisation tool.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from forescale.errors import ReaderError
from forescale.numeric import Array
from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import Bar, Timeline

Pass: TypeAlias = tuple[Kind, int, int, float, float]
"""(kind, micro-batch, chunk, start, end), milliseconds from the step's start."""
_RANK_FILE = re.compile(r"^(.*?)pp_rank_(\d+)\.json$")
_FIELDS = ("fwd_start", "fwd_end", "bwd_start", "bwd_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One iteration on all pipeline ranks."""

    iteration: int
    total_ms: float
    """Time of the step on the first rank, which starts first and ends last."""
    num_microbatches: int
    vpp: int
    passes: tuple[tuple[Pass, ...], ...]
    """Per rank, in order of time."""
    memory_gib: tuple[float, ...]

    @property
    def timeline(self) -> Timeline:
        """The step as pictures draw it."""
        bars = tuple(
            Bar(
                rank=rank,
                start=start,
                end=end,
                kind=kind,
                microbatch=unit,
                chunk=chunk,
                name=f"{kind.name}{unit}",
            )
            for rank, row in enumerate(self.passes)
            for kind, unit, chunk, start, end in row
        )
        held = ", ".join(f"{memory:.1f}" for memory in self.memory_gib)
        return Timeline(
            title=f"measured, iteration {self.iteration}",
            num_ranks=len(self.passes),
            makespan=self.total_ms,
            bars=bars,
            memory=tuple(() for _ in self.passes),
            note=f"{self.total_ms:.1f} ms on rank 0; memory by rank in GiB: {held}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """All iterations of a dump."""

    steps: tuple[MeasuredStep, ...]

    def step(self, iteration: int) -> MeasuredStep:
        """Return one iteration.

        Raises
        ------
        ReaderError
            If the dump does not hold it.
        """
        for each in self.steps:
            if each.iteration == iteration:
                return each
        known = [each.iteration for each in self.steps]
        where, problem = "dump", f"iteration {iteration} is not in it; it holds {known[0]} to {known[-1]}"
        raise ReaderError(where, problem)


def read_run(folder: Path) -> MeasuredRun:
    """Return the run whose `pp_rank_*.json` files lie in a folder.

    Raises
    ------
    ReaderError
        If files are missing or malformed.
    """
    files = _rank_files(folder)
    config = _config(folder, len(files))
    ranks = [_load(path) for path in files]
    iterations = sorted(set.intersection(*(set(rank) for rank in ranks)), key=int)
    if not iterations:
        problem = "its files have no iteration in common"
        raise ReaderError(folder, problem)
    steps = tuple(_step(iteration, ranks, config, files) for iteration in iterations)
    return MeasuredRun(steps=steps)


def _rank_files(folder: Path) -> list[Path]:
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.glob("*pp_rank_*.json")):
        if match := _RANK_FILE.match(path.name):
            found.setdefault(match[1], {})[int(match[2])] = path
    if len(found) != 1:
        problem = f"it must hold the pp_rank_<rank>.json files of one run; found those of {len(found)}"
        raise ReaderError(folder, problem)
    (ranks,) = found.values()
    if sorted(ranks) != list(range(len(ranks))):
        problem = f"ranks must be 0 to n - 1; found {sorted(ranks)}"
        raise ReaderError(folder, problem)
    return [ranks[rank] for rank in sorted(ranks)]


def _config(folder: Path, num_ranks: int) -> dict[str, Any]:
    paths = sorted(folder.glob("*config.json"))
    config = _load(paths[0]) if paths else {}
    if config.get("pp_size", num_ranks) != num_ranks:
        problem = f"it says pp_size {config['pp_size']}, but there are {num_ranks} rank files"
        raise ReaderError(paths[0], problem)
    return config


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReaderError(path, str(error)) from error
    if not isinstance(loaded, dict):
        problem = "it must be a JSON object"
        raise ReaderError(path, problem)
    return loaded


def _step(
    iteration: str, ranks: list[dict[str, Any]], config: dict[str, Any], files: list[Path]
) -> MeasuredStep:
    vpp = int(config.get("vp_size") or 1)
    rows, memory = [], []
    for rank, path in zip(ranks, files, strict=True):
        record = rank[iteration]
        missing = [name for name in (*_FIELDS, "total") if name not in record]
        if missing or len({len(record[name]) for name in _FIELDS}) != 1:
            problem = f"iteration {iteration} needs {', '.join(_FIELDS)} of one length, and total"
            raise ReaderError(path, problem)
        rows.append(_passes(record, len(ranks), vpp))
        memory.append(float(record.get("memory", float("nan"))))
    count = len(rows[0]) // (2 * vpp)
    return MeasuredStep(
        iteration=int(iteration),
        total_ms=float(ranks[0][iteration]["total"]),
        num_microbatches=int(config.get("num_mbs", count)),
        vpp=vpp,
        passes=tuple(rows),
        memory_gib=tuple(memory),
    )


def _passes(record: dict[str, Any], pp: int, vpp: int) -> tuple[Pass, ...]:
    """Return a rank's passes by time; chunks follow Megatron's groups of pp micro-batches."""
    passes: list[Pass] = []
    for kind, name in ((Kind.F, "fwd"), (Kind.B, "bwd")):
        for index, (start, end) in enumerate(
            zip(record[f"{name}_start"], record[f"{name}_end"], strict=True)
        ):
            group, within = divmod(index, pp * vpp)
            chunk, offset = divmod(within, pp) if vpp > 1 else (0, within)
            unit = index if vpp == 1 else group * pp + offset
            passes.append(
                (kind, unit, chunk if kind is Kind.F else vpp - 1 - chunk, float(start), float(end))
            )
    return tuple(sorted(passes, key=lambda each: each[3]))


def median_times(step: MeasuredStep) -> tuple[Array, Array]:
    """Return median forward and backward milliseconds of each stage; each (num_ranks * vpp,)."""
    stages = len(step.passes) * step.vpp
    medians = np.zeros((2, stages))
    for rank, row in enumerate(step.passes):
        for chunk in range(step.vpp):
            for index, kind in enumerate((Kind.F, Kind.B)):
                spent = [end - start for k, _, c, start, end in row if k is kind and c == chunk]
                medians[index, chunk * len(step.passes) + rank] = np.median(spent)
    return medians[0], medians[1]


def calibrated_links(step: MeasuredStep) -> tuple[Array, Array]:
    """Return the time of a message over each boundary, forward and backward; each (num_stages - 1,).

    It is the shortest time between a pass's end and the start of the pass that takes its output: in the
    shortest case the receiver was waiting.
    """
    ends: dict[tuple[Kind, int, int], float] = {}
    starts: dict[tuple[Kind, int, int], float] = {}
    for rank, row in enumerate(step.passes):
        for kind, unit, chunk, start, end in row:
            key = (kind, chunk * len(step.passes) + rank, unit)
            starts[key], ends[key] = start, end
    stages = len(step.passes) * step.vpp
    links = np.zeros((2, stages - 1))
    for index, kind in enumerate((Kind.F, Kind.B)):
        for boundary in range(stages - 1):
            source, target = (boundary, boundary + 1) if kind is Kind.F else (boundary + 1, boundary)
            gaps = [starts[kind, target, u] - ends[kind, source, u] for u in range(step.num_microbatches)]
            links[index, boundary] = max(0.0, min(gaps))
    return links[0], links[1]
