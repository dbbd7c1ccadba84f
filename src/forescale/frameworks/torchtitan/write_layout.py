"""A layout and a workload in torchtitan's words, by section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from forescale.errors import SpecError
from forescale.frameworks.torchtitan.layout import CP_KINDS, LOSS_COMPONENT, MODEL_COMPONENT, every_layer
from forescale.frameworks.torchtitan.stages import SCHEDULES, SINGLE, dealt
from forescale.graph.stages import virtual_stages
from forescale.question import Question
from forescale.schedule.family import Request
from forescale.schedule.library import build_schedule, family
from forescale.schedule.model import Schedule
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import num_microbatches

NAMES: Final = {ours: theirs for theirs, ours in SCHEDULES.items()}
FOLDED: Final = ("zbv", "dualpipev")
"""Schedules whose second stages lie on the ranks in reverse order."""


def training(question: Question, *, python: bool) -> dict[str, Any]:
    """Return the section of batch, types and steps."""
    strategy, workload = question.layout, question.workload
    ranks = strategy.dp
    local = workload.global_batch_size // ranks if strategy.pp > 1 else strategy.micro_batch_size
    words: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": workload.global_batch_size,
        "seq_len": workload.seq_len,
    }
    if workload.tokens is not None:
        words["steps"] = max(1, round(workload.tokens / workload.tokens_per_step))
    types = workload.precision
    if types.parameters == "bf16" and types.master == "none":
        words["dtype"] = "bfloat16"
    if types.compute in ("fp32", "tf32"):
        words["mixed_precision_param"] = "float32"
    if strategy.offload.parameters:
        words["enable_cpu_offload"] = True
    if python:
        words["disable_cuda_graphs"] = strategy.graphs != "full"
    return words


def parallelism(question: Question, *, python: bool) -> dict[str, Any]:
    """Return the section of degrees and stages; without shards all of data parallel is replicas."""
    strategy, moe = question.layout, question.model.is_moe
    whole = strategy.zero == 0
    words: dict[str, Any] = {
        "data_parallel_replicate_degree": strategy.dp if whole else strategy.dp_replicate,
        "data_parallel_shard_degree": 1 if whole else strategy.dp_shard,
        "tensor_parallel_degree": strategy.tp,
        "context_parallel_degree": strategy.cp,
        "pipeline_parallel_degree": strategy.pp,
        "expert_parallel_degree": strategy.ep,
    }
    if isinstance(strategy.reshard, str) and strategy.reshard != "default":
        words["fsdp_reshard_after_forward"] = strategy.reshard
    if strategy.zero in (1, 2):
        words["fsdp_reshard_after_forward"] = "never"
    if strategy.pp > 1:
        words |= _pipeline(question, head="lm_head" if python else "output")
    if python:
        words["enable_sequence_parallel"] = strategy.sp
        if strategy.cp > 1 and not strategy.cp_balanced:
            words["context_parallel_load_balancer"] = None
        return words
    methods = {kind: word for word, kind in CP_KINDS.items()}
    words["context_parallel_rotate_method"] = methods.get(strategy.cp_kind, "allgather")
    words["enable_async_tensor_parallel"] = strategy.overlap.tensor
    if strategy.kernels.cross_entropy == "eager" and strategy.tp > 1:
        words["disable_loss_parallel"] = True
    if moe and strategy.ep > 1:
        words["expert_tensor_parallel_degree"] = strategy.etp if strategy.etp in (1, strategy.tp) else 1
        words["expert_parallel_comm_backend"] = (
            "standard" if strategy.dispatcher == "all_to_all" else "deepep"
        )
        if strategy.schedule == "dualpipev":
            words["pipeline_parallel_expert_parallel_overlap"] = strategy.overlap.expert
    return words


def _pipeline(question: Question, head: str) -> dict[str, Any]:
    """Return schedule, micro-batch and which layers each stage has, where torchtitan would deal them otherwise."""
    strategy, model = question.layout, question.model
    name = NAMES.get(_schedule(strategy), "")
    words: dict[str, Any] = {"pipeline_parallel_microbatch_size": strategy.micro_batch_size}
    if name:
        words = {"pipeline_parallel_schedule": name, **words}
    layers = stage_layers(question)
    usual = strategy.pp * (1 if name in SINGLE else 2)
    if len(layers) != usual or dealt(usual, model.num_layers) != layers:
        words["module_fqns_per_model_part"] = list(_modules(layers, head))
    return words


def _schedule(strategy: Strategy) -> str:
    return strategy.schedule or ("1f1b" if strategy.vpp == 1 else "interleaved-1f1b")


def stage_layers(question: Question) -> tuple[int, ...]:
    """Return the layers of each virtual stage in the order of the model."""
    strategy = question.layout
    ranks = tuple(range(strategy.pp))
    order = (ranks, ranks[::-1]) if strategy.schedule in FOLDED else (ranks,) * strategy.vpp
    plan = virtual_stages(
        question.model, tuple(rank for each in order for rank in each), stage_layers=strategy.stage_layers
    )
    return tuple(int(count) for count in plan.counts.sum(axis=1))


def _modules(layers: tuple[int, ...], head: str) -> Iterator[list[str]]:
    start = 0
    for stage, count in enumerate(layers):
        names = [f"layers.{number}" for number in range(start, start + count)]
        start += count
        yield [*["tok_embeddings"] * (stage == 0), *names, *["norm", head] * (stage == len(layers) - 1)]


def schedule_csv(question: Question) -> Schedule | None:
    """Return the schedule that goes into a table, because torch has no name for it.

    Raises
    ------
    SpecError
        If its order follows from times, so that the table would be of this machine only.
    """
    strategy, workload = question.layout, question.workload
    name = _schedule(strategy)
    if strategy.pp == 1 or name in NAMES:
        return None
    count = num_microbatches(
        global_batch_size=workload.global_batch_size,
        dp=strategy.dp,
        micro_batch_size=strategy.micro_batch_size,
    )
    request = Request(pp=strategy.pp, num_microbatches=int(count), vpp=strategy.vpp)
    slow = Request(pp=strategy.pp, num_microbatches=int(count), vpp=strategy.vpp, forward=3.0, comm=1.0)
    found = build_schedule(name, request, vpp=strategy.vpp)
    if build_schedule(name, slow, vpp=strategy.vpp).orders != found.orders:
        msg = f"{family(name).name} orders its work by times; torchtitan takes a table that fits one run only"
        raise SpecError(msg)
    return found


def recompute_words(question: Question) -> dict[str, Any]:
    """Return the section of activation checkpointing, as 0.2 has it; what has no word is taken per operator."""
    recompute, layers = question.layout.recompute, stage_layers(question)
    if recompute.granularity == "none":
        return {"mode": "none"}
    if recompute.granularity != "full":
        return {"mode": "selective", "selective_ac_option": "op"}
    early = {"early_stop": True} if recompute.stops_early else {}
    if recompute.takes_all:
        return {"mode": "full", **early}
    every = _every(recompute, layers, question.layout.pp)
    if every is None:
        return {"mode": "full", **early}
    return {"mode": "selective", "selective_ac_option": str(every), **early}


def _every(recompute: Recompute, layers: tuple[int, ...], pp: int) -> int | None:
    """Return the step by which every such layer of a rank is recomputed; None where they lie otherwise."""
    choices = range(2, sum(layers) + 1)
    return next((step for step in choices if every_layer(step, layers, pp) == recompute.layer_ids), None)


def compile_words(question: Question, *, compiled: bool, python: bool) -> dict[str, Any]:
    """Return the section of torch.compile."""
    strategy = question.layout
    parts = [MODEL_COMPONENT] * compiled + [LOSS_COMPONENT] * (strategy.kernels.cross_entropy == "compiled")
    words: dict[str, Any] = {"enable": bool(parts)}
    if parts and len(parts) < len((MODEL_COMPONENT, LOSS_COMPONENT)):
        words["components"] = parts
    if python and strategy.overlap.tensor and compiled:
        words["enable_async_tensor_parallel"] = True
    return words
