from __future__ import annotations

import threading
import urllib.request
from functools import cache

import pytest
from tests.errors import raises

import forescale as fs
from forescale.cli import watch
from forescale.diagnose.watch import RECENT, Watcher
from forescale.errors import SpecError


@cache
def projection(tokens: float | None = None):
    words = {} if tokens is None else {"tokens": tokens}
    return fs.project(
        "llama-3.1-8b", "h100-sxm", devices=8, seq_len=8192, global_batch_size=64, zero=3, **words
    )


def line(step: int, seconds: float) -> str:
    return f" iteration {step}/ 100 | elapsed time per iteration (ms): {1e3 * seconds} | lm loss: 1.0E+00 |"


def events(watcher: Watcher, lines) -> list:
    return [event for text in lines for event in watcher.feed(text) if event.kind != "step"]


def test_a_steady_run_has_no_events():
    watcher = Watcher(projection())
    assert events(watcher, (line(n, 7.0) for n in range(1, 200))) == []
    assert (watcher.typical_s, watcher.goodput, watcher.furthest) == (7.0, 1.0, 199)
    assert watcher.speed == pytest.approx(projection().step_time_s / 7.0)


def test_drift_and_recovery_slow_steps_and_memory():
    watcher = Watcher(projection())
    times = [7.0] * 40 + [30.0] + [7.0] * 10 + [8.0] * 40 + [7.0] * 40
    result = events(watcher, [line(n, seconds) for n, seconds in enumerate(times, 1)])
    assert [(event.kind, event.step) for event in result[:1]] == [("slow_step", 41)]
    assert [event.kind for event in result[1:]] == ["drift", "recovered"]
    assert events(watcher, ["torch.OutOfMemoryError: CUDA out of memory"])[0].kind == "out_of_memory"


def test_steps_that_are_done_again_are_no_goodput():
    watcher = Watcher(projection(tokens=1e12), price_per_device_hour=3.0)
    result = events(watcher, [line(n, 7.0) for n in (*range(1, 101), *range(51, 101))])
    assert [(event.kind, event.step) for event in result] == [("restart", 51)]
    assert watcher.goodput == pytest.approx(100 / 150)
    assert watcher.cost == pytest.approx(3.0 * 8 * 150 * 7.0 / 3600)
    steps = 1e12 / (64 * 8192) - 100
    assert watcher.days_left == pytest.approx(steps * 7.0 / 86400 * 1.5)


def test_a_run_that_stays_too_slow_fails():
    watcher = Watcher(projection(), fail_below=0.8)
    assert events(watcher, [line(n, 7.0) for n in range(1, 50)]) == []
    result = events(watcher, [line(n, 10.0) for n in range(50, 50 + RECENT)])
    assert "below" in [event.kind for event in result]
    assert watcher.failed
    with raises(SpecError, "not_one_of --fail-below"):
        Watcher(projection(), fail_below=2.0)


@pytest.mark.parametrize("change", ["rotated", "cut"])
def test_a_log_that_is_rotated_or_cut(tmp_path, monkeypatch, change):
    path = tmp_path / "train.log"
    path.write_text("one\ntwo\n")
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            with path.open("a") as file:
                file.write("three\nfo")
        elif len(pauses) == 2 and change == "rotated":
            path.rename(tmp_path / "train.log.1")
        elif len(pauses) == 2:
            path.write_text("")
        elif len(pauses) == 3:
            path.write_text("four\n")
        elif len(pauses) > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", pause)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        for text in watch.followed(path, follow=True):
            seen.append(text)
    assert seen == ["one", "two", "three", "four"]


def test_metrics_are_served():
    watcher = Watcher(projection())
    list(watcher.feed(line(3, 7.0)))
    text = watch.metrics(watcher)
    assert "forescale_step_time_s 7.0\n" in text
    assert "forescale_step 3.0\n" in text
    before = threading.active_count()
    server = watch.served(watcher, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            assert answer.read().decode() == text
    finally:
        server.shutdown()
        server.server_close()
    assert threading.active_count() <= before + 1
