"""`forescale search`: the best layouts of a model on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forescale.cli.console import console, print_json
from forescale.cli.options import (
    OUTPUT,
    ClusterOptions,
    JsonFlag,
    ModelArgument,
    PlanOptions,
    RunOptions,
    grouped,
)
from forescale.errors import SpecError

if TYPE_CHECKING:
    from forescale.search import Space
    from forescale.spec.model import Model

SEARCH = "Search"
PLACED = frozenset({"tp", "cp", "pp", "dp_replicate", "dp_shard"})
"""Degrees that must divide the devices."""


@grouped
def search_command(
    *,
    model: ModelArgument = None,
    cluster: ClusterOptions,
    run: RunOptions,
    objective: Annotated[
        Literal["step_time", "peak_memory"],
        typer.Option("--objective", help="What to minimise.", rich_help_panel=SEARCH),
    ] = "step_time",
    top: Annotated[
        int, typer.Option("--top", metavar="N", help="Layouts to show.", rich_help_panel=SEARCH)
    ] = 10,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix",
            metavar="NAME=VALUE",
            help="Hold one dimension, such as tp=8, zero=1,2 or recompute=full. Repeatable.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory", metavar="SIZE", help="Peak per device, such as 70GiB.", rich_help_panel=SEARCH
        ),
    ] = None,
    plan: PlanOptions,
    as_json: JsonFlag = False,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the layouts shown.", rich_help_panel=OUTPUT),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="FILE", help="Write the layouts shown.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Find the best layouts: the whole legal space, ranked."""
    from forescale.cli.inputs import read_question
    from forescale.search import Space, search
    from forescale.units import parse

    limit = None if max_memory is None else _positive("--max-memory", parse(max_memory, "byte"), max_memory)
    _positive("--top", top, top)
    question = read_question(model, plan, cluster, run)
    question.refuse_presets("search")
    asked = question.plan
    base = Space() if asked.strategy is None else Space(overlap=asked.strategy.overlap)
    space = fixed_space(base, fix or (), asked.model, num_devices=asked.cluster.num_devices)
    result = search(
        asked.model,
        asked.cluster,
        asked.workload,
        space=space,
        objective=objective,
        top=top,
        max_memory=limit,
    )
    best = tuple(replace(one, notes=(*one.notes, *question.notes)) for one in result.best)
    result = replace(result, best=best)
    if csv is not None or parquet is not None:
        from forescale.cli.table_files import rows_of, write_csv, write_parquet

        rows = rows_of(result)
        if csv is not None:
            write_csv(rows, csv)
        if parquet is not None:
            write_parquet(rows, parquet)
    if as_json:
        print_json(result.to_json())
        return
    from forescale.cli.render.search import search_view

    console().print(search_view(result))


def _positive(option: str, value: float, given: object) -> float:
    if value <= 0:
        msg = f"{option} must be greater than 0, got {given}"
        raise SpecError(msg)
    return value


def fixed_space(space: Space, fixes: Sequence[str], model: Model, *, num_devices: int) -> Space:
    """Return `space` with every `name=value` (or `name=value,value`) held."""
    from forescale.errors import UnknownKeyError
    from forescale.search.space import NAMES

    held: dict[str, Any] = {}
    for text in fixes:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            msg = f"--fix takes NAME=VALUE, such as tp=8; got {text!r}"
            raise SpecError(msg)
        if name not in NAMES:
            raise UnknownKeyError(name, "--fix", NAMES)
        held[name] = tuple(
            chain.from_iterable(_values(name, text.strip(), model) for text in values.split(","))
        )
        if name in PLACED and all(num_devices % degree for degree in held[name]):
            msg = f"--fix {text}: {num_devices} devices are no multiple of {values}"
            raise SpecError(msg)
    return replace(space, **held)


def _values(name: str, text: str, model: Model) -> tuple[object, ...]:
    """Return what one value of a dimension means; `selective` is every such policy that a search tries."""
    from forescale.search.space import ORDERS, default_recompute

    words: dict[str, dict[str, tuple[object, ...]]] = {
        "sp": {"true": (True,), "false": (False,)},
        "cp_kind": {kind: (kind,) for kind in ("all_gather", "ring", "ulysses")},
        "recompute": {
            kind: tuple(policy for policy in default_recompute(model) if policy.granularity == kind)
            for kind in ("none", "selective", "full")
        },
        "axis_order": {"-".join(order): (order,) for order in ORDERS},
    }
    if name in words:
        if text not in words[name]:
            msg = f"--fix {name} takes {', '.join(words[name])}; got {text!r}"
            raise SpecError(msg)
        return words[name][text]
    least = 0 if name == "zero" else 1
    if not text.isdigit() or int(text) < least or (name == "zero" and int(text) > 3):
        allowed = "0, 1, 2 or 3" if name == "zero" else "a whole number of 1 or more"
        msg = f"--fix {name} takes {allowed}; got {text!r}"
        raise SpecError(msg)
    return (int(text),)
