"""Recipes of Megatron-Bridge, read as syntax: the plain values that a function puts into a ConfigContainer.

Nothing is imported or run. What counts are assignments `cfg.SECTION.FIELD = value` and
`cfg.SECTION = Class(FIELD=value)`; a recipe that another one is the base of has the values it sets itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from forescale.errors import ReaderError, UnknownKeyError
from forescale.files import read_text
from forescale.frameworks.adapters import PLACES, lora_words, targets_of
from forescale.frameworks.bridge.recipe import chosen
from forescale.frameworks.megatron.reader import read_settings
from forescale.frameworks.reading import Options, Reading, packaged
from forescale.frameworks.settings import Settings
from forescale.spec.model import Model
from forescale.spec.workload import FROZEN_PARTS, FUSED, FrozenPart, Trainable

FACTS: Final = packaged("bridge")
USUAL: Final[Mapping[str, list[str]]] = FACTS["adapters"]
"""Classes and their target_modules where none are given (megatron/bridge/peft/lora.py, canonical_lora.py)."""
RANK = 32
UNCOUNTED: Final[list[str]] = FACTS["uncounted"]
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
        if name not in KNOWN and name not in UNCOUNTED:
            raise UnknownKeyError(name, f"{path}, line {line}, cfg.peft", (*KNOWN, *UNCOUNTED))
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


SECTIONS: Final[list[str]] = FACTS["sections"]
OTHERS: Final[list[str]] = FACTS["others"]
"""The container's other sections, which say nothing of these settings; `read_peft` reads adapters."""
DEEP = 3
"""Names of an assignment: the container, a section, a field."""
TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}
IGNORED: Final[list[str]] = FACTS["ignored"]
"""Fields of these sections that say nothing more of memory or time."""
FROZEN: Final[Mapping[str, tuple[FrozenPart, ...]]] = {
    "freeze_language_model": ("embedding", "attention", "ffn", "moe", "norm", "head"),
    "freeze_vision_model": ("vision",),
    "freeze_vision_projection": ("projector",),
}
"""Parts of a model with a tower that a field keeps as they are."""
LENGTHS = ("dataset.seq_length", "dataset.sequence_length", "model.seq_length")
"""Fields that must agree on the tokens of a sequence (megatron/bridge/training/config.py, ConfigContainer.validate)."""
OVERLAP = "comm_overlap"
"""The section whose fields go over those of the others, where they are given."""


def fields() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the field that sets each of Megatron's keys, and those that say the opposite."""
    return FACTS["keys"], FACTS["inverted"]


class BridgeReader:
    """Recipes whose values are written out, as `export --to bridge` writes them."""

    name: Final = "bridge"
    title: Final = "Megatron-Bridge recipe in Python"

    def recognises(self, text: str) -> bool:
        """Whether `text` imports Megatron-Bridge."""
        return "megatron.bridge" in text and "import" in text

    def read(self, path: Path, options: Options) -> Reading:
        """Return what the recipe at `path` sets."""
        try:
            tree = ast.parse(read_text(path))
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ReaderError(path, f"it is no Python: {error}") from error
        tree = chosen(
            tree, path, options.variables.get("config"), lambda node: any(True for _ in _assigned(node))
        )
        settings, unknown = _settings(tree, path, strict=options.strict)
        model = _named(tree, options)
        reading = read_settings(
            settings,
            name=path.stem,
            options=options,
            model=None if "hidden_size" in settings else model,
            unknown=unknown,
            form=self.name,
            framework="megatron-bridge",
            based=True,
        )
        adapters, workload = read_peft(tree, path, _plain), reading.workload
        if workload is None:
            return reading
        if adapters is None:
            frozen = _frozen(tree, path) if model is not None and model.vision is not None else ()
            return replace(reading, workload=replace(workload, trainable=Trainable(frozen=frozen)))
        trained = replace(workload, trainable=Trainable(**adapters))
        return replace(reading, workload=trained, used=(*reading.used, "peft"))


