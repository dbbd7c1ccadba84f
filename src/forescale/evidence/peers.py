"""The errors of other tools beside ours, on the rows that both answer."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from forescale.errors import ForescaleError
from forescale.evidence.case import Case
from forescale.evidence.corpus import InexpressibleError
from forescale.evidence.metrics import ErrorSummary, relative_error, summarise
from forescale.evidence.scoreboard import Outcome, Scoreboard
from forescale.spec.cluster import Cluster
from forescale.spec.model import DenseFfn, FullAttention, Model, MoeFfn
from forescale.spec.strategy import Strategy
from forescale.units import GB, GIB, TB


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """One tool on the rows it answers, and our errors on the same rows."""

    peer: str
    time: ErrorSummary
    our_time: ErrorSummary
    memory: ErrorSummary
    our_memory: ErrorSummary


def compare_peers(
    board: Scoreboard, asked: Mapping[str, Callable[[Case], float]] | None = None
) -> tuple[PeerGroup, ...]:
    """Return the errors of every tool whose predictions the corpus cites, and of those that are asked here.

    `asked` are tools by name that give the seconds of a step; of these only the core rows are asked.
    """
    found: dict[str, tuple[list[Errors], list[Errors]]] = defaultdict(lambda: ([], []))
    for outcome in board.outcomes:
        if outcome.error is None and outcome.memory_error is None:
            continue
        measured = outcome.case.measured
        for said in (*cited(outcome.case.remarks), *_answers(outcome, asked or {})):
            times, memories = found[said.peer]
            error = said.error
            if said.step_time_s is not None and measured.step_time_s:
                error = relative_error(said.step_time_s, measured.step_time_s)
            if error is not None and outcome.error is not None:
                times.append((error, outcome.error))
            if said.peak_bytes is not None and measured.peak_bytes and outcome.memory_error is not None:
                memories.append((relative_error(said.peak_bytes, measured.peak_bytes), outcome.memory_error))
    return tuple(_group(name, times, memories) for name, (times, memories) in found.items())


Errors: TypeAlias = tuple[float, float]
"""Theirs and ours."""


def _answers(outcome: Outcome, asked: Mapping[str, Callable[[Case], float]]) -> Iterator[Cited]:
    if not outcome.case.core or outcome.error is None:
        return
    for name, ask in asked.items():
        # Its own assertions say what it cannot express.
        with contextlib.suppress(InexpressibleError, AssertionError):
            yield Cited(peer=name, step_time_s=ask(outcome.case))


def _group(name: str, times: Sequence[Errors], memories: Sequence[Errors]) -> PeerGroup:
    (time, our_time), (memory, our_memory) = (
        [summarise([pair[side] for pair in pairs]) for side in (0, 1)] for pairs in (times, memories)
    )
    return PeerGroup(peer=name, time=time, our_time=our_time, memory=memory, our_memory=our_memory)


_SIMUMAX = re.compile(r"SimuMax prediction: ([\d.]+) ms \([^)]*\), mem ([\d.]+) GiB")
_CALCULON = re.compile(r"Calculon prediction error on this cell: ([+-][\d.]+) ?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """What a tool predicted of one run, by its authors."""

    peer: str
    step_time_s: float | None = None
    error: float | None = None
    """Relative error of the step, where that is what was published."""
    peak_bytes: float | None = None


def cited(remarks: str) -> Iterator[Cited]:
    """Yield the predictions that a row's notes cite."""
    if match := _SIMUMAX.search(remarks):
        step, peak = float(match[1]) / 1e3, float(match[2]) * GIB
        yield Cited(peer="SimuMax 1.2, as published", step_time_s=step, peak_bytes=peak)
    if match := _CALCULON.search(remarks):
        yield Cited(peer="Calculon, as published", error=float(match[1]) / 100.0)


LLM_ANALYSIS = "llm-analysis 0.2.2"
EFFICIENCY = 0.5
"""Share of the peak rate that it computes at: what its own source calls usual for training (constant.py); its
default is the whole peak."""
RECOMPUTE = {"none": 0, "selective": 1, "full": 2}


