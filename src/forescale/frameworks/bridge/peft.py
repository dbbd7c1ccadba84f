"""Megatron-Bridge's adapters: `cfg.peft = LoRA(dim=16)`, read as syntax and written."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.adapters import PLACES, lora_words, targets_of
from forescale.spec.workload import FUSED, Trainable

USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "LoRA": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "CanonicalLoRA": (
        "linear_q",
        "linear_k",
        "linear_v",
        "linear_proj",
        "linear_fc1_up",
        "linear_fc1_gate",
        "linear_fc2",
    ),
}
"""Classes and their target_modules where none are given (megatron/bridge/peft/lora.py, canonical_lora.py)."""
RANK = 32
IGNORED = frozenset(
    (
        "alpha",
        "dropout_position",
        "lora_A_init_method",
        "lora_B_init_method",
        "a2a_experimental",
        "lora_dtype",
    )
)
"""Fields that change nothing that is projected; types of adapters are those of trained weights."""
KNOWN = ("dim", "target_modules", "dropout", "share_expert_adapters")


def read_peft(tree: ast.Module, path: Path, plain: Callable[[ast.expr, str], Any]) -> dict[str, Any] | None:
    """Return the adapters that a recipe asks for, in the words of a plan; None where it trains all weights."""
    kind, fields, line = "", {}, 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        names = ast.unparse(node.targets[0]).split(".")
        if names[1:] == ["peft"]:
            call, line = node.value, node.lineno
            kind = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
            words = call.keywords if isinstance(call, ast.Call) else []
            fields = {
                word.arg: plain(word.value, f"{path}, line {line}, {word.arg}") for word in words if word.arg
            }
        elif names[1:-1] == ["peft"]:
            fields[names[-1]] = plain(node.value, f"{path}, line {node.lineno}, {names[-1]}")

    def refuse(problem: str) -> NoReturn:
        raise ReaderError(f"{path}, line {line}", problem)

    if not kind:
        return None
    if kind not in USUAL:
        refuse(f"cfg.peft = {kind}(...) cannot be expressed; {' and '.join(USUAL)} can")
    for name in fields:
        if name not in KNOWN and name not in IGNORED:
            raise UnknownKeyError(name, f"{path}, line {line}, cfg.peft", (*KNOWN, *IGNORED))
    return lora_words(
        int(fields.get("dim", RANK)),
        targets_of(fields.get("target_modules") or USUAL[kind], refuse),
        dropout=float(fields.get("dropout", 0.0)),
        experts="shared" if fields.get("share_expert_adapters", True) else "own",
    )


def peft_lines(trainable: Trainable) -> tuple[str, str]:
    """Return the import and the line that ask for adapters; empty where there are none, or where parts are frozen."""
    if not trainable.lora_rank:
        return "", ""
    fused = set(trainable.lora_targets) & set(FUSED)
    split = set(trainable.lora_targets) & {each for parts in FUSED.values() for each in parts}
    kind = "CanonicalLoRA" if split and not fused else "LoRA"
    names = {ours: name for name, (ours, *_) in PLACES.items() if name in USUAL[kind]}
    targets = [names[each] for each in trainable.lora_targets if each in names]
    fields = [f"target_modules={targets!r}", f"dim={trainable.lora_rank}"]
    if trainable.lora_dropout:
        fields.append("dropout=0.1")
    fields.append(f"share_expert_adapters={trainable.lora_experts == 'shared'}")
    module = "lora" if kind == "LoRA" else "canonical_lora"
    return (
        f"from megatron.bridge.peft.{module} import {kind}\n",
        f"    cfg.peft = {kind}({', '.join(fields)})\n",
    )
