from __future__ import annotations

import pytest
from scripts.rows.cluster import cluster_of
from scripts.rows.layout import stated_of
from scripts.rows.model import model_of

from forescale.catalogue.clusters import load_device
from forescale.cost.run_calibration import load_run_calibration
from forescale.errors import ForescaleError
from forescale.spec import Recompute
from forescale.spec.stage_layers import light_ends
from forescale.validation.case import InexpressibleError


def build(row):
    notes: list[str] = []
    model = model_of(row, notes)
    layout, workload = stated_of(row, model, notes).trained(model, cluster_of(row, []))
    return layout, workload, notes


def test_degrees_batch_and_sequence(row):
    layout, workload, notes = build(row())
    assert (layout.tp, layout.cp, layout.pp, layout.vpp, layout.dp) == (2, 1, 2, 1, 4)
    assert (layout.micro_batch_size, workload.global_batch_size, workload.seq_len) == (2, 64, 4096)
    assert layout.sp
    assert notes == ["catalogue model llama-3.1-8b"]


def test_degrees_that_do_not_make_up_the_devices_are_a_reason(row):
    with pytest.raises(InexpressibleError, match="tp x cp x pp x dp is 32, but the row counts 16 devices"):
        build(row(dp=8))


def test_a_cell_that_is_no_number_is_a_reason(row):
    with pytest.raises(ForescaleError, match="column pp"):
        build(row(pp="many"))


def test_missing_degrees_are_noted(row):
    layout, _, notes = build(row(tp="", pp="", vpp="", dp=""))
    assert (layout.tp, layout.pp, layout.dp) == (1, 1, 16)
    assert {"tp not given: 1 assumed", "dp not given: 16 fills the devices"} <= set(notes)


def test_missing_vpp_of_an_interleaved_schedule_is_two(row):
    layout, _, _ = build(row(vpp="", schedule="1f1b-interleaved"))
    assert layout.vpp == 2


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, 7),
        ({"pp": 4, "dp": 4}, 7),
        ({"vpp": 1}, 1),
        ({"schedule": "1f1b"}, 1),
        ({"global_batch": 62}, 1),
        ({"source": "MaxText"}, 1),
        ({"model": "Llama-3.1-8B", "num_experts": "", "topk": ""}, 1),
    ],
    ids=["56 layers on 8 stages", "on 4", "given", "1F1B", "31 micro-batches", "another framework", "dense"],
)
def test_missing_depth_of_a_pipeline_with_experts_is_what_the_guide_advises(row, cells, expected):
    """The middle one of 1 and 7, or of 1, 2, 7 and 14, the upper where there are two."""
    mixtral = {
        "model": "Mixtral-8x22B",
        "layers": 56,
        "num_experts": 8,
        "topk": 2,
        "source": "Megatron-LM",
        "notes": "",
        "n_gpus": 16,
        "tp": 1,
        "cp": 1,
    }
    value = {
        **mixtral,
        "pp": 8,
        "dp": 2,
        "micro_batch": 1,
        "global_batch": 64,
        "vpp": "",
        "schedule": "",
        **cells,
    }
    layout, _, notes = build(row(**value))
    assert layout.vpp == expected
    assert (f"vpp not given: {expected} assumed" in notes) == ("vpp" not in cells)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("NVIDIA Megatron Bridge performance summary, 26.02.01 NeMo container", "megatron-core@26.02"),
        ("NVIDIA Megatron Bridge performance summary, 31.02 NeMo container", "megatron-core@26.08"),
        ("NVIDIA/dgxc-benchmarking@v25.02.02 llama3.1/README_8b.md", "megatron-core@25.02"),
        ("NeMo 24.07 performance summary", "megatron-core-flash-2@24.07"),
        ("bigscience-workshop/bigscience experiments/gpt2.md line 113", "megatron-2021"),
        ("BigScience; bigscience-workshop/bigscience experiments/gpt2.md line 182", "megatron-deepspeed"),
        ("NVIDIA/JAX-Toolbox rosetta/rosetta/projects/pax/README.md @af7aeed6", "xla-gpu@23.10"),
    ],
)
def test_sources_say_of_which_release_their_libraries_were(row, source, expected):
    assert build(row(source=source, notes=""))[0].software == expected


