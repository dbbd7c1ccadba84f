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
    ("plan", "[strategy]", "[strategi]", "did you mean strategy", 4),
    ("plan", "tp = 2", "tp = 3", "not a multiple of the 3", 3),
    ("plan", "tp = 2", "cp = 3\ndp_shard = 1", "is not a multiple", 3),
    ("plan", "tp = 2", 'tp = "two"', "tp must be a whole number", 5),
    ("plan", "tp = 2", "tp = -2", "tp must be greater than 0, got -2", 5),
    ("plan", "tp = 2", "tp = 2\ntp = 4", "Cannot overwrite a value", 6),
    ("plan", "seq_len = 2048", "seq_len = nan", "'seq_len' must be a number, got nan", 10),
    ("plan", "seq_len = 2048", f"seq_len = {'9' * 30}", "more digits", 10),
    ("plan", "seq_len = 2048", "seqlen = 2048", "did you mean seq_len", 10),
    ("plan", "llama-3.2-1b", "llama-3.2-1c", "did you mean llama-3.2-1b", 1),
    ("plan", 'compute = "bf16"', 'compute = "bf61"', "must be", 14),
    ("plan", "seq_len = 2048", 'seq_len = 2048\nprecision = "bf16"', "precision must be a table ([precision]), got 'bf16'", 11),
    ("plan", 'compute = "bf16"', "compute = []", "precision.compute must be a name, got []", 14),
    ("plan", "[strategy]", 'preset = "primos"\n[strategy]', "unknown preset 'primos'; did you mean primus", 4),
    ("plan", "[strategy]", 'preset = ""\n[strategy]', "unknown preset ''", 4),
    ("plan", "llama-3.2-1b", "", "unknown model ''", 1),
    ("model", '"hidden_size": 512', '"hidden_sise": 512', "'hidden_size' is missing; it has 'hidden_sise'", 3),
    ("model", '"num_key_value_heads"', '"num_key_value_head"', "did you mean num_key_value_heads", 6),
    ("model", '"num_key_value_heads": 4', '"num_key_value_heads": 3', "not a multiple of 'num_key_value_heads' 3", 5),
    ("model", '"num_attention_heads": 8', '"num_attention_heads": 7', "'hidden_size' 512 is not a multiple of 'num_attention_heads' 7", 3),
    ("model", '"hidden_size": 512', '"hidden_size": 1e400', "'hidden_size' must be a number, got inf", 3),
    ("model", '"hidden_size": 512', '"hidden_size": 512,\n "hidden_size": 64', "'hidden_size' is given twice", 4),
    ("model", '"hidden_size": 512', '"hidden_size": [512]', "must be a whole number", 3),
    ("model", '"llama"', '"lama"', "is not supported (nearest: llama", 2),
    ("Megatron script", "--swiglu", "--swiglo", "did you mean --swiglu", 5),
    ("Megatron script", "--hidden-size $H", "--hidden-size 0", "--hidden-size", 3),
    ("Megatron script", "--use-distributed-optimizer", "--fp8-format hybrid --fp8-param-gather", "--fp8-param-gather needs", 5),
    ("Megatron YAML", "hidden_size: 64", "hiden_size: 64", "did you mean hidden_size", 3),
    ("Megatron YAML", "num_layers: 2", "num_layers: 2\n  num_layers: 4", "given twice", 3),
    ("Megatron YAML", "micro_batch_size: 1", "micro_batch_size: 1\nnum_layers: 4", "num_layers is given twice, as 2 and as 4", None),
    ("Megatron script", "--swiglu", "--swiglu --model-parallel-size 2", "--model-parallel-size is no longer valid in Megatron-LM; use --tensor-model-parallel-size", 5),
    ("Megatron table", "--hidden-size: 512", "--hiden-size: 512", "did you mean --hidden-size", 3),
    ("Megatron table", "--num-layers: 12", "--num-layers: -12", "--num-layers", 2),
    ("Megatron table", "MODEL_ARGS:", "ENV_VAR:\n  A: 1\nMODEL_ARGS:", "did you mean ENV_VARS", 1),
    ("Megatron table", "MODEL_ARGS:", "--fp8-format: hybrid\nMODEL_ARGS:", "flags stand under it", 1),
    ("Megatron YAML", "activation_func: swiglu", "activation_func: [swiglu]", "activation_func must be text, got ['swiglu']", None),
    ("Megatron table", "--bf16: true", "--bf16: [1, 2]", "--bf16 takes no value, got [1, 2]", 10),
    ("Megatron-Bridge", "model.hidden_size", "model.hiden_size", "did you mean hidden_size", 5),
    ("Megatron-Bridge", "hidden_size = 512", 'hidden_size = "wide"', "must be a whole number", 5),
    ("Megatron-Bridge", "cfg.model.hidden_size", "cfg.model.num_moe_experts = 8\n    cfg.model.moe_router_topk = 0\n    cfg.model.hidden_size", "model.moe_router_topk must be 1 to 8, the experts there are, got 0", 6),
    ("Primus", "hidden_size: 512", "hiden_size: 512", "did you mean", 7),
    ("Primus", "hidden_size: 512", "hidden_size: 512\n      hidden_size: 64", "given twice", 8),
    ("Primus", "hidden_size: 512", "hidden_size: -512", "hidden_size", 7),
    ("Primus", "modules:", "module:", "did you mean modules", 2),
    ("Primus preset", "ffn_hidden_size: 1024", "ffn_hidden_size: 1.5", "must be a whole number", 4),
    ("torchtitan Python", "tensor_parallel_degree=2", "tensor_paralel_degree=2", "did you mean tensor_parallel_degree", 11),
    ("torchtitan Python", "tensor_parallel_degree=2", 'tensor_parallel_degree="2x"', "must be a whole number", 11),
    ("nanotron", "parallelism:", "paralellism:", "did you mean parallelism", None),
    ("nanotron", "  tp: 2", "  tp: 2\n  tp: 4", "'tp' is given twice", None),
    ("MaxText", "max_target_length", "max_target_lenght", "did you mean max_target_length", 4),
    ("MaxText", "max_target_length: 2048", "max_target_length: 2048\nmax_target_length: 4096", "given twice", 5),
    ("MaxText", "llama3.1-8b", "llama3.1-8bb", "did you mean llama3.1-8b", 2),
    ("Accelerate", "fsdp_sharding_strategy", "fsdp_sharding_strategi", "did you mean fsdp_sharding_strategy", 4),
    ("Accelerate", "num_processes: 8", "num_processes: 8\nnum_processes: 4", "given twice", 7),
    ("Accelerate", "fsdp_sharding_strategy: FULL_SHARD", "fsdp_sharding_strategy: {}", "must be text", 4),
    ("Accelerate", "distributed_type: FSDP", "distributed_type: FSPD", "must be one of NO, MULTI_GPU", 2),
    ("Accelerate", "distributed_type: FSDP", "distributed_type: MEGATRON_LM", "its megatron_lm_config is not read", 2),
    ("Accelerate", "fsdp_sharding_strategy: FULL_SHARD", "fsdp_version: 3", "must be 1 or 2, got 3", 4),
    ("nanotron", "hidden_act: silu", "_attn_implementation: flash", "must be one of flash_attention_2", 36),
    ("MaxText", "ici_fsdp_parallelism: 16", "ici_fsdp_parallelism: 16\nattention: flsh", "must be one of autoselected, dot_product, flash", 6),
    ("DeepSpeed", '"enabled": true', '"enabled": true\n },\n "fp16": {\n  "enabled": true', "cannot both be true", 8),
    ("DeepSpeed", '"stage": 3', '"stage": 4', "stage must be 0, 1, 2 or 3, got 4", 8),
    ("DeepSpeed", '"stage": 3', '"stge": 3', "did you mean stage", 8),
    ("DeepSpeed", '"stage": 3', '"stage": 3,\n  "stage": 2', "'stage' is given twice", 9),
    ("DeepSpeed", '"stage": 3', '"stage": 3, "offload_optimizer": "cpu"', "offload_optimizer must be a table", 8),
    ("DeepSpeed", '"stage": 3', '"stage": 3, "offload_optimizer": {"device": "gpu"}', "must be one of none, cpu, nvme, got 'gpu'", 8),
    ("Trainer", '"full_shard"', '"fullshard"', "fsdp takes full_shard, shard_grad_op", 5),
    ("Trainer", '"bf16": true', '"bf16": true, "fp16": true', "cannot both be true", 4),
    ("Trainer", '"bf16": true', '"bf16": "maybe"', "must be true or false", 4),
    ("adapters", '"r": 16', '"r": 0', "1 or more, got 0", 3),
    ("cluster", "devices_per_node: 8", "devices_per_node: 8x", "devices_per_node must be a whole number", 3),
    ("cluster", "hbm_bytes: 80 GiB", "hbm_bytes: 80 GX", "device.hbm_bytes", 4),
    ("cluster", "devices_per_node", "device_per_node", "did you mean devices_per_node", 3),
    ("cluster", "latency: 5 us", "latency: 5 GB", "tiers.1.latency", 7),
    ("hardware", "node_bw: 400", "node_bw: -400", "node_bw must be", 3),
    ("hardware", "node_bw", "node_bww", "did you mean node_bw", 3),
    ("calibration", '"bandwidth": 0.8', '"bandwith": 0.8', "did you mean bandwidth", None),
    ("calibration", '"base": "hopper"', '"base": ["hopper"]', "base is one of", None),
    ("calibration", '"memory": {', '"memory": 3, "tile": {', "kernels.h100-sxm.memory must be a table, got 3", None),
    ("calibration", '"kernels": {', '"links": 0, "kernels": {', "links a list of tables", None),
    ("timed kernels", '"op": "gemm"', '"op": []', "op must be one of", 5),
    ("timed kernels", '"m": 8192', '"m": -1', "m must be", 6),
    ("timed kernels", "forescale.bench/1", "forescale.bench/9", "a newer Forescale wrote it", 2),
    ("bench artifact", '"zero": 1', '"zero": 9', "zero must be", None),
    ("trace", '"traceEvents"', '"traceEvent"', "its schema must be", None),
    ("trace", '"dur": 300.0', '"dur": "300 us"', "'dur' of event 1 (k) must be a whole number or a number, got '300 us'", None),
    ("trace", '"dur": 300.0', '"dur": Infinity', "'dur' of event 1 (k) must be a whole number or a number, got inf", None),
    ("trace", "[4096, 14336]", "{}", "nothing of it is a measurement", None),
    ("trace", '"Input Dims"', '"Input Dim"', "did you mean Input Dims", None),
    ("Primus artifact", '"forward_time_ms"', '"forward_times_ms"', "did you mean forward_time_ms", 11),
    ("Primus artifact", '"forward_time_ms": 5.0', '"forward_time_ms": []', "forward_time_ms must be a number, got []", 11),
    ("Primus artifact", '"schema_version": 2', '"schema_version": []', "its schema_version is []", 2),
    ("Primus artifact", "global_peak_allocated_bytes", "global_peak_alocated_bytes", "did you mean global_peak_allocated_bytes", 14),
    ("Primus artifact", "sequence_length", "sequence_lenght", "did you mean sequence_length", 7),
    ("Primus artifact", "benchmark_gpus", "benchmark_gpu", "did you mean benchmark_gpus", 4),
    ("Primus artifact", "memory_results", "memory_result", "did you mean memory_results", 13),
    ("Primus artifact", '"num_layers": 2', '"num_layers": "2"', "num_layers must be", 6),
    ("kernels", ",300\n", ",300x\n", "line 2, column time_us", 2),
    ("kernels", "time_us", "time_ms", "did you mean time_us", None),
    ("space", "[fix]", "[fixx]", "did you mean fix", 2),
    ("space", "micro_batch_size = 1", "micro_batch_sise = 1", "did you mean micro_batch_size", 3),
    ("sweep", "hbm_bandwidth", "hbm_bandwith", "did you mean hbm_bandwidth", None),
    ("runs", "16,2,1,8", "16x,2,1,8", "line 2, column n_gpus", 2),
    ("table of schedules", "fwd_time", "fwd_tme", "did you mean fwd_time", 1),
    ("table of schedules", "vpp_size: 1", "vpp_size: 2", "schedulers[0] (1f1b): vpp must be 1; got 2", 4),
    ("table of schedules", "pp_size: 4", "pp_size: 100000", "at most 32767 stages; got 100000", 4),
    ("table of schedules", "vpp_size: 1", "vpp_size: 0", "1 or more; got 0", 7),
    ("schedule", "0B0", "0B9", "", None),
    ("prices", "value = 1.5", "value = -1.5", "value", 2),
    ("prices", "source", "sauce", "did you mean source", 3),
    ("plan", "zero = 1", 'zero = 1\nschedule = "zb-h9"', "did you mean zb-h2", 7),
    ("plan", "zero = 1", "zero = 1\nstage_layers = [3, 4]", "stage_layers (3, 4) must be", 7),
    ("plan", "zero = 1", 'zero = 1\nsoftware = "megatron-cor"', "did you mean megatron-core", 7),
    ("plan", "seq_len = 2048", 'seq_len = "2x"', "seq_len must be a whole number, got '2x'", 10),
    ("plan of a run", "tokens = 2e10", "tokens = -2e10", "tokens must be greater than 0", 19),
    ("plan of a run", "seq_len = 8192", "seqlen = 8192", "did you mean seq_len", 20),
    ("plan of a run", "seq_len = 8192", "global_batch_size = 33", "is not divisible by dp 4", 20),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "before", "after", "said", "line"), WRONG, ids=lambda value: str(value)[:24]
)
def test_one_thing_wrong_is_said_with_its_line(ask, kind, before, after, said, line):
    text = KINDS[kind][2]
    assert before in text
    error = sentence(ask(kind, text.replace(before, after, 1)))
    assert said in error
    assert KINDS[kind][1] in error
    if line is not None:
        assert re.search(rf"\bline {line}\b", error), error


