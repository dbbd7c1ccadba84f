import pytest
from msgspec.structs import replace
from tests.errors import raises
from tests.frameworks.recipes.samples import TEXTS, options_of

from forescale.catalogue.models import load_model
from forescale.errors import MissingError, ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options


@pytest.fixture
def read(tmp_path):
    def _read(name, old="", new="", options=None):
        path = tmp_path / "recipe.yaml"
        path.write_text(TEXTS[name].replace(old, new) if old else TEXTS[name])
        return read_file(path, options or replace(options_of(name), strict=False))

    return _read


@pytest.mark.parametrize(
    ("name", "devices", "degrees", "zero", "micro", "batch", "length", "recompute"),
    [
        ("torchtune", 4, (1, 1, 1, 1), 3, 2, 32, 2048, "full"),
        ("litgpt", 4, (1, 1, 1, 1), 3, 4, 32, 1024, "full"),
        ("llm-foundry", 8, (1, 1, 1, 1), 2, 4, 64, 512, "full"),
        ("olmo", 8, (1, 1, 1, 1), 3, 2, 64, 256, "none"),
        ("automodel", 16, (2, 1, 2, 4), 3, 2, 64, 4096, "full"),
        ("veomni", 8, (1, 2, 1, 1), 3, 1, 16, 4096, "full"),
        ("nemo-rl", 16, (2, 1, 1, 1), 3, 2, 64, 1024, "full"),
        ("verl", 16, (1, 2, 1, 1), 3, 2, 128, 4096, "full"),
        ("gpt-neox", 8, (2, 1, 2, 1), 1, 4, 16, 256, "full"),
        ("flagscale", 8, (2, 1, 1, 1), 0, 2, 16, 256, "none"),
        ("nemo-1", 16, (2, 1, 1, 1), 1, 2, 64, 256, "selective"),
    ],
)
def test_layout_and_batch(read, name, devices, degrees, zero, micro, batch, length, recompute):
    parsed = read(name)
    layout, workload = parsed.strategy, parsed.workload_fields
    assert parsed.format == name
    assert (parsed.num_devices, layout.num_devices) == (devices, devices)
    assert (layout.tp, layout.cp, layout.pp, layout.ep) == degrees
    assert (layout.zero, layout.micro_batch_size, layout.recompute.granularity) == (zero, micro, recompute)
    assert (workload["global_batch_size"], workload["seq_len"]) == (batch, length)
    assert not parsed.warnings
    assert not parsed.missing


@pytest.mark.parametrize(
    ("name", "compute", "parameters", "master"),
    [
        ("torchtune", "bf16", "bf16", "none"),
        ("litgpt", "bf16", None, None),
        ("automodel", "bf16", "bf16", "none"),
        ("gpt-neox", "fp16", "fp16", "fp32"),
        ("nemo-1", "bf16", "bf16", "fp32"),
    ],
)
def test_types(read, name, compute, parameters, master):
    precision = read(name).workload_fields["precision"]
    assert (precision["compute"], precision.get("parameters"), precision.get("master")) == (
        compute, parameters, master,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("torchtune", "llama-3.1-8b"),
        ("litgpt", "llama-3.2-1b"),
        ("automodel", "qwen3-30b-a3b"),
        ("veomni", "qwen3-8b"),
    ],
)
def test_models_by_name(read, name, model):
    assert read(name).model.name == model


@pytest.mark.parametrize("name", ["llm-foundry", "olmo", "gpt-neox", "flagscale", "nemo-1"])
def test_models_by_their_dimensions(read, name):
    model = read(name).model
    assert (model.hidden_size, model.layers[0].attention.num_heads) == (128, 4)


def test_feed_forwards_follow_from_ratios(read):
    assert read("llm-foundry").model.layers[0].ffn.ffn_hidden_size == 512
    olmo = read("olmo").model.layers[0].ffn
    assert (olmo.gated, olmo.ffn_hidden_size) == (True, 512)


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ("", 512),
        ('"mlp_multiple_of": 500,', 1000),
        ('"activation": "swiglu",', 170),
        ('"activation": "swiglu", "intermediate_size": 384, "mlp_multiple_of": 100,', 200),
    ],
)
def test_feed_forwards_of_gpt_neox_are_gated_at_two_thirds(read, more, width):
    ffn = read("gpt-neox", '"train_iters"', f'{more} "train_iters"').model.layers[0].ffn
    assert (ffn.ffn_hidden_size, ffn.gated) == (width, "swiglu" in more)


