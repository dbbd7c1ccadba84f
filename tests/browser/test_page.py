"""The page in a real browser: filled in, read, explained, searched, saved, on a phone, in the dark, by its links."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page
from tests.browser.conftest import Opened, serious
from tests.browser.random_use import random_use
from tests.web.test_asked import LLAMA

QUERY = "model=llama-3.1-8b&cluster=h100-sxm&devices=16&seq_len=4096&global_batch_size=256&tp=2&pp=2"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "forescale", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[0]
        server.terminate()


@pytest.fixture
def page(url: str, opened: Opened) -> Page:
    result = opened(f"{url}?{QUERY}")
    result.wait_for_selector("#step")
    return result


def tab(page: Page, name: str) -> None:
    """Select a tab of the details."""
    page.click(f"#tab-{name}")


def document(page: Page) -> dict:
    link = page.get_attribute("#panel-launch a:text-is('as JSON')", "href")
    with urlopen(page.url.partition("?")[0].rstrip("/") + str(link)) as answer:
        result: dict = json.load(answer)
    return result


def test_a_change_of_the_form_is_answered_and_kept_in_the_address(page: Page):
    page.fill("#devices", "32")
    page.press("#devices", "Tab")
    page.wait_for_function("document.querySelector('#answer .asked').textContent.includes('32 ×')")
    assert "devices=32" in page.url
    shown = page.get_attribute("#step data", "value")
    assert float(str(shown)) == document(page)["step_time_s"]
    page.goto(page.url)
    assert page.get_attribute("#step data", "value") == shown


def test_a_number_is_explained_by_a_click_and_by_the_keyboard(page: Page):
    page.click("#mfu button")
    page.wait_for_selector("text=Where mfu comes from")
    assert page.locator("#tree code").count() > 0
    assert serious(page) == []
    page.keyboard.press("Escape")
    page.focus("#memory button")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Where memory.peak comes from")
    page.click("#explanation > button")
    assert page.evaluate("document.activeElement.closest('#memory') !== null")


def test_a_bar_explains_its_part(page: Page):
    tab(page, "time")
    page.click("#panel-time [aria-roledescription=bar] >> nth=0")
    page.wait_for_selector("text=/Where step_time\\.\\w+ comes from/")
    page.keyboard.press("Escape")
    tab(page, "memory")
    page.click("#panel-memory [aria-roledescription=bar] >> nth=-1")
    page.wait_for_selector("text=/Where memory\\.\\w+ comes from/")
    assert "stage 1" in str(page.text_content("#tree > p"))


def test_a_row_of_a_table_explains_its_own_layout(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    layout = page.text_content("#found tbody tr:nth-child(2) a")
    page.focus("#found tbody tr:nth-child(2) button >> nth=0")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Where step_time comes from")
    assert page.text_content("#tree > p") == layout
    root = page.get_attribute("#tree data", "value")
    assert root == page.get_attribute("#found tbody tr:nth-child(2) data >> nth=0", "value")


def test_the_best_layouts_stand_beside_every_answer(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    first = page.get_attribute("#found tbody tr:first-child data", "value")
    saved = 100.0 * (1.0 - float(str(first)) / float(str(page.get_attribute("#step data", "value"))))
    assert abs(float(str(page.text_content("#gain")).split()[4]) - saved) < 0.05 * saved
    page.fill("#tp", "4")
    page.press("#tp", "Tab")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('tp 4')")
    assert page.get_attribute("#found tbody tr:first-child data", "value") == first
    page.fill("#devices", "8")
    page.press("#devices", "Tab")
    page.wait_for_function(
        f"document.querySelector('#found tbody data').value !== '{first}'", timeout=120_000
    )


def test_a_search_is_asked_and_its_best_taken(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    page.click("text=Search the best layout")
    page.wait_for_selector("text=Search the best layout", timeout=120_000)  # no longer: cancel it
    page.click("#found summary")
    page.wait_for_selector("#found .chart svg")
    best = page.get_attribute("#found tbody tr:first-child data", "value")
    page.click("#found tbody tr:first-child a")
    page.wait_for_function(f"document.querySelector('#step data').value === '{best}'")


def test_a_slider_fills_its_field_by_the_keyboard(page: Page):
    page.focus("[data-for=devices]")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('#answer .asked').textContent.includes('32 ×')")
    assert page.input_value("#devices") == "32"


def test_a_point_of_the_front_leads_to_its_layout(page: Page):
    page.click("#front button", timeout=120_000)
    page.click("#front [aria-roledescription=point] >> nth=0", timeout=120_000)
    page.wait_for_function("!document.querySelector('.layout').textContent.startsWith('tp 2 · pp 2 ·')")
    assert page.input_value("#devices") == "16"


def test_a_search_is_cancelled(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    page.fill("#devices", "512")
    page.press("#devices", "Tab")
    page.wait_for_selector("#progress")
    page.click("text=Cancel the search")
    page.wait_for_selector("text=Cancelled.")
    assert page.text_content("#search") == "Search the best layout"


def test_a_launch_file_is_saved(page: Page, tmp_path: Path):
    tab(page, "launch")
    page.click("button:text-is('megatron-core')")
    with page.expect_download() as saved:
        page.click("#files a[download]")
    saved.value.save_as(tmp_path / "run.sh")
    assert "--tensor-model-parallel-size 2" in (tmp_path / "run.sh").read_text()


def test_a_framework_file_fills_the_form(page: Page, tmp_path: Path):
    tab(page, "launch")
    page.click("button:text-is('megatron-core')")
    with page.expect_download() as saved:
        page.click("#files a[download]")
    saved.value.save_as(tmp_path / "run.sh")
    page.fill("#tp", "1")
    page.press("#tp", "Tab")
    page.wait_for_function("!document.querySelector('.layout').textContent.includes('tp 2')")
    page.set_input_files("#file", tmp_path / "run.sh")
    page.wait_for_selector("text=run.sh: read as megatron")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('tp 2')")
    assert page.input_value("#pp") == "2"


def test_a_pasted_configuration_takes_the_place_of_the_model(page: Page):
    page.click("#more > summary")
    page.fill("#config", json.dumps(LLAMA))
    page.press("#config", "Tab")
    page.wait_for_function("document.querySelector('#answer .asked').textContent.startsWith('pasted on')")
    assert "model=own" in page.url


def test_two_layouts_are_compared(page: Page):
    tab(page, "compare")
    page.click("#keep")
    changed(page, "tp", "4")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('tp 4')")
    page.wait_for_selector("text=strategy.tp")
    page.click("#compared tr:has(td:text-is('attention')) button >> nth=0")
    page.wait_for_selector("text=Where step_time.attention comes from")
    assert "tp 2" in str(page.text_content("#tree > p"))


def test_a_comparison_that_is_not_open_stays_marked_when_pictures_arrive(page: Page):
    tab(page, "compare")
    page.click("#keep")
    page.wait_for_selector("#compared:not(.outdated) table")
    tab(page, "memory")
    with page.expect_response("**/pictures?*tp=4*"):
        changed(page, "tp", "4")
    page.wait_for_function(
        "!document.querySelector('#answer.outdated') && !document.querySelector('[aria-busy=true]')"
    )
    assert "outdated" in str(page.get_attribute("#compared", "class"))
    tab(page, "compare")
    page.wait_for_selector("#compared:not(.outdated) >> text=strategy.tp")


def test_a_comparison_of_four_is_a_link(page: Page):
    tab(page, "compare")
    for tp in ("4", "8", "1"):
        page.click("#keep")
        changed(page, "tp", tp)
        page.wait_for_function(
            f"!document.querySelector('#answer.outdated') && '{tp}' === document.querySelector('#tp').value"
        )
    page.wait_for_function("document.querySelectorAll('#compared thead tr')[0]?.children.length === 5")
    assert page.is_disabled("#keep")
    page.goto("about:blank")
    page.go_back()
    link = str(page.get_attribute("#compare-link", "href"))
    page.evaluate("sessionStorage.clear()")
    page.goto(page.url.partition("?")[0].rstrip("/") + link)
    page.wait_for_function("document.querySelectorAll('#compared thead tr')[0]?.children.length === 5")


def test_a_tab_is_part_of_the_address_and_moves_by_the_keyboard(page: Page):
    tab(page, "memory")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-time"
    assert page.url.endswith("#time")
    changed(page, "tp", "4")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('tp 4')")
    assert page.url.endswith("#time")
    assert page.is_visible("#panel-time table")
    page.reload()
    page.wait_for_selector("#panel-time .chart svg")


def test_a_model_is_picked_by_parts_of_its_name(page: Page):
    page.fill("#model", "70 llama-3.1")
    page.wait_for_selector("#model-list li")
    assert page.text_content("#model-list li >> nth=0").startswith("llama-3.1-70b")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#answer .asked').textContent.startsWith('llama-3.1-70b')")
    page.click("#cluster")
    page.wait_for_selector("#cluster-list small", timeout=60_000)
    page.click("#cluster-list li:has-text('h200-sxm') >> nth=0")
    page.wait_for_function("document.querySelector('#answer .asked').textContent.includes('h200-sxm')")


def test_the_answer_is_shared_as_a_picture(page: Page):
    page.click("#answer [data-share]")
    page.wait_for_function("document.querySelector('#card').naturalWidth === 1200")
    assert "/card.svg?" in str(page.text_content("#embed-markdown"))
    assert serious(page) == []
    page.keyboard.press("Escape")
    assert not page.is_visible("#share")


def test_a_published_run_is_a_starting_point(page: Page):
    page.click("#gallery > summary")
    page.wait_for_selector("#runs table", timeout=120_000)
    assert page.locator("#runs tbody tr").count() == 20
    page.click("#runs a:text-is('Llama 3 70B on 64 H100')")
    page.wait_for_selector("#step")
    assert page.input_value("#devices") == "64"


def test_the_budget_of_the_first_answer(url: str, opened: Opened):
    page = opened("about:blank")
    page.route("**/search?*", lambda route: route.abort())
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.add_init_script("""window.moved = 0;
        new PerformanceObserver((list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) window.moved += each.value; }).observe({ type: "layout-shift", buffered: true });""")
    page.goto(f"{url}?{QUERY}", wait_until="load")
    page.wait_for_selector("#step")
    assert sum(sizes) < 300 * 1024
    page.wait_for_timeout(1500)
    assert page.evaluate("window.moved") < 0.05


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_the_best_layout_moves_nothing_that_is_shown(url: str, opened: Opened, width: int):
    page = opened("about:blank", width=width)
    page.add_init_script("""window.moved = 0;
        new PerformanceObserver((list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) window.moved += each.value; }).observe({ type: "layout-shift", buffered: true });""")
    page.goto(f"{url}?{QUERY}", wait_until="load")
    page.wait_for_selector("#gain:not(:empty)", timeout=60_000)
    page.wait_for_timeout(1000)
    assert page.evaluate("window.moved") < 0.05


def test_no_row_of_another_question_is_ever_shown(page: Page, tmp_path: Path):
    assert random_use(page, tmp_path, count=8, seed=1) == []


def test_back_and_forward_bring_form_and_answer(page: Page):
    page.fill("#tp", "4")
    page.press("#tp", "Tab")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('tp 4')")
    for go, tp in ((page.go_back, "2"), (page.go_forward, "4")):
        go()
        page.wait_for_function(
            f"(document.querySelector('.layout') || document.body).textContent.includes('tp {tp}')"
        )
        assert page.input_value("#tp") == tp


def test_the_command_line_is_copied(page: Page):
    tab(page, "launch")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.taken = text; }")
    page.click("#line button")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("window.taken") == page.text_content("#line pre")


def changed(page: Page, field: str, value: str) -> None:
    """Fill a field, as one who types and goes on with Tab."""
    page.fill(f"#{field}", value)
    page.press(f"#{field}", "Tab")


def held(page: Page, path: str) -> list:
    """Hold the requests of a path; what is called lets them go on."""
    waiting: list = []
    page.route(f"**{path}*", lambda route: waiting.append(route))  # noqa: PLW0108 (Playwright takes no built-in)
    return waiting


def test_a_wrong_address_is_answered_with_its_error(page: Page):
    page.goto(page.url.replace("tp=2", "tp=3"))
    assert "3" in str(page.text_content("#problem"))
    page.wait_for_selector("#found table", timeout=120_000)
    page.goto(page.url.replace("llama-3.1-8b", "llama-9"))
    assert "unknown model" in str(page.text_content("#problem"))
    assert page.get_attribute("#model", "aria-invalid") == "true"
    page.wait_for_function("document.querySelector('#progress').textContent === ''")
    assert page.text_content("#ranking") == ""


def test_what_answers_the_previous_question_is_marked_until_the_next_is_answered(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    projections, searches = held(page, "/?"), held(page, "/search?")
    changed(page, "devices", "8")
    page.wait_for_selector("#answer.outdated[aria-busy=true]")
    assert (
        page.locator("#details.outdated").count()
        == page.locator("#ranking.outdated[aria-busy=true]").count()
        == 1
    )
    assert "previous question" in str(page.text_content("#state"))
    assert "previous question" in str(page.text_content("#progress"))
    projections.pop().continue_()
    page.wait_for_selector("#answer:not(.outdated)")
    assert "8 ×" in str(page.text_content("#answer .asked"))
    assert page.text_content("#state") == ""
    assert page.locator("#ranking.outdated").count() == 1
    page.wait_for_function("document.querySelector('#progress').textContent.includes('Searching')")
    searches.pop().continue_()
    page.wait_for_selector("#ranking:not(.outdated)", timeout=120_000)
    assert "previous" not in str(page.text_content("#progress"))


def test_a_change_of_the_layout_alone_keeps_the_best_layouts(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    searches = held(page, "/search?")
    changed(page, "tp", "4")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('tp 4')")
    assert page.locator("#ranking.outdated").count() == 0
    assert searches == []


def test_a_layout_sets_its_fields_and_keeps_what_was_typed(page: Page):
    page.wait_for_selector("#found table", timeout=120_000)
    changed(page, "tp", "1")
    page.wait_for_function("!document.querySelector('.layout').textContent.includes('tp')")
    page.fill("#price", "2")
    page.fill("#tokens", "15T")  # typed, not sent yet
    row = page.locator("#ranking tbody a").first
    best = row.text_content()
    row.click()
    page.wait_for_selector("#cost")
    page.wait_for_function(f"document.querySelector('.layout').textContent === '{best}'")
    assert (page.input_value("#tokens"), page.input_value("#price")) == ("15T", "2")
    assert "tokens=15T" in page.url
    assert page.input_value("#set") == ""
    assert page.input_value("#pp") == ""


def test_the_layout_and_the_form_are_cleared(page: Page):
    page.evaluate("document.querySelector('#set').value = 'strategy.sp=false\\nworkload.document_len=1024'")
    page.select_option("#zero", "2")
    page.wait_for_function("document.querySelector('.layout').textContent.includes('no sp')")
    page.click("#clear-layout")
    page.wait_for_function("!document.querySelector('.layout').textContent.includes('tp')")
    assert page.input_value("#set") == "workload.document_len=1024"
    assert page.input_value("#zero") == page.input_value("#tp") == ""
    assert page.input_value("#devices") == "16"
    page.click("#clear")
    page.wait_for_selector("#model[aria-invalid=true]")
    values = page.evaluate(
        "[...document.querySelector('#question').elements].filter((e) => e.name).map((e) => e.value).join('')"
    )
    assert values == ""


def test_an_error_keeps_the_answer_and_is_in_view(page: Page):
    step = page.get_attribute("#step data", "value")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    changed(page, "tp", "two")
    page.wait_for_selector("#tp[aria-invalid=true]")
    assert "whole number" in str(page.text_content("#problem"))
    assert page.locator("label:has(#tp) small.error").count() == 1
    assert page.evaluate("document.querySelector('#problem').getBoundingClientRect().top") >= 0
    assert (
        page.evaluate("document.activeElement.id") != "problem"
    )  # who types in the next field goes on typing
    assert page.get_attribute("#step data", "value") == step
    assert page.locator("#answer.outdated").count() == 1
    assert "previous question" in str(page.text_content("#state"))
    page.click("#question [type=submit]")
    page.wait_for_function("document.activeElement.id === 'problem'")
    changed(page, "tp", "4")
    page.wait_for_selector("#answer:not(.outdated)")
    assert page.text_content("#problem") == ""
    assert page.locator("[aria-invalid]").count() == 0


def test_an_upload_that_cannot_be_read_is_said_in_view(page: Page, tmp_path: Path):
    (tmp_path / "run.sh").write_bytes(b"\xff\xfe\x00")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.set_input_files("#file", tmp_path / "run.sh")
    page.wait_for_function("document.activeElement.id === 'problem'")
    assert str(page.text_content("#problem")).startswith("run.sh: ")
    assert page.evaluate("document.querySelector('#problem').getBoundingClientRect().top") >= 0
    assert page.locator("#answer.outdated").count() == 0


def test_a_server_that_does_not_answer_is_said(page: Page):
    page.route("**/?*", lambda route: route.abort())
    changed(page, "tp", "4")
    page.wait_for_function("document.querySelector('#problem').textContent.includes('did not answer')")
    assert page.locator("#answer.outdated").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400, 3840])
def test_it_is_readable_and_accessible(page: Page, width: int, scheme: str):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.wait_for_selector("#found table", timeout=120_000)
    page.wait_for_selector(".drawing svg", state="attached")
    for name in ("layouts", "memory", "network", "cost", "launch"):
        tab(page, name)
        if name in ("memory", "cost"):
            page.wait_for_selector(f"#panel-{name} .chart svg")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(page) == [], name


def test_a_phone_shows_the_answer_first(url: str, opened: Opened):
    page = opened(f"{url}?{QUERY}", width=390)
    page.wait_for_selector("#gain:not(:empty)", timeout=120_000)
    assert page.evaluate("document.querySelector('#gain').getBoundingClientRect().bottom") < 844