def test_values_of_the_command_line_are_not_laid_at_the_files_door(ask, forescale):
    ask("plan", fuzz.PLAN)
    assert "command line, strategy: tp must be" in sentence(forescale("project", "plan.toml", "--tp", -1))


def test_a_layout_alone_is_no_model(ask, forescale):
    for kind in ("DeepSpeed", "Accelerate"):
        ask(kind, KINDS[kind][2])
        message = sentence(forescale("project", KINDS[kind][1], *DENSE[1:]))
        assert "it describes no model (" in message
        assert f"--config {KINDS[kind][1]}" in message


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
    beside = "MODE: inference\nMODEL_ARGS_2:\n  --num-layers: 4\nENV_VARS:\n  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True\n"
    assert ask("Megatron table", KINDS["Megatron table"][2] + beside).code == 0
    ran = forescale(*PROJECT[:1], "case.yaml", *ON, "--verbose")
    assert "MODEL_ARGS_2 beside it are not" in ran.out
    assert "MODE is inference" in ran.out
    result = json.loads(forescale(*PROJECT[:1], "case.yaml", *ON, "--json").out)
    assert result["strategy"]["allocator"] == "expandable_segments"


def test_a_key_that_says_the_same_twice_is_read(ask):
    text = KINDS["Megatron table"][2]
    assert ask("Megatron table", text + "  --num-layers: 12\n").code == 0
