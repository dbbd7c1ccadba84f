"""Trace a module: record it at several sizes, find formulas, and return what a model file holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import lcm
from typing import Any, TypeAlias

import torch
from msgspec.structs import replace
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from forescale.errors import (
    ForescaleError,
    SpecError,
    incomplete,
    not_one_of,
    not_traceable,
    out_of_range,
)
from forescale.graph.parallel import NO_PLAN, Plan
from forescale.spec.trace import (
    Formula,
    Trace,
    TracedBlock,
    TracedKernel,
    TracedOperator,
    TracedParameter,
    extents_of,
)
from forescale.trace.formulas import NUM_FITTED, fitted_on_ranks
from forescale.trace.kernels import TYPES, kernels_of
from forescale.trace.parallel import local, ranks_of
from forescale.trace.recorder import Event, Segment
from forescale.trace.session import Inputs, Loss, Recording, fake, known_objects, record

MakeInputs: TypeAlias = Callable[[int, int], Inputs | tuple[Any, ...]]
"""Returns what the module is called with for a micro-batch size and a sequence length."""
Progress: TypeAlias = Callable[[str], None]
Row: TypeAlias = tuple[tuple[str, str, str, str, str, bool], tuple[int, ...]]
"""Module, operator, pass, kind, type and replay of a kernel; and its extents."""


def sizes_about(seq_len: int) -> tuple[tuple[int, int], ...]:
    """Return the sizes to record at: six that determine a formula, and two further ones that check it.

    No extent is 1, at which a broadcast is none.
    """
    low, middle, high = (max(seq_len * part // 4, 1) for part in (2, 3, 4))
    check = max(seq_len * 5 // 8, 1)
    if len({low, middle, high, check}) < 4:
        raise out_of_range("seq_len", seq_len, "8 or more for a trace")
    fit = tuple((batch, length) for batch in (2, 3) for length in (low, middle, high))
    return (*fit, (5, check), (4, high))


def trace_module(
    module: nn.Module,
    inputs: MakeInputs,
    *,
    seq_len: int,
    autocast: torch.dtype | None = None,
    loss: Loss | None = None,
    progress: Progress = lambda _: None,
    thresholds: Sequence[int] | None = (),
    plan: Plan = NO_PLAN,
    external: bool = True,
    **origin: str,
) -> Trace:
    """Return the trace of a module: of a range of sequence lengths where formulas hold, else of `seq_len` alone.

    Parameters
    ----------
    module
        Its parameters may be on the meta device; they are replaced by fake tensors.
    inputs
        Returns what it is called with for a micro-batch size and a sequence length.
    seq_len
        Sequence length that the valid range includes.
    thresholds
        Sequence lengths at which the module can change what it runs, which end the valid range. None traces
        `seq_len` alone, which takes less than half of the time.
    plan
        Styles of linear layers by which ranks of tensor parallelism split them; further degrees are recorded.
    external
        Whether kernels of other libraries run where transformers uses them if they are installed.
    origin
        Fields of the trace that say how it was made.

    Raises
    ------
    ForescaleError
        If the module needs values of tensors, fails, or has sizes that no formula describes.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake(module, mode)
    degrees = ranks_of(module, plan) if plan.styles else ()

    def recordings(rows: Sequence[tuple[tuple[int, int], int]]) -> Iterator[Recording]:
        for index, ((batch, length), tp) in enumerate(rows):
            on = f", tp {tp}" if tp > 1 else ""
            progress(f"recording {index + 1} of {len(rows)}: micro-batch {batch}, {length} tokens{on}")
            make = lambda b=batch, s=length: inputs(b, s)  # noqa: E731
            size = batch, length
            with local(module, plan, tp, mode), known_objects():
                recording = record(
                    module, make, mode=mode, size=size, autocast=autocast, loss=loss, external=external
                )
            yield recording

    assembled = partial(_assembled, module, recordings, degrees, plan, autocast, origin)
    if thresholds is not None:
        sizes = sizes_about(seq_len)
        with contextlib.suppress(_VariesError):
            return replace(assembled(sizes), **_valid_range([length for _, length in sizes], thresholds))
    fixed = [(batch, seq_len) for batch in (2, 3, 5)]
    try:
        traced = assembled(fixed)
    except _VariesError:  # modules that keep tables run other operators in their first forward
        traced = assembled(fixed)
    return replace(traced, min_seq_len=seq_len, max_seq_len=seq_len)


