"""`forescale projection`: Primus' commands from an experiment alone, on its platform, with its environment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forescale.cli import projection
from forescale.io.bench import read_bench

BENCH = Path(__file__).parents[2] / "examples" / "bench.json"

EXPERIMENT = """\
work_group: ${PRIMUS_TEAM:amd}
exp_name: small
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: language_model.yaml
    overrides:
      num_layers: 8
      hidden_size: 512
      ffn_hidden_size: 1024
      num_attention_heads: 8
      vocab_size: 1024
      swiglu: true
      add_bias_linear: false
      normalization: RMSNorm
      position_embedding_type: rope
      untie_embeddings_and_output_weights: true
      num_experts: 8
      moe_router_topk: 2
      bf16: true
      seq_length: ${PRIMUS_SEQ_LENGTH:1024}
      micro_batch_size: 1
      global_batch_size: 64
      pipeline_model_parallel_size: ${PRIMUS_PP:2}
      expert_model_parallel_size: 4
      tensor_model_parallel_size: 1
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    for name in ("PP", "SEQ_LENGTH", "TEAM", "GPU_ARCH", "GPU_CLOCK_MHZ"):
        monkeypatch.delenv(f"PRIMUS_{name}", raising=False)
    file = tmp_path / "configs" / "MI355X" / "small.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(EXPERIMENT)
    return file


def projected(forescale, what, *arguments):
    ran = forescale("projection", what, *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def notes(document, topic):
    return [note["text"] for note in document["notes"] if note["topic"] == topic]


def test_the_file_alone_gives_cluster_devices_and_layout(forescale, experiment):
    document = projected(forescale, "performance", "--config", experiment)
    assert (document["cluster"]["name"], document["cluster"]["num_devices"]) == ("mi355x", 8)
    assert {name: document["strategy"][name] for name in ("pp", "ep", "dp_shard")} == {
        "pp": 2,
        "ep": 4,
        "dp_shard": 4,
    }
    assert notes(document, "platform") == ["mi355x, inferred from the folder MI355X"]
    again = forescale("project", experiment, "--cluster", "mi355x", "--json")
    assert json.loads(again.out)["step_time_s"] == document["step_time_s"]
    assert projected(forescale, "performance", experiment)["step_time_s"] == document["step_time_s"]


def test_options_of_primus(forescale, experiment):
    document = projected(
        forescale, "performance", f"--config={experiment}", "--target-nodes", 2, "--gpu-arch", "gfx942"
    )
    assert (document["cluster"]["name"], document["cluster"]["num_devices"]) == ("mi300x", 16)
    slower = projected(forescale, "performance", "--config", experiment, "--gpu-clock-mhz", 1200)
    usual = projected(forescale, "performance", "--config", experiment)
    assert slower["time_s"]["attention"] > 1.5 * usual["time_s"]["attention"]
    assert slower["step_time_s"] >= usual["step_time_s"], (
        "so small a model waits for the host at either clock"
    )
    memory = projected(forescale, "memory", "--config", experiment, "--memory-mode", "simulate")
    assert memory["memory"] == usual["memory"]


def test_variables_of_the_environment_are_named(forescale, experiment, monkeypatch):
    monkeypatch.setenv("PRIMUS_PP", "4")
    monkeypatch.setenv("PRIMUS_TEAM", "mine")
    monkeypatch.setenv("PRIMUS_UNUSED", "1")
    document = projected(forescale, "memory", "--config", experiment)
    assert document["strategy"]["pp"] == 4
    assert notes(document, "environment") == ["PRIMUS_PP=4; --var NAME=VALUE takes precedence"]
    assert "environment: PRIMUS_PP=4" in forescale("projection", "memory", "--config", experiment).out
    other = projected(forescale, "memory", "--config", experiment, "--var", "PRIMUS_PP=1")
    assert other["strategy"]["pp"] == 1
    assert notes(other, "environment") == []


def test_device_and_clock_of_the_environment(forescale, experiment, monkeypatch):
    plain = projected(forescale, "performance", "--config", experiment, "--gpu-clock-mhz", 1500)
    monkeypatch.setenv("PRIMUS_GPU_CLOCK_MHZ", "1500")
    monkeypatch.setenv("PRIMUS_GPU_ARCH", "MI355X")
    document = projected(forescale, "performance", "--config", experiment)
    assert document["step_time_s"] == plain["step_time_s"]
    assert notes(document, "environment") == ["PRIMUS_GPU_CLOCK_MHZ=1500"]
    assert notes(document, "platform") == ["mi355x, from the environment variable PRIMUS_GPU_ARCH"]
    monkeypatch.setenv("PRIMUS_GPU_CLOCK_MHZ", "fast")
    assert "PRIMUS_GPU_CLOCK_MHZ must be a whole number" in forescale("projection", "memory", experiment).err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--config is required"),
        (("--config", "{plain}"), "--gpu-arch is required"),
        (("--config", "nowhere.yaml"), "there is no such file"),
        (("--config", "{file}", "--gpu-arch", "mi355x", "--cluster", "mi355x"), "two names for one thing"),
        (("--config", "{file}", "--gpu-arch", "mi999"), "unknown cluster 'mi999'"),
        (("--config", "{file}", "--load-benchmark", "{file}", "--benchmark-gpus", 1), "replaces the bench"),
        (("--config", "{file}", "--memory-mode", "simulate", "--benchmark-gpus", 1), "it is simulate"),
        (("--config", "{file}", "--pipeline-schedule-algorithm", "zbv", "--vpp", 3), "vpp"),
        (("--config", "{file}", "--pipeline-schedule-algorithm", "fastest"), "unknown schedule 'fastest'"),
    ],
)
def test_what_is_wrong(arguments, says, forescale, experiment, tmp_path):
    plain = tmp_path / "plain.yaml"
    plain.write_text(EXPERIMENT)
    words = [str(item).format(file=experiment, plain=plain) for item in arguments]
    ran = forescale("projection", "memory", *words)
    assert ran.code == 2
    assert says in ran.err
    assert not ran.out


