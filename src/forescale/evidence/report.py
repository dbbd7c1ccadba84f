"""The scoreboard as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forescale.evidence.peers import PeerGroup
from forescale.evidence.scoreboard import DIMENSIONS, Group, Outcome, Scoreboard, mean_regret, mean_spearman

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


def _row(outcome: Outcome) -> dict[str, Any]:
    prediction, measured = outcome.prediction, outcome.case.measured
    return {
        "id": outcome.case.id,
        "predicted_step_time_s": prediction.step_time_s if prediction else None,
        "predicted_step_time_low_s": prediction.low_s if prediction else None,
        "predicted_step_time_high_s": prediction.high_s if prediction else None,
        "measured_step_time_s": measured.step_time_s,
        "error": outcome.error,
        "predicted_peak_bytes": prediction.peak_bytes if prediction else None,
        "predicted_peak_low_bytes": prediction.peak_low_bytes if prediction else None,
        "predicted_peak_high_bytes": prediction.peak_high_bytes if prediction else None,
        "measured_peak_bytes": measured.peak_bytes,
        "peak_measure": measured.peak_measure,
        "memory_error": outcome.memory_error,
        "verdict": prediction.verdict if prediction else None,
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


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "step_time": asdict(group.time),
        "naive": asdict(group.naive),
        "memory": asdict(group.memory),
        "coverage": group.coverage,
    }
