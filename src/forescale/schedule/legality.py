"""What makes a layout legal: the constraints of `spec.constraints`, and those of named pipeline schedules."""

from __future__ import annotations

from typing import Any

from forescale.arrays import np
from forescale.schedule import cuts_sequences, family
from forescale.schedule.family import Request
from forescale.spec.constraints import CONSTRAINTS
from forescale.spec.model import Model
from forescale.spec.proposal import Constraint, Proposal
from forescale.spec.workload import num_microbatches


def violation(schedule: str, pp: int, vpp: int, count: int, pieces: int = 2) -> str:
    """Return why a schedule cannot run `count` micro-batches on pp ranks of vpp stages; empty if it can.

    `pieces` are those that schedules on parts of sequences cut each sequence into.
    """
    return family(schedule).violation(Request(pp=pp, vpp=vpp, num_microbatches=count, num_splits=pieces))


def _count(q: Proposal) -> Any:  # noqa: ANN401 (a number, or an array)
    d = q.degrees
    return num_microbatches(
        global_batch_size=q.workload.global_batch_size,
        dp=d.dp_replicate * d.dp_shard,
        micro_batch_size=d.micro_batch_size,
    )


def _runs(q: Proposal) -> Any:  # noqa: ANN401 (a flag, or an array)
    """Return where the named schedule can run; a pipeline of one rank runs none, and other rules see to the batch."""
    d = q.degrees
    shapes = np.stack(np.broadcast_arrays(d.pp, d.vpp, np.asarray(_count(q), dtype=np.int64)))
    distinct, where = np.unique(shapes.reshape(3, -1), axis=1, return_inverse=True)
    possible = [
        pp == 1 or m < 1 or not violation(d.schedule, pp, vpp, m, d.sequence_pieces)
        for pp, vpp, m in distinct.T.tolist()
    ]
    return np.array(possible, dtype=bool)[where.reshape(-1)].reshape(shapes.shape[1:])


def _all_causal(model: Model) -> bool:
    return all(attention.causal for attention in model.attentions)


SCHEDULES: tuple[Constraint, ...] = (
    Constraint(
        name="schedule",
        choices=("schedule",),
        holds=_runs,
        message=lambda q: (
            f"schedule {q.degrees.schedule}: "
            + violation(
                q.degrees.schedule, q.degrees.pp, q.degrees.vpp, int(_count(q)), q.degrees.sequence_pieces
            )
        ),
        applies=lambda q: q.degrees.schedule is not None,
    ),
    Constraint(
        name="pieces of sequences",
        key="sequence_pieces",
        choices=("schedule",),
        holds=lambda q: (q.degrees.pp == 1) | (q.workload.seq_len % q.degrees.sequence_pieces == 0),
        message=lambda q: (
            f"sequence_pieces must divide the {q.workload.seq_len} tokens of a sequence; got "
            f"{q.degrees.sequence_pieces}"
        ),
        applies=lambda q: cuts_sequences(q.degrees.schedule),
    ),
    Constraint(
        name="pieces of causal sequences",
        choices=("schedule",),
        holds=lambda q: (q.degrees.pp == 1) | _all_causal(q.model),
        message=lambda q: (
            f"schedule {q.degrees.schedule} cuts sequences, and {q.model.name} has attention that is not causal"
        ),
        applies=lambda q: cuts_sequences(q.degrees.schedule),
    ),
)
"""What a named schedule asks of a layout."""
JOINT: tuple[Constraint, ...] = (
    Constraint(
        name="graphs replay no whole layers",
        choices=("graphs", "recompute"),
        holds=lambda q: q.degrees.recompute.granularity != "full",
        message=lambda q: (
            f"graphs {q.degrees.graphs} cannot be captured where layers are recomputed as a whole; use recompute of "
            "single modules, or graphs none or full"
        ),
        applies=lambda q: q.degrees.graphs in ("partial", "router"),
    ),
    Constraint(
        name="expert overlap replays no experts",
        choices=("overlap", "recompute"),
        holds=lambda q: (
            not (q.degrees.recompute.granularity == "full" or "moe" in q.degrees.recompute.modules)
        ),
        message=lambda _: "overlap.expert needs recompute without experts: none, or modules other than moe",
        applies=lambda q: q.degrees.overlap.expert,
    ),
    Constraint(
        name="expert overlap interleaves",
        choices=("overlap", "schedule"),
        holds=lambda q: (q.degrees.pp == 1) | (q.degrees.vpp > 1),
        message=lambda q: (
            f"overlap.expert of {q.degrees.software} needs vpp of at least 2 where pp is above 1"
        ),
        applies=lambda q: (
            q.degrees.overlap.expert
            and q.degrees.schedule is None
            and str(q.degrees.software).startswith("megatron-core")
        ),
    ),
)
"""Conditions on several settings (Megatron-Core, transformer_config.py)."""
LEGALITY: tuple[Constraint, ...] = (*CONSTRAINTS, *SCHEDULES, *JOINT)
"""Every condition on a layout: `project` refuses what breaks one, and a search enumerates what breaks none."""
