from __future__ import annotations

import base64
import gzip
import json
import re
from html import unescape
from html.parser import HTMLParser

from tests.view.test_bars import CHART

from forescale.view.page import LIBRARY, bullets, drawing, figure, page, table, text

WHOLE = page("A <page>", figure(CHART), table("Sizes", ("name", "GiB"), [("a <b>", "1.0")]), bullets(["<i>"]))


class Tags(HTMLParser):
    """Checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_whole_and_names_are_escaped():
    tags = Tags()
    tags.feed(WHOLE)
    assert tags.open == []
    assert "<page>" not in WHOLE.partition("<script")[0]
    assert "a <b>" not in WHOLE
    assert "<i>" not in WHOLE.partition("<script")[0]


def test_a_page_loads_nothing_and_holds_what_draws():
    assert not re.search(r"""(src|href)=["'](?!#)""", WHOLE)
    packed = re.search(r'id="library">([^<]+)<', WHOLE)[1]
    library = gzip.decompress(base64.b64decode(packed)).decode()
    assert all(text(f"vendor/{name}") in library for name in LIBRARY)
    assert len(WHOLE) < 400_000


def test_a_page_without_charts_has_no_script():
    plain = page("Words", bullets(["one"]), drawing("<svg></svg>", "A drawing"))
    assert "<script" not in plain
    assert len(plain) < 10_000


def test_a_figure_holds_its_specification_and_says_what_it_is():
    result = figure(CHART)
    spec = json.loads(unescape(re.search(r'data-spec="([^"]+)"', result)[1]))
    assert spec == CHART.spec()
    assert 'aria-label="Memory of &lt;a model&gt;. fullest device"' in result


def test_words_stand_at_the_left_and_numbers_at_the_right():
    result = table("Sizes", ("name", "GiB", "verdict"), [("a", "1", "FITS")], words=(0, 2))
    assert re.findall(r'<td( class="number")?>', result) == ["", ' class="number"', ""]
