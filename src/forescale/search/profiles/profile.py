"""What one training framework can be told: the values it knows, and the degrees it lets go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forescale.errors import SpecError
from forescale.spec.constraints import Constraint
from forescale.spec.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Limits of a framework as it is documented; dimensions that are not named are free."""

    name: str
    source: str
    software: str
    """Whose fitted losses apply: a key of the run calibration's `software`."""
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that a search for it tries, by dimension of the space."""
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values it knows too, which a search tries where they are asked for."""
    rules: tuple[Constraint, ...] = ()
    """Degrees that it does not let go together."""

    def space(self, base: Space | None = None) -> Space:
        """Return everything that the framework can be told, other choices as in `base`."""
        base = base or Space()
        return replace(
            base,
            **self.values,
            rules=(*base.rules, *self.rules),
            base=replace(base.base, software=self.software),
        )

    def check(self, name: str, values: tuple[Any, ...]) -> None:
        """Refuse values of a dimension that the framework does not know.

        Raises
        ------
        SpecError
            Naming the values it knows.
        """
        if name not in self.values:
            return
        known = (*self.values[name], *self.others.get(name, ()))
        unknown = [value for value in values if value not in known]
        if not unknown:
            return
        takes = ", ".join(_word(value) for value in known)
        msg = f"{self.name} has no {name} {_word(unknown[0])}; it takes {takes} ({self.source})"
        raise SpecError(msg)


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    granularity = getattr(value, "granularity", None)
    if granularity is not None:
        return str(getattr(value, "policy", None) or granularity)
    return "default" if value is None else str(value).lower()
