"""HTTP as the server speaks it: a request that cannot be read gets an answer before its connection closes."""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from forescale.web.guard import ADDRESS_TOO_LONG

LINGER_S = 2.0
"""Seconds for which the rest of a refused request is read and discarded: a connection closed sooner is reset, and the
client never sees the answer."""


class Protocol(H11Protocol):
    """Uvicorn's HTTP/1.1, which answers 414 or 431 to an address or headers longer than its limit."""

    _discards = False

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._discards:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:  # its body is malformed
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        status, text = self._refusal(msg)
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(text))),
            ("connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase),
            h11.Data(data=text.encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self._discards = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    def _refusal(self, otherwise: str) -> tuple[int, str]:
        """Return the status and the text for the request whose error is being handled."""
        error = sys.exception()
        if not isinstance(error, h11.RemoteProtocolError) or error.error_status_hint != HTTPStatus(431):
            return 400, otherwise
        unread, _ = self.conn.trailing_data
        if b"\n" not in unread:
            return 414, ADDRESS_TOO_LONG
        return 431, f"The headers are longer than {self.config.h11_max_incomplete_event_size:,} bytes."
