"""One object for a training loop: a pipeline-parallel step of any schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from forescale.runtime.channels import Channels, RunError
from forescale.runtime.gradients import WeightGradients
from forescale.runtime.runner import Loss, Runner, Tie
from forescale.schedule import LoweredSchedule, Schedule
from forescale.schedule.measured import Pass
from forescale.schedule.messages import Sends
from forescale.units import counted


class PipelineStep:
    """Forward, backward and gradient sums of one step, in the order of a schedule.

    ```python
    step = PipelineStep(build_schedule("zb-h1", Request(pp=4, num_microbatches=8)), stages, loss)
    for inputs, targets in batches:
        value = step(inputs, targets)
        optimizer.step()
        optimizer.zero_grad()
    ```

    Parameters
    ----------
    schedule
        Checked before anything starts.
    stages
        A function that makes the module of a stage (of one replica), all stages' modules in order, or this rank's by
        stage id. A function of a tensor is a stage too: `as_stage`.
    loss
        Of the last stage's output and the targets of a micro-batch: a mean.
    pipelines
        Global ranks of every pipeline; by default all processes are one pipeline. Gradients are averaged over them;
        those of a stage under FSDP2 (`fully_shard`) are averaged by it.
    tp
        How many pipelines after each other hold shards of one model (tensor parallel): not averaged.
    tied
        Pairs of ((stage, parameter name), (stage, parameter name)) that share a weight; stage -1 is the last.
    in_fp32
        Whether gradients accumulate in fp32, in `parameter.main_grad`.
    """

    def __init__(
        self,
        schedule: Schedule | LoweredSchedule,
        stages: Mapping[int, nn.Module] | Sequence[nn.Module] | Callable[[int], nn.Module],
        loss: Loss,
        *,
        pipelines: Sequence[Sequence[int]] | None = None,
        tp: int = 1,
        device: torch.device | str = "cpu",
        tied: Sequence[Tie] = (),
        in_fp32: bool = False,
        sends: Sends = "early",
        count_bytes: bool = False,
        channels: Channels | None = None,
    ) -> None:
        plan = schedule.schedule if isinstance(schedule, LoweredSchedule) else schedule
        pipelines = pipelines or [range(dist.get_world_size())]
        for members in pipelines:
            if len(members) != plan.num_ranks:
                msg = f"{plan.name} runs on {counted(plan.num_ranks, 'rank')}; a pipeline has {len(members)}"
                raise RunError(msg)
        if len(pipelines) % tp:
            raise RunError(
                f"{counted(len(pipelines), 'pipeline')} cannot be groups of {tp} shards; tp must divide them"
            )
        self.channels = channels or Channels(pipelines, torch.device(device), tp=tp)
        self.stages = _own_stages(plan, stages, self.channels.rank, device)
        self.runner = Runner(
            schedule,
            self.stages,
            loss,
            self.channels,
            store=WeightGradients(in_fp32=in_fp32),
            tied=[(_of(a, plan.num_stages), _of(b, plan.num_stages)) for a, b in tied],
            sends=sends,
            count_bytes=count_bytes,
        )
        self.schedule = plan
        self.passes: list[Pass] = []
        """What ran in the last step, seconds from its start."""
        self.start_s = 0.0
        """When the last step began on this rank's clock."""

    def parameters(self) -> list[nn.Parameter]:
        """Return this rank's parameters, each once, for an optimizer."""
        stages = {id(p): p for module in self.stages.values() for p in module.parameters()}
        return list(stages.values())

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run one step and return the mean loss, on every rank.

        Parameters
        ----------
        inputs, targets
            The pipeline's share of the batch, (micro-batches × sequences each, tokens, …), on every rank.

        Raises
        ------
        RunError
            If a pass fails, or the batch does not divide.
        """
        cut_inputs, cut_targets = self._cut(inputs), self._cut(targets)
        self.runner.ready(cut_inputs)
        self.channels.meet()
        self.runner.clock.begin()
        self.start_s = self.runner.clock.start_s
        loss, passes = self.runner.step(cut_inputs, cut_targets)
        self.passes = [pass_.after(self.start_s) for pass_ in passes]
        self.channels.average(self.runner.store.of(parameter) for parameter in self._averaged())
        total = (
            torch.zeros(1, dtype=torch.float64, device=self.channels.device)
            if loss is None
            else loss.detach().double()[None]
        )
        self.channels.sum(total, range(self.schedule.num_ranks))
        self.channels.average([total])
        return total[0]

    def _averaged(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients nobody else averages."""
        sharded = {
            id(parameter)
            for stage in self.stages.values()
            for module in stage.modules()
            if isinstance(module, FSDPModule)
            for parameter in module.parameters()
        }
        return [parameter for parameter in self.parameters() if id(parameter) not in sharded]

    def _cut(self, batch: Tensor) -> list[Tensor]:
        """Return the pieces of a batch, micro-batch after micro-batch."""
        count, pieces = self.schedule.num_microbatches, self.schedule.num_splits
        if batch.shape[0] % count or (pieces > 1 and batch.shape[1] % pieces):
            raise RunError(
                f"a batch of shape {tuple(batch.shape)} does not divide into "
                f"{counted(count, 'micro-batch')} of {counted(pieces, 'piece')}"
            )
        parts = batch.chunk(count)
        return [
            piece.contiguous()
            for part in parts
            for piece in (part.chunk(pieces, 1) if pieces > 1 else [part])
        ]


def _own_stages(
    plan: Schedule,
    stages: Mapping[int, nn.Module] | Sequence[nn.Module] | Callable[[int], nn.Module],
    rank: int,
    device: torch.device | str,
) -> dict[int, nn.Module]:
    """Return one rank's modules by stage id; gradients are averaged here, so DDP around a stage is taken off."""
    if isinstance(stages, Mapping):
        result = dict(stages)
    else:
        mine = [stage for stage, home in enumerate(plan.placement.rank_of_stage) if home == rank]
        if not callable(stages) and len(stages) != plan.num_stages:
            msg = f"{plan.name} has {counted(plan.num_stages, 'stage')}; it was given {counted(len(stages), 'module')}"
            raise RunError(msg)
        make = stages if callable(stages) else stages.__getitem__
        result = {stage: make(stage % plan.num_stages).to(device) for stage in mine}
    return {
        stage: module.module if isinstance(module, DistributedDataParallel) else module
        for stage, module in result.items()
    }


def as_stage(function: Callable[[Tensor], Tensor], *parameters: nn.Parameter) -> nn.Module:
    """Return a stage that calls a function, and has the parameters that the function uses.

    The function multiplies by them with `linear`, `grouped_linear` or `embedding`; what else it does with them gets
    its weight gradient in I.
    """
    return _Function(function, parameters)


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.function, self.own = function, nn.ParameterList(parameters)

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x)


def _of(place: tuple[int, str], num_stages: int) -> tuple[int, str]:
    return place[0] % num_stages, place[1]
