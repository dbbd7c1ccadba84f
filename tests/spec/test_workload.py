"""Types of numbers, and what they take."""

from __future__ import annotations

import numpy as np
import pytest
from tests.errors import raises

from forescale.errors import SpecError
from forescale.spec.workload import STORAGE_BYTES, Precision, Workload, moment_bytes


@pytest.mark.parametrize(
    ("name", "like"), [("fp32", np.float32), ("fp16", np.float16), ("bf16", np.int16), ("fp8", np.int8)]
)
def test_numbers_take_the_bytes_of_their_name(name, like):
    assert STORAGE_BYTES[name] == np.dtype(like).itemsize


@pytest.mark.parametrize(("moments", "size"), [(2.0, 1 + 2), (1.0, 1), (1.25, 1 + 0.25 * 2), (0.01, 0.01)])
def test_second_moments_have_a_type_of_their_own(moments, size):
    """FP8-LM (arXiv:2310.18313): first moments in fp8, second in fp16; Muon keeps second ones of some parameters."""
    types = Precision(moments="fp8", second_moments="fp16")
    assert moment_bytes(types, moments) == size
    assert moment_bytes(Precision(moments="fp8"), moments) == moments


def test_one_moment_has_no_second_type():
    with raises(SpecError, "no_effect precision.second_moments"):
        Workload(seq_len=8, global_batch_size=1, optimizer="lion", precision=Precision(second_moments="fp16"))