def test_adapters(read):
    trainable = read("torchtune").workload_fields["trainable"]
    assert trainable["lora_rank"] == 4
    assert trainable["lora_targets"] == ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    peft = "\npeft:\n  dim: 4\n  target_modules: {}\noptimizer:"
    every = read("automodel", "\noptimizer:", peft.format("['*']")).workload_fields["trainable"][
        "lora_targets"
    ]
    some = read("automodel", "\noptimizer:", peft.format("['*.q_proj']")).workload_fields["trainable"][
        "lora_targets"
    ]
    assert ({"q_proj", "down_proj"} <= set(every), some) == (True, ("q_proj",))
    quantised = read("torchtune", ".lora_llama", ".qlora_llama").workload_fields["precision"]
    assert quantised["frozen"] == "nf4_double"


def test_optimizers(read):
    assert read("llm-foundry").workload_fields["optimizer"] == "lion"
    assert read("veomni").workload_fields["optimizer"] == "muon"


@pytest.mark.parametrize(
    ("named", "moments", "warned"),
    [
        ("bitsandbytes.optim.PagedAdamW8bit", "fp8", 1),
        ("bitsandbytes.optim.PagedAdamW", "fp32", 1),
        ("torchao.optim.AdamW8bit", "fp8", 0),
        ("torchao.optim.AdamW4bit", "fp8", 1),
        ("torchao.optim.AdamWFp8", "fp8", 0),
        ("bitsandbytes.optim.AdamW", "fp32", 0),
        ("torch.optim.AdamW", "bf16", 0),
    ],
)
def test_types_of_moments(read, named, moments, warned):
    parsed = read("torchtune", "torch.optim.AdamW", named)
    workload = parsed.workload_fields
    assert (workload["optimizer"], workload["precision"]["moments"]) == ("adamw", moments)
    assert len(parsed.warnings) == warned
    assert parsed.layout_fields.get("offload", {}).get("paged", False) == ("Paged" in named)


def test_what_is_not_modelled_is_a_warning_and_other_keys_are_not(read):
    parsed = read("torchtune", "seed: null", "seed: 1\ncompile: true\nnew_parallel_dim: 2\nnew_word: x")
    assert [("compile" in text, "new_parallel_dim" in text, "new_word" in text) for text in parsed.warnings] == [
        (True, False, False), (False, True, False),
    ]  # fmt: skip
    assert parsed.unknown == ("new_parallel_dim", "new_word")


def test_facts_that_a_recipe_leaves_open(read):
    parsed = read("automodel", options=Options(strict=False))
    assert [fact.part for fact in parsed.missing] == ["model", "devices"]
    assert parsed.missing[0].example == "--model qwen3-30b-a3b"
    assert parsed.missing[1].example == "--devices 8"
    with raises(MissingError, "missing --micro-batch-size, --devices") as refused:
        read("gpt-neox", '"train_micro_batch_size_per_gpu": 4,', "", options=Options(strict=False))
    assert refused.value.fix == "--micro-batch-size 1 --devices 8"


def test_degrees_that_do_not_divide_the_devices_are_refused(read):
    with raises(
        ReaderError, "not_divisible the number of devices", fix="give --devices 12, or other degrees"
    ):
        read("automodel", options=Options(num_devices=10, strict=False))
    with raises(ReaderError, "not_divisible train.global_batch_size"):
        read("litgpt", "global_batch_size: 32", "global_batch_size: 24")


def test_layers_of_another_kind_are_refused(read):
    with raises(ReaderError, "not_expressed mamba_selective_scan_fusion"):
        read("gpt-neox", '"train_iters"', '"mamba_selective_scan_fusion": true, "train_iters"')


def test_one_device_by_the_name_of_a_file(tmp_path):
    path = tmp_path / "8B_lora_single_device.yaml"
    path.write_text(TEXTS["torchtune"])
    parsed = read_file(path, Options(model_of=options_of("torchtune").model_of, strict=False))
    assert (parsed.num_devices, parsed.workload_fields["global_batch_size"]) == (1, 8)


