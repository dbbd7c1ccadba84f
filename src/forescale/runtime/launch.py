"""Ranks as processes of this machine: started together, watched, and ended together."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from multiprocessing import forkserver, get_all_start_methods, get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from forescale.runtime.channels import RunError
from forescale.workers import end_with_parent, undisturbed

PATIENCE_S = 10.0
"""Seconds that ranks get to say why, after the first one failed, before they are killed."""


def launch(work: Callable[..., Any], num_ranks: int, *arguments: object, backend: str = "gloo") -> list[Any]:
    """Run `work(rank, *arguments)` on every rank, one process and one thread each, and return what they return.

    Raises
    ------
    RunError
        If a rank raises or dies: all others are ended, and the message says which rank, at which action, and why.
    """
    context = _context(work.__module__)
    with tempfile.TemporaryDirectory() as folder:
        started: list[tuple[BaseProcess, Connection]] = []
        try:
            for rank in range(num_ranks):
                mine, theirs = context.Pipe(duplex=False)
                value = (work, rank, num_ranks, f"{folder}/store", backend, theirs, arguments)
                process = context.Process(target=_serve, args=value, daemon=True)
                with undisturbed() if isinstance(context, SpawnContext) else nullcontext():
                    process.start()
                theirs.close()
                started.append((process, mine))
            return _watch(started)
        except KeyboardInterrupt:
            _end([process for process, _ in started])
            _stop_server()
            raise
        finally:
            _end([process for process, _ in started])


def _context(home: str) -> ForkServerContext | SpawnContext:
    """Return how ranks start: where the system can, as copies of one process that has loaded what they need.

    That is torch, and the module `home` of their work, which takes seconds where it loads transformers. Some of what
    that loads asks for CUDA, which copies could not use then: where there is any, they load it themselves.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", *([] if torch.cuda.is_available() else [home])])
    resource_tracker.ensure_running()  # which unblocks SIGINT once it has started, so it starts first
    with undisturbed():
        forkserver.ensure_running()
    return context


def _stop_server() -> None:
    """End the process that ranks are copies of, which may be loading modules; the next launch has another."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)  # noqa: SLF001 (there is no other way to it)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _watch(started: Sequence[tuple[BaseProcess, Connection]]) -> list[Any]:
    """Return every rank's result, or raise for the first that fails."""
    results: dict[int, Any] = {}
    open_ones = {pipe: rank for rank, (_, pipe) in enumerate(started)}
    faults: dict[int, str] = {}
    deadline: float | None = None
    while open_ones:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(open_ones), timeout=left)
        if not ready:
            break
        for pipe in (pipe for pipe in list(open_ones) if pipe in ready):
            rank = open_ones.pop(pipe)
            try:
                good, value = pickle.loads(pipe.recv_bytes())  # noqa: S301  (from our own process)
            except (EOFError, OSError):
                process = started[rank][0]
                process.join(1.0)
                good, value = False, f"rank {rank} died ({_cause(process.exitcode)})"
            if good:
                results[rank] = value
            else:
                faults[rank] = value
                deadline = deadline or time.monotonic() + (0.5 if "died" in value else PATIENCE_S)
                if _is_own(value):
                    deadline = time.monotonic()
    if faults:
        raise RunError(_first(faults))
    return [results[rank] for rank in range(len(started))]


def _first(faults: dict[int, str]) -> str:
    """Return the fault that others follow from: a death, or an error of a rank's own before one of a message."""
    ranked = sorted(faults.values(), key=lambda text: ("died" not in text, not _is_own(text)))
    return ranked[0]


def _is_own(text: str) -> bool:
    """Return whether a fault is a rank's own, not what it heard of another's end."""
    reason = text.split(": ", 1)[-1]
    return "died" not in text and not any(word in reason for word in ("Connection", "gloo", "NCCL"))


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()


def _serve(
    work: Callable[..., Any],
    rank: int,
    num_ranks: int,
    store: str,
    backend: str,
    pipe: Connection,
    arguments: tuple[object, ...],
) -> None:
    """Run one rank: set up, work, and tell the parent how it went."""
    end_with_parent()
    torch.set_num_threads(1)
    try:
        device = torch.device("cuda", rank) if backend == "nccl" else None
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=num_ranks, device_id=device
        )
        value = work(rank, *arguments)
        dist.barrier()
        pipe.send_bytes(
            pickle.dumps((True, value))
        )  # by value: memory of tensors would end with this process
    except BaseException as error:
        pipe.send_bytes(pickle.dumps((False, _said(rank, error))))
        os._exit(1)
    dist.destroy_process_group()


def _said(rank: int, error: BaseException) -> str:
    if isinstance(error, RunError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({where[-1].name})" if where else ""
    return f"rank {rank}: {type(error).__name__}: {error}{place}"
