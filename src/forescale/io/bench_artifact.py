"""Bench artifacts: what was measured, and of which configuration, in JSON with a versioned schema.

```json
{
  "schema": "forescale.bench/1",
  "config": {"model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": 8,
             "strategy": {"tp": 2}, "workload": {"seq_len": 4096, "global_batch_size": 64}},
  "ranks": [{"rank": 0, "stage": 0, "peak_allocated_bytes": 4.1e10, "peak_reserved_bytes": 4.4e10}],
  "layers": [{"kind": "attention+dense", "activation_bytes": 1.2e9, "forward_s": 0.004}],
  "kernels": [{"op": "gemm", "m": 8192, "n": 28672, "k": 4096, "dtype": "bf16", "seconds": 0.0029}],
  "collectives": [{"kind": "all_reduce", "num_bytes": 67108864, "num_ranks": 8, "ranks_per_node": 8,
                   "seconds": 0.00035}],
  "conditions": {"date": "2026-08-01", "device": "NVIDIA H100 80GB HBM3", "software": "torch 2.8"}
}
```

`config` has the sections of a plan file. Everything but the schema may be left out, but something must have been
measured, and ranks and layers need the `config` of their run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.files import parse_json, read_text
from forescale.io.plan import Plan, build_plan, plan_values
from forescale.io.timings import KERNEL_TIMINGS, CollectiveTiming, KernelTiming
from forescale.io.validation import build
from forescale.memory.anchored import LayerMeasurement, RankPeak
from forescale.spec import Strategy
from forescale.syntax import parse_mapping
from forescale.written import write_text

SCHEMA = "forescale.bench/1"
KEYS = ("schema", "config", "ranks", "layers", "kernels", "collectives", "conditions")
MEASURED = ("ranks", "layers", "kernels", "collectives")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where and when it was measured."""

    date: str = ""
    device: str = ""
    software: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArtifact:
    """One measured run."""

    config: Plan | None = None
    """Model, cluster, layout and workload of the run; None where kernels were timed by themselves."""
    ranks: tuple[RankPeak, ...] = ()
    layers: tuple[LayerMeasurement, ...] = ()
    kernels: tuple[KernelTiming, ...] = ()
    collectives: tuple[CollectiveTiming, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def strategy(self) -> Strategy:
        """Layout of the run; the default one where none was written."""
        return (self.config.strategy if self.config else None) or Strategy()

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.bench/1` document; what was not measured is left out."""
        document: dict[str, Any] = {"schema": SCHEMA}
        if self.config is not None:
            document["config"] = _without_none(plan_values(self.config))
        for key in MEASURED:
            document[key] = [_without_none(asdict(row)) for row in getattr(self, key)]
        return {**document, "conditions": asdict(self.conditions)}


def read_bench(path: str | Path) -> BenchArtifact:
    """Return the artifact that a JSON file holds.

    Raises
    ------
    ReaderError
        If the file is missing, is not JSON, or has another schema; the message says which can be read.
    SpecError
        If anything in it is unknown, missing or impossible.
    """
    file = Path(path)
    document = parse_mapping(read_text(file), file, parse_json)
    _check_schema(document.get("schema"), file)
    return build_bench(document, where=str(file), folder=file.parent)


def write_bench(artifact: BenchArtifact, path: str | Path) -> None:
    """Write `artifact` as a file that `read_bench` turns into an equal one."""
    text = json.dumps(artifact.to_json(), indent=2, allow_nan=False) + "\n"
    write_text(Path(path), text)


def build_bench(document: Mapping[str, Any], *, where: str, folder: Path | None = None) -> BenchArtifact:
    """Return the artifact that plain values describe; paths in its config start from `folder`."""
    for key in document:
        if key not in KEYS:
            raise UnknownKeyError(key, where, KEYS)
    config = document.get("config")
    if "config" in document and not isinstance(config, Mapping):
        msg = f"{where}: config must be a table with model, cluster, devices and workload; got {config!r}"
        raise SpecError(msg)
    artifact = BenchArtifact(
        config=None if config is None else build_plan(config, where=f"{where}, config", folder=folder),
        ranks=tuple(
            build(RankPeak, row, where=f"{where}, {at}") for at, row in _rows(document, "ranks", where)
        ),
        layers=tuple(
            build(LayerMeasurement, row, where=f"{where}, {at}")
            for at, row in _rows(document, "layers", where)
        ),
        kernels=tuple(_kernel(row, f"{where}, {at}") for at, row in _rows(document, "kernels", where)),
        collectives=tuple(
            build(CollectiveTiming, row, where=f"{where}, {at}")
            for at, row in _rows(document, "collectives", where)
        ),
        conditions=build(Conditions, document.get("conditions", {}), where=f"{where}, conditions"),
    )
    _check(artifact, where)
    return artifact


def _check_schema(found: object, file: Path) -> None:
    if found == SCHEMA:
        return
    if isinstance(found, str) and found.startswith("forescale.bench/"):
        raise ReaderError(
            file, f"its schema is {found}; this version reads {SCHEMA}, so measure again or convert it"
        )
    raise ReaderError(file, f"it is no bench artifact: its schema must be {SCHEMA}, got {found!r}")


def _check(artifact: BenchArtifact, where: str) -> None:
    """Refuse an artifact without measurements, or with ranks that its layout does not have."""
    if not (artifact.ranks or artifact.kernels or artifact.collectives):
        msg = f"{where}: nothing was measured; it needs at least one measured rank, kernel or collective"
        raise SpecError(msg)
    if artifact.config is None and (artifact.ranks or artifact.layers):
        msg = f"{where}: ranks and layers need config, the run that they were measured in"
        raise SpecError(msg)
    stages = artifact.strategy.pp
    for rank in artifact.ranks:
        if rank.stage >= stages:
            msg = f"{where}: rank {rank.rank} is of stage {rank.stage}; with pp {stages} they are 0 to {stages - 1}"
            raise SpecError(msg)


def _kernel(row: Mapping[str, Any], where: str) -> KernelTiming:
    """Return one timed kernel; its `op` says what else it has."""
    op = row.get("op")
    if op not in KERNEL_TIMINGS:
        msg = f"{where}: op must be one of {', '.join(KERNEL_TIMINGS)}; got {op!r}"
        raise SpecError(msg)
    return build(KERNEL_TIMINGS[op], row, where=where)


def _rows(document: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        msg = f"{where}: {key} must be a list of tables, got {rows!r}"
        raise SpecError(msg)
    return [(f"{key}[{index}]", row) for index, row in enumerate(rows)]


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }
