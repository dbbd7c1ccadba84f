import json

import pytest
from msgspec.structs import replace
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.errors import MissingError, ReaderError, UnknownKeyError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options, ParsedFile
from forescale.project import project
from forescale.question import Question
from forescale.spec import Workload
from forescale.spec.framework import merged

AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
optimizer: adamw_torch_fused
"""
FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
TRL = """model_name_or_path: Qwen/Qwen3-8B
dtype: bfloat16
bf16: true
max_length: 2048
packing: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
gradient_checkpointing: true
output_dir: out
"""
SWIFT = """nproc=4
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
NPROC_PER_NODE=$nproc \\
swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full --torch_dtype bfloat16 --max_length 2048 \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 32 / $nproc) --deepspeed zero3
"""


@pytest.fixture
def read(tmp_path):
    """Read a text as a file of that name."""

    def call(text: str, name: str = "train.yaml", **options: object) -> ParsedFile:
        path = tmp_path / name
        path.write_text(text)
        explicit = {"num_devices": 8, "model_of": load_model, "strict": False, **options}
        return read_file(path, Options(**explicit))

    return call


def test_axolotl_packs_and_replicates(read):
    parsed = read(AXOLOTL)
    fields, workload = parsed.layout_fields, parsed.workload_fields
    assert parsed.framework == "transformers"
    assert (fields["zero"], fields["dp_replicate"], fields["micro_batch_size"]) == (0, 8, 2)
    assert (workload["seq_len"], workload["global_batch_size"]) == (4096, 64)
    assert fields["recompute"] == {"granularity": "none"}
    types = workload["precision"]
    assert (types["compute"], types["parameters"], types["moments"], types["master"]) == (
        "bf16",
        "bf16",
        "bf16",
        "none",
    )
    assert "varied_lengths" not in workload


def test_axolotl_trains_adapters_beside_four_bit_weights_on_fsdp(read):
    more = "adapter: qlora\nload_in_4bit: true\nlora_r: 16\nlora_target_linear: true\noptimizer: paged_adamw_8bit\n"
    sharded = "fsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n  fsdp_offload_params: true\ngradient_checkpointing: true\n"
    parsed = read(AXOLOTL.replace("optimizer: adamw_torch_fused\n", "") + more + sharded)
    fields, workload = parsed.layout_fields, parsed.workload_fields
    assert (fields["zero"], fields["dp_shard"], fields["offload"]["parameters"]) == (3, 8, True)
    assert fields["offload"]["paged"]
    assert fields["recompute"] == {"granularity": "full"}
    assert workload["trainable"]["lora_rank"] == 16
    assert (workload["precision"]["frozen"], workload["precision"]["moments"]) == ("nf4_double", "fp8")


def test_degrees_of_axolotl_are_the_number_of_devices(read):
    degrees = "fsdp_version: 2\ndp_shard_size: 4\ndp_replicate_size: 2\ncontext_parallel_size: 2\n"
    parsed = read(AXOLOTL + degrees, num_devices=None)
    fields = parsed.layout_fields
    assert (parsed.num_devices, fields["cp"], fields["dp_shard"], fields["dp_replicate"]) == (16, 2, 4, 2)
    assert (fields["cp_kind"], parsed.workload_fields["global_batch_size"]) == ("ring", 2 * 4 * 8)
    with raises(ReaderError, "differs"):
        read(AXOLOTL + degrees, num_devices=8)


def test_what_a_file_leaves_open_is_missing(read):
    parsed = read(AXOLOTL.replace("meta-llama/Llama-3.1-8B", "org/of-mine"), num_devices=None)
    assert {fact.part for fact in parsed.missing} == {"model", "devices"}


@pytest.mark.parametrize(("stage", "pairs"), [("sft", 1), ("dpo", 2), ("rm", 2), ("kto", 1)])
def test_an_example_of_preferences_is_two_sequences(read, stage, pairs):
    parsed = read(FACTORY.replace("stage: sft", f"stage: {stage}"))
    assert parsed.layout_fields["micro_batch_size"] == pairs
    assert parsed.workload_fields["global_batch_size"] == 64 * pairs
    reference = "shared" if stage in ("dpo", "kto") else "none"
    assert parsed.workload_fields.get("reference", "none") == reference
    assert parsed.workload_fields.get("reference_passes", 1) == (3 if stage == "kto" else 1)


def test_llamafactory_has_its_own_defaults(read):
    parsed = read(FACTORY.replace("cutoff_len: 1024\n", ""))
    assert parsed.workload_fields["seq_len"] == 2048
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert parsed.workload_fields["trainable"]["lora_rank"] == 8
    full = read(FACTORY.replace("finetuning_type: lora", "finetuning_type: full")).workload_fields
    assert "trainable" not in full
    assert full["precision"]["parameters"] == "fp32"


@pytest.mark.parametrize(
    ("stage", "kernels"),
    [
        ("sft", {"cross_entropy": "fused_linear", "fused": True}),
        ("dpo", {"fused": True}),
        ("kto", {"fused": True}),
    ],
)
def test_preferences_need_the_logits_that_liger_does_not_make_otherwise(read, stage, kernels):
    parsed = read(FACTORY.replace("stage: sft", f"stage: {stage}") + "enable_liger_kernel: true\n")
    assert parsed.layout_fields["kernels"] == kernels


def test_llamafactory_with_unsloth_fuses_the_loss_and_offloads_inputs(read):
    parsed = read(FACTORY + "use_unsloth: true\nquantization_method: bnb\n")
    assert parsed.layout_fields["kernels"] == {"cross_entropy": "fused_linear", "fused": True}
    assert parsed.layout_fields["offload"]["modules"] == ("decoder_layer_input",)
    assert not any("quantization_method" in text for text in parsed.warnings)
    other = read(FACTORY + "quantization_method: hqq\n")
    assert any("quantization_method: hqq" in text for text in other.warnings)


def test_a_deepspeed_file_is_found_above_or_known_by_its_name(read, tmp_path):
    by_name = read(FACTORY + "deepspeed: examples/deepspeed/ds_z3_offload_config.json\n")
    assert (by_name.layout_fields["zero"], by_name.layout_fields["offload"]["parameters"]) == (3, True)
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}})
    )
    by_file = read(FACTORY + "deepspeed: ./ds.json\n")
    assert by_file.layout_fields["zero"] == 2
    assert by_file.framework == "deepspeed-zero"


def test_ms_swift_takes_devices_and_arithmetic_from_its_script(read):
    parsed = read(SWIFT, "run.sh", num_devices=None)
    fields, workload = parsed.layout_fields, parsed.workload_fields
    assert (parsed.num_devices, fields["zero"], fields["micro_batch_size"]) == (4, 3, 1)
    assert workload["global_batch_size"] == 32
    assert "4 devices, from NPROC_PER_NODE=4" in parsed.notes


def test_processes_of_several_devices_split_the_model(read):
    text = SWIFT.replace("0,1,2,3", "0,1,2,3,4,5,6,7")
    assert "device_map" in " ".join(read(text, "run.sh", num_devices=None).warnings)
    assert not read(SWIFT, "run.sh", num_devices=None).warnings


def test_ms_swift_on_megatron(read):
    script = (
        "NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tensor_model_parallel_size 2 --sequence_parallel "
        "true --micro_batch_size 2 --global_batch_size 16 --max_length 4096 --recompute_granularity full --packing true"
    )
    parsed = read(script, "run.sh", num_devices=None)
    fields = parsed.layout_fields
    assert (parsed.framework, fields["tp"], fields["sp"], fields["micro_batch_size"]) == (
        "megatron-core",
        2,
        True,
        2,
    )
    assert (parsed.num_devices, parsed.workload_fields["global_batch_size"]) == (4, 16)
    assert (parsed.warnings, parsed.workload_fields["trainable"]["lora_rank"]) == ((), 0)
    adapted = read(f"{script} --train_type lora", "run.sh", num_devices=None)
    assert adapted.workload_fields["trainable"]["lora_rank"] == 8


def test_accelerate_launches_a_recipe_with_its_configuration(read, tmp_path):
    (tmp_path / "recipe.yaml").write_text(TRL)
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n"
    )
    parsed = read(
        "accelerate launch --config_file fsdp.yaml sft.py --config recipe.yaml --max_length 512\n",
        "run.sh",
        num_devices=None,
    )
    assert (parsed.num_devices, parsed.layout_fields["zero"], parsed.layout_fields["dp_shard"]) == (4, 3, 4)
    assert (parsed.workload_fields["seq_len"], parsed.workload_fields["global_batch_size"]) == (512, 32)


def test_plain_training_arguments_are_data_parallel(read):
    parsed = read(TRL)
    assert (parsed.layout_fields["zero"], parsed.layout_fields["dp_replicate"]) == (0, 8)
    assert parsed.workload_fields["precision"]["parameters"] == "bf16"
    under_autocast = read(TRL.replace("dtype: bfloat16", "dtype: float32")).workload_fields["precision"]
    assert (under_autocast["compute"], under_autocast["parameters"]) == ("bf16", "fp32")


def test_sampling_is_not_projected(read):
    parsed = read(
        TRL
        + "reward_funcs: [accuracy]\nnum_generations: 8\nmax_prompt_length: 512\nmax_completion_length: 1024\n"
    )
    assert parsed.workload_fields["seq_len"] == 1536
    assert "rollout" in parsed.phase


def test_keys_are_sorted_by_their_effect(read):
    parsed = read(AXOLOTL + "wandb_tags: x\nmy_offload_thing: true\nrelora_steps: 5\nzzz: 1\n")
    assert "wandb_tags" in parsed.ignored
    assert set(parsed.unknown) == {"my_offload_thing", "zzz"}
    assert len(parsed.warnings) == 2
    with raises(UnknownKeyError, "unknown_key my_offload_thing"):
        read(AXOLOTL + "my_offload_thing: true\n", strict=True)
    with raises(ReaderError, "not_expressed"):
        read(AXOLOTL + "relora_steps: 5\n", strict=True)


def test_a_script_that_trains_nothing_is_refused(read):
    with raises(ReaderError, "wrong_format"):
        read(
            "swift infer --model x\nllamafactory-cli train\n".replace(
                "llamafactory-cli train", "echo llamafactory-cli train"
            ),
            "run.sh",
        )


LAUNCH = """LENGTH=$2
accelerate launch --use_deepspeed --zero_stage 3 --num_processes $1 sft.py --model_name_or_path Qwen/Qwen2.5-7B \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps $((64 / (2 * GPUS))) --max_length $LENGTH --bf16 True
"""


def test_one_error_names_the_open_arguments_of_a_command(read):
    with raises(MissingError, "missing --args, --var", fix='--args "1 2048" --var GPUS=8'):
        read(LAUNCH, "run.sh", num_devices=None)
    parsed = read(LAUNCH, "run.sh", num_devices=None, arguments=("8", "4096"), variables={"GPUS": "8"})
    assert (parsed.num_devices, parsed.layout_fields["zero"], parsed.workload_fields["seq_len"]) == (
        8,
        3,
        4096,
    )
    assert parsed.workload_fields["global_batch_size"] == 64


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ("deepspeed --include localhost:0,1,2 sft.py", 3),
        ("export CUDA_VISIBLE_DEVICES=0,1\npython sft.py", 2),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nnodes $NODES --nproc_per_node 2 sft.py", None),
    ],
)
def test_devices_of_a_command(read, command, devices):
    parsed = read(
        f"{command} --model_name_or_path gpt2 --per_device_train_batch_size 2\n", "run.sh", num_devices=None
    )
    assert parsed.num_devices == devices
    assert any(fact.part == "devices" for fact in parsed.missing) == (devices is None)


def test_fsdp_adds_up_whole_gradients_in_fp32(read):
    sharded = f"{TRL}fsdp: full_shard auto_wrap\n"
    parsed = read(sharded)
    assert parsed.layout_fields["kernels"]["keeps_whole_gradients"]
    assert parsed.workload_fields["precision"]["gradients"] == "fp32"
    synced = read(
        f"{sharded}accelerator_config:\n  gradient_accumulation_kwargs:\n    sync_each_batch: true\n"
    )
    assert "keeps_whole_gradients" not in synced.layout_fields.get("kernels", {})


def test_adapters_by_the_names_of_peoples_programs(read):
    parsed = read(
        f"{TRL}use_peft_lora: true\nlora_r: 8\nuse_4bit_quantization: true\nuse_nested_quant: true\n"
    )
    assert parsed.workload_fields["trainable"]["lora_rank"] == 8
    assert parsed.workload_fields["precision"]["frozen"] == "nf4_double"
    assert read(f"{TRL}lora_r: 8\n").workload_fields["trainable"]["lora_rank"] == 8
    assert "trainable" not in read(f"{TRL}lora_r: 8\nuse_peft: false\n").workload_fields


@pytest.mark.parametrize(("more", "kind"), [("", "none"), ("recompute_granularity: full\n", "full")])
def test_llamafactory_on_megatron_recomputes_what_it_is_told(read, more, kind):
    text = (
        FACTORY.replace("finetuning_type: lora", "finetuning_type: full") + "tensor_model_parallel_size: 2\n"
    )
    layout = read(text + "pipeline_model_parallel_size: 2\n" + more).layout_fields
    assert layout.get("recompute", {"granularity": "none"})["granularity"] == kind


def test_a_batch_alone_does_not_mean_megatron(read):
    parsed = read(f"{FACTORY}global_batch_size: 96\n")
    assert (parsed.framework, parsed.layout_fields["zero"]) == ("transformers", 0)
    assert parsed.workload_fields["global_batch_size"] == 64


def test_a_prediction_is_refused(read):
    with raises(ReaderError, "wrong_format"):
        read("model_name_or_path: gpt2\nstage: sft\nfinetuning_type: lora\ndo_predict: true\n")


@pytest.mark.parametrize(
    ("keys", "reference"),
    [
        ("rl: dpo\nbeta: 0.1\n", "copy"),
        ("rl: dpo\nuse_peft: true\n", "shared"),
        ("rl: dpo\nprecompute_ref_log_probs: true\n", "none"),
        ("beta: 2.0\ngamma_beta_ratio: 0.5\n", "none"),
        ("num_generations: 8\nmax_completion_length: 512\n", "none"),
        ("num_generations: 8\nmax_completion_length: 512\nbeta: 0.04\n", "copy"),
    ],
)
def test_the_reference_model_has_weights_unless_adapters_are_trained(read, keys, reference):
    assert read(f"{TRL}{keys}").workload_fields.get("reference", "none") == reference


def test_remedies_are_keys_of_the_file_that_shards(read, tmp_path):
    assert read(TRL).remedies["zero:2"] == {"fsdp": "shard_grad_op auto_wrap"}
    remedies = read(f"{TRL}deepspeed: zero3.json\n").remedies
    assert remedies["zero:2"] == {"@zero_optimization.stage": 2}
    assert remedies["micro_batch_size"] == read(TRL).remedies["micro_batch_size"]
    engine = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 8\n"
    (tmp_path / "zero3.yaml").write_text(f"compute_environment: LOCAL_MACHINE\n{engine}")
    (tmp_path / "sft.yaml").write_text(TRL)
    command = "accelerate launch --config_file zero3.yaml sft.py --config sft.yaml\n"
    offload = read(command, "run.sh", num_devices=None).remedies["optimizer_offload:1.0"]
    assert offload == {"@deepspeed_config.offload_optimizer_device": "cpu"}


OPENRLHF = """read -r -d '' training_commands <<EOF
openrlhf.cli.train_STAGE --max_len 4096 --train_batch_size 256 --micro_train_batch_size 2 \\
   --pretrain meta-llama/Meta-Llama-3-8B --zero_stage 3 --bf16 --gradient_checkpointing --adam_offload MORE
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"""


@pytest.mark.parametrize(
    ("stage", "more", "pairs", "reference"),
    [
        ("sft", "--packing_samples", 1, ("none", 1)),
        ("rm", "", 2, ("none", 1)),
        ("dpo", "--lora_rank 16", 2, ("copy", 1)),
        ("kto", "", 1, ("copy", 3)),
        ("prm", "", 1, ("none", 1)),
        ("sft_long", "", 1, ("none", 1)),
        ("simpo_v2", "", 2, ("none", 1)),
    ],
)
def test_openrlhf_has_a_program_for_each_stage(read, stage, more, pairs, reference):
    parsed = read(OPENRLHF.replace("STAGE", stage).replace("MORE", more), "run.sh", num_devices=8)
    layout, workload = parsed.layout_fields, parsed.workload_fields
    assert (parsed.framework, layout["zero"], layout["dp_shard"]) == ("deepspeed-zero", 3, 8)
    assert (layout["micro_batch_size"], workload["global_batch_size"]) == (2 * pairs, 256 * pairs)
    assert (layout["offload"]["optimizer"], layout["recompute"]["granularity"]) == (1.0, "full")
    assert (workload.get("reference", "none"), workload.get("reference_passes", 1)) == reference
    assert workload.get("trainable", {}).get("lora_rank", 0) == (16 if "lora" in more else 0)
    assert workload["seq_len"] == 4096
    assert not parsed.missing


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ("--actor_num_nodes 2 --actor_num_gpus_per_node 4 --pretrain llama-3-8b --train_batch_size 64 "
         "--micro_train_batch_size 2 --prompt_max_len 1024 --generate_max_len 3072 --zero_stage 3 "
         "--gradient_checkpointing --adam_offload", 4096),
        ("--actor.num_nodes 2 --actor.num_gpus_per_node 4 --actor.model_name_or_path llama-3-8b "
         "--train.batch_size 64 --train.micro_batch_size 2 --data.max_len 2048 --rollout.max_new_tokens 1024 "
         "--ds.zero_stage 3 --actor.gradient_checkpointing_enable --ds.adam_offload", 2048),
    ],
)  # fmt: skip
def test_the_actor_of_openrlhf_trains_on_devices_of_its_own(read, options, length):
    parsed = read(f"ray job submit -- python3 -m openrlhf.cli.train_ppo_ray {options}\n", "run.sh")
    layout, workload = parsed.strategy, parsed.workload_fields
    assert (parsed.num_devices, layout.zero, layout.micro_batch_size) == (8, 3, 2)
    assert (workload["global_batch_size"], workload["seq_len"], layout.offload.optimizer) == (64, length, 1.0)
    assert layout.recompute.granularity == "full"
    assert any("value models" in text for text in parsed.warnings)


def test_ranks_of_ring_attention_share_a_batch_of_openrlhf(read):
    text = OPENRLHF.replace("STAGE", "sft").replace("MORE", "--ring_attn_size 2")
    parsed = read(text, "run.sh", num_devices=8)
    assert (parsed.layout_fields["cp"], parsed.workload_fields["global_batch_size"]) == (2, 256)


OWN = "torchrun --nproc_per_node 2 {program} --model_name_or_path Qwen/Qwen2.5-7B --bf16 True --use_lora {more}\n"


@pytest.mark.parametrize(
    ("program", "more", "assumed"),
    [
        ("finetune.py", "--output_dir out", ["--lora-rank", "--lora-targets", "--frozen-dtype"]),
        ("finetune.py", "--output_dir out --lora_r 8 --lora_target_modules q_proj", ["--frozen-dtype"]),
        ("finetune.py", "--output_dir out --q_lora", ["--lora-rank", "--lora-targets"]),
        ("trl/scripts/sft.py", "--output_dir out", []),
    ],
)
def test_defaults_of_own_programs_are_named_as_assumed(read, program, more, assumed):
    parsed = read(OWN.format(program=program, more=more), "run.sh")
    named = " ".join(parsed.warnings)
    assert [flag for flag in ("--lora-rank", "--lora-targets", "--frozen-dtype") if flag in named] == assumed
    assert parsed.workload_fields["trainable"]["lora_rank"] == (
        8 if "lora_r" in more.split("q_lora")[0] else 16
    )


def test_flags_take_the_place_of_what_is_assumed(read):
    text = OWN.format(program="finetune.py", more="--output_dir out --q_lora")
    flags = {
        "trainable": {"lora_rank": 64, "lora_targets": ("q_proj",)},
        "recompute": {"granularity": "none"},
    }
    parsed = read(text, "run.sh", over=flags)
    assert parsed.warnings == ()
    assert parsed.workload_fields["precision"]["frozen"] == "nf4"


def test_a_command_starts_a_recipe(read, tmp_path):
    recipe = "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\ntokenizer:\n  max_seq_len: 1024\nbatch_size: 2\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    parsed = read(
        "tune run --nproc_per_node 4 full_finetune_distributed --config recipe.yaml batch_size=3\n",
        "run.sh",
        num_devices=None,
    )
    assert (parsed.num_devices, parsed.strategy.micro_batch_size, parsed.workload_fields["seq_len"]) == (
        4,
        3,
        1024,
    )


def test_adapters_of_recorded_models_keep_their_types_and_are_shown(read):
    parsed = read(f"{TRL}lora_r: 8\ndtype: bfloat16\n")
    workload = merged(Workload(seq_len=2048, global_batch_size=64), parsed.workload_fields)
    typed = replace(workload, precision=replace(workload.precision, frozen="bf16"))
    question = Question(
        model=parsed.model,
        cluster=load_cluster("h100-sxm", 8),
        workload=typed,
        strategy=parsed.strategy,
        framework=load_framework("transformers"),
    )
    assert project(question).workload.trainable.lora_rank == 8


CHAT = "deepspeed main.py --model_name_or_path meta-llama/Llama-2-7b-hf --deepspeed --per_device_train_batch_size 4 "


def test_deepspeed_chat_makes_its_configuration_of_flags(read):
    flags = "--zero_stage 3 --offload --max_seq_len 512 --lora_dim 128 --only_optimize_lora --gradient_checkpointing"
    parsed = read(CHAT + flags, "run.sh")
    fields, workload = parsed.layout_fields, parsed.workload_fields
    assert (fields["zero"], fields["offload"]["parameters"], fields["recompute"]["granularity"]) == (
        3,
        True,
        "full",
    )
    assert (workload["seq_len"], workload["precision"]["compute"], workload["trainable"]["lora_rank"]) == (
        512,
        "fp16",
        128,
    )
    assert "trainable" not in read(f"{CHAT}--zero_stage 2 --lora_dim 128", "run.sh").workload_fields


def test_deepspeed_without_a_configuration_is_missing(read):
    parsed = read(CHAT.replace("main", "train"), "run.sh")
    assert "--config FILE.json" in [fact.flag for fact in parsed.missing]


@pytest.mark.parametrize(
    ("flags", "frozen"),
    [
        ("--tune_mm_vision False --tune_mm_llm True", ("vision",)),
        ("--freeze_vision_tower True --freeze_merger True", ("vision", "projector")),
        ("--tune_mm_llm False", ("embedding", "attention", "ffn", "moe", "norm", "head")),
    ],
)
def test_parts_of_a_model_with_a_tower_are_frozen(read, flags, frozen):
    text = f"torchrun train.py --model_name_or_path Qwen/Qwen2.5-VL-7B-Instruct --per_device_train_batch_size 1 {flags}"
    parts = read(text, "run.sh").workload_fields["trainable"]["frozen"]
    assert set(parts) >= set(frozen) and len(parts) - len(frozen) in (0, 1)


def test_programs_of_peoples_own_recompute_and_name_targets(read):
    text = (
        "torchrun run.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --grad_checkpoint True "
        "--lora_rank 8 --trainable q_proj,o_proj --modules_to_save lm_head --use_packed_ds True --max_packed_tokens 4096"
    )
    parsed = read(text, "run.sh")
    assert parsed.layout_fields["recompute"]["granularity"] == "full"
    trainable = parsed.workload_fields["trainable"]
    assert (trainable["lora_targets"], trainable["whole"]) == (("q_proj", "o_proj"), ("head",))
    assert parsed.workload_fields["seq_len"] == 4096


def test_fused_targets_beside_their_parts_count_once(read):
    parsed = read(FACTORY + "lora_target: gate_up_proj,gate_proj,up_proj\n")
    assert parsed.workload_fields["trainable"]["lora_targets"] == ("gate_proj", "up_proj")


def test_batches_of_deepspeed_decide_the_steps(read, tmp_path):
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}
    (tmp_path / "ds.json").write_text(json.dumps({**sizes, "zero_optimization": {"stage": 1}}))
    parsed = read(TRL + "deepspeed: ds.json\n", num_devices=1)
    assert parsed.workload_fields["global_batch_size"] == 8


def test_a_command_of_gpt_neox_gives_several_configurations(read, tmp_path):
    sizes = {
        "pipe_parallel_size": 1,
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 16,
    }
    (tmp_path / "model.yml").write_text(json.dumps(sizes, indent=1))
    batch = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
    (tmp_path / "batch.yml").write_text(json.dumps(batch))
    command = "python deepy.py train.py model.yml batch.yml"
    parsed = read(command, "run.sh", num_devices=4)
    assert (parsed.strategy.micro_batch_size, parsed.workload_fields["global_batch_size"]) == (2, 24)
    with raises(ReaderError, "wrong_format a command with a recipe"):
        read(command.replace("model.yml ", ""), "run.sh")


def test_pixels_of_a_file_are_the_size_of_its_images(read):
    vision = FACTORY.replace("Qwen2.5-7B", "Qwen2.5-VL-7B")
    parsed = read(vision + "image_max_pixels: 262144\n")
    assert parsed.workload_fields["images"] == {"size": 504}
    assert [fact.part for fact in parsed.missing] == ["workload.images.count"]
    assert read(vision).workload_fields["images"] == {"size": 756}


def test_preferences_by_an_argument_of_their_loss(read):
    text = "torchrun mpo.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --rpo_alpha 1"
    parsed = read(text, "run.sh")
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]) == (2, 16)


def test_a_repeated_key_counts_as_in_the_parser_of_the_framework(read):
    parsed = read(f"{AXOLOTL}micro_batch_size: 1\n")
    assert parsed.layout_fields["micro_batch_size"] == 1
    assert any("twice" in note for note in parsed.notes)
    with raises(ReaderError, "cannot_parse"):  # LLaMA-Factory reads with OmegaConf
        read(f"{FACTORY}cutoff_len: 2048\n")


def test_adapters_of_a_program_with_the_options_of_ms_swift(read):
    text = "torchrun --nproc_per_node 4 mine.py --model Qwen/Qwen2.5-7B-Instruct --train_type lora --lora_rank 4\n"
    assert read(text, "run.sh", num_devices=None).workload_fields["trainable"]["lora_rank"] == 4


def test_the_second_step_of_deepspeed_chat_trains_on_pairs(read):
    text = "deepspeed --num_gpus 4 main.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --zero_stage 2 --max_seq_len 512"
    text += " --per_device_train_batch_size 2 --num_padding_at_beginning 0\n"
    assert read(text, "run.sh", num_devices=None).layout_fields["micro_batch_size"] == 4


@pytest.mark.parametrize(
    ("line", "mode"),
    [
        ("torch_compile: false", None),
        ("torch_compile: true", "default"),
        ("torch_compile_mode: default", "default"),
        ("torch_compile_mode: reduce-overhead", "reduce-overhead"),
        ("torch_compile_mode: max-autotune", "reduce-overhead"),
    ],
)
def test_torch_compile_is_read(read, line, mode):
    assert read(f"{TRL}{line}\n").layout_fields.get("kernels", {}).get("compile") == mode


def test_torch_compile_of_axolotl_is_read(read):
    assert read(f"{AXOLOTL}torch_compile: auto\n").layout_fields["kernels"] == {"compile": "default"}


@pytest.mark.parametrize(
    ("flags", "varied"),
    [
        ("--max_length 2048", True),
        ("--max_length 2048 --packing", False),
        ("--block_size 2048", False),  # run_clm.py cuts texts into blocks of one length
    ],
)
def test_lengths_vary_unless_sequences_are_packed_or_cut(read, flags, varied):
    parsed = read(f"torchrun train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 {flags}\n", "run.sh")
    assert parsed.workload_fields.get("varied_lengths", False) is varied


@pytest.mark.parametrize(("stage", "varied"), [("sft", True), ("pt", False)])
def test_llama_factory_packs_where_it_pretrains(read, stage, varied):
    text = f"model_name_or_path: Qwen/Qwen2.5-7B\nstage: {stage}\ndo_train: true\nfinetuning_type: full\nbf16: true\n"
    assert read(text).workload_fields.get("varied_lengths", False) is varied


@pytest.mark.parametrize(
    ("flags", "over", "kept"),
    [
        ("", {}, "bf16"),
        ("--evaluation_strategy no", {}, "fp32"),  # a key of transformers 4 alone, which loads fp32
        ("--evaluation_strategy no --torch_dtype bfloat16", {}, "bf16"),
        ("--evaluation_strategy no", {"precision": {"parameters": "bf16"}}, "bf16"),
    ],
)
def test_programs_of_transformers_4_load_weights_in_fp32(read, flags, over, kept):
    text = f"torchrun train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 --max_length 512 {flags}\n"
    types = read(text, "run.sh", over=over).workload_fields["precision"]
    assert {types[name] for name in ("parameters", "gradients", "moments")} == {kept}
    assert types["compute"] == "bf16"


def test_the_model_of_the_caller_has_the_degrees_of_a_megatron_back_end(read):
    script = "NPROC_PER_NODE=4 megatron sft --load /x/Qwen-mcore --tensor_model_parallel_size 2 --micro_batch_size 2 --global_batch_size 16"
    parsed = read(script, "run.sh", num_devices=None, model=load_model("qwen2.5-7b"))
    assert (parsed.layout_fields["tp"], parsed.layout_fields["micro_batch_size"], parsed.missing) == (
        2,
        2,
        (),
    )


def test_the_batch_of_a_program_of_ones_own_is_asked_for(read):
    parsed = read(
        "torchrun train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 --max_length 512\n", "run.sh"
    )
    parts = ("strategy.micro_batch_size", "workload.global_batch_size")
    assert tuple(fact.part for fact in parsed.missing) == parts
    assert "train.py" in parsed.missing[0].reason
    assert "micro_batch_size" not in parsed.layout_fields


def test_split_batches_are_those_of_all_ranks(read):
    flags = "--per_device_train_batch_size 16 --accelerator_config '{\"split_batches\": true}'"
    text = f"torchrun train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 --max_length 512 {flags}\n"
    parsed = read(text, "run.sh")
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]) == (2, 16)


def test_the_trainers_deepspeed_comes_before_the_file_of_accelerate(read, tmp_path):
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    flags = "--deepspeed ds.json --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 512 --bf16"
    parsed = read(f"accelerate launch --config_file acc.yaml train.py {flags}\n", "run.sh", num_devices=None)
    fields = parsed.layout_fields
    assert (parsed.num_devices, fields["zero"], fields["micro_batch_size"]) == (4, 2, 2)


def test_a_command_of_litgpt_has_the_defaults_of_its_program(read):
    text = "litgpt finetune_lora checkpoints/meta-llama/Llama-3.2-1B --data Alpaca --train.max_seq_length 512 --lora_r 4\n"
    parsed = read(text, "run.sh", num_devices=None)
    assert (parsed.num_devices, parsed.model.name) == (1, "llama-3.2-1b")
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]) == (1, 16)
    assert parsed.workload_fields["trainable"]["lora_rank"] == 4


def test_variables_of_a_recipe_that_count_are_asked_for_and_others_are_not(read, tmp_path):
    from tests.frameworks.recipes.samples import TEXTS

    (tmp_path / "r.yaml").write_text(TEXTS["torchtune"])
    text = "tune run --nproc_per_node 4 full_finetune_distributed --config r.yaml max_steps_per_epoch=$STEPS batch_size=$BATCH\n"
    with raises(MissingError, "missing") as caught:
        read(text, "run.sh", num_devices=None)
    assert [fact.flag for fact in caught.value.facts] == ["--var BATCH=VALUE"]
    parsed = read(text.replace("$BATCH", "2"), "run.sh", num_devices=None)
    assert (parsed.num_devices, parsed.layout_fields["micro_batch_size"]) == (4, 2)


def test_the_folder_of_a_megatron_checkpoint_names_its_model(read):
    flags = "--expert_model_parallel_size 2 --micro_batch_size 2 --global_batch_size 16"
    named = read(
        f"NPROC_PER_NODE=4 megatron sft --load /x/Qwen3-30B-A3B-mcore {flags}", "run.sh", num_devices=None
    )
    assert (named.model.name, named.layout_fields["ep"]) == ("qwen3-30b-a3b", 2)
    (fact,) = read(
        f"NPROC_PER_NODE=4 megatron sft --load /x/mine {flags}", "run.sh", num_devices=None
    ).missing
    assert (fact.part, fact.example) == ("model", "--model qwen3-30b-a3b")  # a model with experts


def test_a_recipes_keys_that_a_command_adds(read, tmp_path):
    (tmp_path / "o.yaml").write_text(
        "model:\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n  mlp_ratio: 8\n  vocab_size: 100\n  max_sequence_length: 32\n"
        "optimizer:\n  name: adamw\nprecision: amp_bf16\nglobal_train_batch_size: 8\ndevice_train_microbatch_size: 1\n"
    )
    text = "torchrun --nproc_per_node 4 scripts/train.py o.yaml --activation_checkpointing=whole_layer --unknown_one=3 "
    result = read(text + "--fsdp.sharding_strategy=SHARD_GRAD_OP\n", "run.sh", num_devices=None)
    assert (result.layout_fields["recompute"]["granularity"], result.layout_fields["zero"]) == ("full", 2)


def test_the_folder_of_gpt_neox_configurations(read, tmp_path):
    with raises(ReaderError, "configs/one.yml"):
        read("python deepy.py train.py -d configs one.yml two.yml\n", "run.sh")


def test_a_program_of_megatron_with_a_table_of_its_own_is_refused(read, tmp_path):
    (tmp_path / "own.yaml").write_text("inherit: [base.yaml]\nnum_layers: 12\nhidden_size: 768\n")
    with raises(ReaderError, "wrong_format"):
        read(
            "python -m torch.distributed.launch --nproc_per_node 1 pretrain_gpt2.py --config own.yaml\n",
            "run.sh",
        )


@pytest.mark.parametrize(
    ("old", "new", "devices", "batch"),
    [
        (" --gradient_accumulation_steps $(expr 32 / $nproc)", "", 4, 16),
        (
            " --gradient_accumulation_steps $(expr 32 / $nproc)",
            " --rlhf_type grpo --max_completion_length 64",
            4,
            4,
        ),
        ("NPROC_PER_NODE=$nproc", "NNODES=2 NPROC_PER_NODE=$nproc", 8, 64),
    ],
)
def test_ms_swift_accumulates_16_sequences_where_nothing_is_given(read, old, new, devices, batch):
    parsed = read(SWIFT.replace(old, new), "run.sh", num_devices=None)
    assert (parsed.num_devices, parsed.workload_fields["global_batch_size"]) == (devices, batch)


def test_ms_swift_starts_one_process_without_a_number(read):
    text = SWIFT.replace("NPROC_PER_NODE=$nproc \\\n", "")
    (fact,) = read(text, "run.sh", num_devices=None).missing
    assert (fact.part, fact.example) == ("devices", "--devices 1")
    assert "NPROC_PER_NODE is not set" in fact.reason
    with raises(ReaderError, "wrong_format data parallelism"):
        read(text, "run.sh", num_devices=4)


def test_devices_are_those_of_the_command_that_is_read(read):
    train = "llamafactory-cli train --stage sft --do_train --finetuning_type lora --cutoff_len 64 --model_name_or_path Qwen/Qwen3-8B\n"
    text = f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{train}CUDA_VISIBLE_DEVICES=0 {train}"
    assert read(text, "run.sh", num_devices=None).num_devices == 4


def test_slurm_shows_a_job_the_devices_of_its_node(read):
    text = (
        "#!/bin/bash\n#SBATCH --gres=gpu:2\nIFS=',' read -ra GPUS <<< \"${CUDA_VISIBLE_DEVICES:-0}\"\n"
        "accelerate launch --num_processes ${#GPUS[@]} train.py --model_name_or_path Qwen/Qwen3-8B "
        "--per_device_train_batch_size 2\n"
    )
    assert read(text, "run.sh", num_devices=None).num_devices == 2


@pytest.mark.parametrize(
    ("length", "seq_len"),
    [("--max_length 1024 --max_completion_length 256", 1280), ("--max_length 1024", 1536), ("", None)],
)
def test_ms_swift_samples_after_prompts_of_any_length(read, length, seq_len):
    text = SWIFT.replace("swift sft", "swift rlhf --rlhf_type grpo").replace("--max_length 2048", length)
    parsed = read(text, "run.sh")
    assert parsed.workload_fields.get("seq_len") == seq_len


@pytest.mark.parametrize(("packing", "micro"), [("", 2), ("--packing true --packing_length 4096 ", 1)])
def test_packs_of_ms_swift_hold_both_sequences_of_a_pair(read, packing, micro):
    text = SWIFT.replace("swift sft", f"swift rlhf --rlhf_type dpo {packing}")
    parsed = read(text, "run.sh", num_devices=4)
    assert parsed.layout_fields["micro_batch_size"] == micro
    assert parsed.workload_fields["seq_len"] == (2048 if micro == 2 else 4096)


def test_axolotl_has_defaults_of_its_own(read):
    text = AXOLOTL.replace("sequence_len: 4096\n", "").replace("micro_batch_size: 2\n", "")
    parsed = read(text, num_devices=2)
    assert (parsed.workload_fields["seq_len"], parsed.workload_fields["global_batch_size"]) == (512, 8)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("load_in_4bit: true\n", "no adapter is named"),
        ("adapter: lora\nlora_r: 8\n", "adapters at all linear layers are assumed"),
        (
            "adapter: lora\nlora_target_linear: true\npeft_layers_to_transform: [1]\n",
            "adapters in some layers",
        ),
        ("overrides_of_model_config:\n  num_hidden_layers: 4\n", "changes of the model's configuration"),
        ("deepspeed_config: {zero_stage: 2}\n", "sharding"),
        ("auto_find_batch_size: true\n", "halved where memory runs out"),
    ],
)
def test_what_axolotl_leaves_open_is_warned_of(read, more, text):
    assert [warning for warning in read(AXOLOTL + more).warnings if text in warning]


def test_older_names_and_lengths_of_llama_factory(read):
    text = FACTORY.replace("cutoff_len: 1024\n", "").replace("per_device_train", "per_gpu_train")
    parsed = read(text, num_devices=1)
    assert parsed.workload_fields["global_batch_size"] == 8
    assert [warning for warning in parsed.warnings if "cutoff_len is not given" in warning]


def test_trl_reads_what_its_model_is_loaded_with(read):
    parsed = read(
        TRL.replace("dtype: bfloat16", "model_init_kwargs:\n  dtype: float32\n  attn_implementation: eager")
    )
    assert parsed.workload_fields["precision"]["parameters"] == "fp32"
    assert parsed.layout_fields["flash_attention"] is False


def test_grpo_without_beta_may_have_a_reference_model(read):
    parsed = read(f"{TRL}reward_funcs: [a]\nmax_prompt_length: 64\nmax_completion_length: 64\n")
    assert "reference" not in parsed.workload_fields
    assert [warning for warning in parsed.warnings if "beta is not given" in warning]


@pytest.mark.parametrize(
    ("table", "types"),
    [
        ({}, ("bf16", "bf16")),
        ({"fp16": {"enabled": "auto"}}, ("bf16", "bf16")),
        ({"bf16": {"enabled": False}}, ("bf16", "fp32")),
    ],
)
def test_deepspeed_trains_in_the_trainers_type_where_it_names_none(read, tmp_path, table, types):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **table}))
    precision = read(f"{TRL}deepspeed: ds.json\n").workload_fields["precision"]
    assert (precision["compute"], precision.get("parameters", "bf16")) == types


def test_a_configuration_of_deepspeed_that_is_not_there_is_missing(read):
    text = "torchrun --nproc_per_node 2 a.py --model_name_or_path Qwen/Qwen3-8B --max_length 64 --deepspeed $OUT/engine-of-none.json x\n"
    parsed = read(f"OUT=out\n{text}", "run.sh", num_devices=None)
    assert "DeepSpeed's configuration" in [fact.what for fact in parsed.missing]


@pytest.mark.parametrize(
    ("ranks", "count"), [("list(range(0, 8))", 8), ("[2, 3, 5]", 3), ("range(4)", 4), ("someone", None)]
)
def test_ray_starts_the_devices_of_the_group_that_trains(read, ranks, count):
    groups = f"device_groups:\n  nproc_per_node: 8\n  other:\n    ranks: [9]\n    workers: [rollout]\n  default:\n    ranks: {ranks}\n    workers: [default]\n"
    text = f"model: Qwen/Qwen3-8B\ntrain_type: full\nmax_length: 512\nuse_ray: true\n{groups}"
    parsed = read(text, num_devices=None)
    assert parsed.num_devices == count
    assert "device_groups" not in parsed.unknown


def test_a_file_of_the_same_name_is_noted(read, tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    text = f"{TRL}deepspeed: /other/place/ds.json\n"
    parsed = read(text)
    assert parsed.layout_fields["zero"] == 2
    assert any("same name" in note for note in parsed.notes)
    inside = read(f"{TRL}deepspeed: ds.json\n")
    assert not any("same name" in note for note in inside.notes)
