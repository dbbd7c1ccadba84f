"""Loops of people's own take their settings from files that they execute, from hydra, and from tables of DeepSpeed."""

import pytest

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

CONFIGURATOR = """import sys
for arg in sys.argv[1:]:
    if '=' not in arg:
        exec(open(arg).read())
    else:
        key, val = arg.split('=')
        globals()[key[2:]] = val
"""
EXECUTES = """import os
import torch
gradient_accumulation_steps = 5 * 8
batch_size = 12
block_size = 1024
exec(open('configurator.py').read())
if int(os.environ.get('RANK', -1)) != -1:
    gradient_accumulation_steps //= int(os.environ['WORLD_SIZE'])
at = torch.randint(len(data) - block_size, (batch_size,))
context = torch.amp.autocast(device_type='cuda', dtype=torch.bfloat16)
x = torch.stack([data[i : i + block_size] for i in at])
model = GPT()
for _ in range(gradient_accumulation_steps):
    logits, loss = model(x.to("cuda"), x)
    loss.backward()
optimizer.step()
"""


@pytest.fixture
def read(tmp_path):
    """Read the first of some files, which it writes."""

    def call(files, devices=None):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        options = Options(num_devices=devices, model_of=load_model, strict=False)
        return read_file(tmp_path / next(iter(files)), options)

    return call


@pytest.mark.parametrize(
    ("words", "micro", "length", "batch"),
    [
        ("config/small.py --block_size=768", 8, 768, 384),
        ("config/small.py", 8, 512, 384),
        ("--batch_size=3", 3, 1024, 120),
    ],
)
def test_a_program_executes_files_that_set_its_names(read, words, micro, length, batch):
    small = "batch_size = 8\nblock_size = 512\ngradient_accumulation_steps = 6 * 8\n"
    files = {
        "run.sh": f"torchrun --nproc_per_node=8 train.py {words}\n",
        "train.py": EXECUTES,
        "configurator.py": CONFIGURATOR,
        "config/small.py": small,
    }
    parsed = read(files)
    assert parsed.num_devices == 8
    assert parsed.layout_fields["micro_batch_size"] == micro
    assert parsed.workload_fields["seq_len"] == length
    assert parsed.workload_fields["global_batch_size"] == batch
    assert not any("batch_size" in text for text in parsed.warnings)


LIGHTNING = """import hydra
import pytorch_lightning as pl
import torch

@hydra.main(config_path="conf", config_name="train")
def main(cfg):
    model = hydra.utils.instantiate(cfg.model)
    data = hydra.utils.instantiate(cfg.data)
    pl.Trainer(**cfg.trainer).fit(model, data)

main()
"""
PARTS = """import pytorch_lightning as pl
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

class Net(pl.LightningModule):
    def __init__(self, name):
        self.model = AutoModelForCausalLM.from_pretrained(name)

class Data(pl.LightningDataModule):
    def __init__(self, name, size, limit):
        self.size, self.limit = size, limit
        self.tokenizer = AutoTokenizer.from_pretrained(name)
    def prepare_data(self):
        self.rows = rows.map(self.encode)
    def encode(self, row):
        return self.tokenizer(row["text"], max_length=self.limit, truncation=True)
    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=self.size)
"""


def test_hydra_makes_objects_of_classes_of_the_program(read):
    files = {
        "train.py": LIGHTNING,
        "parts.py": PARTS,
        "conf/train.yaml": "defaults:\n- model: net\n- data: rows\n- callbacks: none\ntrainer: {devices: 2, precision: 16}\n",
        "conf/model/net.yaml": "_target_: parts.Net\nname: gpt2\n",
        "conf/data/rows.yaml": "_target_: parts.Data\nname: ${model.name}\nsize: 5\nlimit: 288\n",
        "conf/callbacks/none.yaml": "- _target_: parts.Stop\n",
    }
    parsed = read(files)
    assert parsed.model.name == "gpt2"
    assert (parsed.num_devices, parsed.layout_fields["micro_batch_size"]) == (2, 5)
    assert parsed.workload_fields["seq_len"] == 288
    assert parsed.workload_fields["precision"]["compute"] == "fp16"


TABLE = """import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("gpt2"))
table = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "steps": n}
engine, *_ = deepspeed.initialize(model=model, config=table)
engine.backward(loss)
engine.step()
"""


def test_a_table_of_deepspeed_counts_where_a_program_hands_it_over(read):
    parsed = read({"run.sh": "deepspeed --num_gpus 4 train.py --seq_len 512\n", "train.py": TABLE})
    assert parsed.model.name == "gpt2"
    assert (parsed.num_devices, parsed.layout_fields["zero"]) == (4, 2)
    assert parsed.layout_fields["micro_batch_size"] == 4
    assert parsed.missing == ()


def test_a_loop_that_loads_no_weights_keeps_them_in_fp32(read):
    text = f"""{EXECUTES}
if init == "gpt2":
    model = GPT.from_pretrained(init)
""".replace("import torch\n", 'import torch\ninit = "scratch"\n')
    files = {"train.py": text.replace("(len(data)", "(0, len(data)"), "configurator.py": CONFIGURATOR}
    parsed = read({"run.sh": "torchrun --nproc_per_node=8 train.py\n", **files})
    types = parsed.workload_fields["precision"]
    assert (types["compute"], types["parameters"]) == ("bf16", "fp32")
    assert parsed.layout_fields["micro_batch_size"] == 12


