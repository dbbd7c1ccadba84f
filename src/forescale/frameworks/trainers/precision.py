"""Number formats that a trainer's keys and the name of its checkpoint say."""

from __future__ import annotations

import re
from typing import Final

from forescale import wording
from forescale.frameworks.settings import Settings


def compute_of(settings: Settings) -> str:
    """Return the type that the trainer computes in."""
    flags = {"fp16": settings.flag("fp16"), "bf16": settings.flag("bf16") or settings.flag("pure_bf16")}
    loaded = str(settings.get("dtype") or "").rpartition(".")[2]
    if all(flags.values()):
        if settings.spell("bf16") != "bf16":
            settings.refuse(wording.conflicts(["bf16", "fp16"]))
        flags["bf16"] = False
    for kind, names in (("fp16", ("float16", "fp16")), ("bf16", ("bfloat16", "bf16"))):
        whole = f"{'b' * (kind == 'bf16')}float16"
        if flags[kind] or settings.flag(whole) or (loaded in names and not any(flags.values())):
            return kind
    return settings.text("float32_compute", "tf32") if loaded == "float32" else "tf32"


UNSCALED: Final = (
    "{}: float16 with {}: PyTorch does not unscale gradients in fp16, so such a run stops; weights in fp32 are "
    "projected (--param-dtype)"
)
"""The warning of weights in fp16 that train with scaled gradients."""
QUANTIZED: Final = re.compile(r"(?i)[-_](?:awq|gptq|bnb)\b(?P<eight>.*?(?:int8|8bit))?")
"""Names of checkpoints whose weights have 4 or 8 bits."""


def frozen_type(settings: Settings) -> dict[str, str]:
    """Return the type of frozen weights where that is less than 16 bits, and what is kept in fp32 if that is known."""
    kept = {"fp32_frozen": settings.text("fp32_frozen")} if "fp32_frozen" in settings else {}
    bits = settings.count("quantization_bit")
    if match := QUANTIZED.search(str(settings.raw("model_name_or_path"))):
        bits = bits or (8 if match["eight"] else 4)
    if settings.flag("load_in_8bit") or bits == 8:
        return {"frozen": "int8", **kept}
    if not settings.flag("load_in_4bit") and bits != 4 and settings.text("adapter") != "qlora":
        return {}
    if (kind := settings.text("narrow_adapter")) and settings.text("adapter", kind) != kind and bits != 4:
        settings.warnings.append(
            f"{settings.spell('load_in_4bit')}: axolotl quantises for {kind} alone since 0.13; weights are projected "
            f"in 16 bits ({settings.spell('adapter')}: {kind} or --frozen-dtype nf4)"
        )
        return {}
    double = settings.flag("use_bnb_nested_quant", default=settings.flag("load_double"))
    return {"frozen": "nf4_double" if double else "nf4", **kept}
