"""Measured steps as files: one `pp_rank_<rank>.json` per pipeline rank and a `config.json` beside them.

The format is that of Primus-pipeline's `dump_pp_data` and simulator (AMD-AGI/Primus, tools/visualization/pp_vis):
each file maps an iteration to its total time in milliseconds, its peak memory in GiB, and start, end, micro-batch and
chunk of every forward, backward and weight-gradient pass in the order they ran. Ours says more under further keys,
which that tool skips: how long each pass waited and what the rank held, messages and copies, and in `config.json` which
rank has which stage.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from forescale import wording
from forescale.atomic_write import write_text
from forescale.errors import ReaderError, ScheduleError
from forescale.files import parse_json, read_text
from forescale.schedule.actions import JOINED, Action, Kind, pack
from forescale.schedule.checker import check
from forescale.schedule.family import Request
from forescale.schedule.library import families
from forescale.schedule.measured import MeasuredStep, Pass, typical
from forescale.schedule.model import Placement, Schedule, bidirectional, loop, wave
from forescale.struct import Struct
from forescale.units import counted

_RANK_FILE = re.compile(r"^(.*?)pp_rank_(\d+)\.json$")
SERIES: Mapping[str, tuple[Kind, ...]] = {
    "fwd": (Kind.F,),
    "bwd": (Kind.B, Kind.I),
    "wgrad": (Kind.W,),
    **{kind.name.lower(): (kind,) for kind in Kind if Kind.OFFLOAD <= kind <= Kind.RECV_B},
}
"""Names of the lists, by what is in them; a backward whose weight gradient is apart is an input gradient."""
_ALWAYS = ("fwd", "bwd")
MOST_BYTES = 1 << 28


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """All iterations of a run."""

    steps: tuple[MeasuredStep, ...]

    @property
    def typical(self) -> MeasuredStep:
        """The step of median makespan."""
        return typical(self.steps)

    def step(self, iteration: int) -> MeasuredStep:
        """Return one iteration.

        Raises
        ------
        ReaderError
            If the run does not hold it.
        """
        for step in self.steps:
            if step.iteration == iteration:
                return step
        known = [step.iteration for step in self.steps]
        where, violation = "dump", f"iteration {iteration} is not in it; it holds {known[0]} to {known[-1]}"
        raise ReaderError(where, violation)


def read_run(folder: Path) -> MeasuredRun:
    """Return the run whose `pp_rank_*.json` files lie in a folder.

    Raises
    ------
    ReaderError
        If files are missing or malformed, or what ran is no whole schedule.
    """
    files = _rank_files(folder)
    paths = sorted(folder.glob("*config.json"))
    config = _Config.from_values(_load(paths[0]) if paths else {}, paths[0] if paths else folder, len(files))
    ranks = [_load(path) for path in files]
    common = set.intersection(*(set(rank) for rank in ranks))
    iterations = sorted((item for item in common if item.isdecimal() and len(item) < 10), key=int)
    if not iterations:
        raise ReaderError(folder, wording.incomplete("iteration that all its files share"))
    reader = _Reader(config, files)
    return MeasuredRun(
        steps=tuple(
            reader.step(int(iteration), [rank[iteration] for rank in ranks]) for iteration in iterations
        )
    )


def write_run(folder: Path, steps: Sequence[MeasuredStep]) -> None:
    """Write the steps of one schedule so that `read_run` and Primus' visualisation tool read them."""
    schedule = steps[0].schedule
    config = {
        "world_size": schedule.num_ranks,
        "pp_size": schedule.num_ranks,
        "vp_size": len(schedule.placement.rank_of_stage) // schedule.num_ranks,
        "num_mbs": schedule.num_units,
        "train_iters": len(steps),
        "schedule": schedule.name,
        "rank_of_stage": list(schedule.placement.rank_of_stage),
        "num_replicas": schedule.placement.num_replicas,
        "num_splits": schedule.num_splits,
        "sends": steps[0].sends,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(schedule.num_ranks):
        records = {str(step.iteration): _record(step, rank) for step in steps}
        write_text(folder / f"pp_rank_{rank}.json", json.dumps(records) + "\n")
    write_text(folder / "config.json", json.dumps(config) + "\n")


def _record(step: MeasuredStep, rank: int) -> dict[str, Any]:
    passes = step.ranks[rank]
    place = step.schedule.placement.rank_of_stage
    chunk = {stage: i for i, stage in enumerate(s for s, home in enumerate(place) if home == rank)}
    whole = step.total_s or max(item.end_s for row in step.ranks for item in row)
    memory = step.memory_gib[rank] if step.memory_gib else float(step.peak_bytes[rank]) / 2**30
    record: dict[str, Any] = {"total": 1e3 * whole, "memory": memory}
    for name, kinds in SERIES.items():
        mine = [pass_ for pass_ in passes if pass_.action.kind in kinds]
        if not mine and name not in _ALWAYS:
            continue
        record[f"{name}_start"] = [1e3 * item.start_s for item in mine]
        record[f"{name}_end"] = [1e3 * item.end_s for item in mine]
        record[f"{name}_minibatch"] = [item.action.microbatch for item in mine]
        record[f"{name}_chunk"] = [chunk[item.action.stage] for item in mine]
        record[f"{name}_waited"] = [1e3 * item.waited_s for item in mine]
        record[f"{name}_live"] = [item.live for item in mine]
        record[f"{name}_saved_bytes"] = [item.saved_bytes for item in mine]
    return record


def _rank_files(folder: Path) -> list[Path]:
    paths: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.glob("*pp_rank_*.json")):
        if match := _RANK_FILE.match(path.name):
            paths.setdefault(match[1], {})[int(match[2])] = path
    if len(paths) != 1:
        allowed = "a folder of the pp_rank_<rank>.json files of one run"
        raise ReaderError(folder, wording.wrong_format(allowed, f"it has those of {len(paths)}"))
    (ranks,) = paths.values()
    if sorted(ranks) != list(range(len(ranks))):
        raise ReaderError(folder, wording.wrong_type("the ranks", sorted(ranks), "0 to n - 1"))
    return [ranks[rank] for rank in sorted(ranks)]


