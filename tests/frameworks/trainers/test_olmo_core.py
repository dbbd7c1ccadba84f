"""Scripts of OLMo-core make their configurations with functions that are followed."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

SCRIPT = """from olmo_core.nn.transformer import TransformerConfig

LENGTH = 4096

def build_config(opts, overrides):
    length = opts.sequence_length or LENGTH
    model = TransformerConfig.olmo2_32B(vocab_size=tokenizer.padded_vocab_size())
    loader = NumpyDataLoaderConfig(global_batch_size=2048 * 4096)
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=4 * 4096,
        max_sequence_length=length,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.hsdp, num_replicas=get_world_size() // 64),
        cp_config=TransformerContextParallelConfig.llama3(degree=2),
        ac_config=TransformerActivationCheckpointingConfig(TransformerActivationCheckpointingMode.full),
    )
    if get_world_size() >= 512:
        module.rank_microbatch_size //= 2

main(build_config)
"""


@pytest.fixture
def read(tmp_path):
    def call(text=SCRIPT, devices=256):
        (tmp_path / "train.py").write_text(text)
        return read_file(
            tmp_path / "train.py", Options(num_devices=devices, model_of=load_model, strict=False)
        )

    return call


def test_batches_count_tokens(read):
    parsed = read()
    layout = parsed.strategy
    assert (parsed.format, parsed.model.name) == ("olmo-core", "olmo-2-32b")
    assert (layout.cp, layout.dp_replicate, layout.dp_shard, layout.zero) == (2, 4, 32, 3)
    assert (layout.micro_batch_size, layout.recompute.granularity) == (4, "full")
    assert (parsed.workload_fields["seq_len"], parsed.workload_fields["global_batch_size"]) == (4096, 2048)


def test_a_model_that_the_script_changes_is_not_the_catalogues(read):
    changed = SCRIPT.replace("    loader", "    model.block_pattern = ['gdn', 'attn']\n    loader")
    assert [fact.part for fact in read(changed).missing] == ["model"]


def test_a_batch_of_the_command_line_is_missing(read):
    parsed = read(SCRIPT.replace("4 * 4096", "opts.rank_batch"))
    assert "strategy.micro_batch_size" in [fact.part for fact in parsed.missing]
