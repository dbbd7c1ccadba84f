"""What is enumerated against what a constraint allows, layout by layout."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.errors import SpecError
from forescale.search.tree import enumerate_layouts
from forescale.spec import Layout
from forescale.spec.constraints import check
from forescale.spec.space import Space

NAMES = ("tp", "cp", "ep", "etp", "dp_shard", "dp_replicate")
POWERS = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("model", [dense(2), moe(2)], ids=["dense", "moe"])
def test_every_layout_that_is_legal_is_enumerated(model):
    devices, work = cluster(16), workload(global_batch_size=16)
    space = Space(pp=(1,), zero=(1,), micro_batch_size=(1,), sp=(True,))
    columns = enumerate_layouts(model, devices, work, space).columns
    legal = set()
    for values in product(POWERS, repeat=len(NAMES)):
        degrees = dict(zip(NAMES, values, strict=True))
        tp, cp, _, _, shard, replicas = values
        if tp * cp * shard * replicas != devices.num_devices:
            continue
        with suppress(SpecError):
            check(model, devices, Layout(**degrees, zero=1, sp=True), work)
            legal.add(values)
    assert set(zip(*(columns[name].tolist() for name in NAMES), strict=True)) == legal
