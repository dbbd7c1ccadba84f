"""Files of schedules: tables as Primus' pipeline simulator reads them, torch's CSV, measured runs.

Format of tables: AMD-AGI/Primus, primus/core/projection/configs/pp_simulation.yaml. Durations are those of one
micro-batch through a device's full share; `bwd_time` is the input gradient, `wgrad_time` the weight gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forescale import wording
from forescale.errors import ReaderError, ScheduleError, UnknownKeyError, UnknownNameError
from forescale.files import is_folder, read_text
from forescale.positions import says_lines
from forescale.schedule import LoweredSchedule, Request, Schedule, family
from forescale.schedule.torch_csv import from_csv
from forescale.schedule.traces import read_run
from forescale.struct import Struct
from forescale.syntax import load_mapping

DURATIONS: Mapping[str, str] = {"fwd_time": "forward", "bwd_time": "input_grad", "wgrad_time": "weight_grad"}
COSTS: Mapping[str, str] = {
    "cost_f": "forward",
    "cost_b": "input_grad",
    "cost_w": "weight_grad",
    "cost_comm": "comm",
}
"""What an entry's heuristic orders passes by, instead of the durations of the table."""
KEYS = (*DURATIONS, "schedulers", "print_simulation_result", "output_dir")
SHAPE: Mapping[str, str] = {"pp_size": "pp", "vpp_size": "vpp", "micro_batches": "num_microbatches"}
GREEDY: Mapping[object, str] = {"half": "v-half", "min": "v-min"}
"""Schedules of the greedy V algorithm by `memory_config`."""
TABLES = (".yaml", ".yml")
MOST_BYTES = 1 << 24
"""Bytes of the largest schedule file that is read."""
LIMITS = ("max_mem", "cached_fwd_chunks_limit")
"""Most micro-batches, or chunks of micro-batches, that a rank holds."""
ENTRY_KEYS = ("name", "class", *SHAPE, "memory_config", *COSTS, *LIMITS)


class Listed(Struct, frozen=True, kw_only=True):
    """One schedule of a table."""

    label: str
    """What the table calls it."""
    schedule: str
    """Its name in the library."""
    request: Request
    """What its passes are ordered by."""
    durations: tuple[float, float, float]
    """What a forward, an input gradient and a weight gradient of a full share take."""


class ScheduleTable(Struct, frozen=True, kw_only=True):
    """What a table holds."""

    schedules: tuple[Listed, ...]
    output_dir: Path | None = None
    """Folder that the simulated steps are written to, one folder per schedule."""

    def named(self, labels: Sequence[str], path: Path) -> tuple[Listed, ...]:
        """Return the schedules of some names, all of them where none are given.

        Raises
        ------
        ReaderError
            If it lists no schedule of a name.
        """
        known = {item.label: item for item in self.schedules}
        for label in labels:
            if label not in known:
                hint = f"it lists {', '.join(known)}"
                raise ReaderError(path, wording.unknown_name("schedule", label, tuple(known), hint))
        return tuple(known[label] for label in labels) if labels else self.schedules


@says_lines
def read_schedule_table(path: Path) -> ScheduleTable:
    """Return the schedules of a table, in its order.

    Raises
    ------
    ReaderError
        If the file cannot be read, or a key is missing, unknown, or has a value that cannot be.
    """
    mapping = load_mapping(path)
    for key in mapping:
        if key not in KEYS:
            raise UnknownKeyError(str(key), str(path), KEYS)
    durations = {name: _duration(path, key, mapping.get(key)) for key, name in DURATIONS.items()}
    entries = mapping.get("schedulers")
    if not isinstance(entries, list) or not entries:
        raise ReaderError(path, wording.empty("schedulers", "list one schedule or more"))
    folder = mapping.get("output_dir")
    if folder is not None and not (isinstance(folder, str) and folder):
        raise ReaderError(path, wording.wrong_type("output_dir", folder, "a folder"))
    return ScheduleTable(
        schedules=tuple(_listed(path, index, entry, durations) for index, entry in enumerate(entries)),
        output_dir=None if folder is None else Path(folder),
    )


