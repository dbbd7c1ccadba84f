"""MaxText's keys as data: what base.yml says of them, what each takes, and its models by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from forescale.frameworks.reading import packaged


def known_keys() -> Mapping[str, str]:
    """Return every key that MaxText takes, with the kind of its value."""
    return MappingProxyType(packaged("maxtext")["keys"])


def base_values() -> Mapping[str, Any]:
    """Return base.yml's values of the keys that figures depend on."""
    return MappingProxyType(packaged("maxtext")["base"])


def topologies() -> Mapping[str, int]:
    """Return the devices of one slice by the name of its topology."""
    return MappingProxyType(packaged("maxtext")["topologies"])


def presets() -> Mapping[str, Mapping[str, Any]]:
    """Return MaxText's models by name: the `keys` that base.yml says otherwise, and our `catalogue` name of some."""
    return MappingProxyType(packaged("maxtext", "presets")["models"])