def _load(path: Path) -> dict[str, Any]:
    loaded = parse_json(read_text(path, most=MOST_BYTES), path)
    if not isinstance(loaded, dict):
        raise ReaderError(path, wording.wrong_type("it", ..., "a JSON object"))
    return loaded


class _Config(Struct, frozen=True, kw_only=True):
    """What `config.json` says."""

    pp: int
    vpp: int = 1
    num_units: int | None = None
    placement: Placement | None = None
    num_splits: int = 1
    schedule: str | None = None
    early: bool = False

    @classmethod
    def from_values(cls, values: dict[str, Any], path: Path, num_ranks: int) -> _Config:
        """Read it; the simulator's names are vpp_size and micro_batches."""

        def whole(names: Sequence[str], otherwise: int) -> int:
            name = next((name for name in names if values.get(name) is not None), None)
            if name is None:
                return otherwise
            if type(values[name]) is not int or not 0 < values[name] <= 1 << 20:
                raise ReaderError(path, wording.out_of_range(name, values[name], "a whole number from 1"))
            return int(values[name])

        pp = whole(("pp_size",), num_ranks)
        if pp != num_ranks:
            other = "the number of rank files"
            raise ReaderError(path, wording.differs("pp_size", pp, other, counted(num_ranks, "rank file")))
        home, placement = values.get("rank_of_stage"), None
        if home is not None:
            if not isinstance(home, list) or not all(type(rank) is int and 0 <= rank < pp for rank in home):
                allowed = f"a list of a rank from 0 to {pp - 1} for each stage"
                raise ReaderError(path, wording.wrong_type("rank_of_stage", ..., allowed))
            try:
                placement = Placement(rank_of_stage=tuple(home), num_replicas=whole(("num_replicas",), 1))
            except ScheduleError as error:
                raise ReaderError(path, error) from error
        units = whole(("num_mbs", "micro_batches"), 0)
        return cls(
            pp=pp,
            vpp=whole(("vp_size", "vpp_size"), 1),
            num_units=units or None,
            placement=placement,
            num_splits=whole(("num_splits",), 1),
            schedule=values["schedule"] if isinstance(values.get("schedule"), str) else None,
            early=values.get("sends") == "early",
        )


