"""Addresses as questions: every field arrives, nothing names a file, what is too much is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.advise import fit
from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError, SpecError, UnknownNameError
from forescale.presets import project_as
from forescale.project import project
from forescale.question import Question
from forescale.search import search
from forescale.spec.layout import Overlap
from forescale.units import GIB
from forescale.web.asked import (
    FIELDS,
    MOST_LAYERS,
    OWN,
    address,
    changed,
    form_error,
    laid_out,
    opened,
    question,
    search_question,
    told,
)

SMALL = [
    ("model", "llama-3.1-8b"),
    ("cluster", "h100-sxm"),
    ("devices", "16"),
    ("seq_len", "4096"),
    ("global_batch_size", "256"),
]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


def test_the_page_opens_with_a_question_that_is_answered():
    assert project(question(opened())).step_time_s > 0


def test_every_field_arrives():
    layout = [
        ("tp", "2"),
        ("pp", "2"),
        ("vpp", "4"),
        ("micro_batch_size", "2"),
        ("zero", "1"),
        ("recompute", "full"),
    ]
    request = question(
        [*SMALL, *layout, ("precision", "fp8"), ("tokens", "1_000_000"), ("framework", "torchtitan")]
    )
    strategy = request.layout
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.micro_batch_size, strategy.zero) == (
        2,
        2,
        4,
        2,
        1,
    )
    assert strategy.recompute.granularity == "full"
    assert request.workload.precision.compute == "fp8"
    assert request.workload.tokens == 1e6
    assert request.framework is not None
    assert request.framework.name == "torchtitan"
    assert strategy.num_devices == 16


def test_an_address_is_the_question():
    query = changed(SMALL, tp="4", set="strategy.sp=false\nstrategy.allocator='expandable_segments'")
    assert ("tp", "4") in query
    assert not question(query).layout.sp
    assert address(query) == address(list(reversed(query)))
    assert changed(query, tp="") == told([*SMALL, query[-1]])


def test_what_a_device_has_is_changed():
    request = question([*SMALL, ("hbm_gib", "141"), ("network", "2")])
    plain = question(SMALL)
    assert request.cluster.device.hbm_bytes == 141 * GIB
    assert request.cluster.tiers[0].bandwidth == plain.cluster.tiers[0].bandwidth
    assert request.cluster.tiers[-1].bandwidth == 2 * plain.cluster.tiers[-1].bandwidth


def test_short_names_and_addresses_are_understood():
    value = [("model", "https://huggingface.co/meta-llama/Llama-3.1-8B"), ("cluster", "h100"), *SMALL[2:]]
    request = question(value)
    assert request == question(SMALL)
    assert [note.topic for note in request.notes] == ["cluster"]
    more = question([*value, ("hbm_gib", "141")])
    assert more.cluster.name.startswith("h100-sxm (")


def test_a_pasted_configuration_is_a_model():
    request = question([*SMALL[1:], ("model", OWN), ("config", json.dumps(LLAMA))])
    assert request.model.num_layers == 2


def test_a_layout_that_was_found_is_asked_again():
    first = project(question([*SMALL, ("tp", "2"), ("pp", "2"), ("zero", "1"), ("set", "strategy.sp=false")]))
    again = project(question(laid_out(SMALL, first)))
    assert again.to_json() == first.to_json()


def test_a_layout_sets_only_what_differs_from_the_defaults():
    plain = project(question([*SMALL, ("tp", "2")]))
    assert laid_out([*SMALL, ("zero", "2"), ("set", "strategy.sp=false")], plain) == [*SMALL, ("tp", "2")]
    replicated = [*SMALL, ("set", "strategy.dp_replicate=4")]
    result = laid_out(SMALL, project(question(replicated)))
    assert result == replicated  # not what follows from it, dp_shard


@pytest.mark.parametrize("framework", ["", "torchtitan", "megatron-core", "maxtext", "deepspeed-zero"])
def test_whatever_is_changed_is_asked_again(framework):
    query = [
        *SMALL[:2],
        ("devices", "4"),
        *SMALL[3:],
        ("set", "strategy.offload.optimizer=0.5"),
        ("framework", framework),
    ]
    # a link gives what the change sets, so less of it is assumed
    for one in (fix.projection for fix in fit(certain(question(query)), pairs=False).fixes):
        link = laid_out(query, one)
        if link is None:  # the plain schedule where the framework has one of its own
            assert (one.strategy.pp > 1, one.strategy.schedule) == (True, None)
        else:
            # a link gives the sizes that were inferred, so the notes on their origin go
            documents = [item.to_json() for item in (project(certain(question(link))), one)]
            again, before = ({**document, "notes": None} for document in documents)
            assert again == before


def certain(request: Question) -> Question:
    return replace(request, assumed=())


def test_a_layout_that_no_words_say_has_no_address():
    query = [
        ("model", "mixtral-8x7b"),
        *SMALL[1:],
        ("framework", "deepseek"),
    ]  # whose pipelines are bidirectional
    request = question([*query, ("pp", "2")])
    plain = replace(request.layout, schedule=None, overlap=Overlap())
    assert laid_out(query, project(request.with_layout(plain))) is None


def test_a_search_leaves_the_layout_free():
    request = search_question([*SMALL, ("tp", "2"), ("framework", "torchtitan"), ("set", "strategy.pp=4")])
    assert request.strategy is None


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ([("model", "/etc/passwd"), *SMALL[1:]], "unknown model"),
        ([*SMALL[:1], ("cluster", "../cluster.toml"), *SMALL[2:]], "unknown cluster"),
        ([*SMALL, ("framework", "/etc/passwd")], "unknown framework"),
        ([*SMALL, ("set", "cost.measurements=/etc/passwd")], "is not a key of strategy"),
        ([*SMALL, ("set", "hardware_config=/etc/passwd")], "is not a key of strategy"),
        ([*SMALL, ("set", "model=/etc/passwd")], "is not a key of strategy"),
        ([*SMALL, ("set", "\n".join(["strategy.tp=1"] * 97))], "97 changes"),
        ([*SMALL, ("nodes", "1")], "unknown parameter"),
        ([*SMALL[:2], ("devices", "1000000000"), *SMALL[3:]], "devices"),
        ([*SMALL, ("hbm_gib", "-1")], "hbm_gib .* a number above 0 and up to"),
        ([*SMALL, ("network", "nan")], "network .* a number above 0 and up to"),
        ([*SMALL, ("tp", "3")], "3"),
        ([*SMALL, ("tp", "two")], "tp"),
        ([*SMALL[1:], ("model", OWN), ("config", "{")], "pasted config.json"),
        ([*SMALL[1:], ("model", OWN), ("config", "[1]")], "a JSON object"),
        ([*SMALL[1:], ("model", OWN), ("config", json.dumps({**LLAMA, "num_hidden_layers": MOST_LAYERS + 1}))], "layers"),
        ([*SMALL[1:], ("model", OWN), ("config", " " * 70_000 + "x")], "characters|JSON"),
        (SMALL * 30, "150 parameters"),
        (SMALL[1:], "Enter a model"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_sentence(query, sentence):
    with pytest.raises(ForescaleError, match=sentence) as raised:
        question(query)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "llama"}, "model"),
        ({"model": ""}, "model"),
        ({"cluster": "h1000"}, "cluster"),
        ({"framework": "megatro"}, "framework"),
        ({"devices": "many"}, "devices"),
        ({"devices": ""}, "devices"),
        ({"seq_len": ""}, "seq_len"),
        ({"tokens": "-1"}, "tokens"),
        ({"precision": "fp3"}, "precision"),
        ({"recompute": "some"}, "recompute"),
        ({"schedule": "none"}, "schedule"),
        ({"global_batch_size": "17"}, "global_batch_size"),
        ({"hbm_gib": "nan"}, "hbm_gib"),
        ({"tp": "two"}, "tp"),
        ({"tp": "3"}, "devices"),  # the first that the message states with its value
        ({"ep": "2"}, "ep"),
        ({"set": "strategy.nope=1"}, "set"),
        ({"set": "nope"}, "set"),
        ({"model": OWN, "config": "{"}, "config"),
    ],
)
def test_an_error_names_its_field(change, field):
    with pytest.raises(ForescaleError) as raised:
        project(question(changed(SMALL, **change)))
    result = form_error(raised.value)
    assert result.field == field
    assert "the page" not in str(result).partition(":")[0]
    assert vars(pickle.loads(pickle.dumps(result))) == vars(result)  # it comes from another process


def test_a_field_has_one_value():
    assert told([("tp", "2"), ("tp", "2"), ("devices", ""), ("devices", "8")])[-1] == ("tp", "2")
    assert len(told([("set", "strategy.sp=false"), ("set", "strategy.pp=2")])) == 2
    with raises(SpecError, "given_twice tp"):
        told([("tp", "2"), ("tp", "4")])


def test_names_are_suggested():
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-70b"):
        question([("model", "llama-3.1-70"), *SMALL[1:]])


def test_the_form_names_fields_of_a_plan():
    for field in FIELDS:
        assert field.path or field.group == "What if" or field.name == "price"
    assert load_model(dict(opened())["model"]).num_layers


def test_too_long_values_are_refused():
    with raises(SpecError, "too_large"):
        told([("config", "x" * 50_001)])


STUDY = [
    ("model", "gpt3-1t"),
    ("cluster", "b200-nvs8"),
    ("devices", "256"),
    ("seq_len", "2048"),
    ("global_batch_size", "4096"),
    ("preset", "subramanian2024"),
]


def test_the_best_layout_of_a_published_analysis_has_an_address():
    query = changed(STUDY, tensor_parallel="1d")
    best = search(search_question(query), top=1).best[0]
    link = laid_out(query, best)
    assert link is not None
    assert project_as(question(link)).step_time_s == best.step_time_s


@pytest.mark.parametrize(("cluster", "devices"), [("DGX H100", 8), ("g6e.12xlarge", 4)])
def test_a_type_of_node_has_its_devices(cluster, devices):
    asked = [
        ("model", "llama-3.1-8b"),
        ("cluster", cluster),
        ("seq_len", "4096"),
        ("global_batch_size", "64"),
    ]
    assert question(asked).cluster.num_devices == devices
    assert question([*asked, ("devices", "16")]).cluster.num_devices == 16
