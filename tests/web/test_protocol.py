"""The server on a real connection: what cannot be read is answered, not reset."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
import uvicorn

from forescale.web.protocol import Protocol

MOST = 4096


async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def answered(request: bytes) -> bytes:
    """Return what a server answers to one request, sent whole before anything is read."""

    async def ask() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http=Protocol, lifespan="off", log_level="error", h11_max_incomplete_event_size=MOST
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(request)
        await writer.drain()
        result = await reader.read()
        writer.close()
        server.should_exit = True
        await serving
        return result

    return asyncio.run(ask())


LONG = b"x" * 2_000_000


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET /?config=" + LONG + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + LONG + b"\r\n\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n" + LONG, b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n" + LONG, b"400"),
    ],
    ids=["fine", "address", "header", "bytes", "no host", "chunks"],
)
def test_a_request_that_cannot_be_read_is_answered(request_, status, caplog):
    with caplog.at_level(logging.ERROR):
        assert answered(request_).split()[1] == status
    assert caplog.records == []
