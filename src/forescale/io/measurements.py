"""What prices a question, from files: bench artifacts, kernel tables, output of nccl-tests and rccl-tests, own fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from forescale import wording
from forescale.cost.anchor import MARGIN, Rule
from forescale.cost.select import Calibrations, ComputeKind, Costs, read_calibrations
from forescale.errors import ReaderError
from forescale.files import place_of, read_table, read_text
from forescale.graph.ops import CollectiveKind
from forescale.io.named import build, cluster_given
from forescale.limits import Interval, Measure, whole_of
from forescale.patterns import pattern
from forescale.positions import says_lines
from forescale.spec import Cluster, Device
from forescale.struct import Struct

if TYPE_CHECKING:
    from forescale.cost.measured import Measurements
    from forescale.cost.timings import MeasuredCollective
    from forescale.io.bench import BenchArtifact
    from forescale.profiles import Profile

NODE = 8
"""Neighbouring ranks of a trace that share a node, where nobody says."""
SUFFIXES = (".json", ".json.gz", ".csv", ".txt", ".log", ".out")


MHZ = 1e6


class CostSection(Struct, frozen=True, kw_only=True):
    """The section `[cost]` of a plan file."""

    compute: ComputeKind = "auto"
    """Model of kernels: roofline, tile, measured; auto looks up what was measured, and leaves the rest to the model
    that the calibration was fitted with."""
    device_clock_mhz: Annotated[float, Interval(ge=10, le=10_000)] | None = None
    """Clock to predict for; the device's own where it is not given."""
    calibration: str | None = None
    """What was fitted to one's own runs, kernels and collectives, as `calibrate` writes it; the packaged fits to
    published ones where it is not given."""
    measurements: tuple[str, ...] = ()
    """Files of timed kernels and collectives: bench artifacts, kernel tables, output of nccl-tests."""
    benchmarks: tuple[str, ...] = ()
    """Bench artifacts that time and memory are restored from, block by block; of several runs that measured
    the same the last counts."""
    safety_margin: Measure = MARGIN
    """Of what they have of memory beyond the formulas, which the upper end of a peak has more."""
    restore: Rule = "model"
    """How compute follows from theirs: by the models of both, or as Primus does, in proportion to tp."""


def read_costs(values: object, cluster: Cluster, *, where: str, folder: Path | None) -> Costs:
    """Return the cost models that a section `[cost]` asks for; files that it names are found from `folder`.

    Raises
    ------
    ReaderError
        If a file cannot be read.
    SpecError
        If the section is wrong, or the measurements are of another device.
    """
    if not isinstance(values, Mapping):
        raise wording.wrong_type("cost", values, "a table ([cost])").at(where)
    value = dict(values)
    value |= {
        name: [value[name]] for name in ("measurements", "benchmarks") if isinstance(value.get(name), str)
    }
    section = build(CostSection, value, where=f"{where}, cost")
    start = folder or Path()
    files = tuple(str(start / place_of(text)) for text in section.measurements)
    result = [read_measurements(path, cluster.device) for path in files]
    measurements = None
    if result:
        from forescale.cost.measured import Measurements

        measurements = Measurements.joined(result)
        measurements.check(cluster)
    calibration = None if section.calibration is None else str(start / place_of(section.calibration))
    calibrations = Calibrations() if calibration is None else says_lines(read_calibrations)(calibration)
    return Costs(
        compute=section.compute,
        clock_hz=None if section.device_clock_mhz is None else section.device_clock_mhz * MHZ,
        calibration=calibrations.runs,
        measurements=measurements,
        kernels=calibrations.kernels,
        links=calibrations.links,
        calibration_file=calibration,
        measurement_files=files,
        benchmark_files=tuple(str(start / place_of(text)) for text in section.benchmarks),
        safety_margin=section.safety_margin,
        rule=section.restore,
    )


