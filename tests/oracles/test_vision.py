"""Vision towers against the classes of transformers: parameters, FLOP by torch's counter, bytes that autograd keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
counter = pytest.importorskip("torch.utils.flop_counter")

from tests.oracles.test_flops import FLASH  # noqa: E402
from tests.oracles.test_saved_tensors import saved_bytes  # noqa: E402

from forescale.frameworks.huggingface.reader import read_huggingface  # noqa: E402
from forescale.frameworks.huggingface.vision import TOWERS  # noqa: E402
from forescale.graph.counts import TOWER, block_flops, count_parameters, whole_blocks  # noqa: E402
from forescale.graph.per_block import build_blocks  # noqa: E402
from forescale.graph.recompute import keep  # noqa: E402
from forescale.graph.sharding import ShardingRules, split_layout  # noqa: E402
from forescale.spec import Kernels, Layout, Model, Recompute  # noqa: E402
from forescale.spec.model import Images  # noqa: E402
from forescale.spec.workload import FrozenPart, Precision, Trainable  # noqa: E402

TEXT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
}
QWEN = {"depth": 3, "num_heads": 2, "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2}
CLIP = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 2}
QWEN3 = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "patch_size": 16,
    "out_hidden_size": 128,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
    **QWEN,
}
LLAMA4 = {
    "image_size": 112,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 80,
    "projector_output_dim": 80,
    "vision_output_dim": 80,
}
GLM = {
    "hidden_size": 64,
    "out_hidden_size": 128,
    "intermediate_size": 160,
    "image_size": 112,
    "patch_size": 14,
    **QWEN,
}
SIGLIP = {"image_size": 112, "patch_size": 14, **CLIP}
GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
QWEN35 = {key: value for key, value in QWEN3.items() if key != "deepstack_visual_indexes"}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
TOWERS_OF: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        {"model_type": "gemma3_text", **TEXT},
        {
            "model_type": "siglip_vision_model",
            "image_size": 112,
            "patch_size": 14,
            "vision_use_head": False,
            **CLIP,
        },
        {"mm_tokens_per_image": 16},
    ),
    "llama4": (
        {
            "model_type": "llama4_text",
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 256,
            **TEXT,
        },
        {"model_type": "llama4_vision_model", **CLIP, **LLAMA4, "intermediate_size": 256},
        {},
    ),
    "llava": (
        {"model_type": "llama", **TEXT},
        {"model_type": "clip_vision_model", "image_size": 112, "patch_size": 14, **CLIP},
        {},
    ),
    "qwen2_vl": (
        {"model_type": "qwen2_vl_text", **TEXT},
        {"embed_dim": 64, "hidden_size": 128, "mlp_ratio": 3, "patch_size": 14, **QWEN},
        {},
    ),
    "qwen2_5_vl": (
        {"model_type": "qwen2_5_vl_text", **TEXT},
        {
            "hidden_size": 64,
            "intermediate_size": 172,
            "out_hidden_size": 128,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            **QWEN,
        },
        {},
    ),
    "exaone4_5": (
        {
            "model_type": "exaone4_5_text",
            "sliding_window": None,
            "layer_types": ["full_attention"] * 2,
            **TEXT,
        },
        {
            "hidden_size": 64,
            "intermediate_size": 172,
            "out_hidden_size": 128,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "num_key_value_heads": 1,
            **QWEN,
        },
        {},
    ),
    "qwen3_5": ({"model_type": "qwen3_5_text", **GATED_DELTA, **TEXT}, QWEN35, {}),
    "qwen3_5_moe": (
        {
            "model_type": "qwen3_5_moe_text",
            "shared_expert_intermediate_size": 96,
            **EXPERTS,
            **GATED_DELTA,
            **TEXT,
        },
        QWEN35,
        {},
    ),
    "qwen3_vl": ({"model_type": "qwen3_vl_text", **TEXT}, QWEN3, {}),
    "qwen3_vl_moe": ({"model_type": "qwen3_vl_moe_text", **EXPERTS, **TEXT}, QWEN3, {}),
    "idefics3": (
        {"model_type": "llama", **TEXT},
        {"model_type": "idefics3_vision", **SIGLIP},
        {"scale_factor": 2, "tie_word_embeddings": False},
    ),
    "smolvlm": (
        {"model_type": "llama", **TEXT},
        {"model_type": "smolvlm_vision", **SIGLIP},
        {"scale_factor": 4, "tie_word_embeddings": False},
    ),
    "internvl": (
        {"model_type": "qwen2", **TEXT},
        {
            "model_type": "internvl_vision",
            "attention_bias": True,
            **CLIP,
            "image_size": [112, 112],
            "patch_size": [14, 14],
        },
        {"tie_word_embeddings": False},
    ),
    "paligemma": (
        {"model_type": "gemma", **TEXT},
        {"model_type": "siglip_vision_model", "vision_use_head": False, "projection_dim": 128, **SIGLIP},
        {"projection_dim": 128},
    ),
    "glm4v": ({"model_type": "glm4v_text", **TEXT}, GLM, {}),
    "glm46v": ({"model_type": "glm4v_text", **TEXT}, GLM, {}),
    "glm4v_moe": (
        {
            "model_type": "glm4v_moe_text",
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            **TEXT,
        },
        GLM,
        {},
    ),
    "llava_next": (
        {"model_type": "llama", **TEXT},
        {"model_type": "clip_vision_model", "image_size": 112, "patch_size": 14, **CLIP},
        {"image_grid_pinpoints": [[112, 224], [224, 112], [224, 224]]},
    ),
    "llava_onevision": (
        {"model_type": "qwen2", **TEXT},
        {"model_type": "siglip_vision_model", "vision_use_head": False, **SIGLIP},
        {"image_grid_pinpoints": [[112, 112], [112, 224], [224, 224]], "tie_word_embeddings": False},
    ),
    "qwen2_5_omni_thinker": (
        {"model_type": "qwen2_5_omni_text", **TEXT},
        {
            "hidden_size": 64,
            "intermediate_size": 172,
            "out_hidden_size": 128,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            **QWEN,
        },
        {},
    ),
    "qwen3_omni_moe_thinker": (
        {"model_type": "qwen3_omni_moe_text", **EXPERTS, **TEXT},
        QWEN3,
        {},
    ),
    "mistral3": (
        {"model_type": "mistral", **TEXT},
        {"model_type": "pixtral", "head_dim": 32, **SIGLIP},
        {"tie_word_embeddings": False},
    ),
    "kimi_k25": (
        {"model_type": "llama", **TEXT},
        {
            "pos_emb_height": 8,
            "pos_emb_width": 8,
            "patch_size": 14,
            **CLIP,
        },
        {"projection_hidden_size": 64, "tie_word_embeddings": False},
    ),
}
TEXT_PARTS = ("language_model", "text_model", "lm_head")
BATCH = 2
RUN = (
    "exaone4_5", "gemma3", "glm4v", "idefics3", "internvl", "kimi_k25", "llama4", "llava", "llava_next", "llava_onevision", "mistral3",
    "paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_vl",
)  # fmt: skip
PACKED = ("glm", "qwen", "kimi", "exaone")
REPEATING = ("exaone4_5",)
"""Classes that copy keys and values for every head of queries before attention, and keep the copies."""
TILED = ("llava_next", "llava_onevision")
CUT = 224
"""Pixels of a side of an image that is seen as four tiles and as a whole."""


def configuration(kind: str) -> dict[str, Any]:
    text, vision, others = TOWERS_OF[kind]
    return {"model_type": kind, "text_config": text, "vision_config": vision, **others}


def ours(kind: str) -> Model:
    return read_huggingface(configuration(kind), name=kind, where="test").model


def classes(kind: str, **options: Any) -> Any:
    keys = {key: value for key, value in configuration(kind).items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(kind, **keys)
    return transformers.AutoModelForImageTextToText.from_config(config, **options)


def test_every_tower_is_tried():
    """Kimi-VL's classes are not in transformers, nor InternVL's own; their towers are Kimi-K2.5's and InternVL's there."""
    assert set(TOWERS_OF) == set(TOWERS) - {"kimi_vl", "internvl_chat"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TOWERS_OF)
def test_parameters_equal_those_of_the_class(kind: str):
    with torch.device("meta"):
        model = classes(kind)
    biases = [item for item in model.named_buffers() if item[0].endswith("e_score_correction_bias")]
    named = (*model.named_parameters(), *biases)  # ears are left out, and said to be
    sizes = {name: tensor.numel() for name, tensor in named if "audio_tower" not in name}
    text = sum(size for name, size in sizes.items() if any(part in name for part in TEXT_PARTS))
    counts = count_parameters(ours(kind))
    assert (counts.total, counts.vision) == (sum(sizes.values()), sum(sizes.values()) - text)


def patch_of(kind: str) -> int:
    """Return the pixels along each side of a patch."""
    return ours(kind).vision.patch_size


def batch(kind: str) -> int:
    """Return how many images are seen: transformers runs several of Pixtral's as one sequence under a mask."""
    return 1 if kind == "mistral3" else BATCH


