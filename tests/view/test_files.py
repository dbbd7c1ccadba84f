from __future__ import annotations

import builtins
import json
from xml.etree import ElementTree

import pytest
from tests.view.test_bars import CHART

from forescale.errors import SpecError
from forescale.view.files import SUFFIXES, write_chart


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_chart_is_written_as_its_name_ends(tmp_path, suffix):
    file = tmp_path / f"chart{suffix}"
    write_chart(CHART, file)
    content = file.read_bytes()
    if suffix == ".json":
        assert json.loads(content) == CHART.spec()
    elif suffix == ".svg":
        words = [
            each.text for each in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text")
        ]
        assert {"Memory of <a model>", "100 OOM", "device: 80 GiB", "weights"} <= set(words)
    elif suffix == ".png":
        assert content.startswith(b"\x89PNG")
    else:
        assert b"data-spec" in content


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"ends in \.html, \.json, \.svg, \.png; got a\.gif"):
        write_chart(CHART, tmp_path / "a.gif")


def test_a_picture_without_its_renderer_names_the_extra_and_leaves_no_file(tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == "vl_convert":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SpecError, match=r"forescale\[pictures\]"):
        write_chart(CHART, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())
