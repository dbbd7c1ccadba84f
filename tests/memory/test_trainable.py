"""Memory where some weights are frozen: what was published, and what follows from the elements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe

from forescale import project
from forescale.errors import SpecError
from forescale.graph.per_block import build_blocks
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.parameters import Elements, Weights, gathered_bytes, holdings
from forescale.memory.states import moments_per_parameter
from forescale.spec import Layout, Precision, Workload
from forescale.spec.workload import QUANTISED_BYTES, Trainable
from forescale.units import GIB

LORA = {"lora_rank": 16}


def asked(model, *, trainable, precision=None, seq_len=512, batch=1, **words):
    return project(
        model,
        cluster="h100-sxm",
        seq_len=seq_len,
        global_batch_size=batch,
        trainable=trainable,
        precision={"frozen": "nf4_double", "master": "none", **(precision or {})},
        **{"devices": 1, "micro_batch_size": 1, **words},
    )


def test_qlora_fits_65b_on_48_gb():
    """Dettmers et al. 2023, arXiv:2305.14314, abstract: 65B on one 48 GB GPU, instead of more than 780 GB."""
    paged = {"offload": {"optimizer": 1.0}, "recompute": {"granularity": "full"}}
    result = asked("llama-65b", trainable={"lora_rank": 64}, precision={"gradients": "bf16"}, **paged)
    assert result.memory.peak_bytes < 48e9
    assert result.memory.stages[0].weights_bytes > 33e9
    whole = asked("llama-65b", trainable={}, precision={"frozen": None, "parameters": "fp32"}, zero=0)
    states = whole.memory.stages[0]
    assert states.weights_bytes + states.gradients_bytes + states.optimizer_bytes > 780e9


def test_double_quantisation_saves_three_gigabytes_of_65b():
    """Section 3 of the same: 0.373 bits per parameter, about 3 GB for 65B."""
    saved = 8.0 * (QUANTISED_BYTES["nf4"] - QUANTISED_BYTES["nf4_double"])
    assert saved == pytest.approx(0.373, abs=5e-4)
    single, double = (
        asked("llama-65b", trainable={"lora_rank": 64}, precision={"frozen": kind}).memory.stages[0]
        for kind in ("nf4", "nf4_double")
    )
    assert single.weights_bytes - double.weights_bytes == pytest.approx(3e9, rel=0.05)


def test_lora_of_gpt3_holds_350_gb_of_weights_and_35_mb_of_adapters():
    """Hu et al. 2021, arXiv:2106.09685, section 4.2: 1.2 TB become 350 GB, a checkpoint 35 MB at rank 4."""
    trainable = {"lora_rank": 4, "lora_targets": ("q_proj", "v_proj")}
    result = asked("gpt3-175b", trainable=trainable, precision={"frozen": "bf16"})
    stage = result.memory.stages[0]
    assert stage.frozen_bytes == pytest.approx(350e9, rel=0.01)
    assert 2.0 * result.params.trained == pytest.approx(35 * 2**20, rel=0.05)
    assert (stage.gradients_bytes + stage.optimizer_bytes) / stage.weights_bytes < 1e-3


def test_qlora_of_405b_on_eight_devices():
    """torchtune, README.md: QLoRA of Llama 3.1 405B takes 44.8 GB on each of 8 A100."""
    result = asked(
        "llama-3.1-405b",
        trainable={"lora_rank": 16},
        devices=8,
        batch=8,
        zero=3,
        dp_shard=8,
        recompute={"granularity": "full"},
    )
    assert result.memory.stages[0].weights_bytes == pytest.approx(405.9e9 * 0.516 / 8, rel=0.05)
    assert result.memory.peak_bytes == pytest.approx(44.8e9, rel=0.15)


def test_lora_of_8b_on_24_gb():
    """torchtune, README.md: LoRA of Llama 3.1 8B takes 16.2 GiB on an RTX 4090, batch and sequences short."""
    result = asked(
        "llama-3.1-8b",
        trainable={
            "lora_rank": 8,
            "lora_targets": ("q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
        },
        precision={"frozen": "bf16", "gradients": "bf16"},
        seq_len=128,
        recompute={"granularity": "full"},
    )
    assert result.memory.stages[0].allocated_bytes / GIB == pytest.approx(16.2, rel=0.06)


@pytest.mark.parametrize("model", [dense(), moe()])
def test_states_follow_trained_elements(model):
    """Weights are all there, gradients and optimizer states are those of trained elements."""
    run = {"seq_len": 256, "global_batch_size": 8}
    layout = Layout(dp_shard=8, ep=2 if model.is_moe else 1)

    def stage(**more):
        result = project(model, cluster(8), layout, Workload(**run, **more))
        return result.memory.stages[0], result.params

    whole, _ = stage()
    frozen, params = stage(trainable=Trainable(frozen=("embedding", "head", "norm")))
    assert frozen.weights_bytes == whole.weights_bytes
    ratio = frozen.gradients_bytes / whole.gradients_bytes
    if not model.is_moe:  # experts are sharded over fewer ranks
        assert ratio == frozen.optimizer_bytes / whole.optimizer_bytes
    assert ratio < 1.0
    assert params.trained < params.total
    narrow, _ = stage(trainable=Trainable(lora_rank=8), precision=Precision(frozen="int8"))
    assert narrow.frozen_bytes < 0.7 * whole.weights_bytes
    assert narrow.gradients_bytes < 0.1 * whole.gradients_bytes


@pytest.mark.parametrize(("frozen", "numbers"), [("fp32", 30.0), ("bf16", 30.0), ("int8", 20.0)])
def test_frozen_weights_travel_as_they_are_kept_but_never_wider_than_products_take_them(frozen, numbers):
    weights = Weights(
        dense=30.0, expert=0.0, trained=Elements(dense=10.0, expert=0.0),
        **{"quantised" if frozen == "int8" else "frozen": Elements(dense=20.0, expert=0.0)},
    )  # fmt: skip
    assert weights.sent(Precision(frozen=frozen)).dense == numbers
    head = replace(weights, **{name: Elements(dense=0.0, expert=0.0, vocabulary=20.0) for name in (
        "quantised" if frozen == "int8" else "frozen",
    )})  # fmt: skip
    assert head.sent(Precision(frozen=frozen)).vocabulary == numbers - 10


def test_a_gather_takes_products_numbers():
    """Of 32-bit products parameters travel in 32 bits: TF32 takes them so, and rounds them itself."""
    assert [gathered_bytes(Precision(compute=name)) for name in ("fp32", "tf32", "bf16", "fp8")] == [
        4,
        4,
        2,
        2,
    ]


KEPT_NARROW = [  # in which weights are kept and multiplied, bytes that travel of those of products, and of others
    ({"compute": "fp8", "recipe": "delayed", "parameters": "fp8"}, 1.0, 2.0),
    ({"compute": "fp8", "recipe": "blockwise", "parameters": "fp8"}, 1.0, 2.0),
    ({"compute": "mxfp8", "parameters": "fp8"}, 2.0, 2.0),  # both of its copies are made of 16 bits
    ({"compute": "fp8", "recipe": "delayed"}, 2.0, 2.0),
]


@pytest.mark.parametrize(("types", "narrow", "wide"), KEPT_NARROW)
def test_weights_kept_in_8_bits_travel_in_8_but_embeddings_and_norms_do_not(types, narrow, wide):
    """Megatron-LM, distributed/param_and_grad_buffer.py: a buffer of uint8 for quantised storage but MXFP8's."""
    precision = Precision(**types)
    for model in (dense(), moe()):
        work = Workload(seq_len=256, global_batch_size=8, precision=precision)
        parts = holdings(build_blocks(model, ShardingRules.from_workload(work, *split_layout(Layout()))))
        for layer in (*parts.layers, parts.embedding, parts.head):
            of_products = layer.narrow_trained
            sent, size = layer.sent(precision), gathered_bytes(precision)
            for group in ("dense", "expert"):
                local, all_of = getattr(of_products, group), getattr(layer, group)
                assert getattr(sent, group) * size == pytest.approx(narrow * local + wide * (all_of - local))
            assert sent.vocabulary == layer.vocabulary
        last = parts.layers[-1]
        assert parts.embedding.narrow_trained.dense == 0.0
        assert 0.0 < last.narrow_trained.dense < last.dense
        assert last.narrow_trained.expert == last.expert


