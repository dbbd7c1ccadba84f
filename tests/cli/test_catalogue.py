from __future__ import annotations

import json

import pytest

from forescale.catalogue.clusters import cluster_names, device_names
from forescale.catalogue.frameworks import framework_names
from forescale.catalogue.models import model_names

KNOWN = {
    "models": model_names,
    "devices": device_names,
    "clusters": cluster_names,
    "frameworks": framework_names,
}


@pytest.mark.parametrize("kind", KNOWN)
def test_all_entries_are_listed_with_their_source(forescale, kind):
    body = json.loads(forescale("catalogue", kind, "--json").out)
    assert body["schema"] == "forescale.catalogue/1"
    assert tuple(row["name"] for row in body[kind]) == KNOWN[kind]()
    assert all(row["source"] for row in body[kind])


def test_text_narrows_the_list(forescale):
    lines = forescale("catalogue", "models", "mixtral").out.splitlines()
    assert len(lines) > 1
    assert all("mixtral" in line for line in lines[1:])


def test_one_framework_is_shown_field_by_field(forescale):
    body = json.loads(forescale("catalogue", "frameworks", "torchtitan@2024", "--json").out)["framework"]
    assert (body["name"], body["release"], body["microbatches_per_stage"]) == ("torchtitan", "2024", 1)
    assert body["sources"].keys() >= {"kernels", "recompute", "microbatches_per_stage"}
    shown = forescale("catalogue", "frameworks", "deepspeed").out
    assert "deepspeed-zero@0.17" in shown
    assert "AutoTP training takes zero below 3" in " ".join(shown.split())
    assert "options are not recorded" in forescale("catalogue", "frameworks", "internevo").out


@pytest.mark.parametrize(
    ("name", "kind"), [("gpt2", "models"), ("p5.48xlarge", "clusters"), ("torchtitan", "framework")]
)
def test_a_name_alone_is_shown_in_its_list(forescale, name, kind):
    assert kind in json.loads(forescale("catalogue", name, "--json").out)


@pytest.mark.parametrize(
    ("words", "kind"),
    [(("gpus",), "devices"), (("hardware", "h100"), "devices"), (("machines",), "clusters")],
)
def test_a_list_goes_by_what_others_call_it(forescale, words, kind):
    body = json.loads(forescale("catalogue", *words, "--json").out)
    known = [name for name in KNOWN[kind]() if all(word in name for word in words[1:])]
    assert [row["name"] for row in body[kind]] == known
