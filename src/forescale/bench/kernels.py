"""The kernels of a plan, each run by itself: products, grouped products, attention, traffic-bound passes, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from forescale.bench.groups import Group
from forescale.bench.model import TYPES
from forescale.bench.repeat import Budget, repeated
from forescale.bench.suite import Message
from forescale.cost.measured import extents_of, family_of
from forescale.graph.operator import Block
from forescale.graph.ops import (
    AttentionCore,
    Collective,
    CollectiveKind,
    Compute,
    EagerKernel,
    Elementwise,
    Gemm,
    GroupedGemm,
)
from forescale.graph.per_block import PerBlock, build_blocks, message_bytes
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.inputs import prepare
from forescale.io.bench import KERNEL_TIMINGS, OPERATORS
from forescale.memory.parameters import Elements, gathered_bytes, holdings
from forescale.question import Question
from forescale.runtime.runner import Moments
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.workload import STORAGE_BYTES
from forescale.time.data_parallel import stage_3_bytes

EMPTY = 200
"""Samples of what two moments lie apart with nothing between them."""
FLUSHED_BYTES, FLUSHES = 256 * 2**20, 4
"""Written between samples of single kernels, so that they find nothing in the device's cache (triton's do_bench); often
enough for the host to start meanwhile what is timed."""


class Watch(Moments):
    """The clock of what is run by itself."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._flushed: torch.Tensor | None = None
        self._nothing: float | None = None

    def seconds(self, run: Callable[[], object]) -> float:
        """Return how long `run` takes; what the device still does meanwhile hides what the host takes to start it."""
        begin = self.mark()
        run()
        end = self.mark()
        self.wait()
        return self.between(begin, end)

    def alone(self, run: Callable[[], object]) -> float:
        """Return how long one kernel takes that finds nothing in the device's cache; a CPU's holds what it held.

        What two moments lie apart with nothing between them is taken off.
        """
        if self.by_device and self._nothing is None:
            taken = [self._flushing(lambda: None) for _ in range(EMPTY)]
            self._nothing = float(np.median(taken))
        return self._flushing(run) - (self._nothing or 0.0)

    def _flushing(self, run: Callable[[], object]) -> float:
        if self.by_device:
            if self._flushed is None:
                self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=self.device)
            for _ in range(FLUSHES):
                self._flushed.zero_()
        return self.seconds(run)


WIDTH = 1024
"""Columns of the matrices that traffic-bound passes run over."""
PASSES = {"elementwise": 3, "norm": 2, "softmax": 2, "permute": 2, "embedding": 2, "loss": 2, "cast": 2}
"""Reads and writes of one element by the kernel that stands for a family."""
UPDATED_BYTES = 28.0
"""Read and written per element of an AdamW update in fp32: weight, gradient and both moments."""


def kernels_of(question: Question) -> list[Compute]:
    """Return the distinct kernels of all blocks of a layout, longest first; those of recorded code only as products."""
    distinct: dict[tuple[Any, ...], Compute] = {}
    for primitive in _primitives(question):
        if not isinstance(primitive, Collective | EagerKernel) and _work(primitive):
            distinct.setdefault((family_of(primitive), extents_of(primitive)[0]), primitive)
    return sorted(distinct.values(), key=_work, reverse=True)


def _blocks(question: Question) -> PerBlock[Block]:
    degrees, choices = split_layout(question.layout)
    return build_blocks(question.model, ShardingRules.from_workload(question.workload, degrees, choices))


def _primitives(question: Question) -> list[Any]:
    blocks = _blocks(question).all()
    return [
        primitive for block in blocks for operator in block.operators for primitive in operator.primitives
    ]


def _work(op: Compute) -> float:
    """Return what a kernel's share of a step goes by, roughly: FLOP, or 100 for each byte moved."""
    return float(
        cast("float", 100.0 * op.bytes_moved if isinstance(op, Elementwise | EagerKernel) else op.flops)
    )


def messages_of(question: Question, num_ranks: int) -> list[Message]:
    """Return the distinct messages of a layout among `num_ranks` ranks at most."""
    layout = question.layout
    degrees: dict[str, int] = {"tp": layout.tp, "ep": layout.ep, "etp": layout.etp, "cp": layout.cp}
    messages: set[Message] = set()
    for primitive in _primitives(question):
        if isinstance(primitive, Collective) and 1 < degrees.get(primitive.axis, 0) <= num_ranks:
            size, ranks = float(cast("float", primitive.num_bytes)), degrees[primitive.axis]
            messages.add((primitive.kind, size, ranks))
            if primitive.axis == "cp" and CONTEXT_KINDS[layout.cp_kind].ring:
                messages.add(("p2p", size / ranks, 2))
    if layout.pp > 1:
        split = split_layout(layout)
        sent = message_bytes(question.model, ShardingRules.from_workload(question.workload, *split))
        messages.add(("p2p", float(cast("float", sent)), 2))
    messages |= {
        of_weight for of_weight in _of_weights(question) if 1 < of_weight[2] <= num_ranks and of_weight[1]
    }
    return sorted(messages)


