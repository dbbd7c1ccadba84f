"""Megatron's rules, one by one, on the smallest command line that shows each."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model, vocabulary_of
from forescale.errors import MissingError, ReaderError, UnknownKeyError
from forescale.frameworks.megatron import MegatronReader, read_arguments
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.spec import (
    DenseFfn,
    FullAttention,
    LatentAttention,
    LinearAttention,
    MoeFfn,
    Overlap,
    Precision,
    Recompute,
    Routing,
)
from forescale.spec.layout import Offload

BASE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100 --micro-batch-size 1 "
MOE = "--num-experts 8 --disable-bias-linear "
PP = "--pipeline-model-parallel-size "
CASES = Path(__file__).parents[2] / "data" / "megatron_cases.json"


def read(more="", devices=None, **options):
    return read_arguments(BASE + more, options=Options(num_devices=devices, **options))


def refused(text, more, devices=None):
    with raises(ReaderError, text) as caught:
        read(more, devices)
    assert "\n" not in str(caught.value)


def ffn(more):
    return [layer.ffn for layer in read(more).model.layers]


def attention(more, **options):
    return [layer.attention for layer in read(more, **options).model.layers]


# The model


def test_defaults_are_those_of_gpt():
    model = read("--max-position-embeddings 32").model
    assert model.layers[0].attention == FullAttention(
        num_heads=4, num_kv_heads=4, head_dim=16, qkv_bias=True, output_bias=True, rotary=False
    )
    assert model.layers[0].ffn == DenseFfn(ffn_hidden_size=256, gated=False, bias=True)
    assert (model.norm, model.tied_embeddings, model.learned_positions) == ("layer", True, 32)
    assert (model.vocab_size, model.vocab_multiple, model.num_mtp_layers) == (100, 128, 0)


def test_equal_layers_share_one_object():
    layers = read().model.layers
    assert all(layer is layers[0] for layer in layers)


def test_llama_of_the_catalogue():
    command = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --vocab-size 128256 --swiglu --disable-bias-linear --normalization RMSNorm "
        "--norm-epsilon 1e-5 --rotary-base 500000 --use-rope-scaling --position-embedding-type rope --untie-embeddings-and-output-weights --max-position-embeddings 131072 "
        "--seq-length 8192 --micro-batch-size 1"
    )
    known = load_model("llama-3.1-8b")
    model = read_arguments(command).model
    assert replace(model, name=known.name, source=known.source, vocab_multiple=known.vocab_multiple) == known


def test_width_of_the_feed_forward_that_is_not_given():
    reading = read_arguments(BASE.replace("--hidden-size 64", "--hidden-size 4096") + "--swiglu")
    assert reading.model.layers[0].ffn.ffn_hidden_size == 10880  # int(4 h 2/3 / 64) 64
    assert "ffn_hidden_size is not given; Megatron-LM takes 10880" in reading.notes


def test_moe_layers_of_every_n_start_with_the_first():
    moe = MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=256, gated=False)
    dense = DenseFfn(ffn_hidden_size=256, gated=False)
    assert ffn(MOE) == [moe] * 4
    assert ffn(MOE + "--moe-layer-freq 2") == [moe, dense, moe, dense]
    assert ffn(MOE + "--moe-layer-freq ([0]*1+[1]*3)".replace("(", "'(").replace(")", ")'")) == [
        dense,
        moe,
        moe,
        moe,
    ]
    assert ffn(MOE + "--moe-layer-freq '[1,0]*2'") == [moe, dense, moe, dense]


def test_experts_in_full():
    result = ffn(
        MOE
        + "--swiglu --moe-ffn-hidden-size 32 --moe-router-topk 4 --moe-shared-expert-intermediate-size 48 "
        "--moe-shared-expert-gate --moe-router-enable-expert-bias"
    )[0]
    assert result == MoeFfn(
        num_experts=8,
        top_k=4,
        ffn_hidden_size=32,
        shared_ffn_hidden_size=48,
        shared_gate=True,
        score_bias=True,
    )


def test_latent_attention():
    result = attention(
        "--multi-latent-attention --q-lora-rank 24 --kv-lora-rank 12 --qk-head-dim 8 --qk-pos-emb-head-dim 4 "
        "--v-head-dim 6 --disable-bias-linear"
    )[0]
    assert result == LatentAttention(
        num_heads=4, q_lora_rank=24, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6
    )
    assert attention("--multi-latent-attention")[0].q_lora_rank is None


def test_sliding_windows_skip_every_nth_layer():
    result = attention("--window-size '(127,0)' --window-attn-skip-freq 4")
    assert [item.window for item in result] == [128, 128, 128, None]
    assert [item.window for item in attention("--window-size '(127,0)'")] == [128] * 4
    assert [item.window for item in attention("--window-size '(-1,-1)'")] == [None] * 4


def test_linear_attention_between_full():
    result = attention("--experimental-attention-variant gated_delta_net --linear-attention-freq 4")
    assert [isinstance(item, LinearAttention) for item in result] == [True, True, True, False]


def test_positions():
    assert not attention("")[0].rotary
    assert attention("--position-embedding-type rope")[0].rotary
    assert read("--position-embedding-type rope --max-position-embeddings 32").model.learned_positions == 0
    assert read("--use-rotary-position-embeddings").model.layers[0].attention.rotary


def test_vocabulary_from_the_tokenizer():
    bare = BASE.replace("--vocab-size 100 ", "")
    assert read_arguments(bare + "--tokenizer-type Llama2Tokenizer").model.vocab_size == 32000
    other = read_arguments(bare + "--tokenizer-type Llama2Tokenizer --tokenizer-model x/tokenizer.model")
    assert "that of x/tokenizer.model is not known" in other.warnings[0]
    qwen = bare + "--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-72B"
    arguments = read_arguments(qwen, options=Options(vocabulary_of=vocabulary_of))
    assert arguments.model.vocab_size == load_model("qwen2.5-72b").vocab_size
    assert any("Qwen/Qwen2.5-72B" in note for note in arguments.notes)
    assert read_arguments(bare, options=Options(vocab_size=77)).model.vocab_size == 77
    assert read_arguments(bare + "--padded-vocab-size 128").model.vocab_multiple == 1
    patched = read_arguments(bare + "--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 293").model
    seeing = read_arguments(bare + "--patch-tokenizer-type Qwen2VLTokenizer --extra-vocab-size 293").warnings
    assert len([text for text in seeing if "vision encoder" in text]) == 1
    assert (patched.vocab_size, patched.vocab_multiple) == (151936, 1)
    assert (
        read_arguments(bare + "--tokenizer-model /data/llama-2-7b/tokenizer.model").model.vocab_size == 32000
    )
    with raises(MissingError, "missing --set", fix="--set model.vocab_size=32000") as refused:
        read_arguments(bare + "--tokenizer-type x")
    assert refused.value.facts[0].reason == "the tokenizer x is not known"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "--num-attention-heads 5",
            "not_divisible --hidden-size",
        ),
        ("--num-layers 0", "out_of_range --num-layers"),
        ("--num-layers four", "wrong_type --num-layers"),
        ("--normalization Layer", "not_one_of --normalization"),
        (MOE + "--moe-layer-freq '[1]*3'", "wrong_count --moe-layer-freq"),
        (
            MOE + "--moe-layer-freq '__import__(\"os\")'",
            "wrong_type --moe-layer-freq",
        ),
        (MOE + "--moe-layer-freq 0", "out_of_range --moe-layer-freq"),
        (MOE + "--moe-router-topk 9", "out_of_range --moe-router-topk"),
        (MOE + "--moe-router-topk 0", "out_of_range --moe-router-topk"),
        ("--hybrid-layer-pattern M*M*M", "differs --num-layers"),
        ("--img-h 336 --language-model-type llama", "not_one_of --language-model-type"),
        (
            "--encoder-num-layers 4 --decoder-num-layers 4",
            "not_expressed a model with an encoder and a decoder",
        ),
        ("--experimental-attention-variant csa", "not_expressed the attention variant"),
        ("--experimental-attention-variant dsa", "required_with --multi-latent-attention"),
        (
            "--experimental-attention-variant dsa --multi-latent-attention",
            "missing --dsa-indexer-n-heads",
        ),
        ("--experimental-attention-variant gdn", "required_with --linear-attention-freq"),
    ],
)
def test_impossible_models(more, text):
    refused(text, more)


# The layout


REFUSED = {
    "positions": (
        "--max-position-embeddings 8",
        "--max-position-embeddings 8 with --seq-length 16: sequences are longer",
    ),
    "rotary positions": (
        "--position-embedding-type rope --max-position-embeddings 8",
        "--max-position-embeddings 8 with --seq-length 16: sequences are longer than max_position_embeddings",
    ),
    "prediction": (
        "--max-position-embeddings 32 --mtp-num-layers 1",
        "--mtp-num-layers 1: .* needs rotary positions",
    ),
    "prediction behind a pattern": (
        "--hybrid-layer-pattern *-*-/*- --max-position-embeddings 32",
        "these settings: .* needs rotary positions",
    ),
    "replicas": (
        f"{MOE}--sequence-parallel --expert-model-parallel-size 4 --use-distributed-optimizer "
        "--num-distributed-optimizer-instances 2",
        "--num-distributed-optimizer-instances 2 with --expert-model-parallel-size 4: replicas",
    ),
    "delayed scaling": (
        "--bf16 --fp8-format hybrid --first-last-layers-bf16",
        "--fp8-format hybrid with --first-last-layers-bf16: delayed scaling",
    ),
    "layers in bf16": (
        f"--bf16 {PP}2 --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 "
        "--num-layers-at-end-in-bf16 3",
        "--first-last-layers-bf16 with --num-layers-at-end-in-bf16 3: layers in bf16",
    ),
    "optimizers": (
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --optimizer muon",
        "--use-megatron-fsdp with --optimizer muon: Megatron-FSDP .* has the optimizers adamw and sgd",
    ),
    "context": (
        "--context-parallel-size 4 --seq-length 20",
        "--context-parallel-size 4 with --seq-length 20: .* 2 x cp",
    ),
    "capacity": (
        f"{MOE}--moe-token-dispatcher-type flex --moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity",
        "--moe-pad-expert-input-to-capacity with --moe-token-dispatcher-type flex: DeepEP does not pad",
    ),
    "virtual stages": (
        f"{PP}2 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication --global-batch-size 4",
        "--no-overlap-p2p-communication with --pipeline-model-parallel-size 2: virtual stages",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_megatron_refuses_together_is_refused(name):
    more, explicit = REFUSED[name]
    refused(f"unsupported_by Megatron-LM | {explicit}", more, devices=4)


def test_a_refusal_names_the_line_of_the_first(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        f"python pretrain_gpt.py {BASE} \\\n  --context-parallel-size 4 \\\n  --seq-length 20\n"
    )
    with raises(ReaderError, "unsupported_by Megatron-LM | --context-parallel-size 4 with --seq-length 20"):
        read_file(script)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            f"{PP}2 --context-parallel-size 2 --use-tp-pp-dp-mapping",
            "--use-tp-pp-dp-mapping .* since core 0.11: ",
        ),
        (
            "--bf16 --fp8-format hybrid --recompute-granularity selective --recompute-modules layernorm",
            "--fp8-format hybrid with --recompute-modules .* since core 0.13: delayed scaling",
        ),
    ],
)
def test_what_only_newer_releases_refuse_is_noted(more, told):
    notes = [note for note in read(more, devices=8).notes if note.startswith("Megatron-LM refuses")]
    assert len(notes) == 1
    assert re.search(told, notes[0])


def test_what_is_asked_over_a_file_is_noted():
    """A question may ask what no program can have; the layout that is not asked for is not judged."""
    more = "--position-embedding-type rope --max-position-embeddings 16"
    question = read(more, over={"seq_len": 32})
    assert question.workload.seq_len == 32
    assert any("--seq-length 32: sequences are longer" in note for note in question.notes)
    assert not any("refuses" in note for note in read(more).notes)
    assert not any("refuses" in note for note in read("--context-parallel-size 3", layout=False).notes)


@pytest.mark.parametrize(
    "more",
    [
        f"{MOE}--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {backend} --moe-expert-capacity-factor 1.0 "
        "--moe-pad-expert-input-to-capacity"
        for backend in ("hybridep", "ncclep")
    ],
)
def test_other_dispatchers_pad(more):
    assert read(more, devices=4).strategy.routing.pad_to_capacity


def test_matrices_that_are_dealt_out_share_states():
    """Megatron-LM core 0.18, arguments.py: dist_muon is muon with --use-distributed-optimizer."""
    dealt = read("--optimizer dist_muon", devices=4)
    shared = read("--optimizer muon --use-distributed-optimizer", devices=4)
    assert dealt.strategy == shared.strategy
    assert (dealt.strategy.zero, dealt.workload.optimizer) == (1, "muon")
    assert any("as since core 0.18" in note for note in dealt.notes)


def test_the_fewest_devices_hold_replicas_of_experts():
    more = "--sequence-parallel --expert-model-parallel-size 4 --use-distributed-optimizer "
    result = read(f"{MOE}{more}--num-distributed-optimizer-instances 2")
    assert (result.strategy.num_devices, result.strategy.dp_replicate, result.strategy.expert_dp) == (8, 2, 2)


def test_degrees_and_what_data_parallel_is_left():
    result = read(
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2", 32
    )
    assert (result.strategy.tp, result.strategy.pp, result.strategy.cp, result.strategy.dp) == (2, 2, 2, 4)
    assert result.num_devices == 32


def test_experts_take_the_tensor_degree_unless_told():
    split = "--sequence-parallel --tensor-model-parallel-size 2 --expert-model-parallel-size 4 "
    assert read(MOE + split, 8).strategy.etp == 2
    explicit = split + "--expert-tensor-parallel-size 1"
    assert read(MOE + explicit, 8).strategy.etp == 1
    assert read("--tensor-model-parallel-size 2", 8).strategy.etp == 1


def test_the_fewest_devices_if_nobody_says():
    result = read(
        MOE
        + "--sequence-parallel --tensor-model-parallel-size 2 --expert-model-parallel-size 4 "
        + "--expert-tensor-parallel-size 1"
    )
    assert result.strategy.num_devices == 4
    assert result.num_devices is None
    assert "the number of devices is not stated; it is read for the fewest, 4" in result.notes


@pytest.mark.parametrize(
    ("more", "zero", "replicate", "shard"),
    [
        ("", 0, 1, 8),
        ("--use-distributed-optimizer", 1, 1, 8),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 2", 1, 2, 4),
        ("--use-megatron-fsdp", 3, 1, 8),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2, 1, 8),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", 0, 1, 8),
        ("--data-parallel-sharding-strategy optim", 0, 1, 8),
        ("--use-torch-fsdp2 --untie-embeddings-and-output-weights", 3, 1, 8),
    ],
)
def test_sharding(more, zero, replicate, shard):
    result = read(more, 8).strategy
    assert (result.zero, result.dp_replicate, result.dp_shard) == (zero, replicate, shard)


def test_torch_fsdp2_frees_gradients_in_the_type_of_the_weights():
    usual = read("--bf16 --use-megatron-fsdp", 8)
    parsed = read("--bf16 --use-torch-fsdp2 --untie-embeddings-and-output-weights", 8)
    types = [item.workload_fields["precision"]["gradients"] for item in (usual, parsed)]
    assert types == ["fp32", "bf16"]
    assert [item.strategy.kernels.frees_gradients for item in (usual, parsed)] == [False, True]


def test_states_sharded_over_replicas_are_not_expressed():
    outer = "--use-megatron-fsdp --outer-dp-sharding-strategy {} --num-distributed-optimizer-instances {}"
    message = "not expressed: --outer-dp-sharding-strategy (optimizer states sharded over replicas as well)"
    assert message in read(outer.format("optim", 2), 8).notes
    for kind, replicas in (("no_shard", 2), ("optim", 1)):
        assert message not in read(outer.format(kind, replicas), 8).notes


@pytest.mark.parametrize(
    ("more", "vpp", "stages"),
    [
        (PP + "2", 1, None),
        (PP + "2 --num-layers-per-virtual-pipeline-stage 1", 2, None),
        (PP + "2 --num-layers-per-virtual-pipeline-stage 2", 1, None),
        (PP + "2 --num-virtual-stages-per-pipeline-rank 2", 2, None),
        ("--num-layers-per-virtual-pipeline-stage 1", 1, None),
        (PP + "3 --decoder-first-pipeline-num-layers 2", 1, (2, 1, 1)),
        (PP + "3 --decoder-last-pipeline-num-layers 2", 1, (1, 1, 2)),
        (PP + "3 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1", 1, (1, 2, 1)),
        (
            PP + "3 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            1,
            (1, 2, 1),
        ),
        (PP + "2 --pipeline-model-parallel-layout 'Ettt|tL'", 1, (3, 1)),
        (PP + "2 --pipeline-model-parallel-layout 'Et|(t|)*2tL'", 2, None),
        (PP + "2 --pipeline-model-parallel-layout 'Et*2|t,|t|L'", 2, (2, 1, 1, 0)),
    ],
)
def test_stages(more, vpp, stages):
    result = read(more + " --global-batch-size 12").strategy
    assert (result.vpp, result.stage_layers) == (vpp, stages)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", Recompute()),
        ("--recompute-activations", Recompute(granularity="selective", modules=("core_attn",))),
        ("--recompute-granularity selective", Recompute(granularity="selective", modules=("core_attn",))),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm",
            Recompute(granularity="selective", modules=("moe_act", "layernorm")),
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            Recompute(granularity="full"),
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            Recompute(granularity="full", num_layers=3),
        ),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", Recompute()),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            Recompute(granularity="full", unit=2),
        ),
        ("--moe-layer-recompute", Recompute(granularity="selective", modules=("core_attn", "moe"))),
    ],
)
def test_recompute(more, found):
    assert read(more).strategy.recompute == found


UNBALANCED = Routing(balance="none")
"""Megatron-LM weighs its balancing loss with 0 unless told."""


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", UNBALANCED),
        ("--moe-aux-loss-coeff 1e-2", Routing()),
        ("--moe-aux-loss-coeff 1e-2 --moe-router-load-balancing-type sinkhorn", UNBALANCED),
        ("--moe-expert-capacity-factor 1.25", replace(UNBALANCED, capacity_factor=1.25)),
        (
            "--moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity",
            replace(UNBALANCED, capacity_factor=1.0, pad_to_capacity=True),
        ),
        ("--moe-expert-capacity-factor -1", UNBALANCED),
    ],
)
def test_capacity_of_experts(more, found):
    assert read(f"--num-experts 8 --moe-router-topk 2 {more}").strategy.routing == found


def test_padding_to_no_capacity_is_refused():
    with raises(ReaderError, "required_with --moe-expert-capacity-factor"):
        read("--num-experts 8 --moe-pad-expert-input-to-capacity")


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("--moe-token-dispatcher-type alltoall", "all_to_all"),
        ("--moe-token-dispatcher-type flex", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
    ],
)
def test_how_tokens_travel(more, found):
    assert read(f"--num-experts 8 {more}").strategy.dispatcher == found


def test_hierarchical_context_parallelism_has_its_two_sizes():
    cp = "--context-parallel-size 8 --cp-comm-type a2a+p2p "
    result = read(cp + "--hierarchical-context-parallel-sizes 2 4", 8).strategy
    assert (result.cp_kind, result.cp_inner) == ("hierarchical", 2)
    for sizes in ("", "--hierarchical-context-parallel-sizes 2 2", "--hierarchical-context-parallel-sizes 8"):
        with pytest.raises(ReaderError, match="two sizes whose product is 8"):
            read(cp + sizes, 8)


def test_the_rest_of_the_layout():
    result = read(
        "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap --cp-comm-type a2a "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --use-tp-pp-dp-mapping "
        "--attention-backend unfused",
        4,
    ).strategy
    assert result.sp
    assert result.cp_kind == "ulysses"
    assert result.overlap == Overlap(grad_reduce=True, param_gather=True, tensor=True, pipeline=False)
    assert result.axis_order == ("tp", "cp", "pp", "dp")
    assert not result.flash_attention
    plain = read("--sequence-parallel").strategy
    assert not plain.sp, "sequence parallel needs tp > 1"
    assert plain.overlap == Overlap(grad_reduce=False, param_gather=False, pipeline=False)
    assert plain.flash_attention
    assert read(
        PP + "2 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 4"
    ).strategy.overlap.pipeline


@pytest.mark.parametrize(
    ("more", "devices", "text"),
    [
        (
            "--tensor-model-parallel-size 3",
            8,
            "not_divisible the number of devices",
        ),
        (
            MOE + "--expert-model-parallel-size 8",
            4,
            "not_divisible the number of devices",
        ),
        ("--expert-model-parallel-size 2", 2, "required_with experts"),
        (
            "--tensor-model-parallel-size 0",
            None,
            "out_of_range --tensor-model-parallel-size",
        ),
        (PP + "3", None, "not_divisible num_layers"),
        (
            PP + "3 --account-for-loss-in-pipeline-split",
            None,
            "not_divisible num_layers",
        ),
        (
            PP + "3 --decoder-first-pipeline-num-layers 1",
            None,
            "3 layers besides the 1 of the first or last rank do",
        ),
        (
            PP + "2 --num-layers-per-virtual-pipeline-stage 3",
            None,
            "not_divisible the layers of a rank,",
        ),
        (
            PP + "2 --num-virtual-stages-per-pipeline-rank 4",
            None,
            "a rank of 2 layers cannot have 4 virtual stages",
        ),
        (
            "--num-virtual-stages-per-pipeline-rank 2",
            None,
            "required_with a pipeline of 2 ranks or more, got 1",
        ),
        (
            PP + "2 --num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 1",
            None,
            "conflicts",
        ),
        (
            PP + "2 --pipeline-model-parallel-layout 'Ett|tL'",
            None,
            "wrong_count --pipeline-model-parallel-layout 'Ett|tL'",
        ),
        (
            PP + "2 --pipeline-model-parallel-layout 'Ett|xL'",
            None,
            "wrong_type --pipeline-model-parallel-layout",
        ),
        (
            "--num-distributed-optimizer-instances 3 --use-distributed-optimizer",
            4,
            "not_a_factor --num-distributed-optimizer-instances",
        ),
        (
            "--overlap-param-gather --overlap-grad-reduce",
            None,
            "required_with --use-distributed-optimizer or Megatron's FSDP",
        ),
        ("--overlap-param-gather --use-distributed-optimizer", None, "required_with --overlap-grad-reduce"),
        ("--use-torch-fsdp2", None, "conflicts --use-torch-fsdp2, tied embeddings"),
        (
            "--use-torch-fsdp2 --use-distributed-optimizer",
            None,
            "conflicts --use-torch-fsdp2, the distributed optimizer",
        ),
        (
            "--cp-comm-type ring",
            None,
            "not_one_of --cp-comm-type",
        ),
        (
            "--tp-comm-overlap --tensor-model-parallel-size 2",
            None,
            "required_with --sequence-parallel",
        ),
        ("--recompute-granularity full", None, "required_with --recompute-method"),
        ("--recompute-granularity selective --recompute-method block", None, "required_with full recompute"),
        (
            "--recompute-granularity some",
            None,
            "not_one_of --recompute-granularity",
        ),
        (
            MOE + "--tensor-model-parallel-size 2",
            8,
            "required_with --sequence-parallel",
        ),
    ],
)
def test_impossible_layouts(more, devices, text):
    refused(text, more, devices)


def test_what_cannot_be_said_is_noted():
    value = "--distribute-saved-activations --recompute-granularity selective --recompute-modules gdn"
    notes = read(value).notes
    assert (
        "not expressed: --distribute-saved-activations (saved activations spread over tensor parallel)"
        in notes
    )
    assert "not expressed: recompute of gdn" in notes


@pytest.mark.parametrize(
    ("given", "offload"),
    [
        ("", Offload()),
        ("--cpu-offloading-num-layers 4", Offload(activation_layers=4)),
        (
            "--fine-grained-activation-offloading --offload-modules attn_proj core_attn",
            Offload(modules=("core_attn", "attn_proj")),
        ),
        (
            "--fine-grained-activation-offloading --offload-modules fused_group_mlp "
            "--activation-offload-fraction 0.5",
            Offload(modules=("expert_fc1", "moe_act"), module_share=0.5),
        ),
        ("--offload-modules core_attn", Offload()),
        ("--optimizer-cpu-offload", Offload(optimizer=1.0, master=False, overlap=False)),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --use-precision-aware-optimizer "
            "--overlap-cpu-optimizer-d2h-h2d",
            Offload(optimizer=0.5),
        ),
    ],
)
def test_offload_to_the_host(given, offload):
    assert read(given).strategy.offload == offload


# The run


def test_batch_and_tokens():
    workload = read("--global-batch-size 64 --train-iters 10", 8).workload
    assert (workload.seq_len, workload.global_batch_size, workload.tokens) == (16, 64, 10 * 64 * 16)
    assert read("--global-batch-size 64 --train-samples 100", 8).workload.tokens == 1600
    assert read("", 8).workload.global_batch_size == 8


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        (
            "",
            Precision(compute="fp32", parameters="fp32", gradients="fp32", master="none", activations="fp32"),
        ),
        ("--bf16", Precision()),
        ("--bf16 --grad-reduce-in-bf16", Precision(gradients="bf16")),
        ("--fp16", Precision(compute="fp16", parameters="fp16", gradients="fp16", activations="fp16")),
        (
            "--fp16 --accumulate-allreduce-grads-in-fp32",
            Precision(compute="fp16", parameters="fp16", gradients="fp32", activations="fp16"),
        ),
        ("--bf16 --fp8-format hybrid", Precision(compute="fp8", recipe="delayed")),
        ("--bf16 --fp8-format e4m3 --fp8-recipe tensorwise", Precision(compute="fp8", recipe="current")),
        (
            "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --use-distributed-optimizer",
            Precision(compute="mxfp8", recipe="mxfp8", parameters="fp8"),
        ),
        ("--bf16 --fp4-format e2m1", Precision(compute="nvfp4")),
        (
            "--bf16 --fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-start-in-bf16 0",
            Precision(compute="nvfp4", num_layers_at_end_in_bf16=1),
        ),
        (
            "--bf16 --fp8-format e4m3 --fp8-recipe blockwise --first-last-layers-bf16",
            Precision(
                compute="fp8",
                recipe="blockwise",
                num_layers_at_start_in_bf16=1,
                num_layers_at_end_in_bf16=1,
            ),
        ),
        ("--bf16 --first-last-layers-bf16", Precision()),
        (
            "--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            Precision(gradients="bf16", moments="bf16"),
        ),
        (
            "--bf16 --use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16",
            Precision(moments="fp8", second_moments="fp16"),
        ),
    ],
)
def test_precision(more, precision):
    assert read(more).workload.precision == precision


GROUPS = f"{PP}2 --num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage "


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            "--global-batch-size 6",
            "not_divisible --global-batch-size",
        ),
        ("--bf16 --fp16", "conflicts --bf16, --fp16"),
        ("--bf16 --fp8-format hybrid --fp4-format e2m1", "conflicts --fp4-format, --fp8-format"),
        ("--bf16 --fp8-format hybrid --fp8-recipe own", "not_one_of the fp8 recipe"),
        ("--optimizer soap", "not_one_of the optimizer"),
        ("--use-precision-aware-optimizer --exp-avg-dtype int8", "not_one_of --exp-avg-dtype"),
        (
            "--bf16 --main-grads-dtype bf16",
            "required_with --use-precision-aware-optimizer",
        ),
        ("--exp-avg-dtype fp8", "required_with --use-precision-aware-optimizer"),
        (
            PP + "2 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 6",
            "not_divisible num_microbatches",
        ),
        (
            GROUPS + "1 --global-batch-size 8",
            "out_of_range --microbatch-group-size-per-virtual-pipeline-stage",
        ),
        (
            GROUPS + "6 --global-batch-size 8",
            "out_of_range --microbatch-group-size-per-virtual-pipeline-stage",
        ),
        (GROUPS + "3 --global-batch-size 8", "3 leaves 1 of 4 micro-batches over, fewer than pp 2"),
    ],
)
def test_impossible_runs(more, text):
    refused(text, more, 4)


@pytest.mark.parametrize(
    ("more", "group"),
    [
        (GROUPS + "4 --global-batch-size 8", 4),
        (GROUPS + "3 --global-batch-size 10", 3),  # 5 micro-batches, 2 in the last group
        (GROUPS + "2 --global-batch-size 8", None),  # as many as there are ranks
        (PP + "2 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8", None),
        (PP + "2 --microbatch-group-size-per-virtual-pipeline-stage 9 --global-batch-size 8", None),
    ],
)
def test_groups_of_micro_batches(more, group):
    result = read(more, devices=4)
    assert result.strategy.microbatch_group == group
    assert not any("group" in str(note) for note in result.notes)
    assert not any("group" in key for key in result.ignored)


def test_keys_are_used_or_ignored():
    result = read("--lr 1e-4 --log-interval 10 --bf16")
    assert result.ignored == ("--log-interval", "--lr")
    assert "--bf16" in result.used
    assert not set(result.used) & set(result.ignored)


# Files


def test_a_table_of_flags_in_yaml(tmp_path):
    table = {"--num-layers": 2, "--hidden-size": 8, "--num-attention-heads": 2, "--seq-length": 4,
             "--micro-batch-size": 1, "--vocab-size": 10, "--bf16": True}  # fmt: skip
    file = tmp_path / "model_config.yaml"
    lines = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in table.items())
    file.write_text(f"ENV_VARS:\n  A: 1\nMODEL_ARGS:\n{lines}")
    assert MegatronReader().read(file, Options()).model.num_layers == 2
    file.write_text("MODEL_ARGS: [1]\n")
    with raises(ReaderError, "wrong_format"):
        MegatronReader().read(file, Options())


NESTED = """\
language_model:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  num_query_groups: 2
  num_moe_experts: null
  activation_func: swiglu
  add_bias_linear: False
  _cpu_offloading_context: null
