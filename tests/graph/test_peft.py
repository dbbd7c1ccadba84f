"""Adapters and quantised weights of models whose operators were recorded."""

import pytest
from tests.errors import raises

import forescale as fs
from forescale.api import load_cluster, load_model
from forescale.errors import SpecError
from forescale.graph.ops import Elementwise
from forescale.graph.peft import adapted, linear_layers
from forescale.graph.recorded import with_adapters
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.graph.traced import traced_blocks
from forescale.project import project
from forescale.question import question_of
from forescale.spec.layout import Kernels, Layout, Recompute
from forescale.spec.workload import QUANTISED_BYTES, Precision, Trainable, Workload

LORA = Trainable(lora_rank=16)


def frozen_trace(name):
    return next(trace for trace in load_model(name).traces if trace.has_frozen)


def adapter_paths(name, **trainable):
    trace = adapted(frozen_trace(name), Trainable(lora_rank=16, **trainable), autocast=False)
    return {
        kind: [item.name.removesuffix(".lora_A.weight") for item in block.parameters if "lora_A" in item.name]
        for kind, block in trace.blocks.items()
    }


def test_targets_name_the_linear_layers_of_a_block():
    paths = adapter_paths("lfm2-8b-a1b")
    assert sorted(paths["Lfm2MoeDecoderLayer"]) == [f"feed_forward.w{number}" for number in (1, 2, 3)]
    assert sorted(paths["Lfm2MoeDecoderLayer#2"]) == [
        f"self_attn.{name}" for name in ("k_proj", "out_proj", "q_proj", "v_proj")
    ]
    assert paths["Lfm2MoeDecoderLayer#3"] == []


def test_layers_with_a_recurrent_state_have_adapters_where_asked():
    paths = adapter_paths("jamba-v0.1", lora_targets=("in_proj", "out_proj"))
    assert paths["JambaMambaDecoderLayer#2"] == ["mamba.in_proj", "mamba.out_proj"]
    assert paths["JambaAttentionDecoderLayer"] == []
    assert load_model("jamba-v0.1").has_recurrent
    assert not load_model("gemma-4-31b").has_recurrent