def _named(tree: ast.Module, options: Options) -> Model | None:
    """Return the catalogue's model that AutoBridge builds from a name on Hugging Face; None where there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "AutoBridge.from_hf_pretrained":
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and options.model_of is not None:
                return options.model_of(str(name.value))
    return None


def _frozen(tree: ast.Module, path: Path) -> tuple[FrozenPart, ...]:
    """Return the parts that a recipe of a model with a tower does not train."""
    said = {
        field: _plain(node, str(path)) for field, node in _assigned(tree) if field.startswith("model.freeze_")
    }
    wanted = {part for field, parts in FROZEN.items() if said.get(f"model.{field}") for part in parts}
    return tuple(part for part in FROZEN_PARTS if part in wanted)


def _settings(tree: ast.Module, path: Path, *, strict: bool) -> tuple[Settings, list[str]]:
    keys, inverted = fields()
    named = {field: key for key, field in keys.items()}
    named |= dict.fromkeys(LENGTHS, "seq_length")
    named |= {f"{OVERLAP}.{key}": key for key in FACTS[OVERLAP]}
    opposite = {field: key for key, field in inverted.items()}
    values: dict[str, object] = {}
    spelling: dict[str, str] = {}
    unknown: dict[str, int] = {}
    lengths: dict[str, tuple[object, int]] = {}
    for field, node in _assigned(tree):
        key = named.get(field) or opposite.get(field)
        if key is None:
            if field.split(".")[1] not in IGNORED:
                unknown.setdefault(field, node.lineno)
            continue
        value = _plain(node, f"{path}, line {node.lineno}, {field}")
        if value is None and field.startswith(OVERLAP):
            continue
        if field in LENGTHS:
            lengths.pop(field, None)
            lengths[field] = (value, node.lineno)
        values[key] = not value if field in opposite else value
        spelling[key] = field
    _check_lengths(lengths, path)
    if unknown and strict:
        field, line = next(iter(unknown.items()))
        section, _, bare = field.partition(".")
        if section not in SECTIONS:
            raise UnknownKeyError(section, f"{path}, line {line}", (*SECTIONS, *OTHERS))
        near = [name.split(".")[1] for name in (*named, *opposite) if name.startswith(f"{section}.")]
        raise UnknownKeyError(bare, f"{path}, line {line}, {section}", near)
    if not values:
        raise ReaderError(path, "it sets no field of a ConfigContainer (cfg.model.num_layers = 32)")
    if "num_query_groups" in values:
        values["group_query_attention"] = True
    if values.get("bf16") and "accumulate_allreduce_grads_in_fp32" in values:
        values["grad_reduce_in_bf16"] = not values["accumulate_allreduce_grads_in_fp32"]
    return Settings(values, str(path), spelling), [field.split(".")[1] for field in unknown]


def _check_lengths(lengths: dict[str, tuple[object, int]], path: Path) -> None:
    """Refuse lengths, as they were set last, that differ."""
    for other, (last, line) in reversed(lengths.items()):
        for one, (first, before) in lengths.items():
            if first != last and before <= line:
                said = f"{other} {last} and {one} {first} must be the same"
                raise ReaderError(f"{path}, line {line}", f"{said}: Megatron-Bridge refuses to start")


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield fields with what they are set to; those of sections that no container has too, which may have no name."""
    found = [
        (ast.unparse(node.targets[0]).split("."), node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1
    ]
    known = (*SECTIONS, *OTHERS)
    containers = {names[0] for names, _ in found if len(names) > 1 and names[1] in known} - {"self"} | {"cfg"}
    for names, value in found:
        if names[0] not in containers or not 1 < len(names) <= DEEP or names[1] in OTHERS:
            continue
        if len(names) == DEEP:
            yield ".".join(names[1:]), value
        elif isinstance(value, ast.Call) and value.keywords:
            yield from (
                (f"{names[1]}.{word.arg}", word.value) for word in value.keywords if word.arg is not None
            )
        elif names[1] not in SECTIONS:
            yield f"{names[1]}.", value


def _plain(node: ast.expr, where: str) -> Any:  # noqa: ANN401 (any plain value)
    if isinstance(node, ast.Attribute) and node.attr in TYPES:
        return TYPES[node.attr]
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError) as error:
        raise ReaderError(where, f"{ast.unparse(node)[:60]} is no plain value") from error
