"""The scoreboard as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forescale.struct import attributes
from forescale.validation.peers import PeerGroup
from forescale.validation.scoreboard import (
    DIMENSIONS,
    ErrorGroup,
    RowOutcome,
    Scoreboard,
    mean_regret,
    mean_spearman,
)

SCHEMA = "forescale.validation/1"


def document(board: Scoreboard, peers: Sequence[PeerGroup] = ()) -> dict[str, Any]:
    """Return the scoreboard as plain values: `rows`, one for every row of the corpus, `summary` and `peers`.

    Times are in seconds, sizes in bytes, errors are predicted / measured − 1; what is unknown is null, and
    `skipped` holds the reason where a row was not projected.
    """
    return {
        "schema": SCHEMA,
        "rows": [_row(outcome) for outcome in board.outcomes],
        "summary": _summary(board),
        "peers": [asdict(group) for group in peers],
    }


def _row(outcome: RowOutcome) -> dict[str, Any]:
    prediction, measured = outcome.prediction, outcome.case.measured

    def predicted(**names: str) -> dict[str, Any]:
        return {f"predicted_{key}": getattr(prediction, name, None) for key, name in names.items()}

    return {
        "id": outcome.case.id,
        **predicted(step_time_s="step_time_s", step_time_low_s="low_s", step_time_high_s="high_s"),
        "measured_step_time_s": measured.step_time_s,
        "error": outcome.error,
        **predicted(
            peak_bytes="peak_bytes", peak_low_bytes="peak_low_bytes", peak_high_bytes="peak_high_bytes"
        ),
        "measured_peak_bytes": measured.peak_bytes,
        **attributes(outcome, "peak_measure=case.measured.peak_measure", "memory_error"),
        "verdict": getattr(prediction, "verdict", None),
        "doubt": outcome.case.doubt or None,
        "skipped": outcome.skipped,
    }


def _summary(board: Scoreboard) -> dict[str, Any]:
    return {
        "num_rows": len(board.outcomes),
        "num_skipped": len(board.skipped),
        "num_core": sum(outcome.case.core for outcome in board.outcomes),
        "core_skipped_share": board.core_skipped_share,
        "num_refused": len(board.refused),
        "num_refused_undoubted": sum(not outcome.case.doubt for outcome in board.refused),
        "core": _group(board.total(core=True)),
        "all": _group(board.total(core=False)),
        "headline": [_group(group) for group in board.headline()],
        "groups": {name: [_group(group) for group in board.by(name)] for name in DIMENSIONS},
        "num_sweeps": len(board.sweeps),
        "mean_spearman": mean_spearman(board.sweeps),
        "mean_regret": mean_regret(board.sweeps),
        "sweeps": [asdict(sweep) | {"cases": list(sweep.cases)} for sweep in board.sweeps],
        "naive_rates": [
            {"device": device, "compute": compute, "flops_per_s": rate}
            for (device, compute), rate in board.naive_rates.items()
        ],
    }


def _group(group: ErrorGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "step_time": asdict(group.time),
        "naive": asdict(group.naive),
        "memory": asdict(group.memory),
        "coverage": group.coverage,
    }
