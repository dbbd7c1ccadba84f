"""Blocks of Megatron-Core: what one rank keeps and finds, and what two find together; run in a process of its own.

    python megatron_blocks.py FOLDER < asked.json

FOLDER holds megatron-core and einops; triton, which no layer of its own runs, is stood in for. Reads a list of
[attention, feed-forward, ranks, layout], the first two by the names of tests/bench/tiny.py, all of as many ranks. Prints
what one rank finds of each, or how far several are from one.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), sys.argv[1]]
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from tests.bench import tiny  # noqa: E402
from tests.oracles.torchtitan_parser import _Absent  # noqa: E402

from forescale.bench.blocks import STEP, gradients_apart, kept_bytes, parts_of, timed_step  # noqa: E402
from forescale.bench.groups import Groups, groups_of  # noqa: E402
from forescale.bench.kernels import Watch  # noqa: E402
from forescale.bench.training import Training, adapter_of, as_run  # noqa: E402
from forescale.catalogue.frameworks import load_framework  # noqa: E402
from forescale.graph.counts import count_parameters  # noqa: E402
from forescale.memory.timeline import block_loads, total_bytes  # noqa: E402
from forescale.runtime import launch  # noqa: E402
from forescale.spec.layout import Recompute, Routing  # noqa: E402

sys.meta_path.append(_Absent())
CPU = torch.device("cpu")


def asked_for(attention, ffn, layout):
    """Return a question of Megatron-Core whose vocabulary is not padded."""
    layout = {"flash_attention": False, **layout}
    if "routing" in layout:
        layout["routing"] = Routing(**layout["routing"])
    if "recompute" in layout:
        again = layout["recompute"]
        layout["recompute"] = Recompute(
            granularity=again["granularity"], modules=tuple(again.get("modules", ()))
        )
    question = tiny.question(getattr(tiny, attention), getattr(tiny, ffn), microbatches=1, **layout)
    question = replace(
        question, framework=load_framework("megatron-core"), model=replace(question.model, vocab_multiple=1)
    )
    question = replace(question, workload=replace(question.workload, optimizer="sgd"))
    assert adapter_of(question).package == "megatron-core"
    return replace(question, strategy=as_run(question).layout)


def one(_rank, attention, ffn, layout):
    """Return what a rank by itself finds."""
    question = asked_for(attention, ffn, layout)
    training = Training(question, CPU)
    count = sum(parameter.numel() for parameter in training.blocks.parameters())
    laps = timed_step(training, Watch(CPU))
    loss = training.blocks(training.tokens)
    loss.backward()
    plain = {name: item.grad.clone() for name, item in training.blocks.named_parameters()}
    training.update.buckets[0].clear()
    parts = list(parts_of(training))
    kept = {part.kind: kept_bytes(part, training) for part in parts}
    projected = {
        item.name: total_bytes(item.kept)
        for item in block_loads(question.model, question.layout, question.workload).all()
    }
    apart = gradients_apart(training, parts, Watch(CPU))() if not training.blocks.replays else {}
    for bucket in training.update.buckets:
        bucket.clear()
    away = 0.0
    if apart:
        training.blocks(training.tokens).backward()
        away = max(
            float((item.grad - plain[name]).abs().max()) for name, item in training.blocks.named_parameters()
        )
    return {
        "parameters": count, "counted": int(count_parameters(question.model).total), "loss": float(loss.detach()), "kept": kept,
        "projected": projected, "blocks": sorted({kind for kind, _ in laps} - {STEP[0]}),
        "apart": sorted({part for _, part in apart}), "away": away,
    }  # fmt: skip


def whole(attention, ffn, layout):
    cut = asked_for(attention, ffn, layout)
    sequences = cut.workload.global_batch_size
    plain = {name: layout[name] for name in ("routing",) if name in layout}
    return asked_for(attention, ffn, {"micro_batch_size": sequences, **plain})


def shared(bucket):
    """Give every rank the whole of what a bucket scattered."""
    if bucket.shard is not None:
        parts = list(bucket.flat.chunk(dist.get_world_size(bucket.group)))
        dist.all_gather(parts, parts[bucket.shard], group=bucket.group)


def part_of(mine, part, name, groups):
    """Return what this rank has of a whole tensor."""
    for dim in range(part.ndim):
        if mine.shape[dim] != part.shape[dim]:
            halves = mine.chunk(2, dim) if "linear_fc1" in name and dim == 0 else [mine]
            ranks, rank = dist.get_world_size(groups.tp), dist.get_rank(groups.tp)
            mine = torch.cat([half.chunk(ranks, dim)[rank] for half in halves], dim)
    return mine


def named(name, groups, experts):
    """Return a parameter's name in the whole model."""
    if "local_experts." not in name or groups.ep is None:
        return name
    head, _, tail = name.partition("local_experts.")
    index, _, tail = tail.partition(".")
    first = dist.get_rank(groups.ep) * (experts // dist.get_world_size(groups.ep))
    return f"{head}local_experts.{first + int(index)}.{tail}"


def split(_rank, attention, ffn, layout):
    """Return how far loss and gradients of several ranks are from those of one."""
    single = Training(whole(attention, ffn, layout), CPU, Groups())
    loss = single.blocks(single.tokens)
    (loss / single.share).backward()
    weights = {name: item.detach().clone() for name, item in single.blocks.named_parameters()}
    gradients = {name: item.grad.clone() for name, item in single.blocks.named_parameters()}
    question = asked_for(attention, ffn, layout)
    groups = groups_of(question)
    cut = Training(question, CPU, groups)
    experts = question.model.moe.num_experts if question.model.moe else 0
    for name, parameter in cut.blocks.named_parameters():
        parameter.data.copy_(part_of(weights[named(name, groups, experts)], parameter, name, groups))
    mine = cut.blocks(cut.tokens) / cut.share
    mine.backward()
    cut.update.reduce()
    for bucket in cut.update.buckets:
        shared(bucket)
    mine = mine.detach()
    if groups.dp_cp is not None:
        dist.all_reduce(mine, group=groups.dp_cp)
    away = [
        float(
            (part_of(gradients[named(name, groups, experts)], item.grad, name, groups) - item.grad)
            .abs()
            .max()
        )
        for name, item in cut.blocks.named_parameters()
    ]
    return max(abs(float(mine - loss)), *away)


def each_of(rank, cases):
    """Return what a rank finds of every case."""
    run = one if dist.get_world_size() == 1 else split
    return [run(rank, attention, ffn, layout) for attention, ffn, _, layout in cases]


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    (ranks,) = {ranks for _, _, ranks, _ in asked}
    found = launch(each_of, ranks, asked)
    json.dump(found[0] if ranks == 1 else [max(item) for item in zip(*found, strict=True)], sys.stdout)
