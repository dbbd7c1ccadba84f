"""The server: addresses, limits and what is remembered. Workers answer; this process only passes on.

Nothing that a page sends names a file of the server; invalid input returns a one-line error with status 422, too many
requests 429 with Retry-After.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from base64 import b64decode
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from forescale.errors import ForescaleError, cannot_listen
from forescale.escaping import xml
from forescale.version import __version__
from forescale.view.page import FOLDER
from forescale.web import LEVEL
from forescale.web.asked import Query, address, of_search
from forescale.web.guard import LONGEST_ADDRESS, Guard
from forescale.web.protocol import Protocol
from forescale.web.workers import BusyError, Work, Workers

STATIC = Path(__file__).parent / "static"
KEEP_ALIVE_S = 30
BACKLOG = 512
"""Connections that wait to be accepted."""


def serve(host: str, port: int, *, allowed_hosts: Sequence[str] = (), ready: Callable[[str], None]) -> None:
    """Serve the page until it is interrupted.

    Parameters
    ----------
    host, port
        Where to listen.
    allowed_hosts
        Names under which browsers may ask, in addition to `host` and those of the loopback interface.
    ready
        Called with the address of the page.

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
        raise cannot_listen(f"{host}:{port}", error.strerror, "--port 0 takes a free port") from error
    config = uvicorn.Config(
        create_app(hosts=(host, *allowed_hosts)),
        http=Protocol,
        ws="none",
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=2 * LONGEST_ADDRESS,
        timeout_graceful_shutdown=1,
    )
    shown = f"[{host}]" if ":" in host else host
    server = _Server(config)
    server.ready = partial(ready, f"http://{shown}:{listener.getsockname()[1]}/")
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that tells when it answers."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen once the workers are warm."""
        await super().startup(sockets)
        if self.started:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; the requests that it cancels are no mistakes that a log should have."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


LARGEST_FILE = 8 * 2**20
"""Bytes of a file that is handed in."""
MOST_DISCARDED = 8 * LARGEST_FILE
"""Bytes of a larger one that are read before it is refused."""
RETRY_AFTER_S = 1
MOST_KEPT = 3
"""Questions that are compared with the one of the form."""
DRAWN = {"pictures": "text/html", "cost": "text/html", "gallery": "text/html", "card.svg": "image/svg+xml"}
"""Addresses that processes which draw answer, and the types of the answers."""
JSON = "application/json"
EMBEDDED = {"Cross-Origin-Resource-Policy": "cross-origin"}
"""Header of pictures that other pages may show."""
REMEMBERED = 32 * 2**20
"""Bytes of answers, compressed, and of their questions that are kept."""
QUICK_S, DRAWN_S, LONG_S = 10.0, 30.0, 60.0
"""Seconds that an answer may take, and so a search that goes with it; what is drawn, by processes that stand back; and
what is asked for by itself. A search ends then with the best so far, and how near it is to the proof."""
QUICK_QUESTIONS = 512
"""Projections that are worked on or wait, and as many drawings."""
OLDEST_EVERY = 4
"""Of so many of them that waited one is the oldest, the others the newest: most come at once, instead of all late."""
LONG_QUESTIONS, OF_A_CLIENT = 16, 4
"""Long questions that are worked on or wait, and those of one address among them."""
GRACE_S = 20.0
"""Seconds beyond, in which a search says what it has."""


