"""The command line and its JSON are frozen: what these files list changes only on purpose.

After a wanted change, `python -m tests.golden.update` writes the files anew; its diff belongs into the review.
"""

from __future__ import annotations

import json

import pytest
from tests.golden.documents import DOCUMENTS, GOLDEN, commands, frozen, layout_shapes


def golden(name):
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def test_commands_and_options_are_those_listed():
    assert commands() == golden("commands.json")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_have_the_shape_listed(forescale, name):
    ran = forescale(*DOCUMENTS[name])
    assert ran.code == 0, ran.err
    assert frozen(json.loads(ran.out)) == golden(f"{name}.json")


def test_layouts_in_documents_have_the_keys_listed():
    assert layout_shapes() == golden("layout.json")


def test_version(forescale):
    from forescale.version import __version__

    assert forescale("--version").out == f"forescale {__version__}\n"


def test_help_names_every_command(forescale):
    ran = forescale("--help")
    assert ran.code == 0
    for name in ("project", "memory", "search", "compare", "explain", "validate", "catalogue", "pipeline"):
        assert name in ran.out
