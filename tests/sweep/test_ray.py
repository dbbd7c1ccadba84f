from __future__ import annotations

import sys

import pytest
from tests.errors import raises
from tests.sweep.questions import grid

from forescale.errors import ForescaleError
from forescale.sweep import Ray, run
from forescale.sweep.executors import answer_at
from forescale.version import __version__


def test_a_node_with_another_version_is_refused():
    (question,) = grid(devices=[8]).asked
    assert answer_at(__version__, question, ("devices",))["status"] == "ok"
    with pytest.raises(ForescaleError, match=f"this node has forescale {__version__}"):
        answer_at("999.0", question, ("devices",))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises(ForescaleError, "extra_missing --executor ray"):
        run(grid(devices=[8, 16]), executor=Ray())
