from __future__ import annotations

import builtins
import json
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.errors import raises
from tests.view.test_bars import CHART

from forescale.errors import SpecError
from forescale.view import page
from forescale.view.page import SUFFIXES, write_chart


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_chart_is_written_as_its_name_ends(tmp_path, suffix):
    file = tmp_path / f"chart{suffix}"
    write_chart(CHART, file)
    content = file.read_bytes()
    if suffix == ".json":
        assert json.loads(content) == CHART.spec()
    elif suffix == ".svg":
        texts = [
            item.text for item in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text")
        ]
        assert {"Memory of <a model>", "100 OOM", "device: 80 GiB", "weights"} <= set(texts)
    elif suffix == ".png":
        assert content.startswith(b"\x89PNG")
    else:
        assert b"data-spec" in content


def test_another_ending_is_refused(tmp_path):
    with raises(SpecError, "wrong_suffix a chart"):
        write_chart(CHART, tmp_path / "a.gif")


@pytest.mark.parametrize("lacking", ["vl_convert", "font_source_sans_pro", "fontTools"])
def test_a_picture_without_what_draws_it_names_the_extra_and_leaves_no_file(tmp_path, monkeypatch, lacking):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == lacking:
            raise ModuleNotFoundError(name, name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with raises(SpecError, "extra_missing .svg"):
        write_chart(CHART, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


def test_a_picture_carries_the_glyphs_of_all_its_text(tmp_path):
    from fontTools.ttLib import TTFont

    write_chart(CHART, tmp_path / "a.svg")
    content = (tmp_path / "a.svg").read_text(encoding="utf-8")
    parts = "".join(text for text in ElementTree.fromstring(content).itertext() if "@font-face" not in text)
    carried = re.findall(r"font-weight:(\w+);src:url\(data:font/woff;base64,([^)]+)\)", content)
    assert [weight for weight, _ in carried] == ["normal", "bold"]
    for _, face in carried:
        known = TTFont(BytesIO(b64decode(face))).getBestCmap()
        assert {ord(letter) for letter in parts if not letter.isspace()} <= known.keys()


PICTURES = sorted((Path(__file__).parents[2] / "docs").rglob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_pictures_of_the_book_carry_their_glyphs(path):
    content = path.read_text(encoding="utf-8")
    assert content.count("@font-face") == 2
    assert f'font-family="{page.FONT}"' in content
