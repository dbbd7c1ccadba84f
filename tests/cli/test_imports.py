"""What is loaded when: the library stays light, heavy packages come only with what needs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "matplotlib", "scipy", "sympy", "pint", "pyarrow", "ortools")
SEARCH = (
    "search", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "8", "--seq-len", "4096",
    "--global-batch-size", "8", "--fix", "cp=1",
)  # fmt: skip

PROJECT = (
    "project", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "16", "--seq-len", "4096",
    "--global-batch-size", "64", "--tp", "4", "--pp", "2",
)  # fmt: skip


def loaded(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('loaded', *sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_loads_nothing_else():
    assert not loaded("import forescale") & {*HEAVY, "numpy", "yaml", "rich", "typer"}


@pytest.mark.parametrize("module", ["forescale.search", "forescale.explain", "forescale.schedule"])
def test_the_core_needs_numpy_only(module):
    assert not loaded(f"import {module}") & {*HEAVY, "yaml", "rich", "typer"}


def test_the_core_of_one_layout_needs_no_arrays():
    assert not loaded("import forescale.project, forescale.presets, forescale.advise") & {
        *HEAVY,
        "numpy",
        "rich",
    }


def test_a_search_loads_nothing_heavy():
    assert not loaded(f"from forescale.cli.app import run\nassert run({list(SEARCH)}) == 0") & set(HEAVY)


def test_a_projection_loads_no_schedules_presets_or_readers():
    program = (
        f"import sys\nfrom forescale.cli.app import run\nassert run({list(PROJECT)}) == 0\n"
        "print('loaded', *(name for name in sys.modules if name.startswith('forescale.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = set(done.stdout.splitlines()[-1].split())
    left_out = (
        "forescale.schedule.draw",
        "forescale.schedule.library.breadth_first",
        "forescale.schedule.optimise",
    )
    assert not names & {
        *left_out,
        "forescale.memory.timeline",
        "forescale.memory.anchored",
        "forescale.io.bench",
        "forescale.frameworks.readers",
        "forescale.frameworks.megatron",
        "forescale.presets",
        "forescale.search.rank",
    }


PLAIN = {
    "project": (PROJECT, 320),
    "memory": (("memory", *PROJECT[1:]), 320),
    "check": (("check", *PROJECT[1:]), 325),
    "explain": (("explain", PROJECT[1], "mfu", *PROJECT[2:]), 415),
    "search": (SEARCH, 440),
    "catalogue": (("catalogue", "clusters"), 365),
    "formats": (("formats",), 518),
}
"""Command lines that need no parser of typer, and the most modules that each loads, of all packages."""
WITHOUT_ARRAYS = ("project", "memory", "check")


def modules_of(words: tuple[str, ...], code: int = 0) -> set[str]:
    """Return what a command line loads that ends with an exit code."""
    program = f"import sys\nfrom forescale.cli.app import run\nassert run({list(words)}) == {code}\nprint('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("command", PLAIN)
def test_a_plain_command_loads_few_modules_and_no_parser(command: str) -> None:
    words, most = PLAIN[command]
    names = modules_of(words)
    assert not names & {"typer", "click", "pydantic", "forescale.cli.typed", "yaml"}
    assert command not in WITHOUT_ARRAYS or not names & {"numpy", "rich"}
    assert len(names) <= most


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--version",), 0),
        ((*PROJECT, "--bogus", "3"), 2),
        ((*PROJECT, "--zero", "7"), 2),
        ((*PROJECT, "--cp", "3"), 2),
    ],
)
def test_versions_and_errors_load_neither_arrays_nor_rich(words: tuple[str, ...], code: int) -> None:
    assert not modules_of(words, code) & {"numpy", "rich"}


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("layout", [("--zero", "3"), ("--cp", "2"), ("--pp", "4"), ("--recompute", "full")])
def test_one_layout_needs_no_arrays(layout: tuple[str, ...], precision: str) -> None:
    words = [word for word in PROJECT if word not in ("--pp", "2")]
    assert "numpy" not in modules_of((*words, *layout, "--precision", precision))


def test_a_projection_reads_the_catalogue_from_its_prepared_file() -> None:
    assert not modules_of(PROJECT) & {
        "forescale.frameworks.huggingface",
        "forescale.graph.moe",
        "forescale.graph.recorded",
        "forescale.cost.measured",
        "forescale.schedule.simulation",
        "forescale.view.page",
        "importlib.resources",
        "tomllib",
        "zipfile",
    }


@pytest.mark.parametrize("command", ["project", "search", "explain"])
def test_help_of_a_command_loads_that_command_alone(command):
    program = (
        f"import sys\nfrom forescale.cli.app import run\nfrom forescale.cli.front import COMMANDS, MODULES\nassert run(['{command}', '--help']) == 0\n"
        "print('loaded', *(name for name in COMMANDS if f'forescale.cli.{MODULES.get(name, name)}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["loaded", command]
