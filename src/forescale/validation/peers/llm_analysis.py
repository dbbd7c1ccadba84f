"""llm-analysis, asked the same question: optional, `pip install --no-deps llm-analysis fire`."""

from __future__ import annotations

import contextlib
import io
import logging
from importlib import import_module
from typing import Any

from forescale.errors import ForescaleError
from forescale.spec.cluster import Cluster
from forescale.spec.model import DenseFfn, FullAttention, Model, MoeFfn
from forescale.spec.strategy import Strategy
from forescale.units import GB, TB
from forescale.validation.cases import Case
from forescale.validation.errors import InexpressibleError

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
        msg = f"llm-analysis is not installed ({error}): pip install --no-deps llm-analysis fire"
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
