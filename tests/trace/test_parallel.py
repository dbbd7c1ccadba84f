"""Traces of modules that a plan splits over ranks of tensor parallelism."""

import pytest
import torch
from tests.errors import raises
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import forescale as fs
from forescale.errors import ForescaleError

PLAN = {
    "blocks.*.query": "colwise",
    "blocks.*.key": "colwise",
    "blocks.*.value": "colwise",
    "blocks.*.out": "rowwise",
}


class Attention(nn.Module):
    """Attention whose number of heads follows from its layers, or not."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        batch, length, _ = x.shape
        size = 8 if self.heads is None else -1
        shape = (batch, length, -1 if self.heads is None else self.heads, size)
        q, k, v = (
            layer(self.norm(x)).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Stack(nn.Module):
    def __init__(self, heads=None):
        super().__init__()
        self.blocks = nn.ModuleList(Attention(heads) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.float().sum()


def traced(heads=None, plan=PLAN):
    with torch.device("meta"):
        module = Stack(heads).bfloat16()
    return fs.trace(module, lambda batch, length: (torch.empty(batch, length, 64),), seq_len=32, tp_plan=plan)


@pytest.fixture(scope="module")
def model():
    return traced()


def test_ranks_have_their_part_of_layers_and_heads(model):
    (trace,) = model.traces
    block = trace.blocks[trace.layers[-1]]
    assert trace.tp == 8
    (attention,) = block.attention
    assert [extent.at(2.0, 32.0, tp=4.0) for extent in attention.extents[:4]] == [2.0, 2.0, 2.0, 32.0]
    sums = [
        kernel
        for operator in block.operators
        for kernel in (*operator.forward, *operator.backward)
        if kernel.kind == "tp_all_reduce"
    ]
    assert sum(kernel.count for kernel in sums) == 4
    assert {kernel.extents[1].at(2.0, 32.0, tp=2.0) for kernel in sums} == {2 * 32 * 64 * 2}


def test_a_projection_splits_what_the_plan_splits(model):
    options = {"devices": 4, "seq_len": 32, "global_batch_size": 8, "framework": "transformers"}
    whole, split = (fs.project(model, "h200-sxm", tp=tp, **options) for tp in (1, 4))
    assert split.params.per_device_max < whole.params.per_device_max
    assert split.time_s["tensor_comm"] > 0.0
    with pytest.raises(ForescaleError, match="tp 1 or 2 or 4 or 8"):
        fs.project(model, "h200-sxm", tp=16, **{**options, "devices": 16})


def test_a_forward_that_counts_all_heads_is_refused():
    with pytest.raises(ForescaleError, match="counts all heads"):
        traced(heads=8)


def test_plans_of_other_layers_and_styles_are_refused():
    with raises(ForescaleError, "not_one_of tp_plan", value="gate"):
        traced(plan={"blocks.*.gate": "colwise"})
    with raises(ForescaleError, "not_one_of the style of query", value="diagonal"):
        traced(plan={"blocks.*.query": "diagonal"})
