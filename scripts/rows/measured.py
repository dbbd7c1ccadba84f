"""What a row measured: its speed as published, and its peak memory in bytes."""

from __future__ import annotations

import re
from typing import Any

from scripts.rows.layout import source_text
from scripts.rows.tables import all_matches, first_match

from forescale.files import Row
from forescale.units import GB, GIB, MIB
from forescale.validation.published import Speed

UNITS = {"GB": GB, "GiB": GIB, "1000 MiB": 1000 * MIB}
"""Bytes of the units in which sources count peaks."""


def speed_of(row: Row) -> Speed:
    """Return the published speed of a row, with the convention of its FLOPs."""
    text = row.text("tflops_convention")
    convention = {
        name: value
        for name, value in all_matches("conventions", text).items()
        if name in ("formula", "attention", "recompute")
    }
    printed = re.search(r"denominator (\d+(?:\.\d+)?)|/ ?(\d{3,4}(?:\.\d+)?)\b", text)
    return Speed(
        step_time_s=row.number("measured_step_s"),
        tokens_per_s=row.number("measured_tokens_per_s_per_gpu"),
        tflops=row.number("measured_tflops_per_gpu"),
        mfu_percent=row.number("measured_mfu_pct"),
        convention=convention,
        peak_tflops=float(printed[1] or printed[2]) if printed else None,
    )


def peak_of(row: Row) -> dict[str, Any]:
    """Return the peak in bytes, and what the row's source means by peak memory, as fields of `Measured`."""
    memory, explicit = row.number("measured_peak_mem_gb"), first_match("memories", row.text("notes"))
    meant = {**first_match("measures", source_text(row)), **explicit}
    return {
        "peak_bytes": None if memory is None else memory * UNITS[explicit.get("unit", "GB")],
        **{name: meant[name] for name in ("peak_measure", "peak_stage") if name in meant},
    }
