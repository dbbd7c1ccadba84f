from __future__ import annotations

import json
import re

import pytest
from tests.cli.questions import DENSE, SEARCH

from forescale.catalogue.frameworks import load_framework


def projected(forescale, *arguments):
    ran = forescale("project", *DENSE, *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_framework_trains_as_its_record_says(forescale):
    document = projected(forescale, "--zero", 3, "--tp", 2, "--framework", "torchtitan@2025-eager")
    record = load_framework("torchtitan@2025-eager")
    assert document["strategy"]["software"] == record.software
    assert document["strategy"]["allocator"] == "expandable_segments"
    assert document["strategy"]["kernels"]["cross_entropy"] == "compiled"
    assert document["strategy"]["recompute"]["policy"] == "torch_per_op"
    assert document["workload"]["precision"]["parameters"] == "fp32"
    assert any("torchtitan@2025-eager" in note["text"] for note in document["notes"])


def test_what_is_said_goes_over_the_record(forescale):
    options = ("--recompute", "none", "--grad-dtype", "bf16", "--allocator", "segments")
    sets = ("--set", "strategy.kernels.cross_entropy=fused")
    document = projected(forescale, "--framework", "torchtitan", *options, *sets)
    assert document["strategy"]["recompute"]["granularity"] == "none"
    assert document["strategy"]["allocator"] == "segments"
    assert document["strategy"]["kernels"]["cross_entropy"] == "fused"
    assert document["strategy"]["kernels"]["gathers_aside"]
    assert document["workload"]["precision"]["gradients"] == "bf16"


def test_a_plan_names_its_framework_and_a_flag_goes_over_it(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('framework = "nanotron"\n')
    assert projected(forescale, "--plan", plan)["strategy"]["kernels"]["cross_entropy"] == "native"
    document = projected(forescale, "--plan", plan, "--framework", "internevo")
    assert document["strategy"]["kernels"]["broadcasts_updates"]
    plan.write_text("framework = 3\n")
    assert "wrong_type framework" in forescale("project", *DENSE, "--plan", plan).refused


def test_a_search_of_a_written_question_is_trained_as_asked(forescale, tmp_path):
    from forescale.io.question import read_question, write_question

    plan = tmp_path / "plan.toml"
    plan.write_text(
        'framework = "torchtitan"\nmodel = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 16\n'
        "[workload]\nseq_len = 4096\nglobal_batch_size = 64\n[space.base]\ngraphs = 'full'\n"
    )
    question = read_question(plan)
    assert question.strategy is None
    assert question.space.base.graphs == "full"
    assert question.space.base.software == load_framework("torchtitan").software
    write_question(question, tmp_path / "again.toml")
    assert read_question(tmp_path / "again.toml") == question
    narrow = ("--fix", "micro_batch_size=1", "--fix", "cp=1", "--top", 1, "--json")
    again = json.loads(forescale("search", "--plan", tmp_path / "again.toml", *narrow).out)["best"][0]
    assert again["strategy"]["graphs"] == "full"
    assert again["strategy"]["software"] == question.space.base.software
    assert any("torchtitan" in note["text"] for note in again["notes"])


def test_near_names_are_suggested(forescale):
    assert "did you mean torchtitan" in forescale("project", *DENSE, "--framework", "torchtitn").err


@pytest.mark.parametrize("option", ["--for", "--framework"])
def test_what_a_search_finds_is_what_the_framework_projects(forescale, option):
    ran = forescale("search", *SEARCH, option, "torchtitan@2025", "--fix", "recompute=full", "--json")
    assert ran.code == 0, ran.err
    best = json.loads(ran.out)["best"][0]
    assert best["strategy"]["kernels"] == dict(
        best["strategy"]["kernels"], gathers_aside=True, pads_vocabulary=False
    )
    assert best["strategy"]["recompute"]["stops_early"]
    names = ("tp", "pp", "vpp", "dp_replicate", "dp_shard", "zero")
    degrees = [part for name in names for part in (f"--{name.replace('_', '-')}", best["strategy"][name])]
    sp = "--sp" if best["strategy"]["sp"] else "--no-sp"
    schedule = best["strategy"]["schedule"]
    degrees += ["--schedule", schedule] if schedule else []
    again = projected(
        forescale, "--framework", "torchtitan@2025", *degrees, sp, "--recompute", "full",
        "--axis-order", ",".join(best["strategy"]["axis_order"]),
    )  # fmt: skip
    assert again["step_time_s"] == best["step_time_s"]
    assert again["memory"]["peak_bytes"] == best["memory"]["peak_bytes"]


def test_limits_of_one_and_kernels_of_another(forescale, tmp_path):
    space = tmp_path / "space.toml"
    space.write_text('for = "deepspeed"\n')
    ran = forescale("search", *SEARCH, "--space", space, "--framework", "llm-foundry", "--json")
    best = json.loads(ran.out)["best"][0]["strategy"]
    assert (best["sp"], best["software"]) == (False, "llm-foundry@23.09")
    ran = forescale("search", *SEARCH, "--space", space, "--json")
    assert json.loads(ran.out)["best"][0]["strategy"]["software"] == "torch-eager"
    assert "are not recorded" in forescale("search", *SEARCH, "--for", "internevo").err


def test_a_file_names_its_framework_and_a_flag_goes_over_it(forescale, tmp_path):
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}))
    document = projected(forescale, "--config", config)
    assert document["strategy"]["software"] == "torch-eager"
    assert document["strategy"]["kernels"]["gradient_sum"] == "in_product"
    assert any("deepspeed-zero@0.17" in note["text"] for note in document["notes"])
    document = projected(forescale, "--config", config, "--framework", "torchtitan")
    assert (document["strategy"]["software"], document["strategy"]["zero"]) == ("torch-compile", 3)
    piped = tmp_path / "piped.json"
    piped.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "pipeline": {"stages": 2}}))
    kernels = projected(forescale, "--config", piped)["strategy"]["kernels"]
    assert kernels["runs_ahead"]
    assert not kernels["hides_input_sums"]


