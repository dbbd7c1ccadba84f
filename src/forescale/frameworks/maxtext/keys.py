"""MaxText's keys as data: what base.yml says of them, what each takes, and its models by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any


@cache
def _data(name: str) -> Any:  # noqa: ANN401  (JSON)
    return json.loads((files("forescale.frameworks.maxtext") / f"{name}.json").read_text(encoding="utf-8"))


def known_keys() -> Mapping[str, str]:
    """Return every key that MaxText takes, with the kind of its value."""
    return MappingProxyType(_data("keys")["keys"])


def base_values() -> Mapping[str, Any]:
    """Return base.yml's values of the keys that figures depend on."""
    return MappingProxyType(_data("keys")["base"])


def topologies() -> Mapping[str, int]:
    """Return the devices of one slice by the name of its topology."""
    return MappingProxyType(_data("keys")["topologies"])


def presets() -> Mapping[str, Mapping[str, Any]]:
    """Return MaxText's models by name: the `keys` that base.yml says otherwise, and our `catalogue` name of some."""
    return MappingProxyType(_data("presets")["models"])