@pytest.mark.parametrize(
    ("revision", "attention", "model", "flash", "fused"),
    [
        ("af7aeed6", "TE", "GPT3-5B", False, True),
        ("af7aeed6", "XLA", "GPT3-5B", False, False),
        ("28603900", "TE", "GPT3-5B", True, True),
        ("28603900", "TE", "GPT-126M", False, True),
    ],
)
def test_pax_kept_the_scores_of_attention_before_2024(row, revision, attention, model, flash, fused):
    source = f"NVIDIA/JAX-Toolbox rosetta/rosetta/projects/pax/README.md @{revision}"
    layout = build(row(source=source, attention=attention, model=model))[0]
    assert (layout.flash_attention, layout.kernels.fused_softmax) == (flash, fused)


@pytest.mark.parametrize(("attention", "expected"), [("flash-1", "flash-1"), ("flash-2", ""), ("flash", "")])
def test_a_row_that_names_the_first_flash_attention_runs_it(row, attention, expected):
    assert build(row(attention=attention))[0].kernels.attention_kernel == expected


@pytest.mark.parametrize(
    ("cells", "micro", "batch"),
    [
        ({"micro_batch": "", "source": "Megatron-LM"}, 1, 64),
        ({"micro_batch": "", "grad_accum": 4}, 4, 64),
        ({"global_batch": ""}, 2, 2 * 4 * 16),
        ({"global_batch": "", "grad_accum": 3}, 2, 24),
        ({"micro_batch": 3, "global_batch": 32}, 2, 32),
    ],
)
def test_missing_or_uneven_batches(row, cells, micro, batch):
    layout, workload, notes = build(row(**cells))
    assert (layout.micro_batch_size, workload.global_batch_size) == (micro, batch)
    assert notes


def test_a_batch_that_data_parallelism_does_not_divide_is_a_reason(row):
    with pytest.raises(InexpressibleError, match="global batch of 30 sequences"):
        build(row(global_batch=30))


@pytest.mark.parametrize(
    ("text", "remark", "expected"),
    [
        ("0", "", (1, 4, 0)),
        ("1", "", (1, 4, 1)),
        ("2", "", (1, 4, 2)),
        ("3 (FSDP)", "", (1, 4, 3)),
        ("", "", (1, 4, 1)),
        ("hsdp", "FSDP=2 DP=2", (2, 2, 3)),
        ("hsdp", "2 slice(s) of v5e-256", (2, 2, 3)),
        ("hsdp", "slices=4", (4, 1, 3)),
        ("hsdp", "v4-16 = 8 chips", (2, 2, 3)),
        ("hsdp", "", (1, 4, 3)),
        ("3", "Megatron-FSDP sharding group 2", (2, 2, 3)),
    ],
)
def test_sharding_spellings(row, text, remark, expected):
    layout, _, _ = build(row(zero_or_fsdp=text, notes=remark))
    assert (layout.dp_replicate, layout.dp_shard, layout.zero) == expected


def test_hierarchical_zero_1_shards_within_its_group(row):
    layout, _, _ = build(row(optimizer="adamw (hierarchical ZeRO-1, shard group 2)"))
    assert (layout.dp_replicate, layout.dp_shard, layout.zero) == (2, 2, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Recompute()),
        ("full", Recompute(granularity="full")),
        ("full (every layer, partition-activations)", Recompute(granularity="full")),
        ("full-block(5 layers)", Recompute(granularity="full", num_layers=5)),
        ("full-block(1 layer per virtual stage (32 of 61))", Recompute(granularity="full", num_layers=1)),
        (
            "full-block(4 listed layers of 32)",
            Recompute(granularity="full", layer_ids=(0, 8, 16, 24)),
        ),
        (
            "selective (every other layer)",
            Recompute(granularity="full", layer_ids=tuple(range(0, 32, 2))),
        ),
        ("selective(core_attn)", Recompute(granularity="selective", modules=("core_attn",))),
        ("selective(moe+layernorm)", Recompute(granularity="selective", modules=("layernorm", "moe"))),
        ("selective (per-op SAC)", Recompute(granularity="policy", policy="torch_per_op")),
        (
            "selective (MaxText remat_policy save_qkv_proj)",
            Recompute(granularity="policy", policy="save_qkv_proj"),
        ),
    ],
)
def test_recompute_spellings(row, text, expected):
    layout, _, _ = build(row(recompute=text, source="NeMo"))
    assert layout.recompute == expected


