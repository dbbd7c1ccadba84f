"""Memory of whole stages, every part worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy

from forescale.memory.overhead import read_table
from forescale.project import project
from forescale.spec import DenseFfn, Layer, Model, MoeFfn, Precision, Strategy, Workload
from forescale.spec.strategy import Kernels

HIDDEN, WIDTH, VOCAB = 96, 160, 1000
LAYER = Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=WIDTH), num_norms=1)
MODEL = Model(name="by-hand", hidden_size=HIDDEN, layers=(LAYER,) * 6, vocab_size=VOCAB, vocab_multiple=1)
WORK = Workload(seq_len=512, global_batch_size=30)
PIPELINE = Strategy(pp=3, dp_shard=5, micro_batch_size=2)
TOKENS = 2 * 512
PER_LAYER = HIDDEN + HIDDEN * 2 * WIDTH + WIDTH * HIDDEN
ENDS = (HIDDEN * VOCAB, 0, HIDDEN + HIDDEN * VOCAB)
"""Embedding, nothing, final norm and head."""
HELD = [2 * PER_LAYER + end for end in ENDS]


def stages(layout=PIPELINE, model=MODEL, work=WORK):
    return project(model, toy.cluster(layout.num_devices), layout, work, costs=toy.costs()).memory.stages


def of(found, part):
    return [getattr(stage, f"{part}_bytes") for stage in found]


@pytest.mark.parametrize(("zero", "shards"), [(0, (1, 1, 1)), (1, (1, 1, 5)), (2, (1, 5, 5)), (3, (5, 5, 5))])
def test_states(zero, shards):
    """Weights in 2 bytes, gradients in 4, master copy and two moments in 12."""
    found = stages(replace(PIPELINE, zero=zero))
    for part, size, ranks in zip(("weights", "gradients", "optimizer"), (2, 4, 12), shards, strict=True):
        assert of(found, part) == pytest.approx([size * held / ranks for held in HELD])


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("adamw", (2, 2)), ("lion", (1, 1)), ("sgd", (1, 1)), ("muon", (1, 2))]
)
def test_moments(optimizer, moments):
    """Of matrices inside layers, and of norms and both ends, averaged over the whole model."""
    inside, others = 6 * (PER_LAYER - HIDDEN), 6 * HIDDEN + 2 * HIDDEN * VOCAB + HIDDEN
    mean = (moments[0] * inside + moments[1] * others) / (inside + others)
    found = stages(replace(PIPELINE, zero=0), work=replace(WORK, optimizer=optimizer))
    assert of(found, "optimizer") == pytest.approx([(4 + 4 * mean) * held for held in HELD])


def test_states_of_other_types():
    """bf16 gradients and moments, no master copy."""
    precision = Precision(gradients="bf16", moments="bf16", master="none")
    found = stages(replace(PIPELINE, zero=0), work=replace(WORK, precision=precision))
    assert [
        stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes for stage in found
    ] == pytest.approx([(2 + 2 + 4) * held for held in HELD])


KEPT = TOKENS * (2 * HIDDEN + 2 * HIDDEN + 4 + 2 * 2 * WIDTH + 2 * WIDTH)
"""Input, norm's result and statistic, both factors, their product."""


def test_activations():
    """3, 2, 1 micro-batches in flight of two layers; one layer's backward, or the head's, at work."""
    working = TOKENS * (2 * HIDDEN + 2 * 3 * WIDTH - 2 * WIDTH)  # four gradients, for the activation's result
    ends = 2 * HIDDEN + 2 * HIDDEN + 4
    loss = max(TOKENS * (ends + 6 * VOCAB), TOKENS * (ends + 2 * VOCAB + 2 * HIDDEN) + 2 * HIDDEN * VOCAB)
    ids = 8 * TOKENS
    expected = [3 * (2 * KEPT + ids) + working, 2 * 2 * KEPT + working, 2 * KEPT + max(working, loss)]
    assert of(stages(), "activations") == pytest.approx(expected)
    # DeepSpeed keeps what it sent: a message of 2 bytes per number of each micro-batch in flight.
    sent = stages(replace(PIPELINE, kernels=Kernels(keeps_stage_outputs=True)))
    more = [3 * 2 * TOKENS * HIDDEN, 2 * 2 * TOKENS * HIDDEN, 0]
    assert of(sent, "activations") == pytest.approx([a + b for a, b in zip(expected, more, strict=True)])


def test_buffers():
    """Below stage 3 one dummy gradient of each shape in the parameters' type; buckets in that of gradients."""
    shapes = 2 * (HIDDEN * 2 * WIDTH + WIDTH * HIDDEN)
    assert of(stages(), "buffers") == pytest.approx([shapes] * 3)
    bucket = stages(replace(PIPELINE, kernels=Kernels(bucket_elements=1e6, accumulate_in_product=False)))
    assert of(bucket, "buffers") == pytest.approx([4e6] * 3)


