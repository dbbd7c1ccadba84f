"""Loops over experts, and modules that require more than token ids."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forescale.trace import trace

EXPERTS, CHOSEN, WIDTH = 4, 2, 16


class Experts(nn.Module):
    """Experts in a loop that asks which of them have tokens."""

    def __init__(self, *, counts: bool):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.weights = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH))
        self.counts = counts

    def forward(self, x):
        rows = x.reshape(-1, WIDTH)
        values, chosen = torch.topk(self.router(rows).softmax(-1), CHOSEN)
        return (self.split if self.counts else self.loop)(rows, values, chosen).view_as(x)

    def loop(self, rows, values, chosen):
        mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        result = torch.zeros_like(rows)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            number = int(expert.item())
            rank, token = torch.where(mask[number])
            part = F.linear(rows[token], self.weights[number]) * values[token, rank, None]
            result.index_add_(0, token, part)
        return result

    def split(self, rows, values, chosen):
        gates = torch.zeros([len(rows), EXPERTS], dtype=rows.dtype).scatter(1, chosen, 1)
        sizes = gates.long().sum(0).tolist()
        order = chosen.flatten().sort(0)[1]
        parts = [F.linear(part, self.weights[n]) for n, part in enumerate(rows[order // CHOSEN].split(sizes))]
        weighted = torch.cat(parts) * values.flatten()[order, None]
        return torch.zeros_like(rows).index_add(0, order // CHOSEN, weighted)


@pytest.mark.parametrize("counts", [False, True])
def test_each_expert_multiplies_its_share_of_the_tokens(counts):
    with torch.device("meta"):
        module = Experts(counts=counts)
    model = trace(module, lambda batch, length: (torch.empty(batch, length, WIDTH),), seq_len=64)
    (traced,) = model.traces
    (block,) = traced.blocks.values()
    products = [
        kernel
        for operator in block.operators
        for kernel in operator.forward
        if kernel.kind.startswith("product") and kernel.extents[1].at(1.0, 1.0) == WIDTH
    ]
    assert sum(kernel.count for kernel in products) == EXPERTS
    assert {kernel.extents[0].at(3.0, 32.0) for kernel in products} == {3 * 32 * CHOSEN / EXPERTS}
    assert traced.synchronises
