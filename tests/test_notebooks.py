"""The notebooks in examples/ run from the top to the end and show what is stored in them."""

from __future__ import annotations

import pytest
from scripts.notebooks import NOTEBOOKS, executed, read


@pytest.mark.usefixtures("usual_frameworks")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_stored(path):
    stored = read(path)
    assert stored["nbformat"] == 4
    shown = executed(stored, path.name)
    for cell, now in zip(stored["cells"], shown["cells"], strict=True):
        assert cell == now, f"run `python -m scripts.notebooks`: {cell['source']}"
    outputs = [item for cell in stored["cells"] for item in cell.get("outputs", ())]
    assert len(outputs) >= 4
    assert any("<strong>" in line for item in outputs for line in item["data"].get("text/html", ()))
