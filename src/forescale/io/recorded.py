"""Whether what torch recorded of a run is of the device, the model and the layout that a question is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forescale.catalogue.clusters import device_names, hardware_device
from forescale.errors import UnknownNameError, differs, other_run
from forescale.formula import number_of
from forescale.graph.ops import AttentionCore, Gemm
from forescale.question import Question
from forescale.spec import Device

if TYPE_CHECKING:
    from forescale.profiles import Profile

CPU = "cpu"
PADDED = 8
"""Head sizes are padded to multiples of this by fused attention."""
LISTED = 6
"""Recorded values that a message lists."""
Field = tuple[str, set[int], set[int]]
"""Name, what was recorded, and what the question allows."""


def catalogue_name(text: str) -> str:
    """Return the catalogue device that a name means; empty where it is none."""
    if text in device_names():
        return text
    try:
        return hardware_device(text)
    except UnknownNameError:
        return ""


def check_device(profile: Profile, device: Device, file: Path) -> tuple[str, ...]:
    """Return a note where a file does not name its device.

    Raises
    ------
    SpecError
        If it was recorded on another device than `device`.
    """
    on_host = device.vendor == CPU
    names = {catalogue_name(name) or name for name in profile.devices}
    fix = f"record it on {device.name}, or ask about the device it was recorded on"
    if not profile.on_device and not on_host:
        raise other_run(
            file.name,
            "a CPU (it has no work of an accelerator)",
            device.name,
            f"{fix}; on an accelerator torch.profiler needs ProfilerActivity.CUDA",
        )
    if profile.on_device and on_host:
        raise other_run(file.name, "an accelerator", device.name, fix)
    if on_host or device.name in (*names, *profile.devices):
        return ()
    if names:
        raise other_run(file.name, ", ".join(sorted(names)), device.name, fix)
    return (f"{file.name} does not name its device; it is taken to be {device.name}",)


def check_run(profile: Profile, target: Question, file: Path) -> None:
    """Raise unless recorded shapes are those of the target's model and layout.

    Raises
    ------
    SpecError
        With each field that differs: what was recorded, and what the question has.
    """
    ops = [op for op, _ in profile.kernels]
    fields = (
        *_of_attention([op for op in ops if isinstance(op, AttentionCore)], target),
        *_of_products([op for op in ops if isinstance(op, Gemm)], target),
    )
    differing = [
        f"{name} (recorded {_listed(recorded)}; the question has {_listed(allowed)})"
        for name, recorded, allowed in fields
        if recorded and allowed and not recorded & allowed
    ]
    if differing:
        raise differs(
            file.name,
            "another run",
            "the question",
            f"of {target.model.name}",
            f"{'; '.join(differing)}: ask about the model and the layout that were recorded, or record this one",
        )


def _of_attention(ops: Sequence[AttentionCore], target: Question) -> Iterator[Field]:
    layout, length = target.layout, target.workload.seq_len
    kinds = target.model.attentions
    sizes = {size for kind in kinds for size in kind.core_head_dims}
    if not sizes or target.model.vision is not None:
        return
    cuts = {1, layout.cp, 2 * layout.cp}
    lengths = {length // cut for cut in cuts} | {length - 1}
    heads = {kind.heads[0] // (layout.tp * cut) for kind in kinds for cut in {1, layout.cp}}
    padded = {-(-size // PADDED) * PADDED for size in sizes}
    yield "head_dim", _whole(op.qk_dim for op in ops), sizes | padded
    yield "num_heads / tp", _whole(op.heads for op in ops), heads
    yield "seq_len", _whole(op.q_len for op in ops), lengths
    yield "micro_batch_size", _whole(op.batch for op in ops), {layout.micro_batch_size}


def _of_products(ops: Sequence[Gemm], target: Question) -> Iterator[Field]:
    model = target.model
    if model.vision is not None:
        return
    extents = _whole(extent for op in ops for extent in (op.m, op.n, op.k))
    yield "hidden_size", extents, {model.hidden_size}


def _whole(extents: Iterable[object]) -> set[int]:
    return {round(number_of(extent)) for extent in extents}


def _listed(values: set[int]) -> str:
    shown = sorted(values)
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return f"{' or '.join(map(str, shown[:LISTED]))}{more}"