def read_schedule(path: Path, label: str | None = None) -> tuple[Schedule, LoweredSchedule | None]:
    """Return the schedule in a file, and its sends and receives if it has them.

    Parameters
    ----------
    path
        torch's CSV, a table of schedules in YAML, or the folder of a measured run: the order that ran.
    label
        Which schedule of a table; may be left out of a table with one.

    Raises
    ------
    ReaderError, ScheduleError
        If it is none of these, or names no such schedule.
    """
    if label is not None and path.suffix.lower() not in TABLES:
        raise ReaderError(path, wording.no_effect(f"--schedule {label}", "it holds one schedule"))
    if is_folder(path):
        return read_run(path).typical.schedule, None
    if path.suffix.lower() not in TABLES:
        try:
            return from_csv(read_text(path, most=MOST_BYTES), name=path.stem)
        except ScheduleError as error:
            raise ScheduleError(error).at(path) from error
    picked = _picked(path, label)
    return family(picked.schedule).build(picked.request).renamed(picked.label), None


def limit_of(path: Path, label: str | None = None) -> float | None:
    """Return the most micro-batches (of a full share) a rank may hold by a table; None where a file says nothing."""
    return _picked(path, label).request.memory_limit if path.suffix.lower() in TABLES else None


def _picked(path: Path, label: str | None) -> Listed:
    picked = read_schedule_table(path).named([] if label is None else [label], path)
    if len(picked) > 1:
        names = ", ".join(item.label for item in picked)
        raise ReaderError(path, wording.choose_one("schedules", names, "its name with --schedule"))
    return picked[0]


def _listed(path: Path, index: int, entry: object, durations: Mapping[str, float]) -> Listed:
    where = f"schedulers[{index}]"
    if not isinstance(entry, dict):
        raise ReaderError(path, wording.wrong_type(where, ..., f"a table with {', '.join(('name', *SHAPE))}"))
    for key in entry:
        if key not in ENTRY_KEYS:
            raise UnknownKeyError(str(key), f"{path}, {where}", ENTRY_KEYS)
    shape = {name: _count(path, f"{where}.{key}", entry.get(key)) for key, name in SHAPE.items()}
    costs = {
        name: _duration(path, f"{where}.{key}", entry[key]) for key, name in COSTS.items() if key in entry
    }
    ordering: dict[str, Any] = {**durations, **costs}
    request = Request(
        pp=shape["pp"],
        num_microbatches=shape["num_microbatches"],
        vpp=shape["vpp"],
        memory_limit=_limit(path, where, entry, shape["vpp"]),
        **ordering,
    )
    label = str(entry.get("name") or entry.get("class") or "")
    name = _schedule(path, where, entry)
    if reason := family(name).violation(request):
        raise ReaderError(path, f"{where} ({name}): {reason}")
    taken = (durations["forward"], durations["input_grad"], durations["weight_grad"])
    return Listed(label=label, schedule=name, request=request, durations=taken)


def _limit(path: Path, where: str, entry: Mapping[object, object], vpp: int) -> float | None:
    """Return the most micro-batches of a full share that a rank may hold; None where the entry has no limit."""
    limits = {key: entry[key] for key in LIMITS if entry.get(key) is not None}
    if len(limits) > 1:
        raise ReaderError(path, f"{where}: {' and '.join(limits)} are two limits; give one of them")
    for key, value in limits.items():
        count = _count(path, f"{where}.{key}", value)
        return count / vpp if key == "cached_fwd_chunks_limit" else float(count)
    return None


def _schedule(path: Path, where: str, entry: Mapping[object, object]) -> str:
    """Return the library's name of an entry: by its class, else by its name."""
    named = str(entry.get("class") or entry.get("name") or "").rpartition(".")[2]
    memory_config = entry.get("memory_config")
    if memory_config is not None:
        if not isinstance(memory_config, str) or memory_config not in GREEDY:
            allowed = ("half", "min")
            raise ReaderError(path, wording.not_one_of(f"{where}.memory_config", memory_config, allowed))
        return GREEDY[memory_config]
    try:
        return family(named).name
    except UnknownNameError as error:
        raise ReaderError(path, error.at(where)) from error


def _duration(path: Path, key: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ReaderError(path, wording.wrong_type(key, value, "a duration of zero or more"))


def _count(path: Path, key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ReaderError(path, wording.out_of_range(key, value, "a whole number of 1 or more"))
