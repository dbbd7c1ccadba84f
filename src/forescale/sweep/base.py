"""What the points of a sweep start from: the base question, and how it is searched."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any, cast

from forescale.cost.select import Costs
from forescale.errors import ForescaleError, SpecError
from forescale.io.plan import Plan, build_plan
from forescale.io.space import held_space
from forescale.search.incumbents import Objective
from forescale.spec.space import Space
from forescale.sweep.axes import Axes, Setting
from forescale.sweep.draft import Draft, Factor
from forescale.sweep.parameters import CLUSTER, DEVICES, MODEL, NODES, SCALING, parameter
from forescale.sweep.source import Source
from forescale.sweep.values import factor_of, value_of, words_of
from forescale.units import parse

PRICE = "price_per_device_hour"
_PLAN_SECTIONS = ("model", "cluster", "devices", "nodes", "workload", "precision", "cost")


def read_base(source: Source, axes: Axes) -> tuple[Draft, Costs]:
    """Return the question that points start from, and the cost models that price all of them."""
    values = _plan_values(source, axes)
    try:
        plan = build_plan(values, where=source.where, folder=source.folder)
        costs = _costs(source, plan)
    except ForescaleError as error:
        raise source.located(error) from error
    draft = Draft(model=plan.model, num_devices=plan.cluster.num_devices)
    draft.place(plan.cluster)
    draft.base_devices = plan.cluster.num_devices
    draft.num_nodes = values.get("nodes")
    draft.workload = asdict(plan.workload)
    if SCALING in source.values:
        scaling, value = _setting(source, SCALING, source.values[SCALING], (SCALING,))
        source.load(lambda: scaling.apply(draft, value), (SCALING,))
    draft.held = {name: words_of(given) for name, given in source.section("space").items()}
    for name, words in draft.held.items():
        held_space(Space(), {name: words}, plan.model, where=f"{source.at('space', name)}, space")
    return draft, costs


def read_price(source: Source) -> tuple[Setting, ...]:
    """Return the price of a device and hour, where the file says one."""
    price = source.section("search").get(PRICE)
    return () if price is None else (_setting(source, PRICE, price, ("search", PRICE)),)


def read_objective(source: Source) -> Objective:
    """Return what a search minimises."""
    given = source.section("search").get("objective", "step_time")
    if given not in ("step_time", "peak_memory"):
        where = source.at("search", "objective")
        msg = f"{where}: objective must be step_time or peak_memory, got {given!r}"
        raise SpecError(msg)
    return cast("Objective", given)


def read_max_memory(source: Source) -> float | Factor | None:
    """Return the bytes that a layout may need, or their share of the capacity."""
    given = source.section("search").get("max_memory")
    if given is None:
        return None
    where = source.at("search", "max_memory")
    try:
        found = factor_of(given) or parse(given, "byte")
    except (SpecError, TypeError) as error:
        allowed = "a size such as '70 GiB' or a factor of the capacity such as 'x0.9'"
        msg = f"{where}: max_memory is {allowed}; got {given!r}"
        raise SpecError(msg) from error
    if (found.by if isinstance(found, Factor) else found) <= 0.0:
        msg = f"{where}: max_memory must be greater than 0, got {given!r}"
        raise SpecError(msg)
    return found


def _plan_values(source: Source, axes: Axes) -> dict[str, Any]:
    """Return the base as a plan file; what is only varied has its first value there."""
    values = {key: deepcopy(source.values[key]) for key in _PLAN_SECTIONS if key in source.values}
    values.setdefault("workload", {})
    first = _first_values(axes)
    sized = "devices" in values or "nodes" in values or _sized(values.get("cluster"))
    for name in (MODEL, CLUSTER, *(() if sized else (DEVICES, NODES))):
        if name in first:
            values.setdefault(name, first[name])
    for name in ("seq_len", "global_batch_size"):
        for spelt in (name, f"workload.{name}"):
            if spelt in first:
                values["workload"].setdefault(name, first[spelt])
    return values


def _costs(source: Source, plan: Plan) -> Costs:
    if plan.cost.measurements:
        where = source.at("cost", "measurements")
        msg = f"{where}: measurements are of one device, and a sweep changes it; leave them out of [cost]"
        raise SpecError(msg)
    return plan.costs()


def _setting(source: Source, name: str, given: object, path: tuple[str, ...]) -> Setting:
    where = source.at(*path)
    kind = parameter(name, (), where=where)
    return kind, value_of(kind, given, where=where)


def _first_values(axes: Axes) -> dict[str, Any]:
    """Return the first value of everything that is set, for the question that points start from."""
    settings = [setting for case in axes.cases[:1] for setting in case.settings]
    settings += [(axis.parameter, axis.values[0]) for axis in axes.grid]
    settings += [(item.parameter, item.at(0.0)) for item in axes.ranges]
    return {kind.name: value for kind, value in settings if not isinstance(value, Factor)}


def _sized(cluster: object) -> bool:
    return isinstance(cluster, Mapping) and "num_devices" in cluster
