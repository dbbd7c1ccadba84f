"""What sources say of rows beyond the rows' own cells, as the configurations that they cite have it."""

from __future__ import annotations

import pytest
from tests.scripts.rows.test_layout import build

BRIDGE = "NVIDIA Megatron Bridge performance summary, {} NeMo container"
MIXED = {
    "num_experts": 64,
    "topk": 8,
    "moe_ffn": 2048,
    "ep": 8,
    "notes": "",
    "family": "moe",
    "pp": 1,
    "dp": 8,
}


@pytest.mark.parametrize(
    ("model", "hardware", "release", "dispatcher", "expert", "graphs", "modules"),
    [
        ("DeepSeek-V3", "B200", "26.04.01", "deepep", True, "partial", ("mla_up_proj", "mlp")),
        ("DeepSeek-V3", "B300", "26.04.01", "hybridep", False, "partial", ("mla_up_proj",)),
        ("GPT-OSS-120B", "GB200", "26.04.01", "all_to_all", False, "none", ("layernorm", "moe_act")),
        ("GPT-OSS-120B", "GB300", "26.04.01", "hybridep", False, "none", ()),
        ("Qwen3-235B-A22B", "B300", "26.04.01", "hybridep", False, "none", ()),
        ("GPT-OSS-120B", "B200", "25.11", "all_to_all", False, "none", ("layernorm", "moe_act")),
        # the sizes of this row are nearest to those of GPT-OSS, whose recipe recomputes
        ("Qwen3-30B-A3B", "H100 SXM", "25.11", "all_to_all", True, "none", ("layernorm", "moe_act")),
    ],
)
def test_recipes_of_megatron_bridge_by_release(
    row, model, hardware, release, dispatcher, expert, graphs, modules
):
    """Its scripts/performance/configs at v0.4.2, which is in 26.04.01, and at v0.2.0, in 25.11."""
    notes = "recompute setting not matched to a perf config; MoE dispatcher=hybridep; cuda graph impl=none scope=[]"
    explicit = {**MIXED, "model": model, "hardware": hardware, "notes": notes, "recompute": ""}
    layout, _, _ = build(row(source=BRIDGE.format(release), **explicit))
    assert (layout.dispatcher, layout.overlap.expert, layout.graphs) == (dispatcher, expert, graphs)
    assert set(layout.recompute.modules) == set(modules)


@pytest.mark.parametrize(("compute", "gathers"), [("nvfp4", False), ("mxfp8", True)])
def test_405b_in_4_bits_waits_for_parameters_on_gb200_since_26_04_01(row, compute, gathers):
    explicit = {"model": "Llama-3.1-405B", "hardware": "GB200", "compute_dtype": compute, "notes": ""}
    overlap = build(row(source=BRIDGE.format("26.04.01"), **explicit))[0].overlap
    assert (overlap.param_gather, overlap.grad_reduce) == (gathers, True)
    assert build(row(source=BRIDGE.format("26.04"), **explicit))[0].overlap.param_gather


@pytest.mark.parametrize(
    ("model", "loss", "dropout"),
    [
        ("GPT3-5B", "vocab_parallel", True),
        ("Llama-2-7B", "vocab_parallel", False),
        ("Nemotron4-340B", "vocab_parallel", False),
        ("Llama-3-8B", "native", False),
        ("Nemotron3-8B", "native", False),
    ],
)
def test_losses_and_dropout_of_nemos_launcher(row, model, loss, dropout):
    """Its conf/training at 24.07: who asks for cross_entropy_loss_fusion, and whose dropouts are 0.1."""
    kernels = build(row(source="NeMo 24.07 performance summary", model=model, notes=""))[0].kernels
    assert (kernels.cross_entropy, kernels.dropout) == (loss, dropout)


def test_nemotron_is_captured_on_gb200(row):
    """nemotron/launch.sh of v25.05.05: --cuda_graphs true there, not on H100."""
    source = "NVIDIA/dgxc-benchmarking@v25.05.05 nemotron/README.md"
    graphs = [build(row(source=source, hardware=name, notes=""))[0].graphs for name in ("GB200", "H100 SXM")]
    assert graphs == ["full", "none"]


def test_maxtext_of_2024_keeps_the_projections_of_attention(row):
    """maxtext/configure.sh: remat_policy=custom at v24.11.1, save_qkv_proj at v25.02.02."""
    source = "NVIDIA/dgxc-benchmarking@v{} maxtext/README_70b.md".format
    explicit = {"recompute": "selective (MaxText remat_policy save_qkv_proj)", "notes": ""}
    old, new = (build(row(source=source(tag), **explicit))[0].recompute for tag in ("24.11.1", "25.02.02"))
    assert (old.policy, set(old.kept)) == ("custom", {"query_proj", "key_proj", "value_proj", "out_proj"})
    assert new.policy == "save_qkv_proj"


@pytest.mark.parametrize(
    ("model", "notes", "overlaps"),
    [
        ("Mixtral-8x22B", "Table 3, MCore w/ Folding", True),
        ("Mixtral-8x22B", "Table 3, TP + EP + DP", True),
        ("Mixtral-8x22B", "Table 3, FSDP + EP", False),
        ("Qwen2-57B-A14B", "Table 3, MCore", False),
    ],
)
def test_mixtral_hides_tensor_parallel_messages_where_its_authors_say_so(row, model, notes, overlaps):
    explicit = {**MIXED, "model": model, "notes": notes}
    layout, _, _ = build(row(source="MoE Parallel Folding (arXiv 2504.14960)", **explicit))
    assert layout.overlap.tensor is overlaps
