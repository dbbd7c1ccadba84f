"""The pages name every option and every key there is."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.golden.documents import DOCUMENTS, GOLDEN

from forescale.spec import Layout
from scripts import api, book, pages

ROOT = Path(__file__).parents[2]


def options(command: dict, name: str = "") -> set[str]:
    below = {
        part
        for key, item in command.get("commands", {}).items()
        if key != "pipeline"
        for part in options(item, key)
    }
    flags = {
        flag for parameter in command["parameters"] for flag in parameter.split("/") if flag.startswith("--")
    }
    return below | flags


def test_every_option_is_described():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    frozen = json.loads((GOLDEN / "commands.json").read_text(encoding="utf-8"))
    missing = {flag for flag in options(frozen) if not re.search(rf"{re.escape(flag)}(?![-\w])", page)}
    assert missing <= {"--help", "--version", "--show-completion"}


def test_every_command_is_described():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    frozen = json.loads((GOLDEN / "commands.json").read_text(encoding="utf-8"))
    assert all(name in page for name in frozen["commands"])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_is_described(name):
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    shape = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    keys = {part.removesuffix("[]").replace("[]", "") for path in shape for part in path.split(".") if part}
    keys -= {item.name for item in fields(Layout)}  # the page refers to that of files, which is generated
    assert {key for key in keys if not re.search(rf"`[^`]*\b{re.escape(key)}\b[^`]*`", page)} == set()


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pages_show_commands_that_exist():
    frozen = json.loads((GOLDEN / "commands.json").read_text(encoding="utf-8"))["commands"]
    used = {
        name
        for page in pages.pages()
        for block in pages.blocks(page.read_text(encoding="utf-8").splitlines())
        for name in re.findall(r"^(?:\./scripts/)?forescale ([a-z]+)", block.source, flags=re.MULTILINE)
    }
    assert used
    assert used <= set(frozen)


@pytest.mark.parametrize("name", api.PAGES)
def test_pages_written_from_the_code_are_up_to_date(name):
    """Fails after a change of what they describe: `python scripts/api.py` writes them anew."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == api.PAGES[name]()


def test_every_page_is_in_the_book():
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    posixes = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md")]
    assert {name for name in posixes if f" {name}\n" not in listed and name.count("/") < 2} == set()


def test_links_to_what_lies_beside_docs_lead_there_in_the_book():
    assert (
        book.relinked("[a](../examples/plan.toml) [b](json.md)", "cli.md")
        == "[a](examples/plan.toml) [b](json.md)"
    )
    assert book.relinked("[a](../../examples/plan.toml)", "guides/fit.md") == "[a](../examples/plan.toml)"
    assert book.relinked("[a](docs/cli.md)", "CONTRIBUTING.md") == "[a](cli.md)"
    assert book.relinked("[a](../../docs/runs.md)", "data/published/README.md") == "[a](../../runs.md)"
    assert Path("examples/plan.toml") in book.beside()


def page_name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages.pages(), ids=page_name)
def test_what_a_page_shows_is_what_happens(page):
    """Fails after a change of what is printed: `python scripts/pages.py` writes it anew."""
    text = page.read_text(encoding="utf-8")
    with pages.workplace():
        assert pages.refreshed(text) == text


PAGE = """\
    forescale --version   # said

```
old
```

<!-- not run: a sketch -->
    forescale nosuchcommand [MODEL]

```toml
# own.toml
a = 1
```

```python
from pathlib import Path
print(Path("own.toml").read_text().splitlines()[1])
2 * 3  # > 5
```

```
old
```

Text with ```code``` and a formula:

    a = b
"""


def test_blocks_are_run_and_what_they_show_is_replaced():
    with pages.workplace():
        new = pages.refreshed(PAGE)
    assert "2 * 3  # > 6\n```\n\n```\na = 1\n```\n" in new
    assert "old" not in new
    assert "```\nforescale 0." in new
    assert "nosuchcommand" in new
    assert pages.CLOCK.sub("", "fits, in 0.91 s; so") == "fits, ; so"


def test_a_command_that_fails_is_an_error():
    with pages.workplace(), pytest.raises(RuntimeError, match="exit code 2: error: No such command"):
        pages.refreshed("\n    forescale nosuchcommand\n")


def test_what_is_not_run_says_why():
    for page in pages.pages():
        for block in pages.blocks(page.read_text(encoding="utf-8").splitlines()):
            assert not block.mark or len(block.reason) > 8
