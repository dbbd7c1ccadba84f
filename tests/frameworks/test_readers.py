import json
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conformance.readers import Sample, check_reader
from tests.errors import raises
from tests.frameworks.recipes.samples import SAMPLES as RECIPES

from forescale.catalogue.models import load_model
from forescale.errors import MissingError, ReaderError
from forescale.frameworks.readers import READERS, HuggingFaceReader, read_file, reader_of
from forescale.frameworks.reading import Options
from forescale.frameworks.traces import document_of, traced_model
from forescale.spec.trace import Trace, TracedBlock

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip

HUGGINGFACE = Sample(text=json.dumps(LLAMA), suffix=".json")
MEGATRON = Sample(
    text="--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100 "
    "--micro-batch-size 1 --lr 1e-4",
    suffix=".sh",
    with_key=lambda text, key: f"{text} --{key.replace('_', '-')} 3",
    keys=frozenset(
        f"--{key}"
        for key in (
            "num-layers", "hidden-size", "num-attention-heads", "seq-length", "vocab-size",
            "micro-batch-size",
            "lr",
        )
    ),
    environment={"VOCAB": "7"},
)  # fmt: skip
PRIMUS = Sample(
    text="""
exp_name: ${PRIMUS_EXP_NAME:toy}
modules:
  pre_trainer:
    framework: megatron
    overrides:
      num_layers: ${PRIMUS_LAYERS:4}
      hidden_size: 64
      num_attention_heads: 4
      vocab_size: 100
      seq_length: 16
      micro_batch_size: 1
      lr: 1.0e-4
""",
    suffix=".yaml",
    with_key=lambda text, key: f"{text}      {key}: 3\n",
    keys=frozenset(
        {
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            "vocab_size",
            "seq_length",
            "micro_batch_size",
            "lr",
        }
    ),
    options=Options(num_devices=2),
    environment={"PRIMUS_LAYERS": "8", "PRIMUS_EXP_NAME": "other"},
)
DEEPSPEED = Sample(
    text=json.dumps(
        {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "overlap_comm": True},
        }
    ),
    suffix=".json",
    with_key=lambda text, key: text[:-1] + f', "{key}": 3}}',
    keys=frozenset(
        {
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "gradient_clipping",
            "bf16.enabled",
            "zero_optimization.stage",
            "zero_optimization.overlap_comm",
        }
    ),
    options=Options(num_devices=8),
)
NANOTRON = Sample(
    text="""
general: {project: toy}
parallelism: {dp: 2, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER}
model:
  model_config: {is_llama_config: true, hidden_size: 64, intermediate_size: 128, num_attention_heads: 4, vocab_size: 100, num_hidden_layers: 4}
  init_method: {std: 0.02}
tokens: {sequence_length: 16, train_steps: 10, micro_batch_size: 1, batch_accumulation_per_replica: 2}
""",
    suffix=".yaml",
    with_key=lambda text, key: f"{text}{key}: 3\n",
    keys=frozenset(
        {
            "general.project",
            "parallelism.dp",
            "parallelism.tp_mode",
            "model.model_config.hidden_size",
            "model.init_method.std",
            "tokens.sequence_length",
            "tokens.batch_accumulation_per_replica",
        }
    ),
)
TORCHTITAN = Sample(
    text="""from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debugmodel"),
        training=TrainingConfig(local_batch_size=2, seq_len=128, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
""",
    suffix=".py",
    with_key=lambda text, key: text.replace("steps=10", f"steps=10, {key}=3"),
    keys=frozenset({"model.name", "model.flavor", "training.seq_len", "training.steps"}),
    options=Options(num_devices=4),
)
MAXTEXT = Sample(
    text="""
base_config: base.yml
run_name: toy
base_emb_dim: 64
base_num_decoder_layers: 4
ici_tensor_parallelism: 2
ici_fsdp_parallelism: -1
per_device_batch_size: 1.0
remat_policy: minimal
""",
    suffix=".yml",
    with_key=lambda text, key: f"{text}{key}: 3\n",
    keys=frozenset(
        {
            "run_name",
            "base_emb_dim",
            "base_num_decoder_layers",
            "ici_tensor_parallelism",
            "ici_fsdp_parallelism",
            "per_device_batch_size",
            "remat_policy",
        }
    ),
    options=Options(num_devices=8),
    environment={"M_BASE_EMB_DIM": "128"},
)
AXOLOTL = Sample(
    text="""base_model: org/model
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
optimizer: paged_adamw_8bit
gradient_checkpointing: true
wandb_project: x
""",
    suffix=".yaml",
    with_key=lambda text, key: f"{text}{key}: 3\n",
    keys=frozenset(
        {"base_model", "sequence_len", "sample_packing", "micro_batch_size", "optimizer", "wandb_project"}
    ),
    options=Options(num_devices=4),
)
LLAMAFACTORY = Sample(
    text="""model_name_or_path: org/model
stage: sft
finetuning_type: full
cutoff_len: 2048
template: llama3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
deepspeed: configs/ds_z3_config.json
""",
    suffix=".yaml",
    with_key=lambda text, key: f"{text}{key}: 3\n",
    keys=frozenset({"model_name_or_path", "finetuning_type", "cutoff_len", "template", "bf16", "deepspeed"}),
    options=Options(num_devices=8),
)
LAUNCH = Sample(
    text="NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft --model org/model --tuner_type lora --torch_dtype bfloat16 "
    "--max_length 2048 --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 16 / 2) --deepspeed zero2",
    suffix=".sh",
    with_key=lambda text, key: f"{text} --{key} 3",
    environment={"NPROC_PER_NODE": "7"},
)
TRAINER = Sample(
    text=json.dumps(
        {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "gradient_checkpointing": True,
            "learning_rate": 1e-4,
            "fsdp": "full_shard auto_wrap",
            "bf16": True,
        }
    ),
    suffix=".json",
    with_key=lambda text, key: text[:-1] + f', "{key}": 3}}',
    keys=frozenset(
        {"per_device_train_batch_size", "gradient_checkpointing", "learning_rate", "fsdp", "bf16"}
    ),
    options=Options(num_devices=8),
)
ACCELERATE = Sample(
    text="""compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
mixed_precision: bf16
num_machines: 1
num_processes: 8
""",
    suffix=".yaml",
    with_key=lambda text, key: f"{text}{key}: 3\n",
    keys=frozenset({"fsdp_version", "fsdp_reshard_after_forward", "mixed_precision", "num_processes"}),
)
BRIDGE = Sample(
    text="""import megatron.bridge

def recipe(cfg):
    cfg.model = GPTModelProvider(num_layers=4, hidden_size=256, num_attention_heads=4)
    cfg.model.vocab_size = 1000
    cfg.model.tensor_model_parallel_size = 2
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 8
    cfg.dataset.seq_length = 512
""",
    suffix=".py",
    with_key=lambda text, key: f"{text}    cfg.model.{key} = 1\n",
    options=Options(num_devices=8),
)
PEFT = Sample(
    text=json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}),
    suffix=".json",
    with_key=lambda text, key: json.dumps({**json.loads(text), key: 1}),
    keys=frozenset({"peft_type", "r", "lora_alpha", "target_modules"}),
)
DESCRIBED = Sample(
    text="n_layer: 2\nd_model: 64\nn_head: 4\nvocab_size: 512\nblock_size: 128\n",
    suffix=".yaml",
    with_key=lambda text, key: f"{text}{key}: 1\n",
    keys=frozenset({"n_layer", "d_model", "n_head", "vocab_size", "block_size"}),
)
SCRIPT = Sample(
    text="""from trl import SFTConfig, SFTTrainer
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("org/model", dtype="bfloat16")
args = SFTConfig(
    "out",
    per_device_train_batch_size=2,
    gradient_checkpointing=True,
    max_length=512,
    bf16=True,
    learning_rate=1e-4,
)
SFTTrainer(model, args=args).train()
""",
    suffix=".py",
    with_key=lambda text, key: text.replace("bf16=True", f"bf16=True, {key}=3"),
    keys=frozenset(
        {
            "model_name_or_path",
            "dtype",
            "gradient_checkpointing",
            "per_device_train_batch_size",
            "max_length",
            "bf16",
            "learning_rate",
        }
    ),
    options=Options(num_devices=4),
)
OLMO_CORE = Sample(
    text="""from olmo_core.nn.transformer import TransformerConfig

SEQUENCE = 512

def build_model_config(common):
    return TransformerConfig.olmo2_190M(vocab_size=common.tokenizer.padded_vocab_size())

def build_train_module_config(common):
    return TransformerTrainModuleConfig(
        rank_microbatch_size=2 * common.max_sequence_length,
        max_sequence_length=common.max_sequence_length,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp),
        ac_config=TransformerActivationCheckpointingConfig(TransformerActivationCheckpointingMode.full),
    )

main(config_builder=partial(build_config, global_batch_size=2**5 * SEQUENCE, max_sequence_length=SEQUENCE))
""",
    suffix=".py",
    options=Options(num_devices=4),
)
TRACE = Sample(
    text=json.dumps(
        document_of(
            traced_model(
                [
                    Trace(
                        parameters="bf16",
                        layers=("Block", "Block"),
                        blocks={"Block": TracedBlock(name="Block", operators=())},
                        embedding=TracedBlock(name="embedding", operators=()),
                        head=TracedBlock(name="head", operators=()),
                    )
                ],
                name="own",
                hidden_size=64,
            )
        )
    ),
    suffix=".json",
)
SAMPLES = {
    "script": [SCRIPT],
    "olmo-core": [OLMO_CORE],
    "trace": [TRACE],
    "bridge": [BRIDGE],
    "accelerate": [ACCELERATE],
    "trainer": [TRAINER],
    "axolotl": [AXOLOTL],
    "llamafactory": [LLAMAFACTORY],
    "launch": [LAUNCH],
    "deepspeed": [DEEPSPEED],
    "described": [DESCRIBED],
    "huggingface": [HUGGINGFACE],
    "maxtext": [MAXTEXT],
    "megatron": [MEGATRON],
    "nanotron": [NANOTRON],
    "peft": [PEFT],
    "primus": [PRIMUS],
    "torchtitan": [TORCHTITAN],
}