def test_frameworks_that_replay_no_more_than_backward_needs(row):
    early = {
        source: build(row(recompute="full", source=source))[0].recompute.stops_early
        for source in ("torchtitan", "MosaicML LLM Foundry", "MaxText", "NeMo", "InternEvo", "BigScience")
    }
    assert [source for source, yes in early.items() if yes] == [
        "torchtitan",
        "MosaicML LLM Foundry",
        "MaxText",
    ]


def test_a_row_says_that_launches_blocked(row):
    layout, _, _ = build(row(notes="CUDA_LAUNCH_BLOCKING=1 was in use for large jobs"))
    assert layout.kernels.blocking_launches


def test_deepspeed_sends_shares_of_a_message_and_does_not_wait_for_it(row):
    for dtype in ("fp16", "bf16"):
        kernels = build(row(source="BigScience", compute_dtype=dtype))[0].kernels
        assert kernels.shares_messages
        assert kernels.runs_ahead
    assert not build(row(source="Korthikanti"))[0].kernels.runs_ahead


def test_frameworks_that_wait_for_sums_of_input_gradients(row):
    waits = {
        source: not build(row(source=source))[0].kernels.hides_input_sums
        for source in ("Narayanan et al. 2021", "BigScience", "torchtitan", "Korthikanti et al. 2022", "NeMo")
    }
    assert [source for source, yes in waits.items() if yes] == [
        "Narayanan et al. 2021",
        "BigScience",
        "torchtitan",
    ]


@pytest.mark.parametrize(
    ("source", "kernel", "etp"),
    [
        ("NVIDIA/dgxc-benchmarking@v24.11.1 grok1/README_314b.md", "flash-2", 4),
        ("NVIDIA/dgxc-benchmarking@v24.11.1 nemo_megatron/README_175b.md", "flash-2", 1),
        ("NVIDIA/dgxc-benchmarking@v24.11.1 nemotron/README_15b.md", "", 1),
        ("NVIDIA/dgxc-benchmarking@v25.02.02 nemo_megatron/README_175b.md", "", 1),
    ],
)
def test_recipes_that_kept_cudnn_from_attention(row, source, kernel, etp):
    grok = {"num_experts": 8, "topk": 2, "moe_ffn": 32768, "ep": 8, "tp": 4, "cp": 2, "dp": 8, "n_gpus": 64}
    layout, _, _ = build(row(source=source, notes="", pp=1, family="moe", **grok))
    factors = load_run_calibration().factors(load_device("h100-sxm"), layout.software)
    assert (factors.attention_kernel, layout.etp) == (kernel, etp)
    assert layout.software.partition("@")[2] == source.partition("@v")[2][:5]


