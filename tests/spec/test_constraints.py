from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.spec import Layout, Share, Workload
from forescale.spec.constraints import CONSTRAINTS, check, exchanged_heads_divide, legal, sees_picked
from forescale.spec.proposal import ManyLayouts, Proposal
from forescale.spec.workload import Trainable

DEGREES = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp_replicate", "dp_shard", "zero", "micro_batch_size")
small = st.sampled_from([1, 2, 3, 4, 8])
layouts = st.fixed_dictionaries(
    {name: small for name in DEGREES if name != "zero"} | {"zero": st.integers(0, 3), "sp": st.booleans()}
)


@settings(max_examples=60, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=20), st.sampled_from([dense(), moe()]))
def test_the_mask_and_the_sentence_agree(rows, model):
    """What the mask over arrays refuses is what `check` refuses in words, layout by layout."""
    columns = ManyLayouts({name: np.array([row[name] for row in rows]) for name in rows[0]}, Layout())
    place = cluster(16)
    mask, refused = legal(Proposal(model=model, cluster=place, workload=workload(), degrees=columns))
    for row, is_legal in zip(rows, mask, strict=True):
        if is_legal:
            check(model, place, Layout(**row), workload())
        else:
            with pytest.raises(SpecError):
                check(model, place, Layout(**row), workload())
    assert sum(refused.values()) >= (~mask).sum()


def test_every_constraint_has_a_name_of_its_own():
    names = [constraint.name for constraint in CONSTRAINTS]
    assert len(set(names)) == len(names)


def test_all_violations_are_named_at_once():
    with pytest.raises(SpecError) as caught:
        check(dense(), cluster(16), Layout(tp=3, pp=16, micro_batch_size=5), workload())
    for name in ("heads", "layers", "devices", "global_batch_size"):
        assert name in str(caught.value)


def fits(model, count, **layout):
    try:
        check(model, cluster(16), Layout(zero=3, reshard=count, **layout), workload())
    except SpecError as error:
        return str(error)
    return ""


def test_weights_are_shared_over_a_part_of_the_ranks_that_hold_them():
    counts = range(2, 20)
    assert [n for n in counts if not fits(dense(), n, dp_shard=16)] == [2, 4, 8, 16]
    assert [n for n in counts if not fits(dense(), n, dp_shard=4, dp_replicate=4)] == [2, 4]
    assert [n for n in counts if not fits(dense(), n, cp=4, dp_shard=4)] == [2, 4, 8, 16]
    explicit = (
        "reshard 3 does not divide the 16 ranks that share weights; it takes always, never, 2, 4, 8, 16"
    )
    assert fits(dense(), 3, dp_shard=16) == explicit
    assert not fits(dense(), 3, tp=4, dp_replicate=4)  # nobody shares them


def test_experts_are_shared_over_fewer_neighbours_where_there_are_fewer():
    experts = replace(moe(), layers=moe().layers[:2])
    assert [n for n in range(2, 20) if not fits(experts, n, ep=4, dp_shard=16)] == [2, 4, 8, 16]


GROUPED = {"pp": 4, "vpp": 2}


@pytest.mark.parametrize("group", [None, 4, 5, 6, 8, 10])
def test_groups_of_micro_batches_that_fit(group):
    """Of 10, the last group of 6 has 4, of 8 it has 2; without groups 10 are not a multiple of 4."""
    layout = Layout(**GROUPED, microbatch_group=group)
    work = Workload(seq_len=512, global_batch_size=10)
    if group in (5, 6, 10):
        check(dense(8), cluster(4), layout, work)
    else:
        with raises(SpecError, "illegal_layout"):
            check(dense(8), cluster(4), layout, work)


