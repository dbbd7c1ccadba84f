"""Layers split over two processes give the loss and the gradients of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from tests.bench.tiny import DENSE, FULL, LATENT, MOE, question

from forescale.bench.huggingface import Blocks
from forescale.bench.parallel import sum_partial
from forescale.errors import SpecError
from forescale.runtime import launch


def gradients(asked, group):
    blocks = Blocks(asked, group)  # grouped products know no float64
    tokens = torch.arange(32).view(2, 16) % 64
    loss = blocks(tokens)
    loss.backward()
    if group is not None:
        sum_partial(blocks, group)
    return float(loss.detach()), {name: each.grad for name, each in blocks.named_parameters()}


def compare(rank, pairs):
    """Return the largest difference of losses and gradients over some pairs of a whole and a split question."""
    return max(_difference(rank, whole, cut) for whole, cut in pairs)


def _difference(rank, whole, cut):
    one, single = gradients(whole, None)
    other, split = gradients(cut, dist.group.WORLD)
    worst = abs(one - other)
    for name, part in split.items():
        mine = single[name]
        for dim in range(part.ndim):
            if mine.shape[dim] != part.shape[dim]:
                packed = "gate_up_proj" in name
                halves = [half.chunk(2, dim)[rank] for half in (mine.chunk(2, dim) if packed else [mine])]
                mine = torch.cat(halves, dim)
        worst = max(worst, float((mine - part).abs().max()))
    return worst


def test_two_ranks_find_the_gradients_of_one():
    straight = replace(LATENT, q_lora_rank=None)
    kinds = ((FULL, DENSE), (LATENT, DENSE), (straight, DENSE), (FULL, MOE))
    pairs = [(question(*kind), question(*kind, tp=2)) for kind in kinds]
    assert max(launch(compare, 2, pairs)) < 1e-6


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sp": True, "tp": 2}, "ask with --no-sp"),
        ({"cp": 2}, "split sequences over cp 2"),
        ({"dp_shard": 2}, "shard their states over dp 2"),
    ],
)
def test_what_the_classes_do_not_do_is_said(changes, text):
    asked = question(FULL, DENSE)
    with pytest.raises(SpecError, match=text):
        Blocks(replace(asked, strategy=replace(asked.layout, **changes)))