def test_what_recipes_of_dgxc_benchmarking_say(row):
    """As grok1_314b.yaml, gpt3_175b_hydra.yaml and nemotron4-15b-synth.yaml of its tags have them."""
    source = "NVIDIA/dgxc-benchmarking@v{}".format
    names = {
        name: build(row(source=source(name), notes="", compute_dtype="bf16", tp=1, pp=4, vpp=12))
        for name in (
            "24.11.1 grok1/README_314b.md",
            "24.11.1 nemo_megatron/README_175b.md",
            "25.02.02 nemo_megatron/README_175b.md",
            "24.11.1 nemotron/README_15b.md",
            "25.02.02 nemotron/README_15b.md",
        )
    }
    kernels = [layout.kernels for layout, _, _ in names.values()]
    assert [k.cross_entropy for k in kernels] == ["vocab_parallel"] * 3 + ["native"] * 2
    assert [k.grouped_experts for k in kernels] == [False] + [True] * 4
    assert [k.dropout for k in kernels] == [False, True, True, False, False]
    assert [layout.vpp for layout, _, _ in names.values()] == [12, 12, 6, 12, 12]
    precisions = [workload.precision for _, workload, _ in names.values()]
    # the model of the test is dense, and 24.11 trains dense models in 16 bits with a master copy of 16 bits
    assert [p.master for p in precisions] == ["bf16", "bf16", "fp32", "bf16", "fp32"]
    assert [p.gradients for p in precisions] == ["bf16"] * 4 + ["fp32"]


def test_shared_experts_hide_the_dispatch_where_their_authors_say_so(row):
    explicit = {
        "source": "MoE Parallel Folding (arXiv 2504.14960)",
        "notes": "",
        "num_experts": 64,
        "topk": 8,
        "moe_ffn": 2560,
    }
    hidden = [
        build(row(model=name, **explicit))[0].overlap.shared_experts
        for name in ("Qwen2-57B-A14B", "Mixtral-8x22B")
    ]
    assert hidden == [True, False]


def test_zero_bubble_trains_with_a_sentence_piece_vocabulary(row):
    model = model_of(row(model="GPT-1.5B (Zero Bubble paper)", vocab=""), [])
    assert model.vocab_size == 32000


def test_xla_shards_the_residual_and_is_two_stacks(row):
    tpu, _, _ = build(row(source="MaxText", hardware="TPU v5e", sp="n"))
    gpu, _, _ = build(row(source="MaxText", sp="n"))
    assert (tpu.sp, tpu.overlap.tensor) == (True, True)
    assert (tpu.software, gpu.software) == ("xla", "xla-gpu")


def test_full_recompute_of_layers_per_stage_is_shared_by_its_chunks(row):
    layout, _, _ = build(row(recompute="full-block(1 layer per virtual stage)", vpp=4))
    assert layout.recompute.num_layers == 1
    layout, _, _ = build(row(recompute="full-block(4 layers)", vpp=4))
    assert layout.recompute.num_layers == 1


@pytest.mark.parametrize("text", ["sometimes", "selective(moe+everything)"])
def test_recompute_that_is_not_understood_is_a_reason(row, text):
    with pytest.raises(InexpressibleError, match="recompute"):
        build(row(recompute=text))


@pytest.mark.parametrize(
    ("text", "source", "compute", "recipe", "gradients"),
    [
        ("bf16", "NVIDIA Megatron Bridge", "bf16", "none", "bf16"),
        ("bf16", "SimuMax", "bf16", "none", "fp32"),
        ("bf16 (fp32 gradient accumulation)", "BigScience", "bf16", "none", "fp32"),
        ("fp16 (inferred from line 899)", "BigScience", "fp16", "none", "fp16"),
        ("fp8 (delayed scaling)", "NeMo", "fp8", "delayed", "bf16"),
        ("fp8 (current scaling)", "NeMo", "fp8", "current", "bf16"),
        ("fp8", "torchtitan", "fp8", "current", "fp32"),
        ("fp8", "MosaicML", "fp8", "delayed", "bf16"),
        ("mxfp8", "NeMo", "mxfp8", "mxfp8", "bf16"),
        ("nvfp4", "NeMo", "nvfp4", "none", "bf16"),
        ("int8 (AQT) matmuls", "maxtext", "int8", "none", "bf16"),
    ],
)
def test_precision_spellings(row, text, source, compute, recipe, gradients):
    _, workload, _ = build(row(compute_dtype=text, source=source))
    precision = workload.precision
    assert (precision.compute, precision.recipe, precision.gradients) == (compute, recipe, gradients)
    kept = {"torchtitan": "fp32", "NeMo": "fp8" if compute in ("fp8", "mxfp8") else "bf16"}.get(
        source, "bf16"
    )
    assert precision.parameters == ("fp16" if compute == "fp16" else kept)