def cost_values(costs: Costs) -> dict[str, Any]:
    """Return cost models as a section `[cost]`, without what is usual."""
    section = {
        "compute": None if costs.compute == "auto" else costs.compute,
        "device_clock_mhz": None if costs.clock_hz is None else _mhz(costs.clock_hz),
        "calibration": costs.calibration_file,
        "measurements": costs.measurement_files or None,
        "benchmarks": costs.benchmark_files or None,
        "restore": None if costs.rule == "model" else costs.rule,
        "safety_margin": None if costs.safety_margin == MARGIN else costs.safety_margin,
    }
    return {name: value for name, value in section.items() if value is not None}


def _mhz(clock_hz: float) -> float:
    """Return the MHz that are read back as these Hz, to the last bit where there are any."""
    near = clock_hz / MHZ
    tried = (near, math.nextafter(near, 0.0), math.nextafter(near, math.inf))
    return next((mhz for mhz in tried if mhz * MHZ == clock_hz), near)


@says_lines
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
        A bench artifact (.json), a trace of torch.profiler (.json, .json.gz), a kernel table (.csv, as the validation
        corpus has it, of which rows of other hardware are left out) or what nccl-tests or rccl-tests printed (.txt,
        .log, .out).
    cluster
        Name of a cluster whose rows of a table are taken too.
    kind, num_ranks, ranks_per_node
        Of output of nccl-tests that does not say.

    Raises
    ------
    ReaderError
        If it cannot be read, or has nothing of this device.
    """
    from forescale.cost.measured import Measurements
    from forescale.io.recorded import catalogue_name

    file = Path(path)
    match file.suffix.lower():
        case ".json" | ".gz":
            from forescale.io.bench import read_bench
            from forescale.profiles import is_profile, read_profile

            if is_profile(file):
                profile = read_profile(file, devices_per_node=ranks_per_node or NODE)
                return of_profile(profile, device, file)
            return of_artifact(read_bench(file), file)
        case ".csv":
            return _of_table(file, device, cluster)
        case ".txt" | ".log" | ".out":
            run = read_nccl_tests(file, kind=kind, num_ranks=num_ranks, ranks_per_node=ranks_per_node)
            return Measurements(
                source=file.name, device=catalogue_name(run.device), collectives=tuple(run.rows)
            )
        case suffix:
            raise ReaderError(file, wording.wrong_suffix("the file", suffix, SUFFIXES))


def of_profile(profile: Profile, device: Device, file: Path) -> Measurements:
    """Return the kernels and collectives that were recorded of a run on a device."""
    from forescale.cost.measured import Measurements
    from forescale.io.recorded import check_device

    if not profile.kernels and not profile.collectives:
        raise ReaderError(file, wording.incomplete("kernels or collectives to look up"))
    notes = check_device(profile, device, file)
    return Measurements(
        source=file.name,
        device=device.name,
        kernels=profile.kernels,
        collectives=profile.collectives,
        notes=notes,
    )


def of_artifact(bench: BenchArtifact, file: Path) -> Measurements:
    """Return the kernels and collectives of an artifact."""
    from forescale.cost.measured import Measurements
    from forescale.io.recorded import catalogue_name

    if not bench.kernels and not bench.collectives:
        raise ReaderError(file, wording.incomplete("kernels or collectives to look up"))
    conditions = [text for text in (bench.conditions.software, bench.conditions.date) if text]
    if bench.config is None:
        named = catalogue_name(bench.conditions.device)
    else:
        ran_on = cluster_given(bench.config.get("cluster"), f"{file}, config", file.parent)
        named = ran_on.device.name
    return Measurements(
        source=f"{file.name} ({', '.join(conditions)})" if conditions else file.name,
        device=named,
        kernels=tuple((timing.operator, timing.seconds) for timing in bench.kernels),
        collectives=tuple(timing.measured for timing in bench.collectives),
        notes=artifact_notes(bench, file.name),
    )


def artifact_notes(bench: BenchArtifact, name: str) -> tuple[str, ...]:
    """Return what is to be known of an artifact's file, in sentences."""
    from forescale.io.bench import NO_CHECKSUM

    return (f"{name}: {NO_CHECKSUM}",) if bench.unchecked else ()


