"""What torch itself records of a run, as measurements: its profiler's traces (Kineto) and snapshots of its allocator.

A trace (`.json`, `.json.gz`, of `torch.profiler` with `record_shapes=True`) has products and attention by shape, NCCL's
collectives, steps, the optimizer's update and the peak of the allocator. A snapshot (`.pickle`, `.pkl`, of
`torch.cuda.memory._dump_snapshot`) has the peaks of what was allocated and reserved. Neither says of which layout it
is: it is taken for the one that is asked about.
"""

from __future__ import annotations

import gzip
import io
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from msgspec.structs import replace

from forescale import wording
from forescale.cost.timings import MeasuredCollective, kind_of
from forescale.errors import ReaderError, SpecError, refuse_misspelt
from forescale.files import parse_json, read_bytes
from forescale.graph.ops import AttentionCore, Compute, Gemm
from forescale.limits import Interval, outside, within
from forescale.memory.anchored import RankPeak
from forescale.positions import says_lines
from forescale.struct import Struct

Event: TypeAlias = Mapping[str, Any]
MOST_BYTES = 1 << 30
MICRO = 1e-6
TRACES, SNAPSHOTS = (".json", ".gz"), (".pickle", ".pkl")
TYPES = {
    "float": "fp32", "c10::half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16", "half": "fp16",
    "c10::float8_e4m3fn": "fp8",
}  # fmt: skip
"""Our names of torch's types, in lower case."""
WIDTHS = {"float": 4.0, "half": 2.0, "bfloat16": 2.0, "byte": 1.0, "double": 8.0, "long": 8.0, "int": 4.0}
"""Bytes of an element, by the names that NCCL's events have, in lower case."""
GATHERS = ("all_gather",)
STEP, UPDATE = "ProfilerStep#", "Optimizer.step#"
LATER_FLAG = ("efficient_attention", "cudnn_attention")
"""Forward attention whose first flag is not whether it is causal, but the second."""


class Profile(Struct, frozen=True, kw_only=True):
    """What a run recorded of itself."""

    kernels: tuple[tuple[Compute, float], ...] = ()
    """Products and attention by shape, and the median of their seconds."""
    collectives: tuple[MeasuredCollective, ...] = ()
    """The fastest of equal messages: the others waited for a peer."""
    step_s: float | None = None
    """Median of whole steps."""
    update_s: float | None = None
    """Median of the optimizer's updates."""
    ranks: tuple[RankPeak, ...] = ()
    devices: tuple[str, ...] = ()
    """Names of the devices of the machine that recorded it, by its driver."""
    on_device: bool = True
    """Whether work of a device was recorded; else all times are the host's."""


def is_profile(path: str | Path) -> bool:
    """Say whether a file is a snapshot, or a trace by what it begins with."""
    file = Path(path)
    if file.suffix in SNAPSHOTS or file.name.endswith(".json.gz"):
        return True
    return file.suffix == ".json" and '"traceEvents"' in _text(file)


@says_lines
def read_profile(path: str | Path, *, devices_per_node: int) -> Profile:
    """Return what a trace or a snapshot says.

    Parameters
    ----------
    devices_per_node
        Neighbouring ranks that share a node, which a trace does not say.

    Raises
    ------
    ReaderError
        If it cannot be read, is neither, or holds nothing of use.
    """
    file = Path(path)
    if file.suffix in SNAPSHOTS:
        return Profile(ranks=_peaks(_snapshot(file), file))
    document = parse_json(_text(file), file, infinite=True)
    events = document.get("traceEvents") if isinstance(document, Mapping) else None
    if not isinstance(events, list):
        raise ReaderError(
            file, wording.wrong_format("a trace of torch.profiler", "it has no list traceEvents")
        )
    events = [event for event in events if isinstance(event, Mapping)]
    _check(events, file)
    trace = _trace(events, devices_per_node)
    if not (trace.kernels or trace.collectives or trace.step_s or trace.update_s or trace.ranks):
        value = "kernels or steps"
        raise ReaderError(
            file,
            wording.not_measured("it", value, "record with torch.profiler's record_shapes=True and step()"),
        )
    return replace(trace, devices=_device_names(document, file))


