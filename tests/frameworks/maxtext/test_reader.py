"""MaxText's YAML over base.yml: its own files read, layers of keys lie as MaxText lays them, and words mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError, ReaderError
from forescale.frameworks.maxtext.command import presets
from forescale.frameworks.maxtext.reader import MaxTextReader
from forescale.frameworks.readers import READERS, read_file
from forescale.frameworks.reading import Options
from forescale.graph.counts import count_parameters

FOLDER = Path(__file__).parents[2] / "data" / "maxtext"
EXAMPLES = sorted(FOLDER.rglob("*.yml"))
OTHERS = {
    "deepseek2-236b", "deepseek3-671b", "deepseek3-671b-2dfsdp", "deepseek3-671b-batchsplit", "gemma-7b", "gemma2-27b",
    "gemma2-2b", "gemma2-9b", "gemma3-12b", "gemma3-27b", "gemma3-4b", "gpt3-175b", "mistral-7b", "mixtral-8x22b",
    "qwen3.5-35b-a3b", "qwen3.5-397b-a17b",
}  # fmt: skip
"""Presets that differ from our entry of the same model: vocabulary, windows, groups of experts or prediction of several
tokens; their parameters are within 0.5 % all the same."""
OTHERWISE = {
    "llama3-405b", "llama3.3-70b", "llama4-17b-16e", "olmo3-32b", "qwen2.5-14b", "qwen3-235b-a22b",
    "qwen3-30b-a3b", "qwen3-4b-thinking-2507",
}  # fmt: skip
"""Presets of our sizes with rotary positions or norms of their own: those of Llama 3.1 that are not named so are not
scaled, Scout's are scaled as Llama 3.1's, OLMo 3's on local layers, too, and Qwen's later releases have larger bases."""


@pytest.fixture
def read(tmp_path):
    def reading(keys=None, devices=None, *, strict=True, over=None):
        path = tmp_path / "run.yml"
        path.write_text(yaml.safe_dump({"base_config": "base.yml", **(keys or {})}))
        options = Options(num_devices=devices, strict=strict, model_of=load_model, variables=over or {})
        return MaxTextReader().read(path, options)

    return reading


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_example_reads(path):
    result = MaxTextReader().read(path, Options(num_devices=16, model_of=load_model))
    assert result.num_devices == result.strategy.num_devices == 16
    content = yaml.safe_load(path.read_text())
    if "max_target_length" in content and "model_name" not in content:
        assert result.workload_fields["seq_len"] == content["max_target_length"]


@pytest.mark.parametrize("name", sorted(presets()))
def test_a_model_by_name_is_that_of_the_catalogue(read, name):
    model = read({"model_name": name}).model
    known = presets()[name].get("catalogue")
    if known is None:
        assert count_parameters(model).total > 0
    elif name in OTHERS:
        ratio = count_parameters(model).total / count_parameters(load_model(known).text).total
        assert model is not load_model(known)
        assert ratio == pytest.approx(1, abs=5e-3)
    elif name in OTHERWISE:
        assert (model == load_model(known).text, model.shape == load_model(known).text.shape) == (False, True)
    else:
        assert model is load_model(known).text


def test_a_model_of_base_yml_by_hand(read):
    layer = 2048 * 128 * 16 * 4 + 3 * 2048 * 7168 + 2 * 2048
    assert count_parameters(read().model).total == 16 * layer + 2 * 32_000 * 2048 + 2048


def test_global_parameter_scale(read):
    model = read({"global_parameter_scale": 32}).model
    assert (model.hidden_size, model.num_layers) == (
        2048 * 4,
        16 * 2,
    )  # 32 = 2^5: one whole third and two more
    assert model.layers[0].attention.num_heads == 16 * 4
    with raises(ForescaleError, "wrong_type global_parameter_scale (line 2)"):
        read({"global_parameter_scale": 12})


def test_axes_inside_and_over_slices(read):
    result = read(
        {"dcn_data_parallelism": 4, "ici_fsdp_parallelism": -1, "ici_tensor_parallelism": 4, "ici_expert_parallelism": 2}, 64
    ).strategy  # fmt: skip
    assert (result.tp, result.ep, result.dp_replicate, result.dp_shard, result.zero) == (4, 2, 4, 4, 3)
    both = read({"ici_fsdp_parallelism": 2, "ici_fsdp_transpose_parallelism": 4}).strategy
    assert (both.dp_shard, both.num_devices) == (8, 8)
    plain = read({"ici_fsdp_parallelism": 1, "ici_data_parallelism": 8}).strategy
    assert (plain.dp_replicate, plain.dp_shard, plain.zero) == (8, 1, 0)
    first = read(
        {"ici_fsdp_parallelism": 1, "ici_data_parallelism": 8, "shard_optimizer_over_data": True}
    ).strategy
    assert (first.dp_replicate, first.dp_shard, first.zero) == (1, 8, 1)


def test_experts_are_split_over_tensor_as_all_else(read):
    axes = {"ici_fsdp_parallelism": 4, "ici_tensor_parallelism": 2}
    assert read({**axes, "num_experts": 8, "num_experts_per_tok": 2}).strategy.etp == 2
    assert read(axes).strategy.etp == 1


def test_devices_of_a_topology(read):
    keys = {"compile_topology": "v5p-1024", "compile_topology_num_slices": 2, "ici_tensor_parallelism": 8}
    result = read(keys)
    assert result.num_devices == 1024
    assert (result.strategy.dp_replicate, result.strategy.dp_shard) == (2, 64)


def test_without_devices_the_free_axis_is_one_and_says_so(read):
    result = read({"ici_tensor_parallelism": 4, "per_device_batch_size": 0.5})
    assert result.num_devices is None
    assert result.strategy.num_devices == 4
    assert result.workload_fields["global_batch_size"] == 2


def test_on_gpus_a_slice_is_a_node(read):
    result = read({"hardware": "gpu"}, 32).strategy
    assert (result.dp_replicate, result.dp_shard) == (4, 8)


def test_batch_of_every_device(read):
    keys = {"per_device_batch_size": 0.5, "ici_tensor_parallelism": 8, "gradient_accumulation_steps": 3}
    result = read(keys, 64)
    assert result.strategy.micro_batch_size == 4
    assert result.workload_fields["global_batch_size"] == 96


def test_the_pipeline(read):
    keys = {"base_num_decoder_layers": 16, "ici_pipeline_parallelism": 4, "per_device_batch_size": 4}
    result = read(keys, 16)
    assert (result.strategy.pp, result.strategy.vpp, result.strategy.schedule) == (4, 4, "looped-bfs")
    assert result.strategy.micro_batch_size == 4  # 64 sequences over 4 data-parallel ranks in 4 micro-batches
    once = read({**keys, "num_layers_per_pipeline_stage": 4, "num_pipeline_microbatches": 8}, 16)
    assert (once.strategy.vpp, once.strategy.micro_batch_size) == (1, 2)
    delayed = read({**keys, "pipeline_delay_activation_forwarding": True}, 16).strategy
    assert delayed.micro_batch_size == 2


def test_context_parallelism(read):
    gathered = read({"ici_context_parallelism": 4}, 8).strategy
    assert (gathered.cp, gathered.cp_kind, gathered.cp_balanced) == (4, "all_gather", True)
    keys = {
        "ici_context_parallelism": 2,
        "ici_context_usp_ulysses_parallelism": 4,
        "context_parallel_strategy": "usp",
    }
    both = read(keys, 8).strategy
    assert (both.cp, both.cp_kind, both.cp_inner) == (8, "hierarchical", 4)


@pytest.mark.parametrize(
    ("policy", "granularity", "kept"),
    [
        ("full", "full", ()),
        ("minimal_with_context", "policy", ()),
        ("minimal_flash", "policy", ()),
        ("save_out_proj", "policy", ()),
        ("qkv_proj_offloaded", "policy", ("query_proj", "key_proj", "value_proj")),
    ],
)
def test_policies_of_rematerialisation(read, policy, granularity, kept):
    result = read({"remat_policy": policy}).strategy
    assert result.recompute.granularity == granularity
    assert result.recompute.kept == kept
    assert result.offload.modules == kept


def test_the_policy_custom_names_its_tensors(read):
    keys = {
        "remat_policy": "custom",
        "decoder_layer_input": "offload",
        "mlpwi_0": "device",
        "out_proj": "offload",
    }
    result = read(keys).strategy
    assert result.recompute.kept == ("out_proj", "mlpwi")
    assert result.offload.modules == ("decoder_layer_input", "out_proj")


def test_types(read):
    assert read().workload_fields["precision"] == {"compute": "bf16"}
    narrow = read({"weight_dtype": "bfloat16"}).workload_fields["precision"]
    assert narrow == {"compute": "bf16", "parameters": "bf16", "master": "none", "moments": "bf16"}
    two = read({"weight_dtype": "float32", "mu_dtype": "bfloat16"}).workload_fields["precision"]
    assert two == {"compute": "bf16", "moments": "bf16", "second_moments": "fp32"}
    assert read({"quantization": "fp8"}).workload_fields["precision"]["recipe"] == "delayed"
    for name, notes in (("int8", 0), ("int4", 1)):
        integers = read({"quantization": name})
        assert integers.workload_fields["precision"] == {"compute": "int8", "recipe": "none"}
        assert len(integers.notes) == notes


def test_only_what_is_said_is_told(read):
    layout_fields = read().layout_fields
    assert not {"software", "flash_attention", "routing", "allocator"} & layout_fields.keys()
    assert layout_fields["kernels"] == {}
    more = read({"attention": "dot_product", "num_vocab_tiling": 8, "capacity_factor": 1.25}).layout_fields
    assert more["flash_attention"] is False
    assert more["kernels"] == {"cross_entropy": "fused_linear"}
    assert more["routing"] == {"capacity_factor": 1.25}


def test_overrides_go_over_the_file(read):
    result = read(
        {"ici_tensor_parallelism": 2}, over={"ici_tensor_parallelism": "4", "max_target_length": "4096"}
    )
    assert (result.strategy.tp, result.workload_fields["seq_len"]) == (4, 4096)


def test_words_of_a_plan_go_over_the_file_before_it_is_checked(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("base_config: base.yml\nici_tensor_parallelism: 16\nper_device_batch_size: 1\n")
    result = MaxTextReader().read(path, Options(num_devices=8, over={"tp": 4, "seq_len": 1024}))
    assert (result.strategy.tp, result.strategy.dp_shard, result.workload_fields["seq_len"]) == (4, 2, 1024)


def test_a_model_rules_over_the_file_but_not_in_silence_over_overrides(read):
    result = read({"model_name": "mixtral-8x7b", "base_num_decoder_layers": 5})
    assert result.model.num_layers == 32
    assert result.notes[0].startswith(
        "base_num_decoder_layers (line 2) 5 is overruled by model_name mixtral-8x7b"
    )
    with raises(ForescaleError, "differs base_num_decoder_layers"):
        read({"model_name": "mixtral-8x7b"}, over={"base_num_decoder_layers": "5"})
    changed = {"base_num_decoder_layers": "5", "override_model_config": "true"}
    assert read({"model_name": "mixtral-8x7b"}, over=changed).model.num_layers == 5


def test_a_file_is_based_on_another(tmp_path):
    (tmp_path / "inner.yml").write_text("base_config: base.yml\nmax_target_length: 512\nsteps: 4\n")
    (tmp_path / "outer.yml").write_text("base_config: inner.yml\nsteps: 8\n")
    result = MaxTextReader().read(tmp_path / "outer.yml", Options())
    assert (result.workload_fields["seq_len"], result.workload_fields["tokens"]) == (512, 8 * 12 * 512)
    (tmp_path / "inner.yml").write_text("base_config: outer.yml\n")
    with raises(ForescaleError, "circular base_config"):
        MaxTextReader().read(tmp_path / "outer.yml", Options())


def test_what_is_not_described_is_said(read):
    keys = {"num_experts": 8, "num_experts_per_tok": 2, "sparse_matmul": False}
    assert any("computes every expert for every token" in note for note in read(keys).notes)
    assert read({"use_indexer": True}).model.left_out == "the indexer of sparse attention"


def test_a_distillation_trains_its_student():
    result = MaxTextReader().read(
        FOLDER / "post_train/distillation_qwen3_30b_base.yml", Options(num_devices=64)
    )
    attention = result.model.layers[0].attention
    assert (result.model.num_layers, attention.num_heads, attention.num_kv_heads, attention.head_dim) == (
        48,
        16,
        2,
        256,
    )
    assert any(note.startswith("not expressed: teacher_overrides (line 14)") for note in result.notes)


@pytest.mark.parametrize(
    ("keys", "devices", "text"),
    [
        ({"ici_tensor_paralelism": 2}, 8, "unknown_key ici_tensor_paralelism"),
        ({"ici_tensor_parallelism": 3}, 8, "differs ici_tensor_parallelism (line 2) 3"),
        ({"ici_tensor_parallelism": -1}, 8, "conflicts ici_fsdp_parallelism, ici_tensor_parallelism (line 2)"),
        ({"ici_tensor_parallelism": 0}, 8, "out_of_range ici_tensor_parallelism (line 2)"),
        ({"per_device_batch_size": 0.01}, 8, "out_of_range per_device_batch_size (line 2) of 8 devices"),
        ({"per_device_batch_size": 0.5}, 8, "not_divisible the sequences of per_device_batch_size (line 2),"),
        ({"student_overrides": 3}, 8, "wrong_type student_overrides"),
        ({"remat_policy": "some"}, 8, "not_one_of remat_policy (line 2)"),
        ({"model_name": "llama3-80b"}, 8, "unknown_name MaxText model_name"),
        ({"decoder_block": "lama2"}, 8, "unknown_name decoder_block (line 2)"),
        ({"quantization": "int3"}, 8, "wrong_type quantization (line 2)"),
        ({"ici_pipeline_parallelism": 3, "num_layers_per_pipeline_stage": 5}, 24, "not_divisible pipeline_parallel_layers"),
        ({"mlp_activations": []}, 8, "wrong_type mlp_activations (line 2)"),
        ({"base_config": -1}, 8, "wrong_type its base_config"),
        ({"base_config": "mine.yml"}, 8, "not_found base_config 'mine.yml'"),
        ({"custom_mesh": 1, "dcn_data_parallelism": 3}, 8, "not_divisible the number of devices"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(read, keys, devices, text):
    with raises(ForescaleError, text):
        read(keys, devices)


SCRIPT = """
set -e
for ARGUMENT in "$@"; do
    IFS='=' read -r KEY VALUE <<< "$ARGUMENT"
    export "$KEY"="$VALUE"