def _of_table(file: Path, device: Device, cluster: str) -> Measurements:
    """Return the rows of one device, those that time one operator and nothing besides."""
    from forescale.cost.measured import Measurements
    from forescale.cost.timings import read_collectives, read_kernels
    from forescale.io.recorded import catalogue_name

    result = read_table(file).rows
    names = {row.text("hardware") for row in result}
    local = sorted(
        name
        for name in names
        if name and (catalogue_name(name) == device.name or name.casefold() == cluster.casefold())
    )
    rows = read_kernels(file, dict.fromkeys(local, device))
    kernels = tuple((row.ops[0], row.seconds) for row in rows if len(row.ops) == 1 and not row.extra)
    timed = sorted({row.text("hardware") for row in result if row.text("kind") == "collective"} & set(local))
    collectives = tuple(row for name in timed for row in read_collectives(file, name))
    if not kernels and not collectives:
        others = ", ".join(sorted(name for name in names if name)) or "none"
        raise ReaderError(file, wording.incomplete(f"rows of {device.name}", fix=f"its hardware: {others}"))
    return Measurements(source=file.name, device=device.name, kernels=kernels, collectives=collectives)


MOST = 1e15
"""Bytes and microseconds of one message."""
LONGEST = 2_000
"""Characters of a line that are read."""
_PREFIX = pattern(r"^\s*(?:\[[\d,]+\](?:<stdout>)?:?|\d+:)\s?(?=\s*[#\d])")
_RANK = pattern(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s*(?:\[[^\]]*\]\s*(.*))?")
_STARTING = pattern(r"Collective test starting:\s*(\w+)")
_COMMAND = pattern(r"\b(\w+_perf)(?:_mpi)?\b")
_TYPE = pattern(r"(u?int\d+|half|float|double|bfloat16|char|f(p)?8\w*)$")
_NUMBER = pattern(r"^\d+(?:\.\d+)?(?:[eE][-+]?\d+)?$")


class NcclTestsRun(Struct, frozen=True, kw_only=True):
    """One run of a test."""

    kind: CollectiveKind
    device: str
    """The devices' name as printed; empty where the log does not list them."""
    num_ranks: int
    ranks_per_node: int
    rows: tuple[MeasuredCollective, ...]
    """Out-of-place times in increasing size, without rows that the test found wrong."""
    num_wrong: int
    """Rows left out because the test found wrong results."""


def read_nccl_tests(
    path: Path,
    *,
    kind: CollectiveKind | None = None,
    num_ranks: int | None = None,
    ranks_per_node: int | None = None,
) -> NcclTestsRun:
    """Return the run whose output is stored in `path`.

    Parameters
    ----------
    path
        Output of one test, bare or with the rank prefixes of a launcher.
    kind, num_ranks, ranks_per_node
        What older versions and trimmed logs do not say; what the log says must agree.
    """
    lines = [_PREFIX.sub("", line[:LONGEST]) for line in read_text(path).splitlines()]
    results = list(_results(path, lines))
    if not results:
        fix = "a table with size, time, algbw and busbw is expected"
        raise ReaderError(path, wording.empty("the log", fix))
    result = _kind(lines)
    hosts, device = _ranks(lines)
    ranks = _agreed(path, "num_ranks", sum(hosts.values()) or None, num_ranks)
    per_node = _agreed(path, "ranks_per_node", max(hosts.values(), default=None), ranks_per_node)
    collective_kind: CollectiveKind = _agreed(path, "kind", result, kind)
    rows, wrong = _rows(
        results, kind=collective_kind, num_ranks=ranks, ranks_per_node=per_node, source=path.stem
    )
    if not rows:
        violation = f"all of its {wrong} results are wrong" if wrong else "all of its messages have no bytes"
        raise ReaderError(path, wording.empty("the table of usable rows", violation))
    return NcclTestsRun(
        kind=collective_kind,
        device=device,
        num_ranks=ranks,
        ranks_per_node=per_node,
        rows=tuple(rows),
        num_wrong=wrong,
    )


