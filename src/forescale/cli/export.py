"""`forescale export`: a layout as a training framework's own configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forescale.cli.console import print_json, say
from forescale.cli.options import (
    ClusterOptions,
    CostOptions,
    JsonFlag,
    LayoutOptions,
    ModelArgument,
    PlanOptions,
    RunOptions,
    complete_frameworks,
    grouped,
    output_option,
)
from forescale.errors import SpecError

if TYPE_CHECKING:
    from forescale.export import Export
    from forescale.projection.result import Projection
    from forescale.question import Question


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitOptions:
    """What becomes of the best layout of a search."""

    emit: str | None = output_option(
        "Write the best layout for this framework; limits the search as --for does.",
        "NAME[@RELEASE]",
        complete=complete_frameworks,
    )
    output: Path | None = output_option("Where --emit writes: a file, or a folder.", "FILE|FOLDER")
    force: bool = output_option("Replace what is there.", default=False)

    def refuse(self, why: str) -> None:
        """Refuse it where there is no one best layout."""
        if self.emit is not None:
            raise SpecError(f"--emit {why}")


def emitted(question: Question, best: Projection, options: EmitOptions) -> Export:
    """Return the best layout of a search as --emit asks for it."""
    from forescale.export import export

    asked = replace(question, strategy=best.strategy, workload=best.workload)
    return export(asked, options.emit)


@grouped
def export_command(
    *,
    model: ModelArgument = None,
    target: TargetOptions,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
    cost: CostOptions,
    as_json: JsonFlag = False,
) -> None:
    """Write a layout as a framework's own configuration, and what it cannot say there."""
    from forescale.cli.inputs import read_question, refuse_presets
    from forescale.export import export

    question = read_question(model, plan, cluster, run, layout, cost, framework=target.to)
    refuse_presets(question, "export")
    result = export(question, target.to, slurm=target.slurm)
    if as_json:
        print_json(result.to_json())
        return
    put(result, target.output, force=target.force)


def put(result: Export, output: Path | None, *, force: bool) -> None:
    """Print the one file of an export, or write it where it is asked for and say what comes next."""
    from forescale.export import place

    if output is None:
        if len(result.texts) > 1:
            msg = f"it is {len(result.texts)} files ({', '.join(result.texts)}); give a folder with --output"
            raise SpecError(msg)
        say(result.texts[result.main].rstrip("\n"))
        return
    place(result, output, force=force)
    folder = output if len(result.texts) > 1 else output.parent
    lost = f"{len(result.unsaid)} words could not be said" if result.unsaid else "everything could be said"
    say(f"wrote {output} ({lost}; its head says more); on every node: cd {folder} && {result.launch}")
