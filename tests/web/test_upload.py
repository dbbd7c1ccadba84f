"""Files of frameworks become fields of the form that ask the same."""

from __future__ import annotations

import json

import pytest
from tests.errors import raises
from tests.web.test_asked import LLAMA, SMALL

from forescale.errors import ForescaleError
from forescale.export import export
from forescale.io.question import write_question
from forescale.project import project
from forescale.web.asked import FIELDS, OWN, question
from forescale.web.pages import document, search_document
from forescale.web.upload import uploaded

LAYOUT = [("tp", "2"), ("pp", "2"), ("zero", "1")]


@pytest.mark.parametrize("framework", ["megatron-core", "primus"])
def test_what_was_exported_is_read_back(framework):
    request = question([*SMALL, *LAYOUT, ("framework", framework)])
    texts = export(request, framework.partition("@")[0]).texts
    name = next(iter(texts))
    result = uploaded(name, texts[name], dict(SMALL))
    fields = {name: value for name, value in result["fields"].items() if value}
    again = question(list({**dict(SMALL[:3]), **fields}.items()))
    assert (again.layout.tp, again.layout.pp) == (2, 2)
    assert again.workload.global_batch_size == 256
    assert project(again).step_time_s == pytest.approx(project(request).step_time_s, rel=0.05)


@pytest.mark.parametrize(
    "framework", ["megatron-core", "primus@megatron", "torchtitan", "nanotron", "maxtext"]
)
def test_only_words_that_change_something_fill_the_form(framework):
    request = question([*SMALL, ("tp", "2"), ("framework", framework)])
    texts = export(request, framework).texts
    name = next(iter(texts))
    fields = uploaded(name, texts[name], dict(SMALL))["fields"]
    assert fields["tp"] == "2"
    assert fields["pp"] == ""
    assert len(fields["set"].splitlines()) <= 3
    allowed = {item.name: item.choices for item in FIELDS if item.choices and not item.listed}
    assert all(fields[name] in choices for name, choices in allowed.items() if name in fields)


def test_a_model_of_ones_own_is_kept_whole():
    result = uploaded("config.json", json.dumps(LLAMA), dict(SMALL))
    assert result["fields"]["model"] == OWN
    request = question([*SMALL[1:], ("model", OWN), ("config", result["fields"]["config"])])
    assert request.model.num_layers == 2


def test_a_message_names_the_file_as_it_was_called():
    with pytest.raises(ForescaleError, match=r"^run\.txt: its format is not known"):
        uploaded("../../run.txt", "hello", {})
    with raises(ForescaleError, "too_large the file"):
        uploaded("a", "x" * 300_000, {})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.yaml",
            "modules: {pre_trainer: {framework: megatron, model: NAME.yaml}}",
            "not_found",
        ),
        (
            "a.yml",
            "base_config: NAME.yml\nper_device_batch_size: 1\nmax_target_length: 1024",
            "not_found",
        ),
    ],
)
def test_a_file_whose_name_is_too_long_is_not_there(name, text, message):
    with raises(ForescaleError, message):
        uploaded(name, text.replace("NAME", "é" * 200), {})


def test_a_plan_and_an_answer_fill_the_form(tmp_path):
    asked = {"model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": "16"}
    query = [*asked.items(), ("seq_len", "4096"), ("global_batch_size", "64"), ("tp", "2")]
    write_question(question(query), tmp_path / "plan.toml")
    texts = {
        "plan": (tmp_path / "plan.toml").read_text(encoding="utf-8"),
        "answer": document(query),
        "best": search_document([*query, ("set", "strategy.pp=1")], 5.0),
    }
    for name, text in texts.items():
        read = uploaded(f"{name}.{'toml' if name == 'plan' else 'json'}", text, {"cluster": "b200"})
        fields = {name: value for name, value in read["fields"].items() if value}
        assert read["format"] == ("plan" if name == "plan" else "answer") and read["notes"] == []
        assert asked.items() <= fields.items() and (name == "best" or fields["tp"] == "2")
        step = json.loads(text)["best"][0]["step_time_s"] if name == "best" else None
        expected = step or project(question(query)).step_time_s
        assert project(question(list(fields.items()))).step_time_s == expected
