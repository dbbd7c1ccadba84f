"""The paper's search: every candidate of its space, those that fit ranked by step time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from forescale.errors import InfeasibleError, SpecError
from forescale.numeric import Array
from forescale.presets.subramanian2024.evaluate import Analysis, Memory
from forescale.presets.subramanian2024.layers import Quirks, shape_of
from forescale.presets.subramanian2024.machine import machine_of
from forescale.presets.subramanian2024.space import Columns, Integers, Space, TensorParallel, enumerate_space
from forescale.results import Result
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.units import counted, format_bytes

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
class Ranked:
    """One configuration with what it costs."""

    configuration: Configuration
    step_time_s: float
    samples_per_s: float
    time_s: Breakdown
    memory_bytes: Memory
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


def search_subramanian2024(
    model: Model,
    cluster: Cluster,
    *,
    tensor_parallel: TensorParallel,
    global_batch_size: int,
    top: int = 10,
    quirks: Quirks | None = None,
    seq_len: int | None = None,
    fixed: Mapping[str, int] = MappingProxyType({}),
) -> StudyResult:
    """Rank every configuration of Subramanian et al. 2024, arXiv:2410.00273, that fits.

    Parameters
    ----------
    tensor_parallel
        "1d": tensor with sequence parallelism; "2d": with context parallelism over a second axis;
        "summa": blocked products over a grid.
    quirks
        Which peculiarities of the published code to keep; all by default.
    seq_len
        Tokens per sequence; by default what the model was made for.
    fixed
        Degrees ("tp1", "tp2", "pp", "dp") or "micro_batch_size" held at a value.

    Raises
    ------
    InfeasibleError
        If no configuration is legal, or none fits in memory.
    """
    started = time.perf_counter()
    if top < 1 or global_batch_size < 1:
        msg = f"top and global_batch_size must be 1 or more; got {top} and {global_batch_size}"
        raise SpecError(msg)
    shape, machine = shape_of(model, seq_len=seq_len), machine_of(cluster)
    quirks = quirks or Quirks()
    question = Analysis(shape=shape, machine=machine, kind=tensor_parallel, quirks=quirks)
    space = enumerate_space(
        shape,
        num_devices=cluster.num_devices,
        domain=machine.domain,
        kind=tensor_parallel,
        global_batch_size=global_batch_size,
        fixed=fixed,
    )
    counts = space.num_candidates()
    if not counts.sum():
        msg = f"no legal configuration of {model.name} on {counted(cluster.num_devices, 'device')} of {cluster.name}"
        raise InfeasibleError(msg)
    memory = np.asarray(question.memory(space.rows).total)
    fitting = np.flatnonzero(memory <= machine.hbm_bytes)
    num_feasible = int(counts[fitting].sum())
    if num_feasible == 0:
        raise _nothing_fits(model, cluster, memory, counts)
    return StudyResult(
        model=model,
        cluster=cluster,
        tensor_parallel=tensor_parallel,
        seq_len=shape.seq_len,
        global_batch_size=global_batch_size,
        quirks=quirks,
        best=_ranked(question, _fastest(question, space, fitting, top), global_batch_size),
        num_candidates=int(counts.sum()),
        num_feasible=num_feasible,
        elapsed_s=time.perf_counter() - started,
    )


def _fastest(question: Analysis, space: Space, rows: Integers, top: int) -> Columns:
    """Return the `top` fastest candidates of `rows`, fastest first; equals keep the order of the space."""
    candidates = space.expand(rows)
    total: Array = np.asarray(question.step_time(candidates).total)
    kept = np.arange(len(total))
    if len(total) > top:
        kept = np.flatnonzero(total <= np.partition(total, top - 1)[top - 1])
    kept = kept[np.argsort(total[kept], kind="stable")][:top]
    return {name: values[kept] for name, values in candidates.items()}


def _ranked(question: Analysis, chosen: Columns, global_batch_size: int) -> tuple[Ranked, ...]:
    """Return the chosen candidates with all that is known of them."""
    step, layer, memory = question.step_time(chosen), question.layer_time(chosen), question.memory(chosen)
    passes = chosen["num_microbatches"] * (question.shape.num_layers // chosen["pp"])
    times = {
        "compute": layer.compute_s * passes,
        "memory": layer.memory_s * passes,
        "tensor": layer.tensor_s * passes,
        "data": step.data,
        "pipeline": step.pipeline,
        "bubble": step.bubble,
    }
    kept = {name: getattr(memory, name) for name in Memory.__dataclass_fields__}
    flops, total = layer.flops * passes, np.asarray(step.total)
    return tuple(
        Ranked(
            configuration=_configuration(_row(chosen, row)),
            step_time_s=float(total[row]),
            samples_per_s=global_batch_size / float(total[row]),
            time_s=Breakdown(**_row(times, row)),
            memory_bytes=Memory(**_row(kept, row)),
            flops_per_device=float(flops[row]),
        )
        for row in range(len(total))
    )


def _row(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {name: values[row].item() for name, values in columns.items()}


def _configuration(values: dict[str, int]) -> Configuration:
    placement = {name: values[f"near_{name}"] for name in Placement.__dataclass_fields__}
    plain = {name: values[name] for name in Configuration.__dataclass_fields__ if name != "placement"}
    return Configuration(**plain, placement=Placement(**placement))


def _nothing_fits(model: Model, cluster: Cluster, memory: Array, counts: Integers) -> InfeasibleError:
    smallest = float(memory[counts > 0].min())
    return InfeasibleError(
        f"none of the {int(counts.sum()):,} configurations of {model.name} fits "
        f"{format_bytes(cluster.device.hbm_bytes)} on {counted(cluster.num_devices, 'device')} of {cluster.name}; the "
        f"smallest needs {format_bytes(smallest)}: try more devices",
        [("memory", int(counts.sum()))],
    )
