"""nanotron's YAML: its own examples read, its words mean what they mean there, and what is wrong is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.errors import raises

from forescale.errors import ForescaleError
from forescale.frameworks.nanotron.reader import NanotronReader
from forescale.frameworks.reading import Options
from forescale.graph.counts import count_parameters

EXAMPLES = sorted((Path(__file__).parents[2] / "data" / "nanotron").glob("*.yaml"))
TINY = next(path for path in EXAMPLES if path.name == "config_tiny_llama.yaml")
QWEN = next(path for path in EXAMPLES if path.name == "config_qwen_with_moe.yaml")


@pytest.fixture
def read(tmp_path):
    def reading(changes=None, devices=None, *, base=TINY, strict=True):
        content = yaml.safe_load(base.read_text())
        for key, value in (changes or {}).items():
            *sections, last = key.split("/")
            table = content
            for section in sections:
                table = table.setdefault(section, {})
            table[last] = value
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(content))
        return NanotronReader().read(path, Options(num_devices=devices, strict=strict))

    return reading


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_reads(path):
    content = yaml.safe_load(path.read_text())
    result = NanotronReader().read(path, Options())
    degrees, tokens = content["parallelism"], content["tokens"]
    layout = result.strategy
    assert (layout.tp, layout.pp, layout.dp) == (degrees["tp"], degrees["pp"], degrees["dp"])
    assert result.num_devices == layout.num_devices
    assert result.workload_fields["seq_len"] == tokens["sequence_length"]
    assert result.model.num_layers == content["model"]["model_config"]["num_hidden_layers"]


def test_there_are_sixteen_examples():
    assert len(EXAMPLES) == 16


def test_a_llama_by_hand(read):
    model = read().model
    attention = 2048 * (2048 + 2 * 256) + 2048 * 2048
    layer = attention + 3 * 2048 * 11008 + 2 * 2048
    assert count_parameters(model).total == 28 * layer + 128256 * 2048 + 2048
    assert model.vocab_multiple == 1


def test_words_of_tensor_parallelism(read):
    assert read().strategy.sp
    plain = read({"parallelism/tp_mode": "ALL_REDUCE", "parallelism/tp_linear_async_communication": False})
    assert not plain.strategy.sp
    assert plain.layout_fields["kernels"] == {"hides_input_sums": False, "regathers_inputs": True}
    kept = read({"parallelism/tp_recompute_allgather": False})
    assert not kept.layout_fields["kernels"]["regathers_inputs"]
    assert read({"parallelism/tp": 1}).layout_fields["kernels"] == {}


def test_words_of_the_pipeline(read):
    assert read({"parallelism/pp": 2}).strategy.schedule is None
    assert read({"parallelism/pp": 2, "parallelism/pp_engine": "afab"}).strategy.schedule == "gpipe"
    assert read({"parallelism/pp": 2, "parallelism/pp_engine": None}).strategy.schedule == "gpipe"
    assert read({"parallelism/pp_engine": "afab"}).strategy.schedule is None


def test_words_of_context_parallelism(read):
    ring = read({"parallelism/context_parallel_size": 2}).strategy
    assert (ring.cp, ring.cp_kind, ring.cp_balanced, ring.num_devices) == (2, "ring", False, 16)
    config = "model/model_config/_attn_implementation"
    gathers = read({"parallelism/context_parallel_size": 2, config: "llama3_ring_attention"}, base=QWEN)
    assert gathers.strategy.cp_kind == "all_gather"


def test_recompute_and_states(read):
    assert read().layout_fields["recompute"]["granularity"] == "none"
    assert read({"parallelism/recompute_layer": True}).strategy.recompute.granularity == "full"
    assert read({"optimizer/zero_stage": 1}).strategy.zero == 1
    third = read({"optimizer/zero_stage": 3})
    assert third.strategy.zero == 1
    assert any("zero_stage" in note and "taken as 1" in note for note in third.notes)


def test_types(read):
    assert read().workload_fields["precision"] == {"compute": "bf16", "gradients": "fp32"}
    narrow = read({"optimizer/accumulate_grad_in_fp32": False}).workload_fields["precision"]
    assert narrow == {"compute": "bf16", "gradients": "bf16", "master": "none", "moments": "bf16"}
    assert read({"model/dtype": "float32"}).workload_fields["precision"]["compute"] == "fp32"


def test_batch_and_tokens(read):
    result = read({"tokens/batch_accumulation_per_replica": 5})
    assert result.workload_fields["global_batch_size"] == 3 * 5 * 4
    assert result.workload_fields["tokens"] == 2000 * 60 * 4096


def test_experts(read):
    result = read(base=QWEN)
    moe = result.model.moe
    assert (moe.num_experts, moe.top_k, moe.ffn_hidden_size) == (8, 1, 1408)
    assert (moe.shared_ffn_hidden_size, moe.shared_gate) == (5632, True)
    assert result.model.layers[0].attention.window == 20
    model = read({"model/model_config/moe_config/layers": [1, 3]}, base=QWEN).model
    assert [index for index, layer in enumerate(model.layers) if layer.ffn == moe] == [1, 3]


def test_layers_without_rotary_positions_see_all(read):
    layers = read({"model/model_config/no_rope_layer": 4}, base=QWEN).model.layers
    assert [layer.attention.rotary for layer in layers[:4]] == [True, True, True, False]
    assert [layer.attention.window for layer in layers[:4]] == [20, 20, 20, None]


def test_the_last_of_equal_keys_counts_and_is_said():
    notes = NanotronReader().read(QWEN, Options()).notes
    assert "model.model_config.moe_config (line 83) is given 2 times; as in nanotron the last counts" in notes


def test_devices_go_over_data_parallelism(read):
    result = read(devices=32)
    assert (result.strategy.dp, result.workload_fields["global_batch_size"]) == (16, 48)
    assert any("on 32 it is 16" in note for note in result.notes)
    with raises(ForescaleError, "not_divisible the number of devices"):
        read(devices=33)


def test_words_of_a_plan_go_over_the_file_before_it_is_checked():
    result = NanotronReader().read(TINY, Options(over={"tp": 1, "pp": 2, "micro_batch_size": 1}))
    assert (result.strategy.tp, result.strategy.pp, result.num_devices) == (1, 2, 8)
    assert result.workload_fields["global_batch_size"] == 4
    with raises(ForescaleError, "not_divisible model.model_config.num_key_value_heads (line 44)"):
        NanotronReader().read(TINY, Options(over={"tp": 4}))


def test_what_is_not_expressed_comes_first(read):
    notes = read(base=QWEN).notes
    assert notes[0].startswith("not expressed: model.model_config._use_doc_masking (line ")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"parallelism/tpp": 2}, "unknown_key parallelism.tpp"),
        ({"model/model_config/hidden_siz": 2}, "unknown_key model.model_config.hidden_siz"),
        ({"parallelism/tp_mode": "SCATTER"}, "not_one_of parallelism.tp_mode (line 78)"),
        ({"parallelism/tp": 4}, "not_divisible model.model_config.num_key_value_heads (line 44)"),
        ({"parallelism/tp": 0}, "out_of_range parallelism.tp (line 76)"),
        ({"tokens/micro_batch_size": "many"}, "wrong_type tokens.micro_batch_size (line 89)"),
        ({"model/model_config/hidden_size": 2050}, "not_divisible model.model_config.hidden_size (line 37)"),
        ({"model/model_config": None}, "wrong_type model.model_config"),
        ({"optimizer/optimizer_factory/name": "lion"}, "not_one_of optimizer.optimizer_factory.name (line 67)"),
        ({"data_stages": 3}, "wrong_type data_stages (line 7)"),
        ({"model/dtype": "int8"}, "not_one_of model.dtype (line 29)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(read, changes, text):
    with raises(ForescaleError, text):
        read(changes)


def test_a_misspelt_model_config_is_named(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("parallelism: {}\nmodel:\n  model_confg: {}\ntokens: {}\n")
    with raises(ForescaleError, "unknown_key model_confg"):
        NanotronReader().read(path, Options())


def test_keys_of_a_fork_are_reported(read):
    changes = {"segments": {"length": 1024, "gated": True}, "model/model_config/window_kinds": "all"}
    parsed = read(changes, strict=False)
    (warning,) = parsed.warnings
    assert warning.endswith(": model.model_config.window_kinds, segments")
    with raises(ForescaleError, "unknown_key parallelism.tpp"):
        read({"parallelism": {"tpp": 2, "dp": 2, "pp": 1}}, strict=False)
