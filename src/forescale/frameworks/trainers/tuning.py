"""What of a model a trainer trains: adapters, whole modules, or all but the parts that it freezes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from forescale.frameworks.adapters import PLACES, WHOLE, lora_words, parts_of, targets_of
from forescale.frameworks.settings import Settings
from forescale.frameworks.trainers.precision import frozen_type
from forescale.frameworks.trainers.run import Training, assume
from forescale.spec.model import Model
from forescale.spec.workload import FROZEN_PARTS, FUSED


def trainable_of(run: Training, model: Model | None) -> dict[str, Any]:
    """Return adapters, or the parts that are frozen."""
    settings = run.settings
    usual = run.form in ("trainer", "openrlhf") and str(settings.raw("lora_r") or 0) != "0"
    adapts = settings.flag("use_peft", default=usual)
    if adapts and settings.get("use_peft") is None and run.form == "trainer" and "adapter" not in settings:
        settings.note(
            f"{settings.spell('lora_r')} is given: adapters are trained; --set trainable={{}} trains all"
        )
    kind = settings.text("adapter", "lora" if adapts else "full").lower()
    if kind in ("lora", "qlora", "oft", "adalora", "longlora", "lora+"):
        if kind == "oft":
            run.warnings.append(
                f"{settings.spell('adapter')}: {kind} is projected as LoRA of its rank, or of 8"
            )
        return _adapters(run, model)
    if kind not in ("full", ""):
        run.warnings.append(f"{settings.spell('adapter')}: {kind} is projected as training of all parameters")
    bits = (
        "load_in_4bit",
        "load_in_8bit",
        *(["quantization_bit"] if settings.count("quantization_bit") else []),
    )
    if key := next((key for key in bits if key == "quantization_bit" or settings.flag(key)), ""):
        run.warnings.append(f"{settings.spell(key)}: no adapter is named; weights are projected in 16 bits")
    if settings.flag("freeze_text") and model is not None and model.vision is None:
        text = "the model has no vision tower, so that it is projected as trained (--freeze)"
        run.warnings.append(f"{settings.spell('freeze_text')}: {text}")
    parts = [part for key, names in FREEZES.items() if settings.flag(key) for part in names]
    return {"frozen": tuple(parts)} if parts and model is not None and model.vision is not None else {}


PLACED: Final = re.compile(
    r"(?:^|\.)(?!self_att|cross_att|linear_att|attention|mlp|experts|shared_expert|mixer|mamba|block_|feed_)\w+\.\w+_proj$"
)
"""A target below a module that no model has (`self.attn.v_proj`)."""
FREEZES: Final[Mapping[str, tuple[str, ...]]] = {
    "freeze_text": tuple(part for part in FROZEN_PARTS if part not in ("vision", "projector")),
    "freeze_vision": ("vision",),
    "freeze_projector": ("projector",),
}
"""Parts of a model with a vision tower that a key keeps as they are."""


def _adapters(run: Training, model: Model | None) -> dict[str, Any]:
    """Return the adapters; without targets those of PEFT for a Llama."""
    settings, dropout = run.settings, run.settings.number("lora_dropout")
    names = ("all-linear",) if settings.flag("lora_target_linear") else settings.words("lora_target_modules")
    names = tuple("all-linear" if name.lower() in ("all", "all_linear") else name for name in names)
    modules = _tied(run, model, settings.words("lora_modules_to_save"))
    last = [name.rpartition(".")[2] for name in names]
    other = [name for name, end in zip(names, last, strict=True) if end not in PLACES]
    other += [name for name in modules if name not in WHOLE]
    if misplaced := [name for name in names if PLACED.search(name)]:
        run.warnings.append(
            f"{', '.join(misplaced)}: no module has that path; adapters are projected as if it had"
        )
    if other:
        run.warnings.append(f"adapters at {', '.join(other)} are not modelled")
    if settings.flag("use_dora"):
        text = "is projected as LoRA: norms of whole weights are not modelled"
        run.warnings.append(f"{settings.spell('use_dora')} {text}")
    run.warnings.extend(_open_of(run, model, named=bool(names)))
    names, last = _present(run, model, names, last)
    recurrent = model is None or model.has_recurrent
    last = [end if recurrent or end != "out_proj" else "o_proj" for end in last]
    names = tuple(
        name if recurrent or end != "o_proj" else "o_proj" for name, end in zip(names, last, strict=True)
    )
    known = [
        name
        for name, end in zip(names, last, strict=True)
        if end in PLACES and not set(FUSED.get(end, ())) & set(last)  # type: ignore[call-overload]
    ]
    usual = ("q_proj", "v_proj") if not names and run.form in ("trainer", "trl") else ("all-linear",)
    targets = targets_of(known or usual, settings.refuse)
    assume(run, "lora_r", "lora_rank", "LoRA of rank 16 (--lora-rank)")
    assume(run, "lora_target_modules", "lora_targets", f"adapters at {'+'.join(targets)} (--lora-targets)")
    return lora_words(
        settings.size("lora_r", 16),
        targets,
        dropout=0.05 if dropout is None else dropout,
        whole=parts_of([name for name in modules if name in WHOLE], settings.refuse),
    )


TIED: Final = ("lm_head", "embed_tokens")
"""Modules that are one matrix in a model that ties them."""


def _tied(run: Training, model: Model | None, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that are trained whole, with both of those that a model ties."""
    found = [name for name in TIED if name in modules]
    if model is None or not model.tied_embeddings or len(found) != 1:
        return modules
    run.warnings.append(
        f"{found[0]}: {model.name} ties embedding and head, of which PEFT trains a copy; both are projected as trained"
    )
    return (*modules, *(name for name in TIED if name not in modules))


