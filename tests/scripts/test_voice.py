"""Phrases that Forescale's texts must not use: source, documents and page templates are searched for them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PHRASES = (
    r"Forescale tells",
    r"what is not evaluated cannot be better",
    r"\bcan be told\b",
    r"read back to the bit",
    r"makes my layout fit",
    r"single changes and pairs, by seconds",
    r"per GiB freed",
    r"restored from what was measured",
    r"cut to the devices at hand",
    r"on their own terms",
    r"What is not said has",
    r"\b8 (cases|runs) (of|in) 10\b",
    r"fits for sure",
    r"wrong question is one sentence",
    r"\bis one sentence\b",
    r"where nothing else is said",
    r"of what --json prints",
    r"which no option stands before",
    r"\b(is|are) no multiple\b",
    r"\bmust be given\b",
    r"is as if it were there",
    r"! may not fit",
    r"that are as good as the last row",
    r"if nothing failed",
    r"Layouts none beats",
    r"That every save stops training",
    r"those that take a node out of service",
    r"none in particular",
    r"Pixels of a side",
    r"nothing is left to time",
    r"is held up elsewhere",
    r"all that formulas know",
    r"\b(does|do) not divide by\b",
    r"\bit is no (?!(longer|slower|faster|more|less|other)\b)\w+",
    r"whole quotient",
)
SUFFIXES = {".py", ".md", ".html", ".js", ".json", ".toml", ".css"}
_SEAM = re.compile(r"""["']\s*\n\s*[rf]?["']|\s*\n\s*(#\s|\*\s)?""")
"""Where a text goes on in another line: of a string in parts, of a paragraph."""


def texts() -> dict[str, str]:
    """Return what is searched, each line of a text joined to the next, by the file's name."""
    files = [ROOT / "README.md"]
    for folder in ("src", "docs"):
        files += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    return {
        str(path.relative_to(ROOT)): re.sub(r" +", " ", _SEAM.sub(" ", path.read_text("utf-8")))
        for path in files
    }


@pytest.fixture(scope="module")
def searched() -> dict[str, str]:
    return texts()


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_text_uses(phrase, searched):
    pattern = re.compile(phrase, re.IGNORECASE)
    uses = [
        f"{name}: …{text[max(hit.start() - 40, 0) : hit.end() + 20]}…"
        for name, text in searched.items()
        for hit in pattern.finditer(text)
    ]
    assert not uses, "\n".join(uses)


def test_phrases_are_seen_over_the_ends_of_lines():
    joined = re.sub(r" +", " ", _SEAM.sub(" ", 'msg = (\n    f"8 is no "\n    f"multiple of 3"\n)'))
    assert re.search(r"\bis no multiple\b", joined)
