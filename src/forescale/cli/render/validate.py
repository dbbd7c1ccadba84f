"""How far projections are from measured runs, group by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forescale.cli.render import words
from forescale.report.document import Column, TextLine, View, line, listed
from forescale.units import counted
from forescale.validation.peers import PeerGroup
from forescale.validation.scoreboard import ErrorGroup, Scoreboard, mean_regret, mean_spearman

FEW_SKIPPED = 3
"""Skipped rows that say why on the screen."""


def validation_view(board: Scoreboard, by: str, peers: Sequence[PeerGroup]) -> View:
    """Return the errors of every group, what was skipped, and how other tools do on the same rows."""
    groups = board.headline() if by == "headline" else board.by(by)
    every = [*groups, board.total(core=True), board.total(core=False)]
    return View(
        title=f"Step time of core rows, by {by}",
        contents=(
            listed(_COLUMNS, every),
            *_skipped(board),
            *(
                line(
                    f"{outcome.case.id} ran, and is said OOM; {outcome.case.doubt or 'its row is not doubtful'}"
                )
                for outcome in board.refused
            ),
            *_sweeps(board),
            *map(_peer, peers),
            line("Every row with --json."),
        ),
    )


def _skipped(board: Scoreboard) -> Iterator[TextLine]:
    skipped = f"{len(board.skipped)} of {counted(len(board.outcomes), 'row')} skipped"
    yield line(f"{skipped} ({_percent(board.core_skipped_share)} of the core rows)")
    for outcome in board.skipped[:FEW_SKIPPED]:
        yield line(f"  {outcome.case.id}: {outcome.skipped}")
    if len(board.skipped) > FEW_SKIPPED:
        yield line(f"  and {len(board.skipped) - FEW_SKIPPED} more (all with --json)")


def _sweeps(board: Scoreboard) -> Iterator[TextLine]:
    if board.sweeps:
        spearman, regret = mean_spearman(board.sweeps), mean_regret(board.sweeps)
        rank = "–" if spearman is None else f"{spearman:.2f}"
        count = counted(len(board.sweeps), "sweep")
        yield line(f"{count}: mean Spearman {rank}, mean regret {_percent(regret)}")


def _peer(group: PeerGroup) -> TextLine:
    theirs, ours = (_percent(summary.median_abs) for summary in (group.time, group.our_time))
    return line(f"{group.peer}: median {theirs} on {counted(group.time.count, 'row')}, ours there {ours}")


def _percent(value: float | None) -> str:
    return "–" if value is None else words.percent(value)


_COLUMNS: tuple[Column[ErrorGroup], ...] = (
    Column("|group", lambda group: group.name),
    Column("rows", lambda group: str(group.time.count)),
    Column("median", lambda group: _percent(group.time.median_abs)),
    Column("90 %", lambda group: _percent(group.time.p90_abs)),
    Column("bias", lambda group: _percent(group.time.bias)),
    Column("naive", lambda group: _percent(group.naive.median_abs)),
    Column("naive 90 %", lambda group: _percent(group.naive.p90_abs)),
    Column("memory", lambda group: _percent(group.memory.median_abs)),
)
