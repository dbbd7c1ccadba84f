"""Broken files of every kind: one sentence with the file, and the line of what is wrong where it has one."""

from __future__ import annotations

import json
import re

import pytest
from tests.cli.questions import DENSE
from tests.fuzz import fuzz

ON = ("--cluster", "h100-sxm", "--devices", "16")
SIZES = ("--seq-len", "2048", "--global-batch-size", "32")


def lines_of(text: str) -> str:
    return json.dumps(json.loads(text), indent=1)


MEGATRON_YAML = """language_model:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  activation_func: swiglu
model_parallel:
  tensor_model_parallel_size: 2
  bf16: True
micro_batch_size: 1
global_batch_size: 32
seq_length: 2048
max_position_embeddings: 2048
vocab_size: 1000
"""
MEGATRON_CASE = """MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 1
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-size: 1000
  --bf16: true
"""
PRIMUS = """work_group: a
modules:
  pre_trainer:
    framework: megatron
    overrides:
      num_layers: 4
      hidden_size: 512
      num_attention_heads: 8
      vocab_size: 1000
      seq_length: 2048
      max_position_embeddings: 2048
      micro_batch_size: 1
      global_batch_size: 32
      bf16: true
"""
MAXTEXT = """base_config: "base.yml"
model_name: "llama3.1-8b"
per_device_batch_size: 2
max_target_length: 2048
ici_fsdp_parallelism: 16
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
mixed_precision: bf16
num_processes: 8
"""
TRAINER = """{
 "output_dir": "x",
 "per_device_train_batch_size": 2,
 "bf16": true,
 "fsdp": "full_shard",
 "model_name_or_path": "llama-3.2-1b"
}
"""
ADAPTER = """{
 "peft_type": "LORA",
 "r": 16,
 "target_modules": ["q_proj", "v_proj"],
 "base_model_name_or_path": "llama-3.2-1b"
}
"""
BRIDGE = """from megatron.bridge.training.config import ConfigContainer

def plan(cfg: ConfigContainer) -> ConfigContainer:
    cfg.model.num_layers = 4
    cfg.model.hidden_size = 512
    cfg.model.num_attention_heads = 8
    cfg.model.vocab_size = 1000
    cfg.model.seq_length = 2048
    cfg.dataset.seq_length = 2048
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 32
    return cfg
"""
TITAN_JOB = """from torchtitan.trainer import Trainer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry


def plan() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        parallelism=ParallelismConfig(
            data_parallel_shard_degree=-1,
            tensor_parallel_degree=2,
        ),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=8192,
            num_tokens_per_train_step=262144,
            max_context_length=8192,
        ),
    )
"""
PRICES = """[[device_hour.h100-sxm]]
value = 1.5
source = "a list"
date = "2026"
"""
PHASES = (
    fuzz.PLAN.replace("tokens = 1e12\n", "")
    + "[[phase]]\ntokens = 1e12\n[[phase]]\ntokens = 2e10\nseq_len = 8192\n"
)
TRACE = """{"traceEvents": [
 {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 50.0, "args": {"External id": 1,
  "Input Dims": [[4096, 4096], [4096, 14336]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": []}},
 {"ph": "X", "cat": "kernel", "name": "k", "ts": 2.0, "dur": 300.0, "args": {"External id": 1}}
]}
"""
SCHEDULES = """fwd_time: 10
bwd_time: 12.5
wgrad_time: 8
schedulers:
  - name: basic_1f1b
    pp_size: 4
    vpp_size: 1
    micro_batches: 8
"""
PRIMUS_BENCH = """{
 "schema_version": 2,
 "metadata": {
  "benchmark_gpus": 8,
  "bench_training_config_summary": {
   "num_layers": 2,
   "sequence_length": 2048
  }
 },
 "profiling_results": {
  "0": {"type": "dense", "forward_time_ms": 5.0, "backward_time_ms": 11.0}
 },
 "memory_results": {
  "global_peak_allocated_bytes": 9e9,
  "global_peak_reserved_bytes": 1e10
 }
}
"""
PROJECT = ("project", "FILE", *ON)
KINDS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "plan": (("project", "FILE"), "plan.toml", fuzz.PLAN),
    "plan of a run": (("run", "--plan", "FILE"), "run.toml", PHASES),
    "model": ((*PROJECT, *SIZES), "config.json", lines_of(fuzz.HF)),
    "model of experts": ((*PROJECT, *SIZES), "moe.json", lines_of(fuzz.MOE)),
    "Megatron script": (("project", "FILE", "--cluster", "h100-sxm"), "run.sh", fuzz.SCRIPT),
    "Megatron YAML": (PROJECT, "cfg.yaml", MEGATRON_YAML),
    "Megatron table": (PROJECT, "case.yaml", MEGATRON_CASE),
    "Megatron-Bridge": (PROJECT, "recipe.py", BRIDGE),
    "Primus": (PROJECT, "experiment.yaml", PRIMUS),
    "Primus preset": ((*PROJECT, *SIZES), "preset.yaml", fuzz.PRIMUS),
    "torchtitan Python": (PROJECT, "job.py", TITAN_JOB),
    "nanotron": (("project", "FILE", "--cluster", "h100-sxm"), "nano.yaml", fuzz.NANOTRON),
    "MaxText": (PROJECT, "max.yml", MAXTEXT),
    "Accelerate": (("project", *fuzz.DENSE, "--config", "FILE"), "accelerate.yaml", ACCELERATE),
    "DeepSpeed": (("project", *fuzz.DENSE[:-2], "--config", "FILE"), "ds.json", lines_of(fuzz.DEEPSPEED)),
    "Trainer": ((*PROJECT, *SIZES[:2]), "training.json", TRAINER),
    "adapters": ((*PROJECT, *SIZES), "adapter_config.json", ADAPTER),
    "cluster": (("project", "llama-3.2-1b", "--cluster", "FILE", *fuzz.ON[2:]), "mine.yaml", fuzz.CLUSTER),
    "hardware": (("project", *fuzz.DENSE, "--hardware-config", "FILE"), "hw.yaml", fuzz.HARDWARE),
    "calibration": (("project", *fuzz.DENSE, "--calibration", "FILE"), "own.json", lines_of(fuzz.FITS)),
    "timed kernels": (("project", *fuzz.DENSE, "--measurements", "FILE"), "bench.json", lines_of(fuzz.BENCH)),
    "bench artifact": (("memory", *fuzz.DENSE, "--load-benchmark", "FILE"), "peaks.json", lines_of(fuzz.PEAKS)),
    "Primus artifact": (("project", *fuzz.DENSE, "--load-benchmark", "FILE"), "primus.json", PRIMUS_BENCH),
    "trace": (("project", *fuzz.DENSE, "--measurements", "FILE"), "trace.json", TRACE),
    "kernels": (("project", *fuzz.DENSE, "--measurements", "FILE"), "kernels.csv", fuzz.KERNELS),
    "nccl-tests": (("calibrate", "--collectives", "FILE", "--cluster", "mi300x", "--output", "OUT"), "log.txt", fuzz.LOG),
    "space": (("search", *fuzz.DENSE, "--fix", "tp=1", "--fix", "cp=1", "--fix", "pp=1", "--space", "FILE"), "space.toml",
              'overlap = ["grad_reduce"]\n[fix]\nmicro_batch_size = 1\n'),
    "sweep": (("sweep", "FILE", "--dry-run"), "sweep.toml", fuzz.SWEEP),
    "runs": (("validate", "FILE"), "runs.csv", fuzz.RUNS),
    "schedule": (("pipeline", "check", "FILE"), "table.csv", fuzz.TABLE),
    "table of schedules": (("pipeline", "check", "FILE"), "table.yaml", SCHEDULES),
    "prices": (("run", *fuzz.DENSE, "--tokens", "1T", "--prices", "FILE"), "prices.toml", PRICES),
}  # fmt: skip
"""The command that reads each kind of file, its name, and one that can be read."""