model_parallel:
  tensor_model_parallel_size: 2
  bf16: True
micro_batch_size: 1
seq_length: 16
vocab_size: 100
"""


def test_its_yaml_is_what_the_flags_say(tmp_path):
    file = tmp_path / "gpt.yaml"
    file.write_text(NESTED)
    result = read_file(file, Options(num_devices=4))
    layer = result.model.layers[0]
    assert (layer.attention.num_kv_heads, layer.attention.qkv_bias, layer.ffn.gated) == (2, False, True)
    assert (result.strategy.tp, result.strategy.dp, result.workload.precision.activations) == (2, 2, "bf16")
    assert "_cpu_offloading_context" in result.ignored


def test_a_script_with_yaml_cfg_is_what_its_file_says(tmp_path):
    (tmp_path / "gpt.yaml").write_text(NESTED)
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 4 pretrain_gpt.py --yaml-cfg gpt.yaml --save x --num-layers 99\n"
    )
    result, alone = read_file(script), read_file(tmp_path / "gpt.yaml", Options(num_devices=4))
    assert (result.num_devices, result.layout_fields) == (4, alone.layout_fields)
    assert result.model.num_layers == alone.model.num_layers
    (tmp_path / "gpt.yaml").unlink()
    with raises(ReaderError, "not_found"):
        read_file(script)


@pytest.mark.parametrize(
    ("wrong", "right", "line"),
    [
        ("hiden_size", "hidden_size", 3),
        ("langage_model", "language_model", 1),
        ("model_paralel", "model_parallel", 10),
    ],
)
def test_a_misspelt_key_of_its_yaml_has_its_line(tmp_path, wrong, right, line):
    file = tmp_path / "gpt.yaml"
    file.write_text(NESTED.replace(f"{right}:", f"{wrong}:"))
    with raises(UnknownKeyError, f"unknown_key {wrong}") as refused:
        read_file(file)
    assert f"line {line};" in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [("swiglu", "relu", "not_one_of activation_func"),
     ("model_parallel:\n  tensor", "model_parallel: 3\ntensor", "wrong_type model_parallel")],
)  # fmt: skip
def test_what_its_yaml_may_not_hold(tmp_path, old, new, problem):
    file = tmp_path / "gpt.yaml"
    file.write_text(NESTED.replace(old, new).replace("\n  bf16", "\nbf16"))
    with raises(ReaderError, problem):
        read_file(file)


def test_flags_on_lines_of_their_own_are_one_list():
    assert (
        read_arguments("# one a line\n" + BASE.replace(" --", "\n--"), options=Options()).model.num_layers
        == 4
    )


def test_variables_that_nothing_sets_are_asked_for_at_once():
    text = "--num-layers $NL --hidden-size $HS --num-attention-heads 4"
    fix = "--var NL=32 --var HS=4096 --set model.vocab_size=32000"
    with raises(MissingError, "missing --var, --var, --set", fix=fix):
        read_arguments(text)


def test_a_script_without_a_model_asks_for_one():
    words = "--micro-batch-size 1 --seq-length 64 --bf16"
    with raises(MissingError, "missing") as missing:
        read_arguments(words)
    assert [fact.part for fact in missing.value.facts] == ["model"]
    assert read_arguments(words, options=Options(model=load_model("llama-2-7b"))).model.name == "llama-2-7b"


def test_a_model_of_a_provider_is_not_the_flags():
    refused("not_expressed --model-provider", "--model-provider nemotron-moe-vlm")


def test_devices_that_are_asked_for_hold_experts_too():
    refused("not_divisible the number of devices", MOE + f"{PP}4 --expert-model-parallel-size 8", 6)


@pytest.mark.parametrize("case", json.loads(CASES.read_text())["cases"], ids=lambda case: case["name"])
def test_published_test_cases(case):
    """Configurations of Megatron-LM's own functional tests, against what their names and tables say."""
    reading = read_arguments(case["arguments"], options=Options(num_devices=case["num_devices"]))
    result = {
        "tp": reading.strategy.tp, "pp": reading.strategy.pp, "cp": reading.strategy.cp, "ep": reading.strategy.ep,
        "vpp": reading.strategy.vpp, "zero": reading.strategy.zero, "num_layers": reading.model.num_layers,
        "num_experts": reading.model.moe.num_experts if reading.model.moe else 0,
        "compute": reading.workload.precision.compute,
        "num_microbatches": reading.workload.global_batch_size
        // (reading.strategy.dp * reading.strategy.micro_batch_size),
    }  # fmt: skip
    assert result == case["expected"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"dropout": True, "cross_entropy": "vocab_parallel", "weighted_activation": False}),
        (
            "--hidden-dropout 0 --attention-dropout 0.0 --swiglu",
            {"dropout": False, "weighted_activation": True},
        ),
        ("--hidden-dropout 0.0", {"dropout": True}),
        ("--cross-entropy-loss-fusion", {"cross_entropy": "native"}),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", {"cross_entropy": "fused"}),
        ("--no-gradient-accumulation-fusion", {"gradient_sum": "after_product"}),
        ("--deterministic-mode", {"deterministic": True, "grouped_experts": False}),
        ("--moe-grouped-gemm", {"grouped_experts": True}),
        ("--use-transformer-engine-op-fuser", {"fused_grouped_mlp": True, "paged_stash": 0.0}),
        ("--moe-paged-stash", {"paged_stash": 1.1}),
        ("--moe-paged-stash --moe-paged-stash-buffer-size-factor-cuda 1.2", {"paged_stash": 1.2}),
        ("--moe-paged-stash --moe-paged-stash-buffer-size-factor-cuda -1.05", {"paged_stash": 1.05}),
        ("--moe-paged-stash-buffer-size-factor-cuda 1.2", {"paged_stash": 0.0}),
        ("", {"fused_rotary": False, "narrow_experts": True, "expert_kernels": "each"}),
        ("", {"attention_mask": True}),
        ("--no-create-attention-mask-in-dataloader", {"attention_mask": False}),
        ("--enable-experimental", {"fused_rotary": True}),
        ("--enable-experimental --no-rope-fusion", {"fused_rotary": False}),
    ],
)
def test_kernels(more, expected):
    kernels = read(more).strategy.kernels
    assert {name: getattr(kernels, name) for name in expected} == expected


