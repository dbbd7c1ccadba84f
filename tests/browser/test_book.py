"""The book's pages in a browser, where `./scripts/book` has built them: nothing keeps people out, nothing overflows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.browser.conftest import Opened, serious

SITE = Path(__file__).parents[2] / "site"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing about requests."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(not PAGES, reason="the book is not built; ./scripts/book builds it")
@pytest.mark.parametrize(("scheme", "pages"), [("light", PAGES[::2]), ("dark", PAGES[1::2])])
def test_the_book_is_readable_and_accessible(url: str, opened: Opened, scheme: str, pages: list[str]):
    page = opened(url, width=360, scheme=scheme)
    result = {}
    for name in pages:
        page.goto(f"{url}/{name}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        problems = [*serious(page), *([f"{wide} pixels wide"] if wide > 360 else [])]
        if problems:
            result[name] = problems
    assert result == {}


@pytest.mark.skipif(not PAGES, reason="the book is not built; ./scripts/book builds it")
def test_tables_wider_than_the_screen_are_reached_by_keyboard(url: str, opened: Opened):
    wraps = "[...document.querySelectorAll('.md-typeset__scrollwrap')]"
    page = opened(f"{url}/accuracy.html", width=360)
    assert page.evaluate(f"{wraps}.filter((wrap) => wrap.tabIndex === 0).length") > 0
    page.set_viewport_size({"width": 2000, "height": 900})
    page.wait_for_function(
        f"{wraps}.every((wrap) => (wrap.scrollWidth > wrap.clientWidth) === (wrap.tabIndex === 0))"
    )
