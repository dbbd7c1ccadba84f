"""Packaged recordings of model types: sizes, coverage and what a configuration makes of them."""

import json
from importlib import resources

import pytest
from msgspec.structs import replace

from forescale.errors import SpecError
from forescale.face import ask
from forescale.frameworks.huggingface.reader import FAMILIES, read_huggingface
from forescale.graph.counts import count_parameters
from forescale.graph.recorded import Evaluator, recorded_keys, recorded_traces, recorded_types
from forescale.project import project

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def one(config, **options):
    options = {"seq_len": 128, **options}
    return recorded_traces(config, **options)[0]


def test_recordings_are_small():
    sizes = [
        len(item.read_bytes())
        for item in resources.files("forescale.catalogue").joinpath("eager").iterdir()
        if item.name.endswith(".xz")
    ]
    assert max(sizes) < 300_000
    assert sum(sizes) < 3_000_000


SIZES = {
    "h": 512, "f": 1024, "a": 8, "k": 2, "d": 64, "v": 1000, "p": 2048, "w": 4096, "e": 8, "t": 2, "m": 256, "n": 1,
    "y": 512, "q": 64, "c": 64, "o": 32, "r": 16, "u": 32, "g": 2, "l": 1, "x": 512, "z": 32,
}  # fmt: skip


def small(kind):
    """Return a small configuration of a type."""
    symbols, layers = recorded_keys(kind)
    config = {"model_type": kind, layers: 4, **{key: SIZES[name] for name, key in symbols.items()}}
    if "o" in symbols:
        config[symbols["k"]] = SIZES["a"]
    return config


def test_fp16_runs_the_operators_of_bf16_on_as_many_bytes():
    """Volta has no bf16: types that are known by recordings alone are projected in fp16 there."""
    model = read_huggingface(small("codegen"), name="small", where="here").model
    asked = {"devices": 1, "seq_len": 256, "micro_batch_size": 1, "global_batch_size": 2, "framework": "none"}
    types = {"compute": "fp16", "parameters": "fp16", "activations": "fp16"}
    half, brain = (project(ask(model, "a100-sxm-40gb", precision=item, **asked)) for item in (types, {}))
    assert half.memory.stages[0].activations_bytes == brain.memory.stages[0].activations_bytes > 0
    assert project(ask(model, "v100-pcie", precision=types, **asked)).step_time_s > half.step_time_s


@pytest.mark.parametrize("kind", recorded_types())
def test_every_type_has_two_precisions(kind):
    traces = recorded_traces(small(kind), seq_len=256)
    assert [trace.precision for trace in traces] == ["bf16", "fp32 under autocast to bf16"]
    assert len({trace.num_parameters for trace in traces}) == 1
    for trace in traces:
        assert len(trace.layers) == 4
        assert all(block.num_launches > 20 for block in trace.blocks.values())


def test_a_dimension_that_is_missing_is_named():
    with pytest.raises(SpecError, match="num_experts_per_tok"):
        recorded_traces({"model_type": "deepseek_v2", "num_hidden_layers": 2}, seq_len=64)


@pytest.mark.parametrize("kind", sorted({*recorded_types()} & {*FAMILIES}))
def test_parameters_are_those_of_the_decoder(kind):
    model = read_huggingface(small(kind), name="m", where="here").model
    expected = count_parameters(replace(model, num_mtp_layers=0)).total
    assert one(small(kind), seq_len=64).num_parameters == pytest.approx(expected, rel=1e-4)


def test_extents_follow_from_dimensions():
    trace = one(LLAMA)
    (block,) = trace.blocks.values()
    shapes = {parameter.name: parameter.shape for parameter in block.parameters}
    assert shapes["self_attn.k_proj.weight"] == (128, 512)
    assert shapes["mlp.down_proj.weight"] == (512, 1376)
    query = next(operator for operator in block.operators if operator.module == "self_attn.q_proj")
    (product,) = query.forward
    assert [extent.at(2.0, 128.0) for extent in product.extents] == [256.0, 512.0, 512.0, 1.0]
    assert (
        trace.num_parameters
        == 3 * (2 * 512 * 512 + 2 * 128 * 512 + 3 * 512 * 1376 + 2 * 512) + 2 * 512_000 + 512
    )


def test_rows_that_are_not_aligned_are_known():
    kinds = lambda size: {  # noqa: E731
        kernel.kind
        for operator in one({**LLAMA, "vocab_size": size}).head.operators
        for kernel in operator.forward
        if kernel.operator == "mm"
    }
    assert kinds(1000) == {"product"}
    assert kinds(1001) == {"product_unaligned"}


def test_windows_count_where_they_are_shorter_than_the_sequence():
    config = {"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 64}
    kinds = lambda length: {  # noqa: E731
        kernel.kind
        for block in one(config, seq_len=length).blocks.values()
        for operator in block.operators
        for kernel in operator.forward
    }
    assert "attention_causal" in kinds(64)
    assert "attention_masked" in kinds(128)


def test_layers_follow_the_pattern_of_the_type():
    labels = [layer.split()[0] for layer in one({"model_type": "gemma3_text", "num_hidden_layers": 7}).layers]
    assert labels == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    labels = [
        layer.split()[-1] for layer in one({"model_type": "deepseek_v3", "num_hidden_layers": 5}).layers
    ]
    assert labels == ["dense"] * 3 + ["experts"] * 2
    labels = [layer.split()[1] for layer in one({"model_type": "smollm3", "num_hidden_layers": 4}).layers]
    assert labels == ["rope", "rope", "rope", "no_rope"]


def test_polynomials_have_negative_and_broken_factors():
    formula = Evaluator({"h": 6, "k": 2, "a": 4}).formula("1/2*b*h*s+-3*a*k^-1*s+7")
    assert formula.at(2.0, 10.0) == 0.5 * 2 * 6 * 10 - 3 * 2 * 10 + 7


def test_a_model_keeps_the_keys_of_its_operators():
    model = read_huggingface({**LLAMA, "bos_token_id": 1}, name="m", where="here").model
    assert json.loads(model.config) == LLAMA
