"""`forescale serve`: the page, on this machine."""

from __future__ import annotations

from forescale.cli.console import say
from forescale.cli.declare import Bounded, option
from forescale.errors import needing
from forescale.limits import PORTS

PANEL = "Server"
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve_command(
    *,
    port: int = option("Port; 0 takes a free one.", "PORT", panel=PANEL, default=8000, check=Bounded(PORTS)),
    host: str = option(
        "Address to listen on; others than this machine's let anyone ask.", panel=PANEL, default=LOCAL[0]
    ),
    allowed_host: list[str] | None = option(
        "Another host name under which browsers may open the page. Repeatable.", "NAME", panel=PANEL
    ),
) -> None:
    """Serve a page: one form, and at once the projection, pictures, best layouts, explanations and launch files."""
    with needing("web", "serve", only=("fastapi", "uvicorn", "jinja2", "starlette")):
        from forescale.web.workers import begin

        begin()
        from forescale.web.app import serve
        from forescale.web.guard import allowed_host as checked
    allowed = [checked(name) for name in allowed_host or ()]
    if host not in LOCAL:
        say(f"anyone who reaches {host} may ask; nothing asks who they are", error=True)
    serve(host, port, allowed_hosts=allowed, ready=lambda url: say(f"{url}  (Ctrl-C ends it)"))