done
EXECUTABLE=${1:-train}
BATCH=4
python3 -m maxtext.inference.decode base.yml per_device_batch_size=1
python3 -m maxtext.trainers.pre_train."$EXECUTABLE" "${MAXTEXT_CONFIGS_DIR:-$PWD}"/base.yml model_name=llama2-7b\\
    run_name=$RUN_NAME per_device_batch_size=$BATCH ici_fsdp_parallelism=8 quantization="" remat_policy=minimal
python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama2-7b
"""


def script(tmp_path, text, **variables):
    path = tmp_path / "run.sh"
    path.write_text(text)
    reader = next(reader for reader in READERS if reader.recognises(text))
    assert reader.name == "maxtext"
    return reader.read(path, Options(model_of=load_model, variables=variables))


def test_a_script_that_starts_it_is_read(tmp_path):
    result = script(tmp_path, SCRIPT)
    assert result.model is load_model("llama-2-7b")
    assert (result.strategy.dp_shard, result.strategy.micro_batch_size, result.num_devices) == (8, 4, None)
    assert result.strategy.recompute.policy == "minimal"
    assert result.notes == ("it starts 2 trainings; the first is read",)
    assert "run_name" in result.ignored
    assert script(tmp_path, SCRIPT, BATCH="2").strategy.micro_batch_size == 2


def test_a_command_without_a_file_starts_from_base_yml(tmp_path):
    result = script(
        tmp_path, "python3 -m maxtext.trainers.post_train.sft.train_sft max_target_length=512 steps=3"
    )
    assert result.workload_fields["tokens"] == 3 * 12 * 512


def test_a_file_that_a_script_names_is_looked_for(tmp_path):
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "mine.yml").write_text("base_config: base.yml\nmax_target_length: 256\n")
    text = "python3 -m maxtext.trainers.pre_train.train /elsewhere/gpu/mine.yml steps=5"
    assert script(tmp_path, text).workload_fields["seq_len"] == 256


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("python3 -m maxtext.inference.decode base.yml steps=5", "wrong_format"),
        ("python3 -m maxtext.trainers.pre_train.train base.yml model_name=$M", "unset_variable model_name"),
        ("python3 -m maxtext.trainers.pre_train.train base.yml stepz=5", "unknown_key stepz"),
        ("python3 -m maxtext.trainers.pre_train.train other.yml", "not_found base_config 'other.yml'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_command_is_said(tmp_path, text, problem):
    with raises(ForescaleError, problem):
        script(tmp_path, text)


def test_images_bring_the_tower_of_the_model_frozen_unless_told_otherwise(read):
    """models/qwen3.5-35b-a3b.yml and models/gemma3-4b.yml: 27 layers of 1152; freeze_vision_encoder_params is true."""
    for name in ("qwen3.5-35b-a3b", "gemma3-4b"):
        assert read({"model_name": name}).model.vision is None
        result = read({"model_name": name, "use_multimodal": True})
        encoder = result.model.vision.encoder
        assert (encoder.num_layers, encoder.hidden_size) == (27, 1152)
        assert result.workload_fields["trainable"] == {"frozen": ["vision"]}
        assert any("--images" in note for note in result.notes)
    trained = read({"model_name": "gemma3-4b", "use_multimodal": True, "freeze_vision_encoder_params": False})
    assert "trainable" not in trained.workload_fields
    other = read({"model_name": "qwen3-omni-30b-a3b", "use_multimodal": True}).model
    assert (other.vision, other.left_out) == (None, "encoders of images and sound")


XPK = """
ARGS="model_name=llama3.1-8b per_device_batch_size=2 max_target_length=2048 ici_fsdp_parallelism=-1 steps=30 \\
  remat_policy=full key_of_another_release=True"
