"""Stages of fine-tuning: supervised, with preferences, by reinforcement learning, and what each adds to a step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from forescale.frameworks.reading import SAMPLING
from forescale.frameworks.settings import Settings

PAIRED: Final = ("dpo", "online_dpo", "orpo", "simpo", "cpo", "rm", "reward", "mpo")
"""Stages whose examples are pairs of a chosen and a rejected sequence."""
FACTORY: Final = ("pt", "sft", "rm", "ppo", "dpo", "kto", "orpo", "simpo")
"""Stages of LLaMA-Factory, and the losses of its dpo."""
SAMPLED: Final = ("grpo", "ppo", "gkd", "rloo", "online_dpo")
"""Stages that sample sequences and then train on them."""
WITH_LOGITS: Final = ("dpo", "online_dpo", "orpo", "simpo", "cpo", "kto", "mpo")
"""Stages whose loss is made of the logits outside the model."""
REFERENCED: Final = ("dpo", "online_dpo", "kto", "mpo")
"""Stages with a reference model, those of sampling apart, which have one with a `beta` alone."""


def stage_of(settings: Settings) -> str:
    """Return the stage in TRL's terms: sft, or that of reinforcement learning or preferences.

    `beta` is a key of several stages: of these, the one that names the folder or the file is taken, else dpo.
    """
    if settings.get("reward_funcs") or settings.get("num_generations"):
        return "grpo"
    if settings.get("reward_model") or "center_rewards_coefficient" in settings:
        return "rm"
    if "simpo_gamma" in settings:
        return "simpo"
    if (loss := settings.text("pref_loss")) in PAIRED:
        return loss
    explicit = settings.text("stage") or str(settings.get("rlhf_type") or "")
    prefers = "beta" in settings or "rpo_alpha" in settings
    return explicit.lower() or (_named(settings) if prefers else "sft")


def is_paired(settings: Settings) -> bool:
    """Return whether an example is two sequences, which the packs of ms-swift hold together."""
    packs = settings.flag("packing") and settings.spell("packing") == "packing"
    return stage_of(settings) in PAIRED and not (packs and settings.spell("stage") == "rlhf_type")


def is_guessed(settings: Settings) -> bool:
    """Return whether a `beta` alone says that a training compares sequences, which no folder or key names dpo."""
    names = "/".join(Path(settings.where).parts[-3:]).lower()
    says = "stage" in settings or "rlhf_type" in settings or "pref_loss" in settings
    return not says and not re.search(r"(?<![a-z])dpo", names)


def _named(settings: Settings) -> str:
    """Return the stage with a `beta` that the file or its folders are named after; dpo if they name none."""
    words = re.split(r"[^a-z]+", "/".join(Path(settings.where).parts[-3:]).lower())
    return next((word for word in reversed(words) if word in ("orpo", "cpo", "kto")), "dpo")


def _punishes(settings: Settings, form: str) -> bool:
    """Return whether a stage that samples compares with a reference model: ms-swift does unless `beta` is 0.

    Distillation (gkd) mixes two divergences from its teacher by `beta`.
    """
    if stage_of(settings) == "gkd":
        return False
    return bool(settings.number("beta")) or (form == "swift" and "beta" not in settings)


def lay_stage(settings: Settings, form: str, workload: dict[str, Any]) -> None:
    """Lay the reference model of a stage in a file of a `form`, and note what of the stage is projected."""
    stage = stage_of(settings)
    if form == "llamafactory" and stage not in FACTORY:
        settings.warnings.append(f"stage: {stage} is not modelled; it is projected as sft")
    if stage == "dpo" and is_guessed(settings):
        settings.warnings.append(
            "beta alone names no stage; projected as dpo (--set workload.reference=none without a reference model)"
        )
    if stage in SAMPLED:
        settings.phase = f"{stage}: {SAMPLING} is not"
    if is_paired(settings):
        settings.note(f"{stage}: each example is two sequences, chosen and rejected")
    if stage == "gkd":
        settings.warnings.append("gkd: the teacher's weights and forward pass are not in the figures")
    if stage == "ppo":
        settings.warnings.append("ppo: the reward and value models are not in the figures")
    if stage == "grpo" and form == "trainer" and "beta" not in settings:
        settings.warnings.append(
            "beta is not given: GRPO has no reference model since TRL 0.19, earlier releases keep a copy of the model "
            "(--set workload.reference=copy)"
        )
    if stage not in REFERENCED and not (stage in SAMPLED and _punishes(settings, form)):
        return
    if settings.flag("precompute_ref_log_probs") or settings.flag("reference_free"):
        return
    if stage == "kto" and settings.text("loss_type") != "apo_zero_unpaired":
        workload["reference_passes"] = 3
        settings.note(
            "kto: model and reference also read each prompt with another's answer: 3 passes without backward"
        )
    adapts = "lora_rank" in workload.get("trainable", {})
    workload["reference"] = "shared" if adapts and form != "openrlhf" else "copy"  # which loads it twice
    weights = "; its weights are those of the model" if workload["reference"] == "shared" else ""
    settings.note(f"{stage}: a forward pass of the reference model is part of every micro-batch{weights}")
