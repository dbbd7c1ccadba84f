"""Adapters of low rank as frameworks say them: names of products, what is read, and PEFT's adapter_config.json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from forescale.errors import not_expressed, shown
from forescale.files import parse_json, read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.reading import Options, ParsedFile, packaged
from forescale.frameworks.settings import known_settings
from forescale.positions import key_lines
from forescale.spec.workload import LoraTarget
from forescale.syntax import parse_mapping

PEFT: Final = packaged("huggingface", "peft")
PLACES: Mapping[str, tuple[LoraTarget, ...]] = {name: tuple(place) for name, place in PEFT["places"].items()}
"""Our targets by what Hugging Face, Megatron-Bridge and MaxText call them."""
WHOLE: Mapping[str, str] = {"embed_tokens": "embedding", "lm_head": "head", "wte": "embedding"}
"""Parts by the modules that PEFT trains whole."""


def targets_of(
    names: Collection[object],
    refuse: Callable[[str], NoReturn],
    places: Mapping[str, tuple[LoraTarget, ...]] = PLACES,
) -> tuple[LoraTarget, ...]:
    """Return the products that are meant; `refuse` is told of a name that is none."""
    values: dict[LoraTarget, None] = {}
    lasts = [str(name).rpartition(".")[2] for name in names]
    if "wqkv" in lasts:  # InternLM2's, whose wo is the output of attention, not of the feed-forward
        lasts = ["o_proj" if last == "wo" else last for last in lasts]
    for name, last in zip(names, lasts, strict=True):
        if last not in places:
            refuse(f"adapters at {shown(name)} are not counted; known places are {', '.join(places)}")
        values.update(dict.fromkeys(places[last]))
    return tuple(values)


def parts_of(names: Iterable[object], refuse: Callable[[str], NoReturn]) -> tuple[str, ...]:
    """Return the parts of a model that PEFT trains whole."""
    for name in names:
        if name not in WHOLE:
            refuse(f"{shown(name)} trained whole is not counted; {', '.join(WHOLE)} are")
    return tuple(WHOLE[str(name)] for name in names)


def lora_words(
    rank: int,
    targets: tuple[LoraTarget, ...],
    *,
    dropout: float = 0.0,
    experts: str = "own",
    whole: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return adapters in the words of a plan, beside parts that are trained whole."""
    return {
        "lora_rank": rank,
        "lora_targets": targets,
        "lora_dropout": dropout > 0.0,
        "lora_experts": experts,
        "whole": whole,
    }


BY_LAYER: Final[list[str]] = PEFT["by_layer"]
"""Keys that give layers, or weights, adapters of their own."""
KEYS: Final[list[str]] = PEFT["keys"]
"""Keys of LoraConfig (peft 0.18 and main, tuners/lora/config.py and config.py)."""


class AdapterReader(Signed):
    """Adapters of low rank, and the catalogue's model by the name that they were made for."""

    name: Final = "peft"
    title: Final = "PEFT adapter_config.json"

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what is trained, and of which model."""
        text = read_text(path)
        content = parse_mapping(text, path, parse_json)
        lines = key_lines(text, path.suffix)
        settings, unknown = known_settings(content, KEYS, path, lines, strict=options.strict)
        if (kind := settings.get("peft_type")) != "LORA":
            settings.refuse(not_expressed("peft_type", kind, "LORA is"))
        if settings.flag("use_dora"):
            settings.refuse(not_expressed("use_dora", "(norms of whole weights)"))
        if several := [key for key in BY_LAYER if settings.get(key)]:
            settings.refuse(not_expressed(several[0], "(layers with adapters of their own)"))
        parts = lora_words(
            settings.size("r", 8),
            targets_of(settings.words("target_modules") or ("q_proj", "v_proj"), settings.refuse),
            dropout=settings.number("lora_dropout") or 0.0,
            whole=parts_of(settings.words("modules_to_save"), settings.refuse),
        )
        base = settings.get("base_model_name_or_path")
        known = isinstance(base, str) and options.model_of is not None
        return ParsedFile(
            format=self.name,
            model=options.model_of(str(base)) if known and options.model_of else None,
            workload_fields={"trainable": parts},
            **settings.accounted(unknown),
        )