def seen(kind: str) -> Images:
    return Images(count=batch(kind), size=CUT if kind in TILED else 8 * patch_of(kind))


def pixels(kind: str, images: int) -> dict[str, Any]:
    """Return the input of so many images of 8 x 8 patches."""
    side, patch = 8, patch_of(kind)
    if kind.startswith(PACKED):
        item = (3, patch, patch) if kind == "kimi_k25" else (3 * 2 * patch**2,)
        return {
            "pixel_values": torch.randn(images * side**2, *item, dtype=torch.bfloat16),
            "image_grid_thw": torch.tensor([[1, side, side]] * images),
        }
    if kind in TILED:
        tiles = torch.randn(images, 5, 3, 112, 112, dtype=torch.bfloat16)
        return {"pixel_values": tiles, "image_sizes": torch.tensor([[CUT, CUT]] * images)}
    result = {"pixel_values": torch.randn(images, 3, 112, 112, dtype=torch.bfloat16)}
    if kind == "idefics3":
        return {"pixel_values": result["pixel_values"][None]}
    return result | ({"image_sizes": torch.tensor([[112, 112]] * images)} if kind == "mistral3" else {})


def flat(parts: Any) -> list[Any]:
    """Return the tensors of lists in lists."""
    if not isinstance(parts, list | tuple):
        return [parts]
    return [item for part in parts for item in flat(part)]


