"""`--help` on 80 columns: short, and no name cut."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from forescale.cli.advice import table
from forescale.cli.misspelt import examples_of, misspelt, translated
from forescale.cli.typed import application
from forescale.cli.words import values_of

PATHS = {*table()["commands"], "memory"}
SLOW = re.compile(
    r"^(serve|mcp|watch|bench|sweep|study|report|advise|trace|validate|calibrate|projection|pipeline (run|check)|formats)"
    r"|train\.|--deadline|--relax|16384"
)
"""Examples that serve, measure, search long or read a file of the user."""


def leaves(command, path=()):
    below = getattr(command, "commands", None)
    if below is None:
        return [(path, command)]
    return [leaf for name, item in below.items() for leaf in leaves(item, (*path, name))]


LEAVES = leaves(typer.main.get_command(application()))


def names_of(command):
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_no_name_is_cut_and_no_line_is_too_long(forescale, monkeypatch, path, command):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = forescale(*path, "--help"), forescale(*path, "--help-all")
    assert (short.code, whole.code) == (0, 0)
    assert max(map(len, whole.out.splitlines() + short.out.splitlines())) <= 80
    assert "…" not in re.sub(r"=…|\[…", "", whole.out)
    for flag in names_of(command):
        if flag.startswith("-"):
            assert re.search(rf"(?<![-\w]){re.escape(flag)}(?![-\w])", whole.out), flag
            positive = flag.replace("--no-", "--")
            assert re.search(rf"(?<![-\w]){re.escape(positive)}(?![-\w])", short.out), flag
    assert len(short.out.splitlines()) <= 90


@pytest.mark.parametrize("path", [" ".join(path) for path, _ in LEAVES])
def test_every_command_shows_questions_with_commands(forescale, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(forescale(*path.split(), "--help").out.replace(" \\\n", " ").split())
    shown = examples_of(path)
    assert shown
    for question, command in shown:
        assert f"{question} forescale {command}" in text


def commands():
    return sorted({command for path, _ in LEAVES for _, command in examples_of(" ".join(path))})


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_examples_have_these_options_and_values(command):
    words = shlex.split(command)
    assert misspelt(words) is translated(words) is None
    path = next(" ".join(words[:size]) for size in (2, 1) if " ".join(words[:size]) in PATHS)
    rest = words[len(path.split()) :]
    writes = {"-o", "--output", "--save"} & {*words}  # which typer checks
    assert writes or values_of("memory layout" if path == "memory" else path, rest) is not None


@pytest.mark.parametrize("command", [item for item in commands() if not SLOW.search(item)])
def test_the_commands_of_examples_answer(forescale, monkeypatch, tmp_path, command):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(examples)
    ran = forescale(*shlex.split(command))
    assert ran.code in (0, 3), ran.err


def test_a_command_alone_is_answered_with_an_example(forescale):
    for path in ("compare", "network", "export", "pipeline simulate"):
        assert f"For example: forescale {examples_of(path)[0][1]} (more: " in forescale(*path.split()).err


def test_rare_options_are_named_and_described_on_request(forescale, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = forescale("project", "--help").out, forescale("project", "--help-all").out
    assert "More (--help-all describes them):" in short
    assert "--recompute-layer-ids" in short
    assert "Under full, these layers" not in short
    assert re.search(r"--recompute-layer-ids 0,1,2,3\s+Under full, these layers", whole)


def test_the_list_of_commands_says_each_sentence_to_its_end(forescale):
    assert "..." not in forescale("--help").out.replace("[ARGS]...", "")
