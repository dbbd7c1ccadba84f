"""`forescale export`: a layout as a training framework's own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forescale.cli.console import show
from forescale.cli.emit import export_view, put, refuse_idle_force
from forescale.cli.formats import Answer
from forescale.cli.inputs import read_question, refuse_presets
from forescale.cli.options import Priced, complete_frameworks, grouped, output_option
from forescale.cli.output import OutputOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What is written, and where."""

    to: str = output_option(
        "Framework that the configuration is for, such as megatron, or torchtitan@0.3.",
        "NAME[@RELEASE]",
        complete=complete_frameworks,
        default=...,
    )
    output: Path | None = output_option(
        "Write there instead of to standard output: a file, or a folder where there are several.",
        "FILE|FOLDER",
    )
    force: bool = output_option("Replace what is there.", default=False)
    slurm: bool = output_option("Also write a script for sbatch around the launch line.", default=False)


@grouped
def export_command(
    *,
    target: TargetOptions,
    request: Priced,
    output: OutputOptions,
) -> None:
    """Write a layout as a framework's own configuration, and what it cannot say there."""
    from forescale.export import check_place, export, file_name

    refuse_idle_force(target.output, force=target.force)
    if target.output is not None:
        check_place(target.output, force=target.force, to=None if target.slurm else target.to)
    question = read_question(request, framework=target.to)
    refuse_presets(question, "export")
    name = file_name(target.output, target.to)
    result = export(question, target.to, slurm=target.slurm, name=name)
    if not output.is_text:
        show(Answer(view=lambda: export_view(result), document=result.to_json), output)
    if target.output is not None or output.is_text:
        put(result, target.output, force=target.force, aside=not output.is_text)
