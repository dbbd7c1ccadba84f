from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.errors import SpecError
from forescale.project import project
from forescale.search.compare import compare
from forescale.spec import Layout, Recompute

A = Layout(tp=2, pp=2, dp_shard=4, zero=1)
B = Layout(tp=4, dp_shard=4, zero=3, recompute=Recompute(granularity="full"))


def projected(layout, **more):
    return project(dense(), cluster(16), layout, workload(**more))


def test_differences_add_up_to_those_of_step_and_peak():
    a, b = projected(A), projected(B)
    result = compare(a, b)
    assert result.step_time.difference == b.step_time_s - a.step_time_s
    assert sum(part.difference for part in result.time_parts) == pytest.approx(result.step_time.difference)
    assert sum(part.difference for part in result.memory.parts) == pytest.approx(
        result.memory.peak.difference
    )
    assert result.memory.peak.b == b.memory.peak_bytes
    assert result.step_time.ratio == b.step_time_s / a.step_time_s


def test_parts_are_those_of_the_projections():
    a, b = projected(A), projected(B)
    parts = {part.name: part for part in compare(a, b).time_parts}
    assert set(parts) == {name for name in a.time_s if a.time_s[name] or b.time_s[name]}
    assert parts["recompute"].a == 0.0
    assert parts["recompute"].b == b.time_s["recompute"] > 0.0
    assert parts["bubble"].difference == b.time_s["bubble"] - a.time_s["bubble"] < 0.0
    fullest = max(a.memory.stages, key=lambda stage: stage.peak_bytes)
    memory = {part.name: part for part in compare(a, b).memory.parts}
    assert memory["activations"].a == fullest.activations_bytes
    assert compare(a, b).memory.stage_a == fullest.stage


def test_only_what_differs_is_listed():
    result = compare(projected(A), projected(replace(A, tp=4, pp=1)))
    assert {(change.name, change.a, change.b) for change in result.layout} == {
        ("strategy.tp", 2, 4),
        ("strategy.pp", 2, 1),
    }
    assert result.question == ()
    longer = compare(projected(A), projected(A, seq_len=4096))
    assert longer.layout == ()
    assert [(change.name, change.a, change.b) for change in longer.question] == [
        ("workload.seq_len", 2048, 4096)
    ]


def test_a_projection_against_itself_differs_in_nothing():
    result = compare(projected(A), projected(A))
    assert result.layout == result.question == ()
    assert {part.difference for part in (*result.time_parts, *result.memory.parts, result.memory.peak)} == {
        0.0
    }


def test_documents_are_as_good_as_projections():
    a = projected(A)
    b = project(moe(), cluster(16), Layout(tp=2, ep=2, dp_shard=8), workload())
    from_files = compare(*(json.loads(json.dumps(item.to_json())) for item in (a, b)))
    assert from_files == compare(a, b)
    assert {change.name for change in from_files.question} == {"model"}


def test_unknown_numbers_have_no_difference():
    tokens = project(dense(), cluster(16), A, replace(workload(), tokens=1e9))
    figures = {figure.name: figure for figure in compare(projected(A), tokens).figures}
    assert (figures["training_days"].a, figures["training_days"].difference) == (None, None)
    assert figures["training_days"].b == tokens.training_days


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "wrong_format a projection, or a forescale.projection/1 document of one | no schema"),
        ([1], "wrong_format a projection, or a forescale.projection/1 document of one | no schema"),
        (
            {"schema": "forescale.search/1"},
            "wrong_format a projection, or a forescale.projection/1 document of one | forescale.search/1",
        ),
        (
            {"schema": "forescale.projection/1", "model": "x"},
            "wrong_format a complete forescale.projection/1 document | 'memory'",
        ),
    ],
)
def test_other_documents_are_refused(document, sentence):
    with raises(SpecError, sentence):
        compare(projected(A), document, name_b="other.json")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["time_s"].update(ffn=1e9), "b.json: time_s makes 1e.09, but step_time_s is"),
        (lambda d: d.update(step_time_s=99.0), "b.json: time_s makes .*, but step_time_s is 99"),
        (lambda d: d["memory"].update(peak_bytes=1), "b.json: the fullest stage makes .* memory.peak_bytes is 1"),
        (lambda d: d["memory"]["stages"][0].update(weights_bytes=0), "b.json: the parts of a stage makes"),
        (lambda d: d["memory"].update(stages=[]), "memory.stages lists no stage"),
        (lambda d: d.pop("time_s"), "'time_s' is missing"),
    ],
)  # fmt: skip
def test_a_document_that_contradicts_itself_is_refused(change, sentence):
    document = json.loads(json.dumps(projected(A).to_json()))
    change(document)
    with pytest.raises(SpecError, match=sentence):
        compare(projected(A), document, name_b="b.json")
