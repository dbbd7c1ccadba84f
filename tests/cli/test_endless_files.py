"""Files that ask their readers for endless work, or for values beyond all use, end in an answer or in one sentence."""

from __future__ import annotations

import json

import pytest
from tests.fuzz.fuzz import HF, ON, Broken, ask

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 32 --vocab-size 1000 --bf16"
)
SHELL = {
    "an array that doubles itself": "a=(--x)\n" + 'a+=("${a[@]}")\n' * 40,
    "loops inside substitutions": "for i in " + "x " * 3000 + "; do Y=$(for j in " + "y " * 3000 + "; do Z=$j; done); done",
    "a product of 300 factors": "X=$((" + f"{2**62}*" * 300 + "9))",
    "nested alternatives": "A=1\nX=" + "${A+" * 5000 + "1" + "}" * 5000,
    "blank lines": "\n" * 100_000,
    "a list of variables copied for each substitution": "".join(f"v{i}={i}\n" for i in range(9000))
    + "for i in " + "x " * 9000 + "; do Y=$(echo $i); done",
}  # fmt: skip
PYTHON = {
    "a number of 9,000 digits in a text": "x = f'{0x" + "f" * 9000 + "}'\ncfg.model.name = x",
    "a list that contains itself": "a = [1]\na.append(a)\ncfg.model.moe_layer_freq = a",
    "lists that double": "a, b = [1], [1]\nfor i in range(60):\n    a = [a, a]\n    b = [b, b]\nif a == b: cfg.model.num_layers = 8",
    "a deep tuple as a key": "a = (1,)\nfor i in range(9000): a = (a,)\nb = {a}",
    "a range beyond all": "for i in range(9223372036854775808): cfg.model.num_layers = 4",
    "three arguments of hasattr": "x = hasattr(cfg, 'a', 'b')",
    "four arguments of setattr": "setattr(cfg.model, 'a', 1, 2)",
    "isinstance of a list": "x = isinstance(*[1, 2])",
    "a step of zero": "x = [1, 2][::0]",
    "a table of a list": "x = {}\nx.update([1, 2])",
    "a key that is a list": "x = {(1, [2]): 3}\nx[(1, [2])] = 3",
    "stages that are numbers": "cfg.model.pipeline_model_parallel_layout = [1, 2]",
    "names copied for each function": "\n".join(f"v{i} = {i}" for i in range(9000)) + "\nfor i in range(9000): y = lambda: 1",
    "a long expression shown each time": "for i in range(9000): x = await [" + "1," * 20_000 + "]",
}  # fmt: skip
TOML = 'model = "llama-3.2-1b"\n[' + " " * 20_000 + "x\n"
KEYS = ", ".join(f'"k{at}": 1' for at in range(60_000))
COLUMNS = ",".join(f"c{at}" for at in range(60_000))
RECIPE = """import megatron.bridge
{lines}
def recipe(cfg):
    cfg.model = GPTModelProvider(num_layers=4, hidden_size=256, num_attention_heads=4)
    cfg.model.vocab_size = 1000
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 32
    cfg.dataset.seq_length = 2048
    {body}
    return cfg
"""


def cases():
    script = ("project", "FILE", "--cluster", "h100-sxm")
    for name, text in SHELL.items():
        yield (
            name,
            Broken([*script], "run.sh", f"{text}\ntorchrun --nproc-per-node 8 a.py {FLAGS}\n".encode()),
        )
    for name, text in PYTHON.items():
        body = text.replace("\n", "\n    ")
        yield name, Broken(["project", "FILE", *ON], "r.py", RECIPE.format(lines="", body=body).encode())
    stars = RECIPE.format(lines="from r import *\n" * 5, body="x = nothing")
    yield "modules that import themselves", Broken(["project", "FILE", *ON], "r.py", stars.encode())
    model = json.dumps(json.loads(HF))[1:-1]
    twice = f'{{{model}, {KEYS}, "k59999": 2}}'
    yield "a repeated key behind 60,000", Broken(["project", "FILE", *ON], "config.json", twice.encode())
    yield "a header of blanks", Broken(["project", "--plan", "FILE"], "p.toml", TOML.encode())
    yield "60,000 columns", Broken(["validate", "FILE"], "r.csv", f"{COLUMNS},c59999\n".encode())
    yield "a section 10,000 times", Broken([*script], "g.yaml", b"grpo:\n" * 10_000)


@pytest.mark.parametrize("question", [pytest.param(item, id=name) for name, item in cases()])
def test_hostile_files_end(question, tmp_path):
    assert ask(question, tmp_path).problems == []
