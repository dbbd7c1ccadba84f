from __future__ import annotations

import json

import pytest

from forescale.catalogue.clusters import cluster_names, device_names
from forescale.catalogue.models import model_names

KNOWN = {"models": model_names, "devices": device_names, "clusters": cluster_names}


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
