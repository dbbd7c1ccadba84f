"""A step of training on one rank: micro-batches forward and backward, then the optimizer's update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forescale.bench.huggingface import Blocks
from forescale.bench.parallel import sum_partial
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


def check_optimizer(question: Question) -> None:
    """Raise unless torch has the optimizer of a question."""
    name = question.workload.optimizer
    if name not in OPTIMIZERS:
        raise SpecError(f"a bench updates with {', '.join(OPTIMIZERS)}; the question has {name}")


class Update:
    """The optimizer of some parameters, in the types that a workload has for states.

    Gradients stay from step to step, as buffers; where they are wider than parameters, they are added up apart.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], question: Question) -> None:
        types, name = question.workload.precision, question.workload.optimizer
        self.parameters = [each for each in parameters if each.requires_grad]
        self.masters = _masters(self.parameters, types)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
            if types.gradients == "fp32" and parameter.dtype != torch.float32:
                setattr(parameter, MAIN, torch.zeros_like(parameter, dtype=torch.float32))
                parameter.register_post_accumulate_grad_hook(_to_main)  # type: ignore[no-untyped-call]
        self.optimizer = OPTIMIZERS[name](self.masters or self.parameters, lr=RATE)

    def __call__(self) -> None:
        """Update, and set gradients to zero."""
        for parameter, master in zip(self.parameters, self.masters, strict=False):
            master.grad = _gradient(parameter).float()
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters, strict=False):
            parameter.data.copy_(master)
            master.grad = None
        for parameter in self.parameters:
            _gradient(parameter).zero_()


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

    def __init__(self, question: Question, device: torch.device, group: Any = None) -> None:  # noqa: ANN401
        layout, workload = question.layout, question.workload
        self.blocks = Blocks(question, group).to(device)
        self.update = Update(self.blocks.parameters(), question)
        self.num_microbatches = workload.global_batch_size // (layout.dp * layout.micro_batch_size)
        made = torch.Generator().manual_seed(2)
        shape = (layout.micro_batch_size, workload.seq_len)
        self.tokens = torch.randint(0, question.model.vocab_size, shape, generator=made).to(device)

    def step(self, phase: Callable[[str], None] = lambda _: None) -> Tensor:
        """Run one step and return the last micro-batch's loss; `phase` is told what begins."""
        loss = torch.zeros(())
        for _ in range(self.num_microbatches):
            phase("forward")
            loss = self.blocks(self.tokens) / self.num_microbatches
            phase("backward")
            loss.backward()
        phase("update")
        self.finish()
        phase("idle")
        return loss.detach()

    def finish(self) -> None:
        """Update once all micro-batches are through."""
        if self.blocks.group is not None:
            sum_partial(self.blocks, self.blocks.group)
        self.update()

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
