from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.questions import DENSE, LAYOUT

MOE = ("mixtral-8x7b", "--cluster", "mi300x", "--nodes", 4, "--seq-len", 4096, "--global-batch-size", 256)


def document(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_one_screen_says_what_was_asked(forescale):
    ran = forescale("project", *DENSE, *LAYOUT, "--tokens", "2T")
    assert ran.code == 0, ran.err
    for text in ("llama-3.1-8b on 16 × h100-sxm", "FITS", "tokens/s/device", "tokens/day", "MFU", "HFU", "days for 2 T tokens", "▶ 0"):  # fmt: skip
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 25


def test_tokens_of_a_day_are_those_of_the_steps_in_it(forescale):
    body = document(forescale("project", *DENSE, *LAYOUT, "--json"))
    per_day = body["tokens_per_s_per_device"] * 16 * 86400.0
    assert f"{per_day / 1e9:.4g} B" in forescale("project", *DENSE, *LAYOUT).out


def test_json_adds_up(forescale):
    body = document(forescale("project", *DENSE, *LAYOUT, "--json"))
    assert body["schema"] == "forescale.projection/1"
    assert sum(body["time_s"].values()) == pytest.approx(body["step_time_s"])
    assert body["memory"]["peak_bytes"] == max(stage["peak_bytes"] for stage in body["memory"]["stages"])
    assert body["strategy"]["dp_shard"] == 2


def test_data_parallel_follows_from_the_devices(forescale):
    layout = document(forescale("project", *DENSE, "--tp", 2, "--json"))["strategy"]
    assert (layout["dp_replicate"], layout["dp_shard"]) == (1, 8)
    layout = document(forescale("project", *DENSE, "--tp", 2, "--dp-replicate", 2, "--json"))["strategy"]
    assert (layout["dp_replicate"], layout["dp_shard"]) == (2, 4)
    layout = document(forescale("project", *DENSE, "--tp", 2, "--zero", 0, "--json"))["strategy"]
    assert (layout["dp_replicate"], layout["dp_shard"]) == (8, 1)


def test_devices_follow_from_the_degrees_where_none_are_given(forescale):
    run = ("--seq-len", 4096, "--global-batch-size", 64, "--json")
    ran = forescale(
        "project", "llama-3.1-8b", "--cluster", "h100-sxm", "--tp", 4, "--pp", 2, "--dp-shard", 4, *run
    )
    assert document(ran)["cluster"]["num_devices"] == 32


def test_nodes_are_counted_in_devices(forescale):
    body = document(forescale("project", *MOE, "--ep", 8, "--pp", 2, "--json"))
    assert body["cluster"]["num_devices"] == 32
    assert body["params"]["active"] < body["params"]["total"]


@pytest.mark.parametrize(
    ("flags", "devices"),
    [((), 64), (("--devices", 32), 32), (("--nodes", 2), 16)],
    ids=("own", "devices", "nodes"),
)
def test_a_cluster_that_says_its_size_has_it_unless_flags_say_another(forescale, tmp_path, flags, devices):
    (tmp_path / "lab.toml").write_text('base = "h100-sxm"\nnum_devices = 64\n')
    (tmp_path / "plan.toml").write_text(
        'model = "llama-3.1-8b"\n[cluster]\nbase = "h100-sxm"\nnum_devices = 64\n'
        "[workload]\nseq_len = 4096\nglobal_batch_size = 64\n[strategy]\ntp = 2\n"
    )
    question = (
        "llama-3.1-8b",
        "--cluster",
        tmp_path / "lab.toml",
        "--seq-len",
        "4k",
        "--global-batch-size",
        64,
        "--tp",
        2,
    )
    for item in (question, ("--plan", tmp_path / "plan.toml")):
        result = document(forescale("project", *item, *flags, "--json"))
        assert (result["cluster"]["num_devices"], result["strategy"]["dp_shard"]) == (devices, devices // 2)


def test_every_layout_option_reaches_the_strategy(forescale):
    value = (
        "--no-sp", "--cp", 2, "--cp-kind", "ring", "--vpp", 2, "--zero", 2, "--micro-batch-size", 2,
        "--recompute-modules", "core_attn,mlp", "--axis-order", "tp,cp,pp,dp", "--overlap", "tensor,pipeline",
        "--no-flash-attention",
    )  # fmt: skip
    layout = document(forescale("project", *DENSE, "--tp", 2, "--pp", 2, *value, "--json"))["strategy"]
    assert layout["sp"] is False
    assert layout["cp_kind"] == "ring"
    assert (layout["cp"], layout["vpp"], layout["zero"], layout["micro_batch_size"]) == (2, 2, 2, 2)
    assert layout["recompute"]["granularity"] == "selective"
    assert layout["recompute"]["modules"] == ["core_attn", "mlp"]
    assert layout["axis_order"] == ["tp", "cp", "pp", "dp"]
    assert {name for name, on in layout["overlap"].items() if on} == {"tensor", "pipeline"}
    assert layout["flash_attention"] is False


def test_where_ranks_lie_on_the_network(forescale):
    value = ("project", *DENSE, "--tp", 4, "--pp", 2, "--placement", "tp=4,pp=2")
    assert document(forescale(*value, "--json"))["strategy"]["placement"] == [
        {"tp": 4, "cp": 1, "dp": 1, "pp": 2}
    ]
    assert "tp=4,pp=2" in forescale(*value).out
    refused = forescale("project", *DENSE, "--tp", 4, "--placement", "tp=4,pp=3")
    assert "does not fill tier" in refused.err


def test_every_run_option_reaches_the_workload(forescale):
    names = (
        "--optimizer", "lion", "--precision", "fp8", "--fp8-recipe", "delayed", "--grad-dtype", "bf16",
        "--master-dtype", "none", "--moment-dtype", "bf16", "--tokens", "1.5T",
    )  # fmt: skip
    workload = document(forescale("project", *DENSE, *LAYOUT, *names, "--json"))["workload"]
    assert workload["optimizer"] == "lion"
    assert workload["tokens"] == 1.5e12
    precision = workload["precision"]
    assert (precision["compute"], precision["recipe"], precision["gradients"]) == ("fp8", "delayed", "bf16")
    assert (precision["master"], precision["moments"]) == ("none", "bf16")


def test_uneven_stages_and_layers_of_recompute(forescale):
    value = ("--pp", 4, "--stage-layers", "7,8,8,9", "--recompute-layers", 2, "--json")
    body = document(forescale("project", *DENSE, *value))
    assert [stage["num_layers"] for stage in body["memory"]["stages"]] == [7, 8, 8, 9]
    recompute = body["strategy"]["recompute"]
    assert (recompute["granularity"], recompute["num_layers"]) == ("full", 2)


def test_memory_shows_memory_only(forescale):
    ran = forescale("memory", *DENSE, "--pp", 4)
    assert ran.code == 0, ran.err
    assert "GiB, stage" in ran.out
    assert "MFU" not in ran.out
    assert ran.out.count("\n") <= 25


def test_many_stages_stay_on_one_screen(forescale):
    run = ("--seq-len", 4096, "--global-batch-size", 256)
    ran = forescale(
        "project", "llama-3.1-405b", "--cluster", "h100-sxm", "--devices", 512, *run, "--tp", 8, "--pp", 32
    )
    assert ran.code == 0, ran.err
    assert "more stages" in ran.out
    assert len(ran.out.splitlines()) <= 25


def test_a_model_that_is_a_file(forescale, tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (folder, folder / "config.json"):
        body = document(forescale("project", path, *DENSE[1:], "--json"))
        assert body["model"] == "my-model"


def test_megatron_arguments_give_layout_and_batch(forescale, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --swiglu "
        "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 2 "
        "--global-batch-size 64 --bf16 --lr 1e-4",
        encoding="utf-8",
    )
    body = document(forescale("project", script, "--cluster", "h100-sxm", "--devices", 16, "--json"))
    assert (body["strategy"]["tp"], body["strategy"]["pp"], body["strategy"]["micro_batch_size"]) == (2, 2, 2)
    assert body["workload"]["seq_len"] == 2048
    assert any("--lr" in note["text"] for note in body["notes"])
    body = document(
        forescale("project", script, "--cluster", "h100-sxm", "--devices", 16, "--tp", 4, "--json")
    )
    assert body["strategy"]["tp"] == 4


PRIMUS = """
work_group: ${TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: trainer.yaml
    model: small.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: ${GBS:128}
      seq_length: 2048
      expert_model_parallel_size: 8
      pipeline_model_parallel_size: 2
      lr: 1.0e-5
"""
PRIMUS_MODEL = """
num_layers: 8
hidden_size: 1024
num_attention_heads: 16
ffn_hidden_size: 4096
num_experts: 8
moe_router_topk: 2
swiglu: true
add_bias_linear: false
vocab_size: 32000
"""


@pytest.fixture
def primus(tmp_path):
    for name, text in (("exp", PRIMUS), ("small", PRIMUS_MODEL), ("trainer", "bf16: true\n")):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path / "exp.yaml"


def test_a_primus_experiment_is_a_whole_plan(forescale, primus):
    body = document(forescale("project", primus, "--cluster", "mi355x", "--nodes", 8, "--json"))
    layout, workload = body["strategy"], body["workload"]
    assert (layout["pp"], layout["ep"], layout["zero"], layout["micro_batch_size"]) == (2, 8, 0, 2)
    assert layout["dp_replicate"] * layout["dp_shard"] == 32
    assert (workload["global_batch_size"], workload["precision"]["compute"]) == (128, "bf16")
    assert any("keys that do not change the projection: lr" in note["text"] for note in body["notes"])
    ran = forescale("project", primus, "--cluster", "mi355x", "--nodes", 8, "--micro-batch-size", 1, "--json")
    assert document(ran)["strategy"]["micro_batch_size"] == 1


def test_the_schedule_of_an_experiment_is_projected(forescale, primus):
    more = "      patch_primus_pipeline: true\n      pp_algorithm: zbv-formatted\n"
    text = primus.read_text(encoding="utf-8") + more + "      num_virtual_stages_per_pipeline_rank: 2\n"
    primus.write_text(text, encoding="utf-8")
    ran = forescale("project", primus, "--cluster", "mi355x", "--nodes", 8, "--json")
    assert document(ran)["strategy"]["schedule"] == "zbv"
    assert document(ran)["strategy"]["vpp"] == 2


def test_a_search_takes_model_and_workload_of_an_experiment(forescale, primus):
    body = document(forescale("search", primus, "--cluster", "mi355x", "--nodes", 1, "--top", 1, "--json"))
    assert body["best"][0]["model"] == "small"
    assert body["best"][0]["workload"]["global_batch_size"] == 128
    assert not any("fewest" in note["text"] for note in body["best"][0]["notes"])


def test_a_plan_with_flags_and_overrides_over_it(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 16\n[strategy]\ntp = 8\npp = 2\n'
        "[workload]\nseq_len = 4096\nglobal_batch_size = 64\n",
        encoding="utf-8",
    )
    body = document(forescale("project", "--plan", plan, "--json"))
    assert (body["model"], body["strategy"]["tp"], body["strategy"]["dp_shard"]) == ("llama-3.1-8b", 8, 1)
    body = document(forescale("project", "--plan", plan, "--tp", 4, "--set", "strategy.pp=1", "--json"))
    assert (body["strategy"]["tp"], body["strategy"]["pp"], body["strategy"]["dp_shard"]) == (4, 1, 4)
    body = document(forescale("project", "--plan", plan, "--nodes", 4, "--json"))
    assert body["cluster"]["num_devices"] == 32
    body = document(
        forescale("project", "--plan", plan, "--set", "cluster.device.hbm_bytes=96 GiB", "--json")
    )
    assert body["memory"]["capacity_bytes"] == 96 * 2**30


def test_the_example_plan_works(forescale):
    from pathlib import Path

    example = Path(__file__).parents[2] / "examples" / "plan.toml"
    assert document(forescale("project", "--plan", example, "--json"))["memory"]["verdict"] == "FITS"


def test_uneven_experts_are_named(forescale):
    ran = forescale(
        "project", "mixtral-8x7b", "--cluster", "h100-sxm", "--devices", "32", "--ep", "8", "--seq-len", "4096",
        "--global-batch-size", "256", "--expert-imbalance", "1.2", "--capacity-factor", "1.5", "--dispatcher", "deepep",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    head = " ".join(ran.out.splitlines()[:3])
    assert "deepep, experts 1.2 × uneven, capacity 1.5" in head


def test_padding_without_a_capacity_is_refused(forescale):
    ran = forescale(
        "project", "mixtral-8x7b", "--cluster", "h100-sxm", "--devices", "32", "--seq-len", "4096",
        "--global-batch-size", "256", "--pad-to-capacity",
    )  # fmt: skip
    assert ran.code == 2
    assert "routing.capacity_factor" in ran.err


def test_parts_that_are_not_projected_are_said_first(forescale, tmp_path):
    config = Path(__file__).parents[1] / "data" / "huggingface" / "multimodal" / "config.json"
    whole = json.loads(config.read_text(encoding="utf-8"))
    multimodal = tmp_path / "config.json"
    multimodal.write_text(json.dumps({**whole, "audio_config": whole["vision_config"]}), encoding="utf-8")
    for command in (("project", multimodal), ("memory", multimodal), ("explain", multimodal, "mfu")):
        head = forescale(*command, *DENSE[1:]).out.splitlines()[:4]
        assert any(line.startswith("left out: audio_config (about ") for line in head), command
    notes = document(forescale("project", multimodal, *DENSE[1:], "--json"))["notes"]
    assert notes[0]["topic"] == "left out"
    assert "neither its memory nor its time is counted" in notes[0]["text"]
    assert all("audio_config" not in note["text"] for note in notes[1:])


BENCH = Path(__file__).parents[2] / "examples" / "bench.json"


def test_what_was_measured_stands_beside_the_models(forescale):
    value = ("project", *DENSE, *LAYOUT, "--load-benchmark", BENCH)
    alone, body = (
        document(forescale("project", *DENSE, *LAYOUT, "--json")),
        document(forescale(*value, "--json")),
    )
    both = document(forescale(*value, "--mode", "both", "--json"))
    assert both["simulated"]["step_time_s"] == alone["step_time_s"]
    assert both["step_time_s"] == body["step_time_s"] != alone["step_time_s"]
    assert {row["rule"] for row in body["costs"]["restored"]} == {"model"}
    primus = document(forescale(*value, "--restore", "primus", "--json"))
    assert {row["rule"] for row in primus["costs"]["restored"]} == {"primus"}
    shown = forescale(*value, "--mode", "both").out
    for text in (
        "simulate  benchmark  difference",
        "from measured work",
        "calibrated (within 20 %)",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--mode", "both"), "required_with a measurement (--load-benchmark FILE)"),
        (
            ("--mode", "simulate", "--load-benchmark", BENCH),
            "required_with --mode benchmark or both | simulate",
        ),
        (("--restore", "primus"), "required_with --load-benchmark"),
        (("--cp", 2, "--load-benchmark", BENCH), "other_run bench.json | cp 1"),
        (("--precision", "fp8", "--load-benchmark", BENCH), "other_run bench.json | compute in bf16"),
        (
            ("--cluster", "a100-sxm-80gb", "--load-benchmark", BENCH),
            "other_run bench.json | h100-sxm",
        ),
        (("--load-benchmark", "none.json"), "not_found file"),
    ],
)
def test_measurements_that_do_not_fit_the_question(forescale, given, text):
    ran = forescale("project", *DENSE, *given)
    assert (ran.code, ran.out) == (2, "")
    wanted, _, value = text.partition(" | ")
    assert wanted in ran.refused
    assert ran.error.value == (value or None)
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"schema": "forescale.bench/2", "kernels": []}', "newer_version its schema"),
        ('{"schema": "forescale.bench/1", "ranks": [', "cannot_parse JSON"),
        (
            '{"schema_version": 9, "profiling_results": {}}',
            "newer_version its schema_version",
        ),
    ],
)
def test_artifacts_that_cannot_be_read(forescale, tmp_path, content, text):
    file = tmp_path / "bench.json"
    file.write_text(content, encoding="utf-8")
    ran = forescale("project", *DENSE, "--load-benchmark", file)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.refused


