"""The book's pages in a browser, where `./scripts/book` has built them: nothing keeps people out, nothing overflows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from tests.browser.conftest import Opened, serious

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
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


@pytest.mark.skipif(find_spec("mike") is None, reason="the extra `docs` is not installed")
def test_versions_of_the_book_are_hosted_next_to_each_other(tmp_path: Path):
    def ran(*words: str) -> str:
        done = subprocess.run(words, cwd=copy, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    programs = Path(sys.executable).parent
    paths = os.pathsep.join([str(programs), os.environ["PATH"]])
    copy, environment = tmp_path / "copy", {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PATH": paths}
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    ran("git", "config", "user.name", "nobody")
    ran("git", "config", "user.email", "nobody@example.com")
    for version in ("0.1.0", "0.2.0"):
        ran(str(programs / "mike"), "deploy", "--update-aliases", version, "latest")
    known = json.loads(ran("git", "show", "gh-pages:versions.json"))
    assert {item["version"]: item["aliases"] for item in known} == {"0.1.0": [], "0.2.0": ["latest"]}
    files = ran("git", "ls-tree", "-r", "--name-only", "gh-pages").splitlines()
    assert {"0.1.0/index.html", "0.2.0/cli.html", "latest"} <= {*files}
