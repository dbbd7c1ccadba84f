"""Megatron's settings as a workload: batch, tokens, optimizer, data types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from forescale.errors import conflicts, incomplete, not_divisible, not_one_of, out_of_range, required_with
from forescale.frameworks.adapters import targets_of
from forescale.frameworks.reading import packaged
from forescale.frameworks.settings import Settings
from forescale.spec.attention import FullAttention
from forescale.spec.groups import group_of, groups_fit
from forescale.spec.kinds import framework_names
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Images, Layer, Model, Patches, Vision
from forescale.spec.optimizers import OPTIMIZERS, OptimizerName
from forescale.spec.workload import (
    FROZEN_PARTS,
    NARROW,
    ComputeType,
    FrozenPart,
    Precision,
    StorageType,
    Trainable,
    Workload,
)

SHUFFLED: Final = 2
"""Patches along each side that --pixel-shuffle puts side by side."""
CHANNELS: Final = 3
GROUP: Final = "microbatch_group_size_per_vp_stage"


def has_tower(settings: Settings) -> bool:
    """Whether a vision tower is trained: only then are images given."""
    return "img_h" in settings


def lay_program(settings: Settings) -> None:
    """Lay what a program takes from its own tables over its flags: sizes by name, and the text's length."""
    if settings.flag("perform_rl_step") or "grpo_iterations" in settings:
        settings.note("GRPO: the training phase is projected; sampling (rollout) is not")
    tables, provider = packaged("megatron", "vision"), settings.get("model_provider")
    for key, value in tables["providers"].get(provider, {}).items():
        settings.set(key, value)
    if provider in tables["providers"]:
        settings.set("model_provider", None)
        if what := tables["beside"].get(provider):
            settings.note(f"not expressed: {what}")
    if not has_tower(settings):
        return
    for key, value in _language(settings)["settings"].items():
        settings.set(key, value)
    lengths = (settings.get(key) for key in ("decoder_seq_length", "total_seq_length", "encoder_seq_length"))
    if "language_model_type" not in settings:
        settings.set("seq_length", _joined_length(settings))
    elif length := next((length for length in lengths if length is not None), None):
        settings.set("seq_length", length)


