"""What the settings of a trainer mean, by the keys of TrainingArguments and TRL: layout, workload, missing facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt, prod
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import MissingFact, ReaderError, UnknownNameError
from forescale.files import parse_json, read_text
from forescale.frameworks.deepspeed.reader import BUCKET, LEFT, parse_loosely, read_config
from forescale.frameworks.huggingface import load_huggingface
from forescale.frameworks.reading import DEVICES, Options, ParsedFile, explicit_fields, packaged
from forescale.frameworks.settings import Settings
from forescale.frameworks.trainers.accelerated import lay_kernels
from forescale.frameworks.trainers.facts import (
    CONFIGURATION,
    IMAGES,
    decided_by,
    without_facts,
)
from forescale.frameworks.trainers.precision import UNSCALED, compute_of, frozen_type
from forescale.frameworks.trainers.run import (
    MICRO,
    STEPS,
    Training,
    assume,
    found_by_end,
    neighbour_of,
    note_namesake,
    required,
)
from forescale.frameworks.trainers.stages import SAMPLED, WITH_LOGITS, is_paired, lay_stage, stage_of
from forescale.frameworks.trainers.tuning import trainable_of
from forescale.spec.layout import Layout, Offload
from forescale.spec.model import Model
from forescale.syntax import parse_mapping

ONE_UNIT: Final = (
    "fsdp without auto_wrap: transformers 5 wraps each layer; "
    "before, the model was one unit (--fsdp-unit model)"
)
NO_SHARDING: Final = (
    "neither deepspeed nor fsdp is given: plain data parallelism; --config FILE gives accelerate's file"
)


def read_training(run: Training, options: Options) -> ParsedFile:
    """Return what a run trains, and how."""
    settings = run.settings
    model = model_of(run, options)
    launched = run.num_devices or (run.launch.num_devices if run.launch is not None else None)
    devices = options.num_devices or launched or _degrees(settings)
    if devices is None:
        run.missing.append(DEVICES)
    _lay_batch(run, devices)
    base = _sharding(run, replace(options, num_devices=devices), model)
    pairs, micro = 2 if is_paired(settings) else 1, settings.size(MICRO, 8)
    batch = micro * settings.size(STEPS, 1) * _dp(base)
    if (options.over.get("images") or {}).get("count") == 0:
        settings.set("image_max_pixels", 0)
    if run.launch is None:
        micro = base.layout_fields.get("micro_batch_size", micro)
        batch = base.workload_fields.get("global_batch_size", batch)
    _check_batch(run, base, batch)
    layout = _with_activations({**base.layout_fields, "micro_batch_size": pairs * micro}, settings)
    workload = {**base.workload_fields, "global_batch_size": batch * pairs}
    workload |= _workload(
        run, workload, model, is_sharded=base.framework != "transformers" or layout["zero"] > 0
    )
    if base.framework == "transformers":
        lay_kernels(settings, layout, workload)
    lay_stage(settings, run.form, workload)
    _assume_of_program(run)
    parsed = replace(
        base,
        format=run.form,
        model=model,
        layout_fields=layout,
        workload_fields=workload,
        num_devices=devices,
        warnings=(*run.warnings, *_assumed(run), *settings.warnings),
        missing=tuple(run.missing),
        used=(*settings.used(), *base.used),
        ignored=(*settings.unread(), *base.ignored),
        notes=tuple(dict.fromkeys((*settings.notes, *base.notes))),
        phase=settings.phase,
    )
    return without_facts(parsed, _open_batch(run, devices))


def _check_batch(run: Training, base: ParsedFile, batch: int) -> None:
    """Warn of a batch of DeepSpeed's file that is not that of the arguments."""
    whole = (run.launch or base).workload_fields.get("global_batch_size")
    stated = run.settings.size(MICRO, 8) * run.settings.size(STEPS, 1) * _dp(base)
    if MICRO in run.settings and whole not in (None, stated):
        run.warnings.append(
            f"DeepSpeed's file makes a batch of {whole}, the arguments one of {stated}: the Trainer refuses that, a "
            f"loop of its own takes the file's; {batch} is projected (--global-batch-size, --micro-batch-size)"
        )