def create_app(
    quick: Workers | None = None,
    drawn: Workers | None = None,
    long: Workers | None = None,
    *,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """Return the application.

    Parameters
    ----------
    quick, drawn, long
        What projects; what draws, explains and exports, which stands back; what searches, and finds what would fit.
    hosts
        Hosts that requests may name, in addition to the loopback interface and the address they arrive at.
    """
    workers = partial(Workers, processes=2, most=QUICK_QUESTIONS, oldest_every=OLDEST_EVERY)
    served = Pages(
        quick or workers(time_limit_s=QUICK_S),
        drawn or workers(time_limit_s=DRAWN_S, patient=True),
        long or Workers(processes=2, most=LONG_QUESTIONS, time_limit_s=LONG_S + GRACE_S, patient=True),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await served.warm()
        yield
        served.close()

    app = FastAPI(
        title="Forescale",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.mount("/view", StaticFiles(directory=FOLDER), name="view")
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=LEVEL)
    app.add_middleware(Guard, hosts=hosts)
    for path in ("/", "/compare", "/explain", "/launch", "/search"):
        app.get(path)(getattr(served, path[1:] or "form"))
    for path in ("fit", "front"):
        app.get(f"/{path}")(partial(served.searched, path))
    for path, kind in DRAWN.items():
        app.get(f"/{path}")(partial(served.drawn, path.partition(".")[0], kind))
    app.get("/card.png")(served.card_png)
    for name in ("project", "explain", "search"):
        app.get(f"/{name}.json")(getattr(served, f"{name}_json"))
    app.post("/read")(served.read)
    app.get("/learn")(lambda: FileResponse(STATIC / "learn" / "index.html"))
    app.get("/favicon.ico")(lambda: Response(status_code=204))
    app.exception_handler(ForescaleError)(_refused)
    app.exception_handler(BusyError)(_busy)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """Answer an invalid question with its one-line error."""
    field = getattr(error, "field", "")
    if request.url.path.endswith(".json") or request.method == "POST":
        return JSONResponse({"error": str(error), "field": field or None}, status_code=422)
    return HTMLResponse(_sentence(str(error), field), status_code=422)


async def _busy(request: Request, error: Exception) -> Response:
    """Tell a client to come back."""
    del request, error
    text = f"more is asked than is worked on at once; ask again in {RETRY_AFTER_S} s"
    return JSONResponse({"error": text}, status_code=429, headers={"Retry-After": str(RETRY_AFTER_S)})


def asked(request: Request, *beside: str) -> Query:
    """Return the question of an address, without the parameters `beside` it."""
    return [(name, value) for name, value in request.query_params.multi_items() if name not in beside]


def _said(request: Request, name: str, usual: str = "") -> str:
    return str(request.query_params.get(name, usual))


class Pages:
    """What each address answers."""

    def __init__(self, quick: Workers, drawn: Workers, long: Workers) -> None:
        self._quick, self._drawn, self._long = quick, drawn, long
        self._kept: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[tuple[str, ...], asyncio.Task[bytes]] = {}
        self._waiting: Counter[str] = Counter()

    def close(self) -> None:
        """End all workers."""
        for workers in (self._quick, self._drawn, self._long):
            workers.close()

    async def warm(self) -> None:
        """Start all workers, and answer what the page opens with."""
        for workers in (self._quick, self._drawn, self._long):
            workers.start()
        with suppress(ForescaleError):  # a slow machine answers later
            await self._once("form", [])

    async def _once(self, work: Work, query: Query, *more: object, workers: Workers | None = None) -> bytes:
        """Return the compressed answer to a question, which is kept; equal questions are answered together."""
        key = (work, address(query), repr(more))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._running:
            answer = (workers or self._quick).ask("compressed", work, list(query), *more)
            self._running[key] = task = asyncio.ensure_future(answer)
            task.add_done_callback(partial(self._finish, key))
        return await asyncio.shield(self._running[key])

    def _finish(self, key: tuple[str, ...], task: asyncio.Task[bytes]) -> None:
        """Keep the answer of a task that ended with one."""
        del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._keep(key, task.result())

    def _keep(self, key: tuple[str, ...], body: bytes) -> None:
        self._kept_bytes += _size(key, body) - _size(key, self._kept.pop(key, None))
        self._kept[key] = body
        while self._kept_bytes > REMEMBERED:
            self._kept_bytes -= _size(*self._kept.popitem(last=False))

    @contextmanager
    def _turn(self, request: Request) -> Iterator[None]:
        """Count a long question of one address.

        Raises
        ------
        BusyError
            If as many of it are worked on or wait as may.
        """
        client = request.client.host if request.client else ""
        if self._waiting[client] >= OF_A_CLIENT:
            raise BusyError
        self._waiting[client] += 1
        try:
            yield
        finally:
            self._waiting[client] -= 1
            self._waiting += Counter()  # those of whom nothing waits are forgotten

    async def form(self, request: Request) -> Response:
        """Return the page, or of a change of the form its answer alone."""
        query = asked(request)
        if not request.headers.get("hx-request"):
            return _sent(request, await self._once("form", query))
        return _sent(
            request, await self._once("answer", query), headers={"HX-Push-Url": f"/?{address(query)}"}
        )

    async def drawn(self, work: Work, kind: str, request: Request) -> Response:
        """Return what one of the processes that draw answers."""
        answer = await self._once(work, asked(request), workers=self._drawn)
        return _sent(request, answer, kind, EMBEDDED if work == "card" else {})

    async def card_png(self, request: Request) -> Response:
        """Return the answer as a picture."""
        body = await self._once("card_png", asked(request), workers=self._drawn)
        return Response(b64decode(gzip.decompress(body)), media_type="image/png", headers=EMBEDDED)

    async def compare(self, request: Request) -> Response:
        """Return the question next to those that were kept, whose addresses are the parameters `with`."""
        kept = [parse_qsl(text) for text in request.query_params.getlist("with")[:MOST_KEPT]]
        return _sent(request, await self._once("compare", asked(request, "with"), *kept, workers=self._drawn))

    async def explain(self, request: Request) -> Response:
        """Return the tree of one number."""
        return _sent(request, await self._explained(request, "explain"))

    async def launch(self, request: Request) -> Response:
        """Return the layout as a framework's files, to read or to save."""
        to, file, query = _said(request, "to"), _said(request, "file"), asked(request, "to", "file")
        if not file:
            return _sent(request, await self._once("launch", query, to, workers=self._drawn))
        body = await self._once("launch_file", query, to, file, workers=self._drawn)
        name = file.rpartition("/")[2].replace('"', "")
        return _sent(request, body, "text/plain", {"Content-Disposition": f'attachment; filename="{name}"'})

    async def searched(self, work: Work, request: Request) -> Response:
        """Return what takes a search: what would make the layout fit, or the front of step time and memory."""
        with self._turn(request):
            return _sent(request, await self._once(work, asked(request), workers=self._long))

    async def project_json(self, request: Request) -> Response:
        """Return what `forescale project --json` prints."""
        return _sent(request, await self._once("document", asked(request)), JSON)

    async def explain_json(self, request: Request) -> Response:
        """Return what `forescale explain --json` prints."""
        return _sent(request, await self._explained(request, "explain_document"), JSON)

    async def _explained(self, request: Request, work: Work) -> bytes:
        quantity, stage = _said(request, "quantity", "step_time"), _said(request, "stage")
        return await self._once(
            work, asked(request, "quantity", "stage"), quantity, stage, workers=self._drawn
        )

    async def search_json(self, request: Request) -> Response:
        """Return what `forescale search --json` prints, after the whole search."""
        with self._turn(request):
            body = await self._once("search_document", asked(request), LONG_S, workers=self._long)
            return _sent(request, body, JSON)

    async def read(self, request: Request) -> Response:
        """Return what a framework's file, which is the body, asks; the parameter `name` is what it is called."""
        body = bytearray()
        length = 0
        async for part in request.stream():
            length += len(part)  # the rest is read: a client that still sends sees no answer
            if length <= LARGEST_FILE:
                body += part
            elif length > MOST_DISCARDED:
                break
        if length > LARGEST_FILE:
            text = f"the file is larger than the {LARGEST_FILE // 2**20} MiB that are read"
            return JSONResponse({"error": text}, status_code=413)
        name = _said(request, "name", "file")[:200]
        answer = await self._drawn.ask("compressed", "read", asked(request, "name"), name, bytes(body))
        return _sent(request, answer, JSON)

    async def search(self, request: Request) -> Response:
        """Stream how far the search is, and the best layouts at its end; with the parameter `soon`, a short one."""
        limit = QUICK_S if _said(request, "soon") else LONG_S
        events = self._events(request, of_search(asked(request, "soon")), limit)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, request: Request, query: Query, limit: float) -> AsyncIterator[str]:
        key = ("search", address(query), repr(limit))
        if key in self._kept:
            yield _event("found", gzip.decompress(self._kept[key]).decode())
            return
        try:
            with self._turn(request):
                async for kind, result in self._long.news("search", list(query), limit):
                    if kind == "news":
                        yield _event("progress", json.dumps(result))
                    else:
                        self._keep(key, gzip.compress(result.encode(), LEVEL))
                        yield _event(kind, result)
        except BusyError:
            yield _event("busy", str(RETRY_AFTER_S))
        except ForescaleError as error:
            yield _event("failed", str(error))


def _size(key: tuple[str, ...], body: bytes | None) -> int:
    return 0 if body is None else len(body) + sum(map(len, key))


def _sent(
    request: Request, body: bytes, kind: str = "text/html", headers: Mapping[str, str] | None = None
) -> Response:
    """Return a compressed answer, as it is to a client that accepts it."""
    more = {**(headers or {}), "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(body), media_type=kind, headers=more)
    return Response(body, media_type=kind, headers={**more, "Content-Encoding": "gzip"})


def _sentence(text: str, field: str) -> str:
    return f'<p class="error" role="alert" data-field="{xml(field)}">{xml(text)}</p>'


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"
