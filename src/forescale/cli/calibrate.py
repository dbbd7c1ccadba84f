"""`forescale calibrate`: fit runs, kernels and collectives of one's own, and say what moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from forescale.atomic_write import writable, write_text
from forescale.cli.console import show
from forescale.cli.declare import Bounded, Group, argument, option
from forescale.cli.formats import Answer
from forescale.cli.output import OutputOptions
from forescale.errors import differs, empty, missing, other_run, required_with
from forescale.graph.ops import CollectiveKind
from forescale.limits import DEVICES
from forescale.positions import says_lines
from forescale.struct import asdict
from forescale.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forescale.cost.measured import Measurements
    from forescale.cost.select import Calibrations
    from forescale.spec import Cluster, Device
    from forescale.validation.entries import EntryFit, Left
    from forescale.validation.fit import ClusterCalibration
    from forescale.validation.kernels import KernelFits
    from forescale.validation.network import NetworkFits
    from forescale.validation.runs import CalibrationRun


class KernelOptions(Group, frozen=True, kw_only=True):
    """Timed kernels."""

    kernels: list[Path] | None = option("Timed kernels of one device. Repeatable.", "FILE")
    generation: bool = option("Let the kernels count for all devices of the generation.", default=False)
    per_call: bool = option("Kernel times hold an unknown constant per call.", default=False)


class LogOptions(Group, frozen=True, kw_only=True):
    """Timed collectives, and what their logs do not say."""

    collectives: list[Path] | None = option("Timed collectives of --cluster. Repeatable.", "FILE")
    kind: CollectiveKind | None = option("Collective of logs that do not say.")
    num_ranks: int | None = option("Ranks of logs that do not list them.", check=Bounded(DEVICES))
    ranks_per_node: int | None = option(
        "Ranks in a node of logs that do not list them.", check=Bounded(DEVICES)
    )


class PlaceOptions(Group, frozen=True, kw_only=True):
    """What was measured on."""

    device: str | None = option("Device of the kernels; of runs, only those on it.", "NAME")
    cluster: str | None = option(
        "Cluster that collectives were timed on; of runs, the one they ran on, whatever their rows say.",
        "NAME|FILE",
    )


def calibrate_command(
    runs: Path | None = argument("Measured runs of one cluster.", "RUNS.csv"),
    *,
    machine: PlaceOptions,
    logs: LogOptions,
    kernel: KernelOptions,
    output: Path = option(
        "Where the calibration goes.", "FILE.json", flag="--output -o", default=..., check=writable
    ),
    base: Path | None = option("Start from this instead of published fits.", "FILE.json"),
    printed: OutputOptions,
) -> None:
    """Calibrate to runs, kernels or collectives of your own; 3 to 5 runs are enough to start."""
    from datetime import date

    from forescale.cli.render.calibrate import calibration_view
    from forescale.cost.select import Calibrations, read_calibrations
    from forescale.validation.fit import rounded

    if runs is None and not kernel.kernels and not logs.collectives:
        raise missing("a table to fit to", "give RUNS.csv, --kernels FILE or --collectives FILE")
    calibrations = Calibrations() if base is None else says_lines(read_calibrations)(base)
    today = date.today().isoformat()
    place = _cluster(machine.cluster)
    entries: list[EntryFit] = []
    left: list[Left] = []
    if kernel.kernels:
        where = _device(machine.device, place)
        calibrations, kernel_fits = _kernels(
            calibrations, _read(kernel.kernels, where), where, kernel, date=today
        )
        entries, left = [*kernel_fits.entries], [*kernel_fits.left]
    if logs.collectives:
        if place is None:
            raise required_with("the --cluster that they were timed on", "--collectives")
        message = {"kind": logs.kind, "num_ranks": logs.num_ranks, "ranks_per_node": logs.ranks_per_node}
        timed = _read(logs.collectives, place.device, cluster=place.name, **message)
        calibrations, link_fits = _links(calibrations, timed, place, date=today)
        entries, left = [*entries, *link_fits.entries], [*left, *link_fits.left]
    measured: list[CalibrationRun] = []
    result: ClusterCalibration | None = None
    if runs is not None:
        fitted = _runs(runs, calibrations, machine.device, place, name=output.stem, date=today)
        measured, result, left = fitted[0], fitted[1], [*left, *fitted[2]]
        calibrations = replace(calibrations, runs=fitted[1].calibration)
    write_text(output, json.dumps(rounded(calibrations.to_json()), indent=1, allow_nan=False) + "\n")
    answer = Answer(
        view=lambda: calibration_view(measured, result, entries, left, output),
        document=lambda: _document(measured, result, entries, left),
    )
    show(answer, printed)


def _cluster(name: str | None) -> Cluster | None:
    from forescale.io.named import cluster_of

    return None if name is None else cluster_of(name)


def _device(name: str | None, cluster: Cluster | None) -> Device:
    """Return the device whose kernels are fitted."""
    from forescale.catalogue.clusters import load_device

    if name is None and cluster is None:
        raise required_with("the --device that they were timed on", "--kernels")
    if cluster is not None and name in (None, cluster.device.name):
        return cluster.device
    if cluster is not None:
        fix = "leave one of them out"
        raise differs("--device", name, f"the device of {cluster.name}", cluster.device.name, fix)
    return load_device(name or "")


def _read(paths: Sequence[Path], device: Device, **facts: Any) -> list[Measurements]:  # noqa: ANN401
    from forescale.io.measurements import read_measurements

    measurements = [read_measurements(path, device, **facts) for path in paths]
    for one in measurements:
        if one.device and one.device != device.name:
            raise other_run(one.source, one.device, device.name)
    return measurements


def _kernels(
    calibrations: Calibrations,
    measured: Sequence[Measurements],
    device: Device,
    options: KernelOptions,
    *,
    date: str,
) -> tuple[Calibrations, KernelFits]:
    from forescale.cost.select import Costs
    from forescale.validation.kernels import fit_kernels, rows_of

    key = device.architecture if options.generation else device.name
    kernels = fit_kernels(
        rows_of(measured, device),
        Costs(kernels=calibrations.kernels).kernel_calibration(device),
        device,
        name=f"{key} (own)",
        date=date,
        per_call=options.per_call,
    )
    return replace(calibrations, kernels={**calibrations.kernels, key: kernels.calibration}), kernels


def _links(
    calibrations: Calibrations, measured: Sequence[Measurements], cluster: Cluster, *, date: str
) -> tuple[Calibrations, NetworkFits]:
    from forescale.validation.network import fit_network, timed_of

    network = fit_network(timed_of(measured), cluster, own=calibrations.links, date=date)
    names = {link.name for link in network.links}
    kept = tuple(link for link in calibrations.links if link.name not in names)
    return replace(calibrations, links=(*network.links, *kept)), network


def _runs(
    path: Path,
    calibrations: Calibrations,
    device: str | None,
    cluster: Cluster | None,
    *,
    name: str,
    date: str,
) -> tuple[list[CalibrationRun], ClusterCalibration, list[Left]]:
    """Fit what whole runs lose, against kernels and links of one's own where there are any."""
    from forescale.cost.run_calibration import load_run_calibration
    from forescale.cost.select import Costs
    from forescale.validation.cases import load_cases
    from forescale.validation.fit import calibrate_cluster
    from forescale.validation.runs import runs_of

    start = calibrations.runs or load_run_calibration()
    costs = Costs(kernels=calibrations.kernels, links=calibrations.links)
    measured, left = runs_of(load_cases(path, cluster=cluster), start, costs)
    if device is not None:
        measured = [run for run in measured if run.case.question.cluster.device.name == device]
    if not measured:
        reasons = "; ".join(f"{one.path}: {one.reason}" for one in left) or f"none of them is on {device}"
        raise empty("the table of usable runs", reasons).at(path)
    source = f"{counted(len(measured), 'run')} of {path.name} around calibration {start.name}"
    return measured, calibrate_cluster(measured, start, name=name, date=date, source=source), left


def _document(
    runs: Sequence[CalibrationRun],
    result: ClusterCalibration | None,
    entries: Sequence[EntryFit],
    left: Sequence[Left],
) -> dict[str, Any]:
    errors = () if result is None else zip(runs, result.before.tolist(), result.after.tolist(), strict=True)
    moves = () if result is None else result.moves
    return {
        "schema": "forescale.calibration/1",
        "runs": [{"id": run.id, "before": -before, "after": -after} for run, before, after in errors],
        "moves": [asdict(move) for move in moves],
        "entries": [asdict(entry) for entry in entries],
        "left": [asdict(one) for one in left],
    }