def test_stages_as_a_run_took_them(forescale, tmp_path):
    data = Path(__file__).parents[1] / "data" / "schedules"
    for file in data.glob("gpu8_layer64_gbs16__pp8__*.json"):
        shutil.copy(file, tmp_path / file.name.removeprefix("gpu8_layer64_gbs16__pp8__"))
    value = ("--cluster", "mi300x", "--devices", 8, "--seq-len", 4096, "--global-batch-size", 16)
    ran = forescale("project", "llama-3.1-8b", *value, "--pp", 8, "--measured", tmp_path)
    assert ran.code == 0, ran.err
    assert "simulate  benchmark  difference" in ran.out
    assert "note (measured): stages take what those of" in ran.out
    wrong = forescale("project", "llama-3.1-8b", *value, "--pp", 4, "--measured", tmp_path)
    assert (wrong.code, wrong.out) == (2, "")
    error = wrong.error
    assert (error.code, error.key, error.value, error.allowed) == ("wrong_count", "1f1b", "4 stages", 8)


@pytest.mark.parametrize(("pp", "batch", "is_long"), [(8, 8, True), (8, 256, False)])
def test_a_long_bubble_leads_to_changes(forescale, pp, batch, is_long):
    run = "--cluster", "h100", "--devices", 64, "--tp", 8, "--global-batch-size", batch, "--pp", pp
    ran = forescale("project", "llama-3.1-70b", *run)
    assert ("to find changes that shorten the bubble: forescale fit llama-3.1-70b" in ran.out) is is_long


