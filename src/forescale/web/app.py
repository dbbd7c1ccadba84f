"""The server: the form with its answer, searches as they go, explanations, launch files, and the same as JSON.

Nothing that a page sends names a file of the server; what is wrong is one sentence with status 422, what is too much
429 with Retry-After.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    StreamingResponse,
)
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape

from forescale.errors import ForescaleError
from forescale.frameworks.writers import WRITERS
from forescale.projection.result import TIME_PARTS, Projection
from forescale.search import SearchResult, compare
from forescale.spec import phrases
from forescale.units import GIB, format_bytes, format_count, format_seconds
from forescale.version import __version__
from forescale.view.page import FOLDER, figure
from forescale.view.theme import CONFIG
from forescale.web import charts
from forescale.web.answers import Answers, BusyError
from forescale.web.asked import FIELDS, Query, address, changed, opened, told, words_of
from forescale.web.jobs import Searches

HERE = Path(__file__).parent
LONGEST_ADDRESS = 60_000
"""Characters of an address."""
RETRY_AFTER_S = 1
TARGETS = tuple(name for writer in WRITERS for name in writer.frameworks)
WHAT_IF = (
    ("devices", "more devices"),
    ("batch", "a larger batch"),
    ("network", "a faster network between nodes"),
)
DEPTH = 4
"""Levels of an explanation that are unfolded."""
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""The charts' library compiles its expressions, hence unsafe-eval; nothing comes from elsewhere."""


