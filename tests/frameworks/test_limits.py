from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests import small
from tests.errors import raises

from forescale.catalogue.frameworks import load_framework
from forescale.errors import SpecError
from forescale.search import search
from forescale.search.tree import enumerate_layouts
from forescale.spec import Layout, Precision, Recompute, Workload
from forescale.spec.framework import check_choice, searched
from forescale.spec.space import Space

LIMITED = [
    load_framework(name) for name in ("megatron-core", "torchtitan", "deepspeed-zero", "maxtext", "nanotron")
]
WORKLOAD = Workload(seq_len=4096, global_batch_size=32)


@cache
def layouts(name):
    """Return every layout that a framework can be told: a tuple, as several tests look at it."""
    space = searched(load_framework(name), Space(), limited=True)
    result = enumerate_layouts(small.dense(), small.cluster(16), WORKLOAD, space)
    return tuple(result.strategy(variant, row) for variant, row in zip(*result.legal.nonzero(), strict=True))


@pytest.mark.parametrize("framework", LIMITED, ids=lambda framework: framework.name)
def test_every_layout_is_one_that_the_framework_knows(framework):
    everything = enumerate_layouts(small.dense(), small.cluster(16), WORKLOAD, Space())
    result = layouts(framework.name)
    assert result
    assert len(result) < len(everything) or framework.name == "maxtext"
    for layout in result:
        for dimension, values in framework.limits.values.items():
            if dimension == "sp" and layout.tp == 1:
                continue
            if dimension == "placement":
                assert values == ("orders",)
                assert layout.placement is None
                continue
            unchanged = (getattr(Layout(), dimension),) if None in values else ()
            assert getattr(layout, dimension) in (*values, *unchanged)


def test_megatron_and_deepspeed_keep_stages_2_and_3_without_pipeline():
    for name in ("megatron-core", "deepspeed-zero"):
        result = layouts(name)
        assert not [layout for layout in result if layout.zero >= 2 and layout.pp > 1]
        assert [layout for layout in result if layout.zero == 1 and layout.pp > 1]
        assert [layout for layout in result if layout.zero == 3]


def test_nemo_shards_weights_in_fp8():
    workload = replace(WORKLOAD, precision=Precision(compute="fp8", recipe="delayed", parameters="fp8"))
    space = searched(load_framework("nemo"), Space(zero=(0, 1)), limited=True)
    stages = []
    for run in (workload, WORKLOAD):
        result = enumerate_layouts(small.dense(), small.cluster(16), run, space)
        rows = [result.strategy(0, row) for row in result.legal[0].nonzero()[0].tolist()]
        stages.append({layout.zero for layout in rows})
    assert stages == [{1}, {0, 1}]


def test_deepspeed_has_no_replicas_of_shards_and_stage_3_without_tensor_parallelism():
    result = layouts("deepspeed-zero")
    assert not [s for s in result if s.zero == 3 and s.tp > 1]
    assert not [s for s in result if s.zero > 0 and s.dp_replicate > 1]
    assert [s for s in result if s.zero == 3]


def test_maxtext_has_equal_stages():
    assert all(8 % (layout.pp * layout.vpp) == 0 for layout in layouts("maxtext"))


def test_best_of_a_framework_is_the_best_of_what_it_can_be_told():
    for framework in LIMITED:
        space = searched(framework, Space(), limited=True)
        best = search(small.dense(), small.cluster(16), WORKLOAD, space=space, top=1).best[0]
        assert best.strategy in layouts(framework.name)


def test_what_it_does_not_know_is_named():
    framework = load_framework("torchtitan")
    check_choice(framework, "schedule", ("zbv",))
    check_choice(framework, "tp", (7,))
    with raises(SpecError, "not_one_of zero of torchtitan"):
        check_choice(framework, "zero", (2,))
    with raises(SpecError, "not_one_of recompute of deepspeed-zero"):
        check_choice(load_framework("deepspeed"), "recompute", (Recompute(granularity="selective"),))


def test_nanotron_divides_key_value_heads_and_has_no_expert_parallelism():
    heads = small.dense().layers[0].attention.num_kv_heads
    assert all(heads % layout.tp == 0 and layout.ep == 1 for layout in layouts("nanotron"))
    assert not [layout for layout in layouts("nanotron") if layout.zero > 1]
