"""Bench artifacts: what was measured, and of which configuration, in JSON with a versioned schema.

```json
{
  "schema": "forescale.bench/1",
  "asked": {"model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": 64, "strategy": {"tp": 2, "pp": 8}, ...},
  "config": {"model": {"base": "llama-3.1-8b", ...}, "cluster": "h100-sxm", "devices": 2,
             "strategy": {"tp": 2}, "workload": {"seq_len": 4096, "global_batch_size": 2}},
  "given_up": [{"dimension": "pp", "asked": 8, "measured": 1}, {"dimension": "layers", "asked": 32, "measured": 2}],
  "conditions": {"date": "2026-08-01", "device": "h100-sxm", "software": "torch 2.8", "num_devices": 2},
  "ranks": [{"rank": 0, "stage": 0, "peak_allocated_bytes": 4.1e10, "peak_reserved_bytes": 4.4e10,
             "phases": [{"phase": "forward", "peak_allocated_bytes": 4.1e10}]}],
  "layers": [{"kind": "attention+dense", "activation_bytes": 1.2e9}],
  "blocks": [{"kind": "attention+dense", "part": "forward", "seconds": 0.004, "p10_s": 0.0039, "p90_s": 0.0043,
              "repeats": 64}],
  "steps": [{"num_microbatches": 1, "seconds": 0.031}],
  "kernels": [{"op": "gemm", "m": 8192, "n": 28672, "k": 4096, "dtype": "bf16", "seconds": 0.0029}],
  "collectives": [{"kind": "all_reduce", "num_bytes": 67108864, "num_ranks": 8, "ranks_per_node": 8,
                   "seconds": 0.00035}]
}
```

`asked` and `config` have the sections of a plan file: what is to be known, and what of it was run. Everything but the
schema may be left out, but something must have been measured, and ranks, layers, blocks and steps need `config`.
Every timed row has the median as `seconds`, and may have `p10_s`, `p90_s` and `repeats`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import field
from msgspec.structs import replace

from forescale import wording
from forescale.atomic_write import write_text
from forescale.checksum import CHECKSUM, checksum
from forescale.cost.timings import (
    BlockTiming,
    MeasuredCollective,
    ProfiledOperator,
    StepTiming,
    Timed,
    pooled,
)
from forescale.errors import ReaderError, SpecError, UnknownKeyError, shown
from forescale.files import parse_json, read_text
from forescale.graph.ops import AttentionCore, CollectiveKind, Compute, Elementwise, Gemm, GroupedGemm
from forescale.io.named import build
from forescale.limits import Amount, Devices, Interval
from forescale.memory.anchored import LayerMeasurement, RankPeak
from forescale.positions import says_lines
from forescale.struct import Struct, attributes
from forescale.syntax import parse_mapping

FAMILY = "forescale.bench/"
SCHEMA = f"{FAMILY}1"
RUN = ("model", "cluster", "devices", "strategy", "workload", "precision")
"""Sections of `config` that say what ran."""
TRACKED = ("measured", "tracked")


class Conditions(Struct, frozen=True, kw_only=True):
    """Where, when and how it was measured."""

    date: str = ""
    device: str = ""
    software: str = ""
    num_devices: Devices | None = None
    """Devices that it was measured on: ranks of the run, each with one."""
    num_copies: Devices = 1
    """Runs at the same time, the first of which was measured: neighbours share memory and power."""
    backend: str = ""
    """Of torch.distributed: nccl, gloo."""
    threads: Devices | None = None
    """Of each rank, where the device is a CPU."""
    clocks_mhz: tuple[Amount, ...] = ()
    """The device's clock before and after."""
    power_cap_w: Amount | None = None
    throttled: tuple[str, ...] = ()
    """Why the device's clock was held down meanwhile, by its driver."""
    tracked: bool = False
    """Whether memory was counted on fake tensors, not measured."""
    interrupted: bool = False
    """Whether it was stopped before everything was measured."""
    failed: str = ""
    """What failed before everything was measured, and why; nothing where nothing did."""
    left_out: tuple[str, ...] = ()
    """What there was no time for, and rows that were no measurements."""


class GivenUp(Struct, frozen=True, kw_only=True):
    """What was asked for and does not fit on the devices at hand, and what was measured instead."""

    dimension: Literal["pp", "ep", "experts", "tp", "dp", "layers", "sequences"]
    """A degree; experts of a layer; decoder layers; sequences of a step."""
    asked: Devices
    measured: Devices


