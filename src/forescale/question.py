"""The question: what is trained on what, how it may be laid out, and what prices it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import field
from msgspec.structs import force_setattr, replace

from forescale.cost.calibration import RunFactors
from forescale.cost.model import TRACED
from forescale.cost.select import Costs
from forescale.errors import given_twice, missing, not_divisible, required_with, unsupported_by
from forescale.repr import ReprMixin
from forescale.spec.cluster import Cluster
from forescale.spec.framework import Framework
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.operations import Operations
from forescale.spec.proposal import Proposal
from forescale.spec.space import Space
from forescale.spec.workload import Workload
from forescale.struct import SpecStruct, Struct
from forescale.units import counted

Objective: TypeAlias = Literal["step_time", "peak_memory"]
"""What a search minimises."""


class Note(Struct, frozen=True, kw_only=True):
    """Something the reader should know."""

    topic: str
    text: str

    @property
    def rank(self) -> int:
        """How much it changes the figures: 0 most. A topic that the table lacks is in the middle."""
        return RANKS.get(self.topic, MIDDLE)


MIDDLE = 2
TO_FIT = "to fit"
"""Topic of the note on the recompute with which a layout fits."""
IGNORED = "ignored"
"""Topic of the note on keys of a file that do not change a projection, which an export does not carry over."""
TOPICS: tuple[tuple[str, ...], ...] = (
    ("left out", "environment", "sizes"),
    (
        TO_FIT,
        "host",
        "platform",
        "hardware",
        "sites",
        "compared",
        "framework",
        "length",
        "tokens",
        "compute",
        "compile",
        "devices",
        "experts",
        "measured",
        "host memory",
        "time",
        "preset",
        "attention",
    ),
    (
        *(
            "calibration",
            "cluster",
            "memory",
            "allocator",
            "activations",
            "buffers",
            "recompute",
            "parameters",
        ),
        *("flops", "network", "data_comm", "expert_comm", "components", "sequence"),
    ),
    ("layout", "schedule", "model"),
    ("reader", "file", IGNORED),
)
"""Topics of notes by rank: the model is incomplete, or the environment changes the question; the figures are of
something else than was asked, or do not hold; assumptions of the figures; settings without effect; how files were
read."""
RANKS = {topic: rank for rank, topics in enumerate(TOPICS) for topic in topics}


FOREMOST = 2
"""Notes that are shown unless all are asked for."""


def by_rank(notes: Iterable[Note]) -> list[Note]:
    """Return notes, each once, the ones that change the figures most first."""
    return sorted(dict.fromkeys(notes), key=lambda note: note.rank)


def foremost(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return as lines what is left out, and the notes that change the figures most."""
    ranked = by_rank(notes)
    apart = sum(not note.rank for note in ranked)
    return tuple(f"note ({note.topic}): {note.text}" for note in ranked[: apart + FOREMOST])


TensorParallel: TypeAlias = Literal["1d", "2d", "summa"]


class PresetOptions(SpecStruct, frozen=True, kw_only=True):
    """Options of a published analysis (`Question.preset`); each preset refuses those that it does not have."""

    tensor_parallel: TensorParallel | None = None
    """Formulas of tensor parallelism; None follows the layout. A search needs one."""
    without_quirks: tuple[str, ...] = ()
    """Peculiarities of the published figures to leave out, or `all`."""
    fix: tuple[str, ...] = ()
    """Dimensions of the analysis's own search held at a value, such as `tp1=8`."""


_NOT_COMPARED = ("notes", "assumed")


