"""What others call a field leads to it, wherever it is written."""

import pytest

from forescale.errors import UnknownKeyError, nearest
from forescale.synonyms import _WORDS, INFERENCE, left_out, meant, messages_called

FIELDS = (
    "tp",
    "pp",
    "vpp",
    "microbatch_group",
    "dp_shard",
    "dp_replicate",
    "zero",
    "seq_len",
    "global_batch_size",
    "devices",
)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("tensor_model_parallel_size", "tp"),
        ("--tensor-parallel-degree", "tp"),
        ("pipeline_parallel", "pp"),
        ("num_gpus", "devices"),
        ("--microbatch-group-size-per-virtual-pipeline-stage", "microbatch_group"),
        ("microbatch_group_size_per_vp_stage", "microbatch_group"),
        ("dp", "dp_shard"),
        ("batch_size", "global_batch_size"),
        ("context_length", "seq_len"),
        ("for", None),
        ("tpp", None),
        ("precision", None),
    ],
)
def test_names_of_others(name, field):
    assert meant(name, FIELDS) == field


def test_a_field_that_is_not_known_there_is_not_meant():
    assert meant("num_gpus", ("num_devices", "tiers")) == "num_devices"
    assert meant("num_gpus", ("tp",)) is None
    assert (meant("--for", ("to", "tp")), meant("--to", ("for", "tp"))) == ("to", "for")


def test_an_unknown_key_is_told_the_one_field_that_it_means():
    assert nearest("tensor_parallel_size", ("Tensor", "tp")) == ("tp",)
    assert str(UnknownKeyError("dp", "plan.toml, strategy", FIELDS)).endswith("did you mean dp_shard?")


def test_no_word_stands_for_two_fields():
    parts = [word for names, _ in _WORDS for word in names.split()]
    assert len(parts) == len(set(parts))


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("tp_comm", "step_time.tensor_comm"),
        ("step_time.dp-comm", "step_time.data_comm"),
        ("p2p", "step_time.pipeline_comm"),
        ("a2a_time", "step_time.expert_comm"),
        ("ffn", None),
    ],
)
def test_messages_of_others(name, quantity):
    assert messages_called(name) == quantity


@pytest.mark.parametrize("name", ["--inference", "--max-new-tokens", "serving", "kv_cache"])
def test_serving_is_not_projected(name):
    assert left_out(name, "project") == INFERENCE


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("azure-ndh100v5", "h100-sxm"),
        ("nebius-h200", "h200-sxm"),
        ("h100-smx", "h100-sxm"),
        ("gh20", "gh200"),
    ],
)
def test_a_name_with_a_device_in_it_is_told_clusters_of_that(name, first):
    assert nearest(name, ("h100-sxm", "h200-sxm", "b200", "gh200", "tpu-v5p"))[0] == first
