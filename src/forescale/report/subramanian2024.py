"""The figures and tables of Subramanian et al. 2024, computed anew, next to what the paper states of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from statistics import median
from typing import Any, TypeAlias

from msgspec.structs import replace

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import InfeasibleError
from forescale.files import shipped
from forescale.presets.subramanian2024 import Quirks, Ranked, search_subramanian2024
from forescale.presets.subramanian2024.machine import machine_of
from forescale.presets.subramanian2024.preset import SUBRAMANIAN_2024
from forescale.question import Question
from forescale.results import Result
from forescale.spec import Cluster, Layout, Workload
from forescale.struct import Struct

Row: TypeAlias = dict[str, Any]
BATCH = 4096
GB, TB, TFLOP = 1e9, 1e12, 1e12
UNLIMITED = 1e18
"""Bytes of a device that holds everything: figures 1 to 3 and A2 show what does not fit too."""
FITTING, FASTEST, MEDIAN = "fastest that fits", "fastest", "median speedup"
"""Rows that are chosen by what they hold."""


class Statement(Struct, frozen=True, kw_only=True):
    """A value that the paper states, and ours."""

    row: str
    quantity: str
    paper: float
    here: float | None

    @property
    def difference(self) -> float | None:
        """Ours over the paper's, less 1; None where a row is missing."""
        return None if self.here is None else self.here / self.paper - 1.0


class PaperFigure(Result, Struct, frozen=True, kw_only=True):
    """One figure or table: its rows, and the values that the paper states."""

    name: str
    caption: str
    values: tuple[Row, ...]
    statements: tuple[Statement, ...]

    def rows(self) -> list[Row]:
        """Return its rows."""
        return list(self.values)

    def to_json(self) -> Row:
        """Return the `forescale.study/1` document."""
        stated = [{**asdict(item), "difference": item.difference} for item in self.statements]
        return {
            "schema": "forescale.study/1",
            "name": self.name,
            "caption": self.caption,
            "rows": self.rows(),
            "statements": stated,
        }


def definitions() -> Mapping[str, Row]:
    """Return how each figure and table is computed, by name."""
    return shipped("report/subramanian2024")  # type: ignore[no-any-return]


def paper_figure(name: str) -> PaperFigure:
    """Return one figure or table, computed anew."""
    definition = definitions()[name]
    values = tuple(_rows(definition))
    stated = tuple(
        _statement(values, item["row"], quantity, value)
        for item in definition.get("paper", ())
        for quantity, value in item["values"].items()
    )
    return PaperFigure(name=name, caption=definition["caption"], values=values, statements=stated)


def _rows(definition: Row) -> Iterable[Row]:
    if "systems" in definition:
        return configuration_rows(definition)
    if "layout" in definition:
        return _operation_rows(definition)
    if "hardware" in definition:
        return [_hardware_row(load_cluster(name, 8)) for name in definition["hardware"]]
    if "bytes" in definition:
        return _gather_rows(definition)
    return [dict(zip(definition["columns"], row, strict=True)) for row in definition["rows"]]


def _statement(rows: Sequence[Row], which: str | Row, quantity: str, paper: float) -> Statement:
    """Return what the paper states of one row next to what that row holds here."""
    if which == MEDIAN:
        here = median(row[quantity] for row in rows)
        return Statement(row=MEDIAN, quantity=quantity, paper=paper, here=here)
    if isinstance(which, Mapping):
        chosen = [row for row in rows if which.items() <= row.items()]
    else:
        chosen = [row for row in rows if which == FASTEST or row["fits"]]
    best = min(chosen, key=lambda row: float(row.get("step_time_s", 0.0)), default=None)
    text = which if isinstance(which, str) else ", ".join(f"{name} {value}" for name, value in which.items())
    return Statement(row=text, quantity=quantity, paper=paper, here=None if best is None else best[quantity])


def configuration_rows(definition: Row) -> Iterator[Row]:
    """Yield the best configuration of each system, size and held dimension of a figure, where one is legal and fits."""
    hold = definition.get("hold", [{}])
    for system, devices in product(definition["systems"], definition["devices"]):
        base = load_cluster(system, devices)
        for (changes, cluster), fixed in product(_changed(base, definition), hold):
            if (one := best(definition, cluster, definition["kind"], fixed)) is None:
                continue
            row = {"system": system, "devices": devices, **changes, **_configuration(one, base)}
            if "against" in definition:
                other = best(definition, cluster, definition["against"], fixed)
                if other is None:
                    continue
                row["speedup"] = other.step_time_s / one.step_time_s
            yield row


