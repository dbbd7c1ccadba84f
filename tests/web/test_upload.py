"""Files of frameworks become fields of the form that ask the same."""

from __future__ import annotations

import pytest
from tests.web.test_asked import LLAMA, SMALL

from forescale.errors import ForescaleError
from forescale.export import export
from forescale.project import project
from forescale.web.asked import OWN, question
from forescale.web.upload import uploaded

LAYOUT = [("tp", "2"), ("pp", "2"), ("zero", "1")]


@pytest.mark.parametrize("framework", ["megatron-core", "primus"])
def test_what_was_exported_is_read_back(framework):
    asked = question([*SMALL, *LAYOUT, ("framework", framework)])
    texts = export(asked, framework).texts
    name = next(iter(texts))
    found = uploaded(name, texts[name], 16)
    fields = {name: value for name, value in found["fields"].items() if value}
    again = question(list({**dict(SMALL[:3]), **fields}.items()))
    assert (again.layout.tp, again.layout.pp) == (2, 2)
    assert again.workload.global_batch_size == 256
    assert project(again).step_time_s == pytest.approx(project(asked).step_time_s, rel=0.05)


def test_a_model_of_ones_own_is_kept_whole():
    import json

    found = uploaded("config.json", json.dumps(LLAMA))
    assert found["fields"]["model"] == OWN
    asked = question([*SMALL[1:], ("model", OWN), ("config", found["fields"]["config"])])
    assert asked.model.num_layers == 2


def test_a_message_names_the_file_as_it_was_called():
    with pytest.raises(ForescaleError, match=r"^run\.txt: its format is not known"):
        uploaded("../../run.txt", "hello")
    with pytest.raises(ForescaleError, match="characters are more"):
        uploaded("a", "x" * 300_000)
