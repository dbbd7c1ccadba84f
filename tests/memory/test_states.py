"""States per device against the figures printed in the ZeRO paper and the Ultra-Scale Playbook."""

from __future__ import annotations

import numpy as np
import pytest

from forescale.memory.states import (
    gradient_bytes,
    optimizer_bytes,
    optimizer_element_bytes,
    update_bytes,
    update_element_bytes,
    weight_bytes,
)
from forescale.spec.workload import Precision

ZERO_PAPER = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}
"""Gigabytes per device for 7.5 billion parameters on 64 devices (Rajbhandari et al. 2020, Figure 1)."""
HALF = Precision(gradients="bf16")


def states(parameters: float, shards: float, zero: int, precision: Precision) -> float:
    element = {"bf16": 2.0, "fp32": 4.0}
    common = {"parameters": parameters, "shards": shards, "zero": zero}
    return float(
        weight_bytes(element_bytes=2.0, **common)
        + gradient_bytes(element_bytes=element[precision.gradients], **common)
        + optimizer_bytes(element_bytes=optimizer_element_bytes(precision), **common)
    )


@pytest.mark.parametrize("zero", ZERO_PAPER)
def test_figure_1_of_zero(zero: int) -> None:
    assert states(7.5e9, 64.0, zero, HALF) / 1e9 == pytest.approx(ZERO_PAPER[zero], abs=0.06)


@pytest.mark.parametrize(
    ("billions", "half", "full"), [(1, 16, 20), (7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)]
)
def test_table_of_the_playbook(billions: int, half: int, full: int) -> None:
    assert states(billions * 1e9, 1.0, 0, HALF) == half * 1e9
    # with fp32 gradients it counts both the bf16 and the fp32 ones
    assert states(billions * 1e9, 1.0, 0, Precision()) + 2.0 * billions * 1e9 == full * 1e9


def test_shards_apply_from_their_stage() -> None:
    zero = np.arange(4.0)
    shared = {"parameters": 8.0, "element_bytes": 1.0, "shards": 4.0, "zero": zero}
    assert weight_bytes(**shared).tolist() == [8, 8, 8, 2]
    assert gradient_bytes(**shared).tolist() == [8, 8, 2, 2]
    assert optimizer_bytes(**shared).tolist() == [8, 2, 2, 2]
    assert update_bytes(**shared).tolist() == [8, 2, 2, 2]


def test_the_update_copies_gradients_kept_in_less_than_fp32() -> None:
    assert update_element_bytes(HALF) == 4.0
    assert update_element_bytes(Precision()) == 0.0
    assert update_element_bytes(Precision(gradients="bf16", master="none")) == 0.0