@pytest.mark.parametrize(
    ("count", "changes", "told"),
    [
        (8, {"microbatch_group": 3}, "microbatch_group 3 must be at least pp 4 and at most the 8 micro-batches: the "
         "nearest that fits is 4"),
        (8, {"microbatch_group": 9}, "microbatch_group 9 must be at least pp 4 and at most the 8 micro-batches: the "
         "nearest that fits is 8"),
        (10, {"microbatch_group": 8}, "microbatch_group 8 leaves 2 of 10 micro-batches over, fewer than pp 4: the nearest "
         "that fits is 6"),
        (3, {"microbatch_group": 4}, "interleaved 1F1B needs pp 4 micro-batches or more; num_microbatches is 3"),
        (8, {"microbatch_group": 4, "schedule": "interleaved-1f1b"}, "microbatch_group 4 is of interleaved 1F1B: leave "
         "schedule interleaved-1f1b out, or microbatch_group"),
        (10, {}, "interleaved 1F1B needs num_microbatches (10) divisible by pp 4"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_groups_of_micro_batches(count, changes, told):
    with pytest.raises(SpecError) as caught:
        check(
            dense(8),
            cluster(4),
            Layout(**GROUPED, **changes),
            Workload(seq_len=512, global_batch_size=count),
        )
    assert str(caught.value) == told


def test_the_nearest_group_is_found_among_any_number_of_micro_batches():
    layout = Layout(**GROUPED, microbatch_group=799_999_998)
    with raises(SpecError, "illegal_layout groups of micro-batches"):
        check(dense(8), cluster(4), layout, Workload(seq_len=512, global_batch_size=800_000_000))


def test_one_chunk_takes_micro_batches_in_no_groups():
    work = Workload(seq_len=512, global_batch_size=10)
    for schedule in (None, "1f1b"):
        check(dense(8), cluster(4), Layout(pp=4, microbatch_group=3, schedule=schedule), work)


def test_summa_has_no_neighbours():
    assert "reshard is always or never, not 2" in fits(dense(), 2, tp_kind="summa", tp=2, dp_shard=8)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ((Share(tp=4),), "illegal_layout placement"),
        ((Share(tp=2, cp=4),), "illegal_layout placement"),
        ((Share(tp=8), Share(pp=2)), "illegal_layout placement"),
    ],
)
def test_placements_fill_tiers_and_divide_degrees(placement, words):
    layout = Layout(tp=8, pp=2, placement=placement)
    with raises(SpecError, words):
        check(dense(), cluster(16), layout, workload())
    check(dense(), cluster(16), replace(layout, placement=(Share(tp=4, pp=2),)), workload())


def test_exchanged_heads_are_whole():
    """16 heads: tp 2 leaves 8 to exchange among 8 context ranks, not among 16, unless in groups of 8."""
    heads = (np.array([2, 2, 1]), np.array([8, 16, 1]))
    assert exchanged_heads_divide(dense(), *heads, "ulysses", 8).tolist() == [True, False, True]
    assert exchanged_heads_divide(dense(), *heads, "hierarchical", 8).tolist() == [True, True, True]
    layout = Layout(tp=2, cp=16, cp_kind="ulysses")
    with raises(SpecError, "illegal_layout heads over tp × cp"):
        check(dense(), cluster(32), layout, workload())


SPARSE = load_model("glm-5.2")


def proposed(model=SPARSE, trainable=None, **layout):
    """Check a layout of a model that picks keys on 64 devices."""
    workload = Workload(seq_len=4096, global_batch_size=64, trainable=trainable or Trainable())
    dp = 64 // layout.get("cp", 1)
    check(model, load_cluster("h100-sxm", num_devices=64), Layout(dp_shard=dp, **layout), workload)


def test_picked_keys_are_gathered_over_cp():
    proposed(cp=4)
    for kind in ("ring", "ulysses", "hierarchical"):
        proposed(cp_kind=kind)
        with raises(SpecError, "illegal_layout picked keys over cp"):
            proposed(cp=4, cp_kind=kind)
    assert sees_picked(SPARSE, np.array([1, 2]), "ring").tolist() == [True, False]
    assert sees_picked(dense(), np.array([1, 2]), "ring").tolist() == [True, True]


def test_keys_are_picked_before_they_are_read():
    backwards = replace(SPARSE, layers=SPARSE.layers[3:])
    with raises(SpecError, "illegal_layout keys are picked before they are read"):
        proposed(backwards)


def test_adapters_lie_beside_projections_that_are_there():
    proposed(trainable=Trainable(lora_rank=8, lora_targets=("q_proj", "o_proj")))
    with raises(SpecError, "illegal_layout adapters beside picked keys"):
        proposed(trainable=Trainable(lora_rank=8))