def _device_names(document: Event, file: Path) -> tuple[str, ...]:
    """Return the distinct names of a trace's devices, in order."""
    rows = document.get("deviceProperties") or []
    if not isinstance(rows, list):
        raise ReaderError(file, wording.wrong_type("deviceProperties", rows, "a list of tables"))
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
            raise ReaderError(
                file, wording.wrong_type(f"deviceProperties[{place}]", row, "a table with a name")
            )
    return tuple(dict.fromkeys(row["name"] for row in rows))


def _text(file: Path) -> str:
    content = read_bytes(file, most=MOST_BYTES)
    try:
        if file.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as inside:
                content = inside.read(MOST_BYTES + 1)
        return content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ReaderError(file, wording.wrong_format(f"a complete trace ({error})")) from error


READ: Mapping[str, tuple[type, ...]] = {
    "name": (str,), "cat": (str,), "dur": (int, float), "args": (Mapping,),
}  # fmt: skip
READ_ARGUMENTS: Mapping[str, tuple[type, ...]] = {
    "Input Dims": (list,), "Input type": (list,), "Concrete Inputs": (list,), "External id": (int, str),
    "Collective name": (str,), "In msg nelems": (int,), "Out msg nelems": (int,), "Group size": (int,), "dtype": (str,),
    "Device Type": (int,), "Total Allocated": (int, float), "Total Reserved": (int, float),
}  # fmt: skip
"""What is read of an event and of its arguments, with its types; they have many keys beside."""
RANGES: Mapping[str, Interval] = {
    "dur": Interval(ge=-1e12, le=1e12), "In msg nelems": Interval(ge=0, le=1e15),
    "Out msg nelems": Interval(ge=0, le=1e15), "Group size": Interval(ge=0, le=2**24),
}  # fmt: skip
"""Of what is read and is a number; of all others those that may be."""
USUAL = Interval(ge=-1e24, le=1e24)


def _check(events: Sequence[Event], file: Path) -> None:
    """Refuse what is read of events where it is of another type, and keys that are nearly one that is read."""
    strange: set[str] = set()
    for at, event in enumerate(events):
        for table, kinds in ((event, READ), (_args(event), READ_ARGUMENTS)):
            for key, value in table.items():
                if key in kinds and (violation := _problem(value, kinds[key], RANGES.get(key, USUAL))):
                    where = f"{key!r} of event {at} ({event.get('name')})"
                    raise ReaderError(file, wording.out_of_range(where, value, violation))
            if new := table.keys() - kinds.keys() - strange:
                strange |= new
                refuse_misspelt(table, kinds, f"{file}, event {at} ({event.get('name')})")


def _problem(value: object, kinds: tuple[type, ...], allowed: Interval) -> str:
    """Return what a value of a trace must be; nothing where it is that."""
    plain = isinstance(value, kinds) and not isinstance(value, bool)
    if not plain or (isinstance(value, float) and not isfinite(value)):
        return wording.listed(TYPE_WORDS[kind] for kind in kinds)
    return outside(value, allowed) if isinstance(value, int | float) else ""


TYPE_WORDS: Mapping[type, str] = {
    str: "text", int: "a whole number", float: "a number", list: "a list", Mapping: "a table",
}  # fmt: skip


def _trace(events: Sequence[Event], devices_per_node: int) -> Profile:
    peaks = [
        (args.get("Total Allocated", 0), args.get("Total Reserved", 0))
        for event in events
        if event.get("name") == "[memory]" and (args := _args(event)).get("Device Type")
    ]
    allocated, reserved = (max((peak[index] for peak in peaks), default=0) for index in (0, 1))
    peak = RankPeak(peak_allocated_bytes=allocated, peak_reserved_bytes=max(reserved, allocated))
    return Profile(
        kernels=_kernels(events),
        collectives=_collectives(events, devices_per_node),
        step_s=_annotated(events, STEP),
        update_s=_annotated(events, UPDATE),
        ranks=(peak,) if allocated > 0 else (),
        on_device=bool(peaks) or any(event.get("cat") in DEVICE_WORK for event in events),
    )


DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
"""Categories of events that a device has."""


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, Mapping) else {}


def _seconds(event: Event) -> float:
    dur = event.get("dur")
    return dur * MICRO if isinstance(dur, int | float) and dur > 0 else 0.0


def _annotated(events: Sequence[Event], start: str) -> float | None:
    """Return the median of what is annotated with a name; on the device where it is there as well."""
    for category in ("gpu_user_annotation", "user_annotation"):
        seconds = [
            _seconds(event)
            for event in events
            if event.get("cat") == category and str(event.get("name")).startswith(start)
        ]
        if seconds:
            return median(seconds)
    return None


