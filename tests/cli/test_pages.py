"""`--html` writes what the terminal shows as one page: pictures, the same tables, the command."""

from __future__ import annotations

import json
import re

import pytest

QUESTION = ("llama-3.1-8b", "--cluster", "h100-sxm", "--seq-len", 4096, "--global-batch-size", 128)
SIZED = (*QUESTION, "--devices", 32)
LAYOUT = (*SIZED, "--tp", 2, "--pp", 4)
ASKED = {
    "project": (("project", *LAYOUT), 2, 2, " % causal"),
    "memory": (("memory", *LAYOUT), 1, 0, "optim"),
    "timeline": (("memory", *LAYOUT, "--timeline"), 3, 0, "what lives there"),
    "policies": (("memory", "compare", *LAYOUT, "--across", "recompute"), 1, 0, "selective"),
    "search": (("search", *SIZED, "--top", 3), 2, 0, "dominant"),
    "front": (("search", *SIZED, "--pareto"), 1, 0, "on the front of"),
    "scan": (
        ("search", *QUESTION, "--device-counts", "16,32", "--tokens", "1T", "--price", 2),
        2,
        0,
        "devices",
    ),
    "plans": (("search", *SIZED, "--tokens", "1T", "--deadline", "100d"), 1, 0, "spare nodes"),
    "run": (("run", *LAYOUT, "--tokens", "1T"), 1, 0, "goodput"),
    "network": (("network", "--cluster", "h100-sxm", "--sizes", "64MiB"), 4, 0, "GB/s"),
}


@pytest.mark.parametrize(("words", "charts", "drawn", "said"), ASKED.values(), ids=ASKED)
def test_a_page_has_pictures_tables_and_the_command(forescale, tmp_path, words, charts, drawn, said):
    page = tmp_path / "page.html"
    ran = forescale(*words, "--html", page)
    assert ran.code == 0, ran.err
    text = page.read_text(encoding="utf-8")
    body, _, library = text.partition("<noscript>")
    assert body.count("data-spec=") == charts
    assert body.count("<svg") == drawn
    assert said in body
    assert f">forescale {' '.join(map(str, words))}</pre>" in body
    assert not re.search(r"""(src|href)=["'](?!#)""", body)
    assert library
    for line in ran.out.split("\n\n")[0].splitlines():
        assert all(part.strip() in body for part in line.split(" · "))


def test_a_page_goes_with_json(forescale, tmp_path):
    ran = forescale("project", *LAYOUT, "--json", f"--html={tmp_path / 'page.html'}")
    assert json.loads(ran.out)["strategy"]["tp"] == 2
    assert "--tp 2 --pp 4 --json</pre>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_two_documents_are_compared_under_names_that_stay_words(forescale, tmp_path):
    one, other, page = (tmp_path / name for name in ("a.json", "<b>.json", "page.html"))
    one.write_text(forescale("project", *LAYOUT, "--json").out, encoding="utf-8")
    other.write_text(forescale("project", *SIZED, "--tp", 4, "--json").out, encoding="utf-8")
    assert forescale("compare", one, other, "--html", page).code == 0
    text = page.read_text(encoding="utf-8").partition("<noscript>")[0]
    assert text.count("data-spec=") == 2
    assert "&lt;b&gt;.json" in text
    assert "<b>" not in text


@pytest.mark.parametrize("words", [("project", *LAYOUT), ("search", *SIZED), ("memory", *LAYOUT)])
def test_a_place_that_takes_no_file_is_one_sentence(forescale, tmp_path, words):
    ran = forescale(*words, "--html", tmp_path / "none" / "page.html")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: cannot write")
    assert ran.err.count("\n") == 1


def test_a_page_ends_in_html(forescale, tmp_path):
    ran = forescale("project", *LAYOUT, "--html", tmp_path / "page.pdf")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    error = ran.error
    assert (error.code, error.key, error.value, error.allowed) == (
        "wrong_suffix", "--html", "page.pdf", (".html",)
    )  # fmt: skip
    assert not list(tmp_path.iterdir())
