"""Defaults that differ between releases of TRL, for programs that leave them open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forescale.frameworks.python.values import Call
from forescale.frameworks.settings import Settings
from forescale.frameworks.trainers.calls import names_of

TRL: Final = re.compile(r"(?:\w+\.)*(?:SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|RLOO)Config")
"""Configurations of TRL's trainers."""
OLDER: Final = frozenset(("max_seq_length", "use_liger", "vllm_device", "evaluation_strategy", "tokenizer"))
"""Arguments that TRL 0.20 no longer has, of its configurations or its trainers."""
CHECKPOINTING: Final = (
    "gradient_checkpointing is not given: TRL recomputes since 0.22, earlier releases do not; "
    "projected with {kind} (--recompute)"
)
TYPES: Final = (
    "neither bf16 nor fp16 is given: TRL computes in bf16 since 0.19, in fp32 before; "
    "projected in {kind} (--precision)"
)


MARKS: Final = ("beta", "reward_funcs", "packing", "use_peft", "num_generations", "max_completion_length")
"""Keys of TRL's recipes that TrainingArguments do not have."""
PROMPT: Final = (
    "max_prompt_length is not given: prompts have at most 512 tokens until TRL 0.25, any length since; "
    "512 are projected (--seq-len)"
)
SFT: Final = re.compile(r"(?:^|\.)SFTTrainer$")
"""A trainer that cuts sequences off, of releases too whose configuration is TrainingArguments."""
LENGTH: Final = 1024
"""Tokens that TRL cuts sequences and pairs off at where nothing is given, in all releases."""
CUT: Final = f"max_length is not given: TRL cuts sequences off at {LENGTH} tokens (--seq-len)"
PREPARES: Final = re.compile(r"(?:BCO|CPO|ORPO)Trainer$")
"""Trainers of TRL that prepare a quantised model themselves where they are given the adapters."""
PREPARED_BEFORE: Final = re.compile(r"(?:SFT|Reward|GRPO|RLOO|DPO|KTO)Trainer$")
"""Trainers that did so before TRL 0.26, and those of preferences before 0.29 (trl/trainer/*_trainer.py)."""
PREPARED: Final = re.compile(r"prepare_model_for_(?:kbit|int8)_training$")


def open_release(settings: Settings, *, samples: bool) -> list[str]:
    """Return the warnings of defaults that differ between releases, of a recipe of TRL that leaves them open."""
    if not any(key in settings for key in MARKS):
        return []
    warnings = []
    if "gradient_checkpointing" not in settings:
        warnings.append(CHECKPOINTING.format(kind="none"))
    if (
        not {"bf16", "fp16"} & {key for key in ("bf16", "fp16") if key in settings}
        and "dtype" not in settings
    ):
        warnings.append(TYPES.format(kind="tf32"))
    if samples and "max_prompt_length" not in settings and "max_length" not in settings:
        warnings.append(PROMPT)
    return warnings


def lay_release(
    content: dict[str, Any], unread: Mapping[str, str], calls: Sequence[Call], *, has_bf16: bool
) -> list[str]:
    """Fill in what TRL defaults to in the release that a program is written for; return the warnings of it."""
    made = [call for call in calls if any(TRL.fullmatch(name) for name in names_of(call))]
    lengths = {"max_length", "max_seq_length", "block_size"}
    if content.get("unsloth"):
        return []
    if not made and any(SFT.search(name) for call in calls for name in names_of(call)):
        if lengths & {*content, *unread}:
            return []
        content["max_length"] = LENGTH
        return [CUT]
    if not made:
        return []
    older = _is_older(calls)
    samples = any(re.search(r"(?:GRPO|RLOO)Config$", name) for call in calls for name in names_of(call))
    warnings = [PROMPT] * (samples and not {"max_prompt_length", "max_length"} & {*content, *unread})
    whole = any(call.open or None in map(call.fields.get, lengths & call.fields.keys()) for call in made)
    if not samples and not lengths & {*content, *unread} and not whole:
        content["max_length"] = LENGTH
        warnings.append(CUT)
    if "gradient_checkpointing" not in {*content, *unread}:
        content["gradient_checkpointing"] = not older
        warnings.append(CHECKPOINTING.format(kind="none" if older else "full recompute"))
    if not {"bf16", "fp16"} & {*content, *unread} and has_bf16:
        content |= {} if older else {"bf16": True}
        warnings.append(TYPES.format(kind="tf32" if older else "bf16"))
    return warnings


def _is_older(calls: Sequence[Call]) -> bool:
    """Whether a program gives arguments that TRL had before 0.20 alone."""
    return any(
        OLDER & call.fields.keys()
        for call in calls
        if re.search(r"(?:Config|Trainer)$", call.name) and call.name != "BitsAndBytesConfig"
    )


UNSLOTH: Final = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "optim": "adamw_8bit"}
"""Defaults that unsloth gives TRL's configurations (models/rl.py, 2025.3 to 2026.5)."""


def lay_unsloth_defaults(
    content: dict[str, Any], unread: Mapping[str, str], calls: Sequence[Call]
) -> list[str]:
    """Fill in unsloth's defaults of TRL's configurations; return the warning of them."""
    made = any(TRL.fullmatch(name) for call in calls for name in names_of(call))
    left = {key: value for key, value in UNSLOTH.items() if key not in {*content, *unread}}
    if not content.get("unsloth") or not made or not left:
        return []
    content |= left
    listed = ", ".join(f"{key} {value}" for key, value in left.items())
    return [f"{listed}: unsloth's defaults of TRL's configurations, where the program gives none"]


def widened_parts(content: Mapping[str, Any], calls: Sequence[Call]) -> str:
    """Return what a program keeps in fp32 of a quantised model.

    TRL's trainers narrow embedding and head again under bf16; most no longer prepare the model.
    """
    trainers = (PREPARES, PREPARED_BEFORE) if _is_older(calls) else (PREPARES,)
    by_trainer = any(
        kind.search(name) and "peft_config" in call.fields
        for call in calls
        for name in names_of(call)
        for kind in trainers
    )
    if by_trainer and content.get("bf16"):
        return "norms"
    prepares = any(PREPARED.search(name) for call in calls for name in names_of(call))
    return "unquantised" if by_trainer or prepares else "none"
