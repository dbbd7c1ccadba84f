"""PEFT's adapter_config.json: which adapters of low rank stand beside which model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forescale.files import parse_json, read_text
from forescale.frameworks.adapters import lora_words, parts_of, targets_of
from forescale.frameworks.reading import Options, Reading, unknown_of
from forescale.frameworks.settings import Settings
from forescale.positions import key_lines
from forescale.syntax import parse_mapping

BY_LAYER = (
    "rank_pattern",
    "layers_to_transform",
    "layer_replication",
    "target_parameters",
    "exclude_modules",
)
"""Keys that give layers, or weights, adapters of their own."""
KEYS: Final = (
    *("alora_invocation_tokens", "alpha_pattern", "arrow_config", "auto_mapping"),
    *("base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config"),
    *("exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights"),
    *("layer_replication", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha"),
    *("lora_bias", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core"),
    *("modules_to_save", "monteclora_config", "peft_type", "peft_version", "qalora_group_size"),
    *("r", "rank_pattern", "revision", "runtime_config", "target_modules", "target_parameters"),
    *("task_type", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora"),
    *("use_rslora", "velora_config"),
)
"""Keys of LoraConfig (peft 0.18 and main, tuners/lora/config.py and config.py)."""


class AdapterReader:
    """Adapters of low rank, and the catalogue's model by the name that they were made for."""

    name: Final = "peft"
    title: Final = "PEFT adapter_config.json"

    def recognises(self, text: str) -> bool:
        """Whether `text` is JSON that names a kind of adapter."""
        return text.lstrip().startswith("{") and '"peft_type"' in text

    def read(self, path: Path, options: Options) -> Reading:
        """Return what is trained, and of which model."""
        text = read_text(path)
        content = parse_mapping(text, path, parse_json)
        lines = key_lines(text, path.suffix)
        unknown = unknown_of(content, KEYS, path, lines, strict=options.strict)
        settings = Settings({key: content[key] for key in content if key in KEYS}, str(path), lines=lines)
        if (kind := settings.get("peft_type")) != "LORA":
            settings.refuse(f"peft_type {kind} cannot be expressed; LORA can")
        if settings.flag("use_dora"):
            settings.refuse("use_dora has norms of whole weights, which cannot be expressed")
        if several := [key for key in BY_LAYER if settings.get(key)]:
            settings.refuse(f"{several[0]} gives layers adapters of their own, which cannot be expressed")
        words = lora_words(
            settings.size("r", 8),
            targets_of(settings.words("target_modules") or ("q_proj", "v_proj"), settings.refuse),
            dropout=settings.number("lora_dropout") or 0.0,
            whole=parts_of(settings.words("modules_to_save"), settings.refuse),
        )
        base = settings.get("base_model_name_or_path")
        known = isinstance(base, str) and options.model_of is not None
        return Reading(
            format=self.name,
            model=options.model_of(str(base)) if known and options.model_of else None,
            workload_values={"trainable": words},
            used=settings.used(),
            ignored=settings.unread(),
            unknown=unknown,
            notes=tuple(settings.notes),
        )
