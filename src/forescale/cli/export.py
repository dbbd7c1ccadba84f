"""`forescale export`: a layout as a training framework's own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forescale.cli.console import print_json
from forescale.cli.emit import put
from forescale.cli.inputs import read_question, refuse_presets
from forescale.cli.options import JsonFlag, Priced, complete_frameworks, grouped, output_option


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What is written, and where."""

    to: str = output_option(
        "Framework that the configuration is for, such as megatron, or torchtitan@0.2.",
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
    asked: Priced,
    as_json: JsonFlag = False,
) -> None:
    """Write a layout as a framework's own configuration, and what it cannot say there."""
    from forescale.export import check_place, export

    if target.output is not None and not as_json:
        check_place(target.output, force=target.force)
    question = read_question(asked, framework=target.to)
    refuse_presets(question, "export")
    name = None if target.output is None else target.output.name
    result = export(question, target.to, slurm=target.slurm, name=name)
    if as_json:
        print_json(result.to_json())
        return
    put(result, target.output, force=target.force)