def test_schedules_are_compared_and_the_fastest_taken(forescale, experiment):
    ran = forescale(
        "projection", "performance", "--config", experiment, "--pipeline-schedule-algorithm", "all"
    )
    assert ran.code == 0, ran.err
    for name in ("1f1b", "zero-bubble", "zero-bubble-heuristic"):
        assert f"\n{name} " in ran.out
    assert "zbv-formatted" not in ran.out  # it takes two virtual stages
    fastest = projected(forescale, "performance", experiment, "--pipeline-schedule-algorithm", "all")
    each = [
        projected(forescale, "performance", experiment, "--pipeline-schedule-algorithm", name)["step_time_s"]
        for name in ("auto", "zerobubble", "seaailab-ilp")
    ]
    assert fastest["step_time_s"] == min(each)


def test_a_v_schedule_brings_its_virtual_stages(forescale, experiment):
    document = projected(forescale, "memory", experiment, "--pipeline-schedule-algorithm", "zbv-greedy-half")
    assert (document["strategy"]["schedule"], document["strategy"]["vpp"]) == ("v-half", 2)


def test_components_and_collectives(forescale, experiment):
    memory = projected(forescale, "memory", experiment)
    names = [part["name"] for part in memory["components"]]
    assert names == ["embedding", "attention+moe", "head"]
    layer = memory["components"][1]
    assert layer["times"] == 8
    assert layer["parameters"] == 4 * 512 * 512 + 2 * 512 + 512 * 8 + 2 * 3 * 512 * 1024
    assert layer["parameters"] == sum(part["parameters"] for part in layer["below"])
    assert layer["kept_bytes"] == sum(part["kept_bytes"] for part in layer["below"])
    embedding, head = memory["components"][0], memory["components"][2]
    assert memory["params"]["per_stage"] == [
        4 * layer["parameters"] + embedding["parameters"],
        4 * layer["parameters"] + head["parameters"],
    ]
    document = projected(forescale, "performance", experiment)
    parts = {item["part"] for item in document["collectives"]}
    assert parts == {"expert_comm", "pipeline_comm", "data_comm"}
    exchanges = [item for item in document["collectives"] if "all_to_all" in item["name"]]
    assert {(item["num_bytes"], item["num_ranks"]) for item in exchanges} == {(2 * 1024 * 2 * 512, 4)}
    assert {item["calls"] for item in exchanges} == {4 * 16}
    text = forescale("projection", "performance", experiment).out
    exposed = sum(value for name, value in document["time_s"].items() if name.endswith("_comm"))
    assert f"total communication (critical path)  {1e3 * exposed:.3f}" in text


QUESTION = (
    "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", 64, "--seq-len", 4096, "--global-batch-size", 256,
    "--zero", 1, "--micro-batch-size", 1,
)  # fmt: skip
EXAMPLE = ("projection", "memory", *QUESTION)


@pytest.mark.parametrize("saved", [True, False])
def test_a_bench_is_run_and_projected_from(saved, forescale, tmp_path, monkeypatch):
    """The bench returns one that was saved; it is loaded as --load-benchmark loads its file."""
    asked = []

    def run_bench(question, options):
        asked.append((question, options.devices_here))
        return read_bench(BENCH)

    monkeypatch.setattr(projection, "run_bench", run_bench)
    file = tmp_path / "saved.json"
    save = ("--save-benchmark", file) if saved else ()
    document = projected(
        forescale, "memory", *QUESTION, "--benchmark-gpus", 2, *save, "--memory-mode", "both"
    )
    loaded = projected(forescale, "memory", *QUESTION, "--load-benchmark", BENCH, "--memory-mode", "both")
    assert document["anchored"] == loaded["anchored"]
    assert document["simulated"] == loaded["simulated"]
    ((question, devices),) = asked
    assert (devices, question.cluster.num_devices) == (2, 64)
    assert not question.costs.benchmark_files
    assert file.exists() == saved
    if saved:
        assert read_bench(file) == read_bench(BENCH)


def test_a_bench_that_failed_is_named_with_what_it_measured(forescale, tmp_path, monkeypatch):
    artifact = read_bench(BENCH)
    failed = replace(artifact, conditions=replace(artifact.conditions, failed="rank 0: out of memory"))
    monkeypatch.setattr(projection, "run_bench", lambda *_: failed)
    ran = forescale("projection", "performance", *QUESTION, "--save-benchmark", tmp_path / "b.json")
    assert ran.code == 2
    assert "rank 0: out of memory" in ran.err
    assert not ran.out
    monkeypatch.setattr(projection, "spare", lambda: tmp_path / "spare.json")
    ran = forescale("projection", "performance", *QUESTION, "--profiling-mode", "benchmark")
    assert ran.code == 2
    assert read_bench(tmp_path / "spare.json") == failed


def test_a_plan_brings_its_own_cluster(forescale):
    plan = BENCH.parent / "plan.toml"
    document = projected(forescale, "performance", plan)
    assert document["cluster"]["name"] == "h100-sxm"
    assert projected(forescale, "performance", "--plan", plan)["step_time_s"] == document["step_time_s"]
    other = projected(forescale, "performance", "--plan", plan, "--gpu-arch", "mi300x")
    assert other["cluster"]["name"] == "mi300x"
