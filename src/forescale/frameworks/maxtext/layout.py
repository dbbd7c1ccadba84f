"""MaxText's keys as a layout: axes of the mesh, pipeline, rematerialisation, batch and types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any, Final, get_args

from forescale.errors import conflicts, differs, not_divisible, not_one_of, out_of_range, wrong_type
from forescale.frameworks.adapters import lora_words, targets_of
from forescale.frameworks.maxtext.command import topologies
from forescale.frameworks.reading import Options, explicit_fields, packaged
from forescale.frameworks.settings import Settings
from forescale.limits import whole_of
from forescale.spec.context import CONTEXT_KINDS, ContextKind
from forescale.spec.kinds import framework_names
from forescale.spec.layout import (
    KeptName,
    Kernels,
    Layout,
    Offload,
    OffloadName,
    Overlap,
    Recompute,
    RematPolicy,
    Routing,
)
from forescale.spec.model import Model
from forescale.spec.optimizers import OPTIMIZERS, OptimizerName
from forescale.spec.workload import ComputeType, StorageType
from forescale.struct import Struct
from forescale.units import counted

HALVES: Mapping[str, tuple[str, ...]] = {
    "attention": ("query", "key", "value", "out"),
    "mlp": ("wi_0", "wi_1", "wo"),
}
"""Products of a layer that adapters stand at, by what their modules are called."""
QUANTISED = ("nf4", "int8", "fp8")

LEFT = (
    "software", "kernels", "overlap", "flash_attention", "allocator", "graphs", "dispatcher", "stage_layers", "routing",
    "placement", "axis_order", "reshard",
)  # fmt: skip
"""What the keys say nothing of, but for single fields that they may say."""
WORDS: Final = packaged("maxtext", "words")
AXES: Final[list[str]] = WORDS["axes"]
"""Axes of parallelism, each inside a slice (ici) and over slices (dcn)."""
FULLY_SHARDED = 3
"""The stage that shards parameters, too."""
FREE = -1
"""Degree of the one axis that takes what the others leave."""
NODE = 8
"""Devices of a slice on GPUs, where a slice is a node, if nothing says how many slices there are."""
STRATEGIES: Mapping[str, ContextKind] = framework_names(CONTEXT_KINDS.values(), "maxtext")
STORAGE: Mapping[str, StorageType] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
OPTIMIZER_NAMES: Mapping[str, OptimizerName] = framework_names(OPTIMIZERS.values(), "maxtext")
NARROW: Mapping[str, tuple[ComputeType, str]] = {name: tuple(kind) for name, kind in WORDS["narrow"].items()}
"""Quantisation by our compute type and recipe."""
INTEGERS = ("intmp", "int4")
"""Quantisation without a compute type of ours, whose products run at the rate of int8."""
NAMES: Mapping[str, KeptName] = WORDS["names"]
"""Tensors of the policy custom by the name they have here."""
JOINED: Mapping[str, tuple[KeptName, ...]] = {name: tuple(kept) for name, kept in WORDS["joined"].items()}
"""Tensors of the policy custom that are several here."""
OFFLOADED: Mapping[str, tuple[KeptName, ...]] = {
    name: tuple(kept) for name, kept in WORDS["offloaded"].items()
}
"""Policies that keep what they keep on the host (utils/maxtext_utils.py, get_save_and_offload_names)."""
ATTENTION: Final = (
    *("autoselected", "dot_product", "flash", "cudnn_flash_te", "cudnn_flash_jax", "paged", "ragged"),
    *("gpu_flash_xla", "gpu_flash_triton", "vllm_rpa"),
)
"""Kernels of attention of any release (layers/attention_op.py); it stops at others."""
ALIASES: Mapping[str, RematPolicy] = {"minimal_flash": "minimal_with_context"}


class Mesh(Struct, frozen=True, kw_only=True):
    """Degrees of every axis, inside a slice and over slices."""

    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    stated: bool = True
    """Whether anything says how many devices there are; else an axis that takes the rest is 1."""

    def degree(self, *axes: str) -> int:
        """Return the ranks of some axes together."""
        return prod(self.ici[axis] * self.dcn[axis] for axis in axes)

    @property
    def split(self) -> tuple[str, ...]:
        """Keys of the axes that have more than one rank; of the first axis where none has."""
        networks = {"ici": self.ici, "dcn": self.dcn}
        texts = [
            f"{network}_{axis}_parallelism"
            for network, axes in networks.items()
            for axis in AXES
            if axes[axis] > 1
        ]
        return tuple(texts or [f"ici_{AXES[0]}_parallelism"])

    @property
    def num_devices(self) -> int:
        """Devices of all slices."""
        return self.degree(*AXES)


def read_mesh(settings: Settings, options: Options) -> Mesh:
    """Return the mesh with the axes that are -1 filled: from devices and slices that are known, else by 1."""
    ici, dcn = ({axis: _degree(settings, network, axis) for axis in AXES} for network in ("ici", "dcn"))
    devices, per_slice = _known_devices(settings, options)
    slices = _slices(settings, ici, dcn, devices)
    if devices is not None and devices % slices:
        settings.refuse(not_divisible("the number of devices", devices, slices, "the number of slices"))
    per_slice = per_slice if devices is None else devices // slices
    stated = per_slice is not None or FREE not in (*ici.values(), *dcn.values())
    dcn = _filled(settings, "dcn", dcn, slices, "slices")
    return Mesh(ici=_filled(settings, "ici", ici, per_slice, "devices of a slice"), dcn=dcn, stated=stated)


def _degree(settings: Settings, network: str, axis: str) -> int:
    key = f"{network}_{axis}_parallelism"
    value = settings.get(key)
    if value == FREE:
        return FREE
    return settings.size(key)


def _known_devices(settings: Settings, options: Options) -> tuple[int | None, int | None]:
    """Return the devices of the run, and those of a slice of the topology that it is compiled for."""
    named = settings.get("compile_topology")
    if options.num_devices is not None and options.layout:
        return options.num_devices, None
    if not named:
        return None, None
    known = topologies()
    if named not in known:
        settings.note(
            f"not understood: {settings.spell('compile_topology')} {named!r}; its devices are not known"
        )
        return None, None
    return None, known[str(named)]


def _slices(settings: Settings, ici: Mapping[str, int], dcn: Mapping[str, int], devices: int | None) -> int:
    """Return how many slices there are: as said, as the axes say, or as the devices leave."""
    for key in ("compile_topology_num_slices", "num_slices"):
        count = settings.get(key)
        if isinstance(count, int) and count > 0:
            return count
    least = prod(max(1, degree) for degree in dcn.values())
    inside = prod(ici.values())
    if FREE not in dcn.values() or devices is None:
        return least
    if inside > 0:
        return max(1, devices // inside)
    if settings.text("hardware", "tpu").startswith("gpu") and devices > NODE:
        settings.note(f"slices are taken as nodes of {NODE} devices; num_slices says otherwise")
        return devices // NODE
    return least


def _filled(
    settings: Settings, network: str, axes: Mapping[str, int], target: int | None, what: str
) -> dict[str, int]:
    free = [axis for axis, degree in axes.items() if degree == FREE]
    names = [settings.spell(f"{network}_{axis}_parallelism") for axis in free]
    if len(free) > 1:
        settings.refuse(conflicts(names, reason="both are -1", fix=f"leave one {network} axis at -1"))
    known = prod(degree for degree in axes.values() if degree != FREE)
    target = known if target is None else target
    if target % known or (target != known and not free):
        above = " x ".join(
            f"{settings.spell(f'{network}_{axis}_parallelism')} {degree}"
            for axis, degree in axes.items()
            if degree > 1
        )
        settings.refuse(differs(above or f"{network} axes of 1", known, what, target))
    return {axis: target // known if axis in free else degree for axis, degree in axes.items()}


def read_strategy(settings: Settings, mesh: Mesh, model: Model) -> Layout:
    """Return the layout; weights that are split over fsdp, context or experts are sharded as in stage 3.

    The width of experts is split over tensor parallel as that of all else (base.yml, rule mlp_moe).
    """
    _check_axes(settings, mesh)
    pp, tp = mesh.degree("pipeline"), mesh.degree("tensor", "tensor_sequence", "autoregressive")
    shards = mesh.degree("fsdp", "fsdp_transpose", "expert")
    cp = mesh.degree("context", "context_usp_ulysses", "context_autoregressive")
    replicas = mesh.degree("data", "diloco")
    sharded = shards > 1 or cp > 1
    over_data = settings.flag("shard_optimizer_over_data") and not sharded
    kind = settings.choice("context_parallel_strategy", "all_gather", STRATEGIES)
    recompute, offload = _recompute(settings), _offload(settings, sharded=sharded)
    return Layout(
        tp=tp,
        sp=tp > 1,
        cp=cp,
        cp_kind=kind,
        cp_balanced=settings.flag("context_parallel_load_balance"),
        cp_inner=mesh.degree("context_usp_ulysses") if CONTEXT_KINDS[kind].halves and cp > 1 else None,
        ep=mesh.degree("expert"),
        etp=tp if model.is_moe else 1,
        pp=pp,
        vpp=_repeats(settings, pp, model.num_layers),
        schedule="looped-bfs" if pp > 1 else None,
        dp_replicate=1 if over_data else replicas,
        dp_shard=replicas if over_data else shards,
        zero=FULLY_SHARDED if sharded else int(over_data),
        micro_batch_size=_micro_batch(settings, mesh, pp),
        recompute=recompute,
        offload=offload,
        flash_attention=settings.one_of("attention", "autoselected", ATTENTION) != "dot_product",
        reshard="never" if settings.flag("pipeline_fsdp_ag_once") else "always",
        overlap=Overlap(expert=settings.flag("use_batch_split_schedule")),
        routing=Routing(capacity_factor=_capacity(settings)),
        kernels=Kernels(cross_entropy="fused_linear", dropout=_drops_out(settings)),
    )


def told(settings: Settings, layout: Layout) -> dict[str, Any]:
    """Return what the keys say, in the words of a plan."""
    message = {
        "flash_attention": "attention" in settings and settings.get("attention") not in ("autoselected", ""),
        "reshard": layout.pp > 1 and layout.zero == FULLY_SHARDED,
    }
    alone = () if layout.cp > 1 else ("cp_kind", "cp_balanced")
    tables = {
        "kernels": [
            *["cross_entropy"] * (settings.count("num_vocab_tiling", 1) > 1),
            *["dropout"] * layout.kernels.dropout,
        ],
        "overlap": ["expert"] * layout.overlap.expert,
        "recompute": [name for name in Recompute.__struct_fields__ if name != "stops_early"],
        **({} if layout.routing.capacity_factor is None else {"routing": ["capacity_factor"]}),
    }
    return explicit_fields(
        layout, left=[*alone, *(name for name in LEFT if not message.get(name))], tables=tables
    )


def _check_axes(settings: Settings, mesh: Mesh) -> None:
    for axis, what in {
        "sequence": "the mesh has no such axis",
        "diloco": "projected as data parallelism",
    }.items():
        if mesh.degree(axis) > 1:
            settings.note(f"not expressed: {axis} parallelism of {mesh.degree(axis)} ({what})")


def _capacity(settings: Settings) -> float | None:
    factor = settings.number("capacity_factor")
    if factor is not None and factor > 0:
        return factor
    if settings.count("num_experts", 1) > 1 and not settings.flag("sparse_matmul", default=True):
        settings.note(
            f"not expressed: {settings.spell('sparse_matmul')} false without a capacity_factor computes every expert "
            "for every token; only those chosen are projected"
        )
    return None


def _drops_out(settings: Settings) -> bool:
    rate = settings.number("dropout_rate") or 0.0
    return rate > 0.0 and settings.flag("enable_dropout", default=True)


def _repeats(settings: Settings, pp: int, num_layers: int) -> int:
    """Return the chunks of each stage, which hold as many layers each; of DeepSeek's only those with experts do."""
    if pp == 1:
        return 1
    size = settings.size("num_layers_per_pipeline_stage")
    num_pipeline_repeats = settings.get("num_pipeline_repeats")
    pipeline_parallel_layers = settings.get("pipeline_parallel_layers")
    dense = settings.count("first_num_dense_layers", 0) if settings.get("decoder_block") == "deepseek" else 0
    piped = (
        pipeline_parallel_layers
        if isinstance(pipeline_parallel_layers, int) and pipeline_parallel_layers > 0
        else num_layers - dense
    )
    repeats = (
        num_pipeline_repeats
        if isinstance(num_pipeline_repeats, int) and num_pipeline_repeats > 0
        else piped // (pp * size)
    )
    if piped != pp * repeats * size:
        terms = f"{pp} stages x num_pipeline_repeats x num_layers_per_pipeline_stage {size}"
        settings.refuse_key(not_divisible, "pipeline_parallel_layers", piped, pp * size, terms)
    if piped != num_layers:
        settings.note(
            f"not expressed: only {piped} of {num_layers} layers are in MaxText's pipeline; all are projected in it"
        )
    return repeats


