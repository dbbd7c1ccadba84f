"""`forescale watch`: a running job next to what it should reach."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING

from forescale.cli.codes import FAILED, Exit
from forescale.cli.console import say
from forescale.cli.declare import Bounded, option
from forescale.cli.inputs import answered, read_question, refuse_presets
from forescale.cli.options import Priced, price_of
from forescale.errors import ReaderError, conflicts, not_found
from forescale.limits import COUNT, PORTS, PRICE

if TYPE_CHECKING:
    from forescale.diagnose.watch import Event, Watcher
    from forescale.logs.formats import StepRecord
    from forescale.logs.metrics import Point, Poll

PANEL = "Log"
POLL_S = 0.5
"""Between two looks at a log that has not grown."""
EVERY = 10
"""Steps from one printed line to the next."""
CHUNK = 1 << 20


def watch_command(
    *,
    request: Priced,
    log: Path | None = option(
        "Log of the job; standard input by default.", "FILE", flag="--log", panel=PANEL
    ),
    wandb_dir: Path | None = option("Newest run of Weights & Biases in a folder.", "DIR", panel=PANEL),
    tensorboard: Path | None = option("Folder of TensorBoard.", "DIR", panel=PANEL),
    follow: bool = option("Wait for more lines at the end of the log.", default=True, panel=PANEL),
    fail_below: float | None = option(
        "Exit code 3 below this share of the expected speed, such as 0.8.",
        "SHARE",
        panel=PANEL,
    ),
    price_per_device_hour: float | None = option(
        "Price for the cost so far, in any currency.",
        "PRICE",
        flag="--price-per-device-hour --price",
        check=Bounded(PRICE, whole=False),
        parse=partial(price_of, flag="--price-per-device-hour", unit="h"),
        panel=PANEL,
    ),
    every: int = option(
        "Steps from one printed line to the next.", "N", default=EVERY, check=Bounded(COUNT), panel=PANEL
    ),
    prometheus: int | None = option("Serve metrics at this port.", "PORT", check=Bounded(PORTS), panel=PANEL),
    host: str = option("Address that metrics are served at.", "HOST", default="127.0.0.1", panel=PANEL),
) -> None:
    """Follow the log of a running job: step time against the expected interval, drifts, restarts, days left."""
    from forescale.diagnose.watch import Watcher

    question = read_question(request)
    refuse_presets(question, "watch")
    lines = _lines(log, wandb_dir, tensorboard, follow=follow)
    watcher = Watcher(answered(question), price_per_device_hour=price_per_device_hour, fail_below=fail_below)
    step = watcher.projection.step_time
    say(f"expected {step.expected:.4g} s per step ({step.low:.4g} to {step.high:.4g})")
    if prometheus is not None:
        server = served(watcher, host, prometheus)
        say(f"metrics at http://{host}:{server.server_port}/metrics")
    for line in lines:
        for event in watcher.feed(line):
            _print(watcher, event, every)
        if watcher.failed:
            raise Exit(FAILED)
    if not watcher.num_steps or watcher.num_steps % every:
        say(_state(watcher))


def _print(watcher: Watcher, event: Event, every: int) -> None:
    if event.kind != "step":
        say(f"{event.kind.replace('_', ' ')}: {event.text}")
    elif watcher.num_steps % every == 0:
        say(_state(watcher))


def _state(watcher: Watcher) -> str:
    """Return one line on the run so far."""
    from forescale.diagnose.diagnosis import mfu_at

    seconds, speed = watcher.typical_s, watcher.speed
    if seconds is None or speed is None:
        return "no step so far"
    step = watcher.projection.step_time
    verdict = "slower" if seconds > step.high else "faster" if seconds < step.low else "as expected"
    if (mfu := mfu_at(watcher.projection, seconds)) > 1.0:
        verdict = f"MFU {mfu:.0%}: not the run that is projected"
    parts = [
        f"step {watcher.furthest}",
        f"{seconds:.4g} s per step",
        f"{speed:.0%} of the expected speed ({verdict})",
    ]
    if watcher.reader.restarts:
        parts.append(f"goodput {watcher.goodput:.1%}, {watcher.reader.restarts} restarts")
    if watcher.days_left is not None:
        parts.append(f"{watcher.days_left:.1f} days left")
    if watcher.cost is not None:
        parts.append(f"cost so far {watcher.cost:,.0f}")
    return " · ".join(parts)


def _lines(
    log: Path | None, wandb_dir: Path | None, tensorboard: Path | None, *, follow: bool
) -> Iterator[str] | Iterator[StepRecord]:
    """Return the lines of a log, or the records of metrics, as they are written."""
    from forescale.logs.metrics import records_of, tensorboard_poll, wandb_poll

    sources = {"--log": log, "--wandb-dir": wandb_dir, "--tensorboard": tensorboard}
    paths = {name: path for name, path in sources.items() if path is not None}
    if len(paths) > 1:
        raise conflicts([*paths])
    for path in paths.values():
        if not path.exists():
            raise ReaderError(path, not_found("log" if path is log else "folder"))
    if wandb_dir is not None or tensorboard is not None:
        poll = tensorboard_poll(tensorboard) if wandb_dir is None else wandb_poll(wandb_dir)  # type: ignore[arg-type]
        return records_of(_polled(poll, follow=follow))
    return iter(sys.stdin) if log is None else followed(log, follow=follow)


def _polled(poll: Poll, *, follow: bool) -> Iterator[Point]:
    while True:
        points = [*poll()]
        yield from points
        if not points:
            if not follow:
                return
            time.sleep(POLL_S)


def followed(path: Path, *, follow: bool) -> Iterator[str]:
    """Yield the lines of a log, then those that are appended; a log that is replaced or cut starts anew."""
    file: IO[bytes] = path.open("rb")
    rest = b""
    try:
        while True:
            ended = _ended(path, file)  # asked before reading, so that nothing written until then is missed
            if chunk := file.read(CHUNK):
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                rest = rest[-CHUNK:]
                yield from (line.decode("utf-8", errors="replace") for line in lines)
                continue
            if ended:
                file.close()
                file, rest = path.open("rb"), b""
            elif follow:
                time.sleep(POLL_S)
            else:
                break
        if rest:
            yield rest.decode("utf-8", errors="replace")
    finally:
        file.close()


def _ended(path: Path, file: IO[bytes]) -> bool:
    """Return whether a path has another file than before, as after a rotation, or the file was cut."""
    try:
        there = path.stat()
    except OSError:  # between two files of a rotation
        return False
    here = os.fstat(file.fileno())
    return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev) or there.st_size < file.tell()


def served(watcher: Watcher, host: str, port: int) -> ThreadingHTTPServer:
    """Serve the figures of a run as Prometheus reads them, until the command ends; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = metrics(watcher).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing for each request."""

    server = ThreadingHTTPServer((host, port), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def metrics(watcher: Watcher) -> str:
    """Return the figures in Prometheus' text format."""
    lines = [
        f"# TYPE forescale_{name} gauge\nforescale_{name} {value!r}"
        for name, value in watcher.figures().items()
    ]
    return "\n".join(lines) + "\n"