def test_references_to_other_keys(read):
    text = "max_seq_len: ${variables.max_seq_len}\nvariables:\n  max_seq_len: 1024"
    assert read("llm-foundry", "max_seq_len: 512", text).workload_fields["seq_len"] == 1024


def test_functions_of_keys_are_computed(read):
    functions = "ffn_hidden_size: ${multiply:4, ${.hidden_size}}"
    text = TEXTS["nemo-1"]
    line = next(line for line in text.splitlines() if "ffn_hidden_size" in line)
    parsed = read("nemo-1", line.strip(), functions)
    assert parsed.model.layers[0].ffn.ffn_hidden_size == 4 * parsed.model.hidden_size


def test_devices_that_degrees_do_not_divide_are_missing(read):
    options = replace(options_of("nemo-1"), num_devices=None, strict=False)
    parsed = read(
        "nemo-1", "  num_layers: 4", "  num_layers: 16\n  pipeline_model_parallel_size: 16", options
    )
    assert [fact.part for fact in parsed.missing] == ["devices"]


def test_dashes_in_keys_are_underscores(read):
    text = TEXTS["gpt-neox"]
    assert read("gpt-neox").strategy.recompute.granularity == "full"
    dashed = text.replace("checkpoint_activations", "checkpoint-activations")
    assert read("gpt-neox", text, dashed).strategy.recompute.granularity == "full"


NEMO_TUNING = """
trainer: {devices: 8, num_nodes: 2, precision: bf16, max_steps: -1}
model:
  megatron_amp_O2: true
  micro_batch_size: ${peft.model.global_batch_size}
  global_batch_size: 2
  encoder_seq_length: ${model.nowhere}
  peft:
    peft_scheme: lora
    lora_tuning: {adapter_dim: 16, target_modules: [attention]}
"""


def test_a_recipe_without_a_model_asks_for_one_and_trains_its_adapters(read, tmp_path):
    (tmp_path / "tune.yaml").write_text(NEMO_TUNING)
    with raises(MissingError, "missing") as missing:
        read_file(tmp_path / "tune.yaml", Options(strict=False))
    assert [fact.part for fact in missing.value.facts] == ["workload.seq_len", "model"]
    given = Options(strict=False, model=load_model("llama-2-7b"), num_devices=1, over={"seq_len": 512})
    parsed = read_file(tmp_path / "tune.yaml", given)
    assert (parsed.model.name, parsed.strategy.micro_batch_size) == ("llama-2-7b", 2)
    trainable = parsed.workload_fields["trainable"]
    assert (trainable["lora_rank"], trainable["lora_targets"]) == (16, ("qkv_proj", "o_proj"))


def test_a_launcher_of_hydra_names_the_file_that_trains(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "tiny.yaml").write_text(TEXTS["flagscale"])
    launcher = "defaults:\n  - train: tiny\n  - _self_\nexperiment:\n  task:\n    type: train\n  runner:\n    nnodes: 2\n"
    (tmp_path / "run.yaml").write_text(f"{launcher}    nproc_per_node: 4\n")
    parsed = read_file(tmp_path / "run.yaml", Options(strict=False))
    assert (parsed.num_devices, parsed.layout_fields["tp"]) == (8, 2)
    (tmp_path / "train" / "tiny.yaml").unlink()
    with raises(ReaderError, "not_found"):
        read_file(tmp_path / "run.yaml", Options(strict=False))


def test_a_launcher_of_reinforcement_learning_starts_verl(tmp_path):
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "8b.yaml").write_text(TEXTS["verl"])
    (tmp_path / "rl.yaml").write_text(
        "defaults:\n  - rl: 8b\nexperiment:\n  task:\n    type: rl\n    backend: verl\n  runner: {}\n"
    )
    parsed = read_file(tmp_path / "rl.yaml", replace(options_of("verl"), strict=False))
    assert (parsed.format, parsed.framework, parsed.num_devices) == ("flagscale", "transformers@verl", 16)