DEFER = "--defer-embedding-wgrad-compute"


@pytest.mark.parametrize(
    ("more", "deferred"),
    [("", 0), ("--wgrad-deferral-limit 5", 0), (DEFER, 1_000_000), (f"{DEFER} --wgrad-deferral-limit 5", 5)],
)
def test_deferred_weight_gradients_of_the_head(more, deferred):
    result = read(f"{PP}2 {more}", 2)
    assert result.strategy.kernels.deferred_head_gradients == deferred
    assert not [note for note in result.notes if "defer" in note]


def test_deferred_weight_gradients_need_what_megatron_asks_for():
    refused("required_with pipeline parallelism", DEFER)
    refused(
        "required_with gradient accumulation fusion",
        f"{PP}2 {DEFER} --no-gradient-accumulation-fusion",
        2,
    )


def test_a_rate_must_be_a_number():
    refused("wrong_type --hidden-dropout", "--hidden-dropout often")


def test_a_teacher_cannot_be_expressed():
    refused("not_expressed --export-kd-teacher-load", "--export-kd-teacher-load here")


def test_layers_that_do_not_divide_name_the_pipelines_that_do():
    refused("not_divisible num_layers", f"{PP}3", 3)


def test_how_long_a_run_is_may_be_left_open():
    result = read("--train-iters ${STEPS}")
    assert result.workload.tokens is None
    assert any("run's length" in note for note in result.notes)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_what_the_allocator_is_told(name):
    script = f"export {name}=expandable_segments:True\ntorchrun pretrain_gpt.py {BASE}"
    arguments = read_arguments(script)
    assert arguments.layout_fields["allocator"] == arguments.strategy.allocator == "expandable_segments"
    assert "allocator" not in read_arguments(f"torchrun pretrain_gpt.py {BASE}").layout_fields


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ("--fp8-recipe blockwise", "--fp8-recipe changes nothing without --fp8-format"),
        ("--optimizer-offload-fraction 0.5", "changes nothing without --optimizer-cpu-offload"),
        ("--data-parallel-sharding-strategy optim", "changes nothing without --use-megatron-fsdp"),
        ("--fp8-recipe blockwise --fp8-format e4m3", ""),
        ("--fp8-recipe delayed --exp-avg-dtype fp32", ""),
    ],
)
def test_flags_that_lack_what_they_go_with_are_said(more, note):
    notes = [note for note in read(more).notes if "changes nothing without" in note]
    assert (note in notes[0]) if note else not notes


