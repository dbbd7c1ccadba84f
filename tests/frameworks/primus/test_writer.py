"""What is written for Primus round-trips exactly, its own schedules and listed layers too."""

from __future__ import annotations

from tests.errors import raises
from tests.export.laws import check_writer
from tests.plans import plans

import forescale as fs
from forescale.errors import SpecError
from forescale.spec import Recompute

OWN = {
    "schedule": (None, "zb-h1", "zb-1p", "zbv", "v-half", "v-min"),
    "vpp": (1, 2),
    "dispatcher": ("all_to_all", "deepep"),
    "recompute": (Recompute(), Recompute(granularity="full", layer_ids=(0, 1))),
}


def test_plans_read_back_to_the_bit() -> None:
    check_writer(plans("primus", 45, cluster="mi300x"))


def test_what_primus_has_beside_megatron_is_said() -> None:
    written = check_writer(plans("primus", 45, seed=2, cluster="mi300x", **OWN))
    texts = "".join(result.texts[result.main] for result in written)
    for word in ("pp_algorithm", "use_turbo_deepep: true", "recompute_layer_ids: [0, 1]"):
        assert word in texts


def test_hybrids_are_refused_by_name() -> None:
    parts = {"devices": 8, "seq_len": 4096, "global_batch_size": 8}
    with raises(SpecError, "unsupported_by primus"):
        fs.export("nemotron-3-nano-30b-a3b", "mi300x", **parts, to="primus")
