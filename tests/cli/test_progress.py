from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from forescale.cli.progress import BenchBar, SearchBar, state_of
from forescale.search.solve import Progress

HALF = Progress(
    num_legal=8_000_000,
    num_evaluated=1_000_000,
    num_pruned=3_000_000,
    best=10.0,
    bound=9.0,
    elapsed_s=2.0,
)


def shown(progress, *, terminal):
    stream = io.StringIO()
    with SearchBar() as bar:
        bar._console = Console(file=stream, force_terminal=terminal, width=110)
        assert bar(progress) is True
    return stream.getvalue()


def test_rate_and_gap():
    assert state_of(HALF) == "4,000,000 of 8,000,000 layouts · 2.0 M/s · best within 10.0 % of the optimum"


def test_a_bar_on_a_terminal_once_it_takes_a_while():
    assert "50 %" in shown(HALF, terminal=True)


def test_nothing_off_a_terminal_or_at_once():
    assert shown(HALF, terminal=False) == ""
    quick = Progress(num_legal=8, num_evaluated=1, num_pruned=3, best=10.0, bound=9.0, elapsed_s=0.2)
    assert shown(quick, terminal=True) == ""


def test_a_bench_announces_its_start_up_and_how_long_that_took(capsys):
    moments = iter((0.0, 3.0, 11.4))
    bar = BenchBar(30.0, clock=lambda: next(moments))
    bar.start()
    for started in (False, True, True):
        bar(SimpleNamespace(what="step", left_s=30.0, started=started))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == ["starting up, then measuring for 30 s at most", "started in 8 s"]