def test_an_unknown_compute_type_is_a_reason(row):
    with pytest.raises(InexpressibleError, match="compute type 'posit16'"):
        build(row(compute_dtype="posit16"))


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "expected"),
    [
        (32, 8, 2, None),
        (126, 8, 4, (3,) + (4,) * 30 + (3,)),
        (22, 8, 1, (2, 3, 3, 3, 3, 3, 3, 2)),
        (61, 4, 1, (16, 16, 16, 13)),
        (61, 16, 1, (4,) * 15 + (1,)),
        (61, 4, 4, (4,) * 15 + (1,)),
        (33, 1, 1, None),
    ],
)
def test_layers_that_do_not_divide(row, layers, pp, vpp, expected):
    model = model_of(row(layers=layers), [])
    assert light_ends(model.num_layers, pp, vpp) == expected


def test_nanotron_cuts_stages_by_the_weights_of_layers_and_head(row):
    cells = {"layers": 28, "hidden": 3072, "ffn": 8192, "vocab": 131072}
    assert build(row(**cells))[0].stage_layers is None
    layout, _, _ = build(row(source="nanotron", **cells))
    assert layout.stage_layers == (
        16,
        12,
    )  # 113.2 M weights a layer, 402.7 M in the head: half are 15.7 layers
    assert build(row(source="nanotron", pp=1, tp=4, **cells))[0].stage_layers is None


def test_torchtitan_of_2024_makes_a_micro_batch_for_each_stage(row):
    cells = {"micro_batch": "", "global_batch": 32}
    assert build(row(source="torchtitan Dec 2024", **cells))[0].micro_batch_size == 4
    assert build(row(source="torchtitan Jun 2025", **cells))[0].micro_batch_size == 1
    assert build(row(source="NeMo", **cells))[0].micro_batch_size == 1


def test_torchtitan_compiles_its_loss_since_2025(row):
    of_date = {
        date: build(row(source=f"torchtitan {date}"))[0].kernels
        for date in ("Dec 2024", "benchmarks/x_2025-06.md")
    }
    assert [item.cross_entropy for item in of_date.values()] == ["loss_parallel", "compiled"]
    hashed = build(row(source="torchtitan @a2025b"))[0].kernels
    assert hashed.cross_entropy == "loss_parallel"


@pytest.mark.parametrize(
    ("remark", "graphs"),
    [
        ("cuda graph impl=none scope=full_iteration", "none"),
        ("recompute; cuda graph impl=local scope=full_iteration; x", "full"),
        ("cuda graph impl=full_iteration scope=[]", "full"),
        ("cuda graph impl=transformer_engine scope=['mamba', 'attn', 'moe_router']", "partial"),
        ("cuda graph impl=transformer_engine scope=['moe_router', 'moe_preprocess']", "router"),
        ("TE CUDA graphs moe_router+moe_preprocess, forced balance", "router"),
        ("TE CUDA graphs; without recompute OOM", "partial"),
        ("CUDA graphs off", "none"),
    ],
)
def test_remarks_name_captured_launches_as_megatron_does(row, remark, graphs):
    assert build(row(notes=remark))[0].graphs == graphs


def test_etp_cuts_experts_by_tp_where_it_is_not_given(row):
    moe = {"model": "Mixtral-8x7B", "num_experts": 8, "topk": 2, "moe_ffn": 14336}
    assert build(row(**moe, ep=2, etp=""))[0].etp == 2
    assert build(row(**moe, ep=2, etp=1))[0].etp == 1
    assert build(row(**moe, ep=8, etp=""))[0].etp == 1
    assert build(row(**moe, ep=1, etp=""))[0].etp == 2
    assert build(row(**moe, source="AI-Hypercomputer/tpu-recipes", ep=1, etp=1))[0].etp == 2


def test_dense_models_have_no_etp(row):
    assert build(row(etp=""))[0].etp == 1


