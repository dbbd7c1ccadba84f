"""Placement on the network as it is written: `tp=4,dp=2`, tiers from the innermost out with `/` between them."""

from __future__ import annotations

from forescale.errors import SpecError, shown
from forescale.limits import whole_of
from forescale.spec.strategy import Placement, Share

AXES = ("tp", "cp", "dp", "pp")


def placement_of(text: str, *, where: str) -> Placement:
    """Return the shares of tiers that `text` names; `where` says where it was written, for messages.

    Raises
    ------
    SpecError
        If it is written otherwise, or names an axis twice.
    """
    return tuple(_share(part, text, where) for part in text.split("/"))


def _share(part: str, text: str, where: str) -> Share:
    ranks: dict[str, int] = {}
    for item in part.split(","):
        axis, _, count = (word.strip() for word in item.partition("="))
        if axis not in AXES or axis in ranks or not whole_of(count):
            msg = (
                f"{where} takes ranks of {', '.join(AXES)} inside each tier, such as tp=4,dp=2 or tp=8/pp=4; "
                f"got {shown(text)}"
            )
            raise SpecError(msg)
        ranks[axis] = whole_of(count) or 1
    return Share(**ranks)