def pipeline_microbatches(settings: Settings, pp: int) -> int:
    """Return the micro-batches of one pass through the pipeline."""
    if pp == 1:
        return 1
    num_pipeline_microbatches = settings.get("num_pipeline_microbatches")
    delays = settings.flag("pipeline_delay_activation_forwarding")
    count = (
        num_pipeline_microbatches
        if isinstance(num_pipeline_microbatches, int) and num_pipeline_microbatches > 0
        else (2 * pp if delays else pp)
    )
    if count % pp:
        settings.refuse_key(not_divisible, "num_pipeline_microbatches", count, pp, "the number of stages")
    return count


def sequences(settings: Settings, num_devices: int) -> int:
    """Return the sequences of one pass: per_device_batch_size, which may be below 1, of every device."""
    number = settings.number("per_device_batch_size") or 0.0
    whole = int(num_devices * number)
    if whole < 1:
        key = f"{settings.spell('per_device_batch_size')} of {counted(num_devices, 'device')}"
        settings.refuse(out_of_range(key, number, f"{1 / num_devices:g} or more, which makes one sequence"))
    if whole != num_devices * number:
        settings.note(
            f"per_device_batch_size {number:g} x {num_devices} devices is cut to {counted(whole, 'sequence')}"
        )
    return whole