def _of_weights(question: Question) -> Iterator[Message]:
    """Yield the messages in which gradients are added up and shares of weights gathered: by block at stage 3."""
    layout, precision, inputs = question.layout, question.workload.precision, prepare(question).inputs
    gradient, weight = STORAGE_BYTES[precision.gradients], gathered_bytes(precision)
    groups = layout.dp * layout.cp, layout.expert_dp
    if layout.zero == 3:
        for block in holdings(_blocks(question)).all():
            weights, gradients = stage_3_bytes(block, precision)
            for size, of_gradients, ranks in zip(weights, gradients, groups, strict=True):
                yield "all_gather", float(cast("float", size)), ranks
                yield "reduce_scatter", float(cast("float", of_gradients)), ranks
        return
    kinds: dict[CollectiveKind, tuple[float, Elements]] = {
        "reduce_scatter": (gradient, inputs.trained),
        "all_gather": (weight, inputs.updates(precision)),
    }
    if not layout.zero:
        kinds = {"all_reduce": (gradient, inputs.trained)}
    for kind, (size, elements) in kinds.items():
        for item, ranks in zip((elements.dense, elements.expert), groups, strict=True):
            yield from ((kind, size * item, ranks) for item in np.unique(item).tolist())


def kernel_row(op: Compute, result: dict[str, Any]) -> dict[str, Any]:
    """Return the row of `kernels` for one timed operator."""
    name = next(name for name, kind in OPERATORS.items() if isinstance(op, kind))
    known = {item.name for item in fields(KERNEL_TIMINGS[name])}
    values = {key: value for key, value in asdict(op).items() if key in known}
    if isinstance(op, Elementwise):
        values["bytes_moved"] = op.bytes_moved + op.transposed_bytes
    return {"op": name, **values, **result}


def timed_kernel(op: Compute, watch: Watch, budget: Budget) -> dict[str, Any] | None:
    """Return the spread of one kernel; None where this device has none of its type."""
    run = runner(op, watch.device)
    if run is None:
        return None
    return repeated(lambda: {"kernel": watch.alone(run)}, budget)["kernel"]


def runner(op: Compute, device: torch.device) -> Callable[[], object] | None:
    """Return what runs one kernel on data of its own; None of a type that torch has no plain kernel for."""
    if isinstance(op, EagerKernel):
        return None
    if isinstance(op, Gemm) and op.dtype == "fp8":
        return _narrow(op, device)
    if not isinstance(op, Elementwise) and op.dtype not in TYPES:
        return None
    match op:
        case Gemm():
            return _gemm(op, device)
        case GroupedGemm():
            return _grouped(op, device)
        case AttentionCore():
            return _attention(op, device)
        case Elementwise():
            return _pass(op, device)


def _data(device: torch.device, dtype: str, *shape: object) -> Tensor:
    sizes = [max(1, round(float(cast("float", item)))) for item in shape]
    return torch.randn(sizes, device=device, dtype=TYPES[dtype])


def _gemm(op: Gemm, device: torch.device) -> Callable[[], object]:
    left, right = _data(device, op.dtype, op.batch, op.m, op.k), _data(device, op.dtype, op.batch, op.k, op.n)
    if not op.accumulate_bytes:
        out = torch.bmm(left, right)
        return partial(torch.bmm, left, right, out=out)
    total = torch.zeros(left.shape[0], left.shape[1], right.shape[2], device=device)
    return lambda: total.add_(torch.bmm(left, right))


def _narrow(op: Gemm, device: torch.device) -> Callable[[], object] | None:
    """Return a product in 8 bits with one scale per tensor; None of extents or a device that torch has none for."""
    left, right = _data(device, "bf16", op.m, op.k), _data(device, "bf16", op.n, op.k)
    one = torch.ones((), device=device)
    narrow = (item.to(torch.float8_e4m3fn) for item in (left, right))
    multiply = partial(torch._scaled_mm, next(narrow), next(narrow).T, one, one, out_dtype=left.dtype)  # noqa: SLF001
    try:
        total = torch.zeros_like(multiply(), dtype=torch.float32)
    except (RuntimeError, ValueError):
        return None
    return (lambda: total.add_(multiply())) if op.accumulate_bytes else multiply