xpk workload create --cluster=$CLUSTER --{option} --num-slices=2 \\
  --command="set -e && export FLAGS='--a=1' && python3 -m MaxText.train MaxText/configs/base.yml ${{ARGS}}"
"""


@pytest.mark.parametrize(
    ("option", "devices"),
    [("device-type=tpu7x-4x4x4", 256), ("tpu-type=v6e-256", 512), ("device-type=v5p-128", 128)],
)
def test_a_workload_of_xpk_is_read_with_its_devices(tmp_path, option, devices):
    path = tmp_path / "run_recipe.sh"
    path.write_text(XPK.format(option=option))
    parsed = read_file(path, Options(strict=False))
    assert (parsed.num_devices, parsed.workload_fields["global_batch_size"]) == (devices, 2 * devices)
    assert parsed.unknown == ("key_of_another_release",)
    assert "key_of_another_release" in parsed.warnings[0]


def test_a_configuration_of_the_benchmark_runner_is_refused_by_its_name(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("python3 -m benchmarks.benchmark_runner xpk --device_type=v6e-8 --model_name=own_8b\n")
    with raises(ReaderError, "not_expressed the configuration own_8b of MaxText's benchmark_runner"):
        read_file(path)


def test_a_copys_own_model_under_a_program_that_starts_many_hosts(tmp_path):
    folder = tmp_path / "MaxText" / "configs" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.yml").write_text(
        "base_emb_dim: 256\nbase_num_query_heads: 4\nbase_num_kv_heads: 2\nbase_num_decoder_layers: 3\n"
        "base_mlp_dim: 512\nhead_dim: 64\nvocab_size: 1000\ndecoder_block: llama2\n"
    )
    text = 'python3 multihost_job.py --TPU_TYPE=v5p-16 --COMMAND="sudo docker run x bash -c \\"python3 -u -m MaxText.train '
    text += 'MaxText/configs/base.yml model_name=mine max_target_length=512 gradient_accumulation_steps=4\\""'
    result = script(tmp_path, text)
    assert (result.model.num_layers, result.model.hidden_size, result.num_devices) == (3, 256, 8)
    for name in ("other", "../mine"):
        with raises(ForescaleError, "unknown_name MaxText model_name"):
            script(tmp_path, text.replace("=mine", f"={name}"))
