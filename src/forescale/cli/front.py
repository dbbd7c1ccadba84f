"""All commands, and what the program prints without one: its help, its version, how to start; it loads nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence

from forescale.version import __version__

COMMANDS: dict[str, str] = {
    "project": "Project step time and memory of one layout.",
    "memory": "Project the memory of one layout, or compare layouts.",
    "search": "Find the best layouts: the whole legal space, ranked.",
    "export": "Write a layout as a framework's own configuration, and what it cannot say there.",
    "advise": "Find a layout step by step: what fits, then the batch, then throughput, with the numbers of each.",
    "fit": "Change a layout so that it fits or runs faster: single changes and pairs, ranked by the seconds they cost.",
    "check": "Check runs before they start; exit code 0 passes, 3 fails, 4 is illegal.",
    "diagnose": "Compare a measured run with what it should reach, and rank the causes of the difference.",
    "watch": "Follow the log of a running job: step time against the expected interval, drifts, restarts, days left.",
    "run": "Project a whole run: days on the calendar, failures, money, energy.",
    "sites": "Train on sites with slow links between them: the bandwidth that each use of their devices needs.",
    "sweep": "Explore designs: a full search at every point of a grid or sample of cluster and workload parameters.",
    "compare": "Compare two plans, projections or traces, or one model on several machines.",
    "explain": "Show how a number comes about: formula, inputs, units and source.",
    "report": "Search and write a report: headers, ranking with legend, details, slowest layouts, summary.",
    "study": "Compute a figure or table of a published analysis anew, and compare it with what the publication states.",
    "bench": "Measure on this machine what fits of a layout: its step, blocks, memory, kernels and messages.",
    "projection": "Primus' projection commands: memory or performance of an experiment, from --config alone.",
    "validate": "Project every run of a corpus and compare with what was measured.",
    "calibrate": "Calibrate to runs, kernels or collectives of your own; 3 to 5 runs are enough to start.",
    "catalogue": "List the models, devices, clusters and frameworks known by name.",
    "formats": "List the formats that can be read, or explain which of them a file is in and what is read of it.",
    "pipeline": "Pipeline schedules: build, check, time, draw and optimise.",
    "network": "Price every collective of a cluster by size and ranks: time, bus bandwidth, algorithm.",
    "trace": "Record the operators of a model from its own code, without weights or a GPU.",
    "serve": (
        "Serve a page: one form, and at once the projection, pictures, best layouts, explanations and launch files."
    ),
    "mcp": "Serve commands as tools of the Model Context Protocol, on standard input and output; nothing is written.",
}
"""Summary of every command or group of commands, in the order of the help."""
MODULES = {"fit": "advise", "formats": "recognise", "sites": "run"}
"""Modules of the commands that are not in the module of their own name."""
TEXT = "Project memory and step time of a training run and find its best layout, before running it."
OPTIONS = (
    ("--version", "Print the version and exit."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
    ("-h, --help", "Show this message and exit."),
)
STARTS = (
    (
        "Does it fit, and how fast is it?",
        "project llama-3.1-8b --cluster h100 --devices 8 --seq-len 8192 --global-batch-size 64 --zero 3",
    ),
    (
        "Which layout is best?",
        "search llama-3.1-70b --cluster h100 --devices 64 --seq-len 8192 --global-batch-size 256",
    ),
    (
        "How long does a run take, and what does it cost?",
        "run llama-3.1-8b --cluster h100 --devices 64 --global-batch-size 512 --tokens 1T --price 2.50",
    ),
)
"""What a newcomer may ask first."""
EXAMPLES = (
    *STARTS,
    ("It runs out of memory: what do I change?", "fit train.yaml --cluster h100 --devices 8"),
    (
        "Which machine is the fastest, which the cheapest?",
        "compare llama-3.1-8b --cluster h100,b200,mi300x --devices 64 --global-batch-size 512",
    ),
    (
        "Is tp 4 faster, or tp 8?",
        "compare llama-3.1-70b --cluster h100 --devices 64 --global-batch-size 256 --vary tp=4,8",
    ),
    (
        "What if the network were twice as fast?",
        "compare llama-3.1-8b --cluster h100 --nodes 2 --global-batch-size 64 --vary cluster.network.bandwidth=x1,x2",
    ),
    (
        "How many devices do I need? What is the longest sequence (--solve seq_len)?",
        "check llama-3.1-70b --cluster h100 --global-batch-size 64 --solve devices",
    ),
    (
        "What does a run of 30 days train, and what does its electricity cost?",
        "run llama-3.1-8b --cluster h100 --devices 64 --global-batch-size 512 --days 30 --electricity-price 0.10",
    ),
    (
        "My run reaches 31 % MFU: why?",
        "diagnose llama-3.1-8b --cluster h100 --devices 8 --global-batch-size 64 --zero 3 --measured mfu=31%",
    ),
    (
        "Why this number?",
        "explain llama-3.1-8b step_time.data_comm --cluster h100 --devices 64 --global-batch-size 64 --zero 3",
    ),
    ("Draw a pipeline schedule", "pipeline draw -s zbv --pp 4 -m 8"),
    (
        "Write a launch file",
        "export llama-3.1-8b --to torchtitan --cluster h100 --devices 8 --global-batch-size 64 --zero 3 -o llama.py",
    ),
)
"""What people ask, and the commands that answer it."""
WIDTH = 78
PACKAGES = ("numpy", "msgspec", "typer", "rich", "pyyaml", "torch", "transformers", "fastapi", "mcp")
"""Packages whose versions a report needs."""


def completes() -> bool:
    """Return whether a shell asks what may follow."""
    return "_FORESCALE_COMPLETE" in os.environ


def front(arguments: Sequence[str]) -> str | None:
    """Return the text for arguments without a command; None if there is a command."""
    if completes():
        return None
    if [*arguments] == ["--version"]:
        return f"forescale {__version__}\n"
    if sorted(arguments) == ["--json", "--version"]:
        return _environment()
    if [*arguments] in (["--help"], ["-h"]):
        return _help()
    return f"{_starts()}\n{_help()}" if not arguments else None


def _environment() -> str:
    """Return versions and platform as JSON, for reports."""
    import json
    import platform
    from importlib.metadata import PackageNotFoundError, version

    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    values = {"forescale": __version__, "python": platform.python_version(), "platform": platform.platform()}
    return json.dumps({**values, "packages": packages}, indent=2) + "\n"


def _starts() -> str:
    lines = [f"{question}\n    forescale {command}\n" for question, command in STARTS]
    return "Start with one of these:\n\n" + "\n".join(lines)


def _help() -> str:
    head = ("Usage: forescale [OPTIONS] COMMAND [ARGS]...", "", _wrapped(TEXT, "  "), "")
    parts = (*_section("Options", OPTIONS), "", *_section("Commands", [*COMMANDS.items()]), "", *_examples())
    return "\n".join((*head, *parts, ""))


def _examples() -> list[str]:
    """Return the section of examples, as the help of a command has it."""
    lines = ["Examples (more in forescale COMMAND --help):"]
    for question, command in EXAMPLES:
        lines += [f"  {question}", *continued(f"forescale {command}")]
    return lines


def continued(command: str, width: int = WIDTH) -> list[str]:
    """Return a command in lines of some columns that a shell reads as one; no option is apart from its value."""
    lines: list[str] = []
    line = ""
    for part in command.replace(" -", "\0-").split("\0"):
        indent = "      " if lines else "    "
        if line and len(indent) + len(line) + 1 + len(part) + len(" \\") > width:
            lines.append(f"{indent}{line} \\")
            line = part
        else:
            line = f"{line} {part}".strip()
    return [*lines, f"{'      ' if lines else '    '}{line}"]


def _section(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [
        f"{title}:",
        *(f"  {name:<{width}}  {_wrapped(text, ' ' * (width + 4)).lstrip()}" for name, text in rows),
    ]


def _wrapped(text: str, indent: str) -> str:
    """Return a text in lines of WIDTH columns; textwrap takes longer to load than this takes."""
    lines, line = [], ""
    for word in text.split():
        if line and len(indent) + len(line) + 1 + len(word) > WIDTH:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, indent + line])
