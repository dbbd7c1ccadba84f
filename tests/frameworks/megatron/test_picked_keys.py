"""Megatron-Core's dsa: flags of an indexer, read and written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError, SpecError
from forescale.export import export
from forescale.face import ask
from forescale.frameworks.megatron import read_arguments
from forescale.frameworks.reading import Options
from forescale.question import Question
from forescale.spec import Indexer, Layout

BASE = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100 --micro-batch-size 1 "
DSA = (
    "--multi-latent-attention --q-lora-rank 32 --experimental-attention-variant dsa --dsa-indexer-n-heads 2 "
    "--dsa-indexer-head-dim 8 --dsa-indexer-topk 4 "
)
FUSED = "--dsa-kernel-backend cudnn "
LOSS = "--dsa-indexer-loss-coeff 0.01 --dsa-indexer-use-sparse-loss "


def read(more="", **options):
    return read_arguments(BASE + DSA + more, options=Options(**options))


def picks(model):
    return "".join("F" if layer.attention.indexer else "S" for layer in model.layers)


def notes(result, word):
    return [note for note in result.notes if word in str(note)]


def test_an_indexer_in_every_layer_trained_by_its_loss():
    result = read(LOSS + FUSED + "--dsa-indexer-rope-interleaved")
    attention = result.model.layers[0].attention
    assert attention.top_k == 4
    assert attention.indexer == Indexer(num_heads=2, head_dim=8, interleaved_rotary=True)
    assert picks(result.model) == "F" * 8
    assert not notes(result, "dsa")


def test_without_a_loss_it_is_left_as_it_is():
    assert not read(FUSED).model.layers[0].attention.indexer.trained
    assert not read(FUSED + "--dsa-indexer-loss-coeff 0").model.layers[0].attention.indexer.trained


def test_what_is_projected_otherwise_is_noted():
    assert notes(read(FUSED + "--dsa-indexer-loss-coeff 0.01"), "--dsa-indexer-use-sparse-loss is not given")
    assert notes(read(LOSS), "--dsa-kernel-backend is none")


def test_layers_that_share_what_one_picked():
    share = "--dsa-indexer-topk-freq 3 --dsa-indexer-skip-topk-offset 2 "
    result = read(LOSS + FUSED + share + "--mtp-num-layers 1")
    assert picks(result.model) == "FFSSFSSF"
    assert result.model.mtp_layer is None  # the last layer picks
    shorter = read_arguments((BASE + DSA + LOSS + FUSED + share + "--mtp-num-layers 1").replace("8", "7", 1))
    assert picks(shorter.model) == "FFSSFSS"
    assert shorter.model.mtp_layer.attention.indexer is not None


def test_every_stage_picks_its_keys():
    share = "--dsa-indexer-topk-freq 2 --dsa-indexer-skip-topk-offset 2 --pipeline-model-parallel-size "
    read(FUSED + share + "1", num_devices=1)
    with raises(
        ReaderError, "unsupported_by Megatron-LM | every stage starts with a layer that picks its keys"
    ):
        read(FUSED + share + "4", num_devices=4)
    read(FUSED + "--pipeline-model-parallel-size 4", num_devices=4)


def laid(name: str, to: str, **layout) -> Question:
    return ask(
        name,
        "h100-sxm",
        devices=64,
        ep=32,
        seq_len=4096,
        global_batch_size=256,
        zero=1,
        recompute="full",
        framework=to,
        **layout,
    )


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5.2"])
@pytest.mark.parametrize("to", ["megatron-core", "megatron-bridge", "primus"])
def test_they_are_written_as_they_are_read(name: str, to: str):
    result = export(laid(name, to))
    assert [item.word for item in result.unsaid if "attention" in item.word] == []
    assert result.read_back.model.layers == load_model(name).layers
    assert result.read_back.step_time_s == pytest.approx(result.projection.step_time_s, rel=1e-9)


def words(name: str) -> str:
    result = export(laid(name, "megatron-core"))
    return " ".join(result.texts[result.main].split())


def test_the_words_of_glm():
    text = words("glm-5.2")
    assert (
        "--experimental-attention-variant dsa --dsa-indexer-n-heads 32 --dsa-indexer-head-dim 128 --dsa-indexer-topk 2048 "
        "--dsa-indexer-topk-freq 4 --dsa-indexer-skip-topk-offset 3 --dsa-indexer-loss-coeff 0.001 "
        "--dsa-indexer-use-sparse-loss --dsa-indexer-rope-interleaved" in text
    )
    every = words("deepseek-v3.2")
    assert "--dsa-indexer-topk-freq" not in every
    assert "--dsa-indexer-rope-interleaved" not in every


def test_another_order_of_picking_cannot_be_told():
    question = laid("glm-5.2", "megatron-core")
    first, shared = question.model.layers[0], question.model.layers[4]
    shares = replace(first, attention=replace(first.attention, indexer=None))
    layers = (first, shares, first, *question.model.layers[3:5], shared, *question.model.layers[6:])
    with raises(SpecError, "unsupported_by megatron-core | order in which layers"):
        export(replace(question, model=replace(question.model, layers=layers)))


def test_stages_that_would_read_keys_of_others_are_not_written():
    question = laid("glm-5.2", "megatron-core")
    cut = Layout(pp=2, ep=32, dp_shard=32, zero=1, stage_layers=(40, 38))
    with raises(
        SpecError, "unsupported_by megatron-core | every stage starts with a layer that picks its keys"
    ):
        export(replace(question, strategy=cut))
    export(replace(question, strategy=replace(cut, stage_layers=(38, 40))))
