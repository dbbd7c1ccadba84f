"""Vision-language programs of Megatron-LM's repository: sizes by name, what is frozen, tiles."""

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.megatron import read_arguments
from forescale.frameworks.reading import packaged
from forescale.graph.counts import count_parameters
from forescale.spec.attention import FullAttention
from forescale.spec.layout import Recompute
from forescale.spec.model import Images

TEXT = "--num-layers 4 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32768 --micro-batch-size 1 --normalization RMSNorm "
IMAGE = "--img-h 336 --img-w 336 --patch-dim 14 --seq-length 576 --decoder-seq-length 4096 "
MISTRAL = "--language-model-type=mistral_7b "
BASE = TEXT + IMAGE + MISTRAL


def read(more="", base=BASE):
    return read_arguments(f"torchrun --nproc-per-node 8 examples/multimodal/train.py {base} {more}")


def tower(more="", base=BASE):
    vision = read(more, base).model.vision
    assert vision is not None
    return vision


def test_clip_has_the_parameters_of_the_published_weights_without_the_norm_behind_it():
    # openai/clip-vit-large-patch14-336: 303,507,456 of the vision model, of which 2,048 are its last norm's
    assert count_parameters(tower().encoder).total == 303_507_456 - 2_048


def test_projectors_are_those_of_the_text_model_that_is_named():
    assert tower().projector == (14336, 4096)
    assert (tower().projector_norm, tower().projector_bias) == (None, False)
    llama = tower(base=TEXT + IMAGE + "--language-model-type llama3.1_8b")
    assert (llama.projector, llama.projector_norm, llama.projector_bias) == ((4096, 4096), "layer", True)
    assert tower("--vision-projection-type affine").projector == (4096,)


def test_the_text_is_what_the_program_makes_of_it_and_as_long_as_its_own_length():
    result = read()
    ffn = result.model.layers[0].ffn
    assert (ffn.ffn_hidden_size, ffn.gated, ffn.bias) == (14336, True, False)
    assert result.workload.seq_len == 4096


@pytest.mark.parametrize(("tp", "heads"), [(1, 25), (4, 28), (8, 32)])
def test_internvit_has_as_many_heads_as_tensor_parallelism_divides(tp, heads):
    result = tower(f"--vision-model-type internvit --tensor-model-parallel-size {tp}")
    attention = result.encoder.layers[0].attention
    assert isinstance(attention, FullAttention)
    assert (attention.num_heads, attention.head_dim, attention.qk_norm) == (heads, 128, "hidden")
    assert result.encoder.branch_scales, "nvlm/internvit.py: LayerScalingTransformerLayer"


def test_radio_has_positions_for_its_largest_image_and_several_tokens_before_the_patches():
    encoder = tower(
        "--vision-model-type radio", base=BASE.replace("336", "512").replace("dim 14", "dim 16")
    ).encoder
    assert encoder.learned_positions == 128**2
    assert encoder.patches.class_tokens == 8
    assert tower("--vision-model-type radio --class-token-len 16").encoder.patches.class_tokens == 16


def test_shuffled_pixels_and_tiles_are_tokens_and_images():
    result = read("--pixel-shuffle --max-num-tiles 6 --use-thumbnail")
    images = result.workload.images
    assert images == Images(count=7)
    assert result.model.vision.tokens(images) == 24**2 // 4
    assert "images of each sequence are taken as 7" in " ".join(result.notes)
    assert read("--num-frames 32").workload.images.count == 32


def test_frozen_parts():
    assert read().workload.trainable.frozen == ()
    assert read("--freeze-ViT").workload.trainable.frozen == ("vision",)
    both = read("--freeze-ViT --freeze-LM").workload.trainable
    assert not both.freezes("projector")
    assert all(both.freezes(part) for part in ("vision", "attention", "ffn", "embedding", "head", "norm"))


def test_a_tower_is_recomputed_only_where_it_is_asked_for():
    full = "--recompute-granularity full --recompute-method block --recompute-num-layers 2 "
    assert read(full).strategy.recompute.of_towers == Recompute()
    of_towers = read(full + "--recompute-vision").strategy.recompute.of_towers
    assert (of_towers.granularity, of_towers.takes_all) == ("full", True)


def test_models_of_mimo_come_from_their_provider():
    arguments = read_arguments(
        "examples/mimo/train.py --model-provider llava_vlm --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--micro-batch-size 4 --encoder-seq-length 4096 --total-seq-length 2048"
    )
    assert (arguments.model.num_layers, arguments.model.vocab_size, arguments.workload.seq_len) == (
        32,
        32256,
        2048,
    )
    assert arguments.model.vision.tokens(Images()) == 576
    assert not arguments.workload.trainable.freezes("projector")


def test_every_entry_of_the_tables_can_be_read():
    tables = packaged("megatron", "vision")
    for name in tables["towers"]:
        assert tower(f"--vision-model-type {name}").encoder.num_layers
    for name, language in tables["languages"].items():
        if "projector" in language:
            assert tower(base=f"{TEXT}{IMAGE} --language-model-type {name}").projector


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--img-w 448", "--img-h 336 and --img-w 448 must be equal, and a multiple of --patch-dim 14"),
        ("--patch-dim 16 --img-h 330 --img-w 330", "a multiple of --patch-dim 16"),
        ("--vision-model-type clop", "not_one_of --vision-model-type"),
        ("--language-model-type llama3.1_70B", "incomplete projector"),
    ],
)
def test_impossible_towers(more, text):
    with raises(ReaderError, text):
        read(more)


def test_pretrain_vlm_has_a_tower_as_wide_as_its_text_and_both_in_one_sequence():
    arguments = read_arguments(
        "pretrain_vlm.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 576 --vocab-size 8193 "
        "--dataloader-seq-length 1232 --img-h 336 --img-w 336 --patch-dim 14 --micro-batch-size 1 "
        "--tensor-model-parallel-size 4 --sequence-parallel --context-parallel-size 2"
    )
    assert arguments.workload.seq_len == 1824  # 1232 + 577 for 4 ranks x 2 x 2
    encoder = arguments.model.vision.encoder
    assert (encoder.num_layers, encoder.hidden_size, encoder.layers[0].ffn.ffn_hidden_size) == (
        12,
        1024,
        4096,
    )
    assert (encoder.layers[0].attention.causal, arguments.model.vision.projector) == (False, (4096, 1024))