def create_app(answers: Answers | None = None, searches: Searches | None = None) -> FastAPI:
    """Return the application."""
    app = FastAPI(title="Forescale", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    pages = Pages(answers or Answers(), searches or Searches())
    app.mount("/view", StaticFiles(directory=FOLDER), name="view")
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    app.middleware("http")(_guarded)
    app.get("/")(pages.form)
    app.get("/pictures")(pages.pictures)
    app.get("/compare")(pages.compare)
    app.get("/explain")(pages.explain)
    app.get("/launch")(pages.launch)
    app.get("/fit")(pages.fit)
    app.get("/search")(pages.search)
    app.get("/project.json")(pages.project_json)
    app.get("/explain.json")(pages.explain_json)
    app.get("/search.json")(pages.search_json)
    app.get("/favicon.ico")(lambda: Response(status_code=204))
    app.exception_handler(ForescaleError)(pages.refused)
    app.exception_handler(BusyError)(pages.busy)
    return app


async def _guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse what is too long, before anything reads it, and say what a page may load."""
    if len(request.url.query) > LONGEST_ADDRESS:
        return PlainTextResponse(
            f"the address is longer than {LONGEST_ADDRESS:,} characters", status_code=414
        )
    response = await call(request)
    response.headers.update(SECURITY)
    return response


def asked(request: Request, *beside: str) -> Query:
    """Return the question of an address, without the parameters `beside` it."""
    return [(name, value) for name, value in request.query_params.multi_items() if name not in beside]


class Pages:
    """What each address answers; functions that compute run in threads."""

    def __init__(self, answers: Answers, searches: Searches) -> None:
        self.answers, self.searches = answers, searches
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=select_autoescape(default=True)
        )
        self._templates.filters |= {
            "bytes": format_bytes,
            "count": format_count,
            "seconds": format_seconds,
            "gib": lambda value: f"{value / GIB:.1f}",
            "plain": lambda value: "" if value is None else f"{value:.5g}",
            "percent": lambda value: f"{100.0 * value:.1f} %",
            "layout": phrases.layout,
        }

    def form(self, request: Request) -> Response:
        """Return the page, or of a change of the form its answer alone."""
        query = asked(request)
        if request.headers.get("hx-request"):
            part = self._html("answer.html", self._answer(told(query)))
            part.headers["HX-Push-Url"] = f"/?{address(query)}"
            return part
        said = told(query) if query else told(opened())
        try:
            answer = self._answer(said)
        except ForescaleError as error:
            answer = {"error": str(error), "query": said}
        return self._html(
            "page.html",
            {**answer, "fields": FIELDS, "said": dict(said), "version": __version__, "config": CONFIG},
        )

    def pictures(self, request: Request) -> Response:
        """Return what takes longer to draw: what if, and one step of the pipeline."""
        query = asked(request)
        with self.answers.slot():
            points, drawn = self.answers.curves(query), self.answers.schedule(query)
        drawn_curves = (charts.curve(points, what, words) for what, words in WHAT_IF)
        curves = [figure(each) for each in drawn_curves if each is not None]
        return self._html("pictures.html", {"curves": curves, "drawn": drawn})

    def compare(self, request: Request) -> Response:
        """Return how the question differs from the one that was kept, whose address is the parameter `with`."""
        query, kept = asked(request, "with"), parse_qsl(request.query_params.get("with", ""))
        with self.answers.slot():
            found = compare(
                self.answers.project(kept), self.answers.project(query), name_a="kept", name_b="now"
            )
        return self._html("compare.html", {"found": found.to_json()})

    def explain(self, request: Request) -> Response:
        """Return the tree of one number."""
        quantity = request.query_params.get("quantity", "step_time")
        with self.answers.slot():
            node = self.answers.explain(asked(request, "quantity"), quantity)
        return self._html("explain.html", {"node": node.to_json(depth=DEPTH)["tree"], "quantity": quantity})

    def launch(self, request: Request) -> Response:
        """Return the layout as a framework's files, to read or to save."""
        to, file = request.query_params.get("to", ""), request.query_params.get("file")
        query = asked(request, "to", "file")
        with self.answers.slot():
            found = self.answers.export(query, to)
        if file is not None and file in found.texts:
            name = file.rpartition("/")[2].replace('"', "")
            return PlainTextResponse(
                found.texts[file], headers={"Content-Disposition": f'attachment; filename="{name}"'}
            )
        return self._html("launch.html", {"found": found, "to": to, "address": address(query)})

    def fit(self, request: Request) -> Response:
        """Return what would make the layout fit."""
        query = asked(request)
        with self.answers.slot():
            found = self.answers.fit(query)
        rows = [
            {**fix.row(), "verdict": fix.verdict, "address": self._layout(query, fix.projection.to_json())}
            for fix in found.fixes[:10]
        ]
        return self._html("fit.html", {"rows": rows, "found": found})

    async def search(self, request: Request) -> Response:
        """Stream how far the search is, and the best layouts at its end."""
        query = told(asked(request))
        return StreamingResponse(self._events(query), media_type="text/event-stream")

    async def search_json(self, request: Request) -> Response:
        """Return what `forescale search --json` prints, after the whole search."""
        async for news in self.searches.run(told(asked(request))):
            if "found" in news:
                return JSONResponse(news["found"].to_json())
            if "error" in news:
                return JSONResponse({"error": news["error"]}, status_code=422)
        return JSONResponse({"error": "the search was stopped"}, status_code=422)

    def project_json(self, request: Request) -> Response:
        """Return what `forescale project --json` prints."""
        with self.answers.slot():
            return JSONResponse(self.answers.document(asked(request)))

    def explain_json(self, request: Request) -> Response:
        """Return what `forescale explain --json` prints."""
        quantity = request.query_params.get("quantity", "step_time")
        with self.answers.slot():
            return JSONResponse(self.answers.explain(asked(request, "quantity"), quantity).to_json())

    async def refused(self, request: Request, error: Exception) -> Response:
        """Answer a question that cannot be answered with its one sentence."""
        if request.url.path.endswith(".json"):
            return JSONResponse({"error": str(error)}, status_code=422)
        return self._html("error.html", {"error": str(error)}, status_code=422)

    async def busy(self, request: Request, error: Exception) -> Response:
        """Tell a client to come back."""
        del request, error
        text = f"more is asked than is worked on at once; ask again in {RETRY_AFTER_S} s"
        return JSONResponse({"error": text}, status_code=429, headers={"Retry-After": str(RETRY_AFTER_S)})

    async def _events(self, query: Query) -> AsyncIterator[str]:
        try:
            async for news in self.searches.run(query):
                if "progress" in news:
                    yield _event("progress", json.dumps(news["progress"]))
                elif "error" in news:
                    yield _event("found", self._text("error.html", {"error": news["error"]}))
                else:
                    yield _event("found", self._text("search.html", self._found(query, news["found"])))
        except BusyError:
            yield _event(
                "found", self._text("error.html", {"error": "two searches run; ask again when one is done"})
            )

    def _found(self, query: Query, found: SearchResult) -> dict[str, Any]:
        rows = [(one, self._layout(query, one.to_json())) for one in found.best]
        return {"found": found, "rows": rows, "chart": "".join(map(figure, found.pictures()))}

    def _layout(self, query: Query, document: dict[str, Any]) -> str:
        """Return the address of the same question with the layout of a document."""
        return address(changed(query, **words_of(document["strategy"])))

    def _answer(self, query: Query) -> dict[str, Any]:
        with self.answers.slot():
            found = self.answers.project(query)
            return {
                "found": found,
                "document": found.to_json(),
                "parts": _parts(found),
                "query": query,
                "address": address(query),
                "line": self.answers.line(query),
                "frameworks": TARGETS,
                "charts": [figure(chart) for chart in found.pictures()],
            }

    def _html(self, name: str, values: dict[str, Any], *, status_code: int = 200) -> HTMLResponse:
        return HTMLResponse(self._text(name, values), status_code=status_code)

    def _text(self, name: str, values: dict[str, Any]) -> str:
        return self._templates.get_template(name).render(**values)


def _parts(found: Projection) -> list[tuple[str, float]]:
    """Return the parts of a step that take time, the largest first."""
    return sorted(
        ((name, found.time_s[name]) for name in TIME_PARTS if found.time_s[name]), key=lambda p: -p[1]
    )


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"
