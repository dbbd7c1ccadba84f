"""A step of training on one rank: micro-batches forward and backward, then the optimizer's update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from forescale.bench.adapters import adapter_of
from forescale.bench.groups import Group, Groups, summed
from forescale.bench.here import CPU
from forescale.bench.model import TYPES, Blocks
from forescale.bench.parallel import EXPERT, PARTIAL, mesh_of
from forescale.errors import SpecError
from forescale.question import Question
from forescale.runtime import RunError
from forescale.spec.workload import Precision

RATE = 1e-4
MAIN = "_forescale_main_grad"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
    "sgd": torch.optim.SGD,
}


def check_states(question: Question) -> None:
    """Raise unless a bench has the optimizer of a question, and shards states as its layout does.

    Raises
    ------
    SpecError
        With what it does not do.
    """
    layout, name, types = question.layout, question.workload.optimizer, question.workload.precision
    if name not in OPTIMIZERS:
        raise SpecError(f"a bench updates with {', '.join(OPTIMIZERS)}; the question has {name}")
    if layout.dp * layout.cp == 1 or not layout.zero:
        return
    whole, shared = layout.zero == 3, f"in shards (zero {layout.zero})"
    reasons = {
        "gradients but not weights in shards (zero 2): ask with --zero 1 or 3": layout.zero == 2,
        f"states of {name} {shared}: ask with --zero 0": name == "adafactor",
        f"states {shared} within replicas (dp_replicate {layout.dp_replicate})": 1
        < layout.dp_replicate
        < layout.dp * layout.cp,
        f"weights gathered as {layout.reshard} says: ask with --reshard always": whole
        and layout.reshard not in ("default", "always"),
        f"experts of ep {layout.ep} {shared}: ask with --zero 1": whole and layout.ep > 1,
        f"tied embeddings {shared}: ask with --zero 1": whole and question.model.tied_embeddings,
        f"weights in {types.parameters} and gradients in {types.gradients} {shared}: ask with --zero 1": whole
        and types.gradients != types.parameters,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SpecError(f"a bench does not hold {reason}")


class Bucket:
    """Parameters that the same ranks have copies of, with gradients that lie behind each other.

    They stay from step to step; where they are wider than parameters, they are added up apart. `updated` are what
    this rank's optimizer updates, with their `gradients`: the parameters themselves, or its part of all of them.
    """

    def __init__(
        self, parameters: list[nn.Parameter], types: Precision, group: Group, *, shards: bool
    ) -> None:
        self.group, first = group, parameters[0]
        wide = types.gradients == "fp32" and first.dtype != torch.float32
        ranks = 1 if group is None else dist.get_world_size(group)
        size = -(-sum(each.numel() for each in parameters) // ranks) * ranks
        self.flat = torch.zeros(size, dtype=torch.float32 if wide else first.dtype, device=first.device)
        self.updated, self.gradients = parameters, _views(self.flat, parameters)
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            setattr(parameter, MAIN if wide else "grad", gradient)
            if wide:
                parameter.register_post_accumulate_grad_hook(_to_main)  # type: ignore[no-untyped-call]
        self.weights = self.shard = None
        if group is not None and shards:
            self.shard = dist.get_rank(group)
            self.weights = torch.zeros(size, dtype=first.dtype, device=first.device)
            for parameter, view in zip(parameters, _views(self.weights, parameters), strict=True):
                view.copy_(parameter.data)
                parameter.data = view
            self.updated = [nn.Parameter(self.weights.chunk(ranks)[self.shard])]
            self.gradients = [self.flat.chunk(ranks)[self.shard]]
            self.updated[0].grad = None if wide else self.gradients[0]

    def reduce(self) -> None:
        """Add gradients up over ranks."""
        if self.shard is not None:
            parts = list(self.flat.chunk(dist.get_world_size(self.group)))
            dist.reduce_scatter(parts[self.shard], parts, group=self.group)
        elif self.group is not None:
            summed(self.flat, self.group)

    def clear(self) -> None:
        """Set gradients to zero."""
        self.flat.zero_()

    def share(self) -> None:
        """Give other ranks what this one has updated."""
        if self.weights is not None and self.shard is not None:
            parts = list(self.weights.chunk(dist.get_world_size(self.group)))
            dist.all_gather(parts, parts[self.shard], group=self.group)


class Shards:
    """Parameters of which each rank has a share, with gradients that FSDP2 adds up as they are made."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.updated = parameters
        for each in parameters:
            each.grad = torch.zeros_like(each)
        self.gradients = [each.grad for each in parameters if each.grad is not None]

    def reduce(self) -> None:
        """Leave them: they are reduced."""

    def clear(self) -> None:
        """Set gradients to zero."""
        for each in self.gradients:
            each.zero_()

    def share(self) -> None:
        """Leave them: what is updated is gathered as it is used."""


def shard_weights(blocks: Blocks, question: Question, group: Group) -> None:
    """Leave each rank a share of every weight, its gradient and its states (FSDP2): a block is gathered as it runs.

    Embedding and head are gathered by themselves, as they are where blocks run one by one.
    """
    marks = {name: set(vars(each)) & {PARTIAL, EXPERT} for name, each in blocks.named_parameters()}
    types, first = question.workload.precision, next(blocks.parameters())
    policy = MixedPrecisionPolicy(param_dtype=TYPES[types.activations], reduce_dtype=TYPES[types.gradients])
    shard = partial(fully_shard, mesh=mesh_of(group, first.device.type), mp_policy=policy)
    for unit in (*blocks.layers, blocks.embedding, [blocks.norm, blocks.lm_head], blocks):
        shard(unit)
    for module in blocks.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
            module.set_gradient_divide_factor(1.0)  # a sum, of parts of one mean
    for name, parameter in blocks.named_parameters():
        for mark in marks[name]:
            setattr(parameter, mark, True)


