"""What a search claims, and what it held fixed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, moe, workload

from forescale import load_model
from forescale.catalogue.frameworks import load_framework
from forescale.question import Question
from forescale.search import search
from forescale.search.claim import held_fixed
from forescale.spec.layout import Recompute
from forescale.spec.space import Space

SMALL = Space(cp=(1,), zero=(1,), micro_batch_size=(1,))


@pytest.fixture(scope="module")
def found():
    return search(dense(), cluster(4), workload(global_batch_size=16), space=SMALL, top=2, surest=True)


def dimensions(question):
    return [item.dimension for item in held_fixed(question)]


def asked(model, **changes):
    return Question(model=model, cluster=cluster(8), workload=workload(), **changes)


def test_what_is_held_depends_on_the_model_and_the_space():
    assert dimensions(asked(dense())) == ["framework", "schedule", "overlap", "graphs"]
    assert dimensions(asked(moe())) == ["framework", "dispatcher", "schedule", "overlap", "graphs"]
    wide = Space(dispatcher=(None, "deepep"), schedule=(None, "zbv"), overlap=(None, ("tensor",)))
    assert dimensions(asked(moe(), space=wide)) == ["framework", "graphs"]
    assert "schedule" not in dimensions(asked(dense(), space=Space(pp=(1,))))


def test_a_framework_holds_what_is_its_own_and_takes_no_more_than_it_knows():
    whole = asked(moe(), framework=load_framework("megatron-core"))
    assert {"overlap", "graphs"}.isdisjoint(dimensions(whole))
    assert held_fixed(whole)[0].value.startswith("megatron-core")
    assert dimensions(asked(moe(), framework=load_framework("nanotron"))) == ["framework"]


def test_the_claim_is_as_strong_as_the_proof(found):
    assert found.gap == 0.0
    assert found.claim.startswith(f"#1 is the fastest layout that fits, of {found.num_legal:,} legal layouts")
    assert "(framework, schedule, overlap, graphs held fixed)" in found.claim
    stopped = replace(found, gap=0.032).claim
    assert "stopped early" in stopped
    assert "3.2 % faster" in stopped
    assert "#1 is" not in stopped
    assert "smallest layout" in replace(found, objective="peak_memory").claim
    for shown in (repr(found), found.to_json()["claim"]):
        assert found.claim in shown
    assert [item["dimension"] for item in found.to_json()["held_fixed"]] == dimensions(found.question)


def test_a_margin_is_named_where_the_first_may_not_fit(found):
    assert found.best[0].memory.verdict == "FITS"
    assert found.margin_cost is None
    assert found.margin is None
    first, second = found.best
    risky = replace(first, memory=replace(first.memory, verdict="AT RISK"))
    at_risk = replace(found, best=(risky, second), surest=second)
    assert "whose expected memory fits" in at_risk.claim and "AT RISK" in at_risk.claim
    assert "that fits" in found.claim and "AT RISK" not in found.claim
    assert at_risk.margin_cost == second.step_time_s / first.step_time_s - 1.0
    assert "(#2)" in str(at_risk.margin)
    assert "(#" not in str(replace(at_risk, best=(risky,)).margin)
    assert replace(at_risk, surest=None).margin is None


def test_recorded_blocks_are_compared_without_and_with_full_recompute_only():
    model = load_model({"model_type": "smollm3", "num_hidden_layers": 2})
    question = asked(model, framework=load_framework("transformers"))
    partial = {"recompute of whole blocks": "none or full"}
    assert partial.items() <= {item.dimension: item.value for item in held_fixed(question)}.items()
    whole = replace(question, space=Space(recompute=(Recompute(granularity="full"),)))
    assert "recompute of whole blocks" not in dimensions(whole)
