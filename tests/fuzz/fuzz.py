"""Broken questions for every command: valid examples, mutated by a seed, must end in an answer or in one sentence.

At length: `python -m tests.fuzz.fuzz --count 2000`; a failure names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from forescale.cli.app import run

DATA = Path(__file__).parents[1] / "data"
RUN = ("--seq-len", "2048", "--global-batch-size", "32")
ON = ("--cluster", "h100-sxm", "--devices", "8", *RUN)
DENSE = ("llama-3.2-1b", *ON)
HF = json.dumps(
    {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1000, "tie_word_embeddings": False,
    }
)  # fmt: skip
MOE = json.dumps(
    {
        "model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": None,
    }
)  # fmt: skip
SCRIPT = """#!/bin/bash
H=512
ARGS=(--num-layers 4 --hidden-size $H --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048)
torchrun --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]} --micro-batch-size 1 --global-batch-size 32 --vocab-size 1000 \\
  --swiglu --bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""
PRIMUS = """num_layers: 4
hidden_size: 512
num_attention_heads: 8
ffn_hidden_size: 1024
vocab_size: 1000
seq_length: 2048
swiglu: true
moe_layer_freq: 1
"""
DEEPSPEED = json.dumps(
    {
        "train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8},
    }
)  # fmt: skip
PLAN = """model = "llama-3.2-1b"
cluster = "h100-sxm"
devices = 8
[strategy]
tp = 2
zero = 1
recompute = { granularity = "full", num_layers = 2 }
axis_order = ["tp", "cp", "dp", "pp"]
[workload]
seq_len = 2048
global_batch_size = 32
tokens = 1e12
[precision]
compute = "bf16"
[cost]
device_clock_mhz = 1700.0
"""
CLUSTER = """base: h100-sxm
name: mine
devices_per_node: 8
device: {hbm_bytes: 80 GiB, hbm_bandwidth: 3 TB/s}
tiers:
  - {name: nvlink, size: 8, bandwidth: 450 GB/s, latency: 1 us}
  - {name: ib, size: 0, bandwidth: 50 GB/s, latency: 5 us}
"""
HARDWARE = (
    "node_size: 8\nnics_per_node: 8\nnode_bw: 400\npod_bw: 50\nnode_lat: 0.5\npod_lat: 2\nbw_eff: 0.9\n"
)
SPACE = 'overlap = ["grad_reduce"]\n[fix]\ntp = [1, 2]\npp = 1\ncp = 1\nmicro_batch_size = 1\n[allow]\nrecompute = "full:1"\n'
SWEEP = PLAN.partition("[strategy]")[0] + (
    "[workload]\nseq_len = 2048\nglobal_batch_size = 32\n[space]\ntp = [1, 2]\npp = 1\ncp = 1\n"
    "[vary]\nhbm_bandwidth = ['x1', 'x2']\nflops = { from = 'x1', to = 'x2', steps = 2 }\n"
)
RUNS = (
    "id,model,hardware,n_gpus,tp,pp,dp,seq_len,micro_batch,global_batch,measured_step_s,measured_peak_mem_gb,notes\n"
    "A-1,llama-3.1-8b,h100-sxm,16,2,1,8,8192,1,64,5.2,60,x\nA-2,llama-3.1-8b,h100-sxm,32,2,2,8,8192,1,64,3.2,40,x\n"
)
KERNELS = "id,hardware,kind,op,dtype,m,n,k,time_us\n" + "".join(
    f"K-{i},h100-sxm,gemm,x,bf16,{4096 * i},4096,4096,{300 * i}\n" for i in range(1, 5)
)
BENCH = json.dumps(
    {
        "schema": "forescale.bench/1",
        "kernels": [{"op": "gemm", "m": 8192, "n": 28672, "k": 4096, "dtype": "bf16", "seconds": 0.0029}],
        "collectives": [
            {"kind": "all_reduce", "num_bytes": 67108864, "num_ranks": 8, "ranks_per_node": 8, "seconds": 0.00035}
        ],
        "conditions": {"date": "2026-08-01", "device": "NVIDIA H100 80GB HBM3"},
    }
)  # fmt: skip
PEAKS = json.dumps(
    {
        "schema": "forescale.bench/1",
        "config": {"model": "llama-3.2-1b", "cluster": "h100-sxm", "devices": 8, "strategy": {"zero": 1},
                   "workload": {"seq_len": 2048, "global_batch_size": 32}},
        "ranks": [{"rank": 0, "stage": 0, "peak_allocated_bytes": 2.1e10, "peak_reserved_bytes": 2.4e10}],
    }
)  # fmt: skip
FITS = json.dumps(
    {
        "schema": "forescale.calibrations/1",
        "runs": {"name": "own", "date": "2026-01-01", "source": "x", "devices": {"hopper": {"wide": 0.8}},
                 "software": {"megatron-core": {"step_overhead_s": 0.01}}},
        "kernels": {"h100-sxm": {"base": "hopper", "memory": {"norm": {"bandwidth": 0.8, "launch_s": 1e-6}}}},
    }
)  # fmt: skip
LOG = (DATA / "collectives" / "mi300x_1_node_all_reduce.txt").read_text(encoding="utf-8")
TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
LAUNCH = """#!/bin/bash
#SBATCH --nodes=2
TP=${TP:-2}; N=$((TP * 4))
ARGS=(--nproc_per_node 8 --nnodes $(( N / 4 )))
MODEL=(--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 2048 --vocab-size 1000)
if [[ $TP -gt 1 ]]; then MODEL+=(--sequence-parallel); fi
run="torchrun ${ARGS[@]} pretrain_gpt.py ${MODEL[@]} --tensor-model-parallel-size $TP --bf16"
case $N in 8) BATCH=32;; *) BATCH=64;; esac
srun bash -c "$run --micro-batch-size 1 --global-batch-size ${BATCH} --train-iters 10"
"""
TITAN = """from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        parallelism=ParallelismConfig(data_parallel_shard_degree=-1, tensor_parallel_degree=2),
    )
"""
NANOTRON = (DATA / "nanotron" / "config_tiny_llama.yaml").read_text(encoding="utf-8")
EXAMPLES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("project", *DENSE, "--tp", "2", "--zero", "1", "--recompute", "full", "--tokens", "1T"), "", ""),
    (("project", "mixtral-8x7b", "--cluster", "h100-sxm", "--devices", "32", *RUN, "--ep", "8", "--capacity-factor", "1.0"), "", ""),
    (("project", *DENSE, "--pp", "2", "--schedule", "zb-h1", "--stage-layers", "8,8", "--axis-order", "tp,cp,dp,pp"), "", ""),
    (("project", "FILE", *ON), "config.json", HF),
    (("project", "FILE", "--cluster", "h100-sxm", "--devices", "16", *RUN, "--ep", "2"), "moe.json", MOE),
    (("project", "FILE", "--cluster", "h100-sxm"), "run.sh", SCRIPT),
    (("project", "FILE", *ON), "preset.yaml", PRIMUS),
    (("project", *DENSE[:-2], "--config", "FILE"), "ds.json", DEEPSPEED),
    (("project", "--plan", "FILE"), "plan.toml", PLAN),
    (("explain", "step_time", "--plan", "FILE", "--depth", "2"), "plan.toml", PLAN),
    (("memory", "--plan", "FILE"), "plan.toml", PLAN),
    (("memory", *DENSE, "--memory-mode", "both", "--load-benchmark", "FILE"), "peaks.json", PEAKS),
    (("memory", "compare", *DENSE, "--across", "seq-len", "--values", "1024,2048"), "", ""),
    (("project", "llama-3.2-1b", "--cluster", "FILE", *ON[2:]), "mine.yaml", CLUSTER),
    (("project", *DENSE, "--hardware-config", "FILE"), "hw.yaml", HARDWARE),
    (("project", *DENSE, "--measurements", "FILE"), "kernels.csv", KERNELS),
    (("project", *DENSE, "--measurements", "FILE"), "bench.json", BENCH),
    (("project", *DENSE, "--calibration", "FILE"), "own.json", FITS),
    (("search", *DENSE, "--fix", "tp=1", "--fix", "cp=1", "--fix", "pp=1", "--top", "3", "--max-memory", "70GiB"), "", ""),
    (("search", *DENSE, "--space", "FILE"), "space.toml", SPACE),
    (("search", *DENSE, "--fix", "cp=1", "--fix", "pp=1", "--tokens", "1T", "--target-days", "9", "--price-per-device-hour", "2"), "", ""),
    (("advise", *DENSE, "--no-exact"), "", ""),
    (("fit", *DENSE, "--tp", "2"), "", ""),
    (("sweep", "FILE", "--jobs", "1"), "sweep.toml", SWEEP),
    (("sweep", "FILE", "--dry-run"), "sweep.toml", SWEEP),
    (("validate", "FILE"), "runs.csv", RUNS),
    (("calibrate", "FILE", "--output", "OUT.json"), "runs.csv", RUNS),
    (("calibrate", "--kernels", "FILE", "--device", "h100-sxm", "--output", "OUT.json"), "kernels.csv", KERNELS),
    (("calibrate", "--collectives", "FILE", "--cluster", "mi300x", "--output", "OUT.json"), "log.txt", LOG),
    (("compare", "FILE", "FILE"), "plan.toml", PLAN),
    (("compare", "FILE", "FILE"), "a.json", "PROJECTION"),
    (("catalogue", "models"), "", ""),
    (("report", *DENSE, "--fix", "cp=1", "--fix", "pp=1", "--output", "OUT.md"), "", ""),
    (("pipeline", "simulate", "-s", "1f1b", "--pp", "4", "-m", "8", "--forward", "1"), "", ""),
    (("pipeline", "draw", "-s", "zbv", "--pp", "2", "-m", "4", "-f", "svg"), "", ""),
    (("pipeline", "check", "FILE"), "table.csv", TABLE),
    (("pipeline", "partition", *DENSE, "--pp", "2"), "", ""),
    (("pipeline", "list"), "", ""),
    (("project", "FILE", "--cluster", "h100-sxm", "--var", "TP=4"), "launch.sh", LAUNCH),
    (("project", "FILE", "--cluster", "h100-sxm", "--devices", "8"), "titan.py", TITAN),
    (("project", "FILE", "--cluster", "h100-sxm"), "nanotron.yaml", NANOTRON),
    (("export", *DENSE, "--to", "megatron", "--tp", "2", "--output", "OUT.sh"), "", ""),
    (("export", "FILE", "--cluster", "h100-sxm", "--to", "torchtitan"), "launch.sh", LAUNCH),
    (("run", *DENSE, "--tokens", "1T", "--failures", "0.01", "--interval", "600", "--spares", "1", "--price", "2"), "", ""),
    (("run", *DENSE, "--phase", "tokens=1T seq_len=4096", "--phase", "tokens=2e10 tp=2 devices=16"), "", ""),
    (("sites", *DENSE, "--every", "50", "--fragments", "4", "--overlapped", "1", "--bandwidth", "10Gbit/s"), "", ""),
)  # fmt: skip
WORDS = (
    "0", "-1", "nan", "inf", "-inf", "1e30", "1e400", "1e-400", "9" * 25, "9" * 5000, str(2**63), str(10**12), "1.5", "",
    " ", "²", "٣", "تدريب", "𝔘", "null", "true", "[]", "{}", "128k", "15T", "70GiB", "70GX", "x2", "~nobody/x", "/dev/null",
    "../x", ".", "a" * 3000, "<script>", "\x1b[31m", "=1+1", "1,2,3", "1_000", "4,096", "--", "-0", "tp=2", "all", "none",
)  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
ENDLESS = re.compile(r"(?<![\w./-])(?:nan|-?inf|NaN|-?Infinity)(?![\w./-])")


