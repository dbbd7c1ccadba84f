import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.megatron.reader import read_arguments
from forescale.frameworks.reading import Options

FLAGS = (
    "--num-layers 6 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--global-batch-size 16 --vocab-size 100 --deepspeed --deepspeed_config $CONFIG "
)
HEAD = """
MBS=2; STAGE={stage}
CONFIG=./ds_config.json
cat <<EOT > $CONFIG
{{
  "train_micro_batch_size_per_gpu": $MBS,
  "zero_optimization": {{"stage": $STAGE, "offload_optimizer": {{"device": "cpu"}}}},
  "{kind}": {{"enabled": true}},
}}
EOT
"""


def read(more="", *, stage=2, kind="fp16", flags="--fp16 --micro-batch-size 2", devices=8):
    text = HEAD.format(stage=stage, kind=kind) + f"deepspeed pretrain_gpt.py {FLAGS} {flags} {more}"
    return read_arguments(text, options=Options(num_devices=devices, strict=False))


def test_states_are_sharded_as_the_written_configuration_says():
    parsed = read("--zero-stage 1 --no-pipeline-parallel")
    assert parsed.framework == "deepspeed-zero@fused"
    assert (parsed.strategy.zero, parsed.strategy.offload.optimizer) == (2, 1.0)
    assert any("--zero-stage 1 has no effect" in note for note in parsed.notes)


def test_a_template_is_filled_in():
    script = (
        "sed 's/ZERO_STAGE/3/' template.json | sed 's/MBS/2/' > conf.json\n"
        f"CONFIG=conf.json; deepspeed pretrain_gpt.py {FLAGS} --micro-batch-size 2 --fp16"
    )
    template = '{"train_micro_batch_size_per_gpu": MBS, "zero_optimization": {"stage": ZERO_STAGE}}'
    parsed = read_arguments(
        script, options=Options(num_devices=8, strict=False), read_neighbour={"template.json": template}.get
    )
    assert (parsed.strategy.zero, parsed.framework) == (3, "megatron-deepspeed")


def test_bf16_shards_the_states_of_stage_0():
    assert read(stage=0, kind="bf16", flags="--bf16 --micro-batch-size 2").strategy.zero == 1


def test_a_configuration_elsewhere_leaves_the_flag():
    text = (
        f"deepspeed pretrain_gpt.py {FLAGS.replace('$CONFIG', 'x.json')} --micro-batch-size 1 --zero-stage 2"
    )
    parsed = read_arguments(text, options=Options(num_devices=8, strict=False))
    assert parsed.strategy.zero == 2
    assert any("ZeRO stage 2 is --zero-stage" in note for note in parsed.notes)


@pytest.mark.parametrize(
    ("flags", "kind", "key"),
    [
        (
            "--fp16 --micro-batch-size 4",
            "fp16",
            "train_micro_batch_size_per_gpu of DeepSpeed's configuration",
        ),
        ("--fp16 --micro-batch-size 2", "bf16", "the type of the flags"),
    ],
)
def test_what_flags_and_configuration_contradict_is_refused(flags, kind, key):
    with raises(ReaderError, f"differs {key}"):
        read(flags=flags, kind=kind)


def test_layers_are_recomputed_and_spread_over_any_number_of_stages():
    parsed = read("--checkpoint-activations --pipeline-model-parallel-size 4", stage=1)
    assert parsed.strategy.recompute.granularity == "full"
    assert parsed.strategy.stage_layers == (2, 2, 1, 1)


def test_experts_are_in_every_second_layer_and_whole_on_each_rank():
    parsed = read(
        "--num-experts 4 --moe-expert-parallel-size 4 --tensor-model-parallel-size 2 --mlp-type residual"
    )
    layout, layers = parsed.strategy, parsed.model.layers
    assert (layout.ep, layout.etp, layout.tp) == (4, 1, 2)
    assert [type(layer.ffn).__name__ for layer in layers] == ["DenseFfn", "MoeFfn"] * 3
    assert (layers[1].ffn.top_k, layers[1].ffn.shared_ffn_hidden_size) == (1, 256)
    assert layout.routing.capacity_factor == 1.0


def test_each_layer_has_its_number_of_experts():
    parsed = read("--num-experts 4 4 8 --moe-expert-parallel-size 4 --mlp-type residual")
    assert [getattr(layer.ffn, "num_experts", 0) for layer in parsed.model.layers] == [0, 4, 0, 4, 0, 8]
    assert parsed.strategy.ep == 4
    dense = read("--num-experts 1 4 8").model.layers
    assert [getattr(layer.ffn, "num_experts", 0) for layer in dense] == [0, 0, 0, 4, 0, 8]


def test_numbers_of_experts_are_as_many_as_layers_that_have_them():
    with raises(ReaderError, "wrong_count --num-experts", value="2 numbers", allowed="3 layers with experts"):
        read("--num-experts 4 8")


def test_sequences_over_ranks_are_exchanged_by_heads():
    layout = read("--ds-sequence-parallel-size 4").strategy
    assert (layout.cp, layout.cp_kind, layout.dp) == (4, "ulysses", 2)


def test_experts_that_their_ranks_do_not_divide_are_named_by_their_flags():
    more = "--num-experts 32 64 --moe-expert-parallel-size 64 --topk 1"
    with raises(ReaderError, "not_a_factor --expert-model-parallel-size"):
        read(more, devices=64)


def test_vision_transformer_is_no_text_model():
    with raises(ReaderError, "not_expressed pretrain_vision_classify.py"):
        read_arguments(f"deepspeed pretrain_vision_classify.py {FLAGS} --vocab-size 0 --micro-batch-size 1")


@pytest.mark.parametrize(("size", "elements"), [('"reduce_bucket_size": 2e8, ', 2e8), ("", None)])
def test_the_bucket_of_the_configuration_is_one_of_the_kernels(size, elements):
    text = HEAD.replace('"stage": $STAGE', f'{size}"stage": $STAGE').format(stage=1, kind="fp16")
    text += f"deepspeed pretrain_gpt.py {FLAGS} --fp16 --micro-batch-size 2"
    parsed = read_arguments(text, options=Options(num_devices=8, strict=False))
    assert parsed.layout_fields["kernels"].get("bucket_elements") == elements
    assert len(parsed.layout_fields["kernels"]) > 1
