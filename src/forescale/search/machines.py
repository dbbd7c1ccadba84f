"""One question on several machines: the layout that was given, or the best one of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from forescale.errors import InfeasibleError, SpecError
from forescale.projection.result import Projection, cost_per_token
from forescale.question import Question
from forescale.results import Result
from forescale.search.compare import Difference, time_parts
from forescale.spec.phrases import layout
from forescale.struct import Struct, attributes
from forescale.units import counted
from forescale.workers import Workers, available_cores

Answer = TypeVar("Answer")
SCHEMA = "forescale.machines/1"


class Machine(Struct, frozen=True, kw_only=True):
    """One machine, and what it reaches."""

    cluster: str
    devices: int
    projection: Projection | None = None
    """None where no layout is legal; the smallest layout where none fits: `problem` says which."""
    problem: str = ""
    chosen: str = "given"
    """How the layout was chosen: given; safe (fits at the upper end of its interval), at risk, or smallest (none fits).
    """
    price_per_device_hour: float | None = None
    varied: str = ""
    """What sets the question apart from others of this machine, such as layout.zero=2."""

    @property
    def tokens_per_s(self) -> float | None:
        """Of all devices; None without a projection."""
        one = self.projection
        return None if one is None else one.tokens_per_s

    @property
    def cost_per_million_tokens(self) -> float | None:
        """In the currency of the price; None where either is not known."""
        one, price = self.projection, self.price_per_device_hour
        if one is None or price is None:
            return None
        tokens = one.workload.tokens_per_step
        step = one.step_time_s
        used = {"num_devices": one.cluster.num_devices, "step_time": step, "tokens": tokens}
        return float(cost_per_token(price_per_device_hour=price, **used)) * 1e6

    @property
    def days(self) -> float | None:
        """Of the whole run without failures; None where its tokens are not given."""
        return None if self.projection is None else self.projection.training_days

    @property
    def calendar_days(self) -> float | None:
        """Of the whole run with its failures and checkpoints; None where its tokens are not given, or it never ends."""
        dates = None if self.projection is None else self.projection.calendar
        return None if dates is None else dates.days.expected

    @property
    def cost(self) -> float | None:
        """Of the whole run, in the currency of the price; None where its tokens or the price are not known."""
        one, price = self.projection, self.price_per_device_hour
        return None if one is None or price is None else one.run_cost(price)

    def row(self) -> dict[str, Any]:
        """Return the figures that machines are compared by."""
        one = self.projection
        names = (
            "layout",
            "step_time_s",
            "mfu",
            "communication_share",
            "bubble_share",
            "peak_bytes",
            "verdict",
        )
        known: dict[str, Any] = dict.fromkeys(names)
        if one is not None:
            shares = attributes(one, "communication_share", "bubble_share")
            known = {"layout": layout(one.strategy), **attributes(one, "step_time_s", "mfu"), **shares}
            known |= attributes(one.memory, "peak_bytes", "verdict")
        figures = attributes(
            self,
            "cluster",
            "devices",
            "varied",
            "chosen",
            "tokens_per_s",
            "cost_per_million_tokens",
            "days",
            "calendar_days",
            "cost",
            "problem",
        )
        return {**figures, **known}


class Machines(Result, Struct, frozen=True, kw_only=True):
    """Several machines, in the order in which they were named."""

    machines: tuple[Machine, ...]
    priced: bool = False
    """Whether the prices were given, not those of the catalogue."""
    operated: bool = False
    """Whether it was given how the run is operated."""

    @property
    def fastest(self) -> Machine | None:
        """The machine with the most tokens per second; None where no layout fits on any."""
        return max(self.fitting, key=lambda machine: machine.tokens_per_s or 0.0, default=None)

    @property
    def fitting(self) -> tuple[Machine, ...]:
        """The machines whose layout fits as expected."""
        return tuple(
            machine
            for machine in self.machines
            if machine.projection is not None and not machine.projection.memory.is_over
        )

    @property
    def lead(self) -> tuple[float, Machine] | None:
        """By which share of its tokens per second the fastest leads, and over which; None where one or none fits."""
        best = self.fastest
        others = [machine for machine in self.fitting if machine is not best]
        after = max(others, key=lambda machine: machine.tokens_per_s or 0.0, default=None)
        if best is None or after is None or not best.tokens_per_s or not after.tokens_per_s:
            return None
        return best.tokens_per_s / after.tokens_per_s - 1.0, after

    @property
    def combined(self) -> tuple[int, int] | None:
        """How many clusters are combined with how many numbers of devices, each with each; None for other machines."""
        sizes = {(item.cluster, item.devices) for item in self.machines}
        clusters, devices = ({item[place] for item in sizes} for place in (0, 1))
        every = len(clusters) * len(devices) == len(sizes)
        return (len(clusters), len(devices)) if every and min(len(clusters), len(devices)) > 1 else None

    @property
    def headline(self) -> str:
        """The machine with the most tokens per second, and its layout."""
        fastest = None if self.fastest is None else self.fastest.projection
        result = "no layout fits on any" if fastest is None else f"fastest: {fastest.headline}"
        return f"{counted(len(self.machines), 'machine')}; {result}"

    @property
    def reasons(self) -> tuple[tuple[Machine, Machine, tuple[Difference, ...]], ...]:
        """The first machine with each further one, and the parts in which their steps differ, the largest first."""
        known = [(item, item.projection.time_s) for item in self.machines if item.projection is not None]
        return tuple(
            (
                known[0][0],
                item,
                tuple(sorted(time_parts(known[0][1], parts), key=lambda part: -abs(part.difference or 0.0))),
            )
            for item, parts in known[1:]
        )

    def scaling(self, machine: Machine) -> float | None:
        """Return the tokens/s of a device over those on the fewest of its cluster; None where there is one number."""
        alike = [
            item for item in self.fitting if (item.cluster, item.varied) == (machine.cluster, machine.varied)
        ]
        first = min(alike, key=lambda item: item.devices, default=machine)
        if machine not in alike or len({item.devices for item in alike}) < 2 or not first.tokens_per_s:
            return None
        return ((machine.tokens_per_s or 0.0) / machine.devices) / (first.tokens_per_s / first.devices)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per machine."""
        return [{**machine.row(), "scaling_efficiency": self.scaling(machine)} for machine in self.machines]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.machines/1` document, with every projection."""
        return {
            "schema": SCHEMA,
            "machines": [
                {**row, "projection": None if machine.projection is None else machine.projection.to_json()}
                for machine, row in zip(self.machines, self.rows(), strict=True)
            ],
        }


def on_machines(
    questions: Sequence[Question | Machine],
    search: Callable[[Question, int], Projection],
    project: Callable[[Question], Projection],
    prices: Mapping[str, float | None],
    *,
    varied: Sequence[str] = (),
    jobs: int | None = 1,
) -> Machines:
    """Return what each question reaches: its own layout, else the fastest that fits, with margin if there is one.

    Parameters
    ----------
    questions
        One per machine; a machine whose question is illegal stays as it is.
    search, project
        Return the best layout of a question without one, found by so many processes, and the projection of one with.
    prices
        Per device and hour, by cluster.
    varied
        What sets each question apart, in words; where machines alone do, nothing.
    jobs
        Processes; None is one per core. Machines that are searched are dealt to them, and each search has the rest.
    """
    jobs = jobs or available_cores()
    searched = sum(isinstance(item, Question) and item.strategy is None for item in questions)
    with Workers(min(jobs, searched)) as workers:
        of_each = partial(_with_jobs, search, jobs // workers.jobs)
        one = partial(_machine, of_each, project, prices)
        machines = workers.share([partial(one, question) for question in questions])
    texts = varied or [""] * len(machines)
    return Machines(
        machines=tuple(replace(item, varied=text) for item, text in zip(machines, texts, strict=True))
    )


def fitting(question: Question, search: Callable[[Question], Answer]) -> tuple[Answer, bool]:
    """Return what a search finds that fits at the upper end of its memory range, else as expected; and whether it did.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits.
    """
    try:
        return search(replace(question, safe=True)), True
    except InfeasibleError:
        return search(question), False


def _with_jobs(search: Callable[[Question, int], Answer], jobs: int, question: Question) -> Answer:
    return search(question, jobs)


def _machine(
    search: Callable[[Question], Projection],
    project: Callable[[Question], Projection],
    prices: Mapping[str, float | None],
    question: Question | Machine,
) -> Machine:
    if isinstance(question, Machine):
        return question
    cluster = question.cluster
    machine = Machine(
        cluster=cluster.name, devices=cluster.num_devices, price_per_device_hour=prices.get(cluster.name)
    )
    try:
        if question.strategy is not None:
            return replace(machine, projection=project(question))
        best, has_margin = fitting(question, search)
        return replace(machine, projection=best, chosen="safe" if has_margin else "at risk")
    except (SpecError, InfeasibleError) as error:
        least = getattr(error, "smallest", None)
        shown = None if least is None else project(least)
        return replace(machine, projection=shown, chosen="smallest", problem=str(error))
