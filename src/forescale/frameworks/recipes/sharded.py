"""Trainers that shard models over data-parallel ranks with FSDP: settings by our names as layout and workload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import lcm
from pathlib import Path
from typing import Any, Final

from forescale import wording
from forescale.errors import MissingFact, UnknownNameError
from forescale.files import is_file
from forescale.frameworks.adapters import lora_words, targets_of
from forescale.frameworks.huggingface import load_huggingface
from forescale.frameworks.megatron.model import read_model
from forescale.frameworks.reading import DEVICES, Options, ParsedFile, explicit_fields, packaged
from forescale.frameworks.settings import Settings
from forescale.spec.layout import Kernels, Layout, Offload, Recompute
from forescale.spec.model import Model
from forescale.spec.optimizers import OPTIMIZERS
from forescale.units import counted

OVER: Final = {
    name: name for name in ("tp", "cp", "pp", "ep", "micro_batch_size", "global_batch_size", "seq_len")
}
LEFT: Final = ("software", "kernels", "flash_attention", "allocator", "graphs", "dispatcher", "overlap")
"""Fields of a layout that these recipes leave to the framework."""
RECOMPUTE: Final = {"recompute": ("granularity",)}
TABLES: Final = {**RECOMPUTE, "kernels": ("updates_in_backward",)}
"""Fields of tables that a recipe sets whose optimizer runs in backward."""
FAMILIES: Final = re.compile(
    r"[-_](?:instruct|base|chat|hf|it|pt|sft|v0\.[123]|2407|2409|thinking)$", re.IGNORECASE
)
"""Endings of a model's name that do not change its dimensions."""


def read_sharded(settings: Settings, form: str, framework: str, path: Path, options: Options) -> ParsedFile:
    """Return what settings by our names say."""
    settings.override(options.over, OVER)
    missing: list[MissingFact] = []
    model = named_model(settings, path, options, missing)
    layout, devices = _layout(settings, options, missing)
    workload = dict(_workload(settings, layout))
    return ParsedFile(
        format=form,
        model=model,
        framework=framework,
        layout_fields=explicit_fields(
            layout, left=LEFT, tables=TABLES if layout.kernels.updates_in_backward else RECOMPUTE
        ),
        workload_fields=workload,
        num_devices=devices,
        missing=tuple(missing),
        **settings.accounted(()),
    )


def named_model(settings: Settings, path: Path, options: Options, missing: list[MissingFact]) -> Model | None:
    """Return the model: its dimensions, a file or folder next to the recipe, or a catalogue model by its name."""
    if "hidden_size" in settings:
        return read_model(settings, name=path.stem, options=options)
    named = settings.text("model")
    place = path.parent / named
    if named and (is_file(place) or is_file(place / "config.json")):
        return load_huggingface(place).model
    for name in _names(named) if options.model_of is not None else ():
        try:
            return options.model_of(name)  # type: ignore[misc]
        except UnknownNameError:
            continue
    example = "--model qwen3-30b-a3b" if settings.degree("ep") > 1 else "--model llama-3.1-8b"
    reason = f"{named} is not in the catalogue" if named else "the recipe names none"
    missing.append(MissingFact("the model", "--model NAME|config.json", example, "model", reason))
    return None


def _names(text: str) -> Iterator[str]:
    """Yield names that a path or a name on the Hugging Face hub may stand for."""
    name = text.rstrip("/").rpartition("/")[2]
    while name:
        yield name
        yield re.sub(r"^(?:meta-|meta_)", "", name, flags=re.IGNORECASE)
        shorter = FAMILIES.sub("", name)
        if shorter == name:
            return
        name = shorter


def _layout(settings: Settings, options: Options, missing: list[MissingFact]) -> tuple[Layout, int | None]:
    tp, cp, pp, ep = (settings.degree(name) for name in ("tp", "cp", "pp", "ep"))
    inner = tp * cp * pp
    devices = _devices(settings, options, inner)
    if devices is None and options.layout:
        example = f"--devices {example_of(settings, tp * cp, pp, ep)}"
        missing.append(DEVICES._replace(example=example, reason="the launcher sets it"))
    stated = settings.raw("dp_replicate")
    replicas = stated if isinstance(stated, int) and stated > 0 else 1
    dp = (devices or lcm(lcm(tp * cp, ep) * pp, inner * replicas)) // inner
    if devices is not None and devices % inner:
        fix = f"give --devices {-(-devices // inner) * inner}, or other degrees"
        settings.refuse(wording.not_divisible("the number of devices", devices, inner, "tp x cp x pp", fix))
    shards = dp > 1 or settings.flag("offload_parameters")
    zero = settings.count("zero", 3 if shards else 0)
    replicas = _replicas(settings, dp) if zero else dp
    full = settings.flag("recompute")
    layout = Layout(
        tp=tp,
        sp=tp > 1 and settings.flag("sp"),
        cp=cp,
        cp_kind=settings.choice(
            "cp_kind", "ring", {"ring": "ring", "ulysses": "ulysses", "all_gather": "all_gather"}
        ),
        pp=pp,
        ep=ep,
        dp_replicate=replicas,
        dp_shard=dp // replicas,
        zero=zero,
        micro_batch_size=settings.size("micro_batch_size", 1) * settings.size("sequences", 1),
        recompute=Recompute(granularity="full" if full else "none"),
        offload=Offload(
            parameters=settings.flag("offload_parameters"),
            optimizer=1.0 if settings.flag("offload_optimizer") else 0.0,
            paged="paged" in (settings.text("optimizer", "") or "").lower(),
        ),
        kernels=Kernels(updates_in_backward=settings.flag("updates_in_backward")),
    )
    return layout, devices