def _open_batch(run: Training, devices: int | None) -> list[MissingFact]:
    """Return the batches that a person's own program leaves open."""
    whole = "train_batch_size" in run.settings
    if not run.program or MICRO in run.settings or (whole and run.form != "trainer"):
        return []
    return decided_by(run.program, devices)[: 1 if whole else 2]


def _lay_generations(run: Training, devices: int | None) -> None:
    """Set the sequences of a rank where its batch counts prompts: it holds no whole group of generations."""
    settings = run.settings
    count, micro = settings.count("num_generations", least=1), settings.size(MICRO, 8)
    whole = micro * settings.size(STEPS, 1) * (devices or 1)
    if run.form != "trainer" or stage_of(settings) != "grpo" or not count or whole % count == 0:
        return
    settings.set(MICRO, micro * count)
    run.warnings.append(
        f"a batch of {whole} holds no whole group of num_generations {count}: TRL until 0.14 counts prompts, unsloth "
        f"raises it, later releases refuse it; {micro * count} sequences of a device are projected (--micro-batch-size)"
    )


def _lay_batch(run: Training, devices: int | None) -> None:
    """Set the accumulation of a program that takes the sequences of a step, of each rank or, as OpenRLHF, of all.

    ms-swift accumulates at least 16 sequences a step where nothing is given, except those that it samples.
    """
    settings = run.settings
    if run.form == "swift" and STEPS not in settings and stage_of(settings) != "grpo":
        settings.set(STEPS, max(1, -(-16 // (settings.size(MICRO, 1) * (devices or 1)))))
    if (local := settings.count("batch_size", least=1)) and STEPS not in settings:
        settings.set(STEPS, max(1, local // settings.size(MICRO, 1)))
    if re.search(r"split_batches\W+true", str(settings.get("accelerator_config")).lower()):
        split = max(1, settings.size(MICRO, 8) // (devices or 1))
        settings.note(f"split_batches: the {settings.size(MICRO, 8)} sequences are those of all ranks")
        settings.set(MICRO, split)
    _lay_generations(run, devices)
    if settings.flag("auto_find_batch_size"):
        run.warnings.append(
            "auto_find_batch_size: the batch of a device is halved where memory runs out; it is projected whole"
        )
    whole = settings.count("train_batch_size", least=1)
    if whole is None:
        return
    inner = settings.degree("context_parallel_size") * settings.degree("tensor_parallel_size")
    dp, micro = max(1, (devices or inner) // inner), settings.size(MICRO, 8)
    steps = max(1, whole // (micro * dp))
    settings.set(STEPS, steps)
    if steps * micro * dp != whole:
        settings.note(
            f"{settings.spell('train_batch_size')} {whole} becomes {steps * micro * dp} on {dp} ranks"
        )


DEGREES: Final = (
    "dp_shard_size",
    "dp_replicate_size",
    "tensor_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
)


def _degrees(settings: Settings) -> int | None:
    """Return the devices that degrees amount to, if that of FSDP is among them."""
    if not {"dp_shard_size", "expert_parallel_size"} & {key for key in DEGREES if key in settings}:
        return None
    settings.note_devices(
        devices := prod(settings.degree(key) for key in DEGREES), *filter(settings.get, DEGREES)
    )
    return devices


def _dp(base: ParsedFile) -> int:
    fields = base.layout_fields
    return int(fields.get("dp_replicate", 1) * fields.get("dp_shard", 1))


def model_of(run: Training, options: Options) -> Model | None:
    """Return the model of --model, a folder or a file next to it, or a catalogue model; it is missing otherwise."""
    if options.model is not None:
        return _with_images(run, options.model)
    settings = run.settings
    named = next(filter(None, map(settings.get, ("config_name", "model_name_or_path", "load"))), None)
    reason = "the file names none"
    if isinstance(named, str):
        place = neighbour_of(run.folder, named) or neighbour_of(run.folder, f"{named}/config.json")
        try:
            if place is not None:
                return _with_images(run, load_huggingface(place).model)
            if options.model_of is not None:
                return _with_images(run, options.model_of(re.sub(r"(?:[-_]mcore)?/*$", "", named)))
        except UnknownNameError:
            key = "model_name_or_path" if "model_name_or_path" in settings else "load"
            reason = f"{settings.spell(key)}: {named} is not in the catalogue"
        except ReaderError as error:
            if not run.program:
                raise
            reason = str(error)
    run.missing.append(
        MissingFact("the model", "--model NAME|config.json", "--model llama-3.1-8b", "model", reason)
    )
    return None


def _with_images(run: Training, model: Model) -> Model:
    """Return a model; if it has a vision tower, the images of a sequence are missing."""
    if model.vision is not None:
        shown = "--images 1 --image-size 448" if run.settings.flag("freeze_text") else IMAGES.example
        run.missing.append(IMAGES._replace(example=shown))
    return model


def _sharding(run: Training, options: Options, model: Model | None) -> ParsedFile:
    """Return how states are dealt to devices, with the batch and the types where DeepSpeed's file has them."""
    settings = run.settings
    if run.launch is not None:
        fields = dict(run.launch.layout_fields)
        dp = max(1, (options.num_devices or 1) // (fields.get("tp", 1) * fields.get("cp", 1)))
        replicas = fields.get("dp_replicate", 1) if fields.get("zero") else dp
        fields |= {"dp_replicate": replicas, "dp_shard": max(1, dp // replicas)}
        return replace(run.launch, layout_fields=fields, framework=_record(run.launch.framework))
    named = settings.get("deepspeed_config") or settings.get("deepspeed")
    if isinstance(named, list):
        named = str(named[0])
    if named is True:
        named = _staged(run)
    if isinstance(named, str | Mapping) and named:
        return _deepspeed(run, named, options, model)
    words, table = _fsdp(run)
    is_sharded = bool(words or table or "fsdp_version" in settings or settings.degree("dp_shard_size") > 1)
    zero, hybrid = _stage(settings, words, table) if is_sharded else (0, False)
    if not is_sharded and run.form == "trainer":
        settings.note(NO_SHARDING)
    if zero > 1 and words and not {"auto_wrap", "fsdp2"} & words and settings.get("fsdp") is not True:
        settings.note(ONE_UNIT)
    return _data_parallel(run, options, zero, table, hybrid=hybrid, offloads="offload" in words)


def _fsdp(run: Training) -> tuple[set[str], dict[str, Any]]:
    """Return the words of `fsdp` and the table of `fsdp_config`, its keys without "fsdp_"; either may be a file."""
    settings = run.settings
    named, inner = " ".join(settings.words("fsdp")), settings.get("fsdp_config")
    words = {named} if named.endswith(".json") else set(settings.words("fsdp")) - {"True", "False"}
    if named := next((str(name) for name in (*words, inner) if str(name).endswith(".json")), ""):
        file = required(run.folder, settings, "fsdp", named)
        content = parse_mapping(read_text(file), file, parse_json)
        words = {*words - {named}, *str(content.get("fsdp", "full_shard")).split()}
        inner = content.get("fsdp_config", content)
    if settings.get("fsdp") is True:
        words |= {"full_shard"}
    table = inner if isinstance(inner, Mapping) else {}
    return words, {str(key).removeprefix("fsdp_"): value for key, value in table.items()}


def _data_parallel(
    run: Training, options: Options, zero: int, table: Mapping[str, Any], *, hybrid: bool, offloads: bool
) -> ParsedFile:
    """Return the layout of FSDP or of plain data parallelism on the devices."""
    settings = run.settings
    tp, cp = settings.degree("tensor_parallel_size"), settings.degree("context_parallel_size")
    ep = settings.degree("expert_parallel_size")
    devices = options.num_devices or tp * cp * ep
    if devices % (tp * cp):
        settings.refuse(
            wording.not_divisible("the number of devices", devices, tp * cp, "tensor × context parallelism")
        )
    dp = devices // (tp * cp)
    replicas = (
        settings.degree("dp_replicate_size")
        if "dp_replicate_size" in settings or not hybrid
        else -(-devices // 8)
    )
    _check_ranks(settings, ep, replicas, dp if options.num_devices else None)
    if dp % replicas:
        settings.refuse_key(wording.not_a_factor, "dp_replicate_size", replicas, dp)
    layout = Layout(
        tp=tp,
        sp=False,
        cp=cp,
        cp_kind=settings.text("cp_kind", "ring"),  # type: ignore[arg-type]
        ep=ep,
        dp_replicate=replicas if zero else dp,
        dp_shard=dp // replicas if zero else 1,
        zero=zero,
        micro_batch_size=settings.size(MICRO, 8),
        offload=Offload(parameters=zero == 3 and bool(offloads or table.get("offload_params"))),
    )
    if table.get("activation_checkpointing"):
        settings.set("gradient_checkpointing", value=True)
    left = (*LEFT, "overlap")
    return ParsedFile(
        format=run.form, framework="transformers", layout_fields=explicit_fields(layout, left=left)
    )


def _check_ranks(settings: Settings, ep: int, replicas: int, dp: int | None) -> None:
    """Refuse degrees that do not amount to the data-parallel ranks; warn of dense weights next to experts."""
    shard = settings.count("dp_shard_size")
    if shard and dp is not None and shard * ep * replicas != dp:
        sizes = f"dp_shard_size × dp_replicate_size{' × expert_parallel_size' * (ep > 1)}"
        settings.refuse(wording.differs(sizes, shard * ep * replicas, "devices / (tp × cp)", dp))
    if ep > 1 and shard:
        settings.warnings.append(
            f"{settings.spell('expert_parallel_size')}: dense weights are projected as sharded over the "
            f"{shard * ep} ranks of experts and shards together, not over the {shard} of dp_shard_size"
        )


def _record(framework: str | None) -> str:
    """Return the record of what distributes the training; FSDP under a trainer is that of transformers."""
    return "transformers" if framework in (None, "torch-fsdp") else str(framework)


def _stage(settings: Settings, words: set[str], table: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the ZeRO stage that FSDP 1 or 2 amounts to, and whether nodes hold whole states."""
    known = (
        "full_shard",
        "shard_grad_op",
        "no_shard",
        "hybrid_shard",
        "hybrid_shard_zero2",
        "offload",
        "auto_wrap",
    )
    for word in sorted(words - {*known, "fsdp", "fsdp2"}):
        settings.refuse(wording.not_one_of("fsdp", word, known))
    strategy = str(table.get("sharding_strategy", "")).lower()
    if strategy.isdigit():
        strategy = known[{1: 0, 2: 1, 3: 2, 4: 3, 5: 4}.get(int(strategy), 0)]
    kinds = words | {strategy}
    if table.get("reshard_after_forward") is False or {"shard_grad_op", "hybrid_shard_zero2"} & kinds:
        return 2, "hybrid_shard_zero2" in kinds
    return (0, False) if "no_shard" in kinds else (3, "hybrid_shard" in kinds)


def _deepspeed(
    run: Training, named: str | Mapping[str, Any], options: Options, model: Model | None
) -> ParsedFile:
    """Return what DeepSpeed's configuration says, with what the trainer fills in."""
    settings = run.settings
    content, place = (named, Path(settings.where)) if isinstance(named, Mapping) else _by_name(run, named)
    batch = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", STEPS), "auto")
    known = {key: value for key in batch if isinstance(value := content.get(key), int)}
    micro = known.get("train_micro_batch_size_per_gpu")
    if micro and "train_batch_size" in known:
        batch.pop(STEPS)  # which then follows from the two
    elif "train_batch_size" in known and options.num_devices:
        micro = known["train_batch_size"] // (options.num_devices * known.get(STEPS, 1))
    if run.program and micro and MICRO not in settings:
        settings.set(MICRO, micro)
    whole: dict[str, Any] = {**batch, **content}
    if whole.pop("pipeline", None) is not None:
        settings.note(
            f"{place.name}: pipeline counts for programs that build a PipelineModule, not for a Trainer"
        )
    if (cp := settings.degree("context_parallel_size")) > 1:
        whole.setdefault("sequence_parallel_size", cp)
    if (tp := settings.degree("tensor_parallel_size")) > 1:
        whole.setdefault("tensor_parallel", {"autotp_size": tp})
    kind = compute_of(settings)
    if (
        kind in ("bf16", "fp16")
        and kind not in whole
        and not any(map(_is_on, map(whole.get, ("bf16", "fp16"))))
    ):
        whole[kind] = {"enabled": True}  # as Accelerate does (set_mixed_precision)
    inner = read_config(whole, place, options, _filled(settings, model))
    types = inner.workload_fields["precision"]
    if types["compute"] == "tf32" and "tf32" in settings and not settings.flag("tf32"):
        types["compute"] = "fp32"
    kinds = {"cp_kind": settings.text("cp_kind")} if cp > 1 and "cp_kind" in settings else {}
    return replace(
        inner,
        framework=_record(inner.framework),
        layout_fields={**inner.layout_fields, **kinds},
        used=tuple(f"deepspeed.{key}" for key in inner.used),
        ignored=tuple(f"deepspeed.{key}" for key in inner.ignored),
    )


def _is_on(table: object) -> bool:
    """Whether a table of DeepSpeed is on, whatever the trainer trains in."""
    return isinstance(table, Mapping) and table.get("enabled") is True


def _by_name(run: Training, name: str) -> tuple[Mapping[str, Any], Path]:
    """Return the content of a DeepSpeed configuration: a file, or the stage in its name; else it is missing."""
    settings, place = run.settings, Path(run.settings.where)
    if (file := found_by_end(run.folder, name)) is not None:
        note_namesake(settings, "deepspeed", name, file)
        return parse_mapping(read_text(file), file, parse_loosely), file
    if (stage := re.search(r"(?:z|zero|stage)[-_]?([0-3])", name)) is None:
        reason = f"there is no such file {name} ({settings.spell('deepspeed')})"
        run.missing.append(CONFIGURATION._replace(reason=reason))
        return {"zero_optimization": {"stage": 0}}, place
    offloads = ("optimizer", "param")[: 1 + (stage[1] == "3")] if "offload" in name else ()
    settings.note(f"{name} is ZeRO stage {stage[1]} by its name{' with offload' if offloads else ''}")
    zero = {"stage": int(stage[1]), **{f"offload_{part}": {"device": "cpu"} for part in offloads}}
    return {"zero_optimization": zero, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, place


def _staged(run: Training) -> Mapping[str, Any]:
    """Return the configuration of DeepSpeed that a program makes of its flags; it is missing where none is known."""
    settings = run.settings
    stage, offloads = settings.count("zero_stage"), settings.flag("zero_offload")
    if stage is None:
        run.missing.append(CONFIGURATION._replace(reason=f"{settings.spell('deepspeed')} names none"))
    place = {"device": "cpu" if offloads else "none"}
    states = {"device": "cpu"} if settings.flag("adam_offload") else place
    zero = {"stage": stage or 0, "offload_optimizer": states, "offload_param": place}
    if (group := settings.count("zero_hpz_partition_size", 1)) > 1:
        zero["zero_hpz_partition_size"] = group
    accumulated = settings.text("grad_accum_dtype")
    return {
        "zero_optimization": zero,
        **({"data_types": {"grad_accum_dtype": accumulated}} if accumulated else {}),
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
    }


def _filled(settings: Settings, model: Model | None) -> dict[str, Any]:
    """Return what the Trainer fills in where DeepSpeed's configuration says "auto".

    A bucket has as many elements as the model's width squared (transformers, integrations/deepspeed.py).
    """
    return {
        **({} if model is None else {BUCKET: model.hidden_size**2}),
        "train_micro_batch_size_per_gpu": settings.size(MICRO, 8),
        STEPS: settings.size(STEPS, 1),
        "bf16.enabled": compute_of(settings) == "bf16",
        "fp16.enabled": compute_of(settings) == "fp16",
        "train_batch_size": None,
    }


def _with_activations(layout: dict[str, Any], settings: Settings) -> dict[str, Any]:
    for name, value in _activations(settings).items():
        layout[name] = {**layout.get(name, {}), **value} if isinstance(value, dict) else value
    if "paged" in settings.text("optim", "adamw_torch"):
        layout["offload"] = {**layout.get("offload", {}), "paged": True}
    return layout


def _activations(settings: Settings) -> dict[str, Any]:
    """Return what of the layout the activations follow from: recomputation, attention and the loss."""
    kind, unsloth = settings.get("gradient_checkpointing"), settings.flag("use_unsloth")
    full = kind == "offload" or (
        settings.flag("gradient_checkpointing") and not settings.flag("no_gradient_checkpointing")
    )
    if unsloth and full:
        kind = "offload"
    fields: dict[str, Any] = {"recompute": {"granularity": "full" if full else "none"}}
    if full and (kind == "offload" or settings.get("activation_offloading") in (True, "legacy", "disk")):
        fields["offload"] = {"modules": ("decoder_layer_input",)}
    if settings.text("attn_implementation") == "eager" or settings.flag("eager_attention"):
        fields["flash_attention"] = False
    liger = settings.flag("use_liger_kernel") or unsloth
    if loss := _loss_kernels(settings, liger=liger):
        fields["kernels"] = loss
    mode = settings.text("torch_compile_mode")
    if mode or settings.get("torch_compile") == "auto" or settings.flag("torch_compile"):
        graphs = mode in ("reduce-overhead", "max-autotune")
        compiled = {"compile": "reduce-overhead" if graphs else "default"}
        fields["kernels"] = {**fields.get("kernels", {}), **compiled}
    return fields


def _loss_kernels(settings: Settings, *, liger: bool) -> dict[str, Any]:
    """Return the kernels that Liger or unsloth bring.

    Preferences need the logits: a model that is given no labels makes them (liger_kernel/transformers/model/llama.py,
    unsloth/models/llama.py), unless Liger's own loss of preferences is asked.
    """
    fuses = settings.flag("liger_loss") or (liger and stage_of(settings) not in WITH_LOGITS)
    fused = {"cross_entropy": "fused_linear"} if fuses else {}
    return {**fused, "fused": liger} if liger or fuses else {}


def _length_of(settings: Settings) -> int | None:
    """Return the tokens of a sequence, or of several that are packed; of stages that sample the prompt's as well."""
    packed = settings.count("packing_length", least=1) if settings.flag("packing") else None
    length = packed or settings.count("max_length", least=1)
    prompt, sampled = (settings.count(key) for key in ("max_prompt_length", "max_completion_length"))
    if stage_of(settings) not in SAMPLED:
        return length
    prompt, sampled = (
        prompt or length or settings.count("usual_prompt"),
        sampled or settings.count("usual_completion"),
    )
    return prompt + sampled if prompt and sampled else None if sampled else length


def _workload(
    run: Training, base: Mapping[str, Any], model: Model | None, *, is_sharded: bool
) -> dict[str, Any]:
    """Return the length, the tokens of all steps, what is trained, the optimizer, and types."""
    settings, values = run.settings, dict[str, Any]()
    if (length := _length_of(settings)) is not None:
        split = 2 * settings.degree("context_parallel_size")
        length = values["seq_len"] = length if split == 2 else -(-length // split) * split
    steps = settings.get("max_steps")
    if isinstance(steps, int) and steps > 0 and length:  # -1 counts epochs
        values["tokens"] = float(steps * base["global_batch_size"] * length)
    packs = settings.flag("packing", default=run.form == "llamafactory" and settings.get("stage") == "pt")
    is_cut = length is not None and settings.spell("max_length").startswith("block_size")
    if not packs and not is_cut and not settings.flag("pad_to_max"):
        values["varied_lengths"] = True
    if length and not packs and not is_cut:
        settings.note(
            f"without packing, all sequences are projected with {length:,} tokens; --seq-len sets another length"
        )
    vision, pixels = model.vision if model is not None else None, settings.count("image_max_pixels", 0)
    if vision is not None and not vision.image_size and pixels:
        side = vision.patch_size * vision.merge
        values["images"] = {"size": isqrt(pixels) // side * side}
        settings.note(f"images have {isqrt(pixels)} pixels a side at most; --image-size sets another size")
    trainable = trainable_of(run, model)
    if trainable:
        values["trainable"] = trainable
    optimizer, moments = _optimizer(run)
    if optimizer != "adamw" or "optimizer" not in base:
        values["optimizer"] = optimizer
    plain = {} if is_sharded and "precision" in base else {"compute": compute_of(settings)}
    types = plain | base.get("precision", {}) | _types(run, bool(trainable.get("lora_rank")), is_sharded)
    types |= {"moments": moments} if moments else {}
    narrow = frozen_type(settings) if trainable else {}
    if is_sharded:  # parameters on the host, which are not widened
        narrow.pop("fp32_frozen", None)
    if not is_sharded and types["compute"] in ("bf16", "fp16") and not narrow:
        kept = ("frozen", "frozen") if trainable.get("lora_rank") else ("parameters", "param")
        assume(run, "dtype", kept[0], f"weights loaded in {types.get(kept[0], 'bf16')} (--{kept[1]}-dtype)")
    if plain and types["compute"] == "tf32":
        assume(run, "bf16", "compute", "computation in tf32 (--precision)")
    return {**values, "precision": types | narrow}


def _types(run: Training, adapters: bool, is_sharded: bool) -> dict[str, str]:
    """Return the types of weights and states: where states are sharded, those of FSDP or DeepSpeed."""
    settings, asked = run.settings, (run.over.get("precision") or {}).get("parameters")
    compute = compute_of(settings)
    if compute == "tf32" and "tf32" in settings and not settings.flag("tf32"):
        compute = "fp32"
    if settings.flag("fp8"):
        compute = "fp8"
    types = {"compute": compute}
    if is_sharded or compute in ("tf32", "fp32"):
        return types if compute != "tf32" or not is_sharded else {}
    usual = settings.text("adapter_dtype" if adapters else "full_dtype", "bfloat16")
    named = str(settings.get("dtype") or usual).rpartition(".")[2]
    whole = str(asked or ("bfloat16" if settings.flag("pure_bf16") else named))
    is_half = whole not in ("float32", "fp32")
    if adapters:
        copies = settings.words("lora_modules_to_save") and is_half and compute == "bf16"
        if copies and (
            settings.flag("pure_bf16") or run.form == "axolotl"
        ):  # dwarf adapters, which are in fp32
            return {**types, "moments": "bf16", "master": "none"}
        return types if is_half else {**types, "frozen": "fp32"}
    scales = compute == "fp16" and (settings.flag("fp16") or run.form != "trainer")
    if scales and settings.flag("fp16") and named == "float16":
        settings.warnings.append(UNSCALED.format(settings.spell("dtype"), settings.spell("fp16")))
    storage = ("fp16" if compute == "fp16" else "bf16") if is_half and not scales else "fp32"
    return {**types, **dict.fromkeys(("parameters", "gradients", "moments"), storage), "master": "none"}


def _assume_of_program(run: Training) -> None:
    """Keep what is assumed of a program that is not at hand: no recomputation, and one sequence of one model."""
    assume(run, "gradient_checkpointing", "recompute", "no recomputation (--recompute)")
    named = re.search(r"(?:^|[_-])(dpo|orpo|rm|reward|ppo|grpo)", run.program)
    if named is not None and stage_of(run.settings) == "sft":
        text = f"examples of one sequence and no other model, though it is named after {named[1]}"
        run.assumed.append(text)


def _assumed(run: Training) -> tuple[str, ...]:
    """Return the warning of what is assumed of a person's own program."""
    text = f"defaults of {run.program}; assumed: {wording.listed(run.assumed, 'and')}"
    return (text,) if run.assumed else ()


def _optimizer(run: Training) -> tuple[str, str | None]:
    """Return the optimizer, and the type of its states where that is not the usual one."""
    table = packaged("trainers", "optimizers")
    name = run.settings.text("optim", "adamw_torch")
    if name not in table["names"]:
        run.warnings.append(f"{run.settings.spell('optim')}: the states of {name} are projected as AdamW's")
    for word, text in table["note"].items():
        if word in name:
            run.settings.note(text)
    kind, moments = table["names"].get(name, ("adamw", None))
    return kind, moments