def _joined_length(settings: Settings) -> int:
    """Return the tokens of text and image together, padded for their ranks (pretrain_vlm.py, context_parallel.py)."""
    text = settings.count("dataloader_seq_length") or settings.size("seq_length")
    whole = (
        text
        + (settings.size("img_h") // settings.size("patch_dim", 16)) ** 2
        + 1
        - settings.flag("disable_vision_class_token")
    )
    cp = settings.degree("context_parallel_size")
    parts = cp * 2 if cp > 1 else 1
    if settings.flag("sequence_parallel"):
        parts *= settings.degree("tensor_model_parallel_size")
    return -(-whole // parts) * parts


OWN: Final[Mapping[str, Any]] = {"settings": {}, "norm": "text"}
"""Of pretrain_vlm.py, whose tower and projector are as wide as its text."""


def _language(settings: Settings) -> Mapping[str, Any]:
    """Return what the program's table says of the text model that it names."""
    if "language_model_type" not in settings:
        return OWN
    return _entry(settings, "language_model_type", "", "languages")


def _entry(settings: Settings, key: str, usual: str, table: str) -> Mapping[str, Any]:
    known: Mapping[str, Mapping[str, Any]] = packaged("megatron", "vision")[table]
    return settings.choice(key, usual, known)


def read_tower(settings: Settings, text: Model) -> Vision | None:
    """Return the tower and the projector behind it; None where no images are given."""
    if not has_tower(settings):
        return None
    language = _language(settings)
    patch, sides = settings.size("patch_dim", 16), [settings.size(key) for key in ("img_h", "img_w")]
    if len(set(sides)) > 1 or sides[0] % patch:
        settings.refuse(
            f"{settings.spell('img_h')} {sides[0]} and {settings.spell('img_w')} {sides[1]} must be equal, and a "
            f"multiple of {settings.spell('patch_dim')} {patch}"
        )
    ffn = text.layers[0].ffn
    inner = ffn.ffn_hidden_size if language is OWN and ffn is not None else language.get("projector")
    if inner is None:
        partner = f"{settings.spell('language_model_type')} {settings.get('language_model_type')}"
        settings.refuse(incomplete("projector", partner))
    norm = language.get("norm", "layer")
    return Vision(
        encoder=_own(settings, text, patch, sides[0])
        if language is OWN
        else _encoder(settings, text, patch, sides[0]),
        patch_size=patch,
        image_size=sides[0],
        merge=SHUFFLED if settings.flag("pixel_shuffle") or settings.flag("conv_merging") else 1,
        projector=(
            *((inner,) if settings.get("vision_projection_type") != "affine" else ()),
            text.hidden_size,
        ),
        projector_bias=language.get("bias", language is OWN and ffn is not None and ffn.bias),
        projector_norm={"none": None, "text": text.norm}.get(norm, "layer"),
    )


def _encoder(settings: Settings, text: Model, patch: int, image: int) -> Model:
    """Return the transformer over patches, whose linear layers all have biases (model.py)."""
    size = _entry(settings, "vision_model_type", "clip", "towers")
    tp, mixer = settings.degree("tensor_model_parallel_size"), text.layers[0].attention
    wide = mixer.head_dim if isinstance(mixer, FullAttention) else text.hidden_size
    heads = size.get("heads") or (size["heads_over"] // tp + 1) * tp
    tokens = settings.count("class_token_len") if "largest" in size else None
    class_tokens = size.get("class_tokens", 0) if tokens is None else tokens
    attention = FullAttention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=size.get("head_dim", wide),
        causal=False,
        qkv_bias=True,
        output_bias=True,
        qk_norm=size.get("qk_norm", "none"),
        rotary=False,
    )
    layer = Layer(
        attention=attention,
        ffn=DenseFfn(ffn_hidden_size=size["ffn"], gated=size.get("gated", False), bias=True),
    )
    largest = size.get("largest")
    return Model(
        name="vision",
        hidden_size=size["hidden"],
        layers=(layer,) * size["layers"],
        norm=size.get("norm", "layer"),
        final_norm=size.get("norm_behind", False),
        embedding_norm=size.get("norm_before", False),
        branch_scales=size.get("scales", False),
        learned_positions=(largest // patch) ** 2 if largest else (image // patch) ** 2 + class_tokens,
        patches=Patches(
            patch_elements=CHANNELS * patch**2, bias=size.get("patch_bias", True), class_tokens=class_tokens
        ),
    )


def _own(settings: Settings, text: Model, patch: int, image: int) -> Model:
    """Return CLIP's transformer with the text's own layers (pretrain_vlm.py)."""
    first = text.layers[0]
    mixer = first.attention
    if isinstance(mixer, FullAttention):
        mixer = replace(mixer, causal=False, rotary=False)
    return Model(
        name="vision",
        hidden_size=text.hidden_size,
        layers=(replace(first, attention=mixer),) * settings.size("encoder_num_layers", text.num_layers),
        norm=text.norm,
        final_norm=False,
        embedding_norm=True,
        learned_positions=(image // patch) ** 2 + 1,
        patches=Patches(patch_elements=CHANNELS * patch**2, bias=False, class_tokens=1),
    )


def read_images(settings: Settings) -> Images:
    """Return the images of a sequence: as many tiles, or frames, as one sample may have."""
    tiles = settings.degree("max_num_tiles") + settings.flag("use_thumbnail")
    count = max(tiles, settings.degree("num_frames"))
    if has_tower(settings):
        settings.note(
            f"images of each sequence are taken as {count}, what one sample may have; --images says otherwise"
        )
    return Images(count=count if has_tower(settings) else 1)


def read_trainable(settings: Settings) -> Trainable:
    """Return what is trained: adapters, or what is not frozen of a model with a tower; the projector never is."""
    if rank := settings.count("lora_r", 0):
        named = settings.words("lora_target_modules") or ("linear_qkv", "linear_proj")
        return Trainable(lora_rank=rank, lora_targets=targets_of(named, settings.refuse))
    towers: tuple[FrozenPart, ...] = ("vision", "projector")
    text = [part for part in FROZEN_PARTS if part not in towers]
    frozen = [*(text if settings.flag("freeze_LM") else ()), *["vision"] * settings.flag("freeze_ViT")]
    return Trainable(frozen=tuple(frozen)) if has_tower(settings) else Trainable()


Recipe: TypeAlias = Literal["none", "delayed", "current", "blockwise", "mxfp8"]

OPTIMIZER_NAMES: dict[str, OptimizerName] = framework_names(OPTIMIZERS.values(), "megatron")
RECIPES: dict[str, Recipe] = {
    "delayed": "delayed",
    "tensorwise": "current",
    "blockwise": "blockwise",
    "mxfp8": "mxfp8",
}
FP8_FORMATS = ("e4m3", "hybrid", "True", "true")
STORAGE: dict[str, StorageType] = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


def read_workload(settings: Settings, layout: Layout) -> Workload:
    """Return the workload; the batch must make whole micro-batches on `layout`."""
    seq_len = settings.size("seq_length")
    step = layout.dp * layout.micro_batch_size
    batch = settings.count("global_batch_size")
    if batch is None:
        batch = step
        settings.note(f"global_batch_size is not given; Megatron-LM takes one micro-batch per rank, {step}")
    if not batch or batch % step:
        terms = f"micro_batch_size {layout.micro_batch_size} x dp {layout.dp}"
        settings.refuse_key(not_divisible, "global_batch_size", batch, step, terms)
    _check_interleaving(settings, layout, batch // step)
    optimizer = settings.text("optimizer", "adam")
    if optimizer not in OPTIMIZER_NAMES:
        settings.refuse(not_one_of("the optimizer", optimizer, OPTIMIZER_NAMES))
    return Workload(
        seq_len=seq_len,
        global_batch_size=batch,
        tokens=_tokens(settings, seq_len, batch),
        optimizer=OPTIMIZER_NAMES[optimizer],
        precision=read_precision(settings),
        trainable=read_trainable(settings),
        images=read_images(settings),
    )


def _check_interleaving(settings: Settings, layout: Layout, num_microbatches: int) -> None:
    """Refuse micro-batches that virtual stages cannot take in turn, group by group."""
    group, pp, name = group_of(layout), layout.pp, settings.spell(GROUP)
    if group is not None and not pp <= group <= num_microbatches:
        settings.refuse(out_of_range(name, group, f"from pp {pp} to the {num_microbatches} micro-batches"))
    if groups_fit(pp, layout.vpp, num_microbatches, group):
        return
    if group is None:
        settings.refuse(not_divisible("num_microbatches", num_microbatches, pp, "pp (interleaved stages)"))
    rest = num_microbatches % group
    settings.refuse(
        f"{name} {group} leaves {rest} of {num_microbatches} micro-batches over, fewer than pp {pp}"
    )


def _tokens(settings: Settings, seq_len: int, batch: int) -> float | None:
    samples, iterations = (_steps(settings, key) for key in ("train_samples", "train_iters"))
    if samples:
        return float(samples) * seq_len
    return float(iterations) * batch * seq_len if iterations else None


def _steps(settings: Settings, key: str) -> int | None:
    """Return how long a run is; None where that is a variable that nothing sets, as no step depends on it."""
    value = settings.raw(key)
    if "$" in str(value):
        settings.note(f"{settings.spell(key)} is not known: the run's length is left open")
        return None
    return settings.count(key)


LAYERS_IN_BF16 = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
SHARDING = ("use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2")
"""Keys any of which shards states."""


def read_precision(settings: Settings) -> Precision:
    """Return the data types of compute and states."""
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    if bf16 and fp16:
        settings.refuse(conflicts([settings.spell("bf16"), settings.spell("fp16")]))
    dealt = str(settings.get("optimizer")).startswith("dist_")
    if settings.flag("fp8_param_gather") and not dealt and not any(settings.flag(key) for key in SHARDING):
        needed = "--use-distributed-optimizer, --use-megatron-fsdp or --use-torch-fsdp2"
        settings.refuse(required_with(f"{needed}, as in Megatron-LM", settings.spell("fp8_param_gather")))
    base: StorageType = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    compute, recipe = _compute(settings, base)
    return Precision(
        compute=compute,
        recipe=recipe,
        parameters="fp8" if compute in ("fp8", "mxfp8") and settings.flag("fp8_param_gather") else base,
        gradients=_gradients(settings, base),
        master=_master(settings, base),
        activations=base,
        frozen="nf4" if settings.flag("qlora") and settings.count("lora_r", 0) else None,
        **_layers_in_bf16(settings, compute),
        **_moments(settings),
    )


def _layers_in_bf16(settings: Settings, compute: ComputeType) -> dict[str, Any]:
    """Return the layers at both ends that 8- and 4-bit recipes leave in bf16; one at each by default."""
    given = {key: settings.count(key, 1) for key in LAYERS_IN_BF16}
    return given if settings.flag("first_last_layers_bf16") and compute in NARROW else {}


def _compute(settings: Settings, base: StorageType) -> tuple[ComputeType, Recipe]:
    fp4, fp8 = settings.get("fp4"), settings.get("fp8")
    if fp8:
        settings.one_of("fp8", "hybrid", FP8_FORMATS)
    named = settings.text("fp8_recipe", "delayed")
    if fp4 and fp8:
        settings.refuse(conflicts([settings.spell("fp4"), settings.spell("fp8")]))
    if fp4:
        return "nvfp4", "none"
    if not fp8:
        return base, "none"
    if named not in RECIPES:
        settings.refuse(not_one_of("the fp8 recipe", named, ", ".join(RECIPES)))
    return ("mxfp8" if named == "mxfp8" else "fp8"), RECIPES[named]


def _gradients(settings: Settings, base: StorageType) -> StorageType:
    """Return the type that gradients are accumulated and reduced in: fp32 with bf16 unless told otherwise.

    Torch's FSDP2 keeps those of its parameters' type (core/distributed/torch_fully_sharded_data_parallel.py).
    """
    if settings.flag("use_torch_fsdp2"):
        return base
    in_fp32 = settings.flag("accumulate_allreduce_grads_in_fp32")
    in_bf16 = settings.flag("grad_reduce_in_bf16")
    main = _main(settings, "main_grads_dtype")
    if main != "fp32":
        return main
    if base == "bf16":
        return "bf16" if in_bf16 else "fp32"
    return "fp32" if in_fp32 else base


def _master(settings: Settings, base: StorageType) -> StorageType | Literal["none"]:
    main = _main(settings, "main_params_dtype")
    return "none" if base == "fp32" else main


def _moments(settings: Settings) -> dict[str, Any]:
    """Return the types of both moments; the second only where it differs."""
    first, second = _main(settings, "exp_avg_dtype"), _main(settings, "exp_avg_sq_dtype")
    return {"moments": first} if first == second else {"moments": first, "second_moments": second}


def _main(settings: Settings, key: str) -> StorageType:
    """Return a type that counts only with the precision-aware optimizer."""
    kind = settings.choice(key, "fp32", STORAGE)
    return kind if settings.flag("use_precision_aware_optimizer") else "fp32"
