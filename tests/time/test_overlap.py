"""Tensor-parallel collectives behind products, worked out by hand on the toy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests import small, toy

from forescale.project import project
from forescale.spec import DenseFfn, Layer, Layout, Model, Workload
from forescale.spec.layout import Overlap
from forescale.time.overlap import Covers

TOKENS, HIDDEN = 2 * 512, 512


def seconds(width, **overlap):
    """Return the tensor-parallel messages of one micro-batch and layer, ends apart."""
    layer = Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=width), num_norms=1)
    layout = Layout(tp=2, micro_batch_size=2, overlap=Overlap(**overlap))
    one, two = (
        project(
            Model(name="by-hand", hidden_size=HIDDEN, layers=(layer,) * count, vocab_size=2),
            toy.cluster(2),
            layout,
            Workload(seq_len=512, global_batch_size=2),
            costs=toy.costs(),
        ).time_s["tensor_comm"]
        for count in (1, 2)
    )
    return two - one


def product(k, n):
    forward = max(2 * TOKENS * k * n / 100e12, 2 * (TOKENS * k + k * n + TOKENS * n) / 1e12)
    return forward, max(2 * TOKENS * k * n / 100e12, (2 * TOKENS * (k + n) + 8 * k * n) / 1e12)


GATHER = TOKENS * HIDDEN * 2 / 2 / 100e9


@pytest.mark.parametrize("width", [256, 768, 4096])
def test_messages_in_four_chunks_show_one_of_them_or_what_the_product_leaves(width):
    """Userbuffers cut a message in 4 (Transformer Engine, module/base.py get_default_config, num_splits).

    Forward, the gather runs with up and the scatter with down; backward, the mirrors of those: the second gather and
    the scatter of gradients behind the other product of the layer that they feed.
    """
    up, down = product(HIDDEN, width), product(width / 2, HIDDEN)

    def chunked(cover):
        return max(GATHER - cover, GATHER / 4)

    behind = max(GATHER - up[1], 0) + max(GATHER - up[0], 0)
    assert seconds(width, tensor=True) == pytest.approx(chunked(up[0]) + 2 * chunked(down[0]) + behind)
    assert seconds(width) == pytest.approx(3 * GATHER + behind)


def priced(name, passes, messages, reads=(), writes=(), behind=None):
    """An operator of seconds of forward, input and weight gradient, with messages in all of them or in none."""
    forward, backward_input, backward_weight = ((pass_, messages) for pass_ in passes)
    operator = SimpleNamespace(
        name=name,
        reads=reads,
        writes=writes,
        hidden_behind=behind,
        overlaps_itself=False,
        panels=None,
        part="mlp",
    )
    return name, SimpleNamespace(
        operator=operator, forward=forward, backward_input=backward_input, backward_weight=backward_weight
    )


@pytest.mark.parametrize(
    ("asynchronous", "split", "behind", "forward", "backward_input", "backward_weight"),
    [
        (True, False, "up", (0.5, 2.0), (0.25 + 5.0, 0.0), (0.125 + 3.0, 0.0)),
        (True, True, "up", (0.5, 2.0), (0.25, 3.0), (0.125, 0.0)),
        (False, True, "up", (0.5, 0.0), (0.25, 0.0), (0.125, 0.0)),
        (
            True,
            False,
            None,
            (0.5, 7.0),
            (0.25, 11.0),
            (0.125, 0.0),
        ),  # of the product that wrote what it reads
    ],
)
def test_what_messages_may_run_behind(asynchronous, split, behind, forward, backward_input, backward_weight):
    """The whole other half of backward of the product they feed; in chunks the product itself."""
    up, down = (
        priced("up", (2.0, 3.0, 5.0), {}, writes=("wide",)),
        priced("down", (7.0, 11.0, 13.0), {}, writes=("parts",)),
    )
    scatter = priced(
        "scatter", (0.5, 0.25, 0.125), {"tensor_comm": 1.0}, reads=("parts", "wide"), behind=behind
    )
    models = SimpleNamespace(run=SimpleNamespace(contention=0.0))
    block = SimpleNamespace(operators=dict((up, down, scatter)), pricing=SimpleNamespace(models=models))
    covers, local = Covers(block, asynchronous=asynchronous, split=split), scatter[1]
    assert covers.of_forward(local) == forward
    assert covers.of_backward_input(local) == backward_input
    assert covers.of_backward_weight(local) == backward_weight


def test_only_a_reshard_is_pipelined_with_the_product_before_it():
    """Messages of context parallelism run behind what the operator itself does."""
    up = priced("up", (2.0, 3.0, 5.0), {}, writes=("wide",))
    exchange = priced("exchange", (0.5, 0.25, 0.125), {"context_comm": 1.0}, reads=("wide",))
    first = priced("first", (0.5, 0.25, 0.125), {"tensor_comm": 1.0})
    models = SimpleNamespace(run=SimpleNamespace(contention=0.0))
    block = SimpleNamespace(operators=dict((up, exchange, first)), pricing=SimpleNamespace(models=models))
    covers = Covers(block, asynchronous=True)
    for _, local in (exchange, first):
        assert covers.of_forward(local) == (0.5, 0.0)
        assert covers.of_backward_input(local) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("split", "backward"), [(False, ((3 + 5) + (0.3 + 0.5), 11.0 + 13.0)), (True, (3 + 0.3, 11.0))]
)
def test_dispatch_runs_beside_the_first_product_of_shared_experts_and_combine_beside_the_second(
    split, backward
):
    """Their stream waits for the other one before either exchange; gathers over etp come after the first product."""
    names = (
        "moe.dispatch",
        "moe.dispatch_etp",
        "moe.combine",
        "shared.up",
        "shared.activation",
        "shared.down",
    )
    passes = (*((0.0, 0.0, 0.0),) * 3, (2.0, 3.0, 5.0), (0.2, 0.3, 0.5), (7.0, 11.0, 13.0))
    operators = {}
    for name, pass_ in zip(names, passes, strict=True):
        operators[name] = priced(name, pass_, {"expert_comm": 10.0} if name.startswith("moe") else {})[1]
    models = SimpleNamespace(run=SimpleNamespace(contention=0.0))
    block = SimpleNamespace(operators=operators, pricing=SimpleNamespace(models=models))
    covers = Covers(block, asynchronous=False, split=split, shared=True)
    hides, later, back = (operators[name] for name in names[:3])
    assert covers.of_forward(hides) == pytest.approx((2.2, 0.0))
    assert covers.of_forward(back) == (7.0, 0.0)
    assert covers.of_forward(later) == (0.0, 0.0)
    assert (covers.of_backward_input(hides)[0], covers.of_backward_input(back)[0]) == pytest.approx(backward)
    assert covers.of_backward_input(later) == (0.0, 0.0)
    shown = {}
    for item in (hides, later, back):
        covers.add(shown, item, item.forward, covers.of_forward)
    assert shown == {"expert_comm": pytest.approx((10 - 2.2) + 10 + (10 - 7.0))}
    alone = {}
    apart = Covers(block, asynchronous=False, split=split)
    for local in (hides, later, back):
        apart.add(alone, local, local.forward, apart.of_forward)
    assert alone == {"expert_comm": 30.0}


def test_a_ring_that_does_not_overlap_sends_before_it_computes():
    """Keys and values of 3 other ranks; overlapped, the attention hides all of them."""
    shown = {}
    for overlapped in (True, False):
        layout = Layout(cp=4, cp_kind="ring", overlap=Overlap(context=overlapped))
        result = project(small.dense(2), small.cluster(4), layout, small.workload())
        shown[overlapped] = result.time_s["context_comm"]
    assert shown[False] > shown[True]