class Late(BaseException):
    """A question takes too long; no handler of errors on its way may take it for one of its own."""


@dataclass
class Broken:
    """One command line and its file."""

    arguments: list[str]
    name: str = ""
    content: bytes = b""
    problems: list[str] = field(default_factory=list)


def broken(seed: int, projection: str) -> Broken:
    """Return the question of a seed: an example with its arguments or its file mutated, often both whole."""
    chance = random.Random(seed)
    arguments, name, text = EXAMPLES[seed % len(EXAMPLES)]
    content = (projection if text == "PROJECTION" else text).encode()
    parts = list(arguments)
    if not name or chance.random() < 0.3:
        parts = _mutated_words(parts, chance)
    if name:
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            content = chance.choice(MUTATIONS)(content, chance)
    return Broken(arguments=parts, name=name, content=content)


def _mutated_words(names: list[str], chance: random.Random) -> list[str]:
    names = list(names)
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(1, len(names))
        match chance.randrange(6):
            case 0:
                del names[at]
            case 1:
                names.insert(at, chance.choice(names))
            case 2:
                names[at] = names[at][::-1]
            case _:
                values = [place for place in range(1, len(names)) if not names[place].startswith("--")]
                names[chance.choice(values or [at])] = chance.choice(WORDS).replace("\0", "")
        if len(names) < 2:
            break
    return names


