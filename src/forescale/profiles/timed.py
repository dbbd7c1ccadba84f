"""Operators by shape, collectives, steps, updates and memory peaks that a run recorded of itself, with their times.

A trace of `torch.profiler` with `record_shapes=True` has all of them; a snapshot of the allocator has the peaks.
Neither says of which layout it is: it is taken for the one that is asked about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from forescale import wording
from forescale.cost.timings import MeasuredCollective, kind_of
from forescale.errors import ReaderError, SpecError
from forescale.graph.ops import AttentionCore, Compute, Gemm
from forescale.limits import Interval, within
from forescale.memory.anchored import RankPeak
from forescale.profiles.events import Header, TraceArguments, TraceEvent, Truncated
from forescale.profiles.shapes import TYPES, factors_of, sizes_of
from forescale.profiles.snapshot import read_snapshot
from forescale.profiles.stream import is_trace, stream_events
from forescale.profiles.summary import DEVICE, MICRO, PROFILED_STEP, UPDATE
from forescale.struct import Struct

SNAPSHOTS = (".pickle", ".pkl")
PICKLE = b"\x80"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
ATTENTION = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
LATER_FLAG = ("efficient_attention", "cudnn_attention")
"""Forward attention whose first flag is not whether it is causal, but the second."""
PRICED = ("fp32", "fp16", "bf16", "fp8")
"""Types of operators that are looked up."""
WIDTHS = {"float": 4.0, "half": 2.0, "bfloat16": 2.0, "byte": 1.0, "double": 8.0, "long": 8.0, "int": 4.0}
"""Bytes of an element, by the names that NCCL's events have, in lower case."""
GATHERS = ("all_gather",)
USUAL = Interval(ge=-1e12, le=1e15)
"""Durations, elements and bytes of events."""
RANKS = Interval(ge=0, le=2**24)
NONE = TraceArguments()


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
    """Say whether the content of a file is a trace or a snapshot."""
    file = Path(path)
    if file.suffix in SNAPSHOTS:
        return True
    return file.is_file() and is_trace(file)


def read_profile(path: str | Path, *, devices_per_node: int) -> Profile:
    """Return what a trace or a snapshot says.

    Parameters
    ----------
    devices_per_node
        Neighbouring ranks that share a node, which a trace does not say.

    Raises
    ------
    ReaderError
        If it cannot be read, is neither, is cut off, or holds nothing of use.
    """
    file = Path(path)
    if file.suffix in SNAPSHOTS:
        return Profile(ranks=read_snapshot(file))
    collected = _Collected(devices_per_node)
    try:
        for event in stream_events(file):
            collected.add(event)
    except SpecError as error:
        raise error if isinstance(error, ReaderError) else ReaderError(file, error) from error
    profile = collected.profile()
    if not (profile.kernels or profile.collectives or profile.step_s or profile.update_s or profile.ranks):
        fix = "record with torch.profiler's record_shapes=True and step()"
        raise ReaderError(file, wording.not_measured("it", "kernels or steps", fix))
    return profile


