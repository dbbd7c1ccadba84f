"""What is written for torchtitan round-trips exactly, and refuses what torchtitan refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.export.laws import check_writer
from tests.frameworks.torchtitan.plans import titan_plans

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.export import export, under
from forescale.question import question_of
from forescale.spec import Layout, Precision, Workload

EPS = "model.norm_eps"
LOST = ("model.num_mtp_layers", EPS, "model.layers.attention.rope")
"""0.3 has no multi-token prediction with a pipeline or context ranks, and builds norms with its own epsilon. A model without a
flavor has plain positions where they are cosines and sines."""


def test_plans_read_back_to_the_bit() -> None:
    writer = check_writer(titan_plans("torchtitan@0.3", 45), unsaid=LOST)
    assert sum(not item.unsaid for item in writer) >= 20


def test_what_one_release_cannot_build_is_said() -> None:
    """0.3 builds experts with norms of queries and keys only, and knows no tensor parallelism of experts alone."""
    with raises(SpecError, "unsupported_by torchtitan | layers.attention.qk_norm"):
        export(question("mixtral-8x7b", tp=2, ep=2, etp=2, dp_shard=8))


def test_depths_of_multi_token_prediction_are_built() -> None:
    deep = load_model("deepseek-v3")
    request = replace(question(), model=replace(deep, layers=deep.layers[:5], num_mtp_layers=2))
    result = export(request)
    assert "_build_mtp_layers(layers[-1], dim=7168, num_mtp_layers=2)" in result.texts["plan.py"]
    assert [item.word for item in result.unsaid] == [EPS]
    for degree in ("pp", "cp"):
        with raises(SpecError, "unsupported_by torchtitan | num_mtp_layers"):  # deepseek_v3/mtp.py refuses it
            export(replace(request, strategy=replace(request.layout, dp_shard=8, **{degree: 2})))


def question(
    model: str = "llama-3.1-8b", to: str = "torchtitan@0.3", devices: int = 16, batch: int = 64, **layout
):
    compute, cluster = layout.pop("compute", "bf16"), layout.pop("cluster", "h100-sxm")
    request = question_of(
        load_model(model),
        load_cluster(cluster, devices),
        Workload(seq_len=4096, global_batch_size=batch, precision=Precision(compute=compute)),
        strategy=Layout(**{"zero": 3, "dp_shard": devices, **layout}),
    )
    return under(request, load_framework(to))


def test_a_registered_flavor_is_named() -> None:
    assert 'llama3.model_registry("8B")' in export(question()).texts["plan.py"].replace("'", '"')
    routed = export(question("qwen3-30b-a3b", ep=8)).texts
    assert set(routed) == {"plan.py"}
    assert "qwen3.model_registry('30B-A3B'" in routed["plan.py"]


def test_other_sizes_are_built() -> None:
    small = replace(load_model("llama-3.1-8b"), name="mine", layers=load_model("llama-3.1-8b").layers[:5])
    assert "_build_llama3_layers" in export(replace(question(), model=small)).texts["plan.py"]


@pytest.mark.parametrize("name", ["gpipe", "looped-bfs", "zbv", "zb-h1"])
def test_schedules_by_name_or_as_a_table(name: str) -> None:
    vpp = 2 if name in ("looped-bfs", "zbv") else 1
    request = question(pp=2, dp_shard=8, vpp=vpp, schedule=name)
    result = export(request)
    assert not result.unsaid
    assert ("schedule.csv" in result.texts) == (name == "zb-h1")


@pytest.mark.parametrize("compute", ["fp8", "mxfp8"])
def test_narrow_types(compute: str) -> None:
    result = export(question("qwen3-30b-a3b", compute=compute, ep=4, cluster="b200"))
    assert not result.unsaid, result.unsaid


@pytest.mark.parametrize("release", ["2024", "0.2"])
def test_a_release_without_a_python_configuration_is_refused(release: str) -> None:
    with pytest.raises(SpecError, match=f"torchtitan@{release} cannot be exported; torchtitan@0.3 can"):
        export(question(to=f"torchtitan@{release}"))


def test_what_torchtitan_has_no_code_for_is_refused() -> None:
    with raises(SpecError, "unsupported_by torchtitan | gpt2-xl"):
        export(question("gpt2-xl"))
    with raises(SpecError, "unsupported_by torchtitan | tied embeddings have no pipeline"):
        export(question("llama-3.2-1b", pp=2, dp_shard=8))
    with raises(SpecError, "unsupported_by torchtitan | stage 0 is plain replication"):
        export(question(tp=2, zero=0, dp_shard=1, dp_replicate=8))


def test_an_order_of_ones_own_times_is_no_table() -> None:
    with pytest.raises(SpecError, match="v-half orders its work by times"):
        export(question(pp=2, dp_shard=8, vpp=2, schedule="v-half"))


def test_graphs_stay_off_with_a_pipeline() -> None:
    with raises(SpecError, "conflicts CUDA graphs, a pipeline"):
        export(question(pp=2, dp_shard=8, graphs="full"))