def samples_of(name):
    """Samples of a reader: those above, those of recipes, or `SAMPLES` of tests/frameworks/NAME/test_reader.py."""
    return (
        SAMPLES.get(name)
        or RECIPES.get(name)
        or import_module(f"tests.frameworks.{name}.test_reader").SAMPLES
    )


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_keeps_to_the_rules(reader, tmp_path):
    others = [other for other in READERS if other is not reader]
    check_reader(reader, samples_of(reader.name), tmp_path, others=others)


def test_the_check_finds_a_reader_that_drops_keys(tmp_path):
    class Dropping(type(READERS[1])):
        def read(self, path, options):
            from dataclasses import replace

            return replace(super().read(path, options), ignored=())

    with pytest.raises(AssertionError, match=r"dropped in silence: \['--lr'\]"):
        check_reader(Dropping(), [MEGATRON], tmp_path)


def test_the_check_finds_a_reader_of_the_environment(tmp_path, monkeypatch):
    class Leaking(type(READERS[2])):
        def read(self, path, options):
            import os
            from dataclasses import replace

            seen = {name: value for name, value in os.environ.items() if name.startswith("PRIMUS_")}
            return super().read(path, replace(options, variables=seen))

    monkeypatch.delenv("PRIMUS_LAYERS", raising=False)
    with pytest.raises(AssertionError, match="the environment must not matter"):
        check_reader(Leaking(), [PRIMUS], tmp_path)


