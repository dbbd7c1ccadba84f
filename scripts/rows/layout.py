"""The layout and the workload of a row: degrees, sharding, recompute, overlap, batch and precision."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from scripts.rows.columns import Notes
from scripts.rows.tables import first_match, framework_name, names_framework, words_of

from forescale.catalogue.frameworks import load_framework
from forescale.files import Row
from forescale.frameworks.megatron.layout import launch_graphs
from forescale.spec.dispatchers import DISPATCHERS, Dispatcher
from forescale.spec.framework import Framework, explicit_fields, merge_sections
from forescale.spec.layout import KeptName, LaunchGraphs, Module, Offload, OffloadName, Recompute
from forescale.spec.model import Model
from forescale.spec.optimizers import OptimizerName
from forescale.spec.stage_layers import light_ends
from forescale.struct import Struct
from forescale.validation.case import InexpressibleError, RowSpec

_DEFAULT_SEQ_LEN = 4096
_DEFAULT_MICROBATCHES_PER_STAGE = 8
"""Micro-batches per pipeline stage where a row gives no batch: a bubble of 11 %, common in published runs."""


def source_text(row: Row) -> str:
    """Return what says where a row is from: its source, id and model."""
    return f"{row.text('source')} {row.id} {row.text('model')}"


def stated_of(row: Row, model: Model, notes: Notes) -> RowSpec:
    """Return what `row` says of layout and workload; what had to be assumed is appended to `notes`.

    Raises
    ------
    InexpressibleError
        If the degrees do not make up the devices, or the batch cannot be split.
    """
    message = words_of(row)
    _check_adapters(row, message["workload"])
    name = framework_name(source_text(row), row.text("notes"))
    framework = load_framework(name)
    degrees = _degrees(row, notes)
    micro, batch = _batch(row, degrees, framework, notes)
    replicate, shard, zero = _sharding(row, degrees, framework, notes)
    count = batch // (degrees["dp"] * micro)
    degrees["vpp"] = vpp = _virtual_stages(row, degrees["pp"], count, model, framework, notes)
    tp, pp, splits = degrees["tp"], degrees["pp"], model.is_moe and not framework.experts_over_tp
    precision = _precision(row, framework, notes)
    known = "recompute" in message["strategy"] and not row.text("recompute")
    saved = saved_of(row, framework, model.num_layers, pp, vpp, [] if known else notes)
    layout = {
        **{axis: degrees[axis] for axis in ("tp", "cp", "ep", "pp", "vpp")},
        "etp": _expert_tensor_parallel(row, degrees, notes) if splits else None,
        "sp": None if framework.always_sp else _sequence_parallel(row, tp, notes),
        "dp_replicate": replicate,
        "dp_shard": shard,
        "zero": zero,
        "micro_batch_size": micro,
        "recompute": saved.recompute,
        "stage_layers": None if framework.stages == "by_cost" else light_ends(model.num_layers, pp, vpp),
        "graphs": _graphs(row, degrees["ep"], framework, notes),
        "offload": saved.offload,
        "dispatcher": _dispatcher(row, degrees["ep"], framework, notes),
    }
    workload = {
        "seq_len": _seq_len(row, notes),
        "global_batch_size": batch,
        "optimizer": _optimizer(row),
        "precision": precision,
    }
    values = {name: value for name, value in layout.items() if value is not None}
    return RowSpec(
        framework=name,
        assumed=not names_framework(source_text(row)),
        strategy=merge_sections(values, message["strategy"]),
        workload=merge_sections(workload, message["workload"]),
    )


def _dispatcher(row: Row, ep: int, framework: Framework, notes: Notes) -> Dispatcher | None:
    """Return how tokens travel as the remarks say; where they do not, frameworks that advise are noted."""
    remarks = row.text("notes").lower()
    explicit = next((name for name, kind in DISPATCHERS.items() if kind.sends_once and name in remarks), None)
    if explicit is None and ep > 1 and framework.dispatchers:
        notes.append("dispatcher not given: the one that the framework advises assumed")
    return explicit


def _check_adapters(row: Row, workload: Mapping[str, Any]) -> None:
    """Refuse a row with adapters of which nothing says rank and products."""
    named = f"{row.text('model')} {row.text('notes')} {row.text('optimizer')}"
    if re.search(r"\bQ?LoRA\b", named) and "trainable" not in workload:
        raise InexpressibleError("rank and products of its LoRA adapters are not given")


def _degrees(row: Row, notes: Notes) -> dict[str, int]:
    devices = row.integer("n_gpus")
    if not devices or devices < 1:
        raise InexpressibleError("the number of devices is not given")
    degrees = {}
    for name in ("tp", "cp", "pp", "ep"):
        value = row.integer(name)
        if value is None:
            value = 1
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
    return degrees


def _expert_tensor_parallel(row: Row, degrees: Mapping[str, int], notes: Notes) -> int:
    """Return etp; where it is not given, experts are cut by tp as before folding existed, if that fits."""
    integer = row.integer("etp")
    if integer is not None:
        return integer
    tp, domain = degrees["tp"], degrees["tp"] * degrees["cp"] * degrees["dp"]
    etp = tp if domain % (degrees["ep"] * tp) == 0 else 1
    if tp > 1:
        notes.append(f"etp not given: {etp} assumed")
    return etp


def _virtual_stages(
    row: Row, pp: int, num_microbatches: int, model: Model, framework: Framework, notes: Notes
) -> int:
    """Return vpp; where it is not given, the middle one of those that divide a stage if the framework advises that."""
    integer = row.integer("vpp")
    if integer is not None:
        return integer
    vpp = 2 if row.text("schedule") == "1f1b-interleaved" else 1
    layers, uneven = divmod(model.num_layers, pp)
    interleaves = framework.interleaves_experts and model.is_moe and row.text("schedule") != "1f1b"
    if interleaves and pp > 1 and not uneven and num_microbatches % pp == 0:
        divisors = [index for index in range(1, layers + 1) if layers % index == 0]
        vpp = divisors[len(divisors) // 2]
    notes.append(f"vpp not given: {vpp} assumed")
    return vpp


def _batch(row: Row, degrees: Mapping[str, int], framework: Framework, notes: Notes) -> tuple[int, int]:
    """Return the micro-batch size and the global batch size in sequences."""
    dp, micro, batch = degrees["dp"], row.integer("micro_batch"), row.integer("global_batch")
    usual = framework.accumulation if degrees["pp"] == 1 else None
    accumulation = row.integer("grad_accum") or usual
    if micro is None:
        count = accumulation or framework.microbatches(degrees["pp"])
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
        value, micro = micro, max(size for size in range(1, micro) if per_rank % size == 0)
        notes.append(
            f"micro-batch {micro} instead of {value}, which does not divide {per_rank} sequences a rank"
        )
    return micro, batch


def _sharding(
    row: Row, degrees: Mapping[str, int], framework: Framework, notes: Notes
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
    shard = _shard_group(row, degrees, framework, notes, hybrid=text.startswith("hsdp"))
    return dp // shard, shard, zero


def _shard_group(
    row: Row, degrees: Mapping[str, int], framework: Framework, notes: Notes, *, hybrid: bool
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
        size = framework.shard_group or row.integer("gpus_per_node") or 8
        notes.append(f"sharding group not given: {size} assumed")
    else:
        return dp
    return math.gcd(size, dp)


def _sequence_parallel(row: Row, tp: int, notes: Notes) -> bool:
    flag = row.flag("sp")
    if flag is None and tp > 1:
        notes.append("sequence parallelism not given: on assumed")
    return tp > 1 and flag is not False


def _graphs(row: Row, ep: int, framework: Framework, notes: Notes) -> LaunchGraphs | None:
    """Return which launches the remarks say are captured; where they do not, frameworks that advise are noted."""
    explicit = re.search(
        r"cuda graph impl=(\S+) scope=(\[[^]]*\]|\w+)|TE CUDA graphs([\w+ ]*)", row.text("notes")
    )
    if explicit is None and ep > 1 and framework.expert_graphs:
        notes.append("graphs not given: those that the framework advises assumed")
        return None
    if explicit is None:
        return "none"
    return launch_graphs(explicit[1] or "transformer_engine", re.findall(r"\w+", explicit[2] or explicit[3]))


def _precision(row: Row, framework: Framework, notes: Notes) -> dict[str, str]:
    text = row.text("compute_dtype")
    if not text:
        text = framework.compute
        notes.append(f"precision not given: {text} assumed")
    entry = first_match("precisions", text)
    if not entry:
        msg = f"compute type {text!r} is not understood; fp32, tf32, fp16, bf16, fp8, mxfp8 and nvfp4 are"
        raise InexpressibleError(msg)
    if "note" in entry:
        notes.append(entry["note"])
    names = {name: entry[name] for name in ("compute", "recipe", "gradients") if name in entry}
    return {**names, **first_match("recipes", row.text("notes")).get("storage", {})}


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


INPUT = "decoder_layer_input"
SPOKEN = {"layer input": INPUT, "q/k/v": "query_proj, key_proj, value_proj"}
"""What rows call tensors, and MaxText's names."""


