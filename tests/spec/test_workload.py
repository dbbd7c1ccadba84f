"""Types of numbers, and what they take."""

from __future__ import annotations

import numpy as np
import pytest

from forescale.spec.workload import STORAGE_BYTES


@pytest.mark.parametrize(
    ("name", "like"), [("fp32", np.float32), ("fp16", np.float16), ("bf16", np.int16), ("fp8", np.int8)]
)
def test_numbers_take_the_bytes_of_their_name(name, like):
    assert STORAGE_BYTES[name] == np.dtype(like).itemsize
