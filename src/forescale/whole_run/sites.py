"""Training over sites with slow links between them: the share of the time that computes.

Sites exchange every step, every so many, or in pieces that take turns. Layers are followed one by one: forward goes up
the layers and backward down; what a layer sends leaves when its backward is over, one layer after another on the link,
and its next forward waits for what comes back, or, overlapped, that so many steps later. What it does to the loss is
not projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from forescale.errors import SpecError
from forescale.formula import formula
from forescale.limits import Count
from forescale.numeric import Numeric

FORWARD = 1.0 / 3.0
"""Share of a step that is forward; backward has two products for each of forward's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """How often, in what pieces and how narrow sites exchange what they trained."""

    every: Count = 100
    """Steps between two exchanges of the same parameters; 1 is plain data parallelism, of gradients."""
    fragments: Count = 1
    """Pieces that are exchanged in turn within `every` steps (Streaming DiLoCo); a piece is every so manyth layer."""
    overlap: Annotated[int, Ge(0), Le(1000)] = 0
    """Steps that go on before what was exchanged is needed; 0 waits for it."""
    bits: Annotated[float, Gt(0), Le(64)] = 16.0
    """Bits of a parameter on the link."""


@formula(
    unit="byte",
    source="Douillard et al. 2025, arXiv:2501.18512, section 2: outer gradients of two sites, reduced",
)
def exchanged_bytes(*, parameters: Numeric, bits: Numeric) -> Numeric:
    """Parameters × bits / 8: what each site sends, and receives, for one exchange of everything."""
    return parameters * bits / 8.0


def compute_utilisation(
    outer: Outer,
    *,
    parameters: float,
    num_layers: int,
    step_time: float,
    bandwidth: float,
    steps: int | None = None,
) -> float:
    """Return the share of the time in which a site computes.

    Parameters
    ----------
    outer
        How sites exchange.
    parameters
        Of the model.
    num_layers
        Layers that parameters and time spread over evenly.
    step_time
        Seconds of a step without any exchange between sites.
    bandwidth
        bit/s between sites.
    steps
        Steps to follow; None is two rounds of exchange, of which the second counts.

    Raises
    ------
    SpecError
        If there are more pieces than layers.
    """
    if outer.fragments > num_layers:
        msg = (
            f"fragments are pieces of {num_layers} layers: give {num_layers} or fewer, got {outer.fragments}"
        )
        raise SpecError(msg)
    count = steps or max(20, 2 * outer.every)
    seconds = 8.0 * float(exchanged_bytes(parameters=parameters, bits=outer.bits)) / num_layers / bandwidth
    forward = step_time * FORWARD / num_layers
    backward = step_time / num_layers - forward
    ready = [0.0] * num_layers
    arriving: dict[int, list[tuple[int, float]]] = {}
    clock = link = 0.0
    starts = []
    for step in range(count):
        starts.append(clock)
        for layer in range(num_layers):
            clock = max(clock, ready[layer]) + forward
        for layer in reversed(range(num_layers)):
            clock += backward
            if _sent(outer, layer, step):
                link = max(link, clock) + seconds
                arriving.setdefault(step + outer.overlap, []).append((layer, link))
        for layer, time in arriving.pop(step, ()):
            ready[layer] = max(ready[layer], time)
    half = count // 2
    return min(1.0, (count - 1 - half) * step_time / (starts[-1] - starts[half]))


def _sent(outer: Outer, layer: int, step: int) -> bool:
    """Whether a layer is exchanged after a step: pieces take turns, evenly over the round."""
    piece = layer % outer.fragments
    return step % outer.every == piece * outer.every // outer.fragments


def bandwidth_needed(
    outer: Outer, utilisation: float, *, parameters: float, num_layers: int, step_time: float
) -> float:
    """Return the least bit/s between sites that reach a compute utilisation, to 1 %."""
    low, high = 1e3, 1e18
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        reached = compute_utilisation(
            outer, parameters=parameters, num_layers=num_layers, step_time=step_time, bandwidth=middle
        )
        low, high = (low, middle) if reached >= utilisation else (middle, high)
    return high
