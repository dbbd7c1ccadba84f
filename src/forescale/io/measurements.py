"""Measured kernels and collectives from files: bench artifacts, kernel tables, output of nccl-tests."""

from __future__ import annotations

from pathlib import Path

from forescale.catalogue.clusters import device_names, hardware_device
from forescale.cost.measured import Measurements
from forescale.cost.timings import read_collectives, read_kernels
from forescale.errors import ReaderError, UnknownNameError
from forescale.files import read_table
from forescale.graph.ops import CollectiveKind
from forescale.io.bench_artifact import BenchArtifact, read_bench
from forescale.io.nccl_tests import read_nccl_tests
from forescale.spec import Device

SUFFIXES = (".json", ".csv", ".txt", ".log", ".out")


def read_measurements(
    path: str | Path,
    device: Device,
    *,
    cluster: str = "",
    kind: CollectiveKind | None = None,
    num_ranks: int | None = None,
    ranks_per_node: int | None = None,
) -> Measurements:
    """Return what a file says of kernels and collectives on `device`.

    Parameters
    ----------
    path
        A bench artifact (.json), a kernel table (.csv, as the validation corpus has it, of which rows of
        other hardware are left out) or what nccl-tests or rccl-tests printed (.txt, .log, .out).
    cluster
        Name of a cluster whose rows of a table are taken too.
    kind, num_ranks, ranks_per_node
        Of output of nccl-tests that does not say.

    Raises
    ------
    ReaderError
        If it cannot be read, or has nothing of this device.
    """
    file = Path(path)
    match file.suffix.lower():
        case ".json":
            return _of_artifact(read_bench(file), file)
        case ".csv":
            return _of_table(file, device, cluster)
        case ".txt" | ".log" | ".out":
            run = read_nccl_tests(file, kind=kind, num_ranks=num_ranks, ranks_per_node=ranks_per_node)
            return Measurements(
                source=file.name, device=_catalogue_name(run.device), collectives=tuple(run.rows)
            )
        case suffix:
            raise ReaderError(file, f"the suffix {suffix!r} is not one of {', '.join(SUFFIXES)}")


def _of_artifact(bench: BenchArtifact, file: Path) -> Measurements:
    if not bench.kernels and not bench.collectives:
        raise ReaderError(file, "it has neither kernels nor collectives to look up")
    conditions = [text for text in (bench.conditions.software, bench.conditions.date) if text]
    named = bench.config.cluster.device.name if bench.config else _catalogue_name(bench.conditions.device)
    return Measurements(
        source=f"{file.name} ({', '.join(conditions)})" if conditions else file.name,
        device=named,
        kernels=tuple((timing.operator, timing.seconds) for timing in bench.kernels),
        collectives=tuple(timing.measured for timing in bench.collectives),
    )


def _of_table(file: Path, device: Device, cluster: str) -> Measurements:
    """Return the rows of one device, those that time one operator and nothing besides."""
    found = read_table(file).rows
    names = {row.text("hardware") for row in found}
    own = sorted(
        name
        for name in names
        if name and (_catalogue_name(name) == device.name or name.casefold() == cluster.casefold())
    )
    rows = read_kernels(file, dict.fromkeys(own, device))
    kernels = tuple((row.ops[0], row.seconds) for row in rows if len(row.ops) == 1 and not row.extra)
    timed = sorted({row.text("hardware") for row in found if row.text("kind") == "collective"} & set(own))
    collectives = tuple(row for name in timed for row in read_collectives(file, name))
    if not kernels and not collectives:
        others = ", ".join(sorted(name for name in names if name)) or "none"
        raise ReaderError(file, f"it has no rows of {device.name}; its hardware: {others}")
    return Measurements(source=file.name, device=device.name, kernels=kernels, collectives=collectives)


def _catalogue_name(text: str) -> str:
    """Return the catalogue device that a name means; empty where it is none."""
    if text in device_names():
        return text
    try:
        return hardware_device(text)
    except UnknownNameError:
        return ""