def example_of(settings: Settings, inner: int, pp: int, ep: int) -> int:
    """Return a number of devices that degrees and batch allow, 8 or more if any is."""
    least, micro = lcm(inner, ep) * pp, settings.size("micro_batch_size", 1)
    batch = settings.count("global_batch_size")
    counts = [least * times for times in range(1, 65)]
    fits = [count for count in counts if batch is None or batch % (count // (inner * pp) * micro) == 0]
    return next((count for count in fits if count >= DEFAULT), fits[-1] if fits else least)


DEFAULT: Final = 8
"""Devices of an example: those of a node."""


def _devices(settings: Settings, options: Options, inner: int) -> int | None:
    """Return the devices: those of the caller, nodes times devices of a node, or the product of all degrees."""
    if options.num_devices is not None or not options.layout:
        return options.num_devices
    nodes, per_node = settings.count("num_nodes"), settings.count("devices_per_node")
    if per_node:
        if settings.spell("devices_per_node") != "devices_per_node":
            settings.note_devices(
                (nodes or 1) * per_node, "devices_per_node", *(["num_nodes"] if nodes else [])
            )
        return (nodes or 1) * per_node
    shard, replicate = settings.raw("dp_shard"), settings.raw("dp_replicate")
    if isinstance(shard, int) and shard > 0:
        keys = [key for key in ("dp_shard", "dp_replicate", "tp", "cp", "pp") if key in settings]
        count = shard * (replicate if isinstance(replicate, int) and replicate > 0 else 1) * inner
        settings.note_devices(count, *keys)
        return count
    return None


def _replicas(settings: Settings, dp: int) -> int:
    """Return the groups of ranks that hold whole states: as stated, or one for each node under hybrid sharding."""
    stated = settings.raw("dp_replicate")
    count = stated if isinstance(stated, int) and stated > 0 else 1
    if settings.flag("hybrid") and stated is None:
        count = settings.count("num_nodes") or (1 if dp % DEFAULT else dp // DEFAULT)
    if dp % count:
        settings.refuse(wording.not_a_factor("the number of replicas", count, dp, "the data-parallel ranks"))
    return count


def _workload(settings: Settings, layout: Layout) -> Iterator[tuple[str, Any]]:
    length = settings.count("seq_len")
    if length:
        yield "seq_len", length
    steps, batch = settings.count("accumulation"), settings.count("global_batch_size")
    if batch is None and (steps or settings.flag("by_accumulation")):
        batch = layout.micro_batch_size * (steps or 1) * layout.dp
    if batch is not None:
        _check_batch(settings, layout, batch)
        yield "global_batch_size", batch
    count = settings.count("max_steps")
    if count and batch and length:
        yield "tokens", float(count * batch * length)
    optimizer, moments = _optimizer(settings)
    if "packing" in settings:
        yield "varied_lengths", not settings.flag("packing")
    if reference := settings.text("reference"):
        yield "reference", reference
    yield "optimizer", optimizer
    yield "precision", {**_precision(settings), **moments}
    if rank := settings.count("lora_rank", 0):
        targets = targets_of(settings.words("lora_targets") or ("q_proj", "v_proj"), settings.refuse)
        dropout = settings.number("lora_dropout") or 0.0
        yield "trainable", lora_words(rank, tuple(dict.fromkeys(targets)), dropout=dropout)


def _optimizer(settings: Settings) -> tuple[str, dict[str, str]]:
    """Return the optimizer, and the type of its moments where that is not the one of the weights."""
    named = settings.text("optimizer", "adamw")
    bare = named.rpartition(".")[2].lower()
    plain = re.sub(r"^(?:fused|cpu|paged|decoupled_?)|_?(?:fp8|[84]bit)$", "", bare)
    optimizer = packaged("recipes", "common")["optimizers"].get(plain, plain)
    if optimizer not in OPTIMIZERS:
        settings.warnings.append(
            f"not modelled, may change memory: the states of {named} are taken as AdamW's"
        )
        optimizer = "adamw"
    for word, text in packaged("trainers", "optimizers")["note"].items():
        if word in bare:
            effect = "step time" if word == "paged" else "memory"
            settings.warnings.append(f"not modelled, may change {effect}: {text}")
    if bare.endswith(("8bit", "4bit", "fp8")):
        return optimizer, {"moments": "fp8"}
    return optimizer, {"moments": "fp32"} if named.startswith("bitsandbytes.") else {}


def _check_batch(settings: Settings, layout: Layout, batch: int) -> None:
    step = layout.dp * layout.micro_batch_size
    if batch % step:
        terms = f"micro_batch_size {layout.micro_batch_size} x {counted(layout.dp, 'data-parallel rank')}"
        settings.refuse_key(wording.not_divisible, "global_batch_size", batch, step, terms)


def _precision(settings: Settings) -> dict[str, str]:
    types = dict(settings.choice("precision", "bf16", packaged("recipes", "common")["precisions"]))
    if isinstance(kept := settings.raw("kept_types"), dict):
        types |= kept
    if frozen := settings.get("frozen_type"):
        types["frozen"] = str(frozen)
    return types
