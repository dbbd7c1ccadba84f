"""Names that other files define: those of the checkout that a file lies in, those beside it, and no others."""

import pytest
from tests.errors import raises
from tests.frameworks.python.test_run import Plain

from forescale.errors import ReaderError
from forescale.frameworks.python.module import World
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import Opaque


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


CHECKOUT = {
    "repo/src/some/frame/__init__.py": "from .base import TWO",
    "repo/src/some/frame/base.py": "from some.frame.deep import three\nONE, TWO = 1, 2\ndef total(): return three() + TWO",
    "repo/src/some/frame/deep/__init__.py": "from .inner import *",
    "repo/src/some/frame/deep/inner.py": "def three(): return 3",
}  # fmt: skip


def value(path, name, folders=()):
    return World(Plain(), Frame, folders).module(path).lookup(name)


def called(path, text, folders=()):
    module = World(Plain(), Frame, folders).module(path)
    frame = Frame(module, {})
    frame.body(module.tree.body)
    return frame.scope["x"] if text is None else frame.scope[text]


@pytest.mark.parametrize(
    ("place", "text", "x"),
    [
        ("repo/src/some/frame/mine.py", "from some.frame.base import total\nx = total()", 5),
        ("repo/examples/mine.py", "from some.frame import TWO\nx = TWO", 2),
        ("repo/src/some/frame/deep/mine.py", "from ..base import total as both\nx = both()", 5),
        ("repo/examples/mine.py", "import some.frame.base as base\nx = base.TWO", 2),
        ("repo/examples/mine.py", "from helper import four\nx = four()", 4),
        ("repo/examples/mine.py", "def f():\n    from some.frame.deep import inner\n    return inner.three()\nx = f()", 3),
    ],
)  # fmt: skip
def test_imports_are_followed(place, text, x, tmp_path):
    lay(tmp_path, {**CHECKOUT, place: text, "repo/examples/helper.py": "def four(): return 4"})
    assert called(tmp_path / place, None) == x


def test_a_file_elsewhere_needs_the_checkout_named(tmp_path):
    lay(tmp_path, {**CHECKOUT, "mine/one.py": "from some.frame.base import total\nx = total()\ny = total"})
    path = tmp_path / "mine" / "one.py"
    assert isinstance(called(path, "y"), Opaque)
    assert called(path, "x", (tmp_path / "repo",)) == 5


def test_nothing_above_the_repository_is_looked_at(tmp_path):
    lay(tmp_path, {"some/frame/base.py": "TWO = 2", "repo/.git/HEAD": "", "repo/one.py": "from some.frame.base import TWO"})  # fmt: skip
    assert isinstance(value(tmp_path / "repo" / "one.py", "TWO"), Opaque)


def test_modules_that_import_each_other_end(tmp_path):
    lay(tmp_path, {"a.py": "from b import x", "b.py": "from a import x"})
    assert isinstance(value(tmp_path / "a.py", "x"), Opaque)


def test_a_file_that_is_no_python_is_named_with_its_line(tmp_path):
    lay(tmp_path, {"a.py": "from b import x", "b.py": "x = 1\ny = = 2"})
    with raises(ReaderError, "cannot_parse Python"):
        value(tmp_path / "a.py", "x")


def test_syntax_of_a_later_python_is_named_as_that(tmp_path):
    lay(tmp_path, {"a.py": "x = f'{'"})
    with raises(ReaderError, "cannot_parse Python") as caught:
        value(tmp_path / "a.py", "x")
    assert "reads no newer syntax" in str(caught.value)


def test_dots_lead_nowhere_outside_the_checkout(tmp_path):
    lay(
        tmp_path, {**CHECKOUT, "other/secret.py": "x = 1", "other/in/here/mine.py": "from ...secret import x"}
    )
    assert isinstance(value(tmp_path / "other" / "in" / "here" / "mine.py", "x"), Opaque)
    lay(
        tmp_path,
        {"repo/src/some/secret.py": "x = 1", "repo/src/some/frame/mine.py": "from ..secret import x"},
    )
    assert isinstance(value(tmp_path / "repo" / "src" / "some" / "frame" / "mine.py", "x"), Opaque)


def test_files_of_a_repository_are_found_from_its_folders(tmp_path):
    lay(tmp_path, {"repo/.git/HEAD": "", "repo/scripts/utils/sizes.py": "x = 3", "repo/scripts/configs/mine.py": "from utils.sizes import x\nfrom ..utils.sizes import x as y"})  # fmt: skip
    mine = tmp_path / "repo" / "scripts" / "configs" / "mine.py"
    assert (value(mine, "x"), value(mine, "y")) == (3, 3)
