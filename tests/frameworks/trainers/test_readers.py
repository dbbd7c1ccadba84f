import json

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options, ParsedFile

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
    assert any("reference model" in text for text in parsed.warnings) == (stage in ("dpo", "kto"))


def test_llamafactory_has_its_own_defaults(read):
    parsed = read(FACTORY.replace("cutoff_len: 1024\n", ""))
    assert parsed.workload_fields["seq_len"] == 2048
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert parsed.workload_fields["trainable"]["lora_rank"] == 8
    full = read(FACTORY.replace("finetuning_type: lora", "finetuning_type: full")).workload_fields
    assert "trainable" not in full
    assert full["precision"]["parameters"] == "fp32"


def test_a_deepspeed_file_is_found_above_or_known_by_its_name(read, tmp_path):
    by_name = read(FACTORY + "deepspeed: examples/deepspeed/ds_z3_offload_config.json\n")
    assert (by_name.layout_fields["zero"], by_name.layout_fields["offload"]["parameters"]) == (3, True)
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}})
    )
    by_file = read(FACTORY + "deepspeed: ./ds.json\n")
    assert by_file.layout_fields["zero"] == 2
    assert by_file.framework == "deepspeed-zero@transformers"


def test_ms_swift_takes_devices_and_arithmetic_from_its_script(read):
    parsed = read(SWIFT, "run.sh", num_devices=None)
    fields, workload = parsed.layout_fields, parsed.workload_fields
    assert (parsed.num_devices, fields["zero"], fields["micro_batch_size"]) == (4, 3, 1)
    assert workload["global_batch_size"] == 32
    assert "4 devices, from NPROC_PER_NODE=4" in parsed.notes


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
    assert parsed.warnings == ()


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
    assert any("rollout" in note for note in parsed.notes)


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
