from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.presets.subramanian2024 import Quirks, search_subramanian2024
from forescale.presets.subramanian2024.evaluate import Analysis
from forescale.presets.subramanian2024.layers import shape_of
from forescale.presets.subramanian2024.machine import enumerate_space, machine_of

QUIRKS = tuple(Quirks.__dataclass_fields__)


def question(kind, model="gpt3-1t", cluster="b200-nvs8", quirks=None):
    return Analysis(
        shape=shape_of(load_model(model)),
        machine=machine_of(load_cluster(cluster, 1024)),
        kind=kind,
        quirks=quirks or Quirks(),
    )


def candidates(request):
    space = enumerate_space(
        request.shape, num_devices=1024, domain=8, kind=request.kind, global_batch_size=512, fixed={}
    )
    return space.expand(np.arange(len(space.rows["tp1"])))


@pytest.mark.parametrize("quirks", [Quirks(), Quirks.none()], ids=["published", "meant"])
@pytest.mark.parametrize("kind", ["1d", "2d", "summa"])
def test_a_candidate_alone_equals_itself_among_all(kind, quirks):
    request = question(kind, quirks=quirks)
    everything = candidates(request)
    step, memory = request.step_time(everything), request.memory(everything)
    for row in np.linspace(0, len(everything["tp1"]) - 1, 25).astype(int):
        alone = {name: values[row : row + 1] for name, values in everything.items()}
        assert request.step_time(alone).total[0] == step.total[row]
        assert request.memory(alone).total[0] == memory.total[row]


@pytest.mark.parametrize("kind", ["1d", "2d", "summa"])
def test_parts_of_a_layer_sum_to_its_time(kind):
    request = question(kind, model="vit-era5")
    everything = candidates(request)
    subset = {name: values[::97] for name, values in everything.items()}
    layer, step = request.layer_time(subset), request.step_time(subset)
    parts = layer.compute_s + layer.memory_s + layer.tensor_s
    np.testing.assert_allclose(layer.forward_s + layer.backward_s, parts, rtol=1e-12)
    passes = subset["num_microbatches"] * (48 // subset["pp"])
    np.testing.assert_allclose(step.work, parts * passes, rtol=1e-12)


def changed(kind, name):
    """Step times and memories with the quirk, and without."""
    with_it, without = question(kind), question(kind, quirks=replace(Quirks(), **{name: False}))
    everything = candidates(with_it)
    times = [np.asarray(item.step_time(everything).total) for item in (with_it, without)]
    memories = [np.asarray(item.memory(everything).total) for item in (with_it, without)]
    return everything, times, memories


@pytest.mark.parametrize("kind", ["1d", "2d", "summa"])
def test_slow_hops_cost_time_only_where_a_pipeline_leaves_its_domain(kind):
    columns, (free, charged), memories = changed(kind, "free_slow_hops")
    mixed = (columns["near_pp"] > 1) & (columns["pp"] > columns["near_pp"])
    assert np.array_equal(charged > free, mixed)
    assert mixed.any()
    assert np.array_equal(*memories)


def test_an_all_reduce_of_one_level_takes_two_passes():
    columns, (one, two), memories = changed("summa", "single_level_all_reduce")
    single = (columns["near_tp1"] == 1) | (columns["near_tp1"] == columns["tp1"])
    assert np.array_equal(two > one, single & (columns["tp1"] > 1))
    assert np.array_equal(*memories)
    for kind in ("1d", "2d"):
        assert np.array_equal(*changed(kind, "single_level_all_reduce")[1])


def test_the_projection_bias_of_2d_is_small():
    columns, times, memories = changed("2d", "projection_bias_splits_hidden")
    assert np.all(memories[1][columns["tp1"] > 1] > memories[0][columns["tp1"] > 1])
    np.testing.assert_allclose(times[1], times[0], rtol=1e-4)
    for kind in ("1d", "summa"):
        assert np.array_equal(*changed(kind, "projection_bias_splits_hidden")[1])


def test_summa_norms_of_gpt_hold_too_little():
    """The hidden size of GPT3-1T is 12.5 times its sequence length."""
    _, times, memories = changed("summa", "summa_norm_splits_sequence")
    assert np.all(memories[1] > memories[0])
    assert np.all(times[1] >= times[0])
    for kind in ("1d", "2d"):
        assert np.array_equal(*changed(kind, "summa_norm_splits_sequence")[1])


@pytest.mark.parametrize("name", QUIRKS)
def test_every_quirk_changes_something(name):
    results = [changed(kind, name) for kind in ("1d", "2d", "summa")]
    assert any(not np.array_equal(*times) for _, times, _ in results)


def test_models_that_the_paper_does_not_know_are_refused():
    cluster = load_cluster("b200-nvs8", 64)
    with raises(SpecError, "unsupported_by preset subramanian2024"):
        search_subramanian2024(
            load_model("llama-3.1-70b"), cluster, tensor_parallel="1d", global_batch_size=64
        )
    with raises(SpecError, "missing the sequence length of the model"):
        shape_of(replace(load_model("gpt3-1t"), max_seq_len=0))


def test_clusters_of_one_tier_are_refused():
    cluster = load_cluster("b200-nvs8", 64)
    with raises(SpecError, "required_with a fast and a slow network tier"):
        machine_of(replace(cluster, tiers=cluster.tiers[-1:]))


def test_the_successor_of_b200_has_its_own_network_efficiency():
    machines = [machine_of(load_cluster(name, 8)) for name in ("b200-nvs8", "b200-next-nvs8")]
    assert machines[0].links["fast_bandwidth"] == pytest.approx(0.7 * 900e9)
    assert machines[1].links["fast_bandwidth"] == pytest.approx(0.8 * 3600e9)
