"""Groups of micro-batches that chunks take in turn."""

from __future__ import annotations

import numpy as np

from forescale.spec import Layout
from forescale.spec.groups import group_of, groups_fit, violation


def test_one_chunk_has_no_groups():
    assert group_of(Layout(pp=4, vpp=2, microbatch_group=6)) == 6
    assert group_of(Layout(pp=4, microbatch_group=6)) is None
    assert group_of(Layout(pp=4, vpp=2)) is None


def test_groups_fit_arrays_as_they_fit_numbers():
    pp, vpp, count, group = np.meshgrid([2, 4], [1, 2], [4, 9, 10], [2, 4, 5, 8], indexing="ij")
    every = groups_fit(pp, vpp, count, group)
    alone = [groups_fit(*item) for item in zip(*map(np.ravel, (pp, vpp, count, group)), strict=True)]
    assert every.ravel().tolist() == [bool(item) for item in alone]


def test_the_nearest_that_is_told_fits():
    for pp in (2, 3, 5):
        for count in range(pp, 24):
            fit = [group for group in range(1, count + 1) if groups_fit(pp, 2, count, group)]
            for group in set(range(1, 30)) - set(fit):
                explicit = int(violation(None, pp, count, group).rpartition(" ")[2])
                assert explicit in fit
                assert abs(explicit - group) == min(abs(item - group) for item in fit)