class Saved(Struct, frozen=True, kw_only=True):
    """What is made again, and what lies on the host."""

    recompute: Mapping[str, Any] | None
    """In the words of a plan; None is what the framework does by default."""
    offload: Mapping[str, Any]


def saved_of(row: Row, framework: Framework, num_layers: int, pp: int, vpp: int, notes: Notes) -> Saved:
    """Return what a row keeps; how it is replayed is its framework's."""
    recipe = first_match("recipes", row.text("notes"))
    if recipe:
        return _saved(_custom(recipe["kept"]), _on_host(recipe["offloaded"]))
    text = row.text("recompute")
    if not text:
        usual = framework.recompute
        notes.append(f"recompute not given: {usual.policy or usual.granularity} assumed")
        return _saved(None, _offload(row, ""))
    if "per-op SAC" in text:
        text += _products(row)
    return _saved(_policy(text, num_layers, pp, vpp, notes), _offload(row, text))


def _saved(recompute: Recompute | None, offload: Offload) -> Saved:
    """Return both in the words of a plan: granularity and offload are always said, how replay ends is not."""
    explicit = None
    if recompute is not None:
        explicit = {"granularity": recompute.granularity, **explicit_fields(recompute, Recompute())}
    return Saved(recompute=explicit, offload=explicit_fields(offload, Offload()))