def _present(
    run: Training, model: Model | None, names: tuple[str, ...], last: list[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the targets, and their last parts, that a model has; the others are warned of."""
    absent = _absent(run.settings, model.name, last) if model is not None else ()
    if model is None or not absent:
        return names, last
    left = [(name, end) for name, end in zip(names, last, strict=True) if end not in absent]
    run.warnings.append(
        f"{', '.join(absent)}: {model.name} has qkv_proj and gate_up_proj, so that PEFT finds no such modules; "
        f"adapters are projected at {'+'.join(name for name, _ in left)}"
    )
    return tuple(name for name, _ in left), [end for _, end in left]


def _absent(settings: Settings, model: str, targets: Sequence[str]) -> tuple[str, ...]:
    """Return the targets that a model with fused projections does not have; unsloth's copies have them apart."""
    if re.match(r"phi-[34](?!.*moe)", model) is None or str(settings.raw("model_name_or_path")).startswith(
        "unsloth/"
    ):
        return ()
    absent = [name for name in targets if name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")]
    return tuple(absent) if len(absent) < len(targets) else ()


def _open_of(run: Training, model: Model | None, *, named: bool) -> Iterator[str]:
    """Yield the warnings of adapters outside the language model, and of what TrainingArguments leave open."""
    settings = run.settings
    if run.form == "axolotl" and not named:
        yield "neither lora_target_modules nor lora_target_linear is given; adapters at all linear layers are assumed"
    if run.form == "trainer" and "use_peft" not in settings and not run.program:
        if not named:
            yield (
                f"{settings.spell('lora_r')}: no modules are named; adapters at q_proj+v_proj are assumed "
                "(--lora-targets)"
            )
        if "qlora" in Path(settings.where).name.lower() and not frozen_type(settings):
            yield "it is named after QLoRA, and no key says the bits of the weights; 16 are assumed (--frozen-dtype)"
    if model is None or model.vision is None:
        return
    if settings.flag("freeze_text"):
        yield f"{settings.spell('freeze_text')}: adapters are projected at the language model, which it freezes"
    if "freeze_vision" in settings and not settings.flag("freeze_vision"):
        yield f"{settings.spell('freeze_vision')}: adapters at the vision tower are not modelled"
