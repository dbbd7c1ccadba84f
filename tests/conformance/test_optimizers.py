"""Every optimizer passes the suite, which one with copied physics does not."""

from __future__ import annotations

from typing import get_args
from unittest import mock

import pytest
import torch
from msgspec.structs import replace
from tests.conformance.optimizers import check_optimizer

from forescale.spec.optimizers import OPTIMIZERS, OptimizerName


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=lambda kind: kind.name)
def test_optimizer_keeps_the_rules(kind):
    check_optimizer(kind)


def test_names_and_rows_are_the_same():
    assert tuple(OPTIMIZERS) == get_args(OptimizerName)


@pytest.mark.parametrize(
    ("copied", "runs", "broken"),
    [
        ("adamw", lambda _: torch.optim.Adagrad, "keeps 48 elements of ffn.up.weight"),
        ("adafactor", lambda _: torch.optim.AdamW, "keeps 96 elements of ffn.up.weight"),
        ("muon", lambda _: torch.optim.Adagrad, "of embedding.weight"),
    ],
)
def test_a_copied_optimizer_keeps_other_states_than_the_one_that_runs(copied, runs, broken):
    kind = replace(OPTIMIZERS[copied], name="copied", frameworks={})
    with mock.patch.dict(OPTIMIZERS, {"copied": kind}), pytest.raises(AssertionError, match=broken):
        check_optimizer(kind, {"copied": runs})


def test_an_optimizer_of_whole_matrices_is_not_elementwise():
    kind = replace(OPTIMIZERS["muon"], elementwise=True)
    with pytest.raises(AssertionError, match="elementwise"):
        check_optimizer(kind)


def test_an_optimizer_without_oracle_is_refused():
    with pytest.raises(AssertionError, match="no oracle"):
        check_optimizer(OPTIMIZERS["adamw"], {})
