"""Every kind of attention passes the suite, which a kind with copied physics does not."""

from __future__ import annotations

from unittest import mock

import pytest
from tests.conformance.attention import check_attention, question_of_layers
from tests.conformance.attention_oracles import EXAMPLES, ORACLES, Full, Latent

from forescale.errors import SpecError
from forescale.export import export
from forescale.graph import attention as graph
from forescale.spec.attention import ATTENTION_KINDS, FullAttention, LatentAttention


@pytest.mark.parametrize("kind", ATTENTION_KINDS, ids=lambda kind: kind.__name__)
def test_kind_keeps_the_rules(kind):
    check_attention(kind, EXAMPLES, ORACLES)


class Shared(LatentAttention, frozen=True, kw_only=True):
    """Latent attention whose heads share one value: registered with the operators of plain latent attention."""


class SharedOracle(Latent):
    def __init__(self, spec, hidden):
        super().__init__(spec, hidden)
        self.output = type(self.output)(spec.v_head_dim, hidden, bias=False)

    def _all(self, queries, compressed, turned):
        return [sum(super()._all(queries, compressed, turned))]


def registered(kind, builder):
    return mock.patch.dict(graph.ATTENTIONS, {kind: builder})


EXAMPLE = Shared(
    num_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5
)


def test_a_kind_built_by_the_operators_of_another_is_refused():
    with (
        registered(Shared, graph.ATTENTIONS[LatentAttention]),
        pytest.raises(AssertionError, match="built by the operators of LatentAttention"),
    ):
        check_attention(Shared, {Shared: (EXAMPLE,)}, {Shared: SharedOracle})


def test_a_kind_with_copied_operators_has_other_parameters_than_its_oracle():
    def copied(*args, **kwargs):
        graph.ATTENTIONS[LatentAttention](*args, **kwargs)

    with registered(Shared, copied), pytest.raises(AssertionError, match="parameters"):
        check_attention(Shared, {Shared: (EXAMPLE,)}, {Shared: SharedOracle})


def test_a_kind_with_copied_operators_has_other_flops_than_its_oracle():
    class Near(FullAttention, frozen=True, kw_only=True):
        """Attention to the two nearest keys, registered without saying so to the core."""

    class NearOracle(Full):
        def __init__(self, spec, hidden):
            super().__init__(spec, hidden)
            self.spec = FullAttention(num_heads=4, num_kv_heads=2, head_dim=8, window=2)

    def copied(*args, **kwargs):
        graph.ATTENTIONS[FullAttention](*args, **kwargs)

    example = Near(num_heads=4, num_kv_heads=2, head_dim=8)
    with registered(Near, copied), pytest.raises(AssertionError, match="FLOPs forward"):
        check_attention(Near, {Near: (example,)}, {Near: NearOracle})


def test_a_kind_without_oracle_is_refused():
    with pytest.raises(AssertionError, match="no oracle"):
        check_attention(Shared, {Shared: (EXAMPLE,)}, {})


@pytest.mark.parametrize(
    "framework", ["megatron-core", "primus", "maxtext", "nanotron", "torchtitan", "deepspeed-zero"]
)
def test_a_framework_refuses_a_kind_that_its_files_do_not_describe(framework):
    def copied(*args, **kwargs):
        graph.ATTENTIONS[LatentAttention](*args, **kwargs)

    with registered(Shared, copied), pytest.raises(SpecError):
        export(question_of_layers(EXAMPLE), framework)