class BenchArtifact(Struct, frozen=True, kw_only=True):
    """One measured run."""

    asked: Mapping[str, Any] | None = None
    """What is to be known, as a plan file says it; None where it is what was run."""
    config: Mapping[str, Any] | None = None
    """What was run, as a plan file says it (`build_question`); None where kernels were timed by themselves."""
    given_up: tuple[GivenUp, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    ranks: tuple[RankPeak, ...] = ()
    layers: tuple[LayerMeasurement, ...] = ()
    blocks: tuple[BlockTiming, ...] = ()
    steps: tuple[StepTiming, ...] = ()
    kernels: tuple[KernelTiming, ...] = ()
    collectives: tuple[CollectiveTiming, ...] = ()
    profile: tuple[ProfiledOperator, ...] = ()
    """Operators of one step, which `diagnose` compares with those of another profile."""
    unchecked: bool = False
    """Whether its file has no checksum, as those before version 1.1 and those written by hand have none."""


NO_CHECKSUM = "it has no checksum, so that damage would not be noticed"


@says_lines
def read_bench(path: str | Path) -> BenchArtifact:
    """Return the artifact that a JSON file holds.

    Raises
    ------
    ReaderError
        If the file is missing, is not whole JSON, was changed since it was written, or has another schema; the message
        says which can be read.
    SpecError
        If anything in it is unknown, missing or impossible.
    """
    file = Path(path)
    document = parse_mapping(read_text(file), file, parse_json)
    _check_schema(document.get("schema"), file)
    values = {key: value for key, value in document.items() if key != CHECKSUM}
    raw = document.get(CHECKSUM)
    if raw is not None and raw != checksum(values):
        raise ReaderError(
            file,
            wording.corrupted(
                "it",
                f"its checksum is {shown(raw)}, that of its content {checksum(values)[:8]}…",
                f'restore or measure it again, or remove the key "{CHECKSUM}" if you changed it on purpose',
            ),
        )
    return replace(build_bench(values, where=str(file)), unchecked=raw is None)


def is_same_run(one: BenchArtifact, other: BenchArtifact) -> bool:
    """Say whether two artifacts are of one run, and both measured or both tracked."""
    return one.config == other.config and one.conditions.tracked == other.conditions.tracked


def merged(artifacts: Mapping[str, BenchArtifact]) -> BenchArtifact:
    """Return artifacts, by the names of their files, as one; loading it is loading them all.

    Equal rows become one (`pooled`). Of a rank the highest peak counts, of what a layer keeps the median.

    Raises
    ------
    SpecError
        If two of them contradict each other: in what ran, or on which device.
    """
    value = tuple(artifacts.values())
    _check_alike(artifacts)
    of_run = next((item for item in value if item.config is not None), value[0])
    peaks = sorted(_rows_of(value, "ranks"), key=lambda rank: rank.peak_reserved_bytes)
    kept: dict[str, list[float]] = defaultdict(list)
    for layer in _rows_of(value, "layers"):
        kept[layer.kind] += [] if layer.activation_bytes is None else [layer.activation_bytes]
    timed: dict[str, Any] = {
        key: pooled(_rows_of(value, key)) for key in ("blocks", "steps", "kernels", "collectives")
    }
    return replace(
        of_run,
        conditions=_together([item.conditions for item in value]),
        unchecked=any(item.unchecked for item in value),
        profile=next((item.profile for item in value if item.profile), ()),
        ranks=tuple({(rank.rank, rank.stage): rank for rank in peaks}.values()),
        layers=tuple(
            LayerMeasurement(kind=kind, activation_bytes=median(sizes) if sizes else None)
            for kind, sizes in kept.items()
        ),
        **timed,
    )


def _rows_of(artifacts: Iterable[BenchArtifact], key: str) -> list[Any]:
    return [row for artifact in artifacts for row in getattr(artifact, key)]


def _check_alike(artifacts: Mapping[str, BenchArtifact]) -> None:
    """Refuse runs that differ, and files of different devices; timed kernels go with any run of their device."""
    first: dict[str, tuple[str, object]] = {}
    for name, artifact in artifacts.items():
        run = artifact.config or {}
        message = {key: run.get(key) for key in RUN} if run else {}
        message |= {
            "device": artifact.conditions.device,
            "way to memory": TRACKED[artifact.conditions.tracked],
        }
        for key, value in message.items():
            other, known = first.setdefault(key, (name, value)) if value != "" else (name, value)
            if value != known:
                raise wording.conflicts(
                    [other, name],
                    f"they differ in their {key}, and a file holds one run",
                    "keep them apart, load both",
                )


def _together(several: Sequence[Conditions]) -> Conditions:
    """Return the conditions of several files as one: all words, the largest numbers."""
    result: dict[str, Any] = {}
    for item in fields(Conditions):
        values = [value for one in several if (value := getattr(one, item.name)) != item.default]
        if values and isinstance(values[0], tuple):
            result[item.name] = tuple(dict.fromkeys(chain.from_iterable(values)))
        elif values:
            result[item.name] = (
                "; ".join(dict.fromkeys(values)) if isinstance(values[0], str) else max(values)
            )
    return Conditions(**result)


def write_bench(artifact: BenchArtifact, path: str | Path) -> None:
    """Write an artifact as JSON, one line a row; `read_bench` gives an equal one back.

    Raises
    ------
    SpecError
        If nothing was measured.
    """
    _check(artifact, str(path))
    lines = (f" {json.dumps(name)}: {_section(value)}" for name, value in bench_values(artifact).items())
    write_text(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def bench_values(artifact: BenchArtifact) -> dict[str, Any]:
    """Return an artifact as plain values, as its file has them, with their checksum."""
    plain = _plain(replace(artifact, unchecked=False))
    values = {"schema": SCHEMA, **{name: value for name, value in plain.items() if value != {}}}
    return {**values, CHECKSUM: checksum(values)}


def _section(value: object) -> str:
    if not isinstance(value, list):
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in value) + "\n ]"


def _plain(value: Any) -> Any:  # noqa: ANN401 (a value of an artifact)
    """Return dataclasses as tables, without what they leave out."""
    if is_dataclass(value):
        values = [
            item for item in fields(value) if item.name == "op" or getattr(value, item.name) != item.default
        ]
        return {item.name: _plain(getattr(value, item.name)) for item in values}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def build_bench(document: Mapping[str, Any], *, where: str) -> BenchArtifact:
    """Return the artifact that plain values describe."""
    keys = ("schema", *(item.name for item in fields(BenchArtifact) if item.name != "unchecked"))
    for key in document:
        if key not in keys:
            raise UnknownKeyError(key, where, keys)
    for key in ("asked", "config"):
        if key in document and not isinstance(document[key], Mapping):
            allowed = "a table with model, cluster, devices and workload"
            raise wording.wrong_type(key, document[key], allowed).at(where)
    rows = {key: _rows(document, key, where) for key in ROWS}
    rows["layers"], times = _layers(rows["layers"])
    rows["blocks"] = [*rows["blocks"], *times]
    values: dict[str, Any] = {
        key: tuple(_row(key, row, f"{where}, {key}[{place}]") for place, row in enumerate(value))
        for key, value in rows.items()
    }
    artifact = BenchArtifact(
        asked=document.get("asked"),
        config=document.get("config"),
        conditions=build(Conditions, document.get("conditions", {}), where=f"{where}, conditions"),
        **values,
    )
    _check(artifact, where)
    return artifact


def _check_schema(value: object, file: Path) -> None:
    if value == SCHEMA:
        return
    if isinstance(value, str) and value.startswith(FAMILY):
        number = value.removeprefix(FAMILY)
        newer = (
            "a newer Forescale wrote it" if number.isdecimal() and int(number) > 1 else "nothing reads that"
        )
        fix = f"{newer}: update, or measure again"
        raise ReaderError(file, wording.newer_version("its schema", value, SCHEMA, fix))
    allowed = "a bench artifact"
    raise ReaderError(file, wording.wrong_format(allowed, f"its schema is {value!r}, not {SCHEMA}"))


def _check(artifact: BenchArtifact, where: str) -> None:
    """Refuse an artifact without measurements, or with measurements of a run that it does not have."""
    of_run = {key: getattr(artifact, key) for key in ("ranks", "layers", "blocks", "steps", "profile")}
    if not (any(of_run.values()) or artifact.kernels or artifact.collectives):
        raise wording.not_measured("it", "a rank, layer, block, step, kernel or collective").at(where)
    needy = [key for key, rows in of_run.items() if rows]
    if artifact.config is None and needy:
        other = wording.listed(needy, "and")
        raise wording.required_with("config, the run that they were measured in", other).at(where)


def _row(key: str, row: Mapping[str, Any], where: str) -> Any:  # noqa: ANN401 (a row)
    """Return one row; of a timed kernel its `op` says what else it has."""
    if key != "kernels":
        return build(ROWS[key], row, where=where)
    op = str(row.get("op"))
    if op not in KERNEL_TIMINGS:
        raise wording.not_one_of("op", op, KERNEL_TIMINGS).at(where)
    return build(KERNEL_TIMINGS[op], row, where=where)


def usable_rows(
    sections: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
    """Return the rows of each section that are measurements, and what is wrong with each of the others."""
    usable: dict[str, list[Any]] = {}
    violations = []
    for key, rows in sections.items():
        for row in rows:
            try:
                _row(key, row, key)
            except SpecError as error:
                violations.append(str(error))
            else:
                usable.setdefault(key, []).append(row)
    return usable, tuple(violations)


def _layers(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return rows of `layers`, and as rows of `blocks` the times that they may have had: forward_s, backward_s."""
    layers: list[Mapping[str, Any]] = []
    blocks: list[Mapping[str, Any]] = []
    for row in rows:
        layers.append({key: value for key, value in row.items() if key not in ("forward_s", "backward_s")})
        blocks += [
            {"kind": row.get("kind"), "part": part, "seconds": row[f"{part}_s"]}
            for part in ("forward", "backward")
            if row.get(f"{part}_s") is not None
        ]
    return layers, blocks


def _rows(document: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise wording.wrong_type(key, rows, "a list of tables").at(where)
    return rows


Extent: TypeAlias = Annotated[float, Interval(gt=0, le=1e18)]
KernelType: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8_blockwise", "mxfp8", "nvfp4"]
TrafficFamily: TypeAlias = Literal[
    "elementwise", "norm", "softmax", "permute", "embedding", "loss", "optimizer", "cast"
]


OPERATORS: dict[str, type[Compute]] = {
    "gemm": Gemm,
    "grouped_gemm": GroupedGemm,
    "attention": AttentionCore,
    "elementwise": Elementwise,
}
"""What was timed, by the `op` of a row."""


class KernelTiming(Timed, frozen=True, kw_only=True):
    """One operator; besides times a row has fields of it."""

    op: str

    @property
    def operator(self) -> Compute:
        """What was timed."""
        return OPERATORS[self.op](**self.extents())

    def extents(self) -> dict[str, Any]:
        """Return the fields of the operator."""
        times = {"op", *(item.name for item in fields(Timed))}
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in times}


class GemmTiming(KernelTiming, frozen=True, kw_only=True):
    """`batch` products of m x k by k x n."""

    op: Literal["gemm"] = "gemm"
    m: Extent
    n: Extent
    k: Extent
    batch: Extent = 1.0
    dtype: KernelType = "bf16"
    accumulate_bytes: Annotated[float, Interval(ge=0, le=1e3)] = 0.0
    """Bytes read and written besides per output element: 6 where a 16-bit product is added to fp32 gradients."""


class GroupedGemmTiming(KernelTiming, frozen=True, kw_only=True):
    """One product per expert; `m` rows of all experts together."""

    op: Literal["grouped_gemm"] = "grouped_gemm"
    groups: Extent
    m: Extent
    n: Extent
    k: Extent
    dtype: KernelType = "bf16"
    contract: Literal["k", "m"] = "k"
    """"m": the weight gradient, contracted over rows."""
    accumulate_bytes: Annotated[float, Interval(ge=0, le=1e3)] = 0.0


class AttentionTiming(KernelTiming, frozen=True, kw_only=True):
    """Scores, softmax and values: forward, or backward alone."""

    op: Literal["attention"] = "attention"
    batch: Extent
    heads: Extent
    kv_heads: Extent
    q_len: Extent
    kv_len: Extent
    qk_dim: Extent
    v_dim: Extent
    pairs: Extent | None = None
    """Query-key pairs per sequence and head that the mask leaves; by default half of them where causal."""
    causal: bool = True
    backward: bool = False
    flash: bool = True
    dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "bf16"

    def extents(self) -> dict[str, Any]:
        """Return the fields of the operator; of query-key pairs all or half where nothing says."""
        everything = self.q_len * self.kv_len
        pairs = self.pairs or (everything / 2.0 if self.causal else everything)
        return {**KernelTiming.extents(self), "pairs": pairs}


class ElementwiseTiming(KernelTiming, frozen=True, kw_only=True):
    """A step bound by memory traffic."""

    op: Literal["elementwise"] = "elementwise"
    family: TrafficFamily = "elementwise"
    bytes_moved: Extent
    kernels: Extent = 1.0


class CollectiveTiming(Timed, frozen=True, kw_only=True):
    """One collective; bytes as nccl-tests prints them as size."""

    kind: CollectiveKind
    num_bytes: Extent
    num_ranks: Annotated[int, Interval(gt=1, le=2**24)]
    ranks_per_node: Devices

    @property
    def measured(self) -> MeasuredCollective:
        """What was timed."""
        return MeasuredCollective(
            **attributes(self, "kind", "num_bytes", "num_ranks", "ranks_per_node", "seconds")
        )


KERNEL_TIMINGS: dict[str, type[KernelTiming]] = {
    "gemm": GemmTiming,
    "grouped_gemm": GroupedGemmTiming,
    "attention": AttentionTiming,
    "elementwise": ElementwiseTiming,
}
"""Row of `kernels` by its `op`."""
ROWS: dict[str, type[Any]] = {
    "given_up": GivenUp,
    "ranks": RankPeak,
    "layers": LayerMeasurement,
    "blocks": BlockTiming,
    "steps": StepTiming,
    "kernels": Timed,
    "collectives": CollectiveTiming,
    "profile": ProfiledOperator,
}
"""Rows of an artifact by their key; those of `kernels` by their `op`."""
