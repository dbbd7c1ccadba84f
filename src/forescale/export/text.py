"""What stands around a configuration: the projection in comments or a README, and a script for Slurm."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from textwrap import wrap
from typing import Any

from forescale.catalogue.frameworks import load_framework
from forescale.frameworks.writers import writer_of
from forescale.frameworks.writing import PLACEHOLDER, Files, nodes_of
from forescale.io.line import project_line
from forescale.projection.result import MemorySummary, Projection
from forescale.question import IGNORED, Question
from forescale.spec.model import Images
from forescale.struct import Struct
from forescale.units import GIB, counted
from forescale.version import __version__

WIDTH = 110
README, SLURM = "README.md", "slurm.sh"
QUESTION, READ, LAUNCH = "question", "this file", "on each node"
COMMANDS = (QUESTION, READ, LAUNCH)
"""Facts that are commands: they stay on one line."""
SMALL_S, SMALL_BYTES = 1e-4, 1e6
"""Differences that the figures here do not show."""
FEW = 16
"""Pipeline stages whose memory is listed one by one."""


class Unsaid(Struct, frozen=True, kw_only=True):
    """A word of a question that its framework's configuration cannot say."""

    word: str
    """Where it stands in a plan, such as "strategy.kernels.dropout"."""
    wanted: object
    read: object
    """What the configuration means instead."""
    step_time_s: float | None
    """What the projected step changes by; None where this word changes something with the others only."""
    peak_bytes: float | None
    """What the projected peak of memory changes by."""


def headed(
    files: Files, question: Question, projection: Projection, unsaid: Sequence[Unsaid], together: Projection
) -> dict[str, str]:
    """Return the main file with the projection in comments at its head, or a README where it has no comments."""
    facts = _facts(files, question, projection, together)
    losses = _losses(question, projection, unsaid, together)
    if files.comment is None:
        return {README: _readme(question, facts, losses)}
    lines = [_title(question), ""]
    for name, text in facts:
        start = f"{name + ': ':<14}"
        lines += [start + text] if name in COMMANDS else _hanging(start, text)
    lines += ["", *[line for loss in losses for line in _hanging("", loss)]]
    comments = "".join(f"{files.comment} {line}".rstrip() + "\n" for line in lines)
    text = files.texts[files.main]
    first, newline, rest = text.partition("\n")
    if first.startswith("#!"):
        return {files.main: f"{first}{newline}{comments}{rest}"}
    return {files.main: comments + text}


def slurm_script(files: Files, question: Question) -> str:
    """Return a script for sbatch that starts the launch line once on every node."""
    nodes, per_node = nodes_of(question.cluster)
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={shlex.quote(question.model.name)}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}",
        "#SBATCH --exclusive",
        f"#SBATCH --time=24:00:00  # {PLACEHOLDER}: your limit, and --account and --partition if your site wants them",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_ADDR",
        f"srun bash -c {shlex.quote('export NODE_RANK=$SLURM_NODEID; exec ' + files.command)}",
    ]
    return "\n".join(lines) + "\n"


def _title(question: Question) -> str:
    cluster, framework = question.cluster, question.framework
    assert framework is not None
    return (
        f"{question.model.name} on {cluster.num_devices:,} x {cluster.name} for {framework.title}, written by "
        f"Forescale {__version__}"
    )


def _speed(question: Question, projection: Projection) -> str:
    step = projection.step_time
    tokens = projection.tokens_per_s_per_device
    return (
        f"step {step.expected:.3f} s ({step.low:.3g} to {step.high:.3g}, 80 % interval), "
        f"{tokens * question.cluster.num_devices:,.0f} tokens/s, {tokens:,.0f} per device, MFU {projection.mfu:.1%}"
    )


def _facts(
    files: Files, question: Question, projection: Projection, together: Projection
) -> list[tuple[str, str]]:
    """Return what is to know of the files: first what they are projected to do, then what was asked if that differs."""
    left = [note.text for note in projection.notes if note.topic == IGNORED]
    assumed = [note.text for note in projection.notes if note.topic != IGNORED]
    request = f"{_speed(question, projection)}; {_memory(projection.memory)}"
    written = f"{_speed(question, together)}; {_memory(together.memory)}"
    facts = [
        ("projected", _speed(question, together)),
        ("memory", _memory(together.memory)),
        *([("as asked", request)] if request != written else []),
        (QUESTION, f"forescale project {project_line(question, model=files.main)}"),
        (READ, f"forescale project {_reading(files, question)}"),
        (LAUNCH, files.command),
        *[("to know", note) for note in files.notes],
        *[("assumed", text) for text in assumed],
        *[("not carried over", text) for text in left],
    ]
    marked = sum(text.count(PLACEHOLDER) for text in files.texts.values())
    return [*facts, ("to fill in", f"{counted(marked, 'line')} marked {PLACEHOLDER}")] if marked else facts


