"""The cost models of a question reach whatever answers a part of it."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.small import cluster, dense, workload

import forescale
from forescale.cost.select import Costs
from forescale.project import memory_timeline
from forescale.spec import Strategy

SOURCES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for path in Path(forescale.__file__).parent.rglob("*.py")
}
WITHOUT = {
    ("presets/default.py", "project"),  # a preset states its own costs
    ("validation/needed.py", "project"),  # asks for memory alone, before a run has costs
    ("schedule/library/v_limited.py", "search"),  # another function of that name
}


def takers():
    """Return the names of functions with an optional argument `costs`."""
    for tree in SOURCES.values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                optional = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                if any(argument.arg == "costs" and default is not None for argument, default in optional):
                    yield node.name


def test_nothing_that_takes_cost_models_goes_without():
    names = set(takers())
    assert {"project", "search", "remedies", "memory_timeline", "explain"} <= names
    left = set()
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            given = {keyword.arg for keyword in node.keywords}  # None stands for **
            if node.func.id in names and not given & {"costs", None}:
                where = path.relative_to(Path(forescale.__file__).parent).as_posix()
                left.add((where, node.func.id))
    assert left == WITHOUT


def test_a_timeline_is_of_the_clock_that_is_asked_for():
    asked = (dense(4), cluster(8), Strategy(dp_shard=4, pp=2, zero=1), workload())
    slow = memory_timeline(*asked, costs=Costs(clock_hz=0.1e9))
    assert slow.step_time_s > 2.0 * memory_timeline(*asked).step_time_s
