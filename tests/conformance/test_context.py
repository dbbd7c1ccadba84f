"""Every kind of context parallelism passes the suite, which a kind with copied physics does not."""

from __future__ import annotations

from unittest import mock

import pytest
from tests.conformance.context import DATAFLOWS, check_context_kind

from forescale.spec.context import CONTEXT_KINDS, ContextParallel


@pytest.mark.parametrize("kind", CONTEXT_KINDS.values(), ids=lambda kind: kind.name)
def test_kind_keeps_the_rules(kind):
    check_context_kind(kind)


@pytest.mark.parametrize(
    ("copied", "dataflow", "broken"),
    [
        ("ring", "ulysses", "bytes that a rank receives"),
        ("ulysses", "ring", "bytes that a rank receives"),
        ("hierarchical", "all_gather", "bytes that a rank receives"),
    ],
)
def test_a_copied_kind_has_other_messages_than_its_dataflow(copied, dataflow, broken):
    row = CONTEXT_KINDS[copied]
    kind = ContextParallel(
        name="star",
        exchanges=row.exchanges,
        around=row.around,
        ring=row.ring,  # type: ignore[arg-type]
    )
    with (
        mock.patch.dict(CONTEXT_KINDS, {"star": kind}),
        pytest.raises(AssertionError, match=broken),
    ):
        check_context_kind(kind, {"star": DATAFLOWS[dataflow]})


def test_a_dataflow_that_reaches_no_other_rank_is_refused():
    with pytest.raises(AssertionError, match="does not meet all keys"):
        check_context_kind(
            CONTEXT_KINDS["ring"], {"ring": lambda run: run.multiply(0, run.shards[0], run.shards[0])}
        )


def test_a_kind_without_dataflow_is_refused():
    with pytest.raises(AssertionError, match="no dataflow"):
        check_context_kind(CONTEXT_KINDS["ring"], {})
