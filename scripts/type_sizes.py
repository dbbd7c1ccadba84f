"""Write the sizes that model types of transformers have by default, for types that are read without a recording.

Usage: python scripts/type_sizes.py. Writes frameworks/huggingface/sizes.json (needs the extra `trace`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from forescale.frameworks.huggingface import reader
from forescale.frameworks.huggingface.keys import Keys
from forescale.graph.dimensions import KEYS
from forescale.graph.recorded import recorded_types

OTHERS = ("model_type", "rope_parameters", "rope_scaling", "dtype", "architectures", "hidden_act",
          "quantization_config")  # fmt: skip
OUT = Path(reader.__file__).with_name("sizes.json")


def default_of(kind: str, **changes: Any) -> dict[str, Any]:
    return transformers.AutoConfig.for_model(kind, **changes).to_dict() | changes


def read_keys(kind: str, content: dict[str, Any]) -> set[str]:
    """Return the keys that the reader asks for."""
    keys = Keys({**content, "model_type": kind}, kind)
    try:
        reader.FAMILIES[kind](keys)
    except Exception as error:
        print("  ", kind, error)
    return keys._used


def sizes_of(kind: str) -> dict[str, Any]:
    """Return the sizes, lists of layers and nested parts of a default configuration that follow from no other."""
    default = default_of(kind)
    aliases = transformers.CONFIG_MAPPING[kind].attribute_map
    default |= {key: default[name] for key, name in aliases.items() if name in default}
    changed = []
    for symbol in ("h", "a"):
        key = next((key for key in KEYS[symbol] if key in default), None)
        try:
            changed.append(
                default
                if key is None
                else {key: 0} | default_of(kind, **{key: 2 * default[key]}) | {key: default[key]}
            )
        except Exception as error:
            print("  ", kind, key, error)
    used = read_keys(kind, default)
    base = transformers.PreTrainedConfig().to_dict()
    return {
        key: {name: item for name, item in value.items() if base.get(name, item) != item or name not in base}
        if isinstance(value, dict) else value
        for key, value in sorted(default.items())
        if key in used and isinstance(value, int | list | dict | str) and not isinstance(value, bool)
        and (not isinstance(value, str) or "pattern" in key)
        and key not in OTHERS
        and all(other.get(key, value) == value for other in changed)
    }  # fmt: skip


def main() -> None:
    kinds = sorted(set(reader.FAMILIES) & set(transformers.CONFIG_MAPPING) - set(recorded_types()))
    types = {kind: sizes_of(kind) for kind in kinds}
    version = transformers.__version__
    source = f"transformers {version}, classes of configurations: sizes of a configuration that gives none"
    rows = ",\n  ".join(f"{json.dumps(kind)}: {json.dumps(sizes)}" for kind, sizes in types.items())
    OUT.write_text(
        f'{{\n "source": {json.dumps(source)},\n "types": {{\n  {rows}\n }}\n}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
