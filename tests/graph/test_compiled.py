"""Blocks that torch.compile fuses: kernels, bytes and saved tensors, by hand for a Llama."""

import json

import pytest
from msgspec.structs import replace

import forescale as fs
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.graph.compiled import compiled_model
from forescale.graph.counts import model_flops, whole_blocks
from forescale.graph.ops import AttentionCore
from forescale.graph.recorded import recorded_traces, traced_model
from forescale.project import project
from forescale.question import Question
from forescale.spec import Layout, Workload
from forescale.spec.kernels import Kernels
from forescale.spec.trace import Formula, product, total

HIDDEN, FEED_FORWARD, TOKENS = 256, 896, 2 * 512
SIZES = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 8016,
}  # fmt: skip


@pytest.fixture(scope="module")
def eager():
    return traced_model(recorded_traces(SIZES, seq_len=512), name="llama", hidden_size=HIDDEN)


@pytest.fixture(scope="module")
def compiled(eager):
    return compiled_model(eager)


def block_of(model):
    (block,) = model.traces[0].blocks.values()
    return block


def kernels(block, module):
    (operator,) = (item for item in block.operators if item.module == module)
    return operator


def size(formula):
    return formula.at(2.0, 512.0)


def test_backward_keeps_inputs_of_norms_and_products_and_results_of_products(compiled):
    """Eight tensors of the hidden size: two inputs of norms, two of products, q, k, v of all heads, attention.

    The others are gate, up and their product. The partitioner of torch 2.13 saves these for a model of these sizes.
    """
    saved = size(block_of(compiled).saved_bytes) / (2 * TOKENS)
    assert saved == 8 * HIDDEN + 3 * FEED_FORWARD


def test_an_elementwise_chain_reads_its_inputs_and_writes_its_result_once(compiled):
    (kernel,) = kernels(block_of(compiled), "mlp").forward
    assert kernel.operator == "fused_silu_mul"
    assert [size(item) for item in kernel.extents] == [
        TOKENS * FEED_FORWARD,
        2 * TOKENS * 2 * FEED_FORWARD,
        TOKENS * 2 * FEED_FORWARD,
    ]
    assert kernels(block_of(compiled), "mlp.act_fn").forward == ()


def test_a_chain_becomes_part_of_the_reduction_behind_it(compiled):
    (kernel,) = kernels(block_of(compiled), "input_layernorm").forward
    assert kernel.kind == "row_reduction"
    assert size(kernel.extents[2]) == TOKENS * 2 * HIDDEN
    assert size(kernel.extents[1]) == TOKENS * 2 * HIDDEN + 2 * HIDDEN  # and the weight of the norm


def test_the_loss_reads_logits_once_forward_and_keeps_no_copy(compiled):
    operator = kernels(compiled.traces[0].head, "")
    logits = TOKENS * SIZES["vocab_size"] * 2
    (kernel,) = operator.forward
    assert size(kernel.extents[1]) == pytest.approx(logits, rel=1e-2)
    (kernel,) = operator.backward
    assert [size(item) for item in kernel.extents[1:]] == pytest.approx([logits, logits], rel=1e-2)


def test_a_mask_makes_the_kernel_compute_every_pair_and_leaves_the_flops_of_the_model(eager, compiled):
    assert model_flops(compiled, 512) == model_flops(eager, 512)
    (core,) = attention_of(compiled)
    assert core.kernel == "masked"
    assert core.flops == pytest.approx(4.0 * 8 * 32 * 512 * 513 / 2)
    assert core.executed_flops == pytest.approx(4.0 * 8 * 32 * 512 * 512)


def attention_of(model):
    return {
        primitive
        for block, _ in whole_blocks(model, 512.0)
        for operator in block.operators
        for primitive in operator.forward
        if isinstance(primitive, AttentionCore)
    }


def test_products_and_parameters_stay(eager, compiled):
    def products(model):
        return [
            (operator.module, part, kernel)
            for operator in block_of(model).operators
            for part in ("forward", "backward", "weight")
            for kernel in getattr(operator, part)
            if kernel.kind.startswith("product")
        ]

    assert products(compiled) == products(eager)
    assert compiled.traces[0].num_parameters == eager.traces[0].num_parameters
    assert block_of(compiled).num_launches < block_of(eager).num_launches / 2


def test_grouped_products_keep_the_rows_of_all_experts_once():
    config = {**SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    eager = traced_model(recorded_traces(config, seq_len=512), name="mixtral", hidden_size=HIDDEN)
    saved, before = (size(block_of(model).saved_bytes) for model in (compiled_model(eager), eager))
    inputs = 2 * (HIDDEN + FEED_FORWARD)  # of both products, for each of two experts of a token
    assert 2 * TOKENS * (8 * HIDDEN + inputs) < saved < before


def test_formulas_add_and_multiply_exactly():
    tokens = Formula(coefficients=(0, 0, 0, 1, 0, 0))
    half = Formula(coefficients=(1, 0, 0, 0, 0, 0), divisor=2, split=(4, 0, 0, 0, 0, 0))
    for tp in (1.0, 2.0):
        assert total([tokens, half]).at(3.0, 5.0, tp=tp) == 15.0 + 0.5 + 2.0 / tp
        assert product(tokens, half).at(3.0, 5.0, tp=tp) == 15.0 * (0.5 + 2.0 / tp)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "config.json"
    path.write_text(json.dumps(SIZES), encoding="utf-8")
    sizes = {"devices": 2, "seq_len": 512, "micro_batch_size": 2, "global_batch_size": 8}
    modes = ("none", "default", "reduce-overhead")
    options = {"framework": "transformers", **sizes}
    return {mode: fs.project(str(path), "h200-sxm", kernels={"compile": mode}, **options) for mode in modes}


def test_compiled_steps_are_shorter_and_need_less_memory(steps):
    times = [item.step_time_s for item in steps.values()]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    peaks = [item.memory.peak_bytes for item in steps.values()]
    assert peaks[0] > peaks[1] == peaks[2]


def test_operators_that_were_not_recorded_are_not_compiled():
    sizes = {"devices": 1, "seq_len": 512, "micro_batch_size": 1, "global_batch_size": 1}
    plain = fs.ask("llama-3.2-1b", "h200-sxm", framework="megatron", **sizes)
    kernels = replace(plain.layout.kernels, compile="default")
    other = plain.with_layout(replace(plain.layout, kernels=kernels))
    assert fs.project(other).step_time_s == fs.project(plain).step_time_s
    assert [note for note in fs.project(other).notes if note.topic == "compile"]


def test_xla_runs_traced_models_compiled():
    """On TPUs, without a word of torch.compile: what `--compile default` gives, but for its host."""
    model, workload = load_model("smollm3-3b"), Workload(seq_len=2048, global_batch_size=8)
    plain, asked = (Layout(dp_shard=8, zero=3, kernels=Kernels(compile=mode)) for mode in ("none", "default"))
    for name, alike in (("tpu-v5p", True), ("h100-sxm", False)):
        cluster = load_cluster(name, 8)
        one, other = (
            project(Question(model=model, cluster=cluster, workload=workload, strategy=layout))
            for layout in (plain, asked)
        )
        assert (one.memory.peak_bytes == other.memory.peak_bytes) is alike
        assert one.time_s["norm"] > 0.0
        assert (one.time_s["norm"] == other.time_s["norm"]) is alike
