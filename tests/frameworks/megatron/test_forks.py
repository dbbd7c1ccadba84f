import pytest
from tests.errors import raises

from forescale.errors import MissingError, ReaderError, UnknownKeyError
from forescale.frameworks.megatron.arguments import known_flags, parse_arguments
from forescale.frameworks.megatron.forks import fork_of, forks, idle_program, misspelt, translate
from forescale.frameworks.megatron.reader import read_arguments
from forescale.frameworks.reading import Options
from forescale.spec.attention import LatentAttention

BASE = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --global-batch-size 8 --vocab-size 100 --bf16 "
)
EXPERTS = "--num-experts 8 --moe-ffn-hidden-size 32 "


def read(more, devices=8, **options):
    return read_arguments(BASE + more, options=Options(num_devices=devices, strict=False, **options))


def test_rows_name_settings_and_rules_that_exist():
    keys = {key for key, _ in known_flags().values()}
    own = {
        "patch_tokenizer_type",
        "extra_vocab_size",
        "embed_layernorm",
        "ulysses_degree",
        "lora_r",
        "zero_stage",
        "no_pipeline_parallel",
        "allow_padding_num_layers",
    }
    own |= {"lora_target_modules", "qlora", "freeze_LM", "freeze_ViT", "tokenizer_name_or_path"}
    own |= {"decoder_pipeline_manual_split_list", "moe_use_legacy_grouped_gemm", "use_custom_fsdp"}
    own |= {"multiple_of", "hidden_dim_multiplier", "norm_init_weight"}
    for fork in forks():
        assert not fork.none & fork.flags.keys()
        for row in fork.flags.values():
            rows = row.values() if isinstance(row, dict) and next(iter(row), "").startswith("$") else [row]
            for item in rows:
                assert set(item if isinstance(item, dict) else ()) <= keys | own


def test_all_flags_are_reported_together_by_their_effect():
    parsed = read(
        "--use-fused-rmsnorm --reuse-fp32-param --schedules-method dualpipev --brand-new 3 --log-anything"
    )
    assert parsed.unknown == ("--brand-new",)
    memory, time, unknown = parsed.warnings
    assert ("memory" in memory, "--reuse-fp32-param" in memory) == (True, True)
    assert "--schedules-method" in time
    assert "--brand-new" in unknown
    assert any("--use-fused-rmsnorm, --log-anything" in note for note in parsed.notes)


def test_strict_reading_refuses_all_unknown_flags_at_once():
    with raises(UnknownKeyError, "unknown_key --brand-new") as refused:
        parse_arguments(BASE + "--brand-new 3 --other-one", where="x")
    assert "--other-one" in str(refused.value)


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [
        ("--hiden-size", True),
        ("--num-layer", True),
        ("--tensor_model_parallel_size", True),
        ("--disable-bias-linear-fc", False),
        ("--o-lora-rank", False),
        ("--shared-expert-gate", False),
        ("--swap-optimizer", False),
    ],
)
def test_a_misspelt_flag_is_not_one_of_a_fork(flag, wrong):
    assert misspelt(flag, known_flags()) is wrong


def test_a_misspelt_flag_is_refused_where_flags_of_forks_are_reported():
    with raises(UnknownKeyError, "unknown_key --tensor-model-paralel-size"):
        read("--tensor-model-paralel-size 2")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--patch-tokenizer-type"], "pai-megatron-patch"),
        (["--context-parallel-algo", "--use-fused-swiglu"], "mindspeed-llm"),
        (["--deepspeed_config", "--zero-stage"], "megatron-deepspeed"),
        (["--data-impl"], "megatron-lm-2022"),
        (["--xielu", "--goldfish-k"], "swiss-ai"),
        (["--swiglu"], None),
    ],
)
def test_a_fork_is_told_by_its_flags(flags, name):
    fork = fork_of(flags)
    assert (fork and fork.name) == name