def features(model: Any, kind: str, values: dict[str, Any]) -> Any:
    """Return what the tower and its projectors make of images, all of it."""
    more: dict[str, Any] = (
        {"vision_feature_select_strategy": "default"}
        if kind in ("internvl", "llama4", "llava", "llava_next")
        else {}
    )
    if kind in ("internvl", "llava", "llava_next"):
        more["vision_feature_layer"] = -1  # of the usual -2 the last layer has no backward
    image_features = getattr(model, "model", model).get_image_features(**values, **more, return_dict=True)
    if kind == "llama4":  # its projector follows
        return model.multi_modal_projector(image_features.last_hidden_state)
    parts = flat([image_features.pooler_output, getattr(image_features, "deepstack_features", None) or ()])
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RUN)
def test_flops_equal_those_that_torch_counts(kind: str):
    torch.manual_seed(0)
    model = classes(kind, attn_implementation="sdpa", dtype=torch.bfloat16)
    passes = [counter.FlopCounterMode(display=False, custom_mapping=FLASH) for _ in range(2)]
    with passes[0]:
        result = features(model, kind, pixels(kind, batch(kind)))
    vision = ours(kind).vision
    if kind != "llama4":
        assert len(result) == batch(kind) * vision.tokens(seen(kind)) * (1 + vision.num_deepstack)
    with passes[1]:
        result.float().sum().backward()
    blocks = whole_blocks(ours(kind), images=seen(kind))
    flops = [(block_flops(block, "masked"), times) for block, times in blocks if block.name.startswith(TOWER)]
    assert sum(times * item.forward for item, times in flops) == passes[0].get_total_flops()
    assert sum(times * item.backward for item, times in flops) == passes[1].get_total_flops()