def _assembled(
    module: nn.Module,
    recordings: Callable[[Sequence[tuple[tuple[int, int], int]]], Iterable[Recording]],
    degrees: Sequence[int],
    plan: Plan,
    autocast: torch.dtype | None,
    origin: Mapping[str, str],
    sizes: Sequence[tuple[int, int]],
) -> Trace:
    """Return the trace that recordings at `sizes` give, up to the highest degree that one formula describes."""
    alone = list(_alike(module, recordings([(size, 1) for size in sizes])))
    rows = [(size, tp) for tp in degrees for size in sizes[: NUM_FITTED if tp == 2 else 1]]
    every = [*alone, *recordings(rows)]
    ranks = [1] * len(alone) + [tp for _, tp in rows]
    while True:
        most = max(ranks)
        try:
            traced = Assembly(module, every[: len(ranks)], ranks, plan).trace(autocast, **origin)
        except ForescaleError:
            if most < 4:
                raise
            ranks = [tp for tp in ranks if tp < most]  # ranks with one head run other kernels
        else:
            return replace(traced, tp=most)


def _valid_range(lengths: Sequence[int], thresholds: Sequence[int]) -> dict[str, int]:
    """Return the sequence lengths up to the next thresholds, in multiples of those that all `lengths` are."""
    low, high = min(lengths), max(lengths)
    chunks = [item for item in thresholds if all(length % item == 0 for length in lengths)]
    others = set(thresholds) - set(chunks)
    below = max((item + (item < low) for item in others if item <= low), default=1)
    above = min((item - (item > high) for item in others if item >= high), default=2**24)
    return {"min_seq_len": below, "max_seq_len": above, "seq_len_multiple": lcm(*chunks)}


class _VariesError(SpecError):
    """Operators or sizes of a module that no polynomial of the sequence length gives."""

    @classmethod
    def of(cls, name: str, reason: str) -> _VariesError:
        """Return the error of a module or block."""
        return cls(not_traceable(name, reason, "give another --seq-len"))


def _alike(module: nn.Module, recordings: Iterable[Recording]) -> Iterator[Recording]:
    """Return recordings, as long as the same blocks run as in the first one.

    Raises
    ------
    _VariesError
        If other blocks run, or other operators.
    """
    first: Recording | None = None
    for recording in recordings:
        first = first or recording
        same = recording.order.sequence == first.order.sequence
        if not same or len(recording.segments) != len(first.segments):
            reason = f"it runs other blocks at {recording.seq_len} tokens than at {first.seq_len}"
            raise _VariesError.of(type(module).__name__, reason)
        if len(recording.events) != len(first.events):
            pairs = zip(first.events, recording.events, strict=False)
            other = next((new for old, new in pairs if new.name != old.name), recording.events[-1])
            raise _VariesError.of(
                other.module or type(module).__name__, _differs(other.name, recording, first)
            )
        yield recording


def _differs(operator: str, recording: Recording, first: Recording) -> str:
    return f"{operator} runs differently at {recording.seq_len} tokens than at {first.seq_len}"