def _micro_batch(settings: Settings, mesh: Mesh, pp: int) -> int:
    """Return the sequences of a micro-batch on each data-parallel rank."""
    ranks = mesh.degree("data", "diloco", "fsdp", "fsdp_transpose", "expert")
    passes = pipeline_microbatches(settings, pp)
    whole = sequences(settings, mesh.num_devices)
    if whole % (ranks * passes):
        least = ranks * passes / mesh.num_devices
        terms = f"{counted(ranks, 'data-parallel rank')} x {counted(passes, 'micro-batch')}"
        key = f"the sequences of {settings.spell('per_device_batch_size')},"
        settings.refuse(not_divisible(key, whole, ranks * passes, terms, f"{least:g} is the least"))
    return whole // (ranks * passes)


def _recompute(settings: Settings) -> Recompute:
    named = str(settings.get("remat_policy"))
    named = ALIASES.get(named, named)
    if named in (
        "full",
        "none",
    ):  # without a policy layers are made again as a whole (decoders.py, set_remat_policy)
        return Recompute(granularity="full")
    if named in OFFLOADED:
        return Recompute(granularity="policy", policy="custom", kept=OFFLOADED[named])
    if named == "custom":
        kept = [*_where(settings, "device"), *_where(settings, "offload")]
        return Recompute(granularity="policy", policy="custom", kept=_ordered(kept))
    if named not in get_args(RematPolicy):
        known = (
            "full",
            *OFFLOADED,
            *(name for name in get_args(RematPolicy) if not name.startswith("torch")),
        )
        settings.refuse_key(not_one_of, "remat_policy", named, known)
    return Recompute(granularity="policy", policy=named)  # type: ignore[arg-type]


