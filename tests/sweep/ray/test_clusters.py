"""Sweeps on a Ray cluster, which starts a dozen processes of its own."""

from __future__ import annotations

import pytest
from tests.errors import raises
from tests.sweep.killed import goes_on_after_a_kill
from tests.sweep.questions import grid

from forescale.errors import ForescaleError
from forescale.sweep import Local, Ray, run

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_ray_finds_the_same_table(tmp_path):
    question = grid(devices=[8, 16, 32], nic_bandwidth=["x1", "x2", "x4", "x8"])
    here = run(question, executor=Local(jobs=1), output=tmp_path / "here")
    there = run(question, executor=Ray(address="local", jobs=2), output=tmp_path / "ray")
    assert there.points == here.points
    assert there.table.read_bytes() == here.table.read_bytes()


def test_a_cluster_that_does_not_answer_is_one_sentence():
    with raises(ForescaleError, "not_found Ray cluster at 'no address' (Invalid address format: no address)"):
        run(grid(devices=[8, 16]), executor=Ray(address="no address"))


def test_a_killed_sweep_goes_on_to_the_same_parquet(tmp_path):
    goes_on_after_a_kill(
        tmp_path, Ray(address="local", jobs=2), "--executor", "ray", "--ray-address", "local"
    )
