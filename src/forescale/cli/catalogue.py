"""`forescale catalogue`: what is known by name."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from forescale.cli.console import show
from forescale.cli.declare import CommandGroup, argument
from forescale.cli.formats import Answer
from forescale.cli.output import OutputOptions
from forescale.errors import unknown_name
from forescale.struct import asdict
from forescale.synonyms import list_called

SCHEMA = "forescale.catalogue/1"
_filter = partial(argument, "Only names that contain it.", "TEXT")


def _led(words: list[str], commands: Collection[str]) -> list[str]:
    """Return the words with the list before a name that it has, or in place of what others call it."""
    if not words or words[0] in commands or words[0][:1] == "-":
        return words
    named = list_called(words[0])
    return [_list_of(words[0]), *words] if named is None else [named, *words[1:]]


catalogue_app = CommandGroup("List the models, devices, clusters and frameworks known by name.", _led)


@catalogue_app.command("models")
def models_command(
    *,
    text: str | None = argument("Only names that contain it; or a file that has a model.", "TEXT"),
    output: OutputOptions,
) -> None:
    """List models, or describe the model of a file."""
    from forescale.cli.render.catalogue import model_rows

    _show("models", model_rows(text or ""), text, output=output)


@catalogue_app.command("devices")
def devices_command(*, text: str | None = _filter(), output: OutputOptions) -> None:
    """List devices: peak rates, memory, and what their efficiencies are fitted to.

    kernels: measured on the device; generation: on another device of its generation; runs: whole training runs only;
    priors: not measured.
    """
    from forescale.cli.render.catalogue import device_rows

    _show("devices", device_rows(text or ""), text, output=output)


@catalogue_app.command("clusters")
def clusters_command(*, text: str | None = _filter(), output: OutputOptions) -> None:
    """List clusters: nodes, network tiers, and what the efficiencies of their devices are fitted to.

    A short name such as h100, 4090 or v5p works wherever a cluster is named, if it can mean only one of them.
    A file with base = "h100" and what differs, such as devices_per_node = 4 and network = "25 GB/s" for each device,
    describes one of your own.
    """
    from forescale.cli.render.catalogue import cluster_rows

    _show("clusters", cluster_rows(text or ""), text, output=output)


@catalogue_app.command("frameworks")
def frameworks_command(
    *,
    name: str | None = argument("One of them, field by field.", "[NAME[@RELEASE]]"),
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
