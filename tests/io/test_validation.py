import pytest
from tests.errors import fields, raises

from forescale.catalogue.clusters import cluster_names, device_names, load_cluster, load_device
from forescale.errors import SpecError, UnknownKeyError
from forescale.io.named import build
from forescale.spec import (
    Cluster,
    Device,
    FullAttention,
    LatentAttention,
    Layout,
    LinearAttention,
    Model,
    Tier,
    Workload,
)

TIER = {"name": "net", "size": 0, "bandwidth": "50 GB/s", "latency": "5 us"}


def test_builds_nested_dataclasses_and_tuples():
    layout = build(
        Layout,
        {
            "tp": 8,
            "recompute": {"granularity": "selective", "modules": ["core_attn"]},
            "stage_layers": [5, 4],
        },
        where="strategy",
    )
    assert layout.tp == 8
    assert layout.recompute.modules == ("core_attn",)
    assert layout.stage_layers == (5, 4)


def test_quantities_with_units_become_si():
    tier = build(Tier, {**TIER, "link_bandwidth": "100 Gb/s"}, where="tier")
    assert tier.bandwidth == 50e9
    assert tier.link_bandwidth == 12.5e9
    assert build(Workload, {"seq_len": 1, "global_batch_size": 1, "tokens": "15T"}, where="w").tokens == 15e12


def test_every_error_at_once_with_its_path():
    with pytest.raises(SpecError) as caught:
        build(
            Layout,
            {"tp": 0, "pp": "4", "zero": 5, "zerro": 1, "recompute": {"granularity": "ful", "num_layer": 3}},
            where="plan.toml, strategy",
        )
    text = str(caught.value)
    assert text.startswith("plan.toml, strategy: ")
    assert "tp " in text
    assert "a whole number, got '4'" in text
    assert "3 or less, got 5" in text
    assert "unknown key 'zerro' in plan.toml, strategy; did you mean zero" in text
    assert "recompute.granularity" in text
    assert "got 'ful'; did you mean 'full'?" in text
    assert "unknown key 'num_layer' in plan.toml, strategy, recompute; did you mean num_layers" in text
    assert "\n" not in text


def test_a_lone_unknown_key_has_its_own_error():
    with raises(UnknownKeyError, "unknown_key tpp"):
        build(Layout, {"tpp": 8}, where="strategy")


def test_wrong_units_and_missing_fields():
    with pytest.raises(SpecError) as caught:
        build(Tier, {"name": "net", "bandwidth": "50 GFLOP", "size": 4}, where="tier")
    assert str(caught.value).startswith("tier: bandwidth = '50 GFLOP' is not a quantity in byte/s")
    assert str(caught.value).endswith("; latency is required")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tp": True}, "wrong_type tp"),
        ({"tp": 2.5}, "wrong_type tp"),
        ({"tp": None}, "wrong_type tp"),
        ({"tp": [2]}, "wrong_type tp"),
        ({"sp": 1}, "wrong_type sp"),
        ({"recompute": "full"}, "wrong_type recompute"),
        ({"axis_order": ["tp", "xx"]}, "not_one_of axis_order.1"),
        ({"stage_layers": ["4"]}, "wrong_type stage_layers.0"),
    ],
)
def test_nothing_is_converted_in_silence(values, text):
    with raises(SpecError, text):
        build(Layout, values, where="strategy")


def test_whole_floats_are_whole_numbers():
    assert build(Layout, {"tp": 8.0}, where="strategy").tp == 8


def test_a_law_of_the_dataclass_itself_is_told():
    device = {"name": "x", "vendor": "y", "architecture": "z", "matrix_flops": {"bf16": "1 TFLOP/s"},
              "vector_flops": "1 TFLOP/s", "hbm_bytes": "1 GiB", "hbm_bandwidth": "1 GB/s", "num_cores": 1,
              "clock_hz": "1 GHz"}  # fmt: skip
    cluster = {
        "name": "c",
        "device": device,
        "num_devices": 9,
        "devices_per_node": 8,
        "tiers": [{**TIER, "size": 8}],
    }
    with raises(SpecError, "too_large its outermost tier 'net'"):
        build(Cluster, cluster, where="cluster")
    assert build(Cluster, {**cluster, "num_devices": 8}, where="cluster").device.hbm_bytes == 2**30


@pytest.mark.parametrize(
    ("attention", "kind"),
    [
        ({"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}, FullAttention),
        ({"num_heads": 4, "kv_lora_rank": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
         LatentAttention),
        ({"num_heads": 4, "num_key_heads": 2, "key_head_dim": 8, "value_head_dim": 8}, LinearAttention),
    ],
)  # fmt: skip
def test_unions_follow_the_keys(attention, kind):
    layer = {"attention": attention, "ffn": {"ffn_hidden_size": 64}}
    model = build(
        Model, {"name": "m", "hidden_size": 32, "layers": [layer, {**layer, "ffn": None}]}, where="model"
    )
    assert isinstance(model.layers[0].attention, kind)
    assert model.layers[1].ffn is None


def test_errors_inside_a_union_name_one_branch():
    layer = {"attention": {"num_heads": 0, "num_kv_heads": 2, "head_dim": 8}, "ffn": None}
    with pytest.raises(SpecError) as caught:
        build(Model, {"name": "m", "hidden_size": 32, "layers": [layer]}, where="model")
    assert fields(caught.value) == "out_of_range layers.0.attention.num_heads"


@pytest.mark.parametrize("name", device_names())
def test_catalogue_devices_keep_every_bound(name):
    from dataclasses import asdict

    device = load_device(name)
    assert build(Device, asdict(device), where=name) == device


@pytest.mark.parametrize("name", cluster_names())
def test_catalogue_clusters_keep_every_bound(name):
    from dataclasses import asdict

    cluster = load_cluster(name, 2)
    assert build(Cluster, asdict(cluster), where=name) == cluster
