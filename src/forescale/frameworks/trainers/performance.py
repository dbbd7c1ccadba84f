"""Megatron-Bridge's performance scripts: a recipe by its name, with what the options of its command change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from forescale.errors import MissingFact, UnknownNameError
from forescale.frameworks.reading import Options, ParsedFile, packaged
from forescale.frameworks.settings import Settings, errors_of

FACTS: Final = packaged("trainers", "performance")
MODEL: Final = MissingFact("the model", "--model NAME|config.json", "--model llama-3.1-8b", "model")


def long_options(names: Sequence[str]) -> list[str]:
    """Return the words of a command with its short options written out."""
    return [FACTS["short"].get(name, name) for name in names]


def read_performance(values: Mapping[str, Any], path: Path, options: Options) -> ParsedFile:
    """Return what the options of a performance script set; all else is that of the framework's recipe."""
    settings = Settings(dict(values), str(path), {name: f"--{name}" for name in values})
    with errors_of(path):
        layout, workload = (
            dict[str, Any](
                {ours: settings.size(name) for name, ours in FACTS[part].items() if name in settings}
            )
            for part in ("layout", "workload")
        )
        workload["precision"] = settings.choice("compute_dtype", "bf16", FACTS["types"])
        if settings.flag("use_megatron_fsdp"):
            layout["zero"] = 3
        if modules := settings.words("recompute_modules"):
            layout["recompute"] = {"granularity": "selective", "modules": modules}
        if count := settings.count("recompute_num_layers", 0):
            layout["recompute"] = {"granularity": "full", "num_layers": count}
        if count := settings.count("activation_offload_layers", 0):
            layout["offload"] = {"activation_layers": count}
        devices = options.num_devices or settings.count("num_gpus")
        if options.num_devices is None and devices:
            settings.note_devices(devices, "num_gpus")
    parts = filter(None, map(settings.text, ("model_name", "model_size")))
    named = settings.text("model_recipe_name") or "-".join(parts)
    name, missing = named.replace("_", "-").replace("llama31", "llama3.1"), tuple[MissingFact, ...]()
    try:
        model = options.model_of(name) if options.model_of is not None else None
    except UnknownNameError:
        model, missing = None, (MODEL._replace(reason=f"the recipe {name} is of no model of the catalogue"),)
    if changes := [f"{key} ({what})" for key, what in FACTS["matters"].items() if settings.get(key)]:
        settings.warnings.append(f"not modelled, may change memory or step time: {'; '.join(changes)}")
    return ParsedFile(
        format="launch",
        model=model,
        framework="megatron-bridge",
        layout_fields=layout,
        workload_fields=workload,
        num_devices=devices,
        missing=missing,
        **settings.accounted(()),
    )
