import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

COMMAND = "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type {tuner} --max_length 512"


@pytest.fixture
def read(tmp_path):
    """Read a text as a file of that name."""

    def call(text, name, num_devices=8):
        path = tmp_path / name
        path.write_text(text)
        return read_file(path, Options(num_devices=num_devices, model_of=load_model, strict=False))

    return call


@pytest.mark.parametrize(
    ("flags", "compute", "parameters"),
    [
        ("", "bf16", "bf16"),
        ("--torch_dtype float16", "fp16", "fp32"),
        ("--torch_dtype float32", "fp16", "fp32"),
        ("--torch_dtype bfloat16", "bf16", "bf16"),
    ],
)
def test_ms_swift_computes_in_the_type_of_the_weights(read, flags, compute, parameters):
    types = read(f"{COMMAND.format(tuner='full')} {flags}\n", "run.sh").workload_fields["precision"]
    assert (types["compute"], types["parameters"]) == (compute, parameters)


@pytest.mark.parametrize(
    ("line", "recompute"),
    [
        ("gradient_checkpointing: false", "full"),
        ("gradient_checkpointing: true", "full"),
        ("disable_gradient_checkpointing: true", "none"),
    ],
)
def test_llamafactory_recomputes_unless_its_own_key_disables_that(read, line, recompute):
    text = f"model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: sft\nfinetuning_type: full\n{line}\n"
    assert read(text, "train.yaml").layout_fields["recompute"] == {"granularity": recompute}


@pytest.mark.parametrize(
    ("key", "parameters"), [("torch_dtype: null", "fp32"), ("torch_dtype: bfloat16", "bf16")]
)
def test_weights_of_no_type_are_loaded_in_fp32(read, key, parameters):
    text = (
        f"model_name_or_path: Qwen/Qwen2.5-7B-Instruct\n{key}\nbf16: true\nmax_length: 512\noutput_dir: out\n"
    )
    types = read(text, "train.yaml").workload_fields["precision"]
    assert (types["compute"], types["parameters"]) == ("bf16", parameters)


def test_target_modules_of_a_program_are_the_places_of_adapters(read):
    text = "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nlora_r: 4\ntarget_modules: [q_proj, o_proj]\nper_device_train_batch_size: 1\n"
    trainable = read(text + "max_length: 512\noutput_dir: out\n", "train.yaml").workload_fields["trainable"]
    assert trainable["lora_targets"] == ("q_proj", "o_proj")


@pytest.mark.parametrize(("processes", "devices"), [("num_processes: 5\n", 5), ("", 7)])
def test_accelerates_file_counts_processes_of_visible_devices(read, tmp_path, processes, devices):
    (tmp_path / "acc.yaml").write_text(f"distributed_type: MULTI_GPU\nmixed_precision: bf16\n{processes}")
    flags = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 512 --bf16"
    command = (
        f"CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 accelerate launch --config_file acc.yaml train.py {flags}\n"
    )
    assert read(command, "run.sh", None).num_devices == devices


def test_a_type_that_a_command_prints_is_warned_of(read):
    script = f"T=$(python -c 'print(1)')\n{COMMAND.format(tuner='full')} --torch_dtype $T\n"
    parsed = read(script, "run.sh")
    assert parsed.workload_fields["precision"]["compute"] == "bf16"
    assert len(parsed.warnings) == 1


@pytest.mark.parametrize(("flags", "compute"), [("", "bf16"), ("--fp16", "fp16")])
def test_the_precision_of_accelerates_file_is_that_of_a_run_without_one(read, tmp_path, flags, compute):
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n"
    )
    more = f"--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 512 {flags}"
    parsed = read(f"accelerate launch --config_file acc.yaml train.py {more}\n", "run.sh", None)
    assert parsed.workload_fields["precision"]["compute"] == compute


ARGUMENTS = "model: Qwen/Qwen2.5-7B-Instruct\ntuner_type: lora\ntorch_dtype: bfloat16\nmax_length: 512\n"


def test_a_file_of_ms_swifts_arguments_has_its_defaults(read):
    parsed = read(ARGUMENTS + "attn_impl: flash_attn\n", "sft.yaml")
    assert parsed.workload_fields["trainable"]["lora_rank"] == 8
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert (parsed.layout_fields["micro_batch_size"], parsed.model.name) == (1, "qwen2.5-7b")
    assert not parsed.warnings


def test_devices_of_an_example_fit_the_batch_of_megatron(read):
    more = "tensor_model_parallel_size: 2\nmicro_batch_size: 1\nglobal_batch_size: 2\n"
    parsed = read(ARGUMENTS + more, "sft.yaml", None)
    assert [fact.example for fact in parsed.missing] == ["--devices 4"]


def test_an_optimizer_of_ms_swift_is_read(read):
    parsed = read(f"{COMMAND.format(tuner='full')} --optimizer muon\n", "run.sh")
    assert parsed.workload_fields["optimizer"] == "muon"


FACTORY = (
    "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: sft\nfinetuning_type: {kind}\ncutoff_len: 512\n"
)


def test_blocks_of_badam_keep_the_type_of_the_checkpoint(read):
    result = read(FACTORY.format(kind="full") + "use_badam: true\n", "train.yaml")
    types = result.workload_fields["precision"]
    assert (types["compute"], types["parameters"], types["master"]) == ("bf16", "bf16", "none")


def test_llamafactorys_pure_bf16_needs_no_other_key(read):
    types = read(FACTORY.format(kind="full") + "pure_bf16: true\n", "train.yaml").workload_fields["precision"]
    assert (types["compute"], types["parameters"], types["master"]) == ("bf16", "bf16", "none")


def test_adapters_of_oft_are_warned_of(read):
    (warning,) = read(FACTORY.format(kind="oft") + "bf16: true\n", "train.yaml").warnings
    assert "oft" in warning
    assert not read(FACTORY.format(kind="lora") + "bf16: true\n", "train.yaml").warnings


@pytest.mark.parametrize(
    ("suffix", "frozen"),
    [("-AWQ", "nf4_double"), ("-GPTQ-Int8", "int8"), ("-GPTQ-Int4", "nf4_double"), ("", None)],
)
def test_weights_of_a_quantized_checkpoint_have_its_bits(read, suffix, frozen):
    text = FACTORY.format(kind="lora").replace("-Instruct", f"-Instruct{suffix}") + "bf16: true\n"
    assert read(text, "train.yaml").workload_fields["precision"].get("frozen") == frozen


@pytest.mark.parametrize(("flags", "is_assumed"), [("", True), ("--bf16 False", False), ("--bf16", False)])
def test_a_program_of_ones_own_without_a_type_is_assumed_to_compute_in_tf32(read, flags, is_assumed):
    more = f"--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 512 {flags}"
    warnings = " ".join(read(f"torchrun --nproc_per_node 2 train.py {more}\n", "run.sh", None).warnings)
    assert ("--precision" in warnings) == is_assumed