class _Row(Struct, frozen=True):
    """One pass as a file has it."""

    kind: Kind
    unit: int
    chunk: int
    start: float
    end: float
    waited: float
    live: float
    saved_bytes: int


class _Reader:
    """Turns records of ranks into steps."""

    def __init__(self, config: _Config, files: Sequence[Path]) -> None:
        self.config, self.files = config, files

    def step(self, iteration: int, records: Sequence[Any]) -> MeasuredStep:
        """Return one iteration of all ranks."""
        rows = [self._rows(record, path, iteration) for record, path in zip(records, self.files, strict=True)]
        units = self.config.num_units or 1 + max(row.unit for item in rows for row in item)
        steps = [self._placed(rows, placement, units) for placement in self._placements()]
        step = min(steps, key=_out_of_order)
        report = check(step.schedule)
        if not report.valid:
            key = f"whole step of iteration {iteration}"
            raise ReaderError(self.files[0].parent, wording.incomplete(key, fix=report.violations[0].message))
        memory = [record.get("memory") for record in records]
        known = any(memory) and all(
            type(item) in (int, float) for item in memory
        )  # zeros where it was not taken
        return replace(
            step,
            schedule=step.schedule.renamed(self.config.schedule or _name_of(step.schedule)),
            iteration=iteration,
            total_s=1e-3 * float(records[0]["total"]),
            memory_gib=tuple(map(float, memory)) if known else (),
        )

    def _rows(self, record: Any, path: Path, iteration: int) -> list[_Row]:  # noqa: ANN401  (JSON)
        where = f"iteration {iteration}"
        if not isinstance(record, dict) or type(record.get("total")) not in (int, float):
            allowed = "an object with the total time in milliseconds"
            raise ReaderError(path, wording.wrong_type(where, ..., allowed))
        rows: list[_Row] = []
        for name, kinds in SERIES.items():
            columns = {part: record.get(f"{name}_{part}", []) for part in ("start", "end", *_PARTS)}
            violation = _refusal(name, columns)
            if violation is None and name in _ALWAYS and not columns["start"]:
                violation = f"needs {name}_start and {name}_end"
            if violation is not None:
                raise ReaderError(path, f"{where} {violation}")
            rows += self._series(kinds, columns)
        apart = {(row.unit, row.chunk) for row in rows if row.kind is Kind.W}
        rows = [
            replace(row, kind=Kind.I) if row.kind is Kind.B and (row.unit, row.chunk) in apart else row
            for row in rows
        ]
        return sorted(rows, key=lambda row: (row.start, row.end, row.kind))

    def _series(self, kinds: tuple[Kind, ...], columns: dict[str, list[Any]]) -> list[_Row]:
        """Return the passes of one kind; where ids are missing they follow Megatron's groups of pp micro-batches."""
        count, pp, vpp = len(columns["start"]), self.config.pp, self.config.vpp
        group = [divmod(index, pp * vpp) for index in range(count)]
        chunk = columns["chunk"] or [within // pp if vpp > 1 else 0 for _, within in group]
        if not columns["chunk"] and kinds[0] is not Kind.F:
            chunk = [vpp - 1 - item for item in chunk]
        unit = columns["minibatch"] or [
            number * pp + within % pp if vpp > 1 else number * pp + within for number, within in group
        ]
        rest = [columns[name] or [0] * count for name in ("waited", "live", "saved_bytes")]
        return [
            _Row(kinds[0], *values)
            for values in zip(unit, chunk, columns["start"], columns["end"], *rest, strict=True)
        ]

    def _placements(self) -> list[Placement]:
        """Return where stages may lie: on the rank that config.json says, or as every known placement has it."""
        config = self.config
        if config.placement is not None:
            return [config.placement]
        result = [loop(config.pp, config.vpp)]
        if config.vpp > 1:
            result.append(wave(config.pp, config.vpp))
        if config.vpp == 2:
            result.append(bidirectional(config.pp))
        return result

    def _placed(self, rows: Sequence[Sequence[_Row]], placement: Placement, units: int) -> MeasuredStep:
        ranks, orders = [], []
        for rank, local in enumerate(rows):
            stages = [stage for stage, home in enumerate(placement.rank_of_stage) if home == rank]
            stray = next((row for row in local if row.chunk >= len(stages)), None)
            if stray is not None:
                has = counted(len(stages), "chunk")
                allowed = f"one that the rank has: {has}"
                key = "the chunk of a pass"
                raise ReaderError(self.files[rank], wording.out_of_range(key, stray.chunk, allowed))
            passes = [_pass(row, stages[row.chunk]) for row in _one_after_the_other(local)]
            ranks.append(tuple(passes))
            orders.append(_order(local, stages))
        schedule = Schedule(
            name="measured order",
            placement=placement,
            num_microbatches=units // self.config.num_splits,
            num_splits=self.config.num_splits,
            orders=tuple(orders),
        )
        return MeasuredStep(
            schedule=schedule, ranks=tuple(ranks), sends="early" if self.config.early else "late"
        )


_PARTS = ("minibatch", "chunk", "waited", "live", "saved_bytes")


def _refusal(name: str, columns: dict[str, Any]) -> str | None:
    """Return what is wrong with the lists of one kind of pass."""
    start, end = columns["start"], columns["end"]
    for part, values in columns.items():
        if not isinstance(values, list) or (values and len(values) != len(start)) or len(start) != len(end):
            return f"needs {name}_start, {name}_end and what else it has of {name} in lists of one length"
        ids = part in ("minibatch", "chunk", "saved_bytes")
        if not all(type(v) is int and 0 <= v < 1 << 40 if ids else type(v) in (int, float) for v in values):
            return f"has {name}_{part} that are not {'whole numbers from 0' if ids else 'numbers'}"
    late = next((i for i, pair in enumerate(zip(start, end, strict=True)) if not _forward(*pair)), None)
    return (
        None if late is None else f"has {name} {late} end at {end[late]} ms, before its start {start[late]}"
    )


def _forward(start: float, end: float) -> bool:
    return math.isfinite(start) and math.isfinite(end) and start <= end


def _pass(row: _Row, stage: int) -> Pass:
    return Pass(
        Action(row.kind, stage, row.unit),
        1e-3 * row.start,
        1e-3 * row.end,
        1e-3 * row.waited,
        row.live,
        row.saved_bytes,
    )


def _together(first: _Row, second: _Row) -> bool:
    """Return whether two passes ran as one block: Primus gives both the same start and end."""
    kinds = first.kind is Kind.F and second.kind in (Kind.B, Kind.I)
    return kinds and (first.start, first.end) == (second.start, second.end) and first.end > first.start


def _one_after_the_other(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows with the parts of blocks after each other, each with half of the block's time."""
    result = list(rows)
    for index, (first, second) in enumerate(itertools.pairwise(rows)):
        if _together(first, second):
            middle = (first.start + first.end) / 2.0
            result[index], result[index + 1] = replace(first, end=middle), replace(second, start=middle)
    return result


def _order(rows: Sequence[_Row], stages: Sequence[int]) -> tuple[int, ...]:
    acts = [row for row in rows if row.kind <= Kind.RELOAD]
    codes = [pack(row.kind, stages[row.chunk], row.unit) for row in acts]
    for index, (first, second) in enumerate(itertools.pairwise(acts)):
        if _together(first, second):
            codes[index] |= JOINED
    return tuple(codes)


def _out_of_order(step: MeasuredStep) -> int:
    """Return how many passes began before their input was made, if stages lay so; many of no order at all."""
    try:
        aligned = step.aligned
    except (ScheduleError, KeyError):
        return 1 << 40
    early = (aligned.source >= 0) & (aligned.start < aligned.end[aligned.source] - 1e-6)
    return int(early.sum())


def _name_of(schedule: Schedule) -> str:
    """Return the family whose order this is."""
    vpp = len(schedule.placement.rank_of_stage) // schedule.num_ranks
    request = Request(pp=schedule.num_ranks, num_microbatches=schedule.num_microbatches, vpp=vpp)
    for family in families():
        requested = replace(request, vpp=family.fixed_vpp or vpp)
        if requested.vpp != vpp or family.splits_sequences or family.request_violation(requested):
            continue
        try:
            built = family.build(requested)
        except ScheduleError:
            continue
        if built.placement == schedule.placement and built.orders == schedule.orders:
            return family.name
    return schedule.name