@pytest.mark.parametrize("name", [reader.name for reader in READERS])
def test_a_file_finds_its_reader(name, tmp_path):
    sample = samples_of(name)[0]
    path = tmp_path / f"file{sample.suffix}"
    path.write_text(sample.text)
    assert read_file(path, sample.options).format == name


def test_a_folder_is_a_hugging_face_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_file(tmp_path).model.hidden_size == 64


def test_an_unknown_format_lists_the_known_ones():
    with raises(ReaderError, "unknown_format"):
        reader_of("hello", "notes.txt")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model:\n  _component_: torchtune.models.qwen3.qwen3_8b\ngrpo_samples: 8\n", "torchtune"),
        ("python3 train.py --rollout-num-gpus 8 --num-layers 4 --hidden-size 64\n", "slime"),
    ],
)
def test_reinforcement_learning_is_out_of_scope(text, name):
    with raises(ReaderError, "not_expressed") as refused:
        reader_of(text, "run.yaml")
    assert name in refused.value.key


def test_a_toml_file_of_torchtitan_names_the_releases_that_have_it_and_what_is_read():
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
    with raises(ReaderError, "removed flavor (line 3)") as refused:
        reader_of(text, "train.toml")
    assert refused.value.path == "train.toml, line 3"
    for part in ("torchtitan 0.2 and earlier", "torchtitan 0.3", "--framework torchtitan@0.2"):
        assert part in refused.value.fix