def test_overrides_of_megatron_bridge_ask_for_the_model_of_their_recipe(tmp_path):
    text = "train:\n  global_batch_size: 64\n  micro_batch_size: 1\ndataset:\n  seq_length: 2048\nmodel:\n"
    degrees = "  expert_model_parallel_size: 4\n  tensor_model_parallel_size: 2\n  sequence_parallel: true\n"
    (tmp_path / "a.yaml").write_text(text + degrees)
    options = Options(num_devices=8, model=load_model("qwen3-30b-a3b"), strict=False)
    parsed = read_file(tmp_path / "a.yaml", options)
    assert (parsed.layout_fields["ep"], parsed.workload_fields["global_batch_size"]) == (4, 64)
    assert (parsed.layout_fields["etp"], parsed.layout_fields["zero"]) == (1, 1)
    assert any("recipe" in text for text in parsed.warnings)
    command = "torchrun --nproc_per_node=8 run_recipe.py --recipe qwen3_8b_sft_config model.tensor_model_parallel_size=2"
    sizes = "train.micro_batch_size=1 train.global_batch_size=8 dataset.seq_length=1024"
    loop = f'for C in 2,4 4,2; do IFS=, read -r TP GBS <<< "$C"; {command} {sizes}; done\n'
    (tmp_path / "run.sh").write_text(loop.replace("size=2 ", "size=$TP ", 1))
    parsed = read_file(tmp_path / "run.sh", Options(model_of=load_model, strict=False))
    assert "it starts 2 trainings; the first is read" in parsed.notes
    assert (parsed.model.name, parsed.layout_fields["tp"], parsed.num_devices) == ("qwen3-8b", 2, 8)


def test_the_batch_of_gpt_neox_counts_its_devices(read):
    batch = '"train_batch_size": 32, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 4,'
    options = Options(strict=False)
    parsed = read("gpt-neox", '"train_micro_batch_size_per_gpu": 4,', batch, options=options)
    assert (parsed.num_devices, parsed.strategy.dp, parsed.missing) == (16, 4, ())
    assert any("16 devices, from train_batch_size" in note for note in parsed.notes)
    with raises(ReaderError, "differs"):
        read(
            "gpt-neox", '"train_micro_batch_size_per_gpu": 4,', batch, options=replace(options, num_devices=8)
        )


@pytest.mark.parametrize(
    ("name", "old", "new", "types"),
    [
        ("olmo", "", "", {"compute": "bf16"}),
        ("olmo", "fsdp:", "fsdp:\n  precision: mixed", {"compute": "bf16", "gradients": "fp32"}),
        (
            "olmo",
            "precision: amp_bf16\nfsdp:\n  sharding_strategy: FULL_SHARD",
            "precision: amp_bf16\ndistributed_strategy: ddp",
            {"compute": "bf16", "gradients": "fp32", "parameters": "fp32", "master": "none"},
        ),
        ("veomni", "", "", {"compute": "bf16", "gradients": "fp32"}),
    ],
)
def test_gradients_have_the_type_that_they_are_reduced_in(read, name, old, new, types):
    assert read(name, old, new).workload_fields["precision"] == types


def test_a_flag_that_is_false_is_none(read):
    parsed = read("flagscale", "  precision:", "  standalone_embedding_stage: false\n  precision:")
    assert not parsed.warnings
    with raises(ReaderError, "not_expressed --standalone-embedding-stage"):
        read("flagscale", "  precision:", "  standalone_embedding_stage: true\n  precision:")


def test_stages_of_their_own_kinds_of_devices_are_refused(read):
    with raises(ReaderError, "not_expressed system.hetero.enable_hetero"):
        read(
            "flagscale",
            "  precision:",
            "  hetero: {enable_hetero: true, hetero_use_cpu_communication: false}\n  precision:",
        )
    assert not read("flagscale", "  precision:", "  hetero: {enable_hetero: false}\n  precision:").warnings


def test_the_example_of_devices_holds_experts_that_are_split_as_the_rest(read):
    experts = "  num_experts: 8\n  expert_model_parallel_size: 8\n  moe_ffn_hidden_size: 64\nmodel:"
    parsed = read("flagscale", "model:", experts, Options(model_of=load_model, strict=False))
    assert [fact.example for fact in parsed.missing] == ["--devices 16"]


def test_buckets_of_gpt_neox_are_those_of_deepspeed(read):
    assert "bucket_elements" not in read("gpt-neox").layout_fields["kernels"]
    parsed = read("gpt-neox", '{"stage": 1}', '{"stage": 1, "reduce_bucket_size": 1260000000}')
    assert parsed.layout_fields["kernels"]["bucket_elements"] == 1.26e9


