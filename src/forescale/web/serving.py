"""The server process."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from forescale.errors import SpecError
from forescale.web.app import LONGEST_ADDRESS, create_app

KEEP_ALIVE_S = 30
BACKLOG = 512
"""Connections that wait to be accepted."""


def serve(host: str, port: int, *, ready: Callable[[str], None]) -> None:
    """Serve the page until it is interrupted; `ready` is told the address.

    Raises
    ------
    SpecError
        If the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SpecError(
            f"{host}:{port} cannot be listened on: {error.strerror}; --port 0 takes a free port"
        ) from error
    config = uvicorn.Config(
        create_app(),
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=2 * LONGEST_ADDRESS,
        timeout_graceful_shutdown=1,
    )
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{listener.getsockname()[1]}/")
    uvicorn.Server(config).run(sockets=[listener])
