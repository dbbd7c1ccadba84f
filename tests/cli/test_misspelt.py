"""Options that a command does not have, known from a table."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.flags import TABLE, written

from forescale.cli.advice import flags_of
from forescale.cli.memory import DEFAULT
from forescale.cli.misspelt import USUAL, _rates, command_in, misspelt, started, translated
from forescale.cli.words import values_of
from forescale.synonyms import _WITH_VALUES


def test_the_table_is_that_of_the_commands() -> None:
    assert TABLE.read_text(encoding="utf-8") == written()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("project", "m", "--tpp", "2"), "--tpp"),
        (("project", "m", "--tpp=2"), "--tpp"),
        (("project", "--plan", "--tpp"), None),  # the value of an option is none
        (("project", "--plan=p.toml", "--tpp"), "--tpp"),
        (("project", "m", "--json", "--tpp"), "--tpp"),
        (("project", "m", "--", "--tpp"), None),
        (("project", "m", "--tpp", "--help"), None),
        (("project", "--help-all"), None),
        (("project", "--plan=", "--tpp"), "--tpp"),
        (("pipeline", "draw", "1f1b", "--rank", "4"), "--rank"),
        (("--tpp", "project"), None),
        ((), None),
    ],
)
def test_first_option_that_is_unknown(arguments: tuple[str, ...], option: str | None) -> None:
    text = misspelt(arguments)
    assert (
        text is None if option is None else text is not None and text.startswith(f"No such option: {option};")
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--fsdp",), "write --zero 3"),
        (("--fsdp", "--tp", "2"), "write --zero 3"),
        (("--fsdp", "3"), "did you mean --zero?"),
        (("--fsdp=3",), "did you mean --zero?"),
        (("--qlora",), "write --lora-rank 16 --frozen-dtype nf4 --recompute full"),
        (("--gradient_checkpointing",), "write --recompute full"),
        (("--bf16",), "write --precision bf16"),
    ],
)
def test_a_switch_of_others_is_written_as_an_option_with_its_value(words: tuple[str, ...], hint: str) -> None:
    text = misspelt(("project", "m", *words))
    assert text is not None
    said, _, example = text.partition("; ")[2].partition(" For example: ")
    assert said.removesuffix(" (see forescale project --help)").removesuffix(".") == hint
    assert bool(example) == hint.startswith("write")


def test_several_values_of_an_option_of_others_are_varied() -> None:
    for words in (("--zero-stage", "2,3"), ("--zero-stage=2,3",)):
        text = misspelt(("compare", "m", *words))
        assert text is not None
        assert text.partition("; ")[2] == (
            "write --vary zero=2,3. For example: forescale compare m --vary zero=2,3 --devices 8 --global-batch-size 64"
        )


def test_every_option_that_stands_for_a_switch_is_one_of_a_command() -> None:
    for _, written_so in _WITH_VALUES:
        words = written_so.split()
        path = "check" if "--solve" in words else "project"
        flags = flags_of(path)
        assert all(name in flags and flags[name] == 1 for name in words[::2])
        assert values_of(path, ["m", *words]) is not None


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (("m", "--gpu", "b200", "--tensor-parallel-size=4"), "m --cluster b200 --tp=4"),
        (("m", "--qlora", "--gpus", "8"), "m --lora-rank 16 --frozen-dtype nf4 --recompute full --devices 8"),
        (("--model", "m", "--seq_length", "8k", "--devices", "2"), "--model m --seq-len 8k --devices 2"),
        (("m", "--gpus", "8", "--", "x"), "m --devices 8 -- x"),
        (("m", "--full-finetune", "--packing", "--devices", "2"), "m --devices 2"),
        (("m", "--flash-attn", "--gpus", "8"), "m --flash-attention --devices 8"),
        (("m", "--gpus", "8", "--set", "a b"), "m --devices 8 --set 'a b'"),
        (("m", "--gpus", "8", "--epochs", "3"), None),  # tokens are counted otherwise
        (("m", "--gpus", "8", "--gradient-accumulation-steps", "3"), None),
        (("m", "--gpus"), None),  # without its value
        (("m", "--gpus", "8", "--zzz"), None),
    ],
)
def test_a_command_line_that_says_the_same(words: tuple[str, ...], example: str | None) -> None:
    given = ("--nodes", "1", "--global-batch-size", "64")
    text = misspelt(("project", *given, *words))
    assert text is not None
    said = text.partition("For example: forescale project ")[2]
    assert said == ("" if example is None else f"{shlex.join(given)} {example}")


def test_what_an_example_adds(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.touch()
    for words, added in (
        (("project", "m"), " --global-batch-size 64"),
        (("project", "m", "--global-batch-size", "8"), ""),
        (("project", str(file)), ""),
        (("project", "--plan", "p.toml"), ""),
    ):
        text = misspelt((*words, "--gpus", "8"))
        assert text is not None
        assert text.endswith(f"For example: forescale {shlex.join(words)} --devices 8{added}")


def test_several_values_are_compared() -> None:
    words = ("m", "--cluster", "h100", "--devices", "64,128", "--global-batch-size", "512")
    text = misspelt(("sweep", *words))
    assert text is not None
    assert text.endswith(f"For example: forescale compare {shlex.join(words)}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("run", "m", "--carbon"),
            "--carbon takes a value; us-2023 where it is left out (see forescale run --help)",
        ),
        (
            ("pipeline", "draw", "1f1b", "--pp"),
            "--pp takes a value (see forescale pipeline draw --help)",
        ),
        (("search", "m", "--precision"), "--precision takes a value, one of fp32, tf32"),
    ],
)
def test_an_option_without_its_value(forescale, words: tuple[str, ...], said: str) -> None:
    ran = forescale(*words)
    assert (ran.code, said in ran.err) == (2, True)


def test_several_unknown_options_are_one_error() -> None:
    text = misspelt(("compare", "m", "--gpu", "h100,b200", "--epochs", "3"))
    assert text == (
        "No such option: --epochs; did you mean --tokens? tokens = epochs × samples × "
        "tokens of a sample (see forescale compare --help)"
    )
    text = misspelt(("compare", "m", "--tpp", "2", "--foo", "--gpus", "8"))
    assert text == "No such options: --tpp (did you mean --tp or --pp?), --foo (see forescale compare --help)"


def test_rollouts_are_left_out_with_one_sentence() -> None:
    words = "project m --gpu 8xH100 --grpo --num-generations 8 --bs 64"
    text = misspelt(words.split())
    assert text == (
        "No such options: --grpo, --num-generations (leave them out: the training step is projected, rollouts are not; "
        "add their time). For example: forescale project m --global-batch-size 64 --cluster h100-sxm --devices 8"
    )
    text = misspelt(("fit", "m", "--max-seq-len"))
    assert text == (
        "No such option: --max-seq-len; write forescale check --solve seq_len. For example: "
        "forescale check m --solve seq_len --devices 8 --global-batch-size 64"
    )


def test_a_command_that_is_none() -> None:
    assert misspelt(("projct", "--tpp")) == (
        "No such command 'projct'; did you mean forescale project or forescale projection? (see forescale --help)"
    )
    assert misspelt(("plan",)) == "No such command 'plan'; forescale search does that (see forescale --help)"
    assert misspelt(("zzz",)) == "No such command 'zzz' (see forescale --help)"


def test_the_error_loads_neither_arrays_nor_parsers() -> None:
    code = (
        "import sys\nsys.argv[1:] = ['project', 'm', '--tpp', '2']\nfrom forescale.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, [name for name in ('numpy', 'typer', 'rich', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
    assert done.stderr.startswith("error: No such option: --tpp; did you mean --tp or --pp")


def test_options_of_a_group_that_takes_its_usual_command() -> None:
    assert {"memory": f"memory {DEFAULT}"} == USUAL
    text = misspelt(("memory", "m", "--gpu", "b200"))
    assert text is not None and text.startswith("No such option: --gpu; did you mean --cluster? ")
    assert "forescale memory layout m --cluster b200" in text
    assert misspelt(("memory", "70", "--gpu", "b200")) is None  # of `memory states`


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (
            "project m --gpu b200 --gpus 8 --batch-size 64",
            "project m --cluster b200 --devices 8 --global-batch-size 64",
        ),
        (
            "fit m --qlora --max_seq_length=2k",
            "fit m --lora-rank 16 --frozen-dtype nf4 --recompute full --seq-len=2k",
        ),
        ("project m --recompute-activations", "project m --recompute selective"),
        ("project m --recompute-granularity full", "project m --recompute full"),
        ("search m --zero-stage 2", "search m --fix zero=2"),
        ("compare m --zero 2,3 --devices 8,16", "compare m --vary zero=2,3 --devices 8,16"),
        ("memory m --gpu b200", "memory layout m --cluster b200"),
        ("run m --epochs 3 --num-examples 50k --max-length 1000", "run m --seq-len 1000 --tokens 150000000"),
        ("run m --tokens 15B --epochs 2", "run m --tokens 30000000000"),
        ("run m --checkpoint-interval 30min", "run m --interval 30min"),
        ("run m --steps 100 --gbs 8 --seq 1k", "run m --global-batch-size 8 --seq-len 1k --tokens 800000"),
        ("run m --gpu-price 2 --no-failures", "run m --price 2 --failures 0"),
        (
            "project m --gpus 8 --bs 4 --ga 2",
            "project m --devices 8 --micro-batch-size 4 --global-batch-size 64",
        ),
        (
            "project m --devices 8 --gbs 64 --ga 2",
            "project m --devices 8 --global-batch-size 64 --micro-batch-size 4",
        ),
        (
            "project m --gpu b200 --bs 4",
            "project m --cluster b200 --micro-batch-size 4 --global-batch-size 4",
        ),
        (
            "project m --config accelerate.yaml --cluster a100 --bs 32",
            "project m --config accelerate.yaml --cluster a100 --global-batch-size 32",
        ),
        ("search m --devices 1 --bs 4", "search m --devices 1 --global-batch-size 4"),
        ("project m --ac selective --lora 8", "project m --recompute selective --lora-rank 8"),
        ("project m --ulysses 8 --compile", "project m --cp 8 --cp-kind a2a --compile default"),
        (
            "project m --vram 40GB --vram=48GB",
            "project m --set cluster.device.hbm_bytes=40GB --set cluster.device.hbm_bytes=48GB",
        ),
        (
            "search m --max-tp 4 --no-pp --minimize memory --limit 3",
            "search m --fix tp=1,2,4 --fix pp=1 --objective memory --top 3",
        ),
        (
            "memory m --dpo --lora --seq 1k",
            "memory layout m --set workload.reference=shared --lora-rank 16 --seq-len 1k",
        ),
        ("memory m --dpo --gpu b200", "memory layout m --set workload.reference=copy --cluster b200"),
        ("compare m --gpus h100,b200 --devices 8", "compare m --cluster h100,b200 --devices 8"),
        ("diagnose m --mfu 38% --log t.log", "diagnose m --measured mfu=38% --measured t.log"),
        (
            "project m --cluster a100 --nodes 2 --gpus-per-node 4",
            "project m --cluster a100 --nodes 2 --set cluster.devices_per_node=4",
        ),
        (
            "project m --cluster a100 --devices 16 --gpus-per-node 4",
            "project m --cluster a100 --devices 16 --set cluster.devices_per_node=4",
        ),
        ("project m --cluster a100 --nodes 2 --gpus-per-node 8", "project m --cluster a100 --nodes 2"),
    ],
)
def test_names_of_other_tools_are_read_as_ours(words: str, read: str) -> None:
    result = translated(words.split())
    assert result is not None
    assert result[0] == read.split()
    assert result[1].startswith("note (options): --")
    assert max(map(len, result[1].splitlines())) <= 100


@pytest.mark.parametrize(
    "words",
    [
        "project m --devices 8",  # nothing to read otherwise
        "project m --gpu --gpus 8",  # without its value
        "project m --gpus 8 --tpp 4",  # misspelt
        "run m --gpus 8 --epochs 3",  # of how many samples
        "run m --gpus 8 --mtbf 3h",  # of the job or of a node
        "project m --gpus 8 --sharding-strategy hybrid_shard",  # how many replicas
        "project m --gpus 8 --mbs 2 --gas 4 --gbs 32",  # a batch in two ways
        "run m --nodes 2 --save-interval 500",  # steps, not seconds
        "project m --gpus 8 --help",
        "project m --cluster 8xh100 --devices 16",  # devices in two ways
        "project m --cluster a100-80",  # bytes or devices
        "compare m --cluster 8xh100,8xb200",
    ],
)
def test_what_is_open_is_not_read_otherwise(words: str) -> None:
    assert translated(words.split()) is None


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (
            "run m --mtbf 3h --cluster h100 --devices 16384",
            "run m --cluster h100 --devices 16384 --failures 0.00391 --global-batch-size 64",
        ),
        (
            "run m --mtbf 3h --cluster gb200 --devices 16384",  # nodes of four
            "run m --cluster gb200 --devices 16384 --failures 0.00195 --global-batch-size 64",
        ),
        ("run m --mtbf 3h --devices 16384", None),  # of nodes of how many
        (
            "run m --mtbf 50000h --cluster h100 --devices 16384",  # of one device: no job stays whole so long
            "run m --cluster h100 --devices 16384 --failures 0.00384 --global-batch-size 64",
        ),
        ("run m --mtbf 2d --nodes 4", "run m --nodes 4 --failures 0.125 --global-batch-size 64"),
        (
            "compare m --cluster h100 --network 100G,400G",
            "compare m --cluster h100 --vary cluster.tiers.infiniband.bandwidth=12.5GB/s,50GB/s "
            "--devices 8 --global-batch-size 64",
        ),
        (
            "project m --cluster h100 --network 200Gbps --nodes 2",
            "project m --cluster h100 --nodes 2 --set cluster.tiers.infiniband.bandwidth=25GB/s --global-batch-size 64",
        ),
        (
            "fit m --per-device-train-batch-size 2 --gradient-accumulation-steps 8",
            "fit m --micro-batch-size 2 --global-batch-size 16 --devices 1",
        ),
        (
            "project m --cluster h100 --devices 64 --hsdp --global-batch-size 64",
            "project m --cluster h100 --devices 64 --zero 3 --global-batch-size 64 --dp-replicate 8",
        ),
        (
            "project m --cluster gb200 --devices 64 --hsdp --global-batch-size 64",
            "project m --cluster gb200 --devices 64 --zero 3 --global-batch-size 64 --dp-replicate 16",
        ),
        ("project m --devices 64 --hsdp --global-batch-size 64", None),  # in nodes of how many
        (
            "compare m --devices 64 --hsdp --replicas 1,8 --global-batch-size 64",
            "compare m --devices 64 --zero 3 --vary dp-replicate=1,8 --global-batch-size 64",
        ),
        (
            "project m --cluster h100 --devices 64 --fsdp hybrid_shard --global-batch-size 64",
            "project m --cluster h100 --devices 64 --zero 3 --global-batch-size 64 --dp-replicate 8",
        ),
        ("project m --devices 8 --hsdp", None),  # of one node
        (
            "search m --devices 8 --max-step-time 12 --global-batch-size 64",
            "search m --devices 8 --global-batch-size 64",
        ),
        (
            "memory m --devices 8 --per-stage --global-batch-size 64",
            "memory layout m --devices 8 --global-batch-size 64",
        ),
        (
            "compare m --devices 8,16 --budget 100k --global-batch-size 64",
            "compare m --devices 8,16 --global-batch-size 64",
        ),
        (
            "run m --devices 8 --budget 1M --price 2 --global-batch-size 64",
            "check m --devices 8 --max-cost 1M --price 2 --global-batch-size 64 --solve tokens",
        ),
        ("project m --nodes 2 --zzz", None),
        (
            "run m --cluster h100 --devices 64 --global-batch-size 64 --failures 3d",
            "run m --cluster h100 --devices 64 --global-batch-size 64 --failures 0.0417",
        ),
        (
            "run m --devices 8 --steps 10",
            "run m --devices 8 --tokens 2621440 --global-batch-size 64 --seq-len 4096",
        ),
        (
            "run m --bs 2 --ga 16 --steps 10 --seq 1k",
            "run m --micro-batch-size 2 --seq-len 1k --tokens 320000 --global-batch-size 32 --devices 1",
        ),
        (
            "search m --cluster h100,b200 --devices 8 --global-batch-size 64",
            "compare m --cluster h100,b200 --devices 8 --global-batch-size 64",
        ),
        (
            "project m --cluster h100 --devices 8 --tp 2,4 --global-batch-size 64",
            "compare m --cluster h100 --devices 8 --vary tp=2,4 --global-batch-size 64",
        ),
        (
            "project m --devices 8 --measured mfu=38% --global-batch-size 64",
            "diagnose m --devices 8 --measured mfu=38% --global-batch-size 64",
        ),
    ],
)
def test_values_in_other_units_are_an_example(words: str, example: str | None) -> None:
    text = misspelt(words.split())
    assert text is not None
    assert text.partition("For example: forescale ")[2] == (example or "")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("project m --nproc-per-node 8", "project m --devices 8"),
        ("project m --nnodes 4 --nproc-per-node 8", "project m --nodes 4"),
        ("project m --fsdp full_shard", "project m --zero 3"),
        (
            "project m --gpus 16 --tp 2 --mbs 2 --grad-accum 4",
            "project m --devices 16 --tp 2 --micro-batch-size 2 --global-batch-size 64",
        ),
        ("search m --gpus 8 --sequence-parallel", "search m --devices 8 --fix sp=true"),
        ("compare m --gpus 8 --seq-parallel on,off", "compare m --devices 8 --vary sp=on,off"),
        ("project m --gpus 8 --ctx-len 4k", "project m --devices 8 --seq-len 4k"),
        ("search m --sequence-parallel --gpus 8", "search m --fix sp=true --devices 8"),
        ("fit m --optim adamw_8bit", "fit m --optimizer adamw --moment-dtype fp8"),
        ("fit m --optimizer adamw_8bit", "fit m --optimizer adamw --moment-dtype fp8"),
        ("run m --failure-rate 0.01", "run m --failures 0.01"),
        ("run m --energy-price 0.1", "run m --electricity-price 0.1"),
        ("search m --fsdp --gpus 8", "search m --fix zero=3 --devices 8"),
        ("search m --fsdp full_shard --gpus 8", "search m --fix zero=3 --devices 8"),
        ("search m --gradient-checkpointing", "search m --fix recompute=full"),
        ("search m --cpu-offload", "search m --set layout.offload.optimizer=1"),
        ("search m --qlora", "search m --lora-rank 16 --frozen-dtype nf4"),
        ("fit m --offload-optimizer --devices 8", "fit m --offload-optimizer 1 --devices 8"),
        ("fit m --devices 8 --recompute", "fit m --devices 8 --recompute full"),
        ("compare m --vary optimizer=adamw,adamw_8bit", "compare m --vary moment-dtype=fp32,fp8"),
        ("compare m --optim adamw_torch,adamw_8bit", "compare m --vary moment-dtype=fp32,fp8"),
        ("compare m --vary optimizer=adamw_torch,muon", "compare m --vary optimizer=adamw,muon"),
        (
            "project m --devices 8 --tp 2 --per-device-train-batch-size 2",
            "project m --devices 8 --tp 2 --micro-batch-size 2 --global-batch-size 8",
        ),
        (
            "fit m --cluster gb200 --nodes 2 --per-device-train-batch-size 2",
            "fit m --cluster gb200 --nodes 2 --micro-batch-size 2 --global-batch-size 16",
        ),
        ("fit m --per-device-train-batch-size 2", "fit m --micro-batch-size 2 --global-batch-size 2"),
        ("fit p.toml --nodes 2 --per-device-train-batch-size 2", "fit p.toml --nodes 2 --micro-batch-size 2"),
        ("run m --checkpoint-interval auto", "run m"),
        (
            "network --gpu h100 --op all_reduce --size 1GB",
            "network --cluster h100 --collectives all_reduce --sizes 1GB",
        ),
        ("pipeline compare --stages 8 --micro-batches 32", "pipeline compare --pp 8 --microbatches 32"),
        ("project m --format json", "project m --as json"),
        (
            "fit m --lora-rank 8 --lora-targets all-linear",
            "fit m --lora-rank 8 --lora-targets q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        ),
        ("pipeline draw --format svg --stages 4", "pipeline draw --format svg --pp 4"),
        ("project m --cluster 8xh100", "project m --cluster h100-sxm --devices 8"),
        ("project m --gpu 2xA100", "project m --cluster a100-sxm-80gb --devices 2"),
        ("project m --gpus 8xh100 --gbs 8", "project m --global-batch-size 8 --cluster h100-sxm --devices 8"),
    ],
)
def test_values_and_plurals_of_other_tools_are_read_as_ours(words: str, read: str) -> None:
    result = translated(words.split())
    assert result is not None
    assert result[0] == read.split()


def test_a_note_says_how_the_batch_of_one_device_is_given() -> None:
    for words in (
        "project m --devices 8 --batch-size 64 --framework transformers@sdpa",
        "project m --devices 8 --batch-size 64 --framework=trl",
        "project m --batch-size 64 --per-device-train-batch-size 2",
    ):
        result = translated(words.split())
        assert result is not None
        assert "--per-device-train-batch-size gives one device's" in " ".join(result[1].split())
    result = translated(["project", "m", "--batch-size", "64", "--framework", "megatron"])
    assert result is not None
    assert "gives one device's" not in result[1]


def test_values_of_two_options_are_not_varied() -> None:
    assert translated(["compare", "m", "--vary", "optimizer=muon,adamw_8bit"]) is None
    assert translated(["compare", "m", "--vary", "zero=2,3"]) is None


def test_a_link_between_sites_and_another_command_are_examples() -> None:
    text = misspelt(["sites", "m", "--nodes", "8", "--bandwidth", "800Gbps"])
    assert text is not None
    assert text.endswith("forescale sites m --nodes 8 --sites 2,800Gbit/s,30ms --global-batch-size 64")
    text = misspelt(["list", "gpus"])
    assert (
        text == "No such command 'list'; forescale catalogue does that. For example: forescale catalogue gpus"
    )


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("project m --ep-size 8 --pipe-parallel-size 4", "project m --ep 8 --pp 4"),
        ("compare m --strategy ddp,fsdp", "compare m --vary zero=0,3"),
        ("pipeline draw gpipe --num-microbatches 8", "pipeline draw gpipe --microbatches 8"),
    ],
)
def test_degrees_strategies_and_microbatches(words: str, read: str) -> None:
    result = translated(words.split())
    assert result is not None
    assert result[0] == read.split()


@pytest.mark.parametrize(
    ("words", "set_by"),
    [
        (
            "project m --cluster h100 --nodes 2 --nvlink-bandwidth 225GB/s",
            "cluster.tiers.nvlink.bandwidth=225GB/s",
        ),
        (
            "project m --cluster h100 --nodes 2 --network-bandwidth x0.5",
            "cluster.tiers.infiniband.bandwidth=x0.5",
        ),
    ],
)
def test_the_tier_that_an_option_names(words: str, set_by: str) -> None:
    text = misspelt(words.split())
    assert text is not None
    assert f" --set {set_by} " in text.partition("For example: ")[2]


def test_an_option_that_is_only_alike_is_not_in_an_example() -> None:
    for words in ("project m --nodes 2 --modes-size 8", "project m --nodes 2 --fabric-bandwidth 3"):
        text = misspelt(words.split())
        assert text is not None
        assert "For example" not in text
    text = misspelt(["project", "m", "--nodes", "2", "--global-batchsize", "8"])
    assert text is not None
    assert text.endswith("For example: forescale project m --nodes 2 --global-batch-size 8")


def test_options_without_effect_are_left_out() -> None:
    result = translated(
        ["fit", "m", "--gpus", "2", "--lora-alpha", "32", "--grad-checkpointing", "--lr=1e-4"]
    )
    assert result is not None
    assert result[0] == ["fit", "m", "--devices", "2", "--recompute", "full"]
    assert "--lora-alpha, --lr: no effect on time and memory" in " ".join(result[1].split())
    assert translated(["run", "m", "--nodes", "2", "--spare-nodes", "4"]) == (
        ["run", "m", "--nodes", "2", "--spares", "4"],
        "note (options): --spare-nodes is read as --spares",
    )


@pytest.mark.parametrize("name", ["--backward", "--bwd"])
def test_a_whole_backward_is_its_two_gradients(name: str) -> None:
    words = ["pipeline", "simulate", "-s", "1f1b", "--forward", "10", name, "25"]
    arguments, note = translated(words) or ([], "")
    assert arguments == [*words[:-2], "--input-grad", "12.5", "--weight-grad", "12.5"]
    assert name in note


def test_passes_have_the_names_of_papers() -> None:
    words = ["pipeline", "draw", "-s", "zbv", "--dgrad", "12", "--backward-weight", "8", "--p2p", "1"]
    arguments, _ = translated(words) or ([], "")
    assert arguments[4:] == ["--input-grad", "12", "--weight-grad", "8", "--comm", "1"]


def test_an_option_that_is_needed_is_added_to_what_was_typed() -> None:
    said = started(["trace", "model.py:build"], ["--save", "-o"])
    assert said == "For example: forescale trace model.py:build -o gpt.json"
    assert started(["trace", "model.py:build"]) == ""


@pytest.mark.parametrize(
    "words",
    [
        "project m --devices 8 --budget 1M",
        "project m --devices 8 --zero 2,3",
        "run m --nodes 2 --vary zero=2,3",
        "search m --tp 2 --measured step=3s",
        "project m --devices 8,16 --epochs 3 --samples 50000",
        "fit m --tp 2,4",
        "pipeline simulate -s 1f1b --placement V",
        "pipeline draw 1f1b --bubble 5%",
        "pipeline check x.csv --stage-forward 1,2,1,1",
        "pipeline partition --stage-forward 1,2",
        "pipeline list --devices 8",
        "memory states 8e9 --tp 2",
        "validate --tp 2",
        "network --tokens 1T",
    ],
)
def test_every_command_that_an_error_suggests_is_one(words: str) -> None:
    text = misspelt(words.split())
    assert text is not None
    example = text.partition("For example: ")[2]
    for line in filter(None, [example]):
        path, rest = command_in(shlex.split(line)[1:])
        assert path is not None and values_of(path, rest) is not None, line


def test_options_of_a_command_in_the_same_group_are_suggested_there() -> None:
    text = misspelt(["pipeline", "check", "x.csv", "--stage-forward", "1,2,1,1"])
    assert text is not None and "forescale pipeline run x.csv --stage-forward 1,2,1,1" in text
    for words in (
        "pipeline draw -s 1f1b --placement V",
        "memory states 8e9 --tp 2",
    ):  # no model, no such command
        text = misspelt(words.split())
        assert text is not None and "For example" not in text


def test_an_option_next_to_values_names_the_command_that_has_it():
    run = ["--cluster", "h200", "--devices", "64", "--global-batch-size", "64", "--tokens", "1T"]
    text = misspelt(["compare", "llama-3.1-8b", *run, "--electricity-price", "0.08", "--vary", "zero=1,3"])
    example = text.partition("For example: ")[2].split()
    assert example[:2] == ["forescale", "run"]
    assert example[example.index("--electricity-price") + 1] == "0.08"
    assert example[example.index("--zero") + 1] == "1"


def test_an_option_of_another_command_is_no_rate_of_a_network():
    text = misspelt(["fit", "m", "--cluster", "h200", "--devices", "64", "--storage-bandwidth", "500GB/s"])
    assert text is None or "infiniband" not in text
    values = {"--cluster": "h200", "--storage-bandwidth": "500GB/s", "--fabric-bandwidth": "50GB/s"}
    assert _rates("--storage-bandwidth", values) is None
    assert _rates("--network-bandwidth", {**values, "--network-bandwidth": "50GB/s"}) is not None