def test_dense_layers_come_before_experts_and_shared_ones_are_as_wide():
    model = read(EXPERTS + "--first-k-dense-replace 2 --moe-layer-freq 1 --n-shared-experts 2").model
    kinds = [type(layer.ffn).__name__ for layer in model.layers]
    assert kinds == ["DenseFfn"] * 2 + ["MoeFfn"] * 6
    assert model.layers[-1].ffn.shared_ffn_hidden_size == 64


def test_layers_that_do_nothing_are_not_of_the_model():
    parsed = read("--pipeline-model-parallel-size 4 --noop-layers 0,7 --use-fused-swiglu")
    assert parsed.model.num_layers == 6
    assert parsed.strategy.stage_layers == (1, 2, 2, 1)


@pytest.mark.parametrize(
    ("more", "kind", "inner"),
    [
        ("--context-parallel-algo megatron_cp_algo", "ring", 1),
        ("--context-parallel-algo ulysses_cp_algo", "ulysses", 1),
        ("--context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2", "hierarchical", 2),
        ("--use-fused-swiglu", "ulysses", 1),
    ],
)
def test_kinds_of_context_parallelism(more, kind, inner):
    layout = read(f"--context-parallel-size 4 {more}").strategy
    assert (layout.cp_kind, layout.cp_inner if inner > 1 else 1) == (kind, inner)


def test_grouped_queries_and_types_by_other_names():
    parsed = read(
        "--n-head-kv 2 $UNSET ${OTHER} --fp8-hybrid --use-llama2-rotary-position-embeddings --train-mode finetune"
    )
    attention = parsed.model.layers[0].attention
    assert (attention.num_kv_heads, attention.rotary) == (2, True)
    assert parsed.workload_fields["precision"]["compute"] == "fp8"


def test_another_program_or_model_is_refused_with_the_reason():
    with raises(ReaderError, "not_expressed --enable-mhc"):
        read("--enable-mhc")
    with raises(ReaderError, "not_expressed --load-teacher"):
        read("--load-teacher x")


@pytest.mark.parametrize(
    "command",
    [
        "python tools/preprocess_data.py --input x --num-layers 8",
        "torchrun generate_text.py " + BASE,
        "python ../analyze_data.py " + BASE,
        "torchrun pretrain_gpt.py --skip-train " + BASE,
    ],
)
def test_a_script_that_trains_nothing_is_refused(command):
    with raises(ReaderError, "wrong_format a script that trains"):
        read_arguments(command)


def test_programs_that_train_are_not_idle_by_their_folder():
    assert idle_program("tools/checkpoint/util.py") == "converts checkpoints"
    assert idle_program("evaluation/pretrain_gpt.py") is None


def test_earlier_releases_recompute_layer_by_layer():
    parsed = read("--data-impl mmap --checkpoint-activations --position-embedding-type alibi")
    assert (parsed.strategy.recompute.granularity, parsed.model.learned_positions) == ("full", 0)
    assert "alibi" in parsed.warnings[0]
    assert (
        read("--train-mode x --recompute-granularity full --recompute-method uniform").strategy.recompute.unit
        == 1
    )


def test_adapters():
    trainable = read(
        "--lora-r 16 --lora-alpha 32 --lora-target-modules linear_qkv linear_fc2"
    ).workload.trainable
    assert (trainable.lora_rank, trainable.lora_targets) == (16, ("qkv_proj", "down_proj"))


def test_an_optimizer_with_one_more_moment_is_a_warning():
    parsed = read("--optimizer ademamix --ademamix-alpha 8 --xielu --goldfish-loss")
    assert (parsed.workload.optimizer, parsed.model.layers[0].ffn.gated) == ("adamw", False)
    assert "--optimizer ademamix" in parsed.warnings[0]


