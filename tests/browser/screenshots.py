"""Pictures of the main states of the page, to be looked at: `python -m tests.browser.screenshots FOLDER`."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright
from tests.browser.test_page import QUERY

WIDTHS = (390, 900, 1440)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
TABS = ("memory", "time", "pipeline", "network", "cost", "whatif", "explain", "launch")


def take(page: Page, folder: Path) -> None:
    """Write one picture per state: the answer, tabs, a picker, the card, a comparison, published runs, an error."""
    page.wait_for_selector("#gain:not(:empty)", timeout=120_000)
    page.screenshot(path=folder / "answer.png")
    for name in TABS:
        page.click(f"#tab-{name}")
        page.wait_for_timeout(2000)
        page.screenshot(path=folder / f"{name}.png")
    page.click("#cluster")
    page.wait_for_selector("#cluster-list small")
    page.screenshot(path=folder / "picker.png")
    page.keyboard.press("Escape")
    page.click("#answer [data-share]")
    page.wait_for_function("document.querySelector('#card').naturalWidth > 0")
    page.screenshot(path=folder / "share.png")
    page.keyboard.press("Escape")
    page.click("#tab-compare")
    page.click("#keep")
    page.fill("#tp", "4")
    page.press("#tp", "Tab")
    page.wait_for_selector("#compared table")
    page.screenshot(path=folder / "compare.png")
    page.click("#gallery > summary")
    page.wait_for_selector("#runs table", timeout=120_000)
    page.screenshot(path=folder / "published.png", full_page=True)
    page.fill("#tp", "3")
    page.press("#tp", "Tab")
    page.wait_for_selector("#problem:not(:empty)")
    page.screenshot(path=folder / "error.png")


def main() -> None:
    """Start a server and take the pictures at three widths, light and dark."""
    folder = Path(sys.argv[1])
    command = [sys.executable, "-m", "forescale", "serve", "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        url = f"{server.stdout.readline().split()[0]}?{QUERY}"
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for width, scheme in product(WIDTHS, SCHEMES):
            place = folder / f"{width}-{scheme}"
            place.mkdir(parents=True, exist_ok=True)
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(url)
            take(page, place)
        server.terminate()


if __name__ == "__main__":
    main()