T = TypeVar("T")


def _agreed(path: Path, name: str, result: T | None, values: T | None) -> T:
    if result is None and values is None:
        fix = f"keep what the test prints of its ranks, or give --{name.replace('_', '-')}"
        raise ReaderError(path, wording.incomplete(name, "the log", fix))
    if result is not None and values is not None and result != values:
        raise ReaderError(path, wording.differs(name, values, "that of the log", result))
    value = values if result is None else result
    assert value is not None
    return value


def _kind(lines: list[str]) -> CollectiveKind | None:
    from forescale.cost.timings import kind_of

    for known in (_STARTING, _COMMAND):
        names = (match[1] for line in lines if (match := known.search(line)))
        kinds = {kind for name in names if (kind := kind_of(name))}
        if len(kinds) == 1:
            return kinds.pop()
    return None


def _ranks(lines: list[str]) -> tuple[Counter[str], str]:
    hosts: Counter[str] = Counter()
    device = ""
    seen = set()
    for line in lines:
        match = _RANK.search(line)
        if match and match[1] not in seen:
            seen.add(match[1])
            hosts[match[2]] += 1
            device = device or (match[3] or "").strip()
    return hosts, device


def _rows(
    results: Iterable[tuple[float, float, str]],
    *,
    kind: CollectiveKind,
    num_ranks: int,
    ranks_per_node: int,
    source: str,
) -> tuple[list[MeasuredCollective], int]:
    from forescale.cost.timings import MeasuredCollective

    rows, wrong = [], 0
    for size, time_us, errors in results:
        if errors != "N/A" and not (_NUMBER.match(errors) and float(errors) <= _TOLERANCE):
            wrong += 1
            continue
        if 0 < size < MOST and 0 < time_us < MOST:
            rows.append(
                MeasuredCollective(
                    kind=kind, num_bytes=size, num_ranks=num_ranks, ranks_per_node=ranks_per_node,
                    seconds=time_us * 1e-6, id=f"{source}:{size:.0f}",
                )
            )  # fmt: skip
    return sorted(rows, key=lambda row: row.num_bytes), wrong


_TOLERANCE = 1e-3
"""Older versions print the largest error instead of the number of wrong elements."""


def _results(path: Path, lines: list[str]) -> Iterator[tuple[float, float, str]]:
    """Yield size [byte], out-of-place time [µs] and the column for errors.

    Raises
    ------
    ReaderError
        If a row under the table's head has no time, or times are not in µs.
    """
    headed, rooted, reduced = False, False, True
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if "size" in parts and "time" in parts:
            headed, rooted, reduced = True, "root" in parts, "redop" in parts
            continue
        if "(elements)" in parts and "(us)" not in parts:
            fix = f"line {number}: nccl-tests prints times in (us)"
            raise ReaderError(path, wording.not_a_quantity("µs", "times", fix))
        if len(parts) < 3 or None in map(whole_of, parts[:2]) or _NUMBER.match(parts[2]):
            continue
        # size count type [redop [root]] time algbw busbw wrong ...
        start = 3 if len(parts) > 3 and _NUMBER.match(parts[3]) else 3 + reduced + rooted
        values = parts[start:]
        if len(values) >= 4 and all(_NUMBER.match(value) for value in values[:3]):
            size, time_us = float(parts[0]), float(values[0])
            if size and not 0 < time_us < MOST:
                allowed = "more than 0 µs"
                raise ReaderError(path, wording.out_of_range(f"line {number}: a message", values[0], allowed))
            yield size, time_us, values[3]
        elif headed and _TYPE.match(parts[2]):
            other = f"line {number}: the row of {parts[0]} bytes"
            raise ReaderError(path, wording.incomplete("time", other, line.strip()))
