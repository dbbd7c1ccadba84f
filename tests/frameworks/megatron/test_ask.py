import pytest
from tests.errors import raises

from forescale.errors import MissingError
from forescale.frameworks.megatron.reader import read_arguments
from forescale.frameworks.reading import Options

SCRIPT = """
ENV=$1
SIZE=$2
MBS=$3
TYPE=${4}
if [ $SIZE = 1B ]; then LAYERS=4; elif [ $SIZE = 2B ]; then LAYERS=8; fi
case $TYPE in bf16) T=--bf16;; fp16) T=--fp16;; esac
torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --seq-length 32 \\
  --max-position-embeddings 32 --micro-batch-size $MBS --global-batch-size 8 --vocab-size 100 $T $UNUSED
"""


def read(arguments=None, text=SCRIPT):
    passed = None if arguments is None else tuple(arguments.split())
    return read_arguments(text, options=Options(num_devices=8, arguments=passed))


def test_one_error_names_all_arguments_their_use_and_an_example():
    with raises(MissingError, "missing --args", fix='--args "1 1B 1 bf16"') as refused:
        read()
    (fact,) = refused.value.facts
    assert all(
        part in fact.what for part in ("$2 = SIZE, 1B | 2B", "$3 = MBS, --micro-batch-size", "$4 = TYPE")
    )


def test_the_example_and_other_arguments_are_read():
    assert read("1 1B 1 bf16").model.num_layers == 4
    parsed = read("x 2B 1 fp16")
    assert (parsed.model.num_layers, parsed.workload_fields["precision"]["compute"]) == (8, "fp16")


def test_arguments_that_decide_nothing_are_not_asked_for():
    assert (
        read(text=SCRIPT.replace("$2", "2B").replace("$3", "1").replace("${4}", "bf16")).model.num_layers == 8
    )


@pytest.mark.parametrize(("value", "example"), [("$N", 32), ("$((N * 2))", 1), ('"$N"', 32)])
def test_a_variable_of_the_environment_is_asked_for_by_its_flag(value, example):
    text = SCRIPT.replace("$LAYERS", value).replace("$2", "x").replace("$3", "1").replace("${4}", "bf16")
    with raises(MissingError, "missing --var", fix=f"--var N={example}"):
        read(text=text)


@pytest.mark.parametrize(
    ("name", "example"),
    [("DP", 4), ("DATA_PARALLEL_SIZE", 4), ("WORLD_SIZE", 32), ("GPUS_PER_NODE", 8), ("ACC", 1)],
)
def test_the_example_of_a_sum_fits_the_degrees(name, example):
    text = SCRIPT.replace("$LAYERS", "4").replace("$2", "x").replace("$3", "1").replace("${4}", "bf16")
    more = (
        "--num-experts 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel"
    )
    more += " --expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
    text = text.replace("--global-batch-size 8", f"--global-batch-size $((32 * {name})) {more}")
    with raises(MissingError, "missing --var", fix=f"--var {name}={example}"):
        read(text=text)
    parsed = read_arguments(text, options=Options(variables={name: str(example)}))
    assert parsed.workload_fields["global_batch_size"] == 32 * example
    assert parsed.strategy.dp_shard * parsed.strategy.dp_replicate == 4


def test_the_variable_by_which_a_script_chooses_is_asked_for():
    text = SCRIPT.replace("ENV=$1\nSIZE=$2\nMBS=$3\nTYPE=${4}\n", "MBS=1\nTYPE=bf16\n")
    with raises(MissingError, "missing --var", fix="--var SIZE=1B"):
        read(text=text)


def test_flags_with_underscores_are_those_of_a_fork():
    names = (
        "num-layers",
        "hidden-size",
        "num-attention-heads",
        "seq-length",
        "micro-batch-size",
        "global-batch-size",
    )
    spelt = SCRIPT.replace("max-position-embeddings", "max_position_embeddings").replace(
        "vocab-size", "vocab_size"
    )
    for name in names:
        spelt = spelt.replace(f"--{name}", f"--{name.replace('-', '_')}")
    parsed = read("1 1B 1 bf16", text=f"{spelt.rstrip()} --no_tie_embed_logits\n")
    assert (parsed.model.num_layers, parsed.model.tied_embeddings) == (4, False)


def test_variables_of_a_sum_have_an_example_that_works():
    words = (
        "python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 100 "
        "--micro-batch-size 1 --tensor-model-parallel-size $TP --global-batch-size $((TP * STEPS * NGPUS))"
    )
    with raises(MissingError, "missing") as missing:
        read_arguments(words)
    assert [fact.example for fact in missing.value.facts] == ["--var TP=1", "--var STEPS=1", "--var NGPUS=8"]


def test_example_chooses_the_usual_type_and_no_recomputation():
    text = SCRIPT.replace("bf16) T=--bf16;; fp16) T=--fp16;;", "fp16) T=--fp16;; bf16) T=--bf16;;")
    text += "AC=$5; if [ $AC = full ]; then R=1; elif [ $AC = none ]; then R=2; fi\n"
    with raises(MissingError, "missing --args", fix='--args "1 1B 1 bf16 none"'):
        read(text=text)


def test_flags_and_the_vocabulary_are_asked_for_at_once():
    text = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \\\n"
    text += "  --micro-batch-size 1 --tokenizer-type SentencePieceTokenizer ${LOG_ARGS}\n"
    with raises(MissingError, "missing") as refused:
        read(text=text)
    assert [fact.flag for fact in refused.value.facts] == [
        "--var LOG_ARGS='FLAGS'",
        "--set model.vocab_size=N",
    ]


def test_a_pipeline_layout_of_the_environment_is_asked_for_with_one_that_fits():
    more = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout ${STAGES}"
    text = SCRIPT.replace("$LAYERS", "5").replace("$2", "x").replace("$3", "1").replace("${4}", "bf16")
    text = text.replace("$UNUSED", more)
    with raises(MissingError, "missing --var", fix="""--var 'STAGES="Et*2|t*3L"'"""):
        read(text=text)
    stages = Options(num_devices=8, variables={"STAGES": '"Et*2|t*3L"'})
    assert read_arguments(text, options=stages).strategy.stage_layers == (2, 3)


@pytest.mark.parametrize(
    ("launcher", "asked"),
    [
        ("torchrun --nproc_per_node 4 --nnodes $N", True),
        ("deepspeed", True),
        ("torchrun --nproc_per_node 4 --nnodes 2", False),
        ("python", False),
    ],
)
def test_devices_are_asked_for_where_a_launcher_leaves_them_open(launcher, asked):
    flags = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1"
    text = f"{launcher} pretrain_gpt.py {flags} --global-batch-size 8 --vocab-size 100 --tensor-model-parallel-size 2\n"
    parsed = read_arguments(text, options=Options())
    facts = [fact.example for fact in parsed.missing if fact.part == "devices"]
    assert facts == (["--devices 2"] if asked else [])