def test_recomputed_layers_of_a_rank_go_round_its_chunks():
    more = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --recompute-granularity full "
    more += "--recompute-method block --enable-recompute-layers-per-pp-rank --recompute-num-layers "
    even, uneven = read(more + "4"), read(more + "3")
    assert [result.layout_fields["recompute"]["num_layers"] for result in (even, uneven)] == [1, 1]
    assert not any("of a rank" in warning for warning in even.warnings)
    assert any("3 of the 4 layers of a rank" in warning for warning in uneven.warnings)


def test_flags_of_an_optimizer_are_not_taken_for_misspelt():
    with raises(ReaderError, "not_one_of the optimizer | dion"):
        read("--optimizer dion --dion-beta1 0.9 --dion-beta2 0.95")


def test_sizes_of_an_indexer_that_a_command_leaves_out_are_those_of_mindspeed():
    values = {"dsa_indexer_topk": 1024}
    translate(None, [("--enable-dsa-indexer", True)], values, "run.sh")
    assert (values["dsa_indexer_topk"], values["dsa_indexer_n_heads"], values["dsa_indexer_head_dim"]) == (
        1024,
        64,
        128,
    )
    assert values["experimental_attention_variant"] == "dsa"


def test_adapters_on_quantised_weights():
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    flags += "--micro-batch-size 1 --global-batch-size 8 --vocab-size 100 --bf16 --lora-r 8"
    options = Options(num_devices=8, strict=False)
    assert read_arguments(flags, options=options).workload_fields["precision"]["frozen"] is None
    quantised = read_arguments(f"{flags} --qlora", options=options)
    assert quantised.workload_fields["precision"]["frozen"] == "nf4"


def test_a_fork_may_take_a_flag_of_megatron_in_another_way():
    parsed = read("--zero-stage 1 --deepspeed --profile pt --profile-ranks 0 1")
    assert any("--profile" in note for note in parsed.notes)
    with raises(ReaderError, "wrong_type --profile"):
        read("--profile pt")


def test_experts_that_extend_over_tensor_parallel_ranks():
    """MindSpeed, docs/features/megatron_moe/megatron-moe-tp-extend-ep.md: tp x ep divides the experts, and no expert is split."""
    flags = (
        EXPERTS
        + "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4 --moe-grouped-gemm "
    )
    layout = read(flags + "--moe-tp-extend-ep").strategy
    assert (layout.tp, layout.ep, layout.etp) == (2, 8, 1)
    split = read(flags + "--moe-extended-tp").strategy
    assert (split.tp, split.ep, split.etp) == (2, 1, 8)
    assert (read(flags).strategy.ep, read(flags).strategy.etp) == (4, 2)
    with raises(MissingError, "missing --var"):
        read(flags.replace("size 4", "size ${EP}") + "--moe-tp-extend-ep")


def test_recompute_of_releases_before_2022():
    recompute = read("--checkpoint-activations --override-lr-scheduler").strategy.recompute
    assert (recompute.granularity, recompute.unit) == ("full", 1)


def test_latent_attention_of_pai_needs_no_other_flag():
    more = (
        "--patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 0 --kv-lora-rank 16 --q-lora-rank 32"
    )
    attention = (
        read(f"{more} --qk-nope-head-dim 8 --qk-rope-head-dim 4 --v-head-dim 8").model.layers[0].attention
    )
    assert isinstance(attention, LatentAttention)
    assert (attention.kv_lora_rank, attention.q_lora_rank, attention.qk_nope_head_dim) == (16, 32, 8)


def test_a_batch_of_the_first_releases_is_that_of_a_rank():
    text = BASE.replace(
        "--micro-batch-size 1 --global-batch-size 8", "--batch-size 2 --model-parallel-size 2"
    )
    parsed = read_arguments(text + "--warmup .01 --lazy-loader", options=Options(num_devices=4, strict=False))
    assert (parsed.strategy.tp, parsed.strategy.micro_batch_size) == (2, 2)
    assert parsed.workload_fields["global_batch_size"] == 4


def test_an_open_constant_of_norms_changes_nothing():
    parsed = read("--norm-epsilon ${EPS}")
    assert parsed.model.norm_eps == read("").model.norm_eps