def test_buffers_of_sharded_parameters():
    """Two blocks' weights, a gradient as made and as reduced; kept whole: weights, and gradients beyond their shards."""
    alone = Strategy(dp_shard=5, zero=3, micro_batch_size=2)
    (found,) = stages(alone)
    head = HIDDEN + HIDDEN * VOCAB
    assert found.buffers_bytes == max((2 * 2 + 2 + 4) * PER_LAYER, (2 + 2 + 4) * head)
    (whole,) = stages(replace(alone, reshard="never"))
    total = 6 * PER_LAYER + HIDDEN * VOCAB + head
    assert whole.buffers_bytes == pytest.approx((2 + 4 * 4 / 5) * total, rel=1e-12)


def test_gradients_in_16_bits_are_copied_to_fp32_where_activations_do_not_leave_room():
    """The update needs 4 bytes of each parameter of its share: what freed activations do not hold."""
    work = Workload(seq_len=2, global_batch_size=15, precision=Precision(gradients="bf16"))
    layout = Strategy(pp=3, dp_shard=5, zero=0)
    found = stages(layout, work=work)
    standing = 2 * (HIDDEN * 2 * WIDTH + WIDTH * HIDDEN)
    for stage, held in zip(found, HELD, strict=True):
        assert stage.buffers_bytes == pytest.approx(max(standing, 4 * held - stage.activations_bytes))


def test_overhead():
    """What lies outside the allocator, and its pieces: both measured, in the package's tables."""
    table = read_table("overhead")["pytorch"]
    context, ratio = table["context_bytes"][1], table["fragmentation"]["segments"]["fixed"][1]
    for stage in stages():
        allocated = (
            stage.weights_bytes
            + stage.gradients_bytes
            + stage.optimizer_bytes
            + stage.activations_bytes
            + stage.buffers_bytes
        )
        assert stage.overhead_bytes == pytest.approx(context + (ratio - 1) * allocated)
        assert stage.allocated_bytes == pytest.approx(allocated)


def test_context_ranks_share_states():
    """They hold the same weights: 3 x cp 2 shards."""
    (found,) = stages(Strategy(cp=2, dp_shard=3, zero=2), work=Workload(seq_len=64, global_batch_size=3))
    held = 6 * PER_LAYER + 2 * HIDDEN * VOCAB + HIDDEN
    assert found.optimizer_bytes == pytest.approx(12 * held / 6)
    assert found.gradients_bytes == pytest.approx(4 * held / 6)


def test_experts_are_sharded_over_their_own_replicas():
    """ep 2 of dp 8: a device holds 5 of 10 experts, whose states lie on 4 ranks; the router's on 8."""
    layer = replace(LAYER, ffn=MoeFfn(num_experts=10, top_k=2, ffn_hidden_size=WIDTH))
    model = replace(MODEL, layers=(layer,) * 2, name="by-hand-moe")
    dense = 2 * (HIDDEN + HIDDEN * 10) + 2 * HIDDEN * VOCAB + HIDDEN
    expert = 2 * 5 * 3 * HIDDEN * WIDTH
    work = Workload(seq_len=64, global_batch_size=8)
    (found,) = stages(Strategy(dp_shard=8, ep=2), model, work)
    assert found.weights_bytes == 2 * (dense + expert)
    assert found.optimizer_bytes == pytest.approx(12 * (dense / 8 + expert / 4))
    # Of two replicas of 4 ranks, each shards its experts over two.
    (hybrid,) = stages(Strategy(dp_replicate=2, dp_shard=4, ep=2, zero=2), model, work)
    assert hybrid.optimizer_bytes == pytest.approx(12 * (dense / 4 + expert / 2))
    assert hybrid.gradients_bytes == pytest.approx(4 * (dense / 4 + expert / 2))


def test_a_tied_matrix_is_held_once_on_one_stage_and_on_both_ends_of_several():
    tied = replace(MODEL, tied_embeddings=True)
    (found,) = stages(Strategy(dp_shard=5, micro_batch_size=2), tied)
    assert found.weights_bytes == 2 * (6 * PER_LAYER + HIDDEN * VOCAB + HIDDEN)
    assert of(stages(model=tied), "weights") == pytest.approx([2 * held for held in HELD])


def test_a_small_vocabulary_leaves_the_most_to_gather_to_a_layer():
    """This layer's weights and the next one's, a gradient as made and as reduced."""
    (found,) = stages(Strategy(dp_shard=5, zero=3, micro_batch_size=2), replace(MODEL, vocab_size=8))
    assert found.buffers_bytes == (2 * 2 + 2 + 4) * PER_LAYER