@pytest.mark.parametrize(
    ("framework", "options", "said"),
    [
        (
            "deepspeed",
            ("--precision", "fp8"),
            "cannot run this: compute in fp8 (it has bf16, fp16, fp32, tf32)",
        ),
        ("deepspeed", ("--zero", 3, "--tp", 2), "AutoTP training takes zero below 3"),
        ("torchtitan", ("--zero", 2), "zero 2 (it takes 0, 3)"),
        ("transformers", ("--pp", 2), "pp 2 (it takes 1)"),
        ("torchtitan", ("--precision", "fp16"), "compute in fp16"),
    ],
)
def test_what_a_framework_cannot_run_is_said_once(forescale, framework, options, said):
    for command in ("project", "memory"):
        ran = forescale(command, *DENSE, *options, "--framework", framework)
        assert (ran.code, ran.out.count("cannot run this"), said in ran.out) == (0, 1, True), ran.out
    assert "cannot run this" not in forescale("project", *DENSE, "--zero", 3, "--framework", framework).out


def test_what_a_framework_takes_instead_is_named_once_and_by_its_option(forescale):
    line = ("project", *DENSE, "--framework", "torchtitan")
    text = " ".join(forescale(*line, "--recompute", "selective").out.split())
    takes = re.search(r"recompute selective \(it takes ([^)]+)\)", text)[1]
    plain, policies = takes.split("; recompute_policy ")
    for flag, names in (("--recompute", plain.split(", ")), ("--recompute-policy", policies.split(", "))):
        assert len({*names}) == len(names)
        for name in names:
            ran = forescale(*line, flag, name)
            assert (ran.code, "cannot run this" in ran.out) == (0, False), (flag, name)


def test_a_search_says_what_its_framework_cannot_compute_in(forescale):
    small = ("--fix", "tp=8", "--fix", "pp=1", "--fix", "cp=1", "--top", 1)
    ran = forescale("search", *SEARCH, *small, "--precision", "fp8", "--framework", "nanotron")
    assert ran.out.count("nanotron cannot run this: compute in fp8") == 1


def test_a_run_that_samples_says_first_that_sampling_is_left_out(forescale, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
        "data.max_prompt_length=512 data.max_response_length=512 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.actor.ppo_mini_batch_size=64 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=4\n"
    )
    ran = forescale("project", file, "--cluster", "h100-sxm", "--json")
    notes = json.loads(ran.out)["notes"]
    assert [note["topic"] for note in notes if "sampling" in note["text"]] == ["left out"]
