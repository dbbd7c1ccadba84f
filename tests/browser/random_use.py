"""Random use of the page: typed fields, files, tabs and clicks while searches run; whatever is shown as current is checked.

`python -m tests.browser.random_use [--count 100] [--seed 0]` repeats it many times on a server of its own.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import parse_qsl

from playwright.sync_api import Page, sync_playwright

FIELDS = {
    "devices": ("8", "16", "32"),
    "tp": ("1", "2", "4", "3", "two"),
    "pp": ("1", "2", ""),
    "global_batch_size": ("128", "256", "512"),
    "model": ("llama-3.1-8b", "llama-3.2-1b", "llama-9"),
    "cluster": ("h100-sxm", "a100-sxm-80gb"),
}
SENT_MS = 400
"""Milliseconds after which a change of the form has been sent."""
OF_SEARCH = ("model", "cluster", "devices", "seq_len", "global_batch_size")
SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size {tp} --micro-batch-size 1"
STATE = """() => {
  const current = (id) => !document.getElementById(id).classList.contains("outdated");
  const text = (selector) => document.querySelector(selector)?.textContent || "";
  const params = new URLSearchParams(location.search);
  const details = document.querySelector("#details [data-address]")?.dataset.address || "";
  return {
    question: text("#answer .asked"), layout: text("#answer .layout"), current: current("answer"),
    best: text("#hero .asked"), ranked: document.querySelector("#hero .hero-source")?.dataset.address || "", bestCurrent: current("hero") && text("#hero") !== "",
    address: params.toString(), details, detailsCurrent: current("details"),
    compared: current("compared") ? text("#compared tbody tr:nth-child(3) td:last-child") : "",
    form: Object.fromEntries([...document.querySelector("#question").elements].filter((each) => each.name && each.value.trim()).map((each) => [each.name, each.value])),
  };
}"""


def random_use(page: Page, folder: Path, *, count: int, seed: int) -> list[str]:
    """Use the page at random and return what was shown as current although it answers another question."""
    chance, problems = random.Random(seed), []
    for _ in range(count):
        act(page, chance, folder)
        page.wait_for_timeout(chance.choice((0, 20, 150, 600)))
        if wrong(page.evaluate(STATE)):  # what was typed is sent a moment later
            page.wait_for_timeout(SENT_MS)
            problems += wrong(page.evaluate(STATE))
    page.wait_for_function("document.querySelectorAll('[aria-busy=true]').length === 0", timeout=120_000)
    return problems + wrong(page.evaluate(STATE))


def act(page: Page, chance: random.Random, folder: Path) -> None:
    """Type, upload or click something."""
    kind = chance.random()
    if kind < 0.6:
        name = chance.choice([*FIELDS])
        page.fill(f"#{name}", chance.choice(FIELDS[name]))
        page.press(f"#{name}", chance.choice(("Tab", "Enter")))
    elif kind < 0.7:
        script = folder / "run.sh"
        script.write_text(SCRIPT.format(tp=chance.choice((1, 2, 4))), encoding="utf-8")
        page.set_input_files("#file", script)
    elif kind < 0.85:
        page.evaluate(
            "(name) => document.getElementById(`tab-${name}`).click()",
            chance.choice(("layouts", "memory", "compare", "cost")),
        )
    else:
        selector = chance.choice(("#search", "#keep", "#hero a.button", "#ranking tbody a", "#forget"))
        page.evaluate("(selector) => document.querySelector(selector)?.click()", selector)


def wrong(state: dict) -> list[str]:
    """Return what contradicts itself: a current answer of another address, rows of another search."""
    asked, ranked = dict(parse_qsl(state["details"])), dict(parse_qsl(state["ranked"]))
    form, result = {name: value.strip() for name, value in state["form"].items()}, []
    if state["current"] and asked and asked != form:
        result.append(f"the form asks {form}, the answer is that of {asked}")
    if state["bestCurrent"] and [ranked.get(name) for name in OF_SEARCH] != [
        form.get(name) for name in OF_SEARCH
    ]:
        result.append(f"the form asks {form}, the best layout is that of {ranked}")
    if state["current"] and state["question"]:
        name = f"{asked['model']} on {asked['devices']} × {asked['cluster']}"
        if state["question"] != name:
            result.append(f"the answer {state['question']} is not that of {state['details']}")
        if state["details"] != state["address"] and state["detailsCurrent"]:
            result.append(f"the details are those of {state['details']}, the address is {state['address']}")
    if state["bestCurrent"] and state["current"] and state["best"] != state["question"]:
        result.append(f"the best layout of {state['best']} next to the answer of {state['question']}")
    if state["compared"] and state["current"] and state["compared"] != state["layout"]:
        result.append(f"compared is {state['compared']}, the answer has {state['layout']}")
    return result


def main() -> int:
    """Repeat random uses on a server of its own and print what went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    command = [sys.executable, "-m", "forescale", "serve", "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        page = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        ).new_page()
        page.goto(
            f"{url}?model=llama-3.1-8b&cluster=h100-sxm&devices=16&seq_len=4096&global_batch_size=256&tp=2"
        )
        problems = random_use(page, Path(mkdtemp()), count=args.count, seed=args.seed)
        server.terminate()
    sys.stdout.write("\n".join([*problems, f"{args.count} actions, {len(problems)} problems"]) + "\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
