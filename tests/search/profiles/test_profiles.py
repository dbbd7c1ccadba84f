from __future__ import annotations

from functools import cache

import pytest
from tests import small

from forescale.errors import SpecError, UnknownNameError
from forescale.search import search
from forescale.search.profiles import PROFILES, load_profile
from forescale.search.tree import enumerate_layouts
from forescale.spec import Recompute, Workload
from forescale.spec.space import Space

WORKLOAD = Workload(seq_len=4096, global_batch_size=32)


@cache
def layouts(name):
    """Return every layout that a framework can be told: a tuple, as several tests look at it."""
    profile = load_profile(name)
    found = enumerate_layouts(small.dense(), small.cluster(16), WORKLOAD, profile.space())
    return tuple(
        found.strategy(variant, row)
        for variant, each in enumerate(found.variants)
        for row in found.allows(each).nonzero()[0].tolist()
    )


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_layout_is_one_that_the_framework_knows(profile):
    everything = enumerate_layouts(small.dense(), small.cluster(16), WORKLOAD, Space())
    found = layouts(profile.name)
    assert found
    assert len(found) < len(everything) or profile.name == "maxtext"
    for strategy in found:
        for dimension, values in profile.values.items():
            if dimension == "sp" and strategy.tp == 1:
                continue
            if dimension == "placement":
                assert values == ("orders",)
                assert strategy.placement is None
                continue
            assert getattr(strategy, dimension) in values
        assert strategy.software == profile.software


def test_megatron_and_deepspeed_keep_stages_2_and_3_without_pipeline():
    for name in ("megatron", "deepspeed"):
        found = layouts(name)
        assert not [strategy for strategy in found if strategy.zero >= 2 and strategy.pp > 1]
        assert [strategy for strategy in found if strategy.zero == 1 and strategy.pp > 1]
        assert [strategy for strategy in found if strategy.zero == 3]


def test_deepspeed_shards_in_groups_at_stage_3_only_and_without_tensor_parallelism():
    found = layouts("deepspeed")
    assert not [s for s in found if s.zero == 3 and s.tp > 1]
    assert not [s for s in found if s.zero < 3 and s.dp_replicate > 1 and s.dp_shard > 1]
    assert [s for s in found if s.zero == 3 and s.dp_replicate > 1]


def test_maxtext_has_equal_stages():
    assert all(8 % (strategy.pp * strategy.vpp) == 0 for strategy in layouts("maxtext"))


def test_best_of_a_framework_is_the_best_of_what_it_can_be_told():
    for profile in PROFILES:
        space = profile.space()
        best = search(small.dense(), small.cluster(16), WORKLOAD, space=space, top=1).best[0]
        assert best.strategy in layouts(profile.name)


def test_what_it_does_not_know_is_named():
    profile = load_profile("torchtitan")
    profile.check("schedule", ("zbv",))
    profile.check("tp", (7,))
    with pytest.raises(SpecError, match=r"torchtitan has no etp 2; it takes 1"):
        profile.check("etp", (2,))
    with pytest.raises(SpecError, match=r"deepspeed has no recompute selective; it takes none, full"):
        load_profile("deepspeed").check("recompute", (Recompute(granularity="selective"),))
    with pytest.raises(UnknownNameError, match="did you mean megatron"):
        load_profile("megatron-lm")