@pytest.mark.usefixtures("usual_frameworks")
def test_a_long_bubble_names_the_degree_that_shortens_it_most(forescale):
    layout = ("--tp", "8", "--pp", "16", "--devices", "16384", "--global-batch-size", "2048")
    question = ("project", "llama-3.1-405b", "--cluster", "h100", "--seq-len", "8192", *layout)
    named = forescale(*question).out.partition(" alone: ")[0].splitlines()[-1]
    seconds = [
        json.loads(forescale(*question, *more, "--json").out)["step_time_s"] for more in ((), ("--vpp", "8"))
    ]
    assert named == "vpp 8"
    assert seconds[1] < 0.7 * seconds[0]


def test_a_type_of_node_has_its_devices_unless_a_file_or_a_layout_says_more(forescale, tmp_path):
    def devices(*words):
        return document(forescale("project", *words, "--cluster", "DGX H100", "--json"))["cluster"][
            "num_devices"
        ]

    asked = ("llama-3.1-8b", "--global-batch-size", 64)
    assert devices(*asked) == 8
    assert devices(*asked, "--tp", 8, "--pp", 4) == 32
    assert devices(*asked, "--nodes", 2) == 16
    zero = tmp_path / "ds.json"
    zero.write_text(
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'
    )
    assert devices("llama-3.1-8b", "--config", zero, "--seq-len", 2048) == 8
    accelerate = tmp_path / "accelerate.yaml"
    accelerate.write_text(
        "distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nfsdp_config: {fsdp_version: 2}\n"
    )
    assert devices(*asked, "--seq-len", 2048, "--config", accelerate) == 16


def test_a_model_configuration_says_nothing_about_devices(forescale, tmp_path):
    config = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--cluster", "g6e.12xlarge", "--global-batch-size", 64, "--json")
    assert document(forescale("project", tmp_path / "config.json", *words))["cluster"]["num_devices"] == 4