class Assembly:
    """Combine recordings of one module at several sizes."""

    def __init__(
        self,
        module: nn.Module,
        recordings: Iterable[Recording],
        ranks: Sequence[int] = (),
        plan: Plan = NO_PLAN,
    ) -> None:
        self.module, self.recordings = module, list(_alike(module, recordings))
        recordings = self.recordings
        self.ranks, self.plan = ranks or [1] * len(recordings), plan
        self.sizes = tuple((recording.micro_batch_size, recording.seq_len) for recording in recordings)
        self.first = recordings[0]
        self._events = [_by_segment(recording) for recording in recordings]

    def trace(self, autocast: torch.dtype | None, **origin: str) -> Trace:
        """Return the trace."""
        order = self.first.order
        owners = self._owners()
        layers, blocks = self._layers(owners)
        last = len(order.sequence) - 1
        head = order.after[last] if order.sequence else 0
        if not order.sequence:
            layers, blocks = ["model"], {"model": self._block(0, "model", owners.get(0, []))}
        embedding = self._block(
            0 if order.sequence else -1, "embedding", owners.get(0, []) if order.sequence else []
        )
        traced = Trace(
            parameters=_type_of(self.module),
            autocast="" if autocast is None else TYPES[autocast],
            layers=tuple(layers),
            blocks=blocks,
            embedding=embedding,
            head=self._block(
                head if order.sequence else -1, "head", owners.get(head, []) if order.sequence else []
            ),
            tied=self._is_tied(),
            unused=tuple(self._unused()),
            synchronises=any(event.name == "_local_scalar_dense" for event in self.first.events),
            torch=torch.__version__.partition("+")[0],
        )
        self._confirm(traced)
        return replace(traced, **origin)

    def _layers(
        self, owners: Mapping[int, list[TracedParameter]]
    ) -> tuple[list[str], dict[str, TracedBlock]]:
        """Return the names of the blocks in the order of the forward pass, and each kind once."""
        order, names = self.first.order, dict[int, str]()
        layers: list[str] = []
        blocks: dict[str, TracedBlock] = {}
        head = order.after.get(len(order.sequence) - 1)
        for position, (segment, _) in enumerate(order.sequence):
            for index in (segment, order.after[position]):
                if index == head or not self._has_kernels(index):
                    continue
                if index not in names:
                    name = _unused(self.first.segments[index], order.kinds, names)
                    block = self._block(index, name, owners.get(index, []))
                    like = (known for known, item in blocks.items() if replace(item, name=name) == block)
                    names[index] = next(like, name)
                    blocks.setdefault(names[index], block)
                layers.append(names[index])
        return layers, blocks

    def _has_kernels(self, segment: int) -> bool:
        return any(kernels_of(event) for event in self._events[0].get(segment, []))

    def _confirm(self, traced: Trace) -> None:
        """Raise unless the parameters of all blocks add up to those of the module."""
        total = sum(parameter.numel() for parameter in self.module.parameters())
        if traced.num_parameters != total:
            raise not_traceable(
                type(self.module).__name__,
                f"its blocks have {traced.num_parameters:,} parameters together, but the module has {total:,}: some "
                "are shared between blocks",
            )

    def _owners(self) -> dict[int, list[TracedParameter]]:
        """Return the parameters of each recorded segment: a block's own, and elsewhere those it reads first."""
        order = self.first.order
        inside = [path for _, path in order.sequence]
        owners: dict[int, list[TracedParameter]] = {}
        for kind in order.kinds:
            owners[kind.segment] = [
                self._parameter(name, item)
                for name, item in kind.module.named_parameters()
                if name not in kind.seen
            ]
        for name, parameter in self.module.named_parameters():
            if any(name.startswith(f"{path}.") for path in inside):
                continue
            segment = self.first.first_use.get(name, 0)
            owners.setdefault(segment, []).append(self._parameter(name, parameter))
        return owners

    def _unused(self) -> Iterator[tuple[str, int]]:
        """Return the modules of which the forward pass reads no parameter, with their parameters."""
        inside = tuple(f"{path}." for _, path in self.first.order.sequence)
        used = {
            id(item)
            for name, item in self.module.named_parameters(remove_duplicate=False)
            if name.startswith(inside) or name in self.first.first_use
        }
        done: tuple[str, ...] = ()
        for name, child in self.module.named_modules():
            sizes = {id(item): item.numel() for item in child.parameters()}
            if name and sizes and not name.startswith(done) and not used & set(sizes):
                done += (f"{name}.",)
                yield name, sum(sizes.values())

    def _parameter(self, name: str, parameter: nn.Parameter) -> TracedParameter:
        split = "tp" if self.plan.style_of(name) else ""
        shape, trained = tuple(parameter.shape), parameter.requires_grad
        return TracedParameter(name=name, shape=shape, trained=trained, split=split)  # type: ignore[arg-type]

    def _is_tied(self) -> bool:
        """Return whether two modules share a parameter."""
        every = [id(item) for _, item in self.module.named_parameters(remove_duplicate=False)]
        return len(every) > len(set(every))

    def _block(self, segment: int, name: str, parameters: list[TracedParameter]) -> TracedBlock:
        if segment < 0:
            return TracedBlock(name=name, operators=())
        path = self.first.segments[segment].block or ""
        return TracedBlock(
            name=name,
            operators=self._operators(segment, name, path),
            parameters=tuple(parameters),
            input_bytes=self._size(segment, name, "input_bytes"),
            output_bytes=self._size(segment, name, "output_bytes"),
            saved_bytes=self._size(segment, name, "saved_bytes"),
            forward_bytes=self._moments(segment, name, "forward"),
            backward_bytes=self._moments(segment, name, "backward"),
        )

    def _formula(self, values: Sequence[int]) -> Formula | None:
        """Return what gives these values at the recorded sizes; None if nothing does."""
        return fitted_on_ranks(values, self.sizes, self.ranks)

    def _size(self, segment: int, name: str, field: str) -> Formula:
        values = [getattr(recording.segments[segment], field) for recording in self.recordings]
        formula = self._formula(values)
        if formula is None:
            raise _VariesError.of(
                name, f"no formula of micro-batch and sequence length gives its {field}: {values}"
            )
        return formula

    def _moments(self, segment: int, name: str, phase: str) -> tuple[Formula, ...]:
        """Return the bytes of the moments of a pass that can be its peak."""
        columns = [
            [event.live_bytes for event in events.get(segment, []) if event.phase == phase]
            for events in self._events
        ]
        formulas: dict[Formula, None] = {}
        for values in zip(*columns, strict=True):
            formula = self._formula(values)
            if formula is None:
                raise _VariesError.of(
                    name, f"no formula gives the bytes that exist in {phase}: {list(values)}"
                )
            formulas[formula] = None
        return self._maxima(list(formulas))

    def _maxima(self, formulas: Sequence[Formula]) -> tuple[Formula, ...]:
        return _undominated(formulas)

    def _operators(self, segment: int, name: str, path: str) -> tuple[TracedOperator, ...]:
        rows = [self._rows(events.get(segment, []), path) for events in self._events]
        keys = [[key for key, _ in row] for row in rows]
        for other, recording in zip(keys[1:], self.recordings[1:], strict=True):
            if other != keys[0]:
                pairs = zip(keys[0], other, strict=False)
                where = next((a for a, b in pairs if a != b), keys[0][-1] if keys[0] else ())
                operator = " ".join(map(str, where[:2]))
                raise _VariesError.of(name, _differs(operator, recording, self.first))
        modules: dict[str, dict[str, Counter[TracedKernel]]] = {}
        for index, key in enumerate(keys[0]):
            module, operator, part, kind, dtype, replayed = key
            kernel = TracedKernel(
                operator=operator,
                kind=kind,  # type: ignore[arg-type]
                dtype=dtype,
                extents=self._extents(name, key, [row[index][1] for row in rows]),
                replayed=replayed,
            )
            if self.plan.styles and kind.startswith("attention") and any(kernel.extents[5].split):
                reason = (
                    "its attention splits the size of heads, not their number: its forward counts all heads"
                )
                raise not_traceable(f"{name}, module {module or '(itself)'}", reason, "give it no tp_plan")
            modules.setdefault(module, {}).setdefault(part, Counter())[kernel] += 1
        return tuple(
            TracedOperator(module=module, **{part: _counted(kernels) for part, kernels in parts.items()})
            for module, parts in modules.items()
        )

    def _extents(self, name: str, key: Any, values: list[tuple[int, ...]]) -> tuple[Formula, ...]:  # noqa: ANN401
        formulas = [self._formula(column) for column in zip(*values, strict=True)]
        for extent, formula in zip(extents_of(key[3]), formulas, strict=True):
            if formula is None:
                raise _VariesError.of(
                    f"{name}, module {key[0] or '(itself)'}",
                    f"no polynomial of micro-batch and sequence length gives the extent {extent} of {key[1]}",
                )
        return tuple(formula for formula in formulas if formula is not None)

    def _rows(self, events: list[Event], path: str) -> list[Row]:
        rows: list[Row] = []
        for event in events:
            module = event.module.removeprefix(path).removeprefix(".") if path else event.module
            part = "weight" if event.weight else event.phase
            for kind, dtype, extents in kernels_of(event):
                key = (module, event.name, part, kind, dtype, event.replayed)
                rows.append((key, tuple(extents[name] for name in extents_of(kind))))
        return rows


