"""Memory without a device: a step on fake tensors, which have shapes and no bytes, with every allocation counted."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forescale.bench.blocks import kept_bytes, parts_of
from forescale.bench.groups import groups_of
from forescale.bench.here import CPU
from forescale.bench.measure import artifact_of, conditions_of, rank_row
from forescale.bench.parallel import mesh_of
from forescale.bench.reduce import reduce
from forescale.bench.training import Training, adapter_of, as_run, check_states
from forescale.bench.weighing import MESSAGES, PHASES
from forescale.errors import unsupported_by
from forescale.io.bench import BenchArtifact
from forescale.question import Question

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"


def track_memory(question: Question, *, devices: int | None = None, code: str = "") -> BenchArtifact:
    """Return what the cut of a question allocates over a step, by phase, and what its blocks keep.

    Nothing is measured, so any device and any size will do: an allocator's own pages and what lies outside it are not
    known. Other ranks are not there; messages have their sizes and do nothing.

    Parameters
    ----------
    devices
        What the question is cut to; by default what tensor parallelism needs.
    code
        The function that builds a traced model, `FILE.py:FUNCTION`.

    Raises
    ------
    SpecError
        If the classes at hand cannot run the cut, or sequences are split.
    """
    layout = question.layout
    if layout.cp > 1:
        fix = "measure it, or ask with --cp 1"
        raise unsupported_by("PyTorch's fake tensor", f"attention of a split sequence (cp {layout.cp})", fix)
    cut = reduce(question, devices or layout.tp, held=False)
    cut = replace(cut, question=as_run(cut.question))
    adapter_of(cut.question).check(cut.question)
    check_states(cut.question)
    ranks = cut.question.cluster.num_devices
    with _alone_of(ranks), _unread():
        groups = groups_of(cut.question)
        if groups.tp is not None:
            mesh_of(groups.tp, CPU)  # reads which ranks it has
        make = partial(Training, cut.question, torch.device(CPU), groups, code)
        with nullcontext() if question.cluster.device.vendor == CPU else patch(ATTENTION, _fused):
            try:
                phases, layers = _counted(make)
            except DataDependentOutputException as error:
                raise unsupported_by(
                    "PyTorch's fake tensor",
                    f"layers of {adapter_of(question).package}, which read values of tensors (tokens by expert)",
                    "measure it",
                ) from error
    peaks = dict.fromkeys(("allocated", "reserved"), max(phases.values()))
    rows = {"ranks": [rank_row(0, phases, peaks)], "layers": layers}
    conditions = replace(conditions_of(question, ranks), tracked=True)
    return artifact_of(question, cut, rows, conditions)


def _counted(make: Callable[[], Training]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the peak of each phase of a step, and what every kind of block keeps."""
    with FakeTensorMode(allow_non_fake_inputs=True), Allocations() as made:
        training, phases = made.of_step(make)
        layers = [
            {"kind": part.kind, "activation_bytes": kept_bytes(part, training)} for part in parts_of(training)
        ]
    return phases, layers


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage that operators make, from then until nothing holds it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held, self.phase = 0, "idle"
        self.peaks = dict.fromkeys(PHASES, 0.0)
        self._sizes: dict[int, int] = {}

    def of_step(self, make: Callable[[], Training]) -> tuple[Training, dict[str, float]]:
        """Return what `make` makes, and the peak of each phase of its second step."""
        training = make()
        training.step(self._begin)
        self.peaks = dict.fromkeys(PHASES, 0.0)
        training.step(self._begin)
        self.peaks["idle"] = float(self.held)
        return training, dict(self.peaks)

    def _begin(self, phase: str) -> None:
        self.phase = MESSAGES.get(phase, phase)
        self.peaks[self.phase] = max(self.peaks[self.phase], float(self.held))

    def _drop(self, storage: int) -> None:
        self.held -= self._sizes.pop(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operator and note what it made."""
        made = func(*args, **(kwargs or {}))
        for tree_leaf in tree_leaves(made):
            if isinstance(tree_leaf, Tensor):
                self._note(tree_leaf.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata  # noqa: SLF001 (fake tensors have no other)
        if address not in self._sizes:
            self._sizes[address] = storage.nbytes()
            self.held += storage.nbytes()
            self.peaks[self.phase] = max(self.peaks[self.phase], float(self.held))
            weakref.finalize(storage, self._drop, address)


def _fused(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
    """Return attention that keeps what an accelerator's fused kernels do, for values of another width too.

    A CPU has none for these and keeps all scores.
    """
    tensor: Tensor = _Fused.apply(q, k, v)  # type: ignore[no-untyped-call]
    return tensor


class _Fused(torch.autograd.Function):
    """Attention's shapes: the output is kept, with one fp32 number per query (Dao et al. 2022, section 3.1)."""

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return an output as wide as values, whose heads lie side by side."""
        batch, heads, queries, _ = q.shape
        made = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(q, k, v, made, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        """Return gradients of all three."""
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


@contextmanager
def _alone_of(ranks: int) -> Iterator[None]:
    """Be the first of so many ranks, whose messages go nowhere."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _unread() -> Iterator[None]:
    """Keep transformers from looking into tensors: sequences are not packed, and grouped products take any type."""

    def one_type(_: Tensor, weight: Tensor, __: Tensor) -> bool:
        return weight.dtype == torch.bfloat16

    with (
        warnings.catch_warnings(
            action="ignore", category=FutureWarning
        ),  # of names that others replace in time
        patch("transformers.masking_utils.find_packed_sequence_indices", lambda _: None),
        patch("transformers.integrations.moe._can_use_grouped_mm", one_type),
    ):
        yield
