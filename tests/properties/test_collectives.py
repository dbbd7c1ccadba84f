"""Laws that hold for every group, message and cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.expert_exchange import ExpertExchange
from forescale.cost.mesh import Group, ranks_per_tier
from forescale.formula import Term

SIZES = {
    "h100-sxm": 1024,
    "gb200-nvl72": 576,
    "mi300x-pods": 512,
    "perlmutter": 256,
    "tpu-v5p": 512,
    "a100-pcie": 64,
    "mi250x-frontier": 128,
    "trn2-ultraserver": 128,
}
CLUSTERS = {name: load_cluster(name, size) for name, size in SIZES.items()}
CLUSTERS["h100-sxm with SHARP"] = replace(
    CLUSTERS["h100-sxm"],
    tiers=tuple(replace(tier, in_network_reduction=True) for tier in CLUSTERS["h100-sxm"].tiers),
)
MODELS = {name: AlphaBeta.from_cluster(cluster) for name, cluster in CLUSTERS.items()}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")

names = st.sampled_from(sorted(CLUSTERS))
kinds = st.sampled_from(KINDS)
volumes = st.floats(1.0, 1e11)


def _models(name):
    return [MODELS[name], ExpertExchange(base=MODELS[name], top_k=8, num_groups=8, top_groups=4)]


@st.composite
def groups(draw, cluster):
    size = draw(st.integers(1, cluster.num_devices))
    stride = draw(st.integers(1, max(1, cluster.num_devices // size)))
    return Group(size=float(size), stride=float(stride))


@given(data=st.data(), name=names, kind=kinds)
@settings(max_examples=60, deadline=None)
def test_a_candidate_alone_equals_itself_in_a_batch(data, name, kind):
    cluster = CLUSTERS[name]
    drawn = data.draw(st.lists(st.tuples(groups(cluster), volumes), min_size=1, max_size=9))
    batch = Group(size=np.array([g.size for g, _ in drawn]), stride=np.array([g.stride for g, _ in drawn]))
    num_bytes = np.array([v for _, v in drawn])
    for model in _models(name):
        together = model.seconds(kind=kind, num_bytes=num_bytes, group=batch)
        alone = [model.seconds(kind=kind, num_bytes=v, group=g) for g, v in drawn]
        assert np.asarray(together).tolist() == [float(a) for a in alone]


@given(data=st.data(), name=names, kind=kinds, num_bytes=volumes)
@settings(max_examples=100, deadline=None)
def test_times_are_finite_and_grow_with_the_message(data, name, kind, num_bytes):
    group = data.draw(groups(CLUSTERS[name]))
    model = MODELS[name]
    short, long = (
        float(model.seconds(kind=kind, num_bytes=v, group=group)) for v in (num_bytes, 2 * num_bytes)
    )
    assert 0.0 <= short <= long < float("inf")
    assert (short > 0.0) == (group.size > 1)


@given(data=st.data(), name=names, kind=kinds)
@settings(max_examples=40, deadline=None)
def test_one_rank_and_empty_messages_are_free(data, name, kind):
    group = data.draw(groups(CLUSTERS[name]))
    assert float(MODELS[name].seconds(kind=kind, num_bytes=0.0, group=group)) == 0.0
    assert float(MODELS[name].seconds(kind=kind, num_bytes=1e9, group=Group(size=1.0, stride=4.0))) == 0.0


@given(
    data=st.data(),
    name=names,
    kind=st.sampled_from(("all_gather", "reduce_scatter", "all_to_all", "all_reduce")),
)
@settings(max_examples=100, deadline=None)
def test_nothing_is_faster_than_the_links_of_a_block(data, name, kind):
    cluster = CLUSTERS[name]
    group = data.draw(groups(cluster))
    num_bytes = 1e9
    seconds = float(MODELS[name].seconds(kind=kind, num_bytes=num_bytes, group=group))
    inner = 1.0
    outwards = sum(tier.bandwidth for tier in cluster.tiers)
    for tier, shared in zip(cluster.tiers, ranks_per_tier(group, cluster), strict=True):
        if shared > inner:
            # What a block of `inner` ranks takes in from outside, over all links of its ranks that lead out.
            taken = (1 - inner / group.size) * num_bytes * (inner if kind == "all_to_all" else 1.0)
            assert seconds >= taken / (inner * outwards) * (1 - 1e-9)
        outwards -= tier.bandwidth
        inner = shared


@given(data=st.data(), num_bytes=volumes)
@settings(max_examples=40, deadline=None)
def test_switches_that_reduce_never_slow_an_all_reduce_down(data, num_bytes):
    group = data.draw(groups(CLUSTERS["h100-sxm"]))
    plain, aided = (
        float(MODELS[name].seconds(kind="all_reduce", num_bytes=num_bytes, group=group))
        for name in ("h100-sxm", "h100-sxm with SHARP")
    )
    assert aided <= plain


@given(data=st.data(), name=names, kind=kinds, num_bytes=volumes)
@settings(max_examples=40, deadline=None)
def test_recorded_terms_have_the_same_value(data, name, kind, num_bytes):
    group = data.draw(groups(CLUSTERS[name]))
    recorded = Group(size=Term(group.size, name="size"), stride=Term(group.stride, name="stride"))
    for model in _models(name):
        plain = model.seconds(kind=kind, num_bytes=num_bytes, group=group)
        term = model.seconds(kind=kind, num_bytes=Term(num_bytes, name="V", unit="byte"), group=recorded)
        assert isinstance(term, Term)
        assert term.at(0).value == float(plain)
        assert term.at(0).unit == "s"


@pytest.mark.parametrize("name", ["h100-sxm", "perlmutter", "mi300x-pods"])
@given(data=st.data(), num_bytes=st.floats(1e9, 1e11))
@settings(max_examples=20, deadline=None)
def test_more_links_out_of_a_node_never_slow_long_gathers_down(name, data, num_bytes):
    # Two ranks on each of n nodes, or one: the tensor is the same, the links are twice as many.
    model, per_node = MODELS[name], float(CLUSTERS[name].devices_per_node)
    nodes = float(data.draw(st.integers(2, 16)))
    one, two = (
        float(
            model.seconds(
                kind="all_gather", num_bytes=num_bytes, group=Group(size=p, outer=((nodes, per_node),))
            )
        )
        for p in (1.0, 2.0)
    )
    assert two <= one


@given(data=st.data(), name=names, kind=kinds, num_bytes=volumes)
@settings(max_examples=60, deadline=None)
def test_a_collective_takes_what_the_way_that_is_picked_takes_alone(data, name, kind, num_bytes):
    """And in no case less than its own parts: what starts it, what each byte takes, and hops that bytes do not hide.

    Picked is the fastest, or within a node the one that the library's tuner believes to be.
    """
    group, model = data.draw(groups(CLUSTERS[name])), MODELS[name]
    if group.size == 1:
        return
    lines = model.lines(kind=kind, route=model.route(group)).lines
    parts = [
        tuple(map(float, (line.fixed, line.seconds_per_byte, line.latency, line.hiding))) for line in lines
    ]
    fixeds = [
        fixed + num_bytes * beta + (hops * hops / (hops + share * num_bytes * beta) if hops else 0.0)
        for fixed, beta, hops, share in parts
    ]
    kept = [
        line.held and min(float(line.held.steps), num_bytes * float(line.held.seconds_per_byte))
        for line in lines
    ]
    chunked = [line.chunks and _chunked(line.chunks, num_bytes) for line in lines]
    slower = [
        line.ramp and _running_in(line.ramp, num_bytes * float(line.seconds_per_byte)) for line in lines
    ]
    fixeds = [
        seconds + (wait or 0.0) + (more or 0.0) + (late or 0.0)
        for seconds, wait, more, late in zip(fixeds, kept, chunked, slower, strict=True)
    ]
    believed = [
        seconds
        if line.guess is None or not line.guess.within
        else float(line.guess.latency) + num_bytes * float(line.guess.seconds_per_byte)
        for seconds, line in zip(fixeds, lines, strict=True)
    ]
    assert min(map(min, parts)) >= 0.0
    picked = fixeds[believed.index(min(believed))]
    assert float(model.seconds(kind=kind, num_bytes=num_bytes, group=group)) == pytest.approx(
        picked, rel=1e-12
    )


def _running_in(ramp, transfer):
    """Return what a transfer loses until its channels run at full rate."""
    return float(ramp.share) * transfer * ramp.half / (ramp.half + transfer)


def _chunked(chunks, num_bytes):
    """Return what the first chunks take to be copied out, less what a short message saves."""
    early = float(chunks.saved) if num_bytes <= float(chunks.short) else 0.0
    return min(num_bytes, float(chunks.num_bytes)) * float(chunks.seconds_per_byte) - early


def _alone(algorithm, cluster):
    """Return the model of a network whose library knows one algorithm."""
    known = AlphaBeta.from_cluster(cluster)
    links = tuple(replace(link, algorithms=(algorithm,)) for link in known.calibration.links)
    return replace(known, calibration=replace(known.calibration, links=links))


@given(data=st.data(), num_bytes=volumes)
@settings(max_examples=30, deadline=None)
def test_by_levels_a_sum_takes_no_less_than_each_level(data, num_bytes):
    cluster = CLUSTERS["h100-sxm"]
    per_node = float(cluster.devices_per_node)
    nodes = float(data.draw(st.integers(2, cluster.num_devices // 8)))
    levels, rings = _alone("hierarchical", cluster), _alone("ring", cluster)
    whole = float(levels.seconds(kind="all_reduce", num_bytes=num_bytes, group=Group(size=nodes * per_node)))
    inner, outer = (
        min(
            size * float(line.seconds_per_byte)
            for line in rings.lines(kind="all_reduce", route=rings.route(group)).lines
        )
        for size, group in (
            (num_bytes, Group(size=per_node)),
            (num_bytes / per_node, Group(size=nodes, stride=per_node)),
        )
    )
    assert whole >= max(inner, outer) * (1.0 - 1e-9)