def test_what_is_trained_alone_has_moments_gradients_and_tensors():
    """Norms alone: two moments of each under Muon, two tensors a layer; the matrices have neither."""
    model = replace(dense(), tied_embeddings=False)
    norms = Trainable(frozen=("embedding", "head", "attention", "ffn"))
    assert moments_per_parameter(model, "muon", norms).dense == 2.0
    assert moments_per_parameter(model, "muon", Trainable()).dense < 1.4
    work = Workload(seq_len=64, global_batch_size=1, trainable=norms)
    blocks = build_blocks(model, ShardingRules.from_workload(work, *split_layout(Layout())))
    (layer, *_) = holdings(blocks).layers
    assert (layer.tensors, layer.largest_trained.dense) == (2.0, 1024.0)
    assert layer.largest.dense > 1024.0


def test_a_type_of_frozen_weights_needs_some():
    with raises(SpecError, "required_with frozen weights"):
        Workload(seq_len=1, global_batch_size=1, precision=Precision(frozen="nf4"))
    with raises(SpecError, "conflicts frozen nf4, fp8 products"):
        Precision(compute="fp8", frozen="nf4")


def test_tied_matrices_are_frozen_together():
    model = replace(dense(), tied_embeddings=True)
    with raises(SpecError, "illegal_layout tied matrices are frozen together"):
        asked(model, trainable={"frozen": ("head",)}, precision={"frozen": None})


def test_summa_and_published_accounts_train_everything():
    with raises(SpecError, "illegal_layout summa: what is trained"):
        asked(dense(), trainable=LORA, devices=4, tp=2, cp=2, tp_kind="summa")
    with raises(SpecError, "no_effect trainable"):
        asked("llama-3.1-8b", trainable=LORA, preset="playbook")