@pytest.mark.parametrize(
    ("cells", "grad_reduce", "param_gather", "tensor", "pipeline", "expert"),
    [
        ({"source": "Megatron SC21", "notes": "DDP=local"}, False, False, False, True, False),
        ({"source": "Megatron SC21", "notes": "DDP=torch overlap"}, True, False, False, True, False),
        ({"source": "NVIDIA Megatron Bridge"}, True, True, True, True, False),
        ({"source": "NVIDIA Megatron Bridge", "compute_dtype": "nvfp4"}, True, True, False, True, False),
        ({"source": "SimuMax", "notes": "TP/P2P comm overlap disabled"}, True, True, False, False, False),
        ({"source": "torchtitan", "notes": "2D + AsyncTP compile"}, True, True, True, True, False),
        ({"source": "Megatron-LM", "notes": "moe a2a overlap; recompute"}, True, True, False, True, True),
        ({"source": "Megatron-LM", "notes": "no EP overlap; alltoall"}, True, True, False, True, False),
        ({"source": "Megatron-LM", "notes": "EP overlap off; HybridEP"}, True, True, False, True, False),
    ],
)
def test_overlap_follows_the_framework_and_the_remarks(
    row, cells, grad_reduce, param_gather, tensor, pipeline, expert
):
    overlap = build(row(**cells))[0].overlap
    result = (overlap.grad_reduce, overlap.param_gather, overlap.tensor, overlap.pipeline, overlap.expert)
    assert result == (grad_reduce, param_gather, tensor, pipeline, expert)


@pytest.mark.parametrize(
    ("attention", "flash"),
    [
        ("flash (SDPA)", True),
        ("TransformerEngine flash", True),
        ("cudnn_flash_te", True),
        ("unfused (fused scaled-masked softmax)", False),
        ("fused softmax", False),
        ("XLA", False),
        ("", True),
    ],
)
def test_attention_spellings(row, attention, flash):
    assert build(row(attention=attention))[0].flash_attention is flash


def test_context_parallel_kinds(row):
    assert build(row(source="torchtitan"))[0].cp_kind == "all_gather"
    assert build(row(source="NeMo"))[0].cp_kind == "ring"
    assert build(row(source="NeMo", attention="flash (CP a2a)"))[0].cp_kind == "ulysses"


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [("adam (DeepSpeed ZeRO-1)", "adamw"), ("muon", "muon"), ("", "adamw"), ("adafactor", "adafactor")],
)
def test_optimizer_spellings(row, text, optimizer):
    assert build(row(optimizer=text))[1].optimizer == optimizer


def test_adapters_are_those_of_their_source(row):
    nemo = "NeMo performance summary, NeMo 24.07 container"
    trained = build(row(source=nemo, notes="LoRA fine-tune, packed sequences"))[1].trainable
    assert (trained.lora_rank, trained.lora_targets) == (32, ("qkv_proj",))
    with pytest.raises(InexpressibleError, match="rank and products of its LoRA adapters are not given"):
        build(row(notes="LoRA fine-tune, packed sequences"))


def test_a_source_that_keeps_moments_in_16_bits(row):
    cells = {"source": "NVIDIA Megatron Bridge", "mla": "y", "num_experts": 64, "topk": 6, "moe_ffn": 1408}
    assert build(row(model="Moonlight-16B", **cells))[1].precision.moments == "bf16"
    assert build(row(source="NVIDIA Megatron Bridge"))[1].precision.moments == "fp32"


def test_recompute_that_is_not_given_is_the_frameworks_own(row):
    layout, _, notes = build(row(source="torchtitan", recompute=""))
    assert layout.recompute == Recompute(granularity="policy", policy="torch_per_op")
    assert "recompute not given: torch_per_op assumed" in notes
    assert build(row(source="NeMo", recompute=""))[0].recompute == Recompute()


def test_policies_that_offload_and_rows_that_count_layers(row):
    offloaded, _, _ = build(row(recompute="selective (qkv_proj_offloaded)"))
    assert offloaded.recompute.policy == "save_qkv_proj"
    assert offloaded.offload.modules == ("query_proj", "key_proj", "value_proj")
    explicit, _, _ = build(row(notes="activation CPU offload of 20 layers"))
    assert explicit.offload.activation_layers == 20