def _ordered(names: list[KeptName]) -> tuple[KeptName, ...]:
    return tuple(name for name in get_args(KeptName) if name in names)


def _where(settings: Settings, place: str) -> list[KeptName]:
    """Return the tensors that the policy custom puts somewhere."""
    kept_names: list[KeptName] = []
    for key in (*NAMES, *JOINED):
        word = settings.get(key)
        if word not in ("remat", "device", "offload"):
            settings.refuse_key(not_one_of, key, word, ("remat", "device", "offload"))
        if word == place:
            kept_names += JOINED.get(key) or (NAMES[key],)
    return kept_names


def _offload(settings: Settings, *, sharded: bool) -> Offload:
    policy = str(settings.get("remat_policy"))
    names: list[OffloadName] = list(OFFLOADED.get(policy, ()))
    if policy == "custom":
        inputs = settings.get("decoder_layer_input") == "offload"
        names = [*["decoder_layer_input"] * inputs, *_where(settings, "offload")]  # type: ignore[list-item]
    parameters = settings.flag("parameter_memory_host_offload")
    if parameters and not sharded:
        settings.note("not expressed: parameter_memory_host_offload of weights that are not sharded")
    return Offload(
        modules=tuple(name for name in get_args(OffloadName) if name in names),
        optimizer=1.0 if settings.flag("optimizer_memory_host_offload") else 0.0,
        parameters=parameters and sharded,
    )