def test_full_attention_without_values_of_its_own_has_three_adapters_in_attention():
    paths = adapter_paths("gemma-4-31b", lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    assert paths["Gemma4TextDecoderLayer#2"] == [f"self_attn.{name}_proj" for name in "qko"]


def test_targets_that_no_layer_has_are_refused():
    with raises(SpecError, "not_one_of lora_targets"):
        adapted(frozen_trace("mamba-codestral-7b"), LORA, autocast=False)


def test_dropout_keeps_a_mask_of_what_each_adapter_reads():
    trace = frozen_trace("gemma-4-31b")
    plain, dropped = (
        adapted(trace, Trainable(lora_rank=16, lora_dropout=dropout), autocast=True)
        for dropout in (False, True)
    )
    for name, block in trace.blocks.items():
        inputs = sum(shape[1] for shape in linear_layers(block).values())
        before, after = (float(item.blocks[name].saved_bytes.at(2.0, 100.0)) for item in (plain, dropped))
        assert after - before == pytest.approx(inputs * 200.0)


def asked(name, frozen=None):
    workload = Workload(
        seq_len=2048, global_batch_size=16, trainable=LORA, precision=Precision(frozen=frozen)
    )
    return question_of(
        load_model(name), load_cluster("h100-sxm", 8), workload, strategy=Layout(dp_replicate=8)
    )


@pytest.mark.parametrize("name", ["lfm2-8b-a1b", "gemma-4-31b"])
@pytest.mark.parametrize("frozen", [None, "nf4", "int8"])
def test_weights_gradients_and_states_are_those_of_the_parameters(name, frozen):
    trace = adapted(frozen_trace(name), LORA, autocast=False)
    narrow = wide = trained = 0
    for kind in trace.layers:
        for item in trace.blocks[kind].parameters:
            matrix = item.elements if item.name.endswith("proj") or len(item.shape) == 2 else 0
            trained += item.elements * item.trained
            narrow += matrix * (not item.trained)
            wide += (item.elements - matrix) * (not item.trained)
    wide += sum(item.elements for end in (trace.embedding, trace.head) for item in end.parameters)
    result = project(asked(name, frozen))
    stage = result.memory.stages[0]
    assert result.params.trained == trained
    assert stage.weights_bytes == pytest.approx(
        narrow * QUANTISED_BYTES.get(frozen, 2.0) + 2.0 * (wide + trained), rel=1e-9
    )
    assert stage.optimizer_bytes == pytest.approx(12.0 * trained, rel=1e-9)
    assert stage.gradients_bytes == pytest.approx(4.0 * trained, rel=1e-9)


def blocks(name, frozen):
    model = with_adapters(load_model(name), LORA, Precision(frozen=frozen))
    degrees, choices = split_layout(Layout())
    sharding = ShardingRules(
        degrees=degrees, choices=choices, precision=Precision(frozen=frozen), seq_len=2048.0, trainable=LORA
    )
    return model, traced_blocks(model, sharding)[0]


def test_each_product_makes_its_quantised_weight_wide():
    model, (block, *_) = blocks("gemma-4-31b", "int8")
    matrices = {
        path: rows * columns
        for path, (rows, columns) in linear_layers(model.traces[0].blocks[block.name]).items()
        if "lora" not in path
    }
    passes = {
        item.name: [
            [work.bytes_moved for work in part if isinstance(work, Elementwise)]
            for part in (item.forward, item.backward_input)
        ]
        for item in block.operators
    }
    for path, elements in matrices.items():
        assert passes[path] == [[3.0 * elements], [3.0 * elements]]
    assert sum(len(part) for parts in passes.values() for part in parts) == 2 * len(matrices)


def test_the_largest_wide_weight_exists_in_either_pass():
    (_, (plain, *_)), (_, (quantised, *_)) = blocks("gemma-4-31b", None), blocks("gemma-4-31b", "nf4")
    largest = 2.0 * max(item.elements for item in quantised.parameters if item.quantised)
    for name in plain.tensors.keys() - {"saved"}:  # adapters of bf16 under autocast save less
        added = quantised.tensors[name].num_bytes - plain.tensors[name].num_bytes
        assert added == pytest.approx(largest if name.endswith("work") else 0.0)


def test_parts_that_are_trained_whole_are_refused():
    trainable = Trainable(lora_rank=16, whole=("embedding", "head"))
    workload = Workload(seq_len=2048, global_batch_size=8, trainable=trainable)
    question = question_of(
        load_model("gemma-4-31b"), load_cluster("h100-sxm", 8), workload, strategy=Layout(dp_replicate=8)
    )
    with raises(SpecError, "illegal_layout"):
        project(question)


def qlora_stage(fp32_frozen):
    result = fs.project(
        "mistral-7b",
        "a100-sxm-80gb",
        devices=1,
        seq_len=4096,
        global_batch_size=4,
        micro_batch_size=4,
        recompute="full",
        framework="transformers",
        lora_rank=16,
        precision=Precision(frozen="nf4", fp32_frozen=fp32_frozen),
    )
    return result.memory.stages[0]


def test_norms_in_fp32_widen_the_inputs_of_layers():
    narrow, wide = qlora_stage("none"), qlora_stage("norms")
    inputs = 32 * 4 * 4096 * 4096
    # fms-acceleration @876e2ed6fc, a100_80gb.csv: 19.2 and 15.2 GiB allocated with such norms and without
    assert wide.activations_bytes - narrow.activations_bytes == pytest.approx(2 * inputs, rel=0.05)
    assert wide.weights_bytes == narrow.weights_bytes


def test_a_prepared_model_keeps_in_fp32_what_is_not_quantised():
    norms, all_wide = qlora_stage("norms"), qlora_stage("unquantised")
    ends = 2 * 32000 * 4096 + 65 * 4096
    assert all_wide.weights_bytes - norms.weights_bytes == 2 * ends
    assert all_wide.activations_bytes == norms.activations_bytes


@pytest.mark.parametrize(
    ("model", "micro", "gib"), [("mistral-7b", 2, 8.8), ("mistral-7b", 4, 14.9), ("llama-2-70b", 2, 43.5)]
)
def test_fsdp_keeps_the_inputs_of_frozen_layers_and_their_gradients(model, micro, gib):
    # fms-acceleration @876e2ed6fc, a100_80gb.csv: allocated by baseline-peft-bnb on 2 devices
    result = fs.project(
        model,
        "a100-sxm-80gb",
        Layout(
            dp_shard=2,
            zero=3,
            micro_batch_size=micro,
            recompute=Recompute(granularity="full"),
            kernels=Kernels(keeps_layer_inputs=True),
        ),
        devices=2,
        seq_len=4096,
        global_batch_size=2 * micro,
        framework="transformers",
        lora_rank=16,
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        precision=Precision(frozen="nf4"),
    )
    assert result.memory.stages[0].allocated_bytes / 2**30 == pytest.approx(gib, rel=0.05)


@pytest.mark.parametrize(("micro", "gib"), [(4, 34.2), (8, 45.4)])
def test_experts_that_are_linear_layers_are_wide_one_at_a_time(micro, gib):
    # fms-acceleration @876e2ed6fc, a100_80gb.csv: allocated by accelerated-peft-bnb, with transformers 4
    result = mixtral("transformers@4.36", micro)
    assert result.memory.stages[0].allocated_bytes / 2**30 == pytest.approx(gib, rel=0.08)


def test_experts_of_one_parameter_are_not_quantised():
    linear, fused = mixtral("transformers@4.57.1", 1), mixtral("transformers@5.3", 1)
    experts = 32 * 8 * 3 * 4096 * 14336
    added = fused.memory.stages[0].frozen_bytes - linear.memory.stages[0].frozen_bytes
    assert added == pytest.approx((2.0 - 0.5625) * experts)


def mixtral(framework, micro):
    return fs.project(
        "mixtral-8x7b",
        "a100-sxm-80gb",
        devices=1,
        seq_len=4096,
        global_batch_size=micro,
        micro_batch_size=micro,
        recompute="full",
        framework=framework,
        lora_rank=16,
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        precision=Precision(frozen="nf4", fp32_frozen="none"),
    )