def test_options_of_openrlhf_count_for_programs_that_have_them(read):
    text = """read -r -d '' training_commands <<EOF
own.cli.train_sft --max_len 2048 --train_batch_size 64 --micro_train_batch_size 4 \\
 --pretrain Qwen/Qwen2.5-7B --zero_stage 2 --bf16 --gradient_checkpointing
EOF
torchrun --nproc_per_node 4 -m ${training_commands}
"""
    parsed = read({"run.sh": text})
    assert (parsed.num_devices, parsed.layout_fields["zero"]) == (4, 2)
    assert parsed.layout_fields["micro_batch_size"] == 4
    assert parsed.workload_fields["global_batch_size"] == 64
    assert parsed.workload_fields["seq_len"] == 2048


DEALT = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", device_map="auto", torch_dtype="float16")
args = TrainingArguments("out", per_device_train_batch_size=2)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(("gpus", "devices"), [(1, 1), (4, None)])
def test_one_device_of_slurm_is_the_one_that_layers_are_dealt_to(read, gpus, devices):
    job = f"#!/bin/bash\n#SBATCH --gres=gpu:{gpus}\ncd /home/me/own/src\npython tune.py\n"
    parsed = read({"scripts/run.sh": job, "src/tune.py": DEALT})
    assert parsed.num_devices == devices
    types = parsed.workload_fields["precision"]
    assert (types["parameters"], types["moments"]) == ("fp16", "fp16")


def test_weights_in_fp16_do_not_train_with_scaled_gradients(read):
    parsed = read({"train.py": DEALT.replace("batch_size=2", "batch_size=2, fp16=True")})
    assert parsed.workload_fields["precision"]["parameters"] == "fp32"
    assert any(text.startswith("dtype") for text in parsed.warnings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "torchrun train.py --model_name_or_path m --do_train false --do_predict true\n"),
        (
            "chat.yaml",
            "model_name_or_path: m\nadapter_name_or_path: a\ntemplate: qwen\nfinetuning_type: lora\n",
        ),
    ],
)
def test_what_trains_nothing_is_refused(read, name, text):
    with pytest.raises(ReaderError):
        read({name: text}, devices=1)


def test_tables_of_a_program_are_no_texts_of_a_trainer(read):
    text = "model_name_or_path: Qwen/Qwen2.5-7B\noptim: {lr: 1.0e-5}\nper_device_train_batch_size: 3\nbf16: true\n"
    parsed = read({"run.sh": "torchrun --nproc_per_node 2 mine.py --config own.yaml\n", "own.yaml": text})
    assert parsed.layout_fields["micro_batch_size"] == 3
    assert parsed.workload_fields["optimizer"] == "adamw"
    assert "optim" in parsed.unknown


@pytest.mark.parametrize("place", ['{"": Accelerator().process_index}', "torch.cuda.current_device()"])
def test_one_process_that_a_command_starts_has_one_device(read, place):
    program = f"""import argparse, torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", device_map={place})
model = FSDP(model)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=args.size)).train()
"""
    parsed = read({"run.sh": "python train.py --size 3 --max_length 512\n", "train.py": program})
    assert (parsed.num_devices, parsed.layout_fields["micro_batch_size"]) == (1, 3)
    assert not [fact for fact in parsed.missing if "sharded" in fact.what]


def test_a_program_ends_with_what_its_main_function_returns(read):
    program = """import json
from transformers import Trainer, TrainingArguments
USUAL = {"size": 3, "length": 640}

def main(words=None):
    settings = json.loads(json.dumps(USUAL))
    args = TrainingArguments("out", per_device_train_batch_size=settings["size"], max_length=settings["length"], bf16=True)
    Trainer(model="Qwen/Qwen3-8B", args=args).train()
    return 0

if __name__ == "__main__":
    raise SystemExit(main())
"""
    parsed = read({"train.py": program}, devices=1)
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (3, 640)


def test_a_loop_in_a_package_reads_the_configuration_that_its_command_names(read):
    loop = """import torch, yaml
from accelerate import Accelerator
from torch.utils.data import DataLoader

def train(path):
    with open(path) as file:
        settings = yaml.safe_load(file)
    state = Accelerator(gradient_accumulation_steps=settings["steps"])
    model = Net(settings)
    model = model.to(dtype=torch.bfloat16)
    for batch in DataLoader(rows, batch_size=settings["rows"]):
        state.backward(model(batch).loss)
"""
    program = """import argparse
from own.loop import train
parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
train(parser.parse_args().config)
"""
    files = {
        "run.sh": "accelerate launch --num_processes 2 train.py --config a.yaml\n",
        "train.py": program,
        "src/own/loop.py": loop,
        "a.yaml": "steps: 3\nrows: 5\nseq_length: 128\n",
    }
    parsed = read(files)
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]) == (
        5,
        2 * 3 * 5,
    )
    assert parsed.workload_fields["precision"]["parameters"] == "bf16"
