"""The server: addresses, limits and what is remembered. Workers answer; this process only passes on.

Nothing that a page sends names a file of the server; invalid input returns a one-line error with status 422, too many
requests 429 with Retry-After.
"""

from __future__ import annotations

import json
import socket
from base64 import b64decode
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from forescale.errors import ForescaleError, cannot_listen
from forescale.escaping import xml
from forescale.version import __version__
from forescale.view.page import FOLDER
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
    ready(f"http://{shown}:{listener.getsockname()[1]}/")
    uvicorn.Server(config).run(sockets=[listener])


LARGEST_FILE = 8 * 2**20
"""Bytes of a file that is handed in."""
MOST_DISCARDED = 8 * LARGEST_FILE
"""Bytes of a larger one that are read before it is refused."""
RETRY_AFTER_S = 1
MOST_KEPT = 3
"""Questions that are compared with the one of the form."""
DRAWN = {"pictures": "text/html", "cost": "text/html", "gallery": "text/html", "card.svg": "image/svg+xml"}
"""Addresses that processes which draw answer, and the types of the answers."""
EMBEDDED = {"Cross-Origin-Resource-Policy": "cross-origin"}
"""Header of pictures that other pages may show."""
REMEMBERED = 1024
"""Answers that are kept."""
QUICK_S, DRAWN_S, LONG_S = 10.0, 30.0, 60.0
"""Seconds that an answer may take, and so a search that goes with it; what is drawn, by processes that stand back; and
what is asked for by itself. A search ends then with the best so far, and how near it is to the proof."""
QUICK_QUESTIONS = 128
"""Projections that are worked on or wait, in turn, and as many drawings."""
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
    served = Pages(
        quick or Workers(processes=2, most=QUICK_QUESTIONS, time_limit_s=QUICK_S),
        drawn or Workers(processes=2, most=QUICK_QUESTIONS, time_limit_s=DRAWN_S, patient=True),
        long or Workers(processes=2, most=LONG_QUESTIONS, time_limit_s=LONG_S + GRACE_S, patient=True),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
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
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
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
        self._kept: OrderedDict[tuple[object, ...], str] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def close(self) -> None:
        """End all workers."""
        for workers in (self._quick, self._drawn, self._long):
            workers.close()

    async def _once(self, work: Work, query: Query, *more: object, workers: Workers | None = None) -> str:
        """Return the answer to a question, which is remembered."""
        key = (work, address(query), repr(more))
        if key not in self._kept:
            self._keep(key, await (workers or self._quick).ask(work, list(query), *more))
        self._kept.move_to_end(key)
        return self._kept[key]

    def _keep(self, key: tuple[object, ...], text: str) -> None:
        self._kept[key] = text
        if len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)

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
            return HTMLResponse(await self._once("form", query))
        link = address(query)
        return HTMLResponse(await self._once("answer", query), headers={"HX-Push-Url": f"/?{link}"})

    async def drawn(self, work: Work, kind: str, request: Request) -> Response:
        """Return what one of the processes that draw answers."""
        answer = await self._once(work, asked(request), workers=self._drawn)
        return Response(answer, media_type=kind, headers=EMBEDDED if work == "card" else None)

    async def card_png(self, request: Request) -> Response:
        """Return the answer as a picture."""
        text = await self._once("card_png", asked(request), workers=self._drawn)
        return Response(b64decode(text), media_type="image/png", headers=EMBEDDED)

    async def compare(self, request: Request) -> Response:
        """Return the question next to those that were kept, whose addresses are the parameters `with`."""
        kept = [parse_qsl(text) for text in request.query_params.getlist("with")[:MOST_KEPT]]
        return HTMLResponse(await self._once("compare", asked(request, "with"), *kept, workers=self._drawn))

    async def explain(self, request: Request) -> Response:
        """Return the tree of one number."""
        return HTMLResponse(await self._explained(request, "explain"))

    async def launch(self, request: Request) -> Response:
        """Return the layout as a framework's files, to read or to save."""
        to, file, query = _said(request, "to"), _said(request, "file"), asked(request, "to", "file")
        if not file:
            return HTMLResponse(await self._once("launch", query, to, workers=self._drawn))
        text = await self._once("launch_file", query, to, file, workers=self._drawn)
        name = file.rpartition("/")[2].replace('"', "")
        return PlainTextResponse(text, headers={"Content-Disposition": f'attachment; filename="{name}"'})

    async def searched(self, work: Work, request: Request) -> Response:
        """Return what takes a search: what would make the layout fit, or the front of step time and memory."""
        with self._turn(request):
            return HTMLResponse(await self._once(work, asked(request), workers=self._long))

    async def project_json(self, request: Request) -> Response:
        """Return what `forescale project --json` prints."""
        return _json(await self._once("document", asked(request)))

    async def explain_json(self, request: Request) -> Response:
        """Return what `forescale explain --json` prints."""
        return _json(await self._explained(request, "explain_document"))

    async def _explained(self, request: Request, work: Work) -> str:
        quantity, stage = _said(request, "quantity", "step_time"), _said(request, "stage")
        return await self._once(
            work, asked(request, "quantity", "stage"), quantity, stage, workers=self._drawn
        )

    async def search_json(self, request: Request) -> Response:
        """Return what `forescale search --json` prints, after the whole search."""
        with self._turn(request):
            return _json(await self._once("search_document", asked(request), LONG_S, workers=self._long))

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
        return _json(await self._drawn.ask("read", asked(request, "name"), name, bytes(body)))

    async def search(self, request: Request) -> Response:
        """Stream how far the search is, and the best layouts at its end; with the parameter `soon`, a short one."""
        limit = QUICK_S if _said(request, "soon") else LONG_S
        events = self._events(request, of_search(asked(request, "soon")), limit)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, request: Request, query: Query, limit: float) -> AsyncIterator[str]:
        key = ("search", address(query), limit)
        if key in self._kept:
            yield _event("found", self._kept[key])
            return
        try:
            with self._turn(request):
                async for kind, result in self._long.news("search", list(query), limit):
                    if kind == "news":
                        yield _event("progress", json.dumps(result))
                    else:
                        self._keep(key, result)
                        yield _event(kind, result)
        except BusyError:
            yield _event("busy", str(RETRY_AFTER_S))
        except ForescaleError as error:
            yield _event("failed", str(error))


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _sentence(text: str, field: str) -> str:
    return f'<p class="error" role="alert" data-field="{xml(field)}">{xml(text)}</p>'


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"
