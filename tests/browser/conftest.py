from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

AXE = Path(__file__).parents[1] / "data" / "axe.min.js"
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module; each of them opens contexts of its own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((result for name in names if (result := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no Chromium here; .ci/run installs it")
    with sync_playwright() as playwright:
        process = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield process
        process.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Open pages in a browser that must not complain about any of them, but for requests that were refused."""
    problems: list[str] = []
    contexts: list[BrowserContext] = []

    def call(url: str, *, width: int = 1400, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if _complains(message) else None)
        page.goto(url)
        return page

    yield call
    for context in contexts:
        context.close()
    assert problems == []


def _complains(console_message: ConsoleMessage) -> bool:
    """Say whether a message is an error of the page; a refused request is logged by the browser itself."""
    return console_message.type == "error" and not console_message.text.startswith(
        ("Failed to load resource", "htmx:")
    )


def serious(page: Page) -> list[str]:
    """Return what axe-core finds that keeps people out."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    evaluate = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {violation['nodes'][0]['html'][:200]}"
        for violation in evaluate["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