def test_what_maxtexts_recipes_keep_and_offload(row):
    """By the recipe's name, as its configuration lists it; the layer's input stays unless it is named."""
    remarks = "log line; tuning params of llama3_1_70b_8192_bs2@tpu-recipes-v0.1.4: {}"
    layout, _, _ = build(row(source="tpu-recipes", recompute="selective (custom)", notes=remarks))
    assert layout.recompute.policy == "custom"
    assert layout.recompute.kept == ("query_proj", "key_proj", "value_proj")
    assert layout.offload.modules == ("decoder_layer_input", "query_proj", "key_proj", "value_proj")
    remarks = "tuning params of gemma3_12b_32768_v6e256@tpu-recipes-v0.1.5: {}"
    layout, _, _ = build(row(source="tpu-recipes", recompute="selective (custom)", notes=remarks))
    assert layout.recompute == Recompute(granularity="full", stops_early=True)
    assert layout.kernels.cross_entropy == "fused_linear"
    assert not layout.offload.modules
    remarks = "tuning params of llama3_1_70b_8192_bs2_bfloat16_no_collective_matmul@v: {}"
    workload = build(row(source="tpu-recipes", recompute="selective (custom)", notes=remarks))[1]
    assert workload.precision.master == "none"
    assert workload.precision.moments == "bf16"


def test_fine_tuning_of_llama_3_70b_recomputes_core_attention_where_the_row_says_nothing(row):
    source = "Megatron-Bridge memory/recompute skills (Llama3 70B SFT, PR #3107)"
    modules = [
        build(row(source=source, recompute=text))[0].recompute.modules for text in ("", "selective(mlp)")
    ]
    assert modules == [("core_attn",), ("mlp",)]
    assert build(row(recompute=""))[0].recompute.modules == ()


def test_custom_policies_in_words(row):
    text = "custom (layer input, q/k/v and out_proj offloaded)"
    layout, _, _ = build(row(source="tpu-recipes", recompute=text))
    assert layout.recompute.kept == ("query_proj", "key_proj", "value_proj", "out_proj")
    assert "decoder_layer_input" in layout.offload.modules
    layout, _, _ = build(row(source="tpu-recipes", recompute="custom (context and mlpwo offloaded to host)"))
    assert layout.recompute.kept == ("context", "mlpwo")
    assert layout.offload.modules == ("context", "mlpwo")
    layout, _, _ = build(row(source="tpu-recipes", recompute="custom (decoder_layer_input offloaded)"))
    assert layout.recompute.granularity == "full"
    assert layout.offload.modules == ("decoder_layer_input",)


def test_what_torchtitans_checkpoint_keeps_by_how_layers_multiply(row):
    cells = {"source": "torchtitan", "recompute": "selective (per-op SAC)"}
    assert build(row(**cells))[0].recompute.policy == "torch_per_op"
    assert build(row(notes="FSDP + torch.compile", **cells))[0].recompute.policy == "torch_per_op_compiled"
    of_2025 = build(row(**dict(cells, source="torchtitan mxfp8.md")))[0]
    assert of_2025.recompute.policy == "torch_per_mm_compiled"
    assert of_2025.kernels.gathers_ends_apart
    narrow = build(row(compute_dtype="nvfp4", **cells))[0].recompute
    assert narrow.kept == ("context",)


def test_lengths_vary_in_fine_tuning_that_does_not_pack_and_packed_examples_are_short(row):
    assert build(row(notes="SFT; more TP"))[1].varied_lengths
    packed = build(row(source="NeMo 24.07 performance summary", notes="SFT fine-tune, packed sequences"))[1]
    assert (packed.varied_lengths, packed.document_len) == (False, 200)  # SQuAD
    assert build(row())[1].document_len is None
    assert not build(row())[1].varied_lengths


