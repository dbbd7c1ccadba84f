import json

import pytest

from forescale.errors import MissingError, MissingFact

FSDP = "output_dir: out\nmodel_name_or_path: llama-3.1-8b\nper_device_train_batch_size: 2\nfsdp: full_shard\nbf16: true\n"


def test_all_missing_facts_are_in_one_error_with_a_command(forescale, tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text(FSDP)
    error = forescale("project", file).error
    assert isinstance(error, MissingError)
    assert {"--cluster", "--seq-len"} <= set(error.missing)
    assert error.fix.startswith(f"forescale project {file} --")
    assert all(fact.example in error.fix for fact in error.facts)


def test_a_file_takes_its_model_from_an_option(forescale, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    )
    options = ("--cluster", "h100-sxm", "--devices", 8, "--seq-len", 4096, "--global-batch-size", 8, "--json")
    by_option = forescale("project", file, "--model", "llama-3.1-8b", *options)
    by_config = forescale("project", "llama-3.1-8b", "--config", file, *options)
    assert by_option.code == 0
    assert json.loads(by_option.out)["memory"] == json.loads(by_config.out)["memory"]


def test_what_a_command_lacks_is_one_error_with_a_command_that_works(forescale):
    error = forescale("project", "gpt2", "--cluster", "t4", "--devices", 128).error
    assert error.missing == ("--global-batch-size",)
    assert error.fix == "forescale project gpt2 --cluster t4 --devices 128 --global-batch-size 128"
    assert forescale(*error.fix.split()[1:]).code == 0


def test_a_length_that_nobody_gives_is_the_models(forescale):
    options = ("--cluster", "h100-sxm", "--devices", 8, "--global-batch-size", 64, "--json")
    short, long = (json.loads(forescale("project", name, *options).out) for name in ("gpt2", "llama-3.1-8b"))
    assert [item["workload"]["seq_len"] for item in (short, long)] == [1024, 4096]
    assert all("length" in {note["topic"] for note in item["notes"]} for item in (short, long))


def test_facts_are_named_once():
    fact = MissingFact("the number of devices", "--devices N", "--devices 8", "devices")
    error = MissingError.of("run.sh", [fact, fact], "forescale project run.sh")
    assert error.missing == ("--devices",)
    assert error.fix == "forescale project run.sh --devices 8"
    assert error.location is not None
    assert error.location.file == "run.sh"


def test_a_number_without_bound_in_a_config_changes_nothing(forescale, tmp_path):
    file = tmp_path / "config.json"
    sizes = '"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100'
    file.write_text(f'{{"model_type": "llama", {sizes}, "time_step_limit": [0.0, Infinity]}}')
    options = ("--cluster", "h100-sxm", "--devices", 1, "--seq-len", 128, "--global-batch-size", 1)
    assert forescale("project", file, *options).code == 0


def test_accelerate_starts_the_recipe_beside_it(forescale, tmp_path):
    recipe, launch = tmp_path / "recipe.yaml", tmp_path / "fsdp.yaml"
    recipe.write_text(FSDP.replace("fsdp: full_shard\n", "max_length: 512\ngradient_accumulation_steps: 4\n"))
    launch.write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n"
    )
    ran = forescale("project", recipe, "--config", launch, "--cluster", "h100-sxm", "--json")
    assert ran.code == 0, ran.err
    read = json.loads(ran.out)
    assert (read["strategy"]["zero"], read["strategy"]["dp_shard"], read["strategy"]["micro_batch_size"]) == (
        3,
        4,
        2,
    )
    assert read["workload"]["global_batch_size"] == 32


def test_fit_writes_a_copy_in_the_words_of_the_file(forescale, tmp_path):
    file, copy = tmp_path / "axolotl.yaml", tmp_path / "copy.yaml"
    file.write_text(
        "base_model: Qwen/Qwen2.5-0.5B  # small\nsequence_len: 4096\nsample_packing: true\nmicro_batch_size: 64\n"
        "gradient_accumulation_steps: 1\nadapter: lora\n",
        newline="\r\n",
    )
    options = ("--cluster", "h100-sxm", "--devices", 1)
    ran = forescale("fit", file, *options, "--no-pairs", "--patch", "--output", copy, "--json")
    assert ran.code == 0, ran.err
    assert f"wrote {copy}" in ran.err
    fixes = json.loads(ran.out)["fixes"]
    assert fixes
    assert all(fix["change"].startswith("set `") for fix in fixes)
    assert "base_model: Qwen/Qwen2.5-0.5B  # small" in copy.read_text()
    assert copy.read_text() != file.read_text()
    assert copy.read_bytes().count(b"\n") == copy.read_bytes().count(b"\r\n")
    assert forescale("fit", file, *options, "--patch", "--output", copy).code == 2


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $1 --hidden-size 64 --num-attention-heads 4 "
    "--seq-length 32 --max-position-embeddings 32 --micro-batch-size $2 --global-batch-size 16 --vocab-size 100 "
    "--bf16 --reuse-fp32-param --log-everything --prompt-type x"
)


def test_the_example_of_an_error_works_and_warnings_come_first(forescale, tmp_path):
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    error = forescale("project", file, "--cluster", "h100-sxm").error
    assert isinstance(error, MissingError)
    assert error.fix.endswith('--args "32 1"')
    answer = forescale("project", file, "--cluster", "h100-sxm", "--args", "32 1", "--json")
    assert answer.code == 0
    notes = json.loads(answer.out)["notes"]
    assert any("--reuse-fp32-param" in str(note) for note in notes)


def test_arguments_that_a_script_does_not_take_are_refused(forescale, tmp_path):
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT.replace("$1", "4").replace("$2", "1"))
    assert forescale("project", file, "--cluster", "h100-sxm", "--args", "1").error.code == "no_effect"


def test_strict_refuses_what_is_not_modelled(forescale, tmp_path):
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT.replace("$1", "4").replace("$2", "1"))
    refused = forescale("project", file, "--cluster", "h100-sxm", "--strict")
    assert refused.error.code == "not_expressed"
    assert "--reuse-fp32-param" in str(refused.error)


def test_names_that_do_not_exist_come_before_what_lacks(forescale):
    assert "unknown_name model" in forescale("project", "30b", "--cluster", "h100").refused
    assert "unknown_name cluster" in forescale("project", "gpt2", "--cluster", "h1000").refused


def test_numbers_and_words_of_other_tools_are_answered_with_what_to_write(forescale):
    options = ("memory", "gpt2", "--cluster", "h100", "--devices", "1,024", "--global-batch-size", "1,024")
    assert forescale(*options, "--optimizer", "adamw_torch").code == 0
    for flag in ("--devices", "--global-batch-size"):
        assert forescale(*options, flag, "1k").out == forescale(*options, flag, "1024").out
    for flag, value, part in (
        ("--global-batch-size", "4M tokens", "sequences"),
        ("--optimizer", "adamw_bnb_8bit", "--moment-dtype fp8"),
    ):
        assert part in forescale(*options, flag, value).error.fix


@pytest.mark.parametrize(("cluster", "devices"), [("rtx-3090", 1), ("l4", 1), ("h100", 8), ("mi300x", 8)])
def test_the_example_has_one_device_where_devices_are_used_alone(forescale, cluster, devices):
    ran = forescale("search", "llama-3.1-8b", "--cluster", cluster, "--global-batch-size", 8)
    assert ran.code == 2
    assert f"--devices {devices}" in ran.err.partition("For example: ")[2]