def _undominated(formulas: Sequence[Formula]) -> tuple[Formula, ...]:
    """Return the formulas that are not below another at every size: those that can be the largest."""

    def below(one: Formula, other: Formula) -> bool:
        none = (0,) * len(one.coefficients)
        pairs = zip(
            (*one.coefficients, *(one.split or none)),
            (*other.coefficients, *(other.split or none)),
            strict=True,
        )
        return all(a * other.divisor <= b * one.divisor for a, b in pairs)

    return tuple(
        one for one in formulas if not any(one is not other and below(one, other) for other in formulas)
    )


def _counted(kernels: Counter[TracedKernel]) -> tuple[TracedKernel, ...]:
    return tuple(replace(kernel, count=count) for kernel, count in kernels.items())


def _by_segment(recording: Recording) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {}
    for event in recording.events:
        events.setdefault(event.segment, []).append(event)
    return events


def _unused(segment: Segment, kinds: Sequence[Any], names: dict[int, str]) -> str:
    """Return a name for the kind of a segment: the class of its block, numbered if several kinds share it."""
    base = next((kind.name for kind in kinds if kind.path == segment.block), "between")
    taken = set(names.values())
    if base not in taken:
        return base
    return next(name for number in range(2, len(taken) + 3) if (name := f"{base}#{number}") not in taken)


def _type_of(module: nn.Module) -> str:
    """Return the type of most parameters of a module."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in module.parameters():
        sizes[parameter.dtype] += parameter.numel()
    if not sizes:
        raise incomplete("parameters to train", type(module).__name__)
    kind = sizes.most_common(1)[0][0]
    if kind not in TYPES:
        raise not_one_of("the type of parameters", str(kind), list(map(str, TYPES)))
    return TYPES[kind]