def test_sharding_over_slices_shards_everything(row):
    cells = {"n_gpus": 32, "dp": 8, "zero_or_fsdp": "hsdp", "source": "tpu-recipes"}
    sharded = build(row(notes="slices=2; {'dcn_fsdp_parallelism': 2}", **cells))[0]
    copied = build(row(notes="slices=2; {'dcn_fsdp_parallelism': 1}", **cells))[0]
    assert (sharded.dp_replicate, copied.dp_replicate) == (1, 2)


def test_frameworks_without_accumulation_take_the_batch_at_once(row):
    cells = {"micro_batch": "", "grad_accum": "", "n_gpus": 8, "tp": 1, "pp": 1, "dp": 8, "global_batch": 64}
    assert build(row(source="tpu-recipes", **cells))[0].micro_batch_size == 8
    assert build(row(source="NeMo", **cells))[0].micro_batch_size == 1


def test_bigscience_inherits_dropout(row):
    assert build(row(source="BigScience tr3m-1B3"))[0].kernels.dropout
    assert not build(row(source="Pythia, gpt-neox"))[0].kernels.dropout


BRIDGE = "NVIDIA Megatron Bridge performance summary"
UNMATCHED = "recompute setting not matched to a perf config; router force-balanced"


@pytest.mark.parametrize(
    ("source", "remarks", "ep", "expected"),
    [
        (BRIDGE, UNMATCHED, 8, "deepep"),
        (BRIDGE, UNMATCHED, 1, "all_to_all"),
        (BRIDGE, "dispatcher read from perf config X", 8, "all_to_all"),
        (BRIDGE, "MoE dispatcher=hybridep", 8, "hybridep"),
        ("Megatron-LM", UNMATCHED, 8, "all_to_all"),
        ("MoE Training Optimization with Primus", "", 8, "deepep"),
    ],
)
def test_dispatcher_is_told_or_advised(row, source, remarks, ep, expected):
    cells = {"num_experts": 8, "topk": 2, "ep": ep, "dp": 8, "n_gpus": 8, "tp": 1, "pp": 1, "cp": 1}
    layout, _, notes = build(row(source=source, notes=remarks, **cells))
    assert layout.dispatcher == expected
    assumed = any("dispatcher not given" in note for note in notes)
    assert assumed == (source == BRIDGE and remarks == UNMATCHED and ep > 1)


def test_advice_depends_on_the_board(row):
    cells = {"source": BRIDGE, "notes": UNMATCHED, "model": "Qwen3-30B-A3B", "ep": 8, "dp": 8}
    names = [
        build(row(hardware=name, **cells, n_gpus=8, tp=1, pp=1, cp=1))
        for name in ("GB200", "GB300", "B200", "H100 SXM")
    ]
    assert [layout.graphs for layout, *_ in names] == ["partial", "partial", "none", "none"]
    assert all("graphs not given: those that the framework advises assumed" in notes for *_, notes in names)
    names = [layout.dispatcher for layout, *_ in names]
    assert names == ["hybridep", "hybridep", "deepep", "deepep"]


@pytest.mark.parametrize(
    ("model", "remarks", "narrow", "kernels"),
    [
        ("DeepSeek-V3", "tuned layout + 9 recomputed layers of 61", False, "each"),
        ("Qwen3-30B-A3B", "best configuration", False, "each"),
        ("Qwen3-30B-A3B", "Turbo-accelerated", True, "one"),
        ("Qwen3-235B-A22B", "best configuration", True, "each"),
    ],
)
def test_experts_of_primus_recipes(row, model, remarks, narrow, kernels):
    """AMD-AGI/Primus @fd1eeabb, examples/megatron/configs/MI355X: moe_use_legacy_grouped_gemm."""
    source = "MoE Training Optimization with Primus (tech blog)"
    layout, workload, _ = build(row(source=source, model=model, notes=remarks, compute_dtype="fp8"))
    assert (layout.kernels.narrow_experts, layout.kernels.expert_kernels) == (narrow, kernels)
    assert (workload.precision.gradients, workload.precision.moments) == ("bf16", "bf16")