def _kernels(events: Sequence[Event]) -> tuple[tuple[Compute, float], ...]:
    """Return the shapes that were recorded; on a device what its kernels took, else what the call took."""
    on_device: dict[Any, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "kernel":
            on_device[_args(event).get("External id")] += _seconds(event)
    timed: dict[Compute, list[float]] = defaultdict(list)
    for event in events:
        read = OPERATORS.get(str(event.get("name"))) if event.get("cat") == "cpu_op" else None
        if read is None:
            continue
        op = _shaped(read, event)
        seconds = on_device.get(_args(event).get("External id"), 0.0) if on_device else _seconds(event)
        if op is not None and seconds:
            timed[op].append(seconds)
    return tuple((op, median(seconds)) for op, seconds in timed.items())


def _shaped(read: Reader, event: Event) -> Compute | None:
    """Return the operator of an event; None where its shapes were not recorded, or are no usual ones."""
    args = _args(event)
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    dtype = next((TYPES[type_.lower()] for type_ in types if str(type_).lower() in TYPES), None)
    try:
        return None if dtype is None else read(str(event["name"]), dims, dtype, args)
    except (IndexError, KeyError, ValueError, TypeError):
        return None


def _product(name: str, dims: list[Any], dtype: str, args: Mapping[str, Any]) -> Compute:  # noqa: ARG001
    """Return a product; addmm and baddbmm add it to their first input."""
    one, other = dims[1:3] if "add" in name else dims[:2]
    batch = float(one[0]) if len(one) == 3 else 1.0
    (m, k), n = one[-2:], other[-1]
    if not all(0 < item < inf for item in (batch, m, n, k)):
        raise ValueError
    return Gemm(m=float(m), n=float(n), k=float(k), batch=batch, dtype=dtype)


def _attention(name: str, dims: list[Any], dtype: str, args: Mapping[str, Any]) -> Compute:
    """Return an attention core; the backward has the gradient of its result before queries, keys and values."""
    backward = name.endswith("_backward")
    query, key, value = dims[1:4] if backward else dims[:3]
    batch, heads, length, width = map(float, query)
    _, kv_heads, kv_len, _ = map(float, key)
    flags = [
        Concrete_Input
        for Concrete_Input in args.get("Concrete Inputs", ())
        if Concrete_Input in ("True", "False")
    ]
    later = not backward and any(kind in name for kind in LATER_FLAG)
    causal = (flags[1 if later else 0] == "True") if len(flags) > later else True
    everything = length * kv_len
    return AttentionCore(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=length,
        kv_len=kv_len,
        pairs=everything / 2.0 if causal else everything,
        qk_dim=width,
        v_dim=float(value[-1]),
        causal=causal,
        backward=backward,
        dtype=dtype,
    )


Reader: TypeAlias = Callable[[str, list[Any], str, Mapping[str, Any]], Compute]
ATTENTION = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
OPERATORS: Mapping[str, Reader] = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"), _product),
    **{
        f"aten::_scaled_dot_product_{kind}{end}": _attention
        for kind in ATTENTION
        for end in ("", "_backward")
    },
}
"""Operators of torch that run kernels of their own, by name."""


def _collectives(events: Sequence[Event], devices_per_node: int) -> tuple[MeasuredCollective, ...]:
    fastest: dict[tuple[Any, ...], float] = {}
    for event in events:
        if event.get("cat") == "kernel" and (key := _message(_args(event), devices_per_node)):
            fastest[key] = min(_seconds(event), fastest.get(key, float("inf")))
    return tuple(
        MeasuredCollective(kind=kind, num_bytes=size, num_ranks=ranks, ranks_per_node=near, seconds=seconds)
        for (kind, size, ranks, near), seconds in fastest.items()
        if seconds
    )


def _message(args: Mapping[str, Any], devices_per_node: int) -> tuple[Any, ...] | None:
    """Return kind, bytes, ranks and ranks per node of a kernel of NCCL; None where it is none."""
    name = str(args.get("Collective name", "")).lstrip("_").removesuffix("_base").removesuffix("v")
    kind = kind_of(name)
    elements = args.get("Out msg nelems" if kind in GATHERS else "In msg nelems")
    width, ranks = WIDTHS.get(str(args.get("dtype", "")).lower()), args.get("Group size")
    if kind is None or width is None or not (isinstance(elements, int) and isinstance(ranks, int)):
        return None
    if elements <= 0 or ranks < 2:
        return None
    return kind, elements * width, ranks, min(ranks, devices_per_node)


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and tables; anything that would call a function is refused."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (a class)
        raise pickle.UnpicklingError(f"it would load {module}.{name}, and a snapshot holds plain values only")


