"""Vision towers of multimodal configurations: one function each, with the defaults of its class in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any, Final, Literal

from msgspec.structs import replace

from forescale.errors import differs, not_divisible, out_of_range, wrong_type
from forescale.frameworks.huggingface.keys import HEADS, Keys, named
from forescale.limits import LAYERS, Interval, within
from forescale.spec.attention import FullAttention
from forescale.spec.model import DenseFfn, Layer, Model, NormKind, Patches, Tiles, Vision

PART = "vision_config"
SIZES: Final = (("hidden_size",), ("num_hidden_layers",), HEADS)
QWEN: Final = (("hidden_size",), ("depth",), ("num_heads",))
"""Keys of width, depth and heads, and what Qwen and GLM call them."""
TILES: Final = Interval(gt=0, le=256)
"""Tiles of one image."""


def vision_of(keys: Keys, text: Model) -> Vision | None:
    """Return the tower of a configuration whose language model is `text`; None where it has none that is known."""
    kind = str(keys.get("model_type"))
    inner = keys.child(PART) if kind in TOWERS else None
    if inner is None:
        return None
    inner.get("model_type")
    return TOWERS[kind](inner, keys, text)


def encoder(
    keys: Keys,
    usual: tuple[int, int, int],
    names: Sequence[tuple[str, ...]] = SIZES,
    *,
    ffn: DenseFfn,
    patch: int,
    kv_heads: int = 0,
    norm: NormKind = "layer",
    frames: int = 1,
    windows: Callable[[int], int | None] = lambda _: None,
    rotary: bool = False,
    bias: bool = True,
    qkv_bias: bool | None = None,
    patch_bias: bool = True,
    class_tokens: int = 0,
    qk_norm: Literal["none", "hidden"] = "none",
    **fields: Any,  # noqa: ANN401 (of the model)
) -> Model:
    """Return a vision transformer: width, depth and heads are the keys `names`, or as `usual`.

    `windows` says what patches each layer sees; 0 `kv_heads` are as many as heads.
    """
    width, depth, heads = (keys.size(*name, default=size) for name, size in zip(names, usual, strict=True))
    if width % heads:
        keys.refuse(not_divisible("hidden_size", width, heads, "num_heads"))
    within(depth, LAYERS, f"{keys.where}: the number of layers")

    def layer(window: int | None) -> Layer:
        attention = FullAttention(
            num_heads=heads,
            num_kv_heads=kv_heads or heads,
            head_dim=width // heads,
            causal=False,
            window=window,
            qkv_bias=bias if qkv_bias is None else qkv_bias,
            output_bias=bias,
            rotary=rotary,
            qk_norm=qk_norm,
        )
        return Layer(attention=attention, ffn=ffn)

    kinds = {window: layer(window) for window in map(windows, range(depth))}
    elements = patch**2 * keys.size("num_channels", "in_channels", "in_chans", default=3) * frames
    return Model(
        name="vision",
        hidden_size=width,
        layers=tuple(kinds[windows(place)] for place in range(depth)),
        norm=norm,
        patches=Patches(patch_elements=elements, bias=patch_bias, class_tokens=class_tokens),
        **fields,
    )


def clip_or_siglip(keys: Keys, text: Model, *, width: int = 768, heads: int = 12, patch: int = 16) -> Vision:
    """Return CLIP's or SigLIP's transformer behind one linear layer; sizes are SigLIP's defaults."""
    clip = keys.get("model_type") == "clip_vision_model"
    patch = keys.size("patch_size", default=32 if clip else patch)
    image = keys.size("image_size", default=224)
    if not clip and keys.flag("vision_use_head", default=False):
        keys.refuse_set("vision_use_head", "a pooling head of a tower")
    tower = encoder(
        keys,
        (width, 12, heads),
        ffn=DenseFfn(ffn_hidden_size=keys.size("intermediate_size", default=3072), gated=False, bias=True),
        patch=patch,
        patch_bias=not clip,
        class_tokens=int(clip),
        learned_positions=(image // patch) ** 2 + clip,
        embedding_norm=clip,
    )
    return Vision(encoder=tower, patch_size=patch, image_size=image, projector=(text.hidden_size,))


def gemma3(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Gemma 3: SigLIP, whose patches are averaged to `mm_tokens_per_image`."""
    tower = clip_or_siglip(keys, text)
    side, tokens = tower.image_size // tower.patch_size, outer.size("mm_tokens_per_image", default=256)
    return replace(tower, merge=max(side // isqrt(tokens), 1), pools=True, projector_norm="rms")


def llava(keys: Keys, outer: Keys, text: Model) -> Vision:
    """LLaVA 1.5 (CLIP) and Pixtral: two linear layers; a class token does not go to the text."""
    bias = outer.flag("multimodal_projector_bias", default=True)
    return replace(_last_layer(keys, outer, text), projector=(text.hidden_size,) * 2, projector_bias=bias)


LLAVA_NEXT: Final = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
ONEVISION: Final = tuple((high, wide) for high in range(384, 2305, 384) for wide in range(384, 2305, 384))
"""Resolutions that images are cut into tiles at, where a file names none (transformers)."""


def llava_next(keys: Keys, outer: Keys, text: Model) -> Vision:
    """LLaVA-NeXT: LLaVA, whose tower sees the tiles of an image and all of it as one."""
    return _tiled(llava(keys, outer, text), outer, LLAVA_NEXT)


def llava_onevision(keys: Keys, outer: Keys, text: Model) -> Vision:
    """LLaVA-OneVision: LLaVA-NeXT with SigLIP, more tiles, and a limit of what they are in tokens."""
    message = str(outer.get("vision_aspect_ratio") or "anyres_max_9")
    most = message.removeprefix("anyres_max_")
    if not most.isdecimal() or most == message:
        outer.refuse(wrong_type("vision_aspect_ratio", message, "anyres_max_ and a number"))
    tiled = _tiled(llava(keys, outer, text), outer, ONEVISION)
    assert tiled.tiles is not None
    return replace(tiled, tiles=replace(tiled.tiles, most=int(most)))


def _tiled(vision: Vision, outer: Keys, usual: Sequence[tuple[int, int]]) -> Vision:
    """Return a tower that sees tiles, as the resolutions of a file have it."""
    side, listed = vision.image_size, outer.get("image_grid_pinpoints") or usual
    try:
        grids = tuple((high // side, wide // side) for high, wide in listed)
    except (TypeError, ValueError):
        grids = ()
    if not grids or min(map(min, grids)) < 1:
        violation = (
            f"the key 'image_grid_pinpoints' must list heights and widths of {side} pixels or more each"
        )
        outer.refuse(violation)
    return replace(vision, tiles=Tiles(grids=grids, fits="resolution", rows_end=True))


def glm4v(keys: Keys, outer: Keys, text: Model) -> Vision:
    """GLM-4.1V to 4.6V: RMS norms, learned positions stretched to any size, patches merged before a gated end."""
    del outer
    patch = _side(keys, "patch_size", 14)
    image = _side(keys, "image_size", 336)
    inner = keys.size("out_hidden_size", default=4096)
    if inner != text.hidden_size:
        keys.refuse(differs("out_hidden_size", inner, "hidden_size of the text", text.hidden_size))
    tower = encoder(
        keys,
        (1536, 24, 12),
        QWEN,
        ffn=DenseFfn(ffn_hidden_size=inner),
        patch=patch,
        norm="rms",
        frames=_side(keys, "temporal_patch_size", 2),
        rotary=True,
        bias=False,
        qkv_bias=keys.flag("attention_bias", default=False),
        embedding_norm=True,
        learned_positions=(image // patch) ** 2,
    )
    return Vision(
        encoder=tower,
        patch_size=patch,
        image_size=image,
        merge=keys.size("spatial_merge_size", default=2),
        projector=(inner, inner),
        projector_merges=True,
        merging_bias=True,
        projector_ffn=keys.size("intermediate_size", default=13696),
    )


def mistral3(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Mistral Small 3.1 and later: Pixtral's transformer, whose patches a linear layer merges before two more."""
    tower = _last_layer(keys, outer, text)
    return replace(
        tower,
        merge=outer.size("spatial_merge_size", default=2),
        projector=(tower.encoder.hidden_size, text.hidden_size, text.hidden_size),
        projector_bias=outer.flag("multimodal_projector_bias", default=False),
        projector_merges=True,
        projector_norm="rms",
    )


def idefics3(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Idefics 3 and SmolVLM: SigLIP, whose patches are shuffled into fewer tokens, and one linear layer."""
    tower = clip_or_siglip(keys, text, width=1152, heads=16, patch=32)
    return replace(tower, merge=outer.size("scale_factor", default=2))


def paligemma(keys: Keys, outer: Keys, text: Model) -> Vision:
    """PaliGemma: SigLIP and one linear layer."""
    outer.get("projection_dim", "hidden_size")
    keys.get("projection_dim", "num_image_tokens", "projector_hidden_act")
    return replace(clip_or_siglip(keys, text), projector_bias=True)


def internvl(keys: Keys, outer: Keys, text: Model) -> Vision:
    """InternVL: InternViT, whose halves are scaled, patches shuffled into fewer tokens, and two linear layers."""
    outer.get(
        "vision_feature_layer", "vision_feature_select_strategy", "image_seq_length", "projector_hidden_act"
    )
    keys.refuse_set("use_mask_token", "a mask of patches")
    patch, image = _side(keys, "patch_size", 14), _side(keys, "image_size", 448)
    merge = _shuffled(outer, "downsample_ratio")
    tower = encoder(
        keys,
        (1024, 24, 16),
        ffn=DenseFfn(ffn_hidden_size=keys.size("intermediate_size", default=4096), gated=False, bias=True),
        patch=patch,
        norm="rms" if keys.get("norm_type") == "rms_norm" else "layer",
        qk_norm="hidden" if keys.flag("use_qk_norm", "qk_normalization", default=False) else "none",
        qkv_bias=keys.flag("attention_bias", "qkv_bias", default=False),
        class_tokens=1,
        learned_positions=(image // patch) ** 2 + 1,
        branch_scales=True,
        final_norm=not keys.flag("use_mean_pooling", default=True),
    )
    return Vision(
        encoder=tower,
        patch_size=patch,
        image_size=image,
        merge=merge,
        projector=(text.hidden_size, text.hidden_size),
        projector_bias=True,
        projector_norm="layer",
        norms_merged=True,
    )


def internvl_chat(keys: Keys, outer: Keys, text: Model) -> Vision:
    """InternVL as its authors publish it: images are cut into tiles, and seen whole beside them."""
    outer.get("select_layer", "ps_version", "force_image_size", "pad2square")
    keys.get("use_flash_attn", "num_channels")
    result = internvl(keys, outer, text)
    most, least = outer.size("max_dynamic_patch", default=12), outer.size("min_dynamic_patch", default=1)
    if not outer.flag("dynamic_image_size", default=True):
        return result
    within(most, TILES, f"{outer.where}: the key 'max_dynamic_patch'")
    sides = range(1, most + 1)
    grids = tuple((rows, columns) for rows in sides for columns in sides if least <= rows * columns <= most)
    if not grids:
        outer.refuse(out_of_range("min_dynamic_patch", least, f"at most max_dynamic_patch {most}"))
    whole = outer.flag("use_thumbnail", default=True)
    return replace(result, tiles=Tiles(grids=grids, fits="shape", whole="cut" if whole else "never"))


def _side(keys: Keys, name: str, usual: int) -> int:
    """Return a square's side, which stands alone or twice."""
    sides = keys.get(name)
    if not isinstance(sides, list | tuple):
        return keys.size(name, default=usual)
    if len(set(map(str, sides))) != 1 or not isinstance(sides[0], int) or sides[0] < 1:
        keys.refuse(wrong_type(f"the key {name!r}", sides, "a side, or two equal ones"))
    return sides[0]


def _shuffled(keys: Keys, name: str) -> int:
    """Return the patches along each side that a ratio of a shuffle makes one token."""
    ratio = keys.get(name) or 0.5
    merge = round(1.0 / ratio) if isinstance(ratio, int | float) and 0.0 < ratio <= 1.0 else 0
    if not merge:
        keys.refuse(out_of_range(name, ratio, "in (0, 1]"))
    return merge


def _last_layer(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Return the transformer of LLaVA's family, the result of one of whose layers is projected."""
    if isinstance(outer.get("vision_feature_layer"), list):
        outer.refuse_set("vision_feature_layer", "several layers of a tower side by side")
    outer.get("vision_feature_select_strategy", "image_seq_length", "projector_hidden_act")
    return pixtral(keys, text) if keys.get("model_type") == "pixtral" else clip_or_siglip(keys, text)


def pixtral(keys: Keys, text: Model) -> Vision:
    """Return Pixtral's transformer behind one linear layer."""
    patch, image = keys.size("patch_size", default=16), keys.size("image_size", default=1024)
    tower = encoder(
        keys,
        (1024, 24, 16),
        ffn=DenseFfn(ffn_hidden_size=keys.size("intermediate_size", default=4096)),
        patch=patch,
        norm="rms",
        rotary=True,
        bias=False,
        patch_bias=False,
        embedding_norm=True,
        final_norm=False,
    )
    return Vision(encoder=tower, patch_size=patch, image_size=image, projector=(text.hidden_size,))


def kimi(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Kimi-VL and Kimi-K2.5: MoonViT, images of any size; the norm before the projector is beside the tower's own."""
    outer.get("projection_hidden_size", "projection_layer_norm_eps")
    side = keys.size("pos_emb_height", "init_pos_emb_height", default=64)
    positions = side * keys.size("pos_emb_width", "init_pos_emb_width", default=64)
    merge = keys.items("merge_kernel_size", 2) or (2, 2)
    patch = keys.size("patch_size", default=14)
    inner = keys.size("intermediate_size", "vt_intermediate_size", default=4304)
    tower = encoder(
        keys,
        (1152, 27, 16),
        [(*name, f"vt_{name[0]}") for name in SIZES],
        ffn=DenseFfn(ffn_hidden_size=inner, gated=False, bias=True),
        patch=patch,
        rotary=True,
        learned_positions=positions,
    )
    if merge[0] != merge[1] or not isinstance(merge[0], int):
        keys.refuse(wrong_type("merge_kernel_size", merge, "two equal numbers"))
    return Vision(
        encoder=tower,
        patch_size=patch,
        image_size=side * patch,
        merge=merge[0],
        projector=(tower.hidden_size * merge[0] ** 2, text.hidden_size),
        projector_bias=True,
        projector_norm="layer",
    )


def llama4(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Llama 4: patches shuffled into fewer tokens, an adapter of two layers, and the projector; images are tiles."""
    del outer
    patch, image = keys.size("patch_size", default=14), keys.size("image_size", default=448)
    merge = _shuffled(keys, "pixel_shuffle_ratio")
    inner = keys.size("intermediate_size", default=5632)
    width, adapter = keys.size("hidden_size", default=768), keys.size("projector_output_dim", default=4096)
    if width * merge**2 != inner:
        keys.refuse(differs("intermediate_size", inner, f"hidden_size of {merge**2} patches", width))
    if keys.size("vision_output_dim", default=adapter) != adapter:
        output = keys.size("vision_output_dim", default=adapter)
        keys.refuse(differs("vision_output_dim", output, "projector_output_dim", adapter))
    tower = encoder(
        keys,
        (width, 34, 16),
        ffn=DenseFfn(ffn_hidden_size=inner, gated=False, bias=True),
        patch=patch,
        rotary=True,
        patch_bias=False,
        class_tokens=1,
        learned_positions=(image // patch) ** 2 + 1,
        embedding_norm=True,
    )
    keys.get("multi_modal_projector_bias")
    return Vision(
        encoder=tower,
        patch_size=patch,
        image_size=image,
        merge=merge,
        projector=(keys.size("projector_input_dim", default=4096), adapter, text.hidden_size),
    )


def qwen2_vl(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Qwen2-VL: images of any size."""
    del outer
    width = keys.size("embed_dim", default=1280)
    ffn = DenseFfn(ffn_hidden_size=width * keys.size("mlp_ratio", default=4), gated=False, bias=True)
    return _qwen(keys, text, "embed_dim", width, ffn=ffn, norm="layer")


def qwen2_5_vl(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Qwen2.5-VL: RMS norms, gated feed-forwards, and windows of patches on all but some layers.

    EXAONE 4.5 is that with fewer heads of keys and values.
    """
    kv_heads = keys.size("num_key_value_heads", default=8) if outer.get("model_type") == "exaone4_5" else 0
    whole = keys.items("fullatt_block_indexes") or (7, 15, 23, 31)
    side = keys.size("window_size", default=112) // keys.size("patch_size", default=14)
    ffn = DenseFfn(ffn_hidden_size=keys.size("intermediate_size", default=3420), bias=True)

    def window(layer: int) -> int | None:
        return None if layer in whole else side**2

    return _qwen(keys, text, "hidden_size", 3584, ffn=ffn, norm="rms", windows=window, kv_heads=kv_heads)


def qwen3_vl(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Qwen3-VL: learned positions, stretched to any size; layers whose results go to the text's own layers."""
    del outer
    positions = keys.size("num_position_embeddings", default=2304)
    deepstack = keys.items("deepstack_visual_indexes")
    ffn = DenseFfn(ffn_hidden_size=keys.size("intermediate_size", default=4304), gated=False, bias=True)
    return _qwen(
        keys,
        text,
        "hidden_size",
        1152,
        ffn=ffn,
        norm="layer",
        patch=16,
        bias=True,
        positions=positions,
        num_deepstack=3 if deepstack is None else len(deepstack),
    )


def qwen3_5(keys: Keys, outer: Keys, text: Model) -> Vision:
    """Qwen3.5: the tower of Qwen3-VL, of which only the last layer's result goes to the text."""
    return replace(qwen3_vl(keys, outer, text), num_deepstack=0)


def _qwen(
    keys: Keys,
    text: Model,
    name: str,
    width: int,
    *,
    ffn: DenseFfn,
    norm: NormKind,
    kv_heads: int = 0,
    windows: Callable[[int], int | None] = lambda _: None,
    patch: int = 14,
    bias: bool = False,
    positions: int = 0,
    num_deepstack: int = 0,
) -> Vision:
    """Return a tower of the Qwen family, as wide as the key `name`, or `width`; its last norm is the merger's."""
    patch, merge = keys.size("patch_size", default=patch), keys.size("spatial_merge_size", default=2)
    tower = encoder(
        keys,
        (width, 27 if positions else 32, 16),
        ((name,), *QWEN[1:]),
        kv_heads=kv_heads,
        ffn=ffn,
        patch=patch,
        norm=norm,
        frames=keys.size("temporal_patch_size", default=2),
        windows=windows,
        rotary=True,
        patch_bias=bias,
        learned_positions=positions,
        final_norm=False,
    )
    return Vision(
        encoder=tower,
        patch_size=patch,
        image_size=isqrt(positions) * patch,
        merge=merge,
        projector=(tower.hidden_size * merge**2, keys.size("out_hidden_size", default=text.hidden_size)),
        projector_bias=True,
        projector_norm=norm,
        num_deepstack=num_deepstack,
    )


TOWERS: Mapping[str, Callable[[Keys, Keys, Model], Vision]] = named(
    {
        gemma3: "gemma3",
        glm4v: "glm46v glm4v glm4v_moe",
        idefics3: "idefics3 smolvlm",
        internvl: "internvl",
        internvl_chat: "internvl_chat",
        kimi: "kimi_k25 kimi_vl",
        llama4: "llama4",
        llava: "llava",
        llava_next: "llava_next",
        llava_onevision: "llava_onevision",
        mistral3: "mistral3",
        paligemma: "paligemma",
        qwen2_5_vl: "exaone4_5 qwen2_5_omni_thinker qwen2_5_vl",
        qwen2_vl: "qwen2_vl",
        qwen3_5: "qwen3_5 qwen3_5_moe",
        qwen3_vl: "qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe",
    }
)
"""Towers by the `model_type` of the whole."""
