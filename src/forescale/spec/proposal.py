"""What a condition on layouts is: a mask over arrays of them, and an error about one that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import Any, TypeAlias

from msgspec.structs import replace

from forescale.arrays import np
from forescale.errors import SpecError
from forescale.numeric import Booleans, all_true
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.struct import Struct

Mask: TypeAlias = Booleans
Values: TypeAlias = Any
"""Degrees of one layout (int) or of many (integer array), and what comparing them gives."""
Degrees: TypeAlias = Any
"""Anything with the degrees of `Layout` as attributes: a Layout, or arrays."""


class Proposal(Struct, frozen=True, kw_only=True):
    """What a constraint looks at: model, cluster and workload, and the degrees (numbers or arrays)."""

    model: Model
    cluster: Cluster
    workload: Workload
    degrees: Degrees


class Constraint(Struct, frozen=True, kw_only=True):
    """One condition: `holds` over arrays, `message` for one layout that breaks it."""

    name: str
    holds: Callable[[Proposal], Any]
    message: Callable[[Proposal], str | SpecError]
    applies: Callable[[Proposal], bool] = lambda _: True
    choices: tuple[str, ...] = ()
    """Fields of the layout other than degrees that it depends on and that a search chooses, such as cp_kind."""
    key: str = ""
    """Field of the layout or the workload, a whole number, that an error suggests to change; empty for none."""
    made: tuple[Any, ...] = ()
    """Function and arguments that make it again in another process, which functions without a name cannot reach."""

    def __reduce__(self) -> Any:  # noqa: ANN401 (pickle's)
        """Return what makes it again."""
        return self.made or super().__reduce__()


class ManyLayouts:
    """Layouts as arrays: some fields as columns that broadcast, all others as in one layout."""

    def __init__(self, columns: Mapping[str, Values], layout: Layout) -> None:
        """Take the columns over the fields of `layout`."""
        self.__dict__.update(columns)
        self._layout = layout

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a field of a layout)
        """Return a field that no column has."""
        return getattr(self._layout, name)


def violated(proposal: Proposal, rules: Sequence[Constraint]) -> list[Constraint]:
    """Return the rules that one layout breaks."""
    return [rule for rule in rules if rule.applies(proposal) and not all_true(rule.holds(proposal))]


def masks_of(proposal: Proposal, rules: Sequence[Constraint]) -> dict[str, Mask]:
    """Return where each rule holds, by its name, in the shape of what it depends on."""
    return {
        rule.name: np.asarray(rule.holds(proposal), dtype=bool) for rule in rules if rule.applies(proposal)
    }


def refused_by(masks: Mapping[str, Mask], size: int) -> dict[str, int]:
    """Return how many of `size` candidates each rule refused."""
    return {
        name: (holds.size - int(np.count_nonzero(holds))) * (size // max(holds.size, 1))
        for name, holds in masks.items()
    }


FILLED = ("tp", "cp", "pp")
"""Degrees that data parallelism makes up for: its shards fill the devices."""
LOOKED_AT, FEW = 20_000, 64
"""Values on each side of the given one that are looked at; few where several keys are at fault."""


def errors_of(
    proposal: Proposal, broken: Sequence[Constraint], rules: Sequence[Constraint]
) -> list[SpecError]:
    """Return an error for each of the `broken` rules, with the value of its key and the nearest that break no rule."""
    keys = {rule.key for rule in broken}
    most = 0 if "" in keys else LOOKED_AT if len(keys) == 1 else FEW
    nearest = {key: _nearest(proposal, key, broken, rules, most) for key in keys if key}
    errors = [(rule, SpecError(rule.message(proposal))) for rule in broken]
    return [
        SpecError(
            error,
            code=error.code or "illegal_layout",
            **(
                {"key": rule.key, "value": _value(proposal, rule.key), "nearest": nearest[rule.key]}
                if rule.key
                else {}
            ),
        )
        for rule, error in errors
    ]


def _value(proposal: Proposal, key: str) -> Any:  # noqa: ANN401  (a whole number, or a word)
    return getattr(proposal.degrees if hasattr(proposal.degrees, key) else proposal.workload, key)


def _nearest(
    proposal: Proposal, key: str, broken: Sequence[Constraint], rules: Sequence[Constraint], most: int
) -> tuple[int, ...]:
    """Return the next smaller and larger value of a key for which no rule is broken, the nearer one first."""
    value = _value(proposal, key)
    if not isinstance(value, int):
        return ()
    sides = (range(value - 1, 0, -1), count(value + 1))
    fitting = [
        next((item for item in islice(side, most) if _is_legal(proposal, key, item, broken, rules)), None)
        for side in sides
    ]
    return tuple(sorted((item for item in fitting if item is not None), key=lambda item: abs(item - value)))


def _is_legal(
    proposal: Proposal, key: str, value: int, broken: Sequence[Constraint], rules: Sequence[Constraint]
) -> bool:
    """Return whether a layout breaks no rule with another value; the shards of data parallelism fill the devices."""
    layout = proposal.degrees
    if not hasattr(layout, key):
        other = replace(proposal, workload=replace(proposal.workload, **{key: value}))
    elif key not in FILLED:
        other = replace(proposal, degrees=replace(layout, **{key: value}))
    else:
        degrees = {name: getattr(layout, name) for name in FILLED} | {key: value}
        ranks = layout.dp_replicate * degrees["tp"] * degrees["cp"] * degrees["pp"]
        shards, rest = divmod(proposal.cluster.num_devices, ranks)
        if rest or not shards:
            return False
        other = replace(proposal, degrees=replace(layout, **degrees, dp_shard=shards))
    return not violated(other, broken) and not violated(other, rules)
