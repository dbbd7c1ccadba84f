import pytest
from tests.errors import fields, raises

from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.megatron.arguments import known_flags, parse_arguments
from forescale.frameworks.megatron.reader import read_arguments

SCRIPT = r"""#!/bin/bash
# a comment with --num-layers 3
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NNODES=${NNODES:-2}
TP=4
LOGS="a folder"
mkdir --parents $LOGS
MODEL_ARGS=(
  --num-layers 24   # inline
  --hidden-size 1024
  --swiglu
)
TRAIN="--micro-batch-size 2 --global-batch-size=64 \
   --bf16"
torchrun --nproc_per_node $GPUS --nnodes $NNODES --master_port 6000 pretrain_gpt.py \
  ${MODEL_ARGS[@]} "$TRAIN" --tensor-model-parallel-size $TP \
  --moe-layer-freq '([0]*3+[1]*21)' --recompute-modules core_attn mlp --save "$LOGS/it's"
"""


def values(arguments, **more):
    line = parse_arguments(arguments, where="run.sh", **more)
    return {key: line.settings.get(key) for key in line.settings._values}


def test_a_launch_script():
    line = parse_arguments(SCRIPT, where="run.sh")
    assert line.num_devices == 16
    assert values(SCRIPT) == {
        "num_layers": "24", "hidden_size": "1024", "swiglu": True, "micro_batch_size": "2",
        "global_batch_size": "64", "bf16": True, "tensor_model_parallel_size": "4",
        "moe_layer_freq": "([0]*3+[1]*21)", "recompute_modules": ["core_attn", "mlp"],
        "save": "a folder/it's",
    }  # fmt: skip


def test_what_the_caller_says_comes_before_the_script():
    assert parse_arguments(SCRIPT, where="x", variables={"NNODES": "4"}).num_devices == 32
    assert values(SCRIPT, variables={"TP": "2"})["tensor_model_parallel_size"] == "2"


@pytest.mark.parametrize(
    "arguments",
    [
        "--num-layers 4 --disable-bias-linear --bf16",
        "python pretrain_gpt.py --num-layers=4 --disable-bias-linear --bf16",
        "--num-layers 4 \\\n --disable-bias-linear \\\n --bf16\n",
        ["--num-layers", "4", "--disable-bias-linear", "--bf16"],
    ],
)
def test_four_spellings_of_one_command(arguments):
    assert values(arguments) == {"num_layers": "4", "add_bias_linear": False, "bf16": True}


def test_a_table():
    table = {"--num-layers": 4, "--disable-bias-linear": True, "--swiglu": False, "--bf16": None}
    assert values(table) == {"num_layers": 4, "add_bias_linear": False, "swiglu": False}


def test_the_last_of_a_repeated_flag_counts():
    assert values("--num-layers 4 --num-layers 8") == {"num_layers": "8"}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ("--num-layer 4", UnknownKeyError, "unknown_key --num-layer"),
        ("--num-layers 4 --bf16 yes", ReaderError, "wrong_type --bf16"),
        ("hello world", ReaderError, "incomplete Megatron-LM flags (words such as --num-layers)"),
        ("", ReaderError, "incomplete Megatron-LM flags (words such as --num-layers)"),
        ("--num-layers '4", ReaderError, "not whole shell text: no closing"),
    ],
)
def test_bad_arguments(arguments, error, text):
    with raises(error, text):
        parse_arguments(arguments, where="run.sh")


def test_a_flag_without_its_value_is_refused_where_it_is_read():
    line = parse_arguments("--num-layers --save --bf16", where="run.sh")
    with raises(ReaderError, "no_value --num-layers"):
        line.settings.size("num_layers")


def test_unknown_flags_can_be_listed_instead():
    line = parse_arguments("--num-layers 4 --new-thing 3 --new-thing 4", where="x", strict=False)
    assert line.unknown == ("--new-thing",)


def test_the_list_of_flags_is_whole():
    assert len(known_flags()) > 800
    assert known_flags()["--fp8-format"] == ("fp8", "value")
    assert {kind for _, kind in known_flags().values()} == {"value", "true", "false"}


def test_an_error_names_its_origin_once():
    with pytest.raises(ReaderError) as refused:
        read_arguments("--num-experts 8 --tensor-model-parallel-size 2 --micro-batch-size 1 --num-layers 2 "
                       "--hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100", where="run.sh")  # fmt: skip
    assert (refused.value.path, fields(refused.value)) == ("run.sh", "required_with --sequence-parallel")
    assert str(refused.value).count("run.sh") == 1


def test_a_program_that_an_argument_names_has_its_flags():
    text = "P=$1\nD=(--nproc_per_node 2 --master_port 6000)\nA=(\n --num-layers 4\n --hidden-size 64\n)\n"
    line = parse_arguments(text + "torchrun ${D[@]} ${P} ${A[@]} --bf16\n", where="x", strict=False)
    assert (line.num_devices, line.settings.size("num_layers"), line.settings.flag("bf16")) == (2, 4, True)


def test_a_script_that_only_sets_arrays_keeps_their_values():
    text = "A=(\n --num-layers 4\n --hidden-size 64\n)\nB=(--bf16)\n"
    line = parse_arguments(text, where="x", strict=False)
    assert (line.settings.size("num_layers"), line.settings.size("hidden_size")) == (4, 64)


WORLD = "NODES=3\n{set}WORLD_SIZE=$((4 * NODES))\n{start} pretrain_gpt.py --num-layers 2 --hidden-size 64\n"


@pytest.mark.parametrize(
    ("sets", "start", "devices"),
    [
        ("export ", "numactl -m 4-7 python", 12),
        ("", "python", None),
        ("export ", "torchrun --nproc-per-node 8", 8),
    ],
)
def test_processes_without_a_launcher_are_those_of_the_environment(sets, start, devices):
    line = parse_arguments(WORLD.format(set=sets, start=start), where="run.sh")
    assert line.num_devices == devices
    assert line.places == {12: ("WORLD_SIZE 12 (line 2)",), None: ()}.get(devices, line.places)


def test_of_runs_with_as_many_flags_of_megatron_the_one_with_the_most_is_read():
    run = "torchrun pretrain_gpt.py --num-layers {} --hidden-size 64 {}\n"
    text = run.format(2, "") + run.format(3, "--distribute-checkpointed-activations") + run.format(4, "")
    assert values(text)["num_layers"] == "3"