class _Collected:
    """Operators, messages, annotations and peaks of a trace's events, as they come."""

    def __init__(self, devices_per_node: int) -> None:
        self.devices_per_node = devices_per_node
        self.count = -1
        self.launched_s: dict[object, float] = defaultdict(float)
        """Seconds of the kernels of each operator, by the id that links them."""
        self.calls: dict[Compute, list[tuple[object, float]]] = defaultdict(list)
        """Id and seconds of the calls of each operator, on the host."""
        self.fastest: dict[tuple[Any, ...], float] = {}
        self.annotated: dict[tuple[str, bool], list[float]] = defaultdict(list)
        """Seconds of steps and updates, on the host and on a device."""
        self.peaks = [0.0, 0.0]
        self.on_device = False
        self.devices: tuple[str, ...] = ()

    def add(self, event: Header | TraceEvent | Truncated) -> None:
        """Take one event in."""
        if isinstance(event, Header):
            self.devices = _device_names(event.devices)
            return
        if isinstance(event, Truncated):
            raise wording.wrong_format("a complete trace", "it ends before its last event")
        self.count += 1
        on_device = event.cat in (*DEVICE, "gpu_user_annotation")
        self.on_device |= on_device
        args = event.args or NONE
        if event.cat == "kernel":
            self._add_kernel(event, args)
        elif event.cat == "cpu_op" and (read := OPERATORS.get(event.name)) is not None:
            if (op := _shaped(read, event)) is not None:
                self.calls[op].append((args.external_id, self._seconds(event)))
        elif event.cat in ("user_annotation", "gpu_user_annotation"):
            if name := next((name for name in (PROFILED_STEP, UPDATE) if event.name.startswith(name)), None):
                self.annotated[name, on_device].append(self._seconds(event))
        elif event.name == "[memory]" and args.device_type:
            self.on_device = True
            for place, key, value in ((0, "Allocated", args.allocated), (1, "Reserved", args.reserved)):
                size = self._number(event, f"Total {key}", value or 0)
                self.peaks[place] = max(self.peaks[place], size)

    def _number(self, event: TraceEvent, key: str, value: object, allowed: Interval = USUAL) -> float:
        return float(within(value, allowed, f"'{key}' of event {self.count} ({event.name})"))

    def _seconds(self, event: TraceEvent) -> float:
        return max(0.0, self._number(event, "dur", event.dur) * MICRO)

    def _add_kernel(self, event: TraceEvent, args: TraceArguments) -> None:
        seconds = self._seconds(event)
        self.launched_s[args.external_id] += seconds
        name = (args.collective or "").lstrip("_").removesuffix("_base").removesuffix("v")
        kind, width = kind_of(name), WIDTHS.get((args.dtype or "").lower())
        if kind is None or width is None:
            return
        key, value = ("Out", args.elements_out) if kind in GATHERS else ("In", args.elements)
        elements = self._number(event, f"{key} msg nelems", value or 0)
        ranks = int(self._number(event, "Group size", args.ranks or 0, RANKS))
        if elements > 0 and ranks > 1:
            message = (kind, elements * width, ranks, min(ranks, self.devices_per_node))
            self.fastest[message] = min(seconds, self.fastest.get(message, inf))

    def profile(self) -> Profile:
        """Return what was collected."""
        timed: dict[Compute, list[float]] = {}
        for op, calls in self.calls.items():
            times = [self.launched_s.get(key, 0.0) if self.launched_s else seconds for key, seconds in calls]
            if any(times):
                timed[op] = [seconds for seconds in times if seconds]
        allocated, reserved = self.peaks
        peak = RankPeak(peak_allocated_bytes=allocated, peak_reserved_bytes=max(reserved, allocated))
        return Profile(
            kernels=tuple((op, median(times)) for op, times in timed.items()),
            collectives=tuple(
                MeasuredCollective(
                    kind=kind, num_bytes=size, num_ranks=ranks, ranks_per_node=near, seconds=seconds
                )
                for (kind, size, ranks, near), seconds in self.fastest.items()
                if seconds
            ),
            step_s=self._typical(PROFILED_STEP),
            update_s=self._typical(UPDATE),
            ranks=(peak,) if allocated > 0 else (),
            devices=self.devices,
            on_device=self.on_device,
        )

    def _typical(self, name: str) -> float | None:
        """Return the median of what is annotated with a name; on the device where it is there as well."""
        times = self.annotated.get((name, True)) or self.annotated.get((name, False))
        return median(times) if times else None


def _device_names(rows: object) -> tuple[str, ...]:
    """Return the distinct names of a trace's devices, in order."""
    if not isinstance(rows, list | tuple):
        raise wording.wrong_type("deviceProperties", rows, "a list of tables")
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
            raise wording.wrong_type(f"deviceProperties[{place}]", row, "a table with a name")
    return tuple(dict.fromkeys(row["name"] for row in rows))


def _shaped(read: Reader, event: TraceEvent) -> Compute | None:
    """Return the operator of an event; None where its shapes were not recorded, or are no usual ones."""
    types = sizes_of(event.args.types) if event.args is not None else []
    dtype = next((kind for name in types if (kind := TYPES.get(str(name))) in PRICED), None)
    try:
        return None if dtype is None else read(event, dtype)
    except (IndexError, KeyError, ValueError, TypeError):
        return None


def _product(event: TraceEvent, dtype: str) -> Compute | None:
    if (factors := factors_of(event)) is None:
        return None
    one, other, _ = factors
    batch = float(one[0]) if len(one) == 3 else 1.0
    (m, k), n = one[-2:], other[-1]
    if not all(0 < item < inf for item in (batch, m, n, k)):
        return None
    return Gemm(m=float(m), n=float(n), k=float(k), batch=batch, dtype=dtype)


def _attention(event: TraceEvent, dtype: str) -> Compute:
    """Return an attention core; the backward has the gradient of its result before queries, keys and values."""
    assert event.args is not None
    dims, concrete = sizes_of(event.args.dims), sizes_of(event.args.concrete)
    backward = event.name.endswith("_backward")
    query, key, value = dims[1:4] if backward else dims[:3]
    batch, heads, length, width = map(float, query)
    _, kv_heads, kv_len, _ = map(float, key)
    flags = [flag for flag in concrete if flag in ("True", "False")]
    later = not backward and any(kind in event.name for kind in LATER_FLAG)
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


Reader: TypeAlias = Callable[[TraceEvent, str], Compute | None]
OPERATORS: Mapping[str, Reader] = {
    **dict.fromkeys(PRODUCTS, _product),
    **{
        f"aten::_scaled_dot_product_{kind}{end}": _attention
        for kind in ATTENTION
        for end in ("", "_backward")
    },
}
"""Operators of torch that run kernels of their own, by name."""
