"""What the study's search says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forescale.presets.subramanian2024.quirks import Quirks
from forescale.presets.subramanian2024.space import TensorParallel
from forescale.results import Result
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model

SCHEMA = "forescale.subramanian2024/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Ranks of each degree that share a fast domain; their product fills it."""

    tp1: int
    tp2: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A division of the devices, and where it lies."""

    tp1: int
    tp2: int
    pp: int
    dp: int
    micro_batch_size: int
    num_microbatches: int
    panels: int
    """Panels of SUMMA's products; 1 in the other strategies."""
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one step; they sum to the step time."""

    compute: float
    memory: float
    """Memory traffic beyond compute."""
    tensor: float
    """Exposed messages within layers."""
    data: float
    pipeline: float
    bubble: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """Bytes of one device."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All parts together."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One configuration with what it costs."""

    configuration: Configuration
    step_time_s: float
    samples_per_s: float
    time_s: Breakdown
    memory_bytes: MemoryBytes
    flops_per_device: float
    """Of one step; attention's vector work is counted at the matrix rate."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StudyResult(Result):
    """Configurations by step time, fastest first."""

    model: Model
    cluster: Cluster
    tensor_parallel: TensorParallel
    seq_len: int
    global_batch_size: int
    quirks: Quirks
    best: tuple[Ranked, ...]
    num_candidates: int
    num_feasible: int
    elapsed_s: float

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per configuration."""
        return [{"rank": place, **_flat(asdict(one))} for place, one in enumerate(self.best, start=1)]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.subramanian2024/1` document."""
        return {
            "schema": SCHEMA,
            "model": self.model.name,
            "cluster": self.cluster.name,
            "num_devices": self.cluster.num_devices,
            "tensor_parallel": self.tensor_parallel,
            "seq_len": self.seq_len,
            "global_batch_size": self.global_batch_size,
            "quirks": asdict(self.quirks),
            "num_candidates": self.num_candidates,
            "num_feasible": self.num_feasible,
            "elapsed_s": self.elapsed_s,
            "best": [asdict(item) for item in self.best],
        }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, "" if name == "configuration" else f"{prefix}{name}_")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
