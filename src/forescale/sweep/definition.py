"""A sweep: one base question, what is varied about it, and the question of every point."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forescale import __version__
from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.io.space import held_space
from forescale.io.validation import build
from forescale.search.incumbents import Objective
from forescale.spec import Cluster, Model, Workload
from forescale.spec.space import Space
from forescale.sweep.axes import Axes, Point, Setting
from forescale.sweep.draft import Draft, Factor
from forescale.sweep.parameters import CLUSTER, MODEL
from forescale.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one point asks of the search, complete: all that a worker needs."""

    index: int
    shown: tuple[Any, ...]
    """Values of what is varied."""
    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    objective: Objective
    max_memory: float | None
    costs: Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A point that asks for what cannot be."""

    index: int
    shown: tuple[Any, ...]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture that a sweep file or `--plot` asks for."""

    kind: str
    x: str | None = None
    y: str | None = None
    value: str | None = None
    by: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Many questions that differ in a few parameters."""

    where: str
    """The file that it comes from, for messages."""
    name: str
    base: Draft
    always: tuple[Setting, ...]
    """What every point sets, whatever else it changes."""
    costs: Costs
    axes: Axes
    models: Mapping[str, Model]
    """Models by the names that are varied."""
    clusters: Mapping[str, Cluster]
    objective: Objective = "step_time"
    max_memory: float | Factor | None = None
    """Bytes per device, or a factor of its capacity."""
    plots: tuple[Plot, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    """The definition as it was written, without its pictures."""
    _questions: tuple[Question | Impossible, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Build the question of every point."""
        known: dict[str, Space] = {}
        asked = tuple(self._asked(point, known) for point in self.axes.points())
        object.__setattr__(self, "_questions", asked)

    def questions(self) -> tuple[Question | Impossible, ...]:
        """Return the question of every point; combinations that cannot be say why."""
        return self._questions

    def _asked(self, point: Point, known: dict[str, Space]) -> Question | Impossible:
        try:
            return self._question(point, known)
        except SpecError as error:
            return Impossible(index=point.index, shown=point.shown, problem=str(error))

    def _question(self, point: Point, known: dict[str, Space]) -> Question:
        """Return the question of one point; `known` keeps the spaces that points share."""
        draft = self.base.copy()
        for parameter, value in sorted((*self.always, *point.settings), key=lambda item: item[0].phase):
            if parameter.name == MODEL:
                draft.model = self.models[str(value)]
            elif parameter.name == CLUSTER:
                draft.place(self.clusters[str(value)])
            else:
                parameter.apply(draft, value)
        cluster = _cluster(draft)
        model, workload = draft.model, _workload(draft, cluster.num_devices)
        assert model is not None
        capacity, limit = cluster.device.hbm_bytes, self.max_memory
        key = repr((id(model), draft.held))
        if key not in known:
            known[key] = held_space(Space(), draft.held, model, where="space")
        return Question(
            index=point.index,
            shown=point.shown,
            model=model,
            cluster=cluster,
            workload=workload,
            space=known[key],
            objective=self.objective,
            max_memory=limit.by * capacity if isinstance(limit, Factor) else limit,
            costs=self.costs,
        )


def fingerprint(questions: tuple[Question | Impossible, ...]) -> str:
    """Return a digest of all questions, specifications included, and of the version that answers them."""
    digest = hashlib.sha256(__version__.encode())
    models: dict[int, bytes] = {}
    for asked in questions:
        if isinstance(asked, Question):
            digest.update(models.setdefault(id(asked.model), repr(asked.model).encode()))
            rest = (
                asked.cluster,
                asked.workload,
                asked.space,
                asked.objective,
                asked.max_memory,
                asked.costs,
            )
            digest.update(repr((asked.index, asked.shown, rest)).encode())
        else:
            digest.update(repr(asked).encode())
    return digest.hexdigest()


def _cluster(draft: Draft) -> Cluster:
    devices = draft.num_devices
    if draft.num_nodes is not None:
        devices = draft.num_nodes * int(draft.cluster["devices_per_node"])
    return build(Cluster, {**draft.cluster, "num_devices": devices}, where="cluster")


def _workload(draft: Draft, num_devices: int) -> Workload:
    """Return the workload; under weak scaling its batch grows with the devices."""
    values = dict(draft.workload)
    if draft.scaling == "weak":
        assert draft.base_devices is not None
        batch, rest = divmod(values["global_batch_size"] * num_devices, draft.base_devices)
        if rest:
            msg = (
                f"weak scaling: {counted(values['global_batch_size'], 'sequence')} on {draft.base_devices} "
                f"devices are no whole number on {num_devices}"
            )
            raise SpecError(msg)
        values["global_batch_size"] = batch
    return build(Workload, values, where="workload")