@pytest.mark.parametrize(
    ("before", "after", "runs"),
    [
        ("for t in 1 2; do\n", f"{PP}$t\ndone", "2 runs"),
        ("", f"\ntorchrun pretrain_gpt.py {BASE}{PP}2", "2 runs"),
        ("", f"\ntorchrun pretrain_gpt.py {BASE}", ""),
    ],
)
def test_a_script_of_several_runs_says_which_is_read(before, after, runs):
    reading = read_arguments(f"{before}torchrun pretrain_gpt.py {BASE}{after}")
    notes = [note for note in reading.notes if "the script starts" in note]
    assert (runs in notes[0]) if runs else not notes


def test_a_command_without_a_length_names_all_that_it_lacks():
    with raises(MissingError, "missing --seq-len, --set, --micro-batch-size"):
        read_arguments(
            "--num-layers 2 --hidden-size 64 --num-attention-heads 4", options=Options(num_devices=1)
        )


def test_variables_of_flags_that_nothing_sets_are_asked_for():
    script = f"torchrun pretrain_gpt.py --$DTYPE {BASE} --lr-decay-style $OPT ${{DS_ARGS}} $EXTRA_ARGS"
    with raises(MissingError, "missing --var, --var", fix="--var DTYPE=bf16 --var DS_ARGS="):
        read_arguments(script)
    given = read_arguments(script, options=Options(variables={"DTYPE": "fp16", "DS_ARGS": ""}))
    assert given.workload_fields["precision"]["compute"] == "fp16"
    assert not given.warnings


