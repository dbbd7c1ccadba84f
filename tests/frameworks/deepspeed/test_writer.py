"""What is written for DeepSpeed and the Trainer is read back to the bit."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from tests.export.laws import check_writer
from tests.plans import plans

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.export import export, under
from forescale.question import question_of
from forescale.spec import Strategy, Workload

UNSAID = {
    "strategy.ep", "strategy.kernels.bucket_elements", "strategy.kernels.flat_update",
    "strategy.kernels.keeps_product_gradients", "strategy.overlap.param_gather", "model.layers.ffn.score_bias",
    "workload.precision.compute", "workload.precision.recipe", "strategy.dp_replicate", "strategy.dp_shard",
}  # fmt: skip
"""Experts have no degree of their own, so that at stage 0 nothing folds over shards; below stage 3 DeepSpeed's optimizer works as it does; no narrow types."""


def without_pipeline(count: int, **choices):
    found = (each for each in plans("deepspeed", 4 * count, **choices) if each.layout.pp == 1)
    return list(islice(found, count))


def test_plans_read_back_to_the_bit() -> None:
    assert len(check_writer(without_pipeline(42), unsaid=UNSAID)) == 42


def test_full_shards_of_plain_models_are_said_to_the_bit() -> None:
    dense = ("llama-3.1-8b", "qwen3-8b", "gpt2-xl", "mistral-7b")
    asked = without_pipeline(20, kinds=(dense,), zero=(3,))
    whole = [each for each in asked if each.layout.zero == 3 and each.workload.precision.compute == "bf16"]
    assert whole
    check_writer(whole)


def question(**layout):
    asked = question_of(
        load_model("llama-3.1-8b"),
        load_cluster("h100-sxm", 16),
        Workload(seq_len=4096, global_batch_size=64),
        strategy=Strategy(**{"zero": 3, "dp_shard": 16, "sp": False, "cp_kind": "ulysses", **layout}),
    )
    return under(asked, load_framework("deepspeed"))


def test_the_folder_is_what_the_trainer_takes() -> None:
    found = export(question(micro_batch_size=2))
    assert set(found.texts) == {"training.json", "ds_config.json", "config.json", "README.md"}
    arguments, config = (json.loads(found.texts[name]) for name in ("training.json", "ds_config.json"))
    assert arguments["gradient_accumulation_steps"] == config["gradient_accumulation_steps"] == 2
    assert config["train_batch_size"] == 64
    assert json.loads(found.texts["config.json"])["model_type"] == "llama"
    assert not found.unsaid


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(SpecError, match="PipelineModule of one's own"):
        export(question(zero=1, pp=2, dp_shard=8))
