"""Errors of constraints: what is wrong with which field, and the nearest values that break no rule."""

from __future__ import annotations

import pickle

import pytest
from tests.small import cluster, dense, moe

from forescale.errors import ReaderError, SpecError
from forescale.spec import Layout, Workload
from forescale.spec.constraints import CONSTRAINTS, check


def causes(layout: Layout, batch: int = 16, model=None, devices: int = 16) -> tuple[SpecError, ...]:
    with pytest.raises(SpecError) as caught:
        check(model or dense(), cluster(devices), layout, Workload(seq_len=512, global_batch_size=batch))
    assert caught.value.code == "illegal_layout"
    return caught.value.causes


def test_a_batch_has_the_next_multiples() -> None:
    [cause] = causes(Layout(dp_shard=16), batch=44)
    assert (cause.code, cause.key, cause.value) == ("not_divisible", "global_batch_size", 44)
    assert (cause.allowed, cause.nearest) == (16, (48, 32))


def test_a_batch_below_the_ranks_has_one_neighbour() -> None:
    [cause] = causes(Layout(dp_shard=16), batch=1)
    assert cause.nearest == (16,)


@pytest.mark.parametrize(
    ("layout", "key", "value", "nearest"),
    [
        (Layout(pp=16), "pp", 16, (8,)),  # 8 layers
        (Layout(vpp=2, dp_shard=16), "vpp", 2, (1,)),
        (Layout(ep=2, dp_shard=16), "ep", 2, (1,)),
        (Layout(pp=4, vpp=2, dp_shard=4), "global_batch_size", 20, (16, 32)),
    ],
)
def test_the_nearest_values_break_no_rule(
    layout: Layout, key: str, value: int, nearest: tuple[int, ...]
) -> None:
    found = [
        cause for cause in causes(layout, batch=20 if key == "global_batch_size" else 16) if cause.key == key
    ]
    assert [(cause.value, cause.nearest) for cause in found] == [(value, nearest)]


def test_data_parallelism_fills_the_devices_of_another_degree() -> None:
    """tp 3 on 48 devices: 2 and 4 leave 24 and 12 ranks, of which a batch of 48 is a multiple."""
    found = {cause.key: cause for cause in causes(Layout(tp=3, dp_shard=16), batch=48, devices=48)}
    assert found["tp"].nearest == (2, 4)
    assert found["seq_len"].nearest == ()  # 513 leaves tp 3 illegal


def test_experts_divide() -> None:
    [cause] = [
        item
        for item in causes(Layout(ep=3, dp_shard=12), batch=12, model=moe(), devices=12)
        if item.key == "ep"
    ][:1]
    assert (cause.code, cause.value, cause.nearest) == ("not_a_factor", 3, (2, 4))


def test_fields_survive_places_and_processes() -> None:
    with pytest.raises(SpecError) as caught:
        check(dense(), cluster(16), Layout(dp_shard=16), Workload(seq_len=512, global_batch_size=44))
    error = ReaderError("plan.toml", caught.value.at("phase 1"))
    assert [cause.nearest for cause in error.causes] == [(48, 32)]
    assert [cause.nearest for cause in pickle.loads(pickle.dumps(error)).causes] == [(48, 32)]


def test_every_key_is_a_field_of_the_layout_or_the_workload() -> None:
    fields = {*Layout.__struct_fields__, *Workload.__struct_fields__}
    assert {rule.key for rule in CONSTRAINTS} - {""} <= fields
