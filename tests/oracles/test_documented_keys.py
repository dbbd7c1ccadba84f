"""Files written for nanotron and MaxText against the keys and types that their own code documents, and what these mean.

Nothing here asks our readers: degrees and sizes are taken from the files by the words of the frameworks' documentation.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import yaml
from tests.plans import plans

from forescale.errors import SpecError
from forescale.export import export
from forescale.frameworks.maxtext.command import base_values, known_keys, presets
from forescale.frameworks.nanotron.reader import known_keys as nanotron_keys

KINDS = {"int": int, "float": (int, float), "bool": bool, "str": str, "list": list, "table": dict}


def check_kind(key: str, kind: str, value: Any) -> None:
    """Assert that a value is of the documented kind: `int?` may be null."""
    plain = kind.rstrip("?!")
    if value is None:
        assert "?" in kind, f"{key} may not be null"
    elif plain in KINDS:
        assert isinstance(value, KINDS[plain]), f"{key} {value!r} is no {plain}"
        assert plain == "bool" or not isinstance(value, bool), f"{key} {value!r} is no {plain}"


def flat(content: Any, before: str = "") -> Any:
    """Every key of a file by its dotted path, tables themselves included."""
    for key, value in content.items():
        path = f"{before}{key}"
        yield path, value
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from flat(item, f"{path}[]." if isinstance(value, list) else f"{path}.")


@pytest.fixture(scope="module")
def nanotron():
    result = plans(
        "nanotron",
        45,
        seed=11,
        kinds=(("llama-3.1-8b", "llama-3.1-70b", "mistral-7b"), ("mixtral-8x7b", "mixtral-8x22b")),
    )
    return [(question, yaml.safe_load(export(question).texts["run.yaml"])) for question in result]


@pytest.fixture(scope="module")
def maxtext():
    written = []
    for question in plans("maxtext", 60, seed=11):
        try:
            written.append((question, yaml.safe_load(export(question).texts["run.yml"])))
        except SpecError:
            continue
    assert len(written) >= 45
    return written


def test_every_key_for_nanotron_is_one_of_its_dataclasses(nanotron):
    table = nanotron_keys()
    for _, content in nanotron:
        config = content["model"]["model_config"]
        model = table["models"][next(key for key in config if key.startswith("is_"))]
        known = {**table["keys"], **{f"model.model_config.{key}": kind for key, kind in model.items()}}
        values = dict(flat(content))
        for key, value in values.items():
            assert key in known, f"nanotron has no {key}"
            check_kind(key, known[key], value)
        present = {key.rpartition(".")[0] for key in values}
        missing = [
            key
            for key, kind in table["keys"].items()
            if kind.endswith("!") and key.rpartition(".")[0] in present and key not in values
        ]
        unions = ("model.init_method.", "data_stages[].data.dataset.")  # one of several dataclasses
        if values["optimizer.optimizer_factory.name"] == "sgd":
            unions += ("optimizer.optimizer_factory.",)
        assert not [key for key in missing if not key.startswith(unions)]


def test_nanotron_understands_the_same_degrees_and_sizes(nanotron):
    for question, content in nanotron:
        layout, workload, model = question.layout, question.workload, question.model
        degrees, tokens, config = content["parallelism"], content["tokens"], content["model"]["model_config"]
        world = prod(degrees[name] for name in ("dp", "pp", "tp", "context_parallel_size"))
        assert world == question.cluster.num_devices
        assert (degrees["tp"], degrees["pp"], degrees["context_parallel_size"]) == (
            layout.tp,
            layout.pp,
            layout.cp,
        )
        batch = tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * degrees["dp"]
        assert (batch, tokens["sequence_length"]) == (workload.global_batch_size, workload.seq_len)
        assert degrees["recompute_layer"] is (layout.recompute.granularity == "full")
        assert content["model"]["dtype"] == "bfloat16"
        assert content["optimizer"]["accumulate_grad_in_fp32"] is (workload.precision.gradients == "fp32")
        assert content["optimizer"]["zero_stage"] == layout.zero
        assert config["num_attention_heads"] % degrees["tp"] == 0
        sizes = (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"])
        assert sizes == (model.hidden_size, model.num_layers, model.vocab_size)


def test_every_key_for_maxtext_is_one_of_its_fields(maxtext):
    for _, content in maxtext:
        for key, value in content.items():
            if key != "base_config":
                assert key in known_keys(), f"MaxText has no {key}"
                check_kind(key, known_keys()[key], value)


def test_maxtext_understands_the_same_degrees_and_sizes(maxtext):
    for question, content in maxtext:
        layout, workload, model = question.layout, question.workload, question.model
        named = presets().get(content.get("model_name", ""), {}).get("keys", {})
        keys = {**base_values(), **named, **content}

        def degree(axis: str, keys: dict[str, Any] = keys) -> int:
            return keys[f"ici_{axis}_parallelism"] * keys[f"dcn_{axis}_parallelism"]

        axes = [
            key[4:-12] for key in base_values() if key.startswith("ici_") and key.endswith("_parallelism")
        ]
        assert prod(degree(axis) for axis in axes) == question.cluster.num_devices
        assert (degree("tensor"), degree("pipeline"), degree("context")) == (
            layout.tp,
            layout.pp,
            layout.cp,
        )
        assert degree("expert") == layout.ep
        assert degree("expert") * degree("fsdp") * degree("data") == layout.dp
        batch = (
            int(keys["per_device_batch_size"] * question.cluster.num_devices)
            * keys["gradient_accumulation_steps"]
        )
        assert (batch, keys["max_target_length"]) == (workload.global_batch_size, workload.seq_len)
        sizes = (keys["base_emb_dim"], keys["base_num_decoder_layers"], keys["vocab_size"])
        assert sizes == (model.hidden_size, model.num_layers, model.vocab_size)
        policy = layout.recompute.policy or layout.recompute.granularity
        assert keys["remat_policy"] == policy
        types = workload.precision
        updated = types.parameters if types.master == "none" else types.master
        stored = {"fp32": "float32", "bf16": "bfloat16"}[updated]
        assert (keys["dtype"], keys["weight_dtype"]) == ("bfloat16", stored)
        assert keys.get("quantization", "") == {"bf16": "", "fp8": "fp8"}[workload.precision.compute]
        if layout.pp > 1:
            stages = keys["num_layers_per_pipeline_stage"] * keys["num_pipeline_repeats"] * layout.pp
            assert stages == keys["pipeline_parallel_layers"] == model.num_layers
            assert keys["num_pipeline_microbatches"] % layout.pp == 0