def _grouped(op: GroupedGemm, device: torch.device) -> Callable[[], object]:
    """Return one product per expert, all in one kernel where rows are as wide as that takes."""
    groups = round(float(cast("float", op.groups)))
    item = max(1, round(float(cast("float", op.m / groups))))
    rows = _data(device, op.dtype, groups, item, op.k)
    sums = op.contract == "m"
    others = (
        _data(device, op.dtype, groups, item, op.n) if sums else _data(device, op.dtype, groups, op.k, op.n)
    )
    if device.type == "cuda" and op.dtype == "bf16":
        ends = torch.arange(1, groups + 1, device=device, dtype=torch.int32) * item
        left, right = rows.flatten(0, 1), others.flatten(0, 1) if sums else others
        return partial(torch._grouped_mm, left.T if sums else left, right, offs=ends)  # noqa: SLF001
    if sums:
        return lambda: [a.T @ b for a, b in zip(rows, others, strict=True)]
    return lambda: [a @ b for a, b in zip(rows, others, strict=True)]


def _attention(op: AttentionCore, device: torch.device) -> Callable[[], object]:
    q = _data(device, op.dtype, op.batch, op.heads, op.q_len, op.qk_dim)
    k = _data(device, op.dtype, op.batch, op.kv_heads, op.kv_len, op.qk_dim)
    v = _data(device, op.dtype, op.batch, op.kv_heads, op.kv_len, op.v_dim)
    grouped = q.shape[1] != k.shape[1]

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=op.causal, enable_gqa=grouped)

    if not op.backward:
        return forward
    for item in (q, k, v):
        item.requires_grad_()
    out = forward()
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _pass(op: Elementwise, device: torch.device) -> Callable[[], object]:
    launches = max(1, round(float(cast("float", op.kernels))))
    num_bytes = float(cast("float", op.bytes_moved + op.transposed_bytes)) / launches
    if op.family == "optimizer":
        one = _update(num_bytes, device)
    else:
        rows = max(1, round(num_bytes / PASSES[op.family] / 4 / WIDTH))
        x, y = (torch.randn(rows, WIDTH, device=device) for _ in range(2))
        one = _of_family(op.family, x, y)
    return lambda: [one() for _ in range(launches)]


def _update(num_bytes: float, device: torch.device) -> Callable[[], object]:
    weight = torch.nn.Parameter(torch.zeros(max(1, round(num_bytes / UPDATED_BYTES)), device=device))
    weight.grad = torch.ones_like(weight)
    return torch.optim.AdamW([weight], fused=device.type == "cuda").step


def _of_family(family: str, x: Tensor, y: Tensor) -> Callable[[], object]:
    rows = torch.randint(0, x.shape[0], (x.shape[0],), device=x.device)
    order = torch.randperm(x.shape[0], device=x.device)
    runs: dict[str, Callable[[], object]] = {
        "elementwise": lambda: torch.add(x, y),
        "norm": lambda: functional.rms_norm(x, (WIDTH,)),
        "softmax": lambda: torch.softmax(x, -1),
        "permute": lambda: x.index_select(0, order),
        "embedding": lambda: functional.embedding(rows, x),
        "loss": lambda: torch.log_softmax(x, -1),
        "cast": lambda: y.copy_(x),
    }
    return runs[family]


def timed_message(kind: str, num_bytes: float, group: Group, watch: Watch, budget: Budget) -> dict[str, Any]:
    """Return the spread of one message among the ranks of a group; a rank without one sends nothing."""
    run = _message(kind, num_bytes, group, watch.device) if group is not None else lambda: None
    return repeated(lambda: {"message": watch.seconds(run)}, budget)["message"]


def _message(kind: str, num_bytes: float, group: Group, device: torch.device) -> Callable[[], object]:
    ranks = dist.get_world_size(group)
    part = max(1, round(num_bytes / 4 / ranks))
    whole, local = torch.zeros(part * ranks, device=device), torch.zeros(part, device=device)
    runs: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, local, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(local, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, group_src=0, group=group),
        "reduce": lambda: dist.reduce(whole, group_dst=0, group=group),
        "p2p": lambda: _sent(whole, group),
    }
    return runs[kind]


def _sent(whole: Tensor, group: Group) -> None:
    """Send from the first rank to the second, and a word back, so that the first knows when it is there."""
    word = torch.zeros(1, device=whole.device)
    if dist.get_rank(group) == 0:
        dist.send(whole, group=group, group_dst=1)
        dist.recv(word, group=group, group_src=1)
    else:
        dist.recv(whole, group=group, group_src=0)
        dist.send(word, group=group, group_dst=0)
