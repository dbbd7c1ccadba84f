"""Training over sites with slow links between them: the share of the time that computes.

Sites exchange every step, every so many, or in pieces that take turns. Layers are followed one by one: forward goes up
the layers and backward down; what a layer sends leaves when its backward is over, one layer after another on the link,
and its next forward waits for what comes back, or, overlapped, that so many steps later. What it does to the loss is
not projected.
"""

from __future__ import annotations

from typing import Any

from forescale.errors import out_of_range
from forescale.formula import formula
from forescale.graph.counts import count_trained
from forescale.numeric import Numeric
from forescale.spec import Cluster, Model
from forescale.spec.workload import Outer, Workload

STREAMING = "Douillard et al. 2025, arXiv:2501.18512"
OUTER_BYTES = 8.0
"""Of a parameter, what DiLoCo keeps beside the model: the last exchanged value and Nesterov's momentum, both fp32."""
MOST_BANDWIDTH = 1e18
"""bit/s of a link beyond which only its latency counts."""
FORWARD = 1.0 / 3.0
"""Share of a step that is forward; backward has two products for each of forward's."""


@formula(
    unit="byte",
    source=f"{STREAMING}, section 2: outer gradients, reduced; a ring of sites as Patarasuk and Yuan 2009",
)
def exchanged_bytes(*, parameters: Numeric, bits: Numeric, num_sites: Numeric = 2.0) -> Numeric:
    """2 (sites − 1) / sites × parameters × bits / 8: what each site sends, and receives, of everything."""
    return 2.0 * (num_sites - 1.0) / num_sites * parameters * bits / 8.0


@formula(unit="s", source=f"{STREAMING}, section 4: compute utilisation")
def step_over_sites(*, step_time: Numeric, utilisation: Numeric) -> Numeric:
    """Step of one site / share of the time in which it computes."""
    return step_time / utilisation


@formula(unit="s", source=f"{STREAMING}, section 4: compute utilisation")
def waited_for_sites(*, step_time: Numeric, utilisation: Numeric) -> Numeric:
    """Step of one site × (1 / share of the time in which it computes − 1)."""
    return step_time * (1.0 / utilisation - 1.0)


def compute_utilisation(
    outer: Outer,
    *,
    parameters: float,
    num_layers: int,
    step_time: float,
    bandwidth: float,
    num_sites: int = 2,
    latency: float = 0.0,
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
        bit/s of each site's link.
    num_sites, latency
        Sites, and seconds from one to the next.
    steps
        Steps to follow; None is two rounds of exchange, of which the second counts.

    Raises
    ------
    SpecError
        If there are more pieces than layers.
    """
    if outer.fragments > num_layers:
        raise out_of_range("fragments", outer.fragments, f"{num_layers} or less, the number of layers")
    count = steps or max(20, 2 * outer.every)
    explicit = {"parameters": parameters, "bits": outer.bits, "num_sites": float(num_sites)}
    seconds = 8.0 * float(exchanged_bytes(**explicit)) / num_layers / bandwidth
    around = 2.0 * (num_sites - 1.0) * latency
    forward = step_time * FORWARD / num_layers
    backward = step_time / num_layers - forward
    ready = [0.0] * num_layers
    arriving: dict[int, list[tuple[int, float]]] = {}
    clock = link = 0.0
    starts = []
    turns = [_turn(outer, layer) for layer in range(num_layers)]
    for step in range(count):
        starts.append(clock)
        turn = step % outer.every
        for arrived in ready:
            clock = (clock if clock >= arrived else arrived) + forward
        for layer in reversed(range(num_layers)):
            clock += backward
            if turns[layer] == turn:
                link = max(link, clock) + seconds
                arriving.setdefault(step + outer.overlap, []).append((layer, link + around))
        for layer, time in arriving.pop(step, ()):
            ready[layer] = max(ready[layer], time)
    half = count // 2
    return min(1.0, (count - half) * step_time / (clock - starts[half]))


def _turn(outer: Outer, layer: int) -> int:
    """Return the step of a round after which a layer is exchanged: pieces take turns, evenly over the round."""
    return layer % outer.fragments * outer.every // outer.fragments


def utilisation_of(model: Model, cluster: Cluster, workload: Workload, step_time: float) -> float:
    """Return the share of the time in which the sites of a cluster compute, at a step of so many seconds by itself."""
    assert workload.outer is not None
    link, sites = cluster.tiers[-1], cluster.num_sites
    return compute_utilisation(
        workload.outer,
        parameters=count_trained(model, workload.trainable),
        num_layers=model.num_layers,
        step_time=step_time,
        bandwidth=8.0 * link.bandwidth * cluster.site.num_devices,
        num_sites=sites,
        latency=link.latency,
    )


def step_of_sites(model: Model, cluster: Cluster, workload: Workload, step_time: float) -> float:
    """Return the step of all sites [s], of which one by itself takes `step_time`: the same where none train so."""
    if workload.outer is None or step_time == float("inf"):
        return step_time
    used = utilisation_of(model, cluster, workload, step_time)
    return float(step_over_sites(step_time=step_time, utilisation=used))


def bandwidth_needed(outer: Outer, utilisation: float, **told: Any) -> float | None:  # noqa: ANN401 (as above)
    """Return the least bit/s of each site's link that reach a compute utilisation, to 1 %; None if none does."""
    low, high = 1e3, MOST_BANDWIDTH
    if compute_utilisation(outer, bandwidth=high, **told) < utilisation:
        return None
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        reached = compute_utilisation(outer, bandwidth=middle, **told)
        low, high = (low, middle) if reached >= utilisation else (middle, high)
    return high
