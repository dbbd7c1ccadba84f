"""Questions in files: a plan that says everything, read back equal in every field."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.io.measurements import read_costs
from forescale.io.plan import CostPlan, Plan, build_plan, plan_values, read_plan
from forescale.question import Question
from forescale.syntax import dump_toml
from forescale.written import write_text

MHZ = 1e6


def read_question(path: str | Path, *, overrides: Iterable[str] = ()) -> Question:
    """Return the question that a plan file asks, after `overrides` such as "strategy.tp=4".

    Raises
    ------
    ReaderError
        If the file, or one that it names, cannot be read.
    SpecError
        If anything in it is unknown, missing, of the wrong type or impossible.
    """
    return asked(read_plan(path, overrides=overrides))


def write_question(question: Question, path: str | Path) -> None:
    """Write a question as a plan file that `read_question` turns into an equal one.

    Raises
    ------
    SpecError
        If a part of it has no form in a file: fits or measurements that were read from none, a framework or rules that
        have no name.
    """
    values = plan_values(plan_of(question))
    if asked(build_plan(values, where=str(path))) != question:
        msg = f"{path}: the question cannot be written so that it is read back equal"
        raise SpecError(msg)
    write_text(Path(path), dump_toml(values))


def asked(plan: Plan) -> Question:
    """Return the question of a plan; reads the files of its cost models."""
    return Question(
        model=plan.model,
        cluster=plan.cluster,
        workload=plan.workload,
        strategy=plan.strategy,
        framework=plan.framework,
        space=plan.space,
        costs=read_costs(plan),
        preset=plan.preset,
        objective=plan.objective,
        max_memory=plan.max_memory,
        safe=plan.safe,
    )


def plan_of(question: Question) -> Plan:
    """Return the plan that asks a question."""
    return Plan(
        model=question.model,
        cluster=question.cluster,
        workload=question.workload,
        strategy=question.strategy,
        framework=question.framework,
        space=question.space,
        cost=_cost(question.costs),
        preset=question.preset,
        objective=question.objective,
        max_memory=question.max_memory,
        safe=question.safe,
    )


def _cost(costs: Costs) -> CostPlan:
    return CostPlan(
        compute=costs.compute,
        device_clock_mhz=None if costs.clock_hz is None else _mhz(costs.clock_hz),
        calibration=costs.calibration_file,
        measurements=costs.measurement_files,
    )


def _mhz(clock_hz: float) -> float:
    """Return the MHz that are read back as these Hz, to the last bit where there are any."""
    near = clock_hz / MHZ
    tried = (near, math.nextafter(near, 0.0), math.nextafter(near, math.inf))
    return next((mhz for mhz in tried if mhz * MHZ == clock_hz), near)
