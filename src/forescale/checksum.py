"""Checksums of what is written as JSON, so that a file that was damaged is not read as if it were whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"
"""Key under which a document stores its checksum."""


def checksum(values: Mapping[str, Any]) -> str:
    """Return a digest of plain values, the same for any order of keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
