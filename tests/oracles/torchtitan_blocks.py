"""Blocks of torchtitan beside those of transformers, with the same weights; run in a process of its own.

    python torchtitan_blocks.py FOLDER < asked.json

FOLDER holds torchtitan and what it imports; packages that only kernels for accelerators need are stood in for. Reads a
list of recompute settings and prints what each finds.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), sys.argv[1]]

from tests.bench.tiny import question  # noqa: E402
from tests.oracles.torchtitan_parser import _Absent  # noqa: E402

from forescale.bench.blocks import STEP, gradients_apart, kept_bytes, parts_of, timed_step  # noqa: E402
from forescale.bench.kernels import Watch  # noqa: E402
from forescale.bench.training import Training, adapter_of, as_run  # noqa: E402
from forescale.catalogue.frameworks import load_framework  # noqa: E402
from forescale.memory.timeline import block_loads, total_bytes  # noqa: E402
from forescale.spec.layout import Recompute  # noqa: E402

CPU = torch.device("cpu")
NAMES = {
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "tok_embeddings": "model.embed_tokens", "model.norm": "model.model.norm", "model.lm_head": "model.lm_head",
}  # fmt: skip


def fused(rows, model):
    """Return a projection as torchtitan has it: by group of heads, and pairs that rotate next to each other."""
    attention = model.layers[0].attention
    heads = attention.num_heads // attention.num_kv_heads, 1, 1
    parts = []
    for place, (row, count) in enumerate(zip(rows, heads, strict=True)):
        split = row.view(attention.num_kv_heads, count, attention.head_dim, -1)
        if place < 2:
            split = split.unflatten(2, (2, -1)).transpose(2, 3).flatten(2, 3)
        parts.append(split)
    return torch.cat(parts, 1).flatten(0, 2)


def paired(titan, theirs, model):
    """Yield a parameter of torchtitan's and a function that picks the same of a table of transformers' tensors."""
    for name, parameter in titan.named_parameters():
        plain = name.replace("_checkpoint_wrapped_module.", "").removesuffix(".weight")
        for mine, other in NAMES.items():
            plain = plain.replace(mine, other) if plain.endswith(mine) else plain
        if "wqkv" in plain:
            prefix = plain.replace("attention.qkv_linear.wqkv", "self_attn").replace("model.", "model.model.")
            rows = [theirs[f"{prefix}.{letter}_proj.weight"] for letter in "qkv"]
            yield parameter, fused(rows, model)
        else:
            plain = plain.replace("model.layers", "model.model.layers") + ".weight"
            yield parameter, theirs[plain].view_as(parameter)


def found(recompute):
    request = question(microbatches=1, recompute=Recompute(**recompute))
    request = as_run(replace(request, framework=load_framework("torchtitan")))
    assert adapter_of(request).package == "torchtitan"
    titan = Training(request, CPU)
    other = Training(question(microbatches=1), CPU)
    for norm in other.blocks.modules():
        if hasattr(norm, "variance_epsilon"):
            norm.variance_epsilon = titan.blocks.norm.eps
    weights = {name: item.data for name, item in other.blocks.named_parameters()}
    for parameter, weight in paired(titan.blocks, weights, request.model):
        parameter.data.copy_(weight)
    losses = []
    for item in (titan, other):
        loss = item.blocks(item.tokens)
        loss.backward()
        losses.append(float(loss.detach()))
    gradients = {name: item.grad for name, item in other.blocks.named_parameters()}
    away = [
        float((mine.grad - item).abs().max()) for mine, item in paired(titan.blocks, gradients, request.model)
    ]
    laps = timed_step(titan, Watch(CPU))
    parts = list(parts_of(titan))
    kept = {part.kind: kept_bytes(part, titan) for part in parts}
    projected = {
        item.name: total_bytes(item.kept)
        for item in block_loads(request.model, request.layout, request.workload).all()
    }
    apart = gradients_apart(titan, parts, Watch(CPU))() if not recompute else {}
    return {
        "away": max(*away, abs(losses[0] - losses[1])), "kept": kept, "projected": projected,
        "blocks": sorted({kind for kind, _ in laps} - {STEP[0]}), "apart": sorted({part for _, part in apart}),
    }  # fmt: skip


if __name__ == "__main__":
    sys.meta_path.append(_Absent())
    json.dump([found(item) for item in json.load(sys.stdin)], sys.stdout)
