from __future__ import annotations

import pytest

from forescale.io.lines import line_of

TEXT = """\
# a comment
model = "x"  # [vary]

[workload]
seq_len = 4096

[vary]
devices = [
    1,
    2,
]
device.hbm_bytes = "x2"
"cluster.tiers.nvlink.size" = 72

[[case]]
name = "a"
[[case]]
name = "b"
flops . bf16 = "x2"

[model.rope]
base = 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("model",), 2),
        (("workload",), 4),
        (("workload", "seq_len"), 5),
        (("workload", "absent"), 4),
        (("vary", "devices"), 8),
        (("vary", "device", "hbm_bytes"), 12),
        (("vary", "cluster.tiers.nvlink.size"), 13),
        (("case", 0), 15),
        (("case", 1, "name"), 18),
        (("case", 1, "flops", "bf16"), 19),
        (("case", 2, "name"), None),
        (("model", "rope", "base"), 22),
        (("absent",), None),
    ],
)
def test_keys_are_found_where_they_stand(path, line):
    assert line_of(TEXT, path) == line
