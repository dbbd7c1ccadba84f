"""README.md: its length, and its figures of accuracy, which are those of docs/accuracy.md."""

from __future__ import annotations

from pathlib import Path

from scripts.accuracy import with_accuracy

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_read_in_minutes():
    assert len(README.splitlines()) <= 150


def test_its_figures_are_those_of_the_page():
    assert with_accuracy(README, (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")) == README


def test_its_links_lead_to_files():
    import re

    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []
