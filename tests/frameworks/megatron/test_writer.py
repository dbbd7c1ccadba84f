"""What is written for Megatron-LM is read back to the bit."""

from __future__ import annotations

from tests.export.laws import check_writer
from tests.plans import plans


def test_plans_read_back_to_the_bit() -> None:
    check_writer(plans("megatron", 45))


def test_the_allocator_is_an_environment_variable_that_is_read_back() -> None:
    asked = plans("megatron", 3, allocator=("expandable_segments",))
    for result in check_writer(asked):
        assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in result.texts[result.main]
        assert result.read_back.strategy.allocator == "expandable_segments"
