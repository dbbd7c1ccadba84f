"""One optimizer step of a loop of a person's own: its micro-batches, their sequences and tokens, and its optimizer."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

LOOP = """import os
from dataclasses import dataclass
import torch
from torch.utils.data import DataLoader, Dataset

@dataclass
class Settings:
    tokens: int = 2**18
    rows: int = 8
    width: int = 1024

class Rows(Dataset):
    def __init__(self, tokens, width):
        self.tokens, self.width = tokens, width
    def __getitem__(self, at):
        part = self.tokens[at * self.width : at * self.width + self.width + 1]
        return part[:-1], part[1:]

class Shards:
    def __init__(self, rows, width):
        self.rows, self.width, self.at = rows, width, 0
    def take(self):
        part = self.tokens[self.at : self.at + self.rows * self.width + 1]
        self.at += self.rows * self.width
        return part[:-1].view(self.rows, self.width), part[1:].view(self.rows, self.width)

def batches(data, rows):
    while True:
        yield torch.stack([data[at : at + 512] for at in torch.randint(9, (rows,))])

settings = Settings()
ranks = int(os.environ.get("WORLD_SIZE", 1))
turns = settings.tokens // (settings.rows * settings.width * ranks)
net = build()
optimizer = torch.optim.AdamW(net.parameters())
loader = DataLoader(Rows(load(), settings.width), batch_size=settings.rows)
shards = Shards(settings.rows, settings.width)
BODY
"""
STEP = "    optimizer.step()\n"
COUNTED = """for step in range(9000):
    for turn in range(turns):
        x, y = shards.take()
        loss = net(x.to("cuda"), y) / turns
        loss.backward()
    optimizer.step()
"""
ON_REMAINDER = """for turn, (x, y) in enumerate(loader):
    if turn > last:
        break
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = net(x, y)
    scaler.scale(loss).backward()
    if (turn + 1) % 4 == 0 or turn == last:
        scaler.step(optimizer)
"""
SKIPPED = """for turn, (x, y) in enumerate(loader):
    net(x, y).backward()
    if turn % 4 != 0:
        continue
    optimizer.step()
"""
SPLIT = """for x, y in loader:
    for part in x.chunk(4):
        net(part).backward()
    optimizer.step()
"""
DRAWN = """for x in batches(load(), 6):
    net(x).backward()
    optimizer.step()
"""
EITHER = """for step in range(9000):
    for turn in range(turns):
        loss = net(shards.take()[0])
        if scales():
            scaler.scale(loss).backward()
        else:
            loss.backward()
    optimizer.step()
"""
LAST_APART = """for step in range(9000):
    with net.no_sync():
        for turn in range(turns - 1):
            net(shards.take()[0]).backward()
    net(shards.take()[0]).backward()
    optimizer.step()
"""


@pytest.fixture
def read(tmp_path):
    """Read a loop on 4 devices."""

    def call(body, **options):
        (tmp_path / "train.py").write_text(LOOP.replace("BODY", body))
        options = {"num_devices": 4, "model": load_model("gpt2"), **options}
        return read_file(tmp_path / "train.py", Options(strict=False, **options))

    return call


@pytest.mark.parametrize(
    ("body", "micro", "length", "batch"),
    [
        (COUNTED, 8, 1024, 256),
        (ON_REMAINDER, 8, 1024, 8 * 4 * 4),
        (SKIPPED, 8, 1024, 8 * 4 * 4),
        (SPLIT, 2, 1024, 8 * 4),
        (DRAWN, 6, 512, 6 * 4),
        (LAST_APART, 8, 1024, 256),
        (EITHER, 8, 1024, 256),
    ],
)
def test_a_step_has_the_micro_batches_that_run_before_its_optimizer(read, body, micro, length, batch):
    parsed = read(body)
    assert parsed.missing == ()
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (micro, length)
    assert parsed.workload_fields["global_batch_size"] == batch
    assert not parsed.workload_fields.get("varied_lengths")


@pytest.mark.parametrize(
    "body",
    [
        COUNTED.replace("range(turns)", "range(unknown)"),
        ON_REMAINDER.replace("% 4", "% unknown"),
        SPLIT.replace("chunk(4)", "chunk(unknown)"),
    ],
)
def test_micro_batches_that_are_not_known_are_asked_for(read, body):
    assert "the global batch size" in [fact.what for fact in read(body).missing]


def test_a_step_that_ranks_share_is_not_asked_for_before_they_are(read):
    assert [fact.what for fact in read(COUNTED, num_devices=None).missing] == ["the number of devices"]


@pytest.mark.parametrize(
    ("made", "optimizer", "warns"),
    [
        ("torch.optim.SGD(net.parameters())", "sgd", False),
        ("bnb.optim.AdamW8bit(net.parameters())", "adamw", False),
        ("SOAP(net.parameters())", "adamw", True),
    ],
)
def test_the_optimizer_that_ends_a_step_is_read(read, made, optimizer, warns):
    parsed = read(f"optimizer = {made}\n{COUNTED}")
    assert parsed.workload_fields.get("optimizer", "adamw") == optimizer
    assert any("SOAP" in text for text in parsed.warnings) is warns
    moments = parsed.workload_fields["precision"].get("moments")
    assert (moments == "fp8") is ("8bit" in made)


def test_one_process_for_all_devices_is_warned_of(read):
    body = f"net = torch.nn.DataParallel(net)\n{ON_REMAINDER}"
    assert any("DataParallel" in text for text in read(body).warnings)
    assert not any("DataParallel" in text for text in read(body, num_devices=1).warnings)


def test_ranks_that_the_environment_has_are_known(read):
    body = COUNTED.replace("for step", 'if "RANK" not in os.environ:\n    turns = 32\nfor step', 1)
    assert read(body).workload_fields["global_batch_size"] == 256
    assert read(body, num_devices=1).workload_fields["global_batch_size"] == 256
    starts = 'if all(name in os.environ for name in ("RANK", "WORLD_SIZE")):\n    turns = 3\n'
    assert read(starts + COUNTED).workload_fields["global_batch_size"] == 3 * 8 * 4


FIRED = """import fire
import torch
from torch.utils.data import DataLoader
from transformers import AutoConfig
from own import Net

def cycle(loader):
    while True:
        for rows in loader:
            yield rows

def train(batch_size=4, every=3, path="gpt2"):
    net = Net(AutoConfig.from_pretrained(path))
    optim = torch.optim.Adam(net.parameters())
    loader = cycle(DataLoader(data(), batch_size=batch_size))
    for step in range(int(1e5)):
        for _ in range(every):
            loss = net(next(loader))
            accelerator.backward(loss / every)
        optim.step()

if __name__ == "__main__":
    fire.Fire(train)
"""


def test_a_command_of_fire_that_trains_with_a_loop_is_followed(tmp_path):
    (tmp_path / "train.py").write_text(FIRED)
    parsed = read_file(tmp_path / "train.py", Options(strict=False, num_devices=2, model_of=load_model))
    assert (parsed.model.name, parsed.layout_fields["micro_batch_size"]) == ("gpt2", 4)
    assert parsed.workload_fields["global_batch_size"] == 4 * 3 * 2
