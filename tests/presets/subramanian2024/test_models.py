"""The study's models and clusters, asked of our own engine too."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.presets.subramanian2024.layers import shape_of
from forescale.project import project
from forescale.spec import Layout, Workload


@pytest.mark.parametrize(
    ("name", "sizes"), [("gpt3-1t", (2048, 25600, 160, 128)), ("vit-era5", (64800, 12288, 64, 48))]
)
def test_sizes_are_those_of_section_iii_b(name, sizes):
    shape = shape_of(load_model(name))
    assert (shape.seq_len, shape.hidden_size, shape.num_heads, shape.num_layers) == sizes
    assert shape.ffn_hidden_size == 4 * shape.hidden_size


@pytest.mark.parametrize("name", ["gpt3-1t", "vit-era5"])
def test_models_without_embedding_project(name):
    model = load_model(name)
    work = Workload(seq_len=model.max_seq_len, global_batch_size=64)
    one = project(model, load_cluster("b200-nvs8", 64), Layout(tp=8, pp=8), work)
    assert one.step_time_s > 0.0
    assert sum(one.time_s.values()) == pytest.approx(one.step_time_s)