def _flipped(content: bytes, chance: random.Random) -> bytes:
    result = bytearray(content or b" ")
    for _ in range(chance.randrange(1, 4)):
        result[chance.randrange(len(result))] ^= 1 << chance.randrange(8)
    return bytes(result)


def _cut(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    end = min(len(content), start + chance.randrange(1, 40))
    return content[:start] if chance.random() < 0.3 else content[:start] + content[end:]


def _numbered(content: bytes, chance: random.Random) -> bytes:
    text = content.decode("utf-8", errors="replace")
    result = list(NUMBER.finditer(text))
    if not result:
        return content
    match = chance.choice(result)
    word = chance.choice(WORDS)
    return f"{text[: match.start()]}{word}{text[match.end() :]}".encode()


def _reworded(content: bytes, chance: random.Random) -> bytes:
    text = content.decode("utf-8", errors="replace")
    result = list(re.finditer(r"\w+", text))
    if not result:
        return content
    match = chance.choice(result)
    word = chance.choice((*WORDS, match[0] * 2, match[0][:-1], chance.choice(result)[0]))
    return f"{text[: match.start()]}{word}{text[match.end() :]}".encode()


def _doubled(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n") if b"\n" in content else content.replace(b", ", b",\n").split(b"\n")
    at = chance.randrange(len(lines))
    lines.insert(chance.randrange(len(lines) + 1), lines[at])
    return b"\n".join(lines)


def _nested(content: bytes, chance: random.Random) -> bytes:
    depth = chance.choice((3, 70, 20_000))
    at = chance.randrange(len(content) + 1)
    left, right = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
    return content[:at] + left * depth + b"1" + right * depth + content[at:]


def _encoded(content: bytes, chance: random.Random) -> bytes:
    text = content.decode("utf-8", errors="replace")
    return chance.choice(
        (text.encode("utf-16"), b"\xef\xbb\xbf" + content, text.replace("\n", "\r\n").encode(), b"", content + b"\0", b"\xff" + content)
    )  # fmt: skip


MUTATIONS = (
    _flipped,
    _cut,
    _numbered,
    _numbered,
    _numbered,
    _reworded,
    _reworded,
    _doubled,
    _nested,
    _encoded,
)


def ask(question: Broken, folder: Path) -> Broken:
    """Ask one question in `folder`, where what it writes lands, and note what is wrong with how it ended."""
    if question.name:
        (folder / question.name).write_bytes(question.content)
    places = {
        "FILE": str(folder / question.name),
        "OUT.json": str(folder / "out.json"),
        "OUT.md": str(folder / "out.md"),
    }
    arguments = [places.get(word, word) for word in question.arguments]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: int | None = None
    caught = warnings.catch_warnings(record=True)
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), caught as heard:
        warnings.simplefilter("always")
        try:
            code = run(arguments)
        except Late:
            question.problems.append("took too long")
        except BaseException:  # whatever it is, it is what is looked for
            question.problems.append(traceback.format_exc(limit=-4))
    answer, message = (_text(stream) for stream in (out, err))
    if heard:
        question.problems.append(f"warning: {heard[0].message}")
    if code is not None:
        question.problems += _wrong(question, code, answer, message)
    question.problems += [f"left {path.name}" for path in folder.glob("**/*.part")]
    return question


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", errors="replace")  # type: ignore[attr-defined]


def _wrong(question: Broken, code: int, answer: str, text: str) -> list[str]:
    checks = question.arguments[:2] == ["pipeline", "check"]
    if code not in ((0, 1, 2) if checks else (0, 2)):
        return [f"exit code {code}: {text[:200]}"]
    if code == 2 and not text.startswith("error: "):
        return [f"no sentence: {text[:200]!r}"]
    if code == 2 and "Traceback" in text:
        return [text[:300]]
    value = " ".join(question.arguments) + "\n" + question.content.decode("utf-8", errors="replace")
    result = ENDLESS.search(answer) if code == 0 and not ENDLESS.search(value) else None
    return (
        [f"an answer with {result[0]}: …{answer[max(0, result.start() - 60) : result.end() + 20]!r}"]
        if result
        else []
    )


def projection_document() -> str:
    """Return what project prints with --json, for comparisons."""
    out = io.StringIO()
    with redirect_stdout(out):
        run(["project", *DENSE, "--json"])
    return out.getvalue()


def main() -> int:
    """Ask many broken questions, each within some seconds; print what goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    document, wrong = projection_document(), 0

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    for seed in range(args.first, args.first + args.count):
        folder = Path(tempfile.mkdtemp())
        signal.alarm(args.seconds)
        result = ask(broken(seed, document), folder)
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
        if result.problems:
            wrong += 1
            shown = " ".join(word[:60] for word in result.arguments)
            sys.stdout.write(f"seed {seed}: {shown}\n{result.content[:0]!r} {result.problems[0]}\n\n")
            sys.stdout.flush()
    sys.stdout.write(f"{args.count} broken questions, {wrong} that ended wrongly\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
