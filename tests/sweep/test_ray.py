from __future__ import annotations

import sys

import pytest
from tests.errors import raises
from tests.sweep.questions import grid

from forescale.errors import ForescaleError
from forescale.sweep import Local, Ray, run
from forescale.sweep.executors import answer_at
from forescale.version import __version__


@pytest.mark.filterwarnings("ignore")
def test_ray_finds_the_same_table(tmp_path):
    pytest.importorskip("ray")
    question = grid(devices=[8, 16, 32], nic_bandwidth=["x1", "x2", "x4", "x8"])
    here = run(question, executor=Local(jobs=1), output=tmp_path / "here")
    there = run(question, executor=Ray(address="local", jobs=2), output=tmp_path / "ray")
    assert there.rows == here.rows
    assert there.table.read_bytes() == here.table.read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_does_not_answer_is_one_sentence():
    pytest.importorskip("ray")
    with raises(ForescaleError, "not_found Ray cluster at 'no address' (Invalid address format: no address)"):
        run(grid(devices=[8, 16]), executor=Ray(address="no address"))


def test_a_node_with_another_version_is_refused():
    (question,) = grid(devices=[8]).asked
    assert answer_at(__version__, question, ("devices",))["status"] == "ok"
    with pytest.raises(ForescaleError, match=f"this node has forescale {__version__}"):
        answer_at("999.0", question, ("devices",))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises(ForescaleError, "extra_missing --executor ray"):
        run(grid(devices=[8, 16]), executor=Ray())
