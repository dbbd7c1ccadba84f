"""The length of a sequence is what a program tokenises its data to."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

HEAD = """from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from torch.utils.data import Dataset
from functools import partial
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-7B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
"""
MAPPED = """
def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=768)
rows = rows.map(tokenize, batched=True)
"""
HANDED = """
def tokenize(length, batch):
    return tokenizer(batch["text"], truncation=True, max_length=length)
rows = rows.map(partial(tokenize, 640))
"""
WORDS = """
def tokenize(batch, limit):
    return tokenizer.encode_plus(batch["text"], max_length=limit)
rows = rows.map(tokenize, fn_kwargs={"limit": 896})
"""
NESTED = """
def encode(text):
    return tokenizer(text, max_length=320)
rows = rows.map(lambda row: encode(row["text"]))
"""
GROUPED = """
block_size = 1280
def group(batch):
    total = len(batch["input_ids"]) // block_size * block_size
    return [batch[at : at + block_size] for at in range(0, total, block_size)]
rows = rows.map(group, batched=True)
"""
ITEMS = """
class Rows(Dataset):
    def __init__(self, length):
        self.length = length
    def __getitem__(self, at):
        return tokenizer(self.rows[at], max_length=self.length, padding="max_length")
rows = Rows(448)
"""
BLOCKS = "rows = TextDataset(tokenizer=tokenizer, file_path='a.txt', block_size=160)\n"
SLICED = """
def encode(row):
    MAX_LENGTH = 736
    ids = tokenizer(row["text"])["input_ids"]
    return {"input_ids": ids[:MAX_LENGTH]}
rows = rows.map(encode)
"""
TWO = """
def one(batch):
    return tokenizer(batch["a"], max_length=64)
def two(batch):
    return tokenizer(batch["b"], max_length=128)
rows = rows.map(one).map(two)
"""


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (MAPPED, 768),
        (HANDED, 640),
        (WORDS, 896),
        (NESTED, 320),
        (GROUPED, 1280),
        (ITEMS, 448),
        (BLOCKS, 160),
        (SLICED, 736),
        (TWO, None),
    ],
)
def test_the_length_is_what_data_are_tokenised_to(tmp_path, lines, length):
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}{lines}Trainer(model=model, args=args, train_dataset=rows).train()\n")
    parsed = read_file(path, Options(num_devices=8, model_of=load_model, strict=False))
    assert parsed.workload_fields.get("seq_len") == length


LOOP = """import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
class Rows(Dataset):
    def __getitem__(self, at):
        return tokenizer(self.rows[at], max_length=192)
for batch in DataLoader(Rows(), batch_size=6):
    model(**batch).loss.backward()
"""


def test_a_loop_takes_the_length_of_its_data_set(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    parsed = read_file(path, Options(num_devices=1, model_of=load_model, strict=False))
    assert parsed.workload_fields["seq_len"] == 192
    assert parsed.layout_fields["micro_batch_size"] == 6
