"""Layers, experts, sequences and batches split over processes give the loss and the gradients of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from tests.bench.tiny import DENSE, FULL, LATENT, MOE, question
from torch.distributed.tensor import DTensor

from forescale.bench.groups import Groups, groups_of
from forescale.bench.huggingface import HuggingFaceBlocks
from forescale.bench.training import Scattered, Training, _views, check_states
from forescale.errors import SpecError
from forescale.runtime import launch
from forescale.spec.layout import Routing

CPU = torch.device("cpu")
STRAIGHT = replace(LATENT, q_lora_rank=None)
NORMED, BIASED = replace(FULL, qk_norm="head"), replace(FULL, qkv_bias=True, output_bias=True)
SP, SP_MOE = {"tp": 2, "sp": True}, {"tp": 2, "sp": True, "etp": 1}


def gradients(request, groups):
    """Return loss, whole reduced gradients, and weights after a step, which grouped products know in no float64."""
    training = Training(request, CPU, groups)
    loss = training.blocks(training.tokens) / training.share
    loss.backward()
    training.update.reduce()
    scattered = [bucket for bucket in training.update.buckets if isinstance(bucket, Scattered)]
    for bucket in scattered:
        together = torch.empty_like(bucket.weights)
        dist.all_gather(
            list(together.chunk(dist.get_world_size(bucket.group))), bucket.flat, group=bucket.group
        )
        for parameter, gradient in zip(bucket.parameters, _views(together, bucket.parameters), strict=True):
            assert parameter.grad is None
            parameter.grad = gradient
    named_parameters = {name: whole(item.grad).clone() for name, item in training.blocks.named_parameters()}
    for parameter in (parameter for bucket in scattered for parameter in bucket.parameters):
        parameter.grad = None
    for bucket in training.update.buckets:
        if getattr(bucket, "shard", None) is not None and bucket not in scattered:
            parts = list(bucket.flat.chunk(dist.get_world_size(bucket.group)))
            dist.all_gather(parts, parts[bucket.shard], group=bucket.group)
            named_parameters |= {
                name: item.grad for name, item in training.blocks.named_parameters() if item.grad is not None
            }
    loss = loss.detach()
    if groups.dp_cp is not None:
        dist.all_reduce(loss, group=groups.dp_cp)
    named_parameters = {name: item.clone() for name, item in named_parameters.items()}
    for bucket in training.update.buckets:
        bucket.clear()
    training.step()
    return (
        float(loss),
        named_parameters,
        {name: whole(item) for name, item in training.blocks.named_parameters()},
    )


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(_rank, pairs):
    """Return the largest difference of losses, gradients and weights over pairs of a whole and a split question."""
    return [_difference(whole, cut) for whole, cut in pairs]


def _difference(whole, cut):
    one, single, before = gradients(whole, Groups())
    groups = groups_of(cut)
    other, split, after = gradients(cut, groups)
    worst = abs(one - other)
    for name, part in split.items():
        apart = groups.ep if "experts" in name and groups.ep is not None else groups.tp
        plain = name.replace(".after", ".bias")
        mine = _part(single[plain], part, apart, packed="gate_up_proj" in name)
        same = _part(before[plain].detach(), part, apart, packed="gate_up_proj" in name)
        away = ((mine - part).abs().flatten(), (same - after[name]).abs().flatten(), torch.zeros(1))
        worst = max(worst, float(torch.cat(away).max().detach()))
    return worst


def _part(mine, part, group, *, packed):
    for dim in range(part.ndim):
        if mine.shape[dim] != part.shape[dim]:
            ranks, rank = dist.get_world_size(group), dist.get_rank(group)
            halves = mine.chunk(2, dim) if packed and dim == 1 else [mine]
            mine = torch.cat([half.chunk(ranks, dim)[rank] for half in halves], dim)
    return mine


def pair(attention, ffn, **layout):
    cut = question(attention, ffn, microbatches=1, **layout)
    cut = replace(cut, workload=replace(cut.workload, optimizer="sgd"))
    sequences = cut.workload.global_batch_size
    whole = question(attention, ffn, microbatches=1, micro_batch_size=sequences, routing=cut.layout.routing)
    return replace(whole, workload=cut.workload), cut


@pytest.mark.parametrize(
    ("ranks", "cuts"),
    [
        pytest.param(2, [(kind, DENSE, {"tp": 2}) for kind in (FULL, LATENT, STRAIGHT, NORMED, BIASED)], id="tp"),
        pytest.param(2, [(FULL, MOE, {"tp": 2})], id="tp of experts"),
        pytest.param(2, [(kind, DENSE, SP) for kind in (FULL, NORMED, BIASED)], id="sp"),
        pytest.param(2, [(FULL, MOE, {**SP_MOE, **more}) for more in ({}, {"ep": 2}, {"etp": 2})], id="sp of experts"),
        pytest.param(
            2,
            [(kind, DENSE, {"cp": 2, "micro_batch_size": 2}) for kind in (FULL, LATENT)]
            + [(FULL, DENSE, {"cp": 2, "zero": 0, "cp_balanced": False})],
            id="cp",
        ),
        pytest.param(
            2,
            [(FULL, DENSE, {"cp": 2, "cp_kind": "ring", "micro_batch_size": 2})]
            + [(FULL, DENSE, {"cp": 2, "cp_kind": "ring", "cp_balanced": False})]
            + [(kind, DENSE, {"cp": 2, "cp_kind": "ulysses", "micro_batch_size": 2}) for kind in (FULL, LATENT)],
            id="ring and exchanged heads",
        ),
        pytest.param(
            2,
            [(FULL, DENSE, {"dp_shard": 2, "zero": zero}) for zero in (0, 1, 2, 3)]
            + [(FULL, MOE, {"dp_shard": 2, "zero": zero}) for zero in (2, 3)],
            id="dp",
        ),
        pytest.param(
            2,
            [
                (FULL, MOE, {"dp_shard": 2, "ep": 2}),
                (FULL, MOE, {"dp_shard": 2, "ep": 2, "routing": Routing(imbalance=1.5)}),
                (LATENT, MOE, {"cp": 2, "ep": 2}),
            ],
            id="ep",
        ),
        pytest.param(
            4,
            [
                (FULL, DENSE, {**SP, "dp_shard": 2}),
                (FULL, DENSE, {**SP, "cp": 2}),
                (replace(FULL, num_kv_heads=4), DENSE, {"cp": 4, "cp_kind": "ring"}),
                (FULL, DENSE, {**SP, "cp": 2, "cp_kind": "ring"}),
                (FULL, DENSE, {**SP, "dp_shard": 2, "zero": 3}),
                (FULL, DENSE, {**SP, "dp_shard": 2, "zero": 2}),
                (FULL, MOE, {**SP_MOE, "ep": 2, "dp_shard": 2, "zero": 2}),
                (FULL, MOE, {**SP_MOE, "ep": 4, "dp_shard": 2}),
                (FULL, MOE, {**SP, "etp": 2, "dp_shard": 2, "zero": 3}),
                (FULL, MOE, {"ep": 2, "dp_shard": 4, "zero": 0}),
            ],
            id="together",
        ),
    ],
)  # fmt: skip
def test_ranks_find_the_gradients_of_one(ranks, cuts):
    pairs = [pair(attention, ffn, **layout) for attention, ffn, layout in cuts]
    for item in launch(compare, ranks, pairs):
        assert max(item) < 1e-6, item


@pytest.mark.parametrize(
    ("attention", "ffn", "changes", "text"),
    [
        (LATENT, DENSE, SP, "plain fused attention: ask with --no-sp"),
        (replace(FULL, window=8), DENSE, SP, "ask with --no-sp"),
        (FULL, DENSE, {"tp": 4, "sp": False}, "copy key/value heads over tp 4"),
        (
            FULL,
            MOE,
            {**SP, "etp": 2, "ep": 2, "dp_shard": 2},
            "split experts over etp 2 of tp 2: ask with --etp 1",
        ),
        (FULL, MOE, {"tp": 2, "sp": False, "etp": 2, "ep": 2, "dp_shard": 2}, "ask with sp"),
        (
            FULL,
            DENSE,
            {"cp": 2, "cp_kind": "hierarchical"},
            "as hierarchical: ask with --cp-kind all_gather, ring",
        ),
        (LATENT, DENSE, {"cp": 2, "cp_kind": "ring"}, "latent attention's keys and values around a ring"),
        (replace(FULL, window=8), DENSE, {"cp": 2}, "split sequences over cp 2"),
    ],
)
def test_what_the_classes_do_not_do_is_said(attention, ffn, changes, text):
    request = question(attention, ffn)
    with pytest.raises(SpecError, match=text):
        HuggingFaceBlocks(replace(request, strategy=replace(request.layout, **changes)))


@pytest.mark.parametrize(
    ("ffn", "changes", "text"),
    [
        (DENSE, {"dp_shard": 2, "zero": 3, "reshard": "never"}, "ask with --reshard always"),
        (MOE, {"dp_shard": 2, "zero": 3, "ep": 2}, "experts of ep 2 in shards"),
        (DENSE, {"dp_shard": 2, "dp_replicate": 2}, "dp_replicate 2"),
    ],
)
def test_states_that_no_bench_holds_are_named(ffn, changes, text):
    with pytest.raises(SpecError, match=text):
        check_states(question(FULL, ffn, **changes))
