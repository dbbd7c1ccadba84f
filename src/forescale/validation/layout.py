"""The layout and the workload of a row: degrees, sharding, recompute, overlap, batch and precision."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

from forescale.files import Row
from forescale.frameworks.megatron.graphs import launch_graphs
from forescale.spec.model import DenseFfn, Model
from forescale.spec.strategy import (
    SENT_ONCE,
    Dispatcher,
    Kernels,
    LaunchGraphs,
    Overlap,
    Strategy,
)
from forescale.spec.workload import OptimizerName, Precision, StorageType, Workload
from forescale.validation.errors import InexpressibleError
from forescale.validation.saved import allocator_of, lengths_vary, saved_of
from forescale.validation.shape import Notes
from forescale.validation.tables import first_match, table

_DEFAULT_SEQ_LEN = 4096
_DEFAULT_MICROBATCHES_PER_STAGE = 8
"""Micro-batches per pipeline stage where a row gives no batch: a bubble of 11 %, common in published runs."""


def conventions_of(row: Row) -> dict[str, Any]:
    """Return how the row's source trains: its framework's conventions and what is known of this source."""
    source = first_match("sources", f"{row.text('source')} {row.id} {row.text('model')}")
    frameworks = table("frameworks")
    return {**frameworks["default"], **frameworks.get(source.get("framework"), {}), **source}


def layout_of(row: Row, model: Model, notes: Notes) -> tuple[Strategy, Workload]:
    """Return the layout and the workload of `row`; what had to be assumed is appended to `notes`.

    Raises
    ------
    InexpressibleError
        If the degrees do not make up the devices, or the batch cannot be split.
    """
    _refuse_adapters(row)
    conventions = conventions_of(row)
    degrees = _degrees(row, notes)
    micro, batch = _batch(row, degrees, conventions, notes)
    replicate, shard, zero = _sharding(row, degrees, conventions, notes)
    tp, pp, vpp = degrees["tp"], degrees["pp"], degrees["vpp"]
    precision = _precision(row, conventions, notes)
    saved = saved_of(row, conventions, model.num_layers, pp, vpp, notes)
    strategy = Strategy(
        tp=tp,
        sp=tp > 1 and (conventions["sharded_residual"] or _sequence_parallel(row, tp, notes)),
        cp=degrees["cp"],
        cp_kind="ulysses" if "a2a" in row.text("attention") else conventions["cp_kind"],
        ep=degrees["ep"],
        etp=degrees["etp"],
        pp=pp,
        vpp=vpp,
        dp_replicate=replicate,
        dp_shard=shard,
        zero=zero,
        micro_batch_size=micro,
        recompute=saved.recompute,
        stage_layers=(_by_cost if conventions.get("stages_by_cost") else stage_layers)(model, pp, vpp),
        overlap=_overlap(row, model, precision, conventions),
        flash_attention=_flash(row, conventions),
        kernels=_kernels(row, conventions, precision),
        software=_software(row, conventions),
        graphs=_graphs(row),
        allocator=allocator_of(row, conventions),
        offload=saved.offload,
        dispatcher=_dispatcher(row, degrees["ep"], conventions, notes),
    )
    workload = Workload(
        seq_len=_seq_len(row, notes),
        global_batch_size=batch,
        optimizer=_optimizer(row),
        precision=precision,
        varied_lengths=lengths_vary(row),
    )
    return strategy, workload


def _dispatcher(row: Row, ep: int, conventions: Mapping[str, Any], notes: Notes) -> Dispatcher:
    """Return how tokens travel; where the remarks found no configuration that says so, as the framework advises."""
    remarks = row.text("notes").lower()
    usual: Dispatcher = conventions.get("dispatcher", "all_to_all")
    if ep > 1 and "not matched to a perf config" in remarks:
        for board, advised in conventions.get("advised_dispatchers", {}).items():
            if re.search(board, row.text("hardware")):
                notes.append(f"dispatcher not given: {advised} assumed")
                usual = advised
                break
    return next((name for name in SENT_ONCE if name in remarks), usual)


def _refuse_adapters(row: Row) -> None:
    if re.search(r"\bQ?LoRA\b", f"{row.text('model')} {row.text('notes')} {row.text('optimizer')}"):
        msg = "LoRA fine-tuning trains adapters only, which a workload cannot say"
        raise InexpressibleError(msg)


def _degrees(row: Row, notes: Notes) -> dict[str, int]:
    devices = row.integer("n_gpus")
    if not devices or devices < 1:
        msg = "the number of devices is not given"
        raise InexpressibleError(msg)
    degrees = {}
    for name in ("tp", "cp", "pp", "vpp", "ep"):
        value = row.integer(name)
        if value is None:
            value = 2 if name == "vpp" and row.text("schedule") == "1f1b-interleaved" else 1
            notes.append(f"{name} not given: {value} assumed")
        degrees[name] = value
    model_parallel = degrees["tp"] * degrees["cp"] * degrees["pp"]
    dp = row.integer("dp")
    if dp is None:
        dp = max(1, devices // model_parallel)
        notes.append(f"dp not given: {dp} fills the devices")
    if model_parallel * dp != devices:
        msg = f"tp x cp x pp x dp is {model_parallel * dp}, but the row counts {devices} devices"
        raise InexpressibleError(msg)
    degrees["dp"] = dp
    degrees["etp"] = _expert_tensor_parallel(row, degrees, notes)
    return degrees


def _expert_tensor_parallel(row: Row, degrees: Mapping[str, int], notes: Notes) -> int:
    """Return etp; where it is not given, experts are cut by tp as before folding existed, if that fits."""
    given = row.integer("etp")
    if given is not None or degrees["ep"] == 1:
        return given or 1
    tp, domain = degrees["tp"], degrees["tp"] * degrees["cp"] * degrees["dp"]
    etp = tp if domain % (degrees["ep"] * tp) == 0 else 1
    if tp > 1:
        notes.append(f"etp not given: {etp} assumed")
    return etp


def _batch(
    row: Row, degrees: Mapping[str, int], conventions: Mapping[str, Any], notes: Notes
) -> tuple[int, int]:
    """Return the micro-batch size and the global batch size in sequences."""
    dp, micro, batch = degrees["dp"], row.integer("micro_batch"), row.integer("global_batch")
    usual = conventions.get("grad_accum") if degrees["pp"] == 1 else None
    accumulation = row.integer("grad_accum") or usual
    if micro is None:
        count = accumulation or conventions.get("microbatches_per_stage", 0) * degrees["pp"]
        micro = max(1, batch // (dp * count)) if batch and count else 1
        notes.append(f"micro-batch not given: {micro} assumed")
    if batch is None:
        accumulation = accumulation or _DEFAULT_MICROBATCHES_PER_STAGE * degrees["pp"]
        batch = micro * dp * accumulation
        notes.append(f"global batch not given: {batch} assumed")
    if batch % dp:
        msg = f"a global batch of {batch} sequences cannot be split over {dp} data-parallel ranks"
        raise InexpressibleError(msg)
    per_rank = batch // dp
    if per_rank % micro:
        given, micro = micro, max(size for size in range(1, micro) if per_rank % size == 0)
        notes.append(
            f"micro-batch {micro} instead of {given}, which does not divide {per_rank} sequences a rank"
        )
    return micro, batch


def _sharding(
    row: Row, degrees: Mapping[str, int], conventions: Mapping[str, Any], notes: Notes
) -> tuple[int, int, int]:
    """Return dp_replicate, dp_shard and the ZeRO stage."""
    dp, text = degrees["dp"], row.text("zero_or_fsdp").lower()
    stage = re.match(r"[0-3]", text)
    if not text:
        notes.append("ZeRO stage not given: 1 assumed")
        return 1, dp, 1
    if stage and stage[0] == "0":
        return 1, dp, 0
    zero = int(stage[0]) if stage else 3
    shard = _shard_group(row, degrees, conventions, notes, hybrid=text.startswith("hsdp"))
    return dp // shard, shard, zero


def _shard_group(
    row: Row, degrees: Mapping[str, int], conventions: Mapping[str, Any], notes: Notes, *, hybrid: bool
) -> int:
    """Return over how many data-parallel ranks states are sharded, as the row's remarks say."""
    dp = degrees["dp"]
    remarks = f"{row.text('optimizer')}; {row.text('notes')}"
    if re.search(r"'dcn_fsdp_parallelism': (?!1\b)", remarks):  # sharded over slices, too
        return dp
    group = re.search(r"shard(?:ing)? group (\d+)|\bFSDP=(\d+)", remarks)
    slices = re.search(r"(\d+) slice\(s\)|slices=(\d+)|= (\d+) chips", remarks)
    if group:
        size = int(group[1] or group[2])
    elif hybrid and slices:
        count = int(slices[1] or slices[2] or 0) or (row.integer("n_gpus") or 0) // int(slices[3])
        size = dp // max(1, count)
    elif hybrid:
        size = int(conventions.get("hsdp_group", row.integer("gpus_per_node") or 8))
        notes.append(f"sharding group not given: {size} assumed")
    else:
        return dp
    return math.gcd(size, dp)


