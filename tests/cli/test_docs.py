"""The pages name every option and every key there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.golden.documents import DOCUMENTS, GOLDEN

ROOT = Path(__file__).parents[2]


def options(command: dict, name: str = "") -> set[str]:
    below = {
        part
        for key, item in command.get("commands", {}).items()
        if key != "pipeline"
        for part in options(item, key)
    }
    own = {
        flag for parameter in command["parameters"] for flag in parameter.split("/") if flag.startswith("--")
    }
    return below | own


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
    assert {key for key in keys if not re.search(rf"`[^`]*\b{re.escape(key)}\b[^`]*`", page)} == set()


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_shows_commands_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    frozen = json.loads((GOLDEN / "commands.json").read_text(encoding="utf-8"))["commands"]
    used = re.findall(r"^(?: *\./scripts/|\$ )?forescale ([a-z]+)", readme, flags=re.MULTILINE)
    assert used
    assert set(used) <= set(frozen)
