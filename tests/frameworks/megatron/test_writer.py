"""What is written for Megatron-LM is read back to the bit."""

from __future__ import annotations

from tests.export.laws import check_writer
from tests.plans import plans


def test_plans_read_back_to_the_bit() -> None:
    check_writer(plans("megatron", 45))
