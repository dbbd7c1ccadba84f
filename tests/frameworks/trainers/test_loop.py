"""A training loop of a person's own says batch, length and types; what its text leaves open is asked for."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

LOOP = """import torch
micro_batch_size = 4
block_size = 2048
gradient_accumulation_steps = 2
model_name = "llama-3.1-8b"
for batch in data:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def read(tmp_path):
    """Read a loop by the script that starts it, or alone."""

    def call(text, command="torchrun --nproc_per_node=8 \\\n  train.py", **options):
        (tmp_path / "train.py").write_text(text)
        file = tmp_path / ("run.sh" if command else "train.py")
        if command:
            file.write_text(f"#!/bin/bash\n{command}\n")
        return read_file(file, Options(model_of=load_model, strict=False, **options))

    return call


def test_loop_is_read_from_its_text(read):
    result = read(LOOP)
    assert (result.num_devices, result.missing) == (8, ())
    assert result.model.name == "llama-3.1-8b"
    assert result.layout_fields["micro_batch_size"] == 4
    fields = result.workload_fields
    assert (fields["seq_len"], fields["global_batch_size"]) == (2048, 4 * 2 * 8)
    assert (fields["precision"]["compute"], fields["precision"]["parameters"]) == ("bf16", "fp32")


@pytest.mark.parametrize(
    ("change", "open_fact"),
    [
        (("micro_batch_size = 4\n", ""), "the micro-batch size"),
        (("micro_batch_size = 4\n", "micro_batch_size = 4\nif big:\n    micro_batch_size = 8\n"), "the micro-batch size"),
        (("= 4\n", "= total // 8\n"), "the micro-batch size"),
        (('model_name = "llama-3.1-8b"\n', ""), "the model"),
        (("import torch\n", "import torch\nmodel = FSDP(model, sharding_strategy=one)\n"), "how its states are sharded"),
        (("import torch\n", "import torch\nif big:\n    model = FSDP(model)\n"), "how its states are sharded"),
    ],
)  # fmt: skip
def test_what_its_text_leaves_open_is_missing(read, change, open_fact):
    assert open_fact in [fact.what for fact in read(LOOP.replace(*change)).missing]


def test_global_batch_of_a_loop_is_that_of_all_ranks(read):
    result = read(LOOP.replace("gradient_accumulation_steps = 2", "global_batch_size = 512"))
    assert result.workload_fields["global_batch_size"] == 512
    alone = LOOP.replace("gradient_accumulation_steps = 2", "global_batch_size = 512")
    missing = read(alone.replace("micro_batch_size = 4\n", "")).missing
    assert [fact.what for fact in missing] == ["the micro-batch size"]


def test_loop_alone_has_no_devices(read):
    result = read(LOOP, command="")
    assert result.format == "script"
    assert [fact.what for fact in result.missing] == ["the number of devices"]
    assert read(LOOP, command="", num_devices=4).workload_fields["global_batch_size"] == 4 * 2 * 4


@pytest.mark.parametrize(
    ("call", "stage"),
    [
        ("FSDP(model, auto_wrap_policy=policy)", 3),
        ("FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)", 2),
        ("FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.NO_SHARD)", 0),
        ("fully_shard(model, reshard_after_forward=False)", 2),
        ("L.Fabric(strategy=FSDPStrategy(auto_wrap_policy={Block}))", 3),
        ("FSDP(model)", 3),
    ],
)
def test_calls_of_fsdp_say_the_stage(read, call, stage):
    parsed = read(LOOP.replace("import torch\n", f"import torch\nmodel = {call}\n"))
    assert (parsed.layout_fields["zero"], parsed.missing) == (stage, ())
    assert any("no auto_wrap_policy" in text for text in parsed.warnings) is (call == "FSDP(model)")