def test_variables_of_flags_that_a_branch_not_taken_sets_are_empty():
    branch = "MOE=0\nif [ $MOE -gt 0 ]; then\n  MOE_ARGS='--num-experts 8'\nfi\n"
    parsed = read_arguments(f"{branch}torchrun pretrain_gpt.py {BASE} $MOE_ARGS")
    assert isinstance(parsed.model.layers[0].ffn, DenseFfn)


def test_a_file_of_flags_is_not_left_out():
    with raises(ReaderError, "not_found"):
        read_arguments('torchrun --nproc_per_node 4 pretrain_gpt.py --config "${CONF}"')


def test_an_example_of_arguments_starts_the_training():
    branches = 'if [ "$1" = "convert" ]; then\n  run="python tools/convert.py"\nelse\n  run="torchrun pretrain_gpt.py"\nfi\n'
    with raises(MissingError, "missing --args", fix='--args "train"'):
        read_arguments(f"{branches}$run {BASE}")


def test_a_table_of_flags_without_dashes_before_them(tmp_path):
    """A launcher of a platform: its own keys are not read; ${…} is the value of another flag; false is left out."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "entry: pretrain_gpt.py\ntensor-model-parallel-size: 2\npipeline-model-parallel-size: 1\n"
        "num-layers: 4\nhidden-size: 512\nnum-attention-heads: 8\nseq-length: 1024\n"
        "max-position-embeddings: ${seq-length}\nmicro-batch-size: 2\nglobal-batch-size: 16\n"
        "bf16: true\nswiglu: false\ndata-path: []\npadded-vocab-size: 1024\n",
        encoding="utf-8",
    )
    parsed = read_file(file, Options(num_devices=8))
    assert parsed.format == "megatron"
    assert (parsed.layout_fields["tp"], parsed.layout_fields["micro_batch_size"]) == (2, 2)
    assert (parsed.workload_fields["seq_len"], parsed.workload_fields["global_batch_size"]) == (1024, 16)
    assert not parsed.model.layers[0].ffn.gated
    assert any("entry" in note for note in parsed.notes)