def _snapshot(file: Path) -> Event:
    try:
        content = _Plain(io.BytesIO(read_bytes(file, most=MOST_BYTES))).load()
    except ReaderError:
        raise
    except Exception as error:  # a broken pickle raises anything
        raise ReaderError(file, wording.cannot_parse("pickle", str(error))) from error
    if not isinstance(content, Mapping) or not isinstance(content.get("segments"), list):
        raise ReaderError(
            file, wording.wrong_format("a snapshot of torch.cuda.memory", "it has no list segments")
        )
    return content


CHANGES: Mapping[str, tuple[int, int]] = {
    "alloc": (1, 0),
    "free_completed": (-1, 0),
    "segment_alloc": (0, 1),
    "segment_free": (0, -1),
    "segment_map": (0, 1),
    "segment_unmap": (0, -1),
}
"""Sign of an action's bytes in what is allocated, and in what is reserved."""


SIZE = Interval(ge=0, le=2**60)
"""Bytes of a segment or of a change."""
PLACE = Interval(ge=0, le=2**16)
"""Numbers of devices."""


def _peaks(content: Event, file: Path) -> tuple[RankPeak, ...]:
    """Return the peaks of every device: what is held at the end, and the recorded changes before it."""
    segments = _tables(content["segments"], "segments", file)
    traces = content.get("device_traces") or []
    if not isinstance(traces, list):
        raise ReaderError(file, wording.wrong_type("device_traces", traces, "a list"))
    values: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for place, segment in enumerate(segments):
        where = f"segments[{place}]"
        sizes = [_whole(segment, key, where, file, SIZE) for key in ("allocated_size", "total_size")]
        ends = values[_whole({"device": 0, **segment}, "device", where, file, PLACE)]
        ends[:] = [before + size for before, size in zip(ends, sizes, strict=True)]
    result = []
    for device in sorted({*values, *range(len(traces))}):
        where = f"device_traces[{device}]"
        trace = _tables(traces[device], where, file) if device < len(traces) else []
        allocated, reserved = (
            _highest(end, list(_changed(trace, which, where, file)))
            for which, end in enumerate(values[device])
        )
        if reserved or allocated:
            result.append(
                RankPeak(
                    rank=device,
                    peak_allocated_bytes=allocated,
                    peak_reserved_bytes=max(reserved, allocated),
                )
            )
    if not result:
        raise ReaderError(file, wording.not_measured("it", "memory: nothing was allocated when it was taken"))
    return tuple(result)


def _tables(rows: object, where: str, file: Path) -> list[Event]:
    """Return a list of tables of a snapshot as it is."""
    if not isinstance(rows, list):
        raise ReaderError(file, wording.wrong_type(where, rows, "a list of tables"))
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ReaderError(file, wording.wrong_type(f"{where}[{place}]", row, "a table"))
    return rows


def _whole(table: Event, key: str, where: str, file: Path, allowed: Interval) -> int:
    """Return a whole number of a snapshot's table."""
    if key not in table:
        raise ReaderError(
            file, wording.wrong_format("a snapshot of torch.cuda.memory", f"{where} has no {key}")
        )
    try:
        return int(within(table[key], allowed, f"{where}.{key}", whole=True))
    except SpecError as error:
        raise ReaderError(file, error) from error


def _changed(trace: Sequence[Event], which: int, where: str, file: Path) -> Iterator[int]:
    for place, event in enumerate(trace):
        action = event.get("action")
        if not isinstance(action, str):
            raise ReaderError(file, wording.wrong_type(f"{where}[{place}].action", action, "text"))
        if sign := CHANGES.get(action, (0, 0))[which]:
            yield sign * _whole(event, "size", f"{where}[{place}]", file, SIZE)


def _highest(end: int, changes: Sequence[int]) -> float:
    """Return the most there was, from what there is after the changes."""
    start = max(end - sum(changes), 0)
    return float(max(accumulate(changes, initial=start)))
