"""Every dispatcher passes the suite, which one with copied physics does not."""

from __future__ import annotations

from itertools import chain
from unittest import mock

import pytest
from msgspec.structs import replace
from tests import small

from forescale.errors import ForescaleError
from forescale.explain.explain import explain
from forescale.export import export
from forescale.frameworks.writers import WRITERS
from forescale.graph.layer import layer_block
from forescale.graph.ops import Elementwise
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory import outside
from forescale.question import question_of
from forescale.spec.dispatchers import DISPATCHERS, DispatcherKind
from forescale.spec.layout import Layout
from forescale.spec.workload import Precision

TOP_K = small.MOE_LAYER.ffn.top_k


def question(name, ep=8):
    layout = Layout(dp_shard=16, ep=ep, dispatcher=name)
    return question_of(small.moe(2), small.cluster(16), small.workload(), strategy=layout)


def block(name):
    degrees, choices = split_layout(Layout(dp_shard=16, ep=8, dispatcher=name))
    sharding = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=512.0)
    return layer_block(small.moe(2), small.MOE_LAYER, sharding)


def permuted(block):
    """Return the bytes that kernels permute or copy, and how many of them the framework launches."""
    work = chain.from_iterable((*operator.forward, *operator.backward_input) for operator in block.operators)
    kernels = [item for item in work if isinstance(item, Elementwise) and item.family == "permute"]
    return sum(float(kernel.bytes_moved) for kernel in kernels), sum(
        float(kernel.kernels) for kernel in kernels if kernel.called
    )


def check_dispatcher(kind: DispatcherKind) -> None:
    """Fail with an AssertionError where a dispatcher breaks a rule.

    Rows that return are one per token exactly if a token is sent once; a library of its own has buffers; one that sorts
    leaves the framework fewer kernels to launch; it is explained, and comes back from frameworks with a name for it.
    """
    rows = block(kind.name)
    returned = rows.tensors["moe.returned"].elements / rows.tensors["ffn.result"].elements
    assert returned == pytest.approx(1.0 if kind.sends_once else TOP_K), "rows that come back for a token"
    assert kind.name in outside.BUFFERS, "no entry in BUFFERS"
    assert (outside.BUFFERS[kind.name] is not None) == kind.sends_once, "buffers of a library of its own"
    if kind.sends_once:
        assert permuted(rows)[0] < permuted(block("all_to_all"))[0], (
            "rows are copied for each expert all the same"
        )
        unsorted = [
            item.name for item in DISPATCHERS.values() if item.sends_once and not item.sorts_by_expert
        ]
        assert (permuted(rows)[1] < permuted(block(unsorted[0]))[1]) == kind.sorts_by_expert, (
            "rows sorted by expert"
        )
    assert explain(question(kind.name), "step_time").value > 0.0
    for framework in (writer.frameworks[0] for writer in WRITERS):
        try:
            result = export(question(kind.name), framework)
        except ForescaleError:
            continue
        same = result.read_back.strategy.dispatcher == result.question.layout.dispatcher
        assert same or any(item.word.endswith("dispatcher") for item in result.unsaid), framework


@pytest.mark.parametrize("kind", DISPATCHERS.values(), ids=lambda kind: kind.name)
def test_dispatcher_keeps_the_rules(kind):
    check_dispatcher(kind)


@pytest.mark.parametrize(
    ("changed", "entry", "broken"),
    [
        ({"sends_once": False}, "deepep", "buffers of a library"),
        ({"sends_once": True}, "all_to_all", "buffers of a library"),
        ({"sends_once": True}, None, "no entry in BUFFERS"),
    ],
)
def test_a_copied_dispatcher_is_refused(changed, entry, broken):
    kind = replace(DISPATCHERS["deepep"], name="copied", **changed)
    entries = {} if entry is None else {"copied": outside.BUFFERS[entry]}
    with (
        mock.patch.dict(DISPATCHERS, {"copied": kind}),
        mock.patch.dict(outside.BUFFERS, entries),
        pytest.raises(AssertionError, match=broken),
    ):
        check_dispatcher(kind)


def test_names_of_a_framework_mean_one_dispatcher():
    for framework in {name for kind in DISPATCHERS.values() for name in kind.frameworks}:
        names = [item for kind in DISPATCHERS.values() for item in kind.frameworks.get(framework, ())]
        assert len(names) == len(set(names)), framework