@pytest.fixture
def ask(forescale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def with_file(kind: str, content: str | bytes | None):
        arguments, name, _ = KINDS[kind]
        if content is not None:
            (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        ran = forescale(*({"FILE": name, "OUT": "out.json"}.get(word, word) for word in arguments))
        assert not (tmp_path / "out.json").exists() or ran.code == 0
        return ran

    return with_file


def sentence(ran) -> str:
    assert (ran.code, ran.out) == (2, ""), (ran.code, ran.out[:200])
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    return ran.err


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_are_read_with_any_line_ends(ask, kind):
    text = KINDS[kind][2]
    plain = ask(kind, text)
    assert plain.code in ((0, 1) if kind in ("schedule",) else (0,)), plain.err
    marked = ask(kind, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert marked.code == plain.code, marked.err


BROKEN = {
    "missing": None,
    "empty": "",
    "blank": "\n \n",
    "UTF-16": "a = 1\n".encode("utf-16"),
    "binary": bytes(range(256)),
    "zero byte": b"a: 1\0\n",
    "Latin-1": b"a: \xe9\n",
    "page": "<html><body>404 not found</body></html>\n",
    "words": "hello world\n",
    "list": "[1, 2]\n",
    "deep": "[" * 50_000,
    "bomb": "a: &a [1,2,3,4,5,6,7,8,9]\n" + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
    "tag": "a: !!python/object/apply:os.system [ls]\n",
    "other JSON": '{"a": 1}',
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_at_all(ask, kind, how):
    assert KINDS[kind][1] in sentence(ask(kind, BROKEN[how]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_in_the_place_of_a_file(ask, tmp_path, kind):
    (tmp_path / KINDS[kind][1]).mkdir()
    assert KINDS[kind][1] in sentence(ask(kind, None))


# kind: what is replaced, by what, what the sentence holds, and the line
WRONG = (
    ("plan", "[strategy]", "[strategi]", "unknown_key strategi", 4),
    ("plan", "tp = 2", "tp = 3", "not_divisible the number of devices", 3),
    ("plan", "tp = 2", "cp = 3\ndp_shard = 1", "not_divisible the number of devices", 3),
    ("plan", "tp = 2", 'tp = "two"', "wrong_type tp", 5),
    ("plan", "tp = 2", "tp = -2", "out_of_range tp", 5),
    ("plan", "tp = 2", "tp = 2\ntp = 4", "cannot_parse TOML", 6),
    ("plan", "seq_len = 2048", "seq_len = nan", "wrong_type seq_len", 10),
    ("plan", "seq_len = 2048", f"seq_len = {'9' * 30}", "too_large seq_len", 10),
    ("plan", "seq_len = 2048", "seqlen = 2048", "did you mean seq_len", 10),
    ("plan", "llama-3.2-1b", "llama-3.2-1c", "unknown_name model", 1),
    ("plan", 'compute = "bf16"', 'compute = "bf61"', "not_one_of precision.compute", 14),
    ("plan", "seq_len = 2048", 'seq_len = 2048\nprecision = "bf16"', "wrong_type precision", 11),
    ("plan", 'compute = "bf16"', "compute = []", "wrong_type precision.compute", 14),
    ("plan", "[strategy]", 'preset = "primos"\n[strategy]', "unknown_name preset", 4),
    ("plan", "[strategy]", 'preset = ""\n[strategy]', "unknown_name preset", 4),
    ("plan", "llama-3.2-1b", "", "unknown_name model", 1),
    ("model", '"hidden_size": 512', '"hidden_sise": 512', "unknown_key hidden_sise", 3),
    ("model", '"num_key_value_heads"', '"num_key_value_head"', "unknown_key num_key_value_head", 6),
    ("model", '"num_key_value_heads": 4', '"num_key_value_heads": 3', "not_divisible num_attention_heads", 5),
    ("model", '"num_attention_heads": 8', '"num_attention_heads": 7', "not_divisible hidden_size", 3),
    ("model", '"hidden_size": 512', '"hidden_size": 1e400', "wrong_type hidden_size", 3),
    ("model", '"hidden_size": 512', '"hidden_size": 512,\n "hidden_size": 64', "given_twice hidden_size", 4),
    ("model", '"hidden_size": 512', '"hidden_size": [512]', "wrong_type hidden_size", 3),
    ("model", '"llama"', '"lama"', "is not supported (nearest: llama", 2),
    ("Megatron script", "--swiglu", "--swiglo", "unknown_key --swiglo", 5),
    ("Megatron script", "--hidden-size $H", "--hidden-size 0", "out_of_range --hidden-size", 3),
    ("Megatron script", "--use-distributed-optimizer", "--fp8-format hybrid --fp8-param-gather", "required_with", 5),
    ("Megatron YAML", "hidden_size: 64", "hiden_size: 64", "unknown_key hiden_size", 3),
    ("Megatron YAML", "num_layers: 2", "num_layers: 2\n  num_layers: 4", "cannot_parse YAML", 3),
    ("Megatron YAML", "micro_batch_size: 1", "micro_batch_size: 1\nnum_layers: 4", "given_twice num_layers", None),
    ("Megatron script", "--swiglu", "--swiglu --model-parallel-size 2", "removed --model-parallel-size", 5),
    ("Megatron table", "--hidden-size: 512", "--hiden-size: 512", "unknown_key --hiden-size", 3),
    ("Megatron table", "--num-layers: 12", "--num-layers: -12", "wrong_type --num-layers", 2),
    ("Megatron table", "MODEL_ARGS:", "ENV_VAR:\n  A: 1\nMODEL_ARGS:", "unknown_key ENV_VAR", 1),
    ("Megatron table", "MODEL_ARGS:", "--fp8-format: hybrid\nMODEL_ARGS:", "flags stand under it", 1),
    ("Megatron YAML", "activation_func: swiglu", "activation_func: [swiglu]", "wrong_type activation_func", None),
    ("Megatron table", "--bf16: true", "--bf16: [1, 2]", "wrong_type --bf16", 10),
    ("Megatron-Bridge", "model.hidden_size", "model.hiden_size", "unknown_key hiden_size", 5),
    ("Megatron-Bridge", "hidden_size = 512", 'hidden_size = "wide"', "wrong_type", 5),
    ("Megatron-Bridge", "cfg.model.hidden_size", "cfg.model.num_moe_experts = 8\n    cfg.model.moe_router_topk = 0\n    cfg.model.hidden_size", "out_of_range model.moe_router_topk", 6),
    ("Primus", "hidden_size: 512", "hiden_size: 512", "unknown_key hiden_size", 7),
    ("Primus", "hidden_size: 512", "hidden_size: 512\n      hidden_size: 64", "cannot_parse YAML", 8),
    ("Primus", "hidden_size: 512", "hidden_size: -512", "wrong_type hidden_size", 7),
    ("Primus", "modules:", "module:", "unknown_format", 2),
    ("Primus preset", "ffn_hidden_size: 1024", "ffn_hidden_size: 1.5", "wrong_type ffn_hidden_size", 4),
    ("torchtitan Python", "tensor_parallel_degree=2", "tensor_paralel_degree=2", "unknown_key tensor_paralel_degree", 11),
    ("torchtitan Python", "tensor_parallel_degree=2", 'tensor_parallel_degree="2x"', "wrong_type parallelism.tensor_parallel_degree", 11),
    ("nanotron", "parallelism:", "paralellism:", "unknown_format", None),
    ("nanotron", "  tp: 2", "  tp: 2\n  tp: 4", "cannot_parse YAML", None),
    ("MaxText", "max_target_length", "max_target_lenght", "unknown_key max_target_lenght", 4),
    ("MaxText", "max_target_length: 2048", "max_target_length: 2048\nmax_target_length: 4096", "cannot_parse YAML", 5),
    ("MaxText", "llama3.1-8b", "llama3.1-8bb", "unknown_name MaxText model_name", 2),
    ("Accelerate", "fsdp_sharding_strategy", "fsdp_sharding_strategi", "unknown_key fsdp_sharding_strategi", 4),
    ("Accelerate", "fsdp_sharding_strategy: FULL_SHARD", "fsdp_sharding_strategy: {}", "wrong_type fsdp_sharding_strategy (line 4)", 4),
    ("Accelerate", "distributed_type: FSDP", "distributed_type: FSPD", "not_one_of distributed_type (line 2)", 2),
    ("Accelerate", "distributed_type: FSDP", "distributed_type: MEGATRON_LM", "not_expressed distributed_type (line 2)", 2),
    ("Accelerate", "fsdp_sharding_strategy: FULL_SHARD", "fsdp_version: 3", "not_one_of fsdp_version (line 4)", 4),
    ("nanotron", "hidden_act: silu", "_attn_implementation: flash", "not_one_of model.model_config._attn_implementation (line 36)", 36),
    ("MaxText", "ici_fsdp_parallelism: 16", "ici_fsdp_parallelism: 16\nattention: flsh", "not_one_of attention (line 6)", 6),
    ("DeepSpeed", '"enabled": true', '"enabled": true\n },\n "fp16": {\n  "enabled": true', "conflicts fp16.enabled, bf16.enabled", 8),
    ("DeepSpeed", '"stage": 3', '"stage": 4', "not_one_of zero_optimization.stage", 8),
    ("DeepSpeed", '"stage": 3', '"stge": 3', "unknown_key stge", 8),
    ("DeepSpeed", '"stage": 3', '"stage": 3,\n  "stage": 2', "given_twice stage", 9),
    ("DeepSpeed", '"stage": 3', '"stage": 3, "offload_optimizer": "cpu"', "wrong_type zero_optimization.offload_optimizer", 8),
    ("DeepSpeed", '"stage": 3', '"stage": 3, "offload_optimizer": {"device": "gpu"}', "not_one_of zero_optimization.offload_optimizer.device", 8),
    ("Trainer", '"full_shard"', '"fullshard"', "not_one_of fsdp", 5),
    ("Trainer", '"bf16": true', '"bf16": true, "fp16": true', "conflicts bf16, fp16", 4),
    ("Trainer", '"bf16": true', '"bf16": "maybe"', "wrong_type bf16 (line 4)", 4),
    ("adapters", '"r": 16', '"r": 0', "out_of_range r (line 3)", 3),
    ("cluster", "devices_per_node: 8", "devices_per_node: 8x", "wrong_type devices_per_node", 3),
    ("cluster", "hbm_bytes: 80 GiB", "hbm_bytes: 80 GX", "not_a_quantity byte", 4),
    ("cluster", "devices_per_node", "device_per_node", "unknown_key device_per_node", 3),
    ("cluster", "latency: 5 us", "latency: 5 GB", "not_a_quantity second", 7),
    ("hardware", "node_bw: 400", "node_bw: -400", "out_of_range node_bw", 3),
    ("hardware", "node_bw", "node_bww", "unknown_key node_bww", 3),
    ("calibration", '"bandwidth": 0.8', '"bandwith": 0.8', "unknown_key bandwith", None),
    ("calibration", '"base": "hopper"', '"base": ["hopper"]', "not_one_of the base of kernels.h100-sxm", None),
    ("calibration", '"memory": {', '"memory": 3, "tile": {', "wrong_type kernels.h100-sxm.memory", None),
    ("calibration", '"kernels": {', '"links": 0, "kernels": {', "links a list of tables", None),
    ("timed kernels", '"op": "gemm"', '"op": []', "not_one_of op", 5),
    ("timed kernels", '"m": 8192', '"m": -1', "out_of_range m", 6),
    ("timed kernels", "forescale.bench/1", "forescale.bench/9", "newer_version its schema", 2),
    ("bench artifact", '"zero": 1', '"zero": 9', "out_of_range zero", None),
    ("trace", '"traceEvents"', '"traceEvent"', "wrong_format", None),
    ("trace", '"dur": 300.0', '"dur": "300 us"', "wrong_type 'dur' of event 1 (k)", None),
    ("trace", '"dur": 300.0', '"dur": Infinity', "wrong_type 'dur' of event 1 (k)", None),
    ("trace", "[4096, 14336]", "{}", "not_measured it", None),
    ("Primus artifact", '"forward_time_ms"', '"forward_times_ms"', "unknown_key forward_times_ms", 11),
    ("Primus artifact", '"forward_time_ms": 5.0', '"forward_time_ms": []', "wrong_type forward_time_ms", 11),
    ("Primus artifact", '"schema_version": 2', '"schema_version": []', "newer_version its schema_version", 2),
    ("Primus artifact", "global_peak_allocated_bytes", "global_peak_alocated_bytes", "unknown_key global_peak_alocated_bytes", 14),
    ("Primus artifact", "sequence_length", "sequence_lenght", "unknown_key sequence_lenght", 7),
    ("Primus artifact", "benchmark_gpus", "benchmark_gpu", "unknown_key benchmark_gpu", 4),
    ("Primus artifact", "memory_results", "memory_result", "unknown_key memory_result", 13),
    ("Primus artifact", '"num_layers": 2', '"num_layers": "2"', "wrong_type num_layers", 6),
    ("kernels", ",300\n", ",300x\n", "wrong_type time_us", 2),
    ("kernels", "time_us", "time_ms", "unknown_key time_ms", None),
    ("space", "[fix]", "[fixx]", "unknown_key fixx", 2),
    ("space", "micro_batch_size = 1", "micro_batch_sise = 1", "unknown_key micro_batch_sise", 3),
    ("sweep", "hbm_bandwidth", "hbm_bandwith", "unknown_key hbm_bandwith", None),
    ("runs", "16,2,1,8", "16x,2,1,8", "wrong_type n_gpus", 2),
    ("table of schedules", "fwd_time", "fwd_tme", "unknown_key fwd_tme", 1),
    ("table of schedules", "vpp_size: 1", "vpp_size: 2", "schedulers[0] (1f1b): vpp must be 1; got 2", 4),
    ("table of schedules", "pp_size: 4", "pp_size: 100000", "at most 32767 stages; got 100000", 4),
    ("table of schedules", "vpp_size: 1", "vpp_size: 0", "out_of_range schedulers[0].vpp_size", 7),
    ("schedule", "0B0", "0B9", "out_of_range a micro-batch", None),
    ("prices", "value = 1.5", "value = -1.5", "out_of_range device_hour.h100-sxm.0.value", 2),
    ("prices", "source", "sauce", "unknown_key sauce", 3),
    ("plan", "zero = 1", 'zero = 1\nschedule = "zb-h9"', "unknown_name schedule", 7),
    ("plan", "zero = 1", "zero = 1\nstage_layers = [3, 4]", "stage_layers (3, 4) ", 7),
    ("plan", "zero = 1", 'zero = 1\nsoftware = "megatron-cor"', "unknown_name software", 7),
    ("plan", "seq_len = 2048", 'seq_len = "2x"', "wrong_type seq_len", 10),
    ("plan of a run", "tokens = 2e10", "tokens = -2e10", "out_of_range tokens", 19),
    ("plan of a run", "seq_len = 8192", "seqlen = 8192", "did you mean seq_len", 20),
    ("plan of a run", "seq_len = 8192", "global_batch_size = 33", "illegal_layout global batch", 20),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "before", "after", "said", "line"), WRONG, ids=lambda value: str(value)[:24]
)
def test_one_thing_wrong_is_said_with_its_line(ask, kind, before, after, said, line):
    text = KINDS[kind][2]
    assert before in text
    ran = ask(kind, text.replace(before, after, 1))
    error = sentence(ran)
    assert said in ran.refused
    assert KINDS[kind][1] in error
    if line is not None:
        assert re.search(rf"\bline {line}\b", error), error


def test_values_of_the_command_line_are_not_laid_at_the_files_door(ask, forescale):
    ask("plan", fuzz.PLAN)
    ran = forescale("project", "plan.toml", "--tp", -1)
    assert "out_of_range tp" in ran.refused
    assert "command line, strategy: tp" in sentence(ran)


def test_a_layout_alone_is_no_model(ask, forescale):
    for kind in ("DeepSpeed", "Accelerate"):
        ask(kind, KINDS[kind][2])
        ran = forescale("project", KINDS[kind][1], *DENSE[1:])
        assert "missing --model" in ran.refused
        assert ran.error.fix.endswith("--model llama-3.1-8b")


def test_images_of_a_text_model_are_refused(forescale):
    assert "has no vision tower" in sentence(forescale("project", *DENSE, "--images", 1))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"strategy"', '"stratgy"', "did you mean strategy"),
        ('"num_devices"', '"num_device"', "did you mean num_devices"),
        ('"question"', '"questoin"', "did you mean question"),
        ('"memory"', '"memori"', "did you mean memory"),
    ],
)
def test_misspelt_keys_of_printed_projections(forescale, tmp_path, before, after, said):
    text = lines_of(forescale("project", *DENSE, "--json").out)
    path = tmp_path / "printed.json"
    path.write_text(text.replace(before, after, 1))
    error = sentence(forescale("project", path))
    assert said in error
    assert re.search(r"printed\.json, line \d+", error), error


def test_what_stands_beside_the_flags_of_a_test_case_is_read_or_named(ask, forescale):
    beside = "MODE: rl\nMODEL_ARGS_2:\n  --num-layers: 4\nENV_VARS:\n  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True\n"
    assert ask("Megatron table", KINDS["Megatron table"][2] + beside).code == 0
    ran = forescale(*PROJECT[:1], "case.yaml", *ON, "--verbose")
    assert "MODEL_ARGS_2 beside it are not" in ran.out
    result = json.loads(forescale(*PROJECT[:1], "case.yaml", *ON, "--json").out)
    assert result["strategy"]["allocator"] == "expandable_segments"
    assert (
        "it is not a configuration that trains"
        in ask("Megatron table", KINDS["Megatron table"][2] + "MODE: inference\n").err
    )


def test_a_key_that_says_the_same_twice_is_read(ask):
    text = KINDS["Megatron table"][2]
    assert ask("Megatron table", text + "  --num-layers: 12\n").code == 0
