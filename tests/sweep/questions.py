"""A small sweep for tests: few layouts per point, and one point at which nothing fits."""

from __future__ import annotations

import copy
from typing import Any

from forescale.sweep import Sweep, build_sweep

SMALL: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "h100-sxm",
    "devices": 16,
    "workload": {"seq_len": 4096, "global_batch_size": 64},
    "space": {
        "cp": 1,
        "pp": 1,
        "micro_batch_size": 1,
        "sp": True,
        "zero": 1,
        "recompute": "none",
        "axis_order": "tp-cp-dp-pp",
    },
}
TEXT = """\
model = "llama-3.1-8b"
cluster = "h100-sxm"
devices = 16

[workload]
seq_len = 4096
global_batch_size = 64

[space]
cp = 1
pp = 1
micro_batch_size = 1
sp = true
zero = 1
recompute = "none"
axis_order = "tp-cp-dp-pp"

"""


def sweep(**sections: Any) -> Sweep:
    return build_sweep({**copy.deepcopy(SMALL), **sections})


def grid(**values: Any) -> Sweep:
    return sweep(vary=values)