def _sequence_parallel(row: Row, tp: int, notes: Notes) -> bool:
    given = row.flag("sp")
    if given is None and tp > 1:
        notes.append("sequence parallelism not given: on assumed")
    return tp > 1 and given is not False


def stage_layers(model: Model, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return the layers of each virtual stage where they do not divide evenly; None where they do.

    If two more layers would divide, embedding and loss take the place of one layer each, as Megatron's
    `account_for_embedding_in_pipeline_split` and DeepSpeed's partitioning do; else chunks are filled from the
    front, so that the last leave room for the loss and multi-token prediction (Megatron-Bridge's layouts).
    """
    chunks, layers = pp * vpp, model.num_layers
    if pp == 1 or layers % chunks == 0:
        return None
    if (layers + 2) % chunks == 0:
        per_chunk = (layers + 2) // chunks
        counts = [per_chunk - (index == 0) - (index == chunks - 1) for index in range(chunks)]
    else:
        per_chunk = math.ceil(layers / chunks)
        counts = [max(0, min(per_chunk, layers - index * per_chunk)) for index in range(chunks)]
    return tuple(counts) if all(sum(counts[rank::pp]) for rank in range(pp)) else None


def _by_cost(model: Model, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return the layers of each rank where a rank ends with the layer that passes its share of the weights.

    Layers count as gated ones with as many key/value heads as heads, the head as one matrix behind the last.
    Source: nanotron models/base.py and LlamaModel.get_block_compute_costs.
    """
    ffn = model.layers[0].ffn
    if pp == 1 or not isinstance(ffn, DenseFfn):
        return stage_layers(model, pp, vpp)
    layer = 4 * model.hidden_size + 3 * ffn.ffn_hidden_size
    shares = (layer * model.num_layers + model.vocab_size) / layer / pp
    ends = [min(math.floor(shares * rank) + 1, model.num_layers) for rank in range(1, pp)]
    return tuple(high - low for low, high in pairwise((0, *ends, model.num_layers)))


def _overlap(row: Row, model: Model, precision: Precision, conventions: Mapping[str, Any]) -> Overlap:
    remarks = row.text("notes")
    by_default = conventions["tensor_overlap"] and not model.is_moe and precision.compute != "nvfp4"
    tensor = by_default or re.search(r"async ?TP", remarks, re.IGNORECASE) is not None
    expert = re.search(r"moe a2a overlap|(?<!no )\bEP overlap(?! off)", remarks) is not None
    off = "TP/P2P comm overlap disabled" in remarks
    return Overlap(
        grad_reduce=conventions["grad_overlap"] or "DDP=torch overlap" in remarks,
        param_gather=conventions["param_overlap"],
        tensor=tensor and not off,
        pipeline=conventions["pipeline_overlap"] and not off,
        expert=expert,
    )


def _software(row: Row, conventions: Mapping[str, Any]) -> str:
    """Return the software stack; the remarks say whether steps were compiled, MaxText policies that XLA did it."""
    compiled = re.search(r"compile|float8", row.text("notes"), re.IGNORECASE) is not None
    software = conventions.get("compiled_software") if compiled else None
    if "maxtext" in row.text("recompute").lower():
        software = "xla"
    software = str(software or conventions["software"])
    return "xla-gpu" if software == "xla" and "TPU" not in row.text("hardware") else software


def _graphs(row: Row) -> LaunchGraphs:
    """Return which launches the remarks say are captured."""
    told = re.search(
        r"cuda graph impl=(\S+) scope=(\[[^]]*\]|\w+)|TE CUDA graphs([\w+ ]*)", row.text("notes")
    )
    if told is None:
        return "none"
    return launch_graphs(told[1] or "transformer_engine", re.findall(r"\w+", told[2] or told[3]))


def _flash(row: Row, conventions: Mapping[str, Any]) -> bool:
    text = row.text("attention").lower()
    if not text:
        return bool(conventions.get("flash", True))
    return not text.startswith(("unfused", "fused softmax", "xla"))


def _kernels(row: Row, conventions: Mapping[str, Any], precision: Precision) -> Kernels:
    """Return the kernels of the framework; DeepSpeed has an optimizer of its own for bf16 with fp32 sums."""
    sums_fp32 = precision.parameters == "bf16" and precision.gradients == "fp32"
    name = "bf16_kernels" if sums_fp32 and "bf16_kernels" in conventions else "kernels"
    remarks, chosen = row.text("notes"), dict(conventions[name])
    if "num_vocab_tiling" in remarks or "vocab_tiles" in first_match("recipes", remarks):
        chosen["cross_entropy"] = "fused_linear"
    narrow = re.search(conventions.get("narrow_experts_if", ""), remarks) is not None
    together = re.search(conventions.get("one_kernel_if", "(?!)"), remarks) is not None
    return Kernels(
        **chosen,
        blocking_launches="CUDA_LAUNCH_BLOCKING=1" in remarks,
        narrow_experts=narrow,
        expert_kernels="one" if together else "each",
    )


def _precision(row: Row, conventions: Mapping[str, Any], notes: Notes) -> Precision:
    text = row.text("compute_dtype")
    if not text:
        text = conventions.get("dtype", "bf16")
        notes.append(f"precision not given: {text} assumed")
    entry = first_match("precisions", text)
    if not entry:
        msg = f"compute type {text!r} is not understood; fp32, tf32, fp16, bf16, fp8, mxfp8 and nvfp4 are"
        raise InexpressibleError(msg)
    if "note" in entry:
        notes.append(entry["note"])
    storage: StorageType = "fp16" if entry["compute"] == "fp16" else "bf16"
    gradients = entry.get("gradients") or conventions["gradients"]
    if "fp32 main grads" in row.text("optimizer"):
        gradients = "fp32"
    elif storage == "fp16":
        gradients = conventions["fp16_gradients"]
    elif gradients == "fp16":
        gradients = "bf16"
    recipe = entry.get("recipe", conventions["fp8_recipe"] if entry["compute"] == "fp8" else "none")
    in_fp8 = conventions.get("fp8_parameters") and entry["compute"] in ("fp8", "mxfp8")
    narrow: StorageType = "fp8" if in_fp8 and recipe != "blockwise" else storage
    conventions = {**conventions, **first_match("recipes", row.text("notes")).get("storage", {})}
    precision = Precision(
        compute=entry["compute"],
        recipe=recipe,
        parameters=conventions.get("parameters", narrow),
        master=conventions.get("master", "fp32"),
        gradients=gradients,
        moments=conventions["moments"],
        activations=storage,
    )
    if precision.compute in {"fp32", "tf32"}:
        return replace(precision, parameters="fp32", gradients="fp32", activations="fp32", master="none")
    return precision


def _optimizer(row: Row) -> OptimizerName:
    text = row.text("optimizer").lower()
    for name in get_args(OptimizerName):
        if re.search(rf"\b{name}\b", text):
            return name  # type: ignore[no-any-return]
    return "adamw"


def _seq_len(row: Row, notes: Notes) -> int:
    seq_len = row.integer("seq_len")
    if seq_len is None:
        seq_len = _DEFAULT_SEQ_LEN
        notes.append(f"sequence length not given: {seq_len} assumed")
    return seq_len