def llm_analysis_step(case: Case) -> float:
    """Return the seconds per step that llm-analysis says.

    Raises
    ------
    InexpressibleError
        If it has no words for the run.
    ForescaleError
        If it is not installed.
    """
    analysis, config = _modules()
    model, cluster, strategy, workload = case.question.parts
    peak = cluster.device.matrix_flops.bf16 or cluster.device.matrix_flops.fp16
    if workload.precision.compute not in ("bf16", "fp16") or peak is None:
        msg = "llm-analysis computes in 16 bits"
        raise InexpressibleError(msg)
    if (
        cluster.device.vendor == "Google"
        or strategy.recompute.granularity not in RECOMPUTE
        or strategy.cp > 1
    ):
        msg = "llm-analysis has no TPUs, named policies or context parallelism"
        raise InexpressibleError(msg)
    device = _device(config, cluster, peak)
    asked = analysis.LLMAnalysis(
        _model(config, model, workload.seq_len),
        device,
        config.DtypeConfig(),
        _parallelism(config, strategy),
        flops_efficiency=EFFICIENCY,
    )
    gated = any(isinstance(kind.ffn, DenseFfn | MoeFfn) and kind.ffn.gated for kind in model.layer_kinds)
    with contextlib.redirect_stdout(io.StringIO()):
        summary = asked.training(
            batch_size_per_gpu=strategy.micro_batch_size,
            gradient_accumulation_steps=None,
            global_batch_size=workload.global_batch_size,
            seq_len=workload.seq_len,
            activation_recomputation=analysis.ActivationRecomputation(
                RECOMPUTE[strategy.recompute.granularity]
            ),
            ds_zero=analysis.DSZeRO(strategy.zero),
            mlp_gated_linear_units=gated,
            flash_attn=strategy.flash_attention,
        )
    return float(summary["latency_per_iter"])


def _modules() -> tuple[Any, Any]:
    try:
        analysis, config = (import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    except ImportError as error:
        msg = f"llm-analysis is not installed ({error}): pip install --no-deps llm-analysis fire termcolor"
        raise ForescaleError(msg) from error
    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    config.logger.setLevel(logging.CRITICAL)
    return analysis, config


def _device(config: Any, cluster: Cluster, peak: float) -> Any:  # noqa: ANN401
    inner, outer = cluster.tiers[0], cluster.tiers[-1]
    return config.GPUConfig(
        name=cluster.device.name,
        mem_per_GPU_in_GB=1e6,  # whether it fits is not asked
        hbm_bandwidth_in_GB_per_sec=cluster.device.hbm_bandwidth / GB,
        intra_node_bandwidth_in_GB_per_sec=inner.bandwidth / GB,
        intra_node_min_message_latency=inner.latency,
        peak_fp16_TFLOPS=peak / TB,
        inter_node_bandwidth_in_GB_per_sec=outer.bandwidth / GB,
    )


def _model(config: Any, model: Model, seq_len: int) -> Any:  # noqa: ANN401
    """Return the model as it describes one: equal layers of softmax attention."""
    kinds = model.layer_kinds
    attention, ffn = kinds[-1].attention, kinds[-1].ffn
    if len(kinds) > 1 or not isinstance(attention, FullAttention) or ffn is None:
        msg = "llm-analysis describes equal layers of softmax attention"
        raise InexpressibleError(msg)
    moe = ffn if isinstance(ffn, MoeFfn) else None
    return config.ModelConfig(
        name=model.name,
        num_layers=model.num_layers,
        n_head=attention.num_heads,
        hidden_dim=model.hidden_size,
        vocab_size=model.vocab_size,
        max_seq_len=seq_len,
        num_key_value_heads=attention.num_kv_heads,
        ffn_embed_dim=ffn.ffn_hidden_size,
        expansion_ratio=ffn.ffn_hidden_size / model.hidden_size,
        moe_num_experts=1 if moe is None else moe.num_experts,
        moe_top_k=1 if moe is None else moe.top_k,
    )


def _parallelism(config: Any, strategy: Strategy) -> Any:  # noqa: ANN401
    return config.ParallelismConfig(
        tp_size=strategy.tp,
        pp_size=strategy.pp,
        dp_size=strategy.dp,
        ep_size=strategy.ep,
        sp_size=strategy.tp if strategy.sp else 1,
    )
