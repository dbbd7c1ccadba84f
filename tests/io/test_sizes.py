"""The number of devices of a question, and the note that says from what it was inferred."""

from __future__ import annotations

import pytest
from tests.small import dense, moe

import forescale as fs
from forescale.errors import SpecError
from forescale.io.question import build_question
from forescale.io.sizes import fewest_devices
from forescale.spec import Layout

RUN = {"seq_len": 256, "global_batch_size": 64}


def asked(model, *, laid=True, cluster="h100-sxm", **values):
    values = {"model": model, "cluster": cluster, "workload": RUN, **values}
    return build_question(values, where="a test", laid=laid)


def origins(question):
    return [note.text for note in question.notes if note.topic == "devices"]


@pytest.mark.parametrize(
    ("layout", "devices"),
    [
        ({}, 1),
        ({"tp": 4, "cp": 2, "pp": 3}, 24),
        ({"ep": 8}, 8),
        ({"ep": 8, "tp": 4}, 8),
        ({"ep": 4, "tp": 8}, 8),
        ({"ep": 6, "tp": 4, "pp": 2}, 24),
        ({"ep": 2, "etp": 4, "dp_replicate": 2}, 16),
        ({"ep": 8, "dp_shard": 2}, 2),
        ({"tp": "8", "pp": -1}, 1),
    ],
)
def test_the_fewest_devices_hold_all_degrees_and_the_experts(layout, devices):
    assert fewest_devices(layout) == devices


@pytest.mark.parametrize("layout", [{"ep": 2}, {"ep": 4, "tp": 2, "pp": 2}, {"tp": 2, "dp_replicate": 2}])
def test_what_the_degrees_give_is_a_legal_layout(layout):
    question = asked(moe(4), strategy=layout)
    project = fs.project(question)
    assert project.strategy.num_devices == project.cluster.num_devices == fewest_devices(layout)
    assert [note for note in project.notes if note.topic == "devices"]


def test_python_infers_the_devices_that_the_command_line_does():
    result = fs.ask(moe(4), "h100-sxm", ep=4, **RUN)
    assert result.cluster.num_devices == 4
    assert "ep 4" in origins(result)[0]
    assert fs.ask(dense(4), "h100-sxm", **RUN).cluster.num_devices == 1
    with pytest.raises(SpecError):  # a search has no degrees to infer from
        fs.ask_search(dense(4), "h100-sxm", **RUN)


def test_experts_that_a_framework_splits_over_tp_are_counted():
    assert asked(moe(4), strategy={"tp": 2, "ep": 2}).cluster.num_devices == 2
    split = asked(moe(4), strategy={"tp": 2, "ep": 2}, framework="maxtext")
    assert split.layout.etp == 2
    assert split.cluster.num_devices == 4


@pytest.mark.parametrize(
    ("values", "devices", "origin"),
    [
        ({"devices": 4}, 4, None),
        ({"nodes": 2}, 16, "2 nodes × 8 devices per node of h100-sxm"),
        ({"cluster": {"base": "h100-sxm", "num_devices": 8}}, 8, "num_devices of the cluster"),
        ({"strategy": {"tp": 2}}, 2, "tp 2"),
    ],
)
def test_an_inferred_number_is_said_with_its_origin(values, devices, origin):
    question = asked(dense(4), **{"strategy": {}, **values})
    assert question.cluster.num_devices == devices
    assert len(origins(question)) == (origin is not None)
    assert origin is None or origin in origins(question)[0]


def test_devices_on_sites_are_as_many_on_each():
    link = {"count": 2, "bandwidth": "100Gbit/s", "latency": "30ms"}
    question = asked(
        dense(4), strategy={"tp": 4}, sites=link, workload={**RUN, "outer": {"method": "diloco"}}
    )
    assert question.cluster.num_devices == 8
    assert question.site.layout.num_devices == 4


@pytest.mark.parametrize(
    ("layout", "vpp"),
    [
        ({"schedule": "zbv", "pp": 2}, 2),
        ({"schedule": "ScheduleZBVZeroBubble", "pp": 2}, 2),
        ({"schedule": "zbv", "pp": 2, "vpp": 2}, 2),
        ({"schedule": "zbv", "pp": 1}, 1),
        ({"schedule": "zb-h1", "pp": 2}, 1),
    ],
)
def test_the_only_vpp_of_a_schedule_is_taken_where_none_is_given(layout, vpp):
    question = asked(dense(4), strategy=layout, devices=2)
    assert question.layout.vpp == vpp
    filled = "vpp" not in layout and vpp > 1
    assert len([note for note in question.notes if note.topic == "schedule"]) == filled
    fs.project(question)


def test_a_vpp_that_is_given_stays():
    for layout in ({"schedule": "zbv", "pp": 2, "vpp": 1}, Layout(schedule="zbv", pp=2)):
        question = asked(dense(4), strategy=layout, devices=2)
        assert question.layout.vpp == 1
        with pytest.raises(SpecError, match=r"vpp must be 2; got 1"):
            fs.project(question)


def test_a_micro_batch_that_a_framework_sets_is_said():
    question = asked(dense(4), strategy={}, devices=2, framework="maxtext")
    texts = [note.text for note in question.notes if note.text.startswith("micro_batch_size = ")]
    assert question.layout.micro_batch_size == RUN["global_batch_size"] // 2
    assert len(texts) == 1
    value = asked(dense(4), strategy={"micro_batch_size": 4}, devices=2, framework="maxtext")
    assert not [note for note in value.notes if "micro_batch_size" in note.text]