def test_hybrid_sharding_of_olmo_keeps_parameters(read):
    options = Options(num_devices=16, model_of=load_model, strict=False)
    layout = read("olmo", "FULL_SHARD", "_HYBRID_SHARD_ZERO2", options).strategy
    assert (layout.zero, layout.dp_replicate, layout.dp_shard) == (2, 2, 8)


@pytest.mark.parametrize(("lengths", "length"), [((2048, 512), 512), ((None, 512), 512), ((256, None), 256)])
def test_torchtune_truncates_at_the_shorter_of_two_lengths(read, lengths, length):
    tokenizer, dataset = lengths
    new = (
        f"max_seq_len: {tokenizer or 'null'}\ndataset: {{max_seq_len: {dataset or 'null'}}}\nunused:\n  x: 1"
    )
    old = "max_seq_len: 2048"
    assert old in TEXTS["torchtune"]
    assert read("torchtune", old, new).workload_fields["seq_len"] == length


def test_a_part_of_a_gpt_neox_configuration_asks_for_all_that_lacks(tmp_path):
    path = tmp_path / "train.yml"
    path.write_text(
        '{\n  "train_batch_size": 16,\n  "gradient_accumulation_steps": 2,\n  "zero_optimization": {"stage": 1},\n'
        '  "checkpoint_activations": true,\n  "precision": "bfloat16",\n  "lr_decay_style": "cosine",\n}\n'
    )
    with raises(MissingError, "missing --micro-batch-size, --seq-len, --model, --devices"):
        read_file(path, Options(strict=False))
    options = Options(
        model=load_model("llama-3.1-8b"),
        num_devices=8,
        over={"micro_batch_size": 1, "seq_len": 64},
        strict=False,
    )
    parsed = read_file(path, options)
    assert parsed.format == "gpt-neox"
    assert parsed.strategy.recompute.granularity == "full"


@pytest.mark.parametrize(("hostfile", "devices"), [("null", 4), ("/hosts", None)])
def test_flagscale_counts_the_devices_that_one_node_shows(read, hostfile, devices):
    old = TEXTS["flagscale"]
    new = f"{old}\nexperiment:\n  runner: {{hostfile: {hostfile}}}\n  envs: {{CUDA_VISIBLE_DEVICES: '0,1,2,3'}}\n"
    assert read("flagscale", old, new, Options(strict=False)).num_devices == devices


def test_torchtune_updates_in_backward_without_accumulation(read):
    old = "gradient_accumulation_steps: 4"
    parsed = read("torchtune", old, "gradient_accumulation_steps: 1\noptimizer_in_bwd: true")
    assert parsed.layout_fields["kernels"] == {"updates_in_backward": True}
    assert "kernels" not in read("torchtune").layout_fields
    with raises(ReaderError, "required_with gradient_accumulation_steps"):
        read("torchtune", old, f"{old}\noptimizer_in_bwd: true")


@pytest.mark.parametrize(("more", "routed"), [("", [0, 2]), ('"expert_interval": 1, ', [0, 1, 2, 3])])
def test_every_second_layer_of_gpt_neox_has_experts(read, more, routed):
    model = read("gpt-neox", '"hidden_size"', f'"moe_num_experts": 4, {more}"hidden_size"').model
    assert [at for at, layer in enumerate(model.layers) if hasattr(layer.ffn, "num_experts")] == routed
    assert model.moe.top_k == 1


def test_width_of_flagscale_follows_from_its_factor(read):
    text = "  swiglu: true\n  multiple_of: 64\n  hidden_dim_multiplier: 1.5\n"
    first = next(line for line in TEXTS["flagscale"].splitlines() if "num_layers" in line)
    parsed = read("flagscale", first, f"{text.rstrip()}\n{first}")
    width = int(int(4 * parsed.model.hidden_size * 2 / 3) * 1.5)
    assert parsed.model.layers[0].ffn.ffn_hidden_size == -(-width // 64) * 64


def test_recompute_is_veomnis_default(read):
    old = next(line for line in TEXTS["veomni"].splitlines() if "gradient_checkpointing" in line)
    assert read("veomni", f"{old}\n", "").layout_fields["recompute"]["granularity"] == "full"