def _memory(memory: MemorySummary) -> str:
    peaks = [f"{stage.peak_bytes / GIB:.1f}" for stage in memory.stages]
    stages = f"; by stage {' '.join(peaks)}" if 1 < len(peaks) <= FEW else ""
    return (
        f"{memory.verdict}, {memory.peak_bytes / GIB:.2f} of {memory.capacity_bytes / GIB:.2f} GiB on the fullest "
        f"device, {memory.peak_low_bytes / GIB:.1f} to {memory.peak_high_bytes / GIB:.1f} (80 % interval){stages}"
    )


def _reading(files: Files, question: Question) -> str:
    """Return the words after `forescale project` that read the files back."""
    parts = [files.main, "--cluster", question.cluster.name, "--devices", str(question.cluster.num_devices)]
    return shlex.join([*parts, *told_beside(files, question)])


def told_beside(files: Files, question: Question) -> list[str]:
    """Return the options that the files do not hold and are read with, besides the devices."""
    framework = question.framework
    assert framework is not None
    names: list[str] = []
    for name in files.beside:
        names += ["--config", name]
    if load_framework(writer_of(framework).frameworks[0]) != framework:  # which its files are read as
        names += ["--framework", framework.label]
    for name in files.left:
        value = getattr(question.workload, name)
        if isinstance(value, Images):
            names += [
                "--images",
                str(value.count),
                *(["--image-size", str(value.size)] if value.size else []),
            ]
        else:
            names += [f"--{name.replace('_', '-')}", str(value)]
    launched = {} if framework.allocator == question.layout.allocator else files.launched
    for name, value in launched.items():
        names += ["--set", f"strategy.{name}={value}"]
    return names


def _losses(
    question: Question, projection: Projection, unsaid: Sequence[Unsaid], together: Projection
) -> list[str]:
    """Return what could not be said and what that costs, a line each."""
    assert question.framework is not None
    title = question.framework.title
    if not unsaid:
        return [f"Could not be said in {title}: nothing."]
    lines = [f"Could not be said in {title}, and what the projection changes by:"]
    for item in unsaid:
        change = (
            "only together with the others"
            if item.step_time_s is None or item.peak_bytes is None
            else _change(item.step_time_s, item.peak_bytes)
        )
        lines.append(f"- {item.word} {words_of(item.wanted)}: runs with {words_of(item.read)}; {change}")
    seconds = together.step_time_s - projection.step_time_s
    size = together.memory.peak_bytes - projection.memory.peak_bytes
    sums = (
        math.fsum(item.step_time_s or 0.0 for item in unsaid),
        math.fsum(item.peak_bytes or 0.0 for item in unsaid),
    )
    adds = math.isclose(sums[0], seconds, abs_tol=SMALL_S) and math.isclose(
        sums[1], size, abs_tol=SMALL_BYTES
    )
    why = "" if adds else ", which is not their sum, as one changes what another costs"
    return [*lines, f"All together{why}: {_change(seconds, size)}; {_memory(together.memory)}."]


def _change(seconds: float, size: float) -> str:
    return f"step {seconds:+.4f} s, peak {size / GIB:+.3f} GiB" if seconds or size else "changes neither"


def words_of(value: Any) -> str:  # noqa: ANN401 (a field of a specification)
    """Return a value in words: of a specification what is not usual."""
    if is_dataclass(value) and not isinstance(value, type):
        unusual = [item for item in fields(value) if getattr(value, item.name) != _usual(item)]
        return ", ".join(f"{item.name} {words_of(getattr(value, item.name))}" for item in unusual) or "none"
    if isinstance(value, tuple):
        return " ".join(words_of(item) for item in value) or "none"
    return "none" if value is None else str(value)


def _usual(item: Field[Any]) -> object:
    """Return a field's default; a value that nothing equals where it has none."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def _readme(question: Question, facts: Sequence[tuple[str, str]], losses: Sequence[str]) -> str:
    lines = [f"# {_title(question)}", "", *[f"- {name}: {text}" for name, text in facts], "", *losses]
    return "\n".join(lines) + "\n"


def _hanging(start: str, text: str) -> list[str]:
    """Return lines of at most WIDTH, the later ones as deep as the first one's text."""
    return wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * max(len(start), 2)) or [start]
