"""Data files of performance recipes: each can be read, and agrees with the models and devices of the catalogue."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from forescale.catalogue.clusters import device_names, load_device
from forescale.catalogue.frameworks import first_releases, framework_names, load_framework, release_names
from forescale.catalogue.models import load_model, model_names
from forescale.spec.framework import merged
from forescale.spec.layout import Layout
from forescale.spec.recipes import active_width, kind_of

FRAMEWORKS = [
    framework
    for name in framework_names()
    for release in release_names(name)
    if (framework := load_framework(f"{name}@{release}")).recipes
]


def test_releases_have_recipes() -> None:
    assert {framework.label for framework in FRAMEWORKS} >= {
        f"megatron-bridge@{release}"
        for release in (
            "25.09",
            "25.11",
            "26.02",
            "26.02.01",
            "26.04",
            "26.04.01",
            "26.06",
            "26.06.01",
            "26.08",
        )
    } | {
        "maxtext@2026",
        "nemo@25.04",
        "nemo@25.05",
        "nemo@25.08",
        "primus@2026.08",
        "torchtitan@0.2",
        "torchtitan@0.3",
        "torchtitan@2024",
    }


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.label)
def test_recipes_agree_with_the_catalogue(framework) -> None:
    names = [name for recipe in framework.recipes for name in recipe.names.values()]
    assert len(set(names)) == len(names)
    devices = {name: load_device(name) for name in device_names()}
    known = [recipe for recipe in framework.recipes if recipe.model in model_names()]
    assert len(known) > 0.75 * len(framework.recipes)  # others are models of the framework's own
    for recipe in known:
        model = load_model(recipe.model)
        assert (recipe.kind, recipe.active_width, recipe.num_layers) == (
            kind_of(model),
            active_width(model),
            model.num_layers,
        )
        named = [device for name, device in devices.items() if name.startswith(recipe.device)]
        assert all(device.architecture == recipe.architecture for device in named if recipe.device)
        layout = merged(Layout(), recipe.layout)
        assert asdict(layout)["graphs"] == recipe.layout.get("graphs", "none")
        if "stage_layers" in recipe.layout:
            assert sum(recipe.layout["stage_layers"]) == model.num_layers
        if layout.overlap.expert or layout.dispatcher != "all_to_all":
            assert model.is_moe


def test_padded_experts_are_captured_whole_and_travel_by_all_to_all() -> None:
    recipes = [
        recipe for framework in FRAMEWORKS for recipe in framework.recipes if "routing" in recipe.layout
    ]
    assert {recipe.model for recipe in recipes} >= {
        "deepseek-v3",
        "grok-1",
        "llama-4-maverick",
        "qwen3-30b-a3b",
    }
    for recipe in recipes:
        assert recipe.layout["routing"] == {"capacity_factor": 1.0, "pad_to_capacity": True}
        assert recipe.layout["graphs"] in ("none", "full")
        assert recipe.layout.get("dispatcher", "all_to_all") == "all_to_all"


def test_settings_have_the_first_release_that_uses_them() -> None:
    layout = merged(Layout(), {"dispatcher": "hybridep", "graphs": "partial", "overlap": {"expert": True}})
    assert set(first_releases("megatron-bridge", layout)) == {
        "dispatcher hybridep",
        "graphs partial",
        "overlap expert",
    }
    assert first_releases("megatron-bridge", layout)["dispatcher hybridep"] == "25.11"
    assert first_releases("megatron-bridge", Layout()) == {}


@pytest.mark.parametrize(
    ("framework", "name", "section", "expected"),
    [
        (
            "megatron-bridge@26.06",
            "deepseek_v3_pretrain_config_gb200_fp8_mx_v2",
            "kernels",
            {"paged_stash": 1.2},
        ),
        (
            "megatron-bridge@26.04",
            "deepseek_v3_pretrain_config_gb300_fp8_mx_v2",
            "kernels",
            {"paged_stash": None},
        ),
        (
            "megatron-bridge@26.08",
            "qwen3_30b_a3b_pretrain_16gpu_gb200_fp8mx_paged_stash_dev_config",
            "kernels",
            {"paged_stash": 1.1, "fused_grouped_mlp": True},
        ),
        (
            "megatron-bridge@26.08",
            "qwen3_235b_a22b_pretrain_128gpu_b300_fp8mx_hybridep_dev_config",
            "precision",
            {"moments": "bf16"},
        ),
        ("nemo@25.08", "deepseek_v3 h100 bf16 on 1024, pp 4 vpp 1", "kernels", {"wide_router": True}),
        (
            "maxtext",
            "ironwood/llama3.1-70b/8k-bf16-tpu7x-4x4x4",
            "precision",
            {"moments": "bf16", "second_moments": "fp32"},
        ),
    ],
)
def test_recipes_set_what_their_code_sets(framework, name, section, expected) -> None:
    recipes = [item for item in load_framework(framework).recipes if name in item.names.values()]
    assert recipes
    for recipe in recipes:
        words = (recipe.layout if section == "kernels" else recipe.workload).get(section, {})
        assert {key: words.get(key) for key in expected} == expected
