"""What a row says of its activations: which are kept, which made again, which lie on the host."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from forescale.files import Row
from forescale.spec.framework import Framework, told_of
from forescale.spec.strategy import KeptName, Module, Offload, OffloadName, Recompute
from forescale.validation.errors import InexpressibleError
from forescale.validation.shape import Notes
from forescale.validation.tables import first_match

INPUT = "decoder_layer_input"
SPOKEN = {"layer input": INPUT, "q/k/v": "query_proj, key_proj, value_proj"}
"""What rows call tensors, and MaxText's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What is made again, and what lies on the host."""

    recompute: Mapping[str, Any] | None
    """In the words of a plan; None is what the framework does by default."""
    offload: Mapping[str, Any]


def saved_of(row: Row, framework: Framework, num_layers: int, pp: int, vpp: int, notes: Notes) -> Saved:
    """Return what a row keeps; how it is replayed is its framework's."""
    recipe = first_match("recipes", row.text("notes"))
    if recipe:
        return _saved(_custom(recipe["kept"]), _on_host(recipe["offloaded"]))
    text = row.text("recompute")
    if not text:
        usual = framework.recompute
        notes.append(f"recompute not given: {usual.policy or usual.granularity} assumed")
        return _saved(None, _offload(row, ""))
    if "per-op SAC" in text:
        text += _products(row)
    return _saved(_policy(text, num_layers, pp, vpp, notes), _offload(row, text))


def _saved(recompute: Recompute | None, offload: Offload) -> Saved:
    """Return both in the words of a plan: granularity and offload are always said, how replay ends is not."""
    told = None
    if recompute is not None:
        told = {"granularity": recompute.granularity, **told_of(recompute, Recompute())}
    return Saved(recompute=told, offload=told_of(offload, Offload()))


def _products(row: Row) -> str:
    """Return how torchtitan's layers multiply: as operators that its selective checkpoint knows, or others."""
    if "nvfp4" in row.text("compute_dtype").lower():
        return ", nvfp4"  # torchao's products in 4 bits are no aten.mm, so that only attention is kept
    return ", compiled" if re.search(r"compile|float8", row.text("notes"), re.IGNORECASE) else ""


def lengths_vary(row: Row) -> bool:
    """Return whether a row fine-tunes on sequences that are not packed."""
    remarks = row.text("notes")
    tuned = re.search(r"\bSFT\b|fine-?tun", remarks, re.IGNORECASE) is not None
    return tuned and "packed" not in remarks


def _offload(row: Row, recompute: str) -> Offload:
    """Return what a row offloads: so many layers, or tensors that its policy names."""
    named = _named(recompute) if "offloaded" in recompute else ()
    entry = first_match("recomputes", recompute)
    if named or "offloaded" in entry:
        return _on_host(entry.get("offloaded", named))
    told = re.search(r"activation CPU offload of (\d+) layers", row.text("notes"))
    return Offload(activation_layers=int(told[1]) if told else 0)


def _on_host(names: Iterable[str]) -> Offload:
    given = set(names)
    return Offload(modules=tuple(name for name in get_args(OffloadName) if name in given))


def _custom(names: Sequence[str]) -> Recompute:
    """Return the policy that keeps these results; without any it is full recompute."""
    kept = tuple(name for name in get_args(KeptName) if name in names)
    if not kept:
        return Recompute(granularity="full")
    return Recompute(granularity="policy", policy="custom", kept=kept)


def _named(text: str) -> tuple[str, ...]:
    """Return the tensors that a text names."""
    for spoken, name in SPOKEN.items():
        text = text.replace(spoken, name)
    return tuple(name for name in get_args(OffloadName) if re.search(rf"\b{name}\b", text))


def _policy(text: str, num_layers: int, pp: int, vpp: int, notes: Notes) -> Recompute:
    """Return the policy that `text` spells for a model of `num_layers` layers."""
    entry = first_match("recomputes", text)
    if not entry:
        known = "none, full, full-block(N layers) and selective(MODULES)"
        msg = f"recompute {text!r} is not understood; {known} are"
        raise InexpressibleError(msg)
    if "note" in entry:
        notes.append(entry["note"])
    found = re.search(entry["match"], text, re.IGNORECASE)
    named = found.groupdict() if found else {}
    if entry["granularity"] == "selective":
        modules = entry.get("modules") or named.get("modules", "").split("+")
        return Recompute(granularity="selective", modules=_modules(modules, text))
    if entry["granularity"] == "policy":
        if entry["policy"] == "custom":
            return _custom(entry.get("kept", _named(text)))
        return Recompute(granularity="policy", policy=entry["policy"])
    if "count" not in entry:
        return Recompute(granularity=entry["granularity"])
    per_chunk, given = math.ceil(num_layers / (pp * vpp)), int(named.get("layers") or 0)
    if entry["count"] in ("model", "half"):
        listed = range(0, num_layers, 2) if entry["count"] == "half" else _spread(given, num_layers)
        return Recompute(granularity="full", layer_ids=tuple(listed))
    layers = given if entry["count"] == "chunk" else math.ceil(given / vpp)
    return Recompute(granularity="full", num_layers=min(per_chunk, layers))


def _spread(count: int, num_layers: int) -> list[int]:
    """Return `count` layers, evenly spread."""
    return [index * num_layers // count for index in range(count)]


def _modules(names: list[str], text: str) -> tuple[Module, ...]:
    known = get_args(Module)
    unknown = [name for name in names if name not in known]
    if unknown:
        msg = f"recompute {text!r} names {unknown[0]!r}; the modules known are {', '.join(known)}"
        raise InexpressibleError(msg)
    return tuple(module for module in known if module in names)
