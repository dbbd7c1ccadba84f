from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forescale.cost.measured import KernelTable
from forescale.graph.ops import AttentionCore, Elementwise, Gemm, GroupedGemm

GEMM = Gemm(m=1024.0, n=4096.0, k=2048.0)
ATTENTION = AttentionCore(
    batch=1.0, heads=32.0, kv_heads=8.0, q_len=2048.0, kv_len=2048.0, pairs=2048.0 * 2048.0 / 2,
    qk_dim=128.0, v_dim=128.0,
)  # fmt: skip


def longer(op, length):
    return replace(op, q_len=length, kv_len=length, pairs=length * length / 2)


def table(*timings):
    return KernelTable(timings)


def seconds(result):
    return result.below_s + result.share * (result.above_s - result.below_s)


def test_a_timed_shape_is_found_exactly_and_equal_shapes_give_their_median():
    find = table((GEMM, 3e-4), (GEMM, 1e-4), (GEMM, 2e-4)).find(GEMM)
    assert find.exact.item()
    assert seconds(find).item() == 2e-4


def test_between_two_timed_shapes_seconds_follow_the_work():
    grid = table((GEMM, 1e-4), (replace(GEMM, m=2048.0), 1.8e-4))
    find = grid.find(replace(GEMM, m=1280.0))
    assert find.covered.item()
    assert not find.exact.item()
    assert seconds(find).item() == pytest.approx(1e-4 + 0.25 * 0.8e-4)


def test_attention_between_two_lengths_follows_their_squares():
    grid = table((ATTENTION, 1e-3), (longer(ATTENTION, 4096.0), 4e-3))
    find = grid.find(longer(ATTENTION, 3072.0))
    assert seconds(find).item() == pytest.approx(2.25e-3)


def test_the_diagonal_of_the_mask_makes_no_other_kernel():
    with_diagonal = replace(ATTENTION, pairs=2048.0 * 2049.0 / 2)
    assert table((ATTENTION, 1e-3)).find(with_diagonal).exact.item()


def test_of_several_pairs_of_neighbours_the_closest_counts():
    wide = [(replace(GEMM, m=256.0), 1.0), (replace(GEMM, m=8192.0), 9.0)]
    close = [(replace(GEMM, n=3584.0), 4e-4), (replace(GEMM, n=4608.0), 5e-4)]
    assert 4e-4 < seconds(table(*wide, *close).find(GEMM)).item() < 5e-4
    # By their ratio: 4,608 columns over 3,584 are closer than 2,000 rows over 500.
    fewer = [(replace(GEMM, m=500.0), 1.0), (replace(GEMM, m=2000.0), 9.0)]
    assert 4e-4 < seconds(table(*fewer, *close).find(GEMM)).item() < 5e-4


@pytest.mark.parametrize(
    "other",
    [
        replace(GEMM, m=4096.0),
        replace(GEMM, m=512.0),
        replace(GEMM, m=1280.0, n=8192.0),
        replace(GEMM, m=1280.0, dtype="fp8"),
        replace(GEMM, m=1280.0, accumulate_bytes=4.0),
        GroupedGemm(groups=1.0, m=1280.0, n=4096.0, k=2048.0),
        Elementwise(bytes_moved=1e6),
        ATTENTION,
    ],
)
def test_nothing_is_extrapolated_or_taken_from_another_kernel(other):
    assert table((GEMM, 1e-4), (replace(GEMM, m=2048.0), 1.8e-4)).find(other) is None


def test_candidates_are_looked_up_one_by_one():
    grid = table((GEMM, 1e-4), (replace(GEMM, m=2048.0), 1.8e-4))
    find = grid.find(replace(GEMM, m=np.array([[1024.0, 1536.0], [4096.0, 2048.0]])))
    assert find.covered.tolist() == [[True, True], [False, True]]
    assert find.exact.tolist() == [[True, False], [False, True]]
    assert seconds(find)[0].tolist() == pytest.approx([1e-4, 1.4e-4])


GROUPED = GroupedGemm(groups=4.0, m=1024.0, n=4096.0, k=2048.0)
PASS = Elementwise(bytes_moved=1e6, kernels=2.0, transposed_bytes=5e5)


@pytest.mark.parametrize(
    ("op", "extent"),
    [
        *((GEMM, name) for name in ("m", "n", "k", "batch")),
        *((GROUPED, name) for name in ("groups", "m", "n", "k")),
        *((ATTENTION, name) for name in ("batch", "qk_dim", "v_dim")),
        *((PASS, name) for name in ("bytes_moved", "kernels")),
    ],
)
def test_work_grows_with_every_extent(op, extent):
    """Between one and three times as much: at twice it is half of the way."""
    value = getattr(op, extent)
    grid = table((op, 1.0), (replace(op, **{extent: 3 * value}), 5.0))
    assert seconds(grid.find(replace(op, **{extent: 2 * value}))).item() == pytest.approx(3.0)
    assert grid.find(replace(op, **{extent: 4 * value})) is None


def test_calls_of_attention_are_sequences_times_heads():
    """Two sequences of 32 heads are what one of 64 is, as long as as many queries share a key."""
    twice = replace(ATTENTION, heads=64.0, kv_heads=16.0)
    assert table((replace(ATTENTION, batch=2.0), 1e-3)).find(twice).exact.item()
    assert table((ATTENTION, 1e-3)).find(replace(ATTENTION, kv_heads=16.0)) is None


def test_extents_of_attention_that_are_shares():
    """Queries to a key head, keys to a query, the part of the pairs that a mask leaves: each along its own line."""
    for name, changed in (
        ("kv_heads", lambda share: {"kv_heads": 32.0 / share}),
        ("kv_len", lambda share: {"kv_len": 2048.0 * share, "pairs": ATTENTION.pairs * share}),
        ("pairs", lambda share: {"pairs": 2048.0 * 2048.0 * share / 8}),
    ):
        ends = [
            (replace(ATTENTION, **changed(share)), seconds_) for share, seconds_ in ((1.0, 1.0), (3.0, 5.0))
        ]
        between = replace(ATTENTION, **changed(2.0))
        assert seconds(table(*ends).find(between)).item() == pytest.approx(3.0, rel=0.02), name


def test_what_is_written_transposed_counts_as_moved():
    assert table((PASS, 1.0)).find(replace(PASS, bytes_moved=1.5e6, transposed_bytes=0.0)).exact.item()


def test_products_that_accumulate_are_another_family_whatever_they_add():
    summed = replace(GEMM, accumulate_bytes=4.0)
    assert table((summed, 1.0)).find(replace(GEMM, accumulate_bytes=2.0)).exact.item()
    assert table((GEMM, 1.0)).find(summed) is None
    grouped = replace(GROUPED, accumulate_bytes=4.0)
    assert table((grouped, 1.0)).find(replace(GROUPED, accumulate_bytes=8.0)).exact.item()
    assert table((GROUPED, 1.0)).find(grouped) is None


def test_what_was_not_timed_says_so():
    """Neither exact nor between: no seconds are given for it among others."""
    grid = table((GEMM, 1e-4), (replace(GEMM, m=2048.0), 1.8e-4))
    find = grid.find(replace(GEMM, m=np.array([4096.0, 1024.0])))
    assert (find.covered.tolist(), find.exact.tolist()) == ([False, True], [False, True])
    assert (find.below_s[0], find.above_s[0], find.share[0]) == (1.0, 1.0, 0.0)
    assert grid.num_shapes == 2