def beside(kind: str) -> float:
    """Return the bytes of what transformers' classes keep beside PyTorch's own modules.

    CLIP's activation is in two steps; products of q, k and v lie in one storage, or results of attention in two;
    rotary tables; indices and weights of the learned positions that each patch lies between.
    """
    encoder = ours(kind).vision.encoder
    tokens, layer = batch(kind) * 64 * (5 if kind in TILED else 1), encoder.layers[0]
    quick = layer.ffn.ffn_hidden_size if kind in ("llava", "llava_next", "qwen2_vl") else 0
    whole = 2 * encoder.hidden_size if kind.startswith(("glm", "qwen")) else 0
    whole += encoder.hidden_size if kind == "kimi_k25" else 0
    tables = 2 * 4 * tokens * layer.attention.head_dim if kind.startswith(PACKED) else 0
    between = {"kimi_k25": 16, "qwen3_5": 4, "qwen3_vl": 4}.get(kind, 0)
    tables += tokens * between * (8 + 2)
    return 2.0 * encoder.num_layers * tokens * (quick + whole) + tables


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in RUN if kind not in REPEATING])
@pytest.mark.parametrize("frozen", [(), ("vision", "projector")])
def test_bytes_are_those_that_autograd_keeps(kind: str, frozen: tuple[FrozenPart, ...]):
    """Of PyTorch's own modules, with what transformers' classes keep beside: see `beside`."""
    torch.manual_seed(0)
    model = classes(kind, attn_implementation="sdpa", dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        projects = any(part in name for part in ("projector", "merger", "vision_adapter"))
        parameter.requires_grad = ("projector" if projects else "vision") not in frozen
    value = pixels(kind, batch(kind))
    if frozen == ("vision", "projector"):
        assert not features(model, kind, value).requires_grad
    strategy = Layout(
        kernels=Kernels(fused=ours(kind).vision.encoder.norm == "layer")
    )  # RMS is in single steps
    degrees, choices = split_layout(strategy)
    layout = ShardingRules(
        degrees=degrees,
        choices=choices,
        precision=Precision(),
        seq_len=64.0,
        trainable=Trainable(frozen=frozen),
        images=seen(kind),
    )
    blocks = build_blocks(ours(kind), layout).vision
    ours_kept = sum(times * float(keep(block, Recompute()).num_bytes) for times, block in blocks)
    if frozen == ("vision", "projector"):
        assert ours_kept == 0
        return
    theirs = saved_bytes(model, lambda: features(model, kind, value))
    assert ours_kept + beside(kind) == pytest.approx(theirs, rel=0.04)


@pytest.mark.parametrize("kind", TILED)
def test_tokens_of_any_size_are_those_that_the_processor_counts(kind: str):
    tile, patch = {"llava_next": (336, 14), "llava_onevision": (384, 14)}[kind]
    text, vision, _ = TOWERS_OF[kind]
    vision = vision | {"image_size": tile, "patch_size": patch}
    config = {"model_type": kind, "text_config": text, "vision_config": vision}
    result = read_huggingface(config, name=kind, where="test").model.vision
    classes = {
        "llava_next": transformers.LlavaNextProcessor,
        "llava_onevision": transformers.LlavaOnevisionProcessor,
    }
    grids = transformers.AutoConfig.for_model(kind).image_grid_pinpoints
    processor = classes[kind].__new__(classes[kind])
    processor.patch_size, processor.vision_aspect_ratio = patch, "anyres_max_9"
    processor.num_additional_image_tokens, processor.num_image_tokens = 0, (tile // patch) ** 2
    processor.image_processor = SimpleNamespace(image_grid_pinpoints=grids)
    for size in range(100, 3000, 97):
        number = processor._get_number_of_features(size, size, tile, tile)
        assert result.tokens(Images(size=size)) == number


def test_tiles_of_internvl_are_those_that_its_processor_cuts():
    """Rows of square images by `get_optimal_tiled_canvas` of transformers 5.23, whose module needs torchvision."""
    config = {
        "model_type": "internvl_chat",
        "llm_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {"model_type": "intern_vit_6b", "qkv_bias": True, **CLIP, "num_hidden_layers": 24},
    }
    vision = read_huggingface(config, name="internvl", where="test").model.vision
    for size, tiles in ((100, 1), (448, 1), (633, 1), (634, 5), (950, 5), (951, 10), (2904, 10)):
        assert vision.num_tiles(Images(size=size)) == tiles
        assert vision.tokens(Images(size=size)) == 256 * tiles


def test_internvls_own_file_is_its_file_in_transformers():
    config = configuration("internvl")
    text, vision = config["text_config"], dict(config["vision_config"])
    local = {"model_type": "intern_vit_6b", "qkv_bias": vision.pop("attention_bias"), **CLIP}
    chat = {"model_type": "internvl_chat", "llm_config": text, "dynamic_image_size": False,
            "vision_config": local | {"image_size": 112, "patch_size": 14}}  # fmt: skip
    assert read_huggingface(chat, name="internvl", where="test").model == ours("internvl")