class Question(ReprMixin, Struct, frozen=True, kw_only=True, eq=False):
    """One question, complete: every answer follows from it alone.

    `io/question.py` writes it as a TOML file and reads it back, equal in every field; notes and assumptions are not
    compared.
    """

    model: Model
    cluster: Cluster
    workload: Workload
    strategy: Layout | None = None
    """One layout; None where `space` says what may be chosen."""
    framework: Framework | None = None
    """What trains; the layout, the space and the workload have its words already (`Framework.completed`)."""
    space: Space = field(default_factory=Space)
    """What a search may choose."""
    costs: Costs = field(default_factory=Costs)
    """Cost models that price every layout."""
    operations: Operations = field(default_factory=Operations)
    """How the run of `workload.tokens` is operated: days on the calendar follow from it."""
    preset: str = "default"
    """Whose account of memory and time answers: our own engine, or a published one."""
    preset_options: PresetOptions = field(default_factory=PresetOptions)
    objective: Objective = "step_time"
    max_memory: float | None = None
    """Bytes per device that a layout may need at its peak; None is the device's capacity."""
    safe: bool = False
    """Whether memory counts at the upper end of its range, not as expected."""
    notes: tuple[Note, ...] = ()
    """What is to be known of the files that it was read from; projections say it last."""
    assumed: tuple[str, ...] = ()
    """Settings that it left to a framework's recipe or to defaults, which widen the interval of a step time."""

    def __post_init__(self) -> None:
        """Leave a vision tower out where no sequence has an image."""
        if not self.workload.images.count:
            force_setattr(self, "model", self.model.text)

    @property
    def _asked(self) -> tuple[object, ...]:
        return _compared(self)

    def __eq__(self, other: object) -> bool:
        """Whether another question asks the same."""
        return isinstance(other, Question) and self._asked == other._asked

    def __ne__(self, other: object) -> bool:
        """Whether another question asks something else; a struct's own goes by identity."""
        return not self == other

    def __hash__(self) -> int:
        """Hash what is asked."""
        return hash(self._asked)

    @property
    def layout(self) -> Layout:
        """The one layout that is asked about.

        Raises
        ------
        SpecError
            If the question leaves it to a search.
        """
        if self.strategy is None:
            fix = f"the question of {self.model.name} on {self.cluster.name} has none: give one, or search"
            raise missing("a layout", fix)
        return self.strategy

    @property
    def parts(self) -> tuple[Model, Cluster, Layout, Workload]:
        """The model, the cluster, the one layout and the workload; raises as `layout` does."""
        return self.model, self.cluster, self.layout, self.workload

    @property
    def memory_limit(self) -> float:
        """Bytes that a layout may need: never more than the device has."""
        capacity = self.cluster.device.hbm_bytes
        return capacity if self.max_memory is None else min(self.max_memory, capacity)

    @property
    def run(self) -> RunFactors:
        """What whole runs lose on these devices under the software of the layout, or of what is searched."""
        layout = self.strategy or self.space.base
        software = TRACED[layout.kernels.compile] if self.model.traces else layout.software
        return self.costs.run_factors(self.cluster.device, software, experts=self.model.is_moe)

    @property
    def site(self) -> Question:
        """The question of one of the sites that train by themselves; itself where none do.

        Raises
        ------
        SpecError
            If there are no sites, or batch or replicas do not divide over them.
        """
        work, layout, sites = self.workload, self.strategy, self.cluster.num_sites
        if work.outer is None:
            return self
        if sites < 2:
            fix = (
                f"a site has {self.cluster.num_devices} or more of them; ask of twice as many or more"
                if sites
                else "give them and their link, such as --sites 2,100Gbit/s"
            )
            here = f"{counted(self.cluster.num_devices, 'device')} of {self.cluster.name} are on one"
            raise required_with("several sites", "workload.outer", fix=f"{here}: {fix}")
        replicas = sites if layout is None else layout.dp_replicate
        for name, count in (("global_batch_size", work.global_batch_size), ("dp_replicate", replicas)):
            if count % sites:
                raise not_divisible(name, count, sites, "the number of sites")
        tokens = None if work.tokens is None else work.tokens / sites
        batch = work.global_batch_size // sites
        dp_replicate = self.space.dp_replicate
        return replace(
            self,
            space=self.space
            if dp_replicate is None
            else replace(
                self.space, dp_replicate=tuple(item // sites for item in dp_replicate if item % sites == 0)
            ),
            cluster=self.cluster.site,
            workload=replace(work, global_batch_size=batch, tokens=tokens, outer=None),
            strategy=None if layout is None else replace(layout, dp_replicate=replicas // sites),
        )

    def violation(self, layout: Layout | None) -> str:
        """Return which settings of `layout`, or which number formats, the framework does not support; empty if none."""
        if (framework := self.framework) is None:
            return ""
        work = self.workload
        cannot = framework.cannot_compute(work.precision)
        if layout is not None:
            cannot = framework.cannot(
                Proposal(model=self.model, cluster=self.cluster, workload=work, degrees=layout)
            )
        return f"{framework.name} cannot run this: {'; '.join(cannot)}" if cannot else ""

    def check_together(self, answer: str) -> None:
        """Raise SpecError where sites train by themselves: `answer` does not know of them."""
        if self.workload.outer is not None:
            fix = "leave workload.outer out, or ask of one site"
            raise unsupported_by(answer, "devices that do not take every step together", fix)

    def over_sites(self, one: Question) -> Question:
        """Return what `one` asks of a site of this question asked of all of them."""
        work, sites = self.workload, self.cluster.num_sites
        if work.outer is None:
            return one
        whole = replace(
            one.workload, global_batch_size=work.global_batch_size, tokens=work.tokens, outer=work.outer
        )
        result, layout = replace(one, cluster=self.cluster, workload=whole), one.strategy
        return (
            result
            if layout is None
            else result.with_layout(replace(layout, dp_replicate=layout.dp_replicate * sites))
        )

    @property
    def simulated(self) -> Question:
        """The same question answered by models alone, whatever runs were measured."""
        return replace(self, costs=self.costs.simulated)

    def with_layout(self, layout: Layout) -> Question:
        """Return the same question of one layout."""
        return replace(self, strategy=layout)

    def with_space(self, **changes: Any) -> Question:  # noqa: ANN401 (fields of a space)
        """Return the same question with some fields of the space changed."""
        return replace(self, space=replace(self.space, **changes))

    def essentials(self) -> Mapping[str, Any]:
        """Return what was asked, with the cluster's size and the framework's release: not notes, nor what is usual."""
        essentials = {
            **ReprMixin.essentials(self),
            "cluster": f"{self.cluster.num_devices} x {self.cluster.name}",
        }
        essentials.pop("notes", None)
        return essentials if self.framework is None else {**essentials, "framework": self.framework.label}


_compared: Callable[[Question], tuple[object, ...]] = attrgetter(
    *(name for name in Question.__struct_fields__ if name not in _NOT_COMPARED)
)


def question_of(
    question: Question | Model,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    **parts: Any,  # noqa: ANN401 (fields of a question)
) -> Question:
    """Return a question as it is given, or the one that its parts make; parts that are None are as usual.

    Raises
    ------
    SpecError
        If something comes beside a whole question, or a part is missing.
    """
    named = {"cluster": cluster, "workload": workload, **parts}
    present = {name: part for name, part in named.items() if part is not None}
    if isinstance(question, Question):
        if present:
            raise given_twice(list(present), fix="change the question with dataclasses.replace")
        return question
    if missing := [name for name in ("cluster", "workload") if name not in present]:
        raise required_with(missing, f"a question of {question.name}")
    return Question(model=question, **present)
