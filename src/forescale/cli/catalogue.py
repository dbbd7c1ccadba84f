"""`forescale catalogue`: what is known by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from forescale.cli.console import show
from forescale.cli.formats import Answer
from forescale.cli.help import CommandGroup, Commands
from forescale.cli.options import grouped
from forescale.cli.output import OutputOptions
from forescale.errors import unknown_name

SCHEMA = "forescale.catalogue/1"


class CatalogueGroup(CommandGroup):
    """Lists, of which the one that has a name is shown where the name alone is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (whichever click typer has)
        """Put the list before a name that it has."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [_list_of(args[0]), *args]
        return super().parse_args(ctx, args)


catalogue_app = Commands(
    cls=CatalogueGroup,
    help="List the models, devices, clusters and frameworks known by name.",
    no_args_is_help=True,
)
Filter = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="Only names that contain it.", show_default=False)
]


@catalogue_app.command("models")
@grouped
def models_command(
    *,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", help="Only names that contain it; or a file that has a model.", show_default=False
        ),
    ] = None,
    output: OutputOptions,
) -> None:
    """List models, or describe the model of a file."""
    from forescale.cli.render.catalogue import model_rows

    _show("models", model_rows(text or ""), text, output=output)


@catalogue_app.command("devices")
@grouped
def devices_command(*, text: Filter = None, output: OutputOptions) -> None:
    """List devices: peak rates, memory, and what their efficiencies are fitted to.

    kernels: measured on the device; generation: on another device of its generation; runs: whole training runs only;
    priors: not measured.
    """
    from forescale.cli.render.catalogue import device_rows

    _show("devices", device_rows(text or ""), text, output=output)


@catalogue_app.command("clusters")
@grouped
def clusters_command(*, text: Filter = None, output: OutputOptions) -> None:
    """List clusters: nodes, network tiers, and what the efficiencies of their devices are fitted to.

    A short name such as h100, 4090 or v5p works wherever a cluster is named, if it can mean only one of them.
    """
    from forescale.cli.render.catalogue import cluster_rows

    _show("clusters", cluster_rows(text or ""), text, output=output)


@catalogue_app.command("frameworks")
@grouped
def frameworks_command(
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME[@RELEASE]]", help="One of them, field by field.", show_default=False),
    ] = None,
    output: OutputOptions,
) -> None:
    """List training frameworks, or one with all it does by default and the options that it supports."""
    from forescale.catalogue.frameworks import load_framework
    from forescale.cli.render import catalogue

    if name is None:
        _show("frameworks", catalogue.framework_rows(), output=output)
        return
    framework = load_framework(name)
    answer = Answer(
        view=lambda: catalogue.framework_view(framework),
        document=lambda: {"schema": SCHEMA, "framework": asdict(framework)},
    )
    show(answer, output)


def _list_of(name: str) -> str:
    """Return the list that has a name, in full or short; models for others."""
    from forescale.catalogue.clusters import is_cluster_name
    from forescale.catalogue.frameworks import framework_names

    if is_cluster_name(name):
        return "clusters"
    return "frameworks" if name.partition("@")[0] in framework_names() else "models"


def _show(
    kind: str, rows: list[dict[str, object]], text: str | None = None, *, output: OutputOptions
) -> None:
    from forescale.cli.render.catalogue import catalogue_view

    if text is not None and not rows and output.format != "json":
        raise unknown_name(f"name of {kind}", text, (), f"forescale catalogue {kind} lists all")
    answer = Answer(
        view=lambda: catalogue_view(kind, rows),
        document=lambda: {"schema": SCHEMA, kind: rows},
        rows=lambda: rows,
    )
    show(answer, output)
