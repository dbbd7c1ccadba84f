"""Options that a command does not have, known from a table."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scripts.flags import TABLE, written

from forescale.cli.misspelt import misspelt


def test_the_table_is_that_of_the_commands() -> None:
    assert TABLE.read_text(encoding="utf-8") == written()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("project", "m", "--tpp", "2"), "--tpp"),
        (("project", "m", "--tpp=2"), "--tpp"),
        (("project", "--plan", "--tpp"), None),  # the value of an option is none
        (("project", "--plan=p.toml", "--tpp"), "--tpp"),
        (("project", "m", "--json", "--tpp"), "--tpp"),
        (("project", "m", "--", "--tpp"), None),
        (("project", "m", "--tpp", "--help"), None),
        (("project", "--help-all"), None),
        (("project", "--plan=", "--tpp"), "--tpp"),
        (("pipeline", "draw", "1f1b", "--rank", "4"), "--rank"),
        (("--tpp", "project"), None),
        ((), None),
    ],
)
def test_first_option_that_is_unknown(arguments: tuple[str, ...], option: str | None) -> None:
    text = misspelt(arguments)
    assert (
        text is None if option is None else text is not None and text.startswith(f"No such option: {option};")
    )


def test_a_command_that_is_none() -> None:
    assert misspelt(("projct", "--tpp")) == (
        "No such command 'projct'; did you mean forescale project or forescale projection? (see forescale --help)"
    )
    assert misspelt(("plan",)) == "No such command 'plan'; forescale search does that (see forescale --help)"
    assert misspelt(("zzz",)) == "No such command 'zzz' (see forescale --help)"


def test_the_error_loads_neither_arrays_nor_parsers() -> None:
    code = (
        "import sys\nsys.argv[1:] = ['project', 'm', '--tpp', '2']\nfrom forescale.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, [name for name in ('numpy', 'typer', 'rich', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
    assert done.stderr.startswith("error: No such option: --tpp; did you mean --tp or --pp")