def _products(row: Row) -> str:
    """Return how torchtitan's layers multiply: as operators that its selective checkpoint knows, or others."""
    if "nvfp4" in row.text("compute_dtype").lower():
        return ", nvfp4"  # torchao's products in 4 bits are no aten.mm, so that only attention is kept
    if "torchtitan mxfp8.md" in row.text("source"):
        return ", compiled, cuDNN"  # of torchtitan 6fc499f6f (14 August 2025), on B200
    return ", compiled" if re.search(r"compile|float8", row.text("notes"), re.IGNORECASE) else ""


def _offload(row: Row, recompute: str) -> Offload:
    """Return what a row offloads: so many layers, or tensors that its policy names."""
    named = _named(recompute) if "offloaded" in recompute else ()
    entry = first_match("recomputes", recompute)
    if named or "offloaded" in entry:
        return _on_host(entry.get("offloaded", named))
    explicit = re.search(r"activation CPU offload of (\d+) layers", row.text("notes"))
    return Offload(activation_layers=int(explicit[1]) if explicit else 0)


def _on_host(names: Iterable[str]) -> Offload:
    value = set(names)
    return Offload(modules=tuple(name for name in get_args(OffloadName) if name in value))


def _custom(names: Sequence[str]) -> Recompute:
    """Return the policy that keeps these results; without any it is full recompute."""
    kept = tuple(name for name in get_args(KeptName) if name in names)
    if not kept:
        return Recompute(granularity="full")
    return Recompute(granularity="policy", policy="custom", kept=kept)


def _named(text: str) -> tuple[str, ...]:
    """Return the tensors that a text names."""
    for spoken, name in SPOKEN.items():
        text = text.replace(spoken, name)
    return tuple(name for name in get_args(OffloadName) if re.search(rf"\b{name}\b", text))


def _policy(text: str, num_layers: int, pp: int, vpp: int, notes: Notes) -> Recompute:
    """Return the policy that `text` spells for a model of `num_layers` layers."""
    entry = first_match("recomputes", text)
    if not entry:
        known = "none, full, full-block(N layers) and selective(MODULES)"
        raise InexpressibleError(f"recompute {text!r} is not understood; {known} are")
    if "note" in entry:
        notes.append(entry["note"])
    result = re.search(entry["match"], text, re.IGNORECASE)
    named = result.groupdict() if result else {}
    if entry["granularity"] == "selective":
        modules = entry.get("modules") or named.get("modules", "").split("+")
        return Recompute(granularity="selective", modules=_modules(modules, text))
    if entry["granularity"] == "policy":
        if entry["policy"] == "custom":
            return _custom(entry.get("kept", _named(text)))
        return Recompute(granularity="policy", policy=entry["policy"])
    if "count" not in entry:
        return Recompute(granularity=entry["granularity"])
    per_chunk, value = math.ceil(num_layers / (pp * vpp)), int(named.get("layers") or 0)
    if entry["count"] in ("model", "half"):
        listed = range(0, num_layers, 2) if entry["count"] == "half" else _spread(value, num_layers)
        return Recompute(granularity="full", layer_ids=tuple(listed))
    layers = value if entry["count"] == "chunk" else math.ceil(value / vpp)
    return Recompute(granularity="full", num_layers=min(per_chunk, layers))


def _spread(count: int, num_layers: int) -> list[int]:
    """Return `count` layers, evenly spread."""
    return [index * num_layers // count for index in range(count)]


def _modules(names: list[str], text: str) -> tuple[Module, ...]:
    known = get_args(Module)
    unknown = [name for name in names if name not in known]
    if unknown:
        msg = f"recompute {text!r} names {unknown[0]!r}; the modules known are {', '.join(known)}"
        raise InexpressibleError(msg)
    return tuple(module for module in known if module in names)
