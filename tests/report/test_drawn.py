from __future__ import annotations

import re
from xml.etree import ElementTree

from forescale.catalogue.clusters import load_cluster
from forescale.report.drawn import placement
from forescale.spec import Layout

SVG = "{http://www.w3.org/2000/svg}"


def drawn(layout, devices):
    root = ElementTree.fromstring(placement(layout, load_cluster("h100-sxm", devices)))
    texts = [item.text for item in root.iter(f"{SVG}text")]
    filled = [item for item in root.iter(f"{SVG}rect") if item.get("fill") != "currentColor"]
    return texts, filled


def test_an_axis_says_which_tiers_it_crosses():
    texts, filled = drawn(Layout(tp=8, pp=2, dp_shard=2), 32)
    assert "tp 8, tensor parallel: all within nvlink" in texts
    assert any(re.match("dp 2, data parallel: all within infiniband", text) for text in texts)
    assert "node 3" in texts
    assert len(filled) == 8 + 2 + 2


def test_ranks_beyond_the_drawing_are_counted():
    texts, _ = drawn(Layout(tp=8, pp=4, dp_shard=8), 256)
    assert "192 further devices not drawn" in texts
    assert any("pp 4" in text and text.endswith("3 not drawn") for text in texts)


def test_an_axis_over_nodes_says_how_many_share_one():
    texts, _ = drawn(Layout(dp_shard=32), 32)
    assert "dp 32, data parallel: 8 within nvlink, all within infiniband" in texts
