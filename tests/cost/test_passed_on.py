"""The cost models of a question reach whatever answers a part of it."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.small import cluster, dense, workload

import forescale
from forescale.cost.select import Costs
from forescale.project import memory_timeline
from forescale.spec import Layout


def takers(trees):
    """Return the names of functions whose first argument is a question, or may be."""
    for tree in trees:
        for node in tree.body:
            first = node.args.args[:1] if isinstance(node, ast.FunctionDef) else []
            if any("Question" in ast.unparse(item.annotation or ast.Constant("")) for item in first):
                yield node.name


def test_within_the_package_questions_are_passed_on_whole():
    """Parts are for callers from outside: nothing here takes a question apart, and forgets one of them."""
    sources = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in Path(forescale.__file__).parent.rglob("*.py")
    }
    names = set(takers(sources.values()))
    assert {"project", "memory_timeline", "explain", "advise", "prepare", "project_as"} <= names
    parts = {"cluster", "workload", "strategy", "costs"}
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                apart = parts & {keyword.arg for keyword in node.keywords}
                assert not apart or node.func.id == "question_of", (path, node.lineno, node.func.id)


def test_a_timeline_is_of_the_clock_that_is_asked_for():
    question = (dense(4), cluster(8), Layout(dp_shard=4, pp=2, zero=1), workload())
    slow = memory_timeline(*question, costs=Costs(clock_hz=0.1e9))
    assert slow.step_time_s > 2.0 * memory_timeline(*question).step_time_s
