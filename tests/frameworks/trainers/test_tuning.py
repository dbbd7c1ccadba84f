"""What is trained: adapters, whole modules beside them, and what of a model with towers is frozen."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 512\nmicro_batch_size: 1\nadapter: {}\nlora_r: 8\n"
)
FACTORY = """model_name_or_path: {}
stage: sft
finetuning_type: lora
cutoff_len: 1024
per_device_train_batch_size: 1
bf16: true
"""


@pytest.fixture
def read(tmp_path):
    def call(text, name="train.yaml", **options):
        (tmp_path / name).write_text(text)
        explicit = {"num_devices": 4, "model_of": load_model, "strict": False, **options}
        return read_file(tmp_path / name, Options(**explicit))

    return call


@pytest.mark.parametrize(("adapter", "frozen"), [("qlora", "nf4_double"), ("lora", None)])
def test_axolotl_quantises_for_qlora_alone(read, adapter, frozen):
    parsed = read(AXOLOTL.format(adapter) + "load_in_4bit: true\nlora_target_linear: true\n")
    assert parsed.workload_fields["precision"].get("frozen") == frozen
    assert any("quantises for qlora alone" in text for text in parsed.warnings) == (adapter == "lora")


@pytest.mark.parametrize(("pure", "states"), [("", (None, None)), ("pure_bf16: true\n", ("none", "bf16"))])
def test_whole_modules_next_to_adapters_have_the_type_of_the_weights(read, pure, states):
    text = FACTORY.format("Qwen/Qwen3-8B") + "additional_target: embed_tokens,lm_head\n" + pure
    parsed = read(text)
    types = parsed.workload_fields["precision"]
    assert parsed.workload_fields["trainable"]["whole"] == ("embedding", "head")
    assert (types.get("master"), types.get("moments")) == states
    copied = read(AXOLOTL.format("lora") + "lora_modules_to_save: [embed_tokens]\n").workload_fields
    assert copied["precision"]["master"] == "none"


@pytest.mark.parametrize(
    ("key", "said"),
    [("freeze_language_model: true", "which it freezes"), ("freeze_vision_tower: false", "tower")],
)
def test_adapters_outside_the_language_model_are_warned_of(read, key, said):
    parsed = read(FACTORY.format("Qwen/Qwen3-VL-8B-Instruct/") + key + "\n")
    assert parsed.model.name == "qwen3-vl-8b"
    assert [text for text in parsed.warnings if said in text]


def test_a_private_file_with_a_rank_alone_leaves_modules_and_bits_open(read):
    text = '{"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 1, "lora_rank": 64, "output_dir": "o"}'
    parsed = read(text, "sft-qlora.json")
    assert ["--lora-targets" in text or "--frozen-dtype" in text for text in parsed.warnings] == [True, True]


def test_experts_of_axolotl_are_ranks_of_their_own(read):
    text = AXOLOTL.format("").replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B") + "fsdp_version: 2\n"
    parsed = read(text + "expert_parallel_size: 2\ndp_shard_size: 4\n", num_devices=None)
    layout = parsed.layout_fields
    assert (parsed.num_devices, layout["ep"], layout["dp_shard"]) == (8, 2, 8)
    assert parsed.workload_fields["global_batch_size"] == 8
    assert [text for text in parsed.warnings if "not over the 4 of dp_shard_size" in text]


def test_axolotl_rings_under_deepspeed_as_well(read):
    text = AXOLOTL.format("") + "context_parallel_size: 2\ndeepspeed: deepspeed_configs/zero3_bf16.json\n"
    layout = read(text).layout_fields
    assert (layout["cp"], layout["cp_kind"], layout["zero"]) == (2, "ring", 3)


@pytest.mark.parametrize(
    ("command", "flags"), [("swift", "--per_device_train_batch_size 1"), ("megatron", "--micro_batch_size 1")]
)
def test_sequences_of_swift_are_packed_to_a_length_of_their_own(read, command, flags):
    text = (
        f"{command} sft --model Qwen/Qwen3-8B {flags} --max_length 512 --packing true --packing_length 4096"
    )
    more = " --tensor_model_parallel_size 2 --global_batch_size 8" if command == "megatron" else ""
    assert read(f"{text}{more}\n", "run.sh").workload_fields["seq_len"] == 4096
    assert (
        read(f"{text}{more}\n".replace(" --packing_length 4096", ""), "run.sh").workload_fields["seq_len"]
        == 512
    )


def test_options_of_a_fork_are_warned_of(read):
    parsed = read(FACTORY.format("Qwen/Qwen3-8B") + "use_own_optimizer: true\nuse_rslora: true\n")
    assert [text for text in parsed.warnings if "use_" in text] == [
        "use_own_optimizer: True is not modelled (an option that is not known, such as a fork's optimizer)"
    ]


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("microsoft/Phi-3-mini-4k-instruct", ["o_proj", "down_proj"]),
        ("Qwen/Qwen3-8B", ["q_proj", "o_proj", "down_proj"]),
    ],
)
def test_modules_that_a_model_has_fused_are_left_out(read, name, targets):
    parsed = read(FACTORY.format(name) + "lora_target: q_proj,o_proj,down_proj\n")
    assert list(parsed.workload_fields["trainable"]["lora_targets"]) == targets
    assert any("PEFT finds no such modules" in text for text in parsed.warnings) == (len(targets) == 2)


@pytest.mark.parametrize(
    ("target", "warned"),
    [("self.attn.v_proj", True), ("self_attn.v_proj", False), ("v_proj", False), ("mlp.down_proj", False)],
)
def test_targets_below_modules_that_no_model_has_are_warned_of(tmp_path, target, warned):
    file = tmp_path / "args.yaml"
    file.write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\noutput_dir: out\nmax_length: 64\n"
        f"use_peft: true\nlora_r: 8\nlora_target_modules: [q_proj, {target}]\n"
    )
    parsed = read_file(file, Options(num_devices=1, model_of=load_model, strict=False))
    assert any(text.startswith(f"{target}: no module") for text in parsed.warnings) is warned


SHARDED = """base_model: {}
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
lora_dropout: 0.1
sequence_len: 4096
sample_packing: true
micro_batch_size: {}
gradient_accumulation_steps: 1
gradient_checkpointing: true
bf16: true
flash_attention: true
fsdp: [full_shard, auto_wrap]
fsdp_config:
  fsdp_transformer_layer_cls_to_wrap: DecoderLayer
"""


@pytest.mark.parametrize(
    ("more", "keeps"),
    [
        ("", True),
        ("fsdp_version: 2\n", None),
        ("gradient_checkpointing_kwargs:\n  use_reentrant: false\n", None),
    ],
)
def test_fsdp_keeps_the_inputs_of_frozen_layers_under_reentrant_checkpoints(read, more, keeps):
    parsed = read(SHARDED.format("mistralai/Mistral-7B-v0.1", 2) + more)
    assert parsed.layout_fields.get("kernels", {}).get("keeps_layer_inputs") == keeps
