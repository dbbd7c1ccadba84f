"""The learner's section: what scripts/learn.py writes is current, and every picture of a page exists."""

import re

from scripts.book import PICTURES, SCRIPTS

from scripts import learn


def test_the_formulas_of_the_pictures_are_those_of_the_engine() -> None:
    """Fails after a change of a formula: `python scripts/learn.py` writes them anew."""
    assert learn.DATA.read_text("utf-8") == learn.data()


def test_the_summary_is_what_the_engine_projects() -> None:
    """Fails after a change of a projection: `python scripts/learn.py` writes it anew."""
    assert learn.SUMMARY.read_text("utf-8") == learn.summary()


def test_recipes_take_the_bytes_of_the_playbook() -> None:
    """Table "FP8 pretraining": 16, 16, 7 and 6 bytes; 20 with fp32 gradients next to those in bf16."""
    totals = {recipe.name: learn.counted(recipe).total for recipe in learn.RECIPES}
    names = (
        "bf16, fp32 gradients",
        "bf16, bf16 gradients",
        "Transformer Engine",
        "FP8-LM O3",
        "nanotron FP8",
    )
    assert [totals[name] for name in names] == [20.0, 16.0, 16.0, 7.0, 6.0]


def test_every_picture_of_the_book_is_defined_and_loaded() -> None:
    """Scripts of the page are those of the folder, the core first."""
    page = (PICTURES / "index.html").read_text("utf-8")
    scripts = SCRIPTS.findall(page)
    assert sorted(scripts) == sorted(path.name for path in PICTURES.glob("*.js"))
    assert scripts[0] == "core.js"
    defined = {
        name
        for path in PICTURES.glob("*.js")
        for name in re.findall(r'Learn\.define\("(\w+)"', path.read_text())
    }
    book = "".join(path.read_text("utf-8") for path in (learn.ROOT / "docs" / "learn").glob("*.md"))
    for text in (page, book):
        assert set(re.findall(r'data-picture="(\w+)"', text)) == defined
