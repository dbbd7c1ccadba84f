"""What the server refuses before anything reads it: requests for another host, from another site, or too long."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forescale.errors import shown, wrong_type

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names and addresses of this machine, which are always allowed."""
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(?::\d{1,5})?")
LONGEST_ADDRESS = 60_000
"""Characters of the address of a request."""
ADDRESS_TOO_LONG = f"The address is longer than {LONGEST_ADDRESS:,} characters."
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer. The charts' library compiles its expressions, hence unsafe-eval."""


class Guard:
    """Middleware that refuses requests which no page of this server sends.

    A page of another site can point its own name at this machine (DNS rebinding) or post here; the former shows in the
    Host header, the latter in the Origin header.

    Parameters
    ----------
    app
        The application that answers what is not refused.
    hosts
        Names and addresses that the Host header may have, in addition to those of the loopback interface and to the
        address at which the connection arrived.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app, self._hosts = app, {host_name(item) for item in (*LOOPBACK, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._app if scope["type"] != "http" else self._refusal(scope) or self._app
        try:
            await answer(scope, receive, secured)
        except ClientDisconnect:  # nobody is left to read an answer
            return

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused, None for one that is not."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._allows(host_name(host), scope):
            return _text(
                f"The Host header is {shown(host)}; allowed are {', '.join(sorted(self._hosts))} and the address of "
                f"the server. To allow another host, start the server with --allowed-host NAME.",
                400,
            )
        if origin is not None and _authority(origin) != host.lower():
            return _text(
                f"The Origin header is {shown(origin)}; only pages of {shown(host)} may send requests here.",
                403,
            )
        if len(scope["path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            return _text(ADDRESS_TOO_LONG, 414)
        return None

    def _allows(self, name: str, scope: Scope) -> bool:
        arrived = scope.get("server") or ("",)
        return bool(name) and (name in self._hosts or name == host_name(str(arrived[0])))


def host_name(text: str) -> str:
    """Return the host of a Host header, in lower case and without its port; empty where it is not valid."""
    fullmatch = _HOST.fullmatch(text.strip().lower())
    name = fullmatch["name"].strip("[]") if fullmatch else text
    try:
        address = ip_address(name)
    except ValueError:
        return name.removesuffix(".") if fullmatch and "[" not in fullmatch["name"] else ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def allowed_host(text: str) -> str:
    """Return the host that an option names.

    Raises
    ------
    SpecError
        If it is not a host name or an address: it has a scheme, a port or a wildcard.
    """
    name, bare = host_name(text), text.strip("[]")
    if not name or "]" in bare or (":" in bare and ":" not in name):  # what follows the name is a port
        allowed = "a host name or an IP address without scheme and port, such as gpu-login.example.org"
        raise wrong_type("--allowed-host", text, allowed)
    return name


def _authority(origin: str) -> str:
    """Return host and port of an Origin header; empty for one without, such as null."""
    return origin.lower().partition("://")[2]


def _text(text: str, status: int) -> Response:
    return PlainTextResponse(text, status_code=status)
