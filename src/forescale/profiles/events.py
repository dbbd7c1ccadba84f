"""Events of a profiler's trace as they are read."""

from __future__ import annotations

import msgspec

from forescale.struct import Struct


class TraceArguments(msgspec.Struct):
    """What is read of the arguments of an event."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b"[]"))
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b"[]"))
    external_id: int | str | None = msgspec.field(name="External id", default=None)
    """Links a kernel with the operator that launched it."""
    collective: str | None = msgspec.field(name="Collective name", default=None)
    elements: int | str | None = msgspec.field(name="In msg nelems", default=None)
    elements_out: int | str | None = msgspec.field(name="Out msg nelems", default=None)
    ranks: int | str | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    """Of the elements of a message."""
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    """0 is the host; of states of the allocator."""
    allocated: float | str | None = msgspec.field(name="Total Allocated", default=None)
    reserved: float | str | None = msgspec.field(name="Total Reserved", default=None)
    name: object = None
    """Of a process or thread."""
    step_num: int | str | None = None
    """Of a step that JAX marks."""
    hlo_op: str | None = None
    """Operator of XLA."""


class TraceEvent(msgspec.Struct):
    """One event; times are in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float | str = 0.0
    dur: float | str = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: TraceArguments | None = None


class Header(Struct, frozen=True):
    """What precedes the events of a trace."""

    devices: object = ()
    """The list `deviceProperties`, unchecked."""


class Truncated(Struct, frozen=True):
    """That a trace ends before its last event."""

    bytes_read: int