def read_workload(settings: Settings, mesh: Mesh, model: Model) -> dict[str, Any]:
    """Return batch, length and types."""
    steps = settings.size("gradient_accumulation_steps")
    pp = mesh.degree("pipeline")
    batch = sequences(settings, mesh.num_devices) * steps
    if steps > 1 and pp > 1:
        settings.note(
            f"the pipeline fills and drains for each of {steps} gradient_accumulation_steps; projected as one pass"
        )
    length = settings.size("max_target_length")
    run = settings.count("steps") if "steps" in settings else None
    named = settings.choice("opt_type", "adamw", OPTIMIZER_NAMES)
    return {
        "seq_len": length,
        "global_batch_size": batch,
        "tokens": float(run * batch * length) if run else None,
        "optimizer": named,
        "precision": {**_types(settings), **_frozen(settings)},
        **({"trainable": adapters} if (adapters := _adapters(settings) or _tower(settings, model)) else {}),
    }


def _lora(settings: Settings) -> Mapping[str, Any]:
    table = settings.get("lora")
    return table if isinstance(table, Mapping) and table.get("enable_lora") else {}


def _adapters(settings: Settings) -> dict[str, Any]:
    """Return adapters by the names in the expression for their modules: without any name all of its half, or all."""
    table = _lora(settings)
    if not table:
        return {}
    rank = whole_of(str(table.get("lora_rank")))
    if not rank:
        settings.refuse(out_of_range("lora.lora_rank", table.get("lora_rank"), "1 or more"))
    path = str(table.get("lora_module_path") or "")
    parts = set(re.findall(r"\w+", path))
    names = [item for half in HALVES.values() for item in half if item in parts]
    for half, item in HALVES.items():
        if half in path and not parts & set(item):
            names += item
    return lora_words(
        rank, targets_of(names or [entry for item in HALVES.values() for entry in item], settings.refuse)
    )


def _tower(settings: Settings, model: Model) -> dict[str, Any]:
    """Return that the tower is frozen, unless it is told to be trained; the projector never is (layers/encoders.py)."""
    frozen = model.vision is not None and settings.flag("freeze_vision_encoder_params")
    return {"frozen": ["vision"]} if frozen else {}


def _frozen(settings: Settings) -> dict[str, str]:
    """Return the type of frozen weights."""
    kind = _lora(settings).get("lora_weight_qtype")
    if not kind:
        return {}
    if kind not in QUANTISED:
        settings.refuse(not_one_of("lora.lora_weight_qtype", kind, QUANTISED))
    return {"frozen": str(kind)}


def _types(settings: Settings) -> dict[str, Any]:
    """Return the data types; fp32 weights with bf16 products are what the framework's record knows."""
    kind, weights = (settings.choice(key, "bfloat16", STORAGE) for key in ("dtype", "weight_dtype"))
    if kind == "fp32":
        return {"compute": "fp32"}
    values: dict[str, Any] = {"compute": kind}
    narrow = settings.text("quantization")
    if narrow in NARROW:
        values["compute"], values["recipe"] = NARROW[narrow]
    elif narrow in INTEGERS:
        values |= {"compute": "int8", "recipe": "none"}
        settings.note(
            f"{settings.spell('quantization')} {narrow}: its products are projected at the rate of int8"
        )
    elif narrow:
        known = ", ".join((*NARROW, *INTEGERS))
        settings.refuse_key(wrong_type, "quantization", narrow, f"empty or one of {known}")
    if weights != "fp32":
        values |= {"parameters": weights, "master": "none", "moments": weights}
    first = settings.text("mu_dtype")
    if first in STORAGE and STORAGE[first] != weights:
        values |= {"moments": STORAGE[first], "second_moments": weights}
    if settings.get("grad_dtype") not in ("float32", None):
        values["gradients"] = settings.choice("grad_dtype", "float32", STORAGE)
    return values
