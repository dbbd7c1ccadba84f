"""Loops of people's own take their settings from files that they execute, from hydra, and from tables of DeepSpeed."""

import pytest

from forescale.catalogue.models import load_model
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
for _ in range(gradient_accumulation_steps):
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
