"""Lines of Python followed as syntax: what is known is computed, what is not is doubted, nothing runs without end."""

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.python.module import World
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped


class Plain:
    """A framework of which nothing is known."""

    package = "some.frame"
    closed = ()

    def call(self, call, owner):
        return MISSING

    def default(self, owner, name):
        return MISSING


def names(tmp_path, text):
    path = tmp_path / "file.py"
    path.write_text(text)
    world = World(Plain(), Frame)
    module = world.module(path)
    frame = Frame(module, {})
    frame.body(module.tree.body)
    return frame.scope


@pytest.mark.parametrize(
    ("text", "x"),
    [
        ("x = 4 * 1024 + 7 // 2 - 5 % 3", 4097),
        ("a, (b, c) = 1, [2, 3]\nx = (c, b, a)", (3, 2, 1)),
        ("x = [['e'] + ['d'] * 2] + [['d']] * 2", [["e", "d", "d"], ["d"], ["d"]]),
        ("x = {(1, 1): None, (4, 2): 'm'}[(4, 2)]", "m"),
        ("a = {'p': 1}\nx = {**a, 'q': 2}", {"p": 1, "q": 2}),
        ("x = 3 if not 0 and 'a' in ['a'] else 4", 3),
        ("x = 1\nfor i in range(3):\n    if i == 2:\n        break\n    x += i", 2),
        ("x = [i * j for i in (1, 2) for j in range(3) if j]", [1, 2, 2, 4]),
        ("x = {k: len(v) for k, v in {'a': [1, 2]}.items()}", {"a": 2}),
        ("def f(a, b=2, *rest, c=3, **more):\n    return (a, b, rest, c, more)\nx = f(1, 5, 6, c=7, d=8)", (1, 5, (6,), 7, {"d": 8})),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nx = f(5)", 120),
        ("q, r = divmod(61, 16)\nx = f'{q} and {r}'", "3 and 13"),
        ("x = 1 < 2 <= 2 != 3", True),
        ("x = 'a,b'.split(',')[-1]", "b"),
        ("def f():\n    try:\n        raise ValueError('no')\n    except ValueError:\n        return 5\nx = f()", 5),
        ("import copy\na = [1]\nx = copy.deepcopy(a)\na.append(2)", [1]),
        ("x = isinstance('a', str) and not isinstance(1, (str, list))", True),
        ("from typing import cast\nx = cast(int, 4)", 4),
        ("f = lambda a: a + 1\nx = f(2)", 3),
        ("f = lambda a, b, c=0: [a, b, c]\nx = partial(partial(f, 1), c=3)(2)", [1, 2, 3]),
        ("import functools\nf = lambda a, b=0: [a, b]\nx = functools.partial(f, b=1)(2, b=5)", [2, 5]),
        ("from enum_of import Scope\nx = [str(each.name) for each in [Scope.attn, Scope['mlp']]]", ["attn", "mlp"]),
    ],
)  # fmt: skip
def test_what_is_known_is_computed(text, x, tmp_path):
    assert names(tmp_path, text)["x"] == x


def test_classes_of_the_file_have_their_defaults(tmp_path):
    text = """
class Base:
    a: int = 1
    b: list = field(default_factory=list)

class Config(Base):
    c: int
    a = 2

one, two = Config(c=3), Config(c=4)
one.b.append(5)
x = (one.a, one.b, one.c, two.b, isinstance(one, Base), isinstance(one, str), getattr(one, "a", 9))
"""
    assert names(tmp_path, text)["x"] == (2, [5], 3, [], True, False, 2)


@pytest.mark.parametrize(
    "text",
    [
        "if unknown():\n    x = 1\nelse:\n    x = 2",
        "x = 1\nif unknown():\n    x = 2",
        "def f():\n    if unknown():\n        return 1\n    return 2\nx = f()",
        "x = [1] * 10**9",
        "x = 'a' * 99999999",
        "x = 2**64",
        "x = unknown() + 1",
        "x = 1 / 0",
        "x = [1, 2]['a']",
        "while unknown():\n    x = 1",
        "x = list(range(10**9))",
        "x = int('9' * 5000)",
        "x = f'{unknown()}'",
    ],
)
def test_what_depends_on_what_is_not_known_is_not_known(text, tmp_path):
    assert isinstance(names(tmp_path, text)["x"], Opaque)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\nif unknown():\n    x = 1",
        "x = 1\nif unknown():\n    raise ValueError()",
        "def f():\n    if unknown():\n        return 1\n    return 1\nx = f()",
        "x = 1 if unknown() else 1",
        "x = 1 or unknown()",
    ],
)
def test_what_is_the_same_either_way_is_known(text, tmp_path):
    assert names(tmp_path, text)["x"] in (1, True)


def test_fields_that_nothing_made_are_parts_of_their_own(tmp_path):
    result = names(tmp_path, "cfg.model.size = 4\ny = cfg.model.other\nz = base().model\nz.size = 5")
    assert result["cfg"].fields["model"].fields["size"] == 4
    assert isinstance(result["y"], Call) and result["y"].idle
    assert result["z"].fields == {"size": 5} and not result["z"].known


def test_what_the_file_raises_is_told(tmp_path):
    with pytest.raises(Stopped, match="no such layout"):
        names(tmp_path, "x = 1\nif x == 1:\n    raise ValueError('no such layout')")


def test_loops_without_end_are_refused(tmp_path):
    turns = "for a in range(9999):\n    for b in range(9999):\n        x = a + b"
    with raises(ReaderError, "too_large it (line 3)"):
        names(tmp_path, turns)
