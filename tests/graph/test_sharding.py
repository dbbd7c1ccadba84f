"""Rules of a layout that are no table of axes: what runs beside compute, and what blocks depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import dense

from forescale.graph.per_block import build_blocks
from forescale.graph.sharding import split_layout
from forescale.spec import Layout, Overlap, Precision


@pytest.mark.parametrize("sp", [True, False])
def test_without_its_sequence_tensor_parallelism_has_nothing_to_run_beside(sp):
    """Megatron-LM, training/arguments.py: tp_comm_overlap without sequence parallelism is refused."""
    _, choices = split_layout(Layout(tp=2, sp=sp, overlap=Overlap(tensor=True)))
    assert choices.overlapped == Overlap(tensor=sp)


def test_blocks_depend_on_nothing_that_their_layout_leaves_out():
    strategy = Layout(tp=2, cp=2, pp=4, vpp=2, dp_replicate=2, dp_shard=4, zero=3, micro_batch_size=3)
    layout = toy.layout(strategy, 512.0)
    of_blocks = layout.of_blocks
    assert of_blocks is not None
    assert of_blocks.degrees == replace(
        layout.degrees, **dict.fromkeys(("pp", "vpp", "dp_replicate", "dp_shard", "zero"), 1.0)
    )
    assert build_blocks(dense(), of_blocks) == build_blocks(dense(), layout)


@pytest.mark.parametrize(
    ("zero", "parameters", "gradients"),
    [(0, True, True), (1, True, True), (2, True, False), (3, False, False)],
)
def test_what_ranks_keep_whole_under_each_stage_of_zero(zero, parameters, gradients):
    """Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: stage 2 cuts gradients too, stage 3 parameters too."""
    degrees, _ = split_layout(Layout(dp_shard=8, zero=zero))
    assert (degrees.keeps_parameters, degrees.keeps_gradients) == (parameters, gradients)


@pytest.mark.parametrize(
    ("compute", "gradients", "beyond"),
    [("bf16", "fp32", 6), ("bf16", "bf16", 2), ("tf32", "fp32", 4), ("tf32", "bf16", 0)],
)
def test_what_a_sum_of_weight_gradients_moves_beyond_the_product_s_result(compute, gradients, beyond):
    """The sum is read and written instead of a result that is written in 2 bytes, or in 4; no less than that."""
    precision = Precision(compute=compute, activations=compute.replace("tf", "fp"), gradients=gradients)
    assert toy.layout(Layout(), 512.0, precision).accumulate_bytes == beyond