TITAN_8B = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""


def test_a_toml_file_of_torchtitan_becomes_the_options_that_ask_the_same():
    known = Options(num_devices=16, model_of=load_model)
    with pytest.raises(ReaderError) as refused:
        reader_of(TITAN_8B, "train.toml", known)
    model, *options = refused.value.words
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    assert model == "llama-3.1-8b"
    assert pairs == {
        "--framework": "torchtitan@0.2-eager",
        "--tp": "2",
        "--zero": "3",
        "--micro-batch-size": "2",
        "--recompute": "full",
        "--seq-len": "4096",
        "--global-batch-size": "16",
        **{name: value for name, value in pairs.items() if name == "--tokens"},
    }
    with pytest.raises(ReaderError) as refused:  # of a node, where nothing says how many devices there are
        reader_of(TITAN_8B, "train.toml", replace(known, num_devices=None))
    assert refused.value.words[1:3] == ("--devices", "8")
    with pytest.raises(ReaderError) as refused:  # a model that has no name in the catalogue
        reader_of(TITAN_8B.replace("8B", "debugmodel"), "train.toml", known)
    assert refused.value.words == ()


def test_a_script_that_starts_torchtitan_with_a_toml_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text('F=${F:-"./runs/8b.toml"}\ntorchrun --nproc_per_node 8 ./train.py --job.config_file $F\n')
    with raises(ReaderError, "removed --job.config_file ./runs/8b.toml") as refused:
        read_file(path)
    assert "--framework torchtitan@0.2" in refused.value.fix


def test_a_script_that_starts_nanotron_is_read_by_its_file(tmp_path):
    tiny = Path(__file__).parents[1] / "data" / "nanotron" / "config_tiny_llama.yaml"
    (tmp_path / "tiny.yaml").write_text(tiny.read_text())
    count = read_file(tiny).num_devices
    for name, flags in (("a.sh", "--config-file runs/tiny.yaml"), ("b.sh", "--config-file=/x/tiny.yaml")):
        path = tmp_path / name
        path.write_text(f"torchrun --nproc_per_node={count} run_train.py {flags}\n")
        parsed = read_file(path)
        assert (parsed.format, parsed.framework, parsed.num_devices) == ("launch", "nanotron", count)
        assert parsed.model == read_file(tmp_path / "tiny.yaml").model
    path.write_text(f"torchrun --nproc_per_node={count * 2} run_train.py --config-file tiny.yaml\n")
    with raises(ReaderError, "differs"):
        read_file(path)
    assert read_file(path, Options(num_devices=count * 2)).num_devices == count * 2


def test_flags_of_a_script_that_an_argument_names(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text('source $1\nCMD="deepspeed --num_gpus 8 pretrain_own.py ${flags}"\neval $CMD\n')
    (tmp_path / "tiny.sh").write_text(f'flags="{MEGATRON.text}"\n')
    with raises(MissingError, "missing --args", fix="--args flags.sh"):
        read_file(path)
    parsed = read_file(path, Options(arguments=("tiny.sh",)))
    assert (parsed.format, parsed.num_devices, parsed.model.num_layers) == ("megatron", 8, 4)
    path.write_text("source $1\ntorchrun --nproc-per-node 8 train.py --model_name_or_path x --bf16\n")
    assert reader_of(path.read_text(), path).name == "launch"


def test_a_hugging_face_model_has_no_layout(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "bos_token_id": 1}))
    reading = HuggingFaceReader().read(path, Options())
    assert (reading.strategy, reading.workload) == (None, None)
    assert "bos_token_id" in reading.ignored


INNER = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
    "--seq-length 16 --vocab-size 100 --micro-batch-size $1"
)


def test_a_script_that_only_starts_another_is_read_as_that_one(tmp_path):
    (tmp_path / "inner.sh").write_text(INNER)
    (tmp_path / "run.sh").write_text("set -e\nbash scripts/inner.sh 2\n")
    parsed = read_file(tmp_path / "run.sh")
    assert (parsed.format, parsed.strategy.micro_batch_size, parsed.num_devices) == ("megatron", 2, 8)


def test_a_script_that_starts_one_which_is_not_there_names_it(tmp_path):
    (tmp_path / "run.sh").write_text("set -e\nbash inner.sh 2\n")
    with raises(ReaderError, "not_found script inner.sh"):
        read_file(tmp_path / "run.sh")
