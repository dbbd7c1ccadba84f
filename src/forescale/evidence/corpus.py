"""A corpus of measured runs: a CSV file, one run a row; its columns, and what their cells may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from forescale.errors import ForescaleError, ReaderError, SpecError
from forescale.files import Row, Table, read_table
from forescale.limits import AMOUNT, COUNT, DEVICES, EXTENT, LAYERS, Interval, within

Notes: TypeAlias = list[str]
"""What was assumed, approximated or taken from the catalogue of a row."""
REQUIRED_COLUMNS: tuple[str, ...] = ("id", "model", "hardware", "n_gpus")
NOTES = ("notes", "comment", "remark")
"""Columns whose names start so hold free text."""
_OPTIONAL = Interval(ge=0, le=EXTENT.le)
_TRUE, _FALSE = frozenset({"y", "yes", "true", "1"}), frozenset({"n", "no", "false", "0"})


@dataclass(frozen=True, slots=True)
class Column:
    """What the cells of a column hold."""

    meaning: str
    numbers: Interval | None = None
    """Numbers that they may be; None is text."""
    whole: bool = True
    flag: bool = False
    """y or n."""


def _measured(meaning: str) -> Column:
    return Column(meaning, AMOUNT, whole=False)


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "id": Column("name of the row, no two alike; `SMX-001` is of source SMX"),
        "source": Column(
            "where it was published; says which framework's record fills in what a row leaves open"
        ),
        "model": Column("name; of a catalogue model it completes the shape"),
        "family": Column("`dense` or `moe`"),
        "layers": Column("decoder layers", LAYERS),
        "hidden": Column("hidden size", EXTENT),
        "ffn": Column("feed-forward size", EXTENT),
        "heads": Column("attention heads", EXTENT),
        "kv_heads": Column("key/value heads", EXTENT),
        "head_dim": Column("width of a head", EXTENT),
        "vocab": Column("entries of the vocabulary", EXTENT),
        "num_experts": Column("routed experts; 0 has none", _OPTIONAL),
        "topk": Column("experts of a token", _OPTIONAL),
        "moe_ffn": Column("feed-forward size of an expert", _OPTIONAL),
        "n_shared_experts": Column("experts that every token sees", _OPTIONAL),
        "first_k_dense": Column("layers before the first with experts", _OPTIONAL),
        "mla": Column("whether attention is latent (MLA)", flag=True),
        "params_b": Column("billions of parameters, for the reader", AMOUNT, whole=False),
        "hardware": Column("device or cluster, as people write it"),
        "gpus_per_node": Column("devices in a node", DEVICES),
        "n_gpus": Column("devices", DEVICES),
        "tp": Column("tensor parallel", DEVICES),
        "sp": Column("whether norms are split over tp", flag=True),
        "cp": Column("context parallel", DEVICES),
        "pp": Column("pipeline parallel", DEVICES),
        "vpp": Column("model chunks of a pipeline rank", DEVICES),
        "ep": Column("expert parallel", DEVICES),
        "etp": Column("tensor parallel of experts", DEVICES),
        "dp": Column("data parallel; by default what is left of the devices", DEVICES),
        "zero_or_fsdp": Column("ZeRO stage 0 to 3, `fsdp` or `hsdp`; 1 by default"),
        "seq_len": Column("tokens of a sequence; 4,096 by default", COUNT),
        "micro_batch": Column("sequences of a micro-batch", COUNT),
        "global_batch": Column("sequences of a step", COUNT),
        "grad_accum": Column("micro-batches of a step", COUNT),
        "recompute": Column("`none`, `full` or `selective(core_attn, …)`"),
        "compute_dtype": Column("`bf16`, `fp16`, `fp8 (delayed scaling)`, …"),
        "schedule": Column("pipeline schedule"),
        "attention": Column("its kernel: `flash`, `unfused`, …"),
        "optimizer": Column("`adam`, `muon`, …"),
        "measured_step_s": _measured("seconds of a step"),
        "measured_tflops_per_gpu": _measured("TFLOP/s of a device"),
        "tflops_convention": Column("what the FLOPs of that rate, or of the MFU, count"),
        "measured_mfu_pct": Column(
            "model FLOPs over the peak, in percent", Interval(gt=0, le=100), whole=False
        ),
        "measured_tokens_per_s_per_gpu": _measured("tokens per second and device"),
        "measured_peak_mem_gb": _measured(
            "peak memory of a device in GB, or GiB where the source means that"
        ),
        "measured_published": Column("which of these the source prints, for the reader"),
        "confidence": Column("how sure the row is, for the reader"),
        "notes": Column("free text; settings that no column has are looked for here"),
        "core": Column("whether every field is known (`y`)", flag=True),
    }
)


def read_corpus(path: str | Path) -> Table:
    """Return the runs in the CSV file at `path`.

    Raises
    ------
    ReaderError
        If the file cannot be read, lacks a required column or has an unknown one, repeats an id, has a row with
        fewer or more cells than there are columns, or a cell that its column cannot hold.
    """
    table = read_table(path)
    table.need(REQUIRED_COLUMNS, "table of runs")
    table.know((*COLUMNS, *(name for name in table.columns if name.startswith(NOTES))))
    _check_ids(path, table.rows)
    for row in table.rows:
        check_cells(row, COLUMNS)
    return table


def check_cells(row: Row, columns: Mapping[str, Column]) -> None:
    """Refuse a cell that its column cannot hold."""
    for name, column in columns.items():
        if column.flag and (text := row.text(name).lower()) not in (*_TRUE, *_FALSE, ""):
            raise row.refused(name, f"must be y or n, got {text!r}")
        if column.numbers is not None and (value := row.number(name)) is not None:
            try:
                within(value, column.numbers, "it", whole=column.whole)
            except SpecError as error:
                raise row.refused(name, str(error)) from error


def _check_ids(path: str | Path, rows: tuple[Row, ...]) -> None:
    if not rows:
        raise ReaderError(path, "has no runs below its header")
    seen: dict[str, int] = {}
    for row in rows:
        if not row.id:
            raise ReaderError(path, f"line {row.line} has no id")
        if row.id in seen:
            raise ReaderError(path, f"line {row.line} repeats the id {row.id!r} of line {seen[row.id]}")
        seen[row.id] = row.line


class InexpressibleError(ForescaleError):
    """A row that cannot be turned into a model, cluster, layout and workload; its text is the reason."""