def best(definition: Row, cluster: Cluster, kind: Any, fixed: Mapping[str, int]) -> Ranked | None:  # noqa: ANN401
    """Return the fastest configuration with some dimensions held, or None if none is legal or fits."""
    if definition.get("unlimited"):
        cluster = replace(cluster, device=replace(cluster.device, hbm_bytes=UNLIMITED))
    try:
        result = search_subramanian2024(
            load_model(definition["model"]),
            cluster,
            tensor_parallel=kind,
            global_batch_size=definition.get("global_batch_size", BATCH),
            tokens=definition.get("tokens"),
            top=1,
            fixed=fixed,
        )
    except InfeasibleError:
        return None
    return result.best[0]


def _changed(cluster: Cluster, definition: Row) -> Iterator[tuple[Row, Cluster]]:
    """Yield the cluster with the rates and memories that a figure goes through."""
    if "rates" not in definition:
        yield {}, cluster
        return
    for (matrix, vector), (capacity, bandwidth) in product(definition["rates"], definition["memories"]):
        rates = replace(cluster.device.matrix_flops, fp16=matrix * TFLOP, bf16=matrix * TFLOP)
        device = replace(
            cluster.device,
            matrix_flops=rates,
            vector_flops=vector * TFLOP,
            hbm_bytes=capacity * GB,
            hbm_bandwidth=bandwidth * TB,
        )
        changes = {"matrix_TFLOP/s": matrix, "hbm_GB": capacity, "hbm_TB/s": bandwidth}
        yield changes, replace(cluster, device=device)


def _configuration(one: Ranked, cluster: Cluster) -> Row:
    """Return a configuration with its placement, times and memory as plain values."""
    plain = asdict(one.configuration)
    near = {f"near_{axis}": ranks for axis, ranks in plain.pop("placement").items()}
    memory = float(one.memory_bytes.total)
    shares = {name: seconds / one.step_time_s for name, seconds in asdict(one.time_s).items()}
    return {
        **plain,
        **near,
        "step_time_s": one.step_time_s,
        "days": one.training_days,
        "memory_GB": memory / GB,
        "fits": memory <= cluster.device.hbm_bytes,
        **{f"share_{name}": share for name, share in shares.items()},
    }


def _operation_rows(definition: Row) -> Iterator[Row]:
    """Yield a row per tensor of each operation of forward, as the tables of the paper list them."""
    layout = Layout(**definition["layout"], cp_kind="all_gather", zero=1)
    model, devices = load_model(definition["model"]), definition["devices"]
    question = Question(
        model=model,
        cluster=load_cluster(definition["system"], devices),
        workload=Workload(seq_len=model.max_seq_len, global_batch_size=BATCH),
        strategy=replace(layout, dp_shard=devices // layout.num_devices),
    )
    for item in SUBRAMANIAN_2024.operations(question):
        for tensor in item.tensors if item.direction == "forward" else ():
            yield {
                "operation": item.name,
                "tensor": tensor.name,
                "shape": ", ".join(tensor.shape),
                "size": " × ".join(map(str, tensor.size)),
                "collective": item.collective,
                **{name: getattr(item, name) for name in ("volume_bytes", "flops", "num_bytes")},
            }


def _gather_rows(definition: Row) -> Iterator[Row]:
    machine = machine_of(load_cluster(definition["system"], 2 * definition["ranks"]))
    for near, num_bytes in product(definition["near"], definition["bytes"]):
        seconds = machine.collective(
            kind="all_gather",
            num_bytes=float(num_bytes),
            num_ranks=float(definition["ranks"]),
            near=float(near),
            quirks=Quirks.none(),
        )
        yield {"ranks_per_node": near, "bytes": num_bytes, "seconds": float(seconds)}


def _hardware_row(cluster: Cluster) -> Row:
    """Return a device with its two networks as table A3 has them."""
    machine, (fast, slow) = machine_of(cluster), cluster.tiers[:2]
    return {
        "system": cluster.name,
        "matrix_TFLOP/s": machine.matrix_rate / TFLOP,
        "vector_TFLOP/s": machine.vector_rate / TFLOP,
        "latency_s": machine.operation_latency,
        "hbm_GB/s": machine.hbm_bandwidth / GB,
        "hbm_GB": machine.hbm_bytes / GB,
        "nvs_GB/s": fast.bandwidth / GB,
        "nvs_latency_s": fast.latency,
        "ib_GB/s": slow.bandwidth / GB,
        "ib_latency_s": slow.latency,
    }
