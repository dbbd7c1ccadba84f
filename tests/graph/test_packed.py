"""Sequences packed with documents: attention counts the pairs within documents, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.face import ask
from forescale.graph.counts import model_flops
from forescale.graph.ops import AttentionCore
from forescale.graph.per_block import build_blocks
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.project import project


def question(**words):
    usual = {"devices": 8, "seq_len": 8192, "global_batch_size": 16, "zero": 3}
    return ask("llama-3.1-8b", "h100-sxm", **(usual | words))


def cores(request):
    layout = ShardingRules.from_workload(request.workload, *split_layout(request.layout))
    block = build_blocks(request.model, layout).layers[0]
    return [
        item for operator in block.operators for item in operator.forward if isinstance(item, AttentionCore)
    ]


def test_pairs_of_documents_by_hand():
    (whole,), (packed,) = cores(question()), cores(question(document_len=2048))
    assert whole.pairs == 8192 * 8193 / 2
    assert packed.pairs == 4 * (2048 * 2049 / 2)


def test_the_mean_weighted_by_tokens_stands_for_any_lengths():
    lengths = (1000, 3000, 4192)
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    mean = sum(length**2 for length in lengths) / sum(lengths)
    (core,) = cores(replace(question(), workload=replace(question().workload, document_len=round(mean))))
    assert core.pairs == pytest.approx(pairs, rel=1e-3)


def test_context_ranks_share_the_pairs():
    (core,) = cores(question(cp=2, document_len=1024))
    assert core.pairs == 8 * (1024 * 1025 / 2) / 2
    (uneven,) = cores(question(cp=2, cp_balanced=False, document_len=1024))
    assert uneven.pairs == core.pairs


def test_one_document_is_a_whole_sequence():
    usual = project(question())
    for length in (8192, 100_000):
        assert project(question(document_len=length)).step_time_s == usual.step_time_s


def test_flop_and_time_fall_with_attention_alone():
    model = question().model
    usual, packed = project(question()), project(question(document_len=2048))
    flops = model_flops(model, 8192), model_flops(model, 8192, document_len=2048)
    core = 3 * 2 * 2 * 32 * 128 * 32  # three passes of two products over 32 heads of 128 in 32 layers
    assert flops[0].masked - flops[1].masked == core * (8192 * 8193 - 4 * 2048 * 2049) / 2
    assert flops[0].full == flops[1].full
    assert packed.step_time_s < usual.step_time_s
    assert packed.memory.peak_bytes == usual.memory.peak_bytes
