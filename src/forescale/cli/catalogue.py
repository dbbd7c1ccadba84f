"""`forescale catalogue`: what is known by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from forescale.cli.console import console, print_json
from forescale.cli.help import Commands
from forescale.cli.options import JsonFlag
from forescale.errors import SpecError, shown

SCHEMA = "forescale.catalogue/1"
catalogue_app = Commands(
    help="List the models, devices, clusters and frameworks known by name.", no_args_is_help=True
)
Filter = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="Only names that contain it.", show_default=False)
]


@catalogue_app.command("models")
def models_command(
    *,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", help="Only names that contain it; or a file that has a model.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List models, or describe the model of a file."""
    from forescale.cli.render.catalogue import model_rows

    _show("models", model_rows(text or ""), text, as_json=as_json)


@catalogue_app.command("devices")
def devices_command(*, text: Filter = None, as_json: JsonFlag = False) -> None:
    """List devices: peak rates, memory, and what their efficiencies are fitted to.

    kernels: measured on the device; generation: on another device of its generation; runs: whole training runs only;
    priors: not measured.
    """
    from forescale.cli.render.catalogue import device_rows

    _show("devices", device_rows(text or ""), text, as_json=as_json)


@catalogue_app.command("clusters")
def clusters_command(*, text: Filter = None, as_json: JsonFlag = False) -> None:
    """List clusters: nodes, network tiers, and what the efficiencies of their devices are fitted to.

    A short name such as h100, 4090 or v5p works wherever a cluster is named, if it can mean only one of them.
    """
    from forescale.cli.render.catalogue import cluster_rows

    _show("clusters", cluster_rows(text or ""), text, as_json=as_json)


@catalogue_app.command("frameworks")
def frameworks_command(
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME[@RELEASE]]", help="One of them, field by field.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List training frameworks, or one with all it does by default and what it can be told."""
    from forescale.catalogue.frameworks import load_framework
    from forescale.cli.render import catalogue

    if name is None:
        _show("frameworks", catalogue.framework_rows(), as_json=as_json)
        return
    framework = load_framework(name)
    if as_json:
        print_json({"schema": SCHEMA, "framework": asdict(framework)})
        return
    console().print(catalogue.framework_view(framework))


def _show(kind: str, rows: list[dict[str, object]], text: str | None = None, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, kind: rows})
        return
    if text is not None and not rows:
        raise SpecError(f"no name of {kind} contains {shown(text)}; forescale catalogue {kind} lists all")
    from forescale.cli.render.catalogue import catalogue_view

    console().print(catalogue_view(kind, rows))