def _views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return one tensor as pieces of the shapes of parameters."""
    sizes = [each.numel() for each in parameters]
    pieces = flat[: sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
    return [piece.view_as(each) for piece, each in zip(pieces, parameters, strict=True)]


class Update:
    """The optimizer of some parameters, in the types that a workload has for states."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        question: Question,
        groups: Groups = Groups(),  # noqa: B008
    ) -> None:
        types, name = question.workload.precision, question.workload.optimizer
        trained = [each for each in parameters if each.requires_grad]
        alike: dict[tuple[bool, torch.dtype], list[nn.Parameter]] = defaultdict(list)
        for parameter in trained:
            alike[hasattr(parameter, EXPERT), parameter.dtype].append(parameter)
        self.buckets: list[Bucket | Shards] = [
            Shards(each)
            if isinstance(each[0], DTensor)
            else Bucket(
                each, types, groups.expert_dp if expert else groups.dp_cp, shards=question.layout.zero > 0
            )
            for (expert, _), each in alike.items()
        ]
        self.tp = groups.tp
        self.partial = [each for each in trained if hasattr(each, PARTIAL)]
        self.updated = [each for bucket in self.buckets for each in bucket.updated]
        self.gradients = [each for bucket in self.buckets for each in bucket.gradients]
        self.masters = _masters(self.updated, types)
        trained = self.masters or self.updated
        fused = question.layout.kernels.fused_update and name != "adafactor"
        fused = fused and question.cluster.device.vendor != CPU
        self.optimizer = OPTIMIZERS[name](trained, lr=RATE, **{"fused": True} if fused else {})

    def reduce(self) -> None:
        """Add up over ranks the gradients of which each has a part."""
        for parameter in self.partial:
            gradient = _gradient(parameter)
            summed(gradient.to_local() if isinstance(gradient, DTensor) else gradient, self.tp)
        for bucket in self.buckets:
            bucket.reduce()

    def __call__(self, phase: Callable[[str], None] = lambda _: None) -> None:
        """Reduce gradients, update, set gradients to zero, and share what was updated; `phase` is told what begins."""
        phase("reduce")
        self.reduce()
        phase("update")
        stepped = self.masters or self.updated
        for each, gradient in zip(stepped, self.gradients, strict=True):
            each.grad = gradient.to(each.dtype)
        self.optimizer.step()
        for updated, master in zip(self.updated, self.masters, strict=False):
            updated.data.copy_(master)
        for each, gradient in zip(stepped, self.gradients, strict=True):
            if self.masters or each.dtype != gradient.dtype:
                each.grad = None
        for bucket in self.buckets:
            bucket.clear()
        phase("share")
        for bucket in self.buckets:
            bucket.share()


def _masters(parameters: list[nn.Parameter], types: Precision) -> list[nn.Parameter]:
    """Return wider copies of the parameters that are updated in their place; none where there are none."""
    if types.master in ("none", types.parameters):
        return []
    return [nn.Parameter(each.detach().float()) for each in parameters]


def _gradient(parameter: Tensor) -> Tensor:
    """Return where a parameter's gradients are added up."""
    found = getattr(parameter, MAIN, parameter.grad)
    assert found is not None
    return found


def _to_main(parameter: Tensor) -> None:
    assert parameter.grad is not None
    getattr(parameter, MAIN).add_(parameter.grad)
    parameter.grad = None


class Training:
    """One rank's model under training."""

    def __init__(self, question: Question, device: torch.device, groups: Groups = Groups()) -> None:  # noqa: B008
        layout, workload = question.layout, question.workload
        with device:
            self.blocks = adapter_of(question).build(question, groups)
        if layout.zero == 3 and groups.dp_cp is not None:
            shard_weights(self.blocks, question, groups.dp_cp)
        self.update = Update(self.blocks.parameters(), question, groups)
        self.num_microbatches = workload.global_batch_size // (layout.dp * layout.micro_batch_size)
        self.share = self.num_microbatches * layout.dp
        made = torch.Generator().manual_seed(2)
        shape = (layout.dp * layout.micro_batch_size, workload.seq_len)
        tokens = torch.randint(0, question.model.vocab_size, shape, generator=made)
        replica = dist.get_rank(groups.dp_cp) // layout.cp if groups.dp_cp is not None else 0
        self.tokens = tokens.chunk(layout.dp)[replica].to(device)

    def step(self, phase: Callable[[str], None] = lambda _: None) -> Tensor:
        """Run one step and return this rank's part of the last micro-batch's loss; `phase` is told what begins."""
        loss = torch.zeros(())
        for _ in range(self.num_microbatches):
            phase("forward")
            loss = self.blocks(self.tokens) / self.share
            phase("backward")
            loss.backward()
        self.update(phase)
        phase("idle")
        return loss.detach()

    def check(self, loss: Tensor) -> None:
        """Raise if a loss is no number, or ranks that hold shards of one model disagree about it.

        Raises
        ------
        RunError
            With the losses.
        """
        value = float(loss)
        if not math.isfinite(value):
            raise RunError(f"the loss is {value}: what is measured would say nothing")
        if self.blocks.group is None:
            return
        found: list[Any] = [None] * dist.get_world_size(self.blocks.group)
        dist.all_gather_object(found, value, group=self.blocks.group)
        if max(found) - min(found) > 1e-3 * abs(value):
            raise RunError(
                f"ranks of one model disagree: their losses are {', '.join(f'{each:g}' for each in found)}"
            )
