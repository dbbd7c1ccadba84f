"""Configurations that a launch script writes with a here-document before it names them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from forescale.frameworks.deepspeed.reader import parse_loosely
from forescale.syntax import parse_mapping, parse_yaml

TABLES: Final = (".json", ".yaml", ".yml")
"""Endings of the names of configurations."""
_OPEN = re.compile(r"(?<=[\s:,\[])\$\{\w+\}(?=[\s,}\]])")
"""A value that is a variable which nothing sets."""


def table_of(files: Mapping[str, str], name: object, path: Path) -> dict[str, Any] | None:
    """Return the table in one of the `files` that the script at `path` writes; None where it writes none so named."""
    text = files.get(name) if isinstance(name, str) and name.endswith(TABLES) else None
    if text is None:
        return None
    if not str(name).endswith(".json"):
        return parse_mapping(text, f"{path}: {name}", parse_yaml)
    return parse_mapping(_OPEN.sub(r'"\g<0>"', text), f"{path}: {name}", parse_loosely)


def with_tables(values: Mapping[str, Any], files: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Return arguments with the tables of DeepSpeed and FSDP that the script writes, in place of their names."""
    result = dict(values)
    for key in ("deepspeed", "deepspeed_config", "fsdp", "fsdp_config"):
        if (table := table_of(files, values.get(key), path)) is None:
            continue
        if key == "fsdp":
            result["fsdp_config"] = table.get("fsdp_config", table)
            table = table.get("fsdp", "full_shard")
        result[key] = table
    return result
