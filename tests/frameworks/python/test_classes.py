"""Methods of classes, match statements, unknown loops and paths are followed where a reader asks for it."""

import pytest

from forescale.frameworks.python.module import World
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Opaque


class Recorder:
    """A framework of which nothing is known but the calls that are made of it."""

    package = "some.frame"
    closed = ()

    def __init__(self):
        self.calls = []

    def call(self, call, owner):
        self.calls.append(call.name)
        return MISSING

    def default(self, owner, name):
        return MISSING


@pytest.fixture
def follow(tmp_path):
    """Follow a file with classes opened; return its names and the calls in it."""

    def call(text, *, opens=True, **others):
        for name, content in {"file": text, **others}.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        world = World(Recorder(), Frame)
        world.opens_classes = opens
        module = world.module(tmp_path / "file.py")
        frame = Frame(module, {})
        frame.body(module.tree.body)
        return frame.scope, world.hooks.calls

    return call


SIZES = """class Base:
    factor = 2
    def __init__(self, width):
        self.width = width
    @property
    def double(self):
        return self.width * self.factor
    @staticmethod
    def plain(a):
        return a + 1
    @classmethod
    def wide(cls):
        return cls(100)

class Sizes(Base):
    def __init__(self, width, depth=3):
        super().__init__(width)
        self.depth = depth
    def area(self):
        return self.double * self.depth
"""


@pytest.mark.parametrize(
    ("line", "x"),
    [
        ("x = Sizes(5).area()", 30),
        ("x = Sizes(width=5, depth=1).double", 10),
        ("x = Sizes.wide().depth", 3),
        ("x = Base.plain(4)", 5),
        ("x = Sizes(1).factor + Base.factor", 4),
        ("s = Sizes(5)\ns.depth = 10\nx = s.area()", 100),
    ],
)
def test_objects_have_the_fields_and_methods_of_their_class(follow, line, x):
    assert follow(f"{SIZES}\n{line}\n")[0]["x"] == x
    assert follow(f"{SIZES}\n{line}\n", opens=False)[0].get("x") != x or "factor" in line


def test_a_dataclass_is_completed_by_its_post_init(follow):
    text = (
        "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    rank: int = 8\n    alpha: int = 0\n"
        "    def __post_init__(self):\n        self.alpha = 2 * self.rank\nx = Settings(rank=16).alpha\n"
    )
    assert follow(text)[0]["x"] == 32


def test_an_object_of_another_module_is_made_once(follow):
    text = "from conf import cfg\ndef f():\n    from conf import cfg\n    cfg.batch = 4\nf()\nx = cfg.batch\n"
    assert follow(text, conf="class Conf:\n    batch = 1\ncfg = Conf()\n")[0]["x"] == 4


def test_a_field_that_is_set_to_what_is_not_known_loses_its_default(follow):
    text = "class A:\n    bits = 4\n    def __init__(self):\n        self.bits = ask()\nx = A().bits\n"
    assert isinstance(follow(text)[0]["x"], Opaque)


@pytest.mark.parametrize(
    ("value", "x"), [("'a'", 1), ("'b'", 2), ("'c'", 2), ("None", 3), ("7", 4), ("2 if zero else 1", 5)]
)
def test_a_case_is_chosen_by_its_pattern(follow, value, x):
    text = (
        "zero = 0\nmatch VALUE:\n    case 'a':\n        x = 1\n    case 'b' | 'c':\n        x = 2\n    case None:\n"
        "        x = 3\n    case 1 if not zero:\n        x = 5\n    case _:\n        x = 4\n"
    )
    assert follow(text.replace("VALUE", value))[0]["x"] == x


def test_both_sides_of_a_case_that_is_not_known_are_in_doubt(follow):
    names, calls = follow("match ask():\n    case 'a':\n        first()\n    case [b]:\n        second()\n")
    assert {"first", "second"} <= set(calls)
    names, _ = follow("x = 1\nmatch ask():\n    case 'a':\n        x = 2\n")
    assert isinstance(names["x"], Opaque)


def test_a_loop_over_what_is_not_known_is_followed_once(follow):
    names, calls = follow(
        "n = 0\nfor item in ask():\n    n += 1\n    train(item)\nwhile more():\n    again()\n"
    )
    assert {"train", "again"} <= set(calls)
    assert isinstance(names["n"], Opaque)
    assert "train" not in follow("for item in ask():\n    train(item)\n", opens=False)[1]


def test_a_return_within_such_a_loop_leaves_the_result_open(follow):
    text = "def f():\n    for item in ask():\n        return 1\n    return 2\nx = f()\n"
    assert isinstance(follow(text)[0]["x"], Opaque)


def test_what_is_raised_after_a_return_that_is_not_known_is_not_raised(follow):
    text = "def f():\n    if ask():\n        return 1\n    raise ValueError('no')\nx = f()\n"
    assert follow(text)[0]["x"] == 1


def test_a_function_within_another_calls_itself(follow):
    text = (
        "def f(n):\n    def g(m):\n        return 1 if m < 2 else m * g(m - 1)\n    return g(n)\nx = f(4)\n"
    )
    assert follow(text)[0]["x"] == 24


def test_texts_are_joined_to_paths(follow, tmp_path):
    names, _ = follow(
        "import os\nhere = __file__\nx = os.path.join(os.path.dirname(here), 'a') / 'b.yaml'\n"
        "y = (x.parent.name, x.stem, x.suffix, x.parents[1].resolve().joinpath('c'))\n"
    )
    assert names["x"] == f"{tmp_path}/a/b.yaml"
    assert names["y"] == ("a", "b", ".yaml", f"{tmp_path}/c")
