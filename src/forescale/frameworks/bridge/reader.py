"""Recipes of Megatron-Bridge, read as syntax: what a function puts into a ConfigContainer.

Nothing is imported or run. Functions are followed (`frameworks/python`), those of the checkout that the file lies in
and of files beside it included; of a base that lies elsewhere only what the recipe itself sets is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.adapters import PLACES, lora_words, targets_of
from forescale.frameworks.bridge.fields import ContainerSettings
from forescale.frameworks.bridge.model import named_model
from forescale.frameworks.bridge.recipe import FACTS, run, unread_of
from forescale.frameworks.detect import Signed
from forescale.frameworks.megatron.reader import read_settings
from forescale.frameworks.reading import Options, ParsedFile
from forescale.frameworks.settings import Settings
from forescale.spec.workload import FROZEN_PARTS, FUSED, RECURRENT, FrozenPart, Trainable
from forescale.units import counted

USUAL: Final[Mapping[str, list[str]]] = FACTS["adapters"]
"""Classes and their target_modules where none are given (megatron/bridge/peft/lora.py, canonical_lora.py)."""
RANK = 32
UNCOUNTED: Final[list[str]] = FACTS["uncounted"]
"""Fields that change nothing that is projected; types of adapters are those of trained weights."""
KNOWN = ("dim", "target_modules", "dropout", "share_expert_adapters")


def read_peft(container_settings: ContainerSettings) -> dict[str, Any] | None:
    """Return the adapters that a recipe asks for, in the words of a plan; None where it trains all weights."""
    part = container_settings.part("peft")
    if part is None or part.idle:
        return None
    place = container_settings.place("peft")

    def refuse(violation: str) -> NoReturn:
        raise ReaderError(place, violation)

    if part.name not in USUAL:
        refuse(f"cfg.peft = {part.name[:60]}(...) cannot be expressed; {' and '.join(USUAL)} can")
    for name in part.fields:
        if name not in KNOWN and name not in UNCOUNTED:
            raise UnknownKeyError(name, f"{part.places.get(name, place)}, cfg.peft", (*KNOWN, *UNCOUNTED))
    values = {
        name: container_settings.plain(value, f"{part.places.get(name, place)}, {name}")
        for name, value in part.fields.items()
        if name in KNOWN
    }
    settings = Settings(values, place, {name: f"cfg.peft.{name}" for name in values})
    return lora_words(
        settings.size("dim", RANK),
        targets_of(settings.words("target_modules") or USUAL[part.name], refuse),
        dropout=settings.number("dropout") or 0.0,
        experts="shared" if settings.flag("share_expert_adapters", default=True) else "own",
    )


def peft_lines(trainable: Trainable) -> tuple[str, str]:
    """Return the import and the line that ask for adapters; empty where there are none, or where parts are frozen."""
    if not trainable.lora_rank:
        return "", ""
    fused = set(trainable.lora_targets) & set(FUSED)
    split = set(trainable.lora_targets) & {part for parts in FUSED.values() for part in parts}
    kind = "CanonicalLoRA" if split and not fused else "LoRA"
    names = {ours: name for name, (ours, *_) in PLACES.items() if name in (*USUAL[kind], *RECURRENT)}
    targets = [names[lora_target] for lora_target in trainable.lora_targets if lora_target in names]
    fields = [f"target_modules={targets!r}", f"dim={trainable.lora_rank}"]
    if trainable.lora_dropout:
        fields.append("dropout=0.1")
    fields.append(f"share_expert_adapters={trainable.lora_experts == 'shared'}")
    module = "lora" if kind == "LoRA" else "canonical_lora"
    return (
        f"from megatron.bridge.peft.{module} import {kind}\n",
        f"    cfg.peft = {kind}({', '.join(fields)})\n",
    )


FROZEN: Final[Mapping[str, tuple[FrozenPart, ...]]] = {
    "freeze_language_model": ("embedding", "attention", "ffn", "moe", "norm", "head"),
    "freeze_vision_model": ("vision",),
    "freeze_vision_projection": ("projector",),
}
"""Parts of a model with a tower that a field keeps as they are."""


def fields(*, latent: bool) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the field that sets each of Megatron's keys, and those that say the opposite."""
    return FACTS["keys"] | (FACTS["latent"] if latent else {}), FACTS["inverted"]


class BridgeReader(Signed):
    """Recipes that are written out, or over others of the checkout that they lie in."""

    name: Final = "bridge"
    title: Final = "Megatron-Bridge recipe in Python"

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the recipe at `path` sets."""
        container, hooks = run(path, options)
        container_settings = ContainerSettings(container, hooks, path)
        settings, unknown = container_settings.settings(
            strict=options.strict, explicit_length="seq_len" in options.over
        )
        model = named_model(container_settings, settings)
        for note in unread_of(hooks):
            settings.note(note)
        if hooks.num_devices and options.num_devices is None and options.layout:
            settings.note(f"{counted(hooks.num_devices, 'device')}, from the recipe's name, {hooks.recipe}")
        reading = read_settings(
            settings,
            name=path.stem,
            options=options,
            model=model,
            num_devices=options.num_devices or hooks.num_devices,
            unknown=unknown,
            form=self.name,
            framework="megatron-bridge@latest",
            based=True,
        )
        adapters = read_peft(container_settings)
        if adapters is None:
            frozen = _frozen(container_settings) if model is not None and model.vision is not None else ()
            trainable, used = Trainable(frozen=frozen), reading.used
        else:
            trainable, used = Trainable(**adapters), (*reading.used, "peft")
        fields = {**reading.workload_fields, "trainable": asdict(trainable)}
        return replace(reading, workload_fields=fields, used=used)


def _frozen(container_settings: ContainerSettings) -> tuple[FrozenPart, ...]:
    """Return the parts that a recipe of a model with a tower does not train."""
    part = container_settings.part("model")
    set_so = {} if part is None else part.fields
    requested = {part for field, parts in FROZEN.items() if set_so.get(field) is True for part in parts}
    return tuple(item for item in FROZEN_PARTS if item in requested)
