"""One document of what was fitted to one's own measurements: whole runs, kernels, links; any of them may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forescale.cost.calibration import Calibration, calibration_names, calibration_of, differing, inherited
from forescale.cost.collectives.calibration import LinkCalibration, link_calibration_of
from forescale.cost.run_calibration import RunCalibration, run_calibration_of
from forescale.errors import ReaderError
from forescale.files import parse_json, read_text

SCHEMA = "forescale.calibrations/1"
PARTS = ("runs", "kernels", "links")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrations:
    """What `calibrate` fits."""

    runs: RunCalibration | None = None
    """What whole runs lose against kernels alone."""
    kernels: Mapping[str, Calibration] = field(default_factory=dict)
    """Efficiencies of kernels, by device or generation."""
    links: tuple[LinkCalibration, ...] = ()
    """Latency and bandwidth of collectives over links."""

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.calibrations/1` document; what was not fitted is left out."""
        document: dict[str, Any] = {"schema": SCHEMA}
        if self.runs is not None:
            document["runs"] = asdict(self.runs)
        if self.kernels:
            document["kernels"] = {name: differing(one) for name, one in self.kernels.items()}
        if self.links:
            document["links"] = [_finite(asdict(link)) for link in self.links]
        return document


def read_calibrations(path: str | Path) -> Calibrations:
    """Return the fits in the JSON file at `path`; a bare run calibration is read too.

    Raises
    ------
    ReaderError
        If it cannot be read, has unknown keys, or holds nothing.
    """
    content = parse_json(read_text(path), path)
    if not isinstance(content, Mapping):
        raise ReaderError(path, f"it holds no table; a calibration has {', '.join(PARTS)}")
    if "schema" not in content:
        return Calibrations(runs=run_calibration_of(content, where=path))
    return _document(content, path)


def _document(content: Mapping[str, Any], path: str | Path) -> Calibrations:
    if content["schema"] != SCHEMA:
        raise ReaderError(path, f"its schema must be {SCHEMA}, got {content['schema']!r}")
    if unknown := set(content) - {"schema", *PARTS}:
        raise ReaderError(path, f"unknown key {min(unknown)!r}; allowed are {', '.join(PARTS)}")
    if not any(content.get(part) for part in PARTS):
        raise ReaderError(path, f"it holds nothing; it needs at least one of {', '.join(PARTS)}")
    runs, kernels, links = (content.get(part) for part in PARTS)
    tables = (runs or {}, kernels or {}, *(links if isinstance(links, list) else [links or {}]))
    if not all(isinstance(table, Mapping) for table in tables) or not isinstance(links or [], list):
        raise ReaderError(path, "runs must be a table, kernels a table by device, and links a list of tables")
    return Calibrations(
        runs=None if runs is None else run_calibration_of(runs, where=path),
        kernels={name: _kernels(entry, name, path) for name, entry in (kernels or {}).items()},
        links=tuple(link_calibration_of(entry, where=path) for entry in links or ()),
    )


def _kernels(entry: Mapping[str, Any], name: str, path: str | Path) -> Calibration:
    if not isinstance(entry, Mapping) or entry.get("base", "generic") not in calibration_names():
        known = ", ".join(sorted(calibration_names()))
        raise ReaderError(path, f"kernels.{name} must be a table whose base is one of {known}")
    return calibration_of(inherited(entry), where=path, key=f"kernels.{name}")


def _finite(link: dict[str, Any]) -> dict[str, Any]:
    """Return a link without what knows no limit, which JSON cannot write."""
    return {key: value for key, value in link.items() if value != float("inf")}
